"""Results as they come to the gate, against a real pinned source, or a real candidate merged onto a real head."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from contracts.canonical import digest_of, sha256_digest
from contracts.delegation import Binding, render_contract
from contracts.results import Manifest, PathChange, ProcessRecord
from contracts.scopes import in_scope
from contracts.states import ClaimKind
from contracts.terms import Terms
from coordinator.gate import Case, JudgedTree
from coordinator.store.records import Claim, RepairHistory
from workspaces import TreeReader, fetch_source, pin_source

SOURCE = {
    "src/pay.py": b"def pay():\n    return legacy_state()\n",
    "src/empty.py": b"",
    "secret/plan.md": b"not for children\n",
}
AT = "2026-08-01T00:00:00+00:00"


MakeCase = Callable[..., Case]
Files = Mapping[str, bytes | None]
"""path -> content; None: not there. A path that ends with ``@`` is a symbolic link to its content."""
MakeCandidate = Callable[..., JudgedTree]


class Checkout:
    """Runs programs in a clean checkout of one tree, with no environment but ``PATH`` and what is given."""

    def __init__(self, git_dir: Path, tree: str) -> None:
        self._git_dir, self._tree = git_dir, tree
        self.runs: list[list[str]] = []

    def __call__(self, argv: Sequence[str], timeout_s: float, env: Mapping[str, str]) -> ProcessRecord:
        self.runs.append(list(argv))
        program = [sys.executable, *argv[1:]] if argv[0] == "python" else list(argv)
        archive = git(self._git_dir, "archive", self._tree)
        with tempfile.TemporaryDirectory(prefix="checkout") as folder, tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(folder, filter="fully_trusted")
            begin = time.monotonic()
            given = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1", **env}
            process = subprocess.Popen(
                program, cwd=folder, env=given, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            how = "exited"
            try:
                output, _ = process.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                how = "timeout"
                os.killpg(process.pid, signal.SIGKILL)
                output, _ = process.communicate()
        status = process.returncode
        return ProcessRecord(
            argv=program, how=how, exit_status=status if status >= 0 else None, signal=-status if status < 0 else None,
            all_gone=True, left_behind=0, started_at=AT, elapsed_s=time.monotonic() - begin,
            stdout_digest=sha256_digest(output), stderr_digest=sha256_digest(b""),
            output_tail=output.decode("utf-8", "replace")[-4000:],
        )  # fmt: skip


def git(git_dir: Path, *words: str, data: bytes = b"") -> bytes:
    person = {f"GIT_{who}_{what}": "a" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    environment = {"PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1", **person}
    command = ["git", f"--git-dir={git_dir}", *words]
    return subprocess.run(command, env=environment, input=data, check=True, capture_output=True).stdout


def write_commit(git_dir: Path, files: Files, *parents: str) -> str:
    """A commit of exactly these files."""
    lines = []
    for path, content in files.items():
        if content is not None:
            blob = git(git_dir, "hash-object", "-w", "--stdin", data=content).decode().strip()
            mode = "120000" if path.endswith("@") else "100644"
            lines.append(f"{mode} {blob}\t{path.removesuffix('@')}\0".encode("utf-8", "surrogateescape"))
    index = {"GIT_INDEX_FILE": str(git_dir / "made-index"), "PATH": os.environ["PATH"]}
    (git_dir / "made-index").unlink(missing_ok=True)
    for words in (["update-index", "-z", "--index-info"], ["write-tree"]):
        command = ["git", f"--git-dir={git_dir}", *words]
        done = subprocess.run(command, env=index, input=b"".join(lines), check=True, capture_output=True)
    tree = done.stdout.decode().strip()
    above = [word for parent in parents for word in ("-p", parent)]
    return git(git_dir, "commit-tree", tree, *above, "-m", "made").decode().strip()


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JudgedTree]:
    """What a result without a workspace is judged on."""
    folder = tmp_path_factory.mktemp("source") / "payments"
    for path, data in SOURCE.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    pin = pin_source(folder)
    git_dir = tmp_path_factory.mktemp("git") / "source.git"
    fetch_source(pin, git_dir)
    reader = TreeReader(git_dir, pin.commit)
    yield JudgedTree(tree=pin.commit, reader=reader, run_command=Checkout(git_dir, pin.commit))
    reader.close()


@pytest.fixture
def make_candidate(tmp_path: Path) -> Iterator[MakeCandidate]:
    """``make_candidate({path: new content})``: a child's candidate on ``SOURCE``, merged as objects onto the head.

    ``base``: other files than ``SOURCE``. ``head``: what was accepted meanwhile. ``write_scope``: what it may change.
    """
    git_dir = tmp_path / "run.git"
    subprocess.run(["git", "init", "-q", "--bare", str(git_dir)], check=True)
    readers: list[TreeReader] = []

    def make(
        changed: Files, *, base: Files = SOURCE, head: Files | None = None, write_scope: Sequence[str] = ("**",)
    ) -> JudgedTree:
        start = write_commit(git_dir, base)
        candidate = write_commit(git_dir, {**base, **changed}, start)
        onto = write_commit(git_dir, {**base, **head}, start) if head is not None else start
        words = [f"--git-dir={git_dir}", "merge-tree", "--write-tree", "-z", "--name-only", "--no-messages"]
        merge = subprocess.run(["git", *words, onto, candidate], capture_output=True, check=False)
        tree, *conflicts = merge.stdout.decode().rstrip("\0").split("\0")
        merged = git(git_dir, "commit-tree", tree, "-p", onto, "-p", candidate, "-m", "merged").decode().strip()
        readers.append(TreeReader(git_dir, candidate if conflicts else merged))
        raw = git(git_dir, "diff-tree", "-r", "-z", "--raw", "--no-renames", start, candidate).split(b"\0")[:-1]
        status = {"A": "added", "M": "modified", "D": "deleted", "T": "type"}
        changes = [
            PathChange.model_validate({
                "path": path.decode("utf-8", "backslashreplace") if b"\xff" not in path
                else path.decode("utf-8", "surrogateescape").encode("utf-8", "backslashreplace").decode(),
                "status": status[facts.split()[4].decode()[0]],
                "old_mode": facts.split()[0].decode()[1:], "new_mode": facts.split()[1].decode(),
            })
            for facts, path in zip(raw[::2], raw[1::2], strict=True)
        ]  # fmt: skip
        return JudgedTree(
            tree=tree,
            reader=readers[-1],
            run_command=Checkout(git_dir, tree),
            changes=changes,
            outside_scope=[change.path for change in changes if not in_scope(write_scope, change.path)],
            conflicts=list(dict.fromkeys(conflicts)),
            base_commit=start,
            candidate_tree=git(git_dir, "rev-parse", f"{candidate}^{{tree}}").decode().strip(),
            new_head=None if conflicts else merged,
        )

    yield make
    for reader in readers:
        reader.close()


def workspace_record(judged: JudgedTree) -> dict[str, Any]:
    """As the manifest names the candidate."""
    return {
        "kind": "clone",
        "base_commit": judged.base_commit,
        "base_tree": "",
        "candidate_commit": "",
        "candidate_tree": judged.candidate_tree,
        "changes": [change.model_dump() for change in judged.changes],
        "outside_scope": list(judged.outside_scope),
        "left_out": [],
    }


@pytest.fixture
def make_case(source: JudgedTree) -> MakeCase:
    """``make_case(acceptance=[...], output=...)``: a completed result of one task under its first claim.

    ``artifacts``: name -> bytes. ``files``: pinned name -> bytes. ``evidence``: manifest items (``origin`` defaults to
    claimed). ``calls``: observed calls. ``judged``: a
    candidate instead of the source alone. What is left over replaces fields of the manifest.
    """

    def make(
        *,
        acceptance: list[dict[str, Any]] | None = None,
        required_evidence: list[Any] | None = None,
        read_scope: list[str] | None = None,
        files: Mapping[str, bytes] | None = None,
        artifacts: Mapping[str, bytes] | None = None,
        evidence: list[dict[str, Any]] | None = None,
        calls: list[dict[str, Any]] | None = None,
        history: RepairHistory | None = None,
        judged: JudgedTree | None = None,
        **manifest: Any,
    ) -> Case:
        files, artifacts = dict(files or {}), dict(artifacts or {})
        terms = Terms.model_validate(
            {
                "task_id": "audit",
                "contract_version": 1,
                "objective": "Audit it.",
                "input_snapshot": {name: f"{name}@{sha256_digest(data)}" for name, data in files.items()},
                "resources": {
                    "tools": ["read_file"],
                    "read_scope": read_scope or ["**"],
                    "write_scope": ["src/"] if judged else [],
                },
                "workspace": "clone" if judged else "none",
                "isolation": "none",
                "required_evidence": required_evidence or [],
                "acceptance": acceptance or [],
            }
        )
        stored = {sha256_digest(data): data for data in artifacts.values()}
        fields: dict[str, Any] = {
            "run_id": "audit",
            "task_id": "audit",
            "contract_version": 1,
            "child_run_id": "audit-audit-1",
            "attempt": 1,
            "claim_generation": 1,
            "terms_digest": terms.digest,
            "outcome": "completed",
            "output": None,
            "message": "",
            "evidence": [{"origin": "claimed", **item} for item in evidence or []],
            "artifacts": [
                {
                    "name": name,
                    "digest": sha256_digest(data),
                    "size_bytes": len(data),
                    "media_type": "text/markdown" if name.endswith(".md") else "application/octet-stream",
                }
                for name, data in artifacts.items()
            ],
            "gaps": [],
            "assumptions": [],
            "next_action": "",
            "observed_calls": [
                {"number": number, "tool": "read_file", "arguments": {}, "ok": True, "at": AT, **call}
                for number, call in enumerate(calls or [], 1)
            ],
            "read_set": {},
            "workspace": workspace_record(judged) if judged else None,
            "content_digest": digest_of([manifest.get("output"), sorted(stored)]),
            "isolation": "none",
            "unenforced": "isolation none: network and write scope were not enforced",
            "redactions": 0,
            "started_at": AT,
            "finished_at": AT,
        } | manifest  # fmt: skip
        made = Manifest.model_validate_json(
            Manifest.model_validate(fields, strict=False).model_dump_json(by_alias=True)
        )
        claim = Claim(
            orchestration_row=1, task_row=7, run_id="audit", task_id="audit", kind=ClaimKind.GATE, generation=2,
            token="t", owner="w", lease_until=2, claimed_at=1, delegation_id="audit", terms=terms,
            terms_digest=terms.digest, attempt_row=1, attempt=1, child_run_id="audit-audit-1", deadline_at=9,
            parent_state_version=3, head=None, manifest_digest=made.digest, generation_submitted=1,
        )  # fmt: skip
        binding = Binding(
            child_run_id="audit-audit-1", parent_run_id="audit", delegation_id="audit", parent_state_version=3
        )
        return Case(
            claim=claim,
            manifest=made,
            read_artifact=stored.__getitem__,
            read_file=files.__getitem__,
            judged=judged or source,
            history=history or RepairHistory(repairs=0, last_content_digest=None),
            contract=lambda: render_contract(terms, binding),
        )

    return make
