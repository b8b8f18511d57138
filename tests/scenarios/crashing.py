"""Plays a run in which processes die at named points, and says what that cost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import select

from contracts.canonical import sha256_digest
from contracts.results import Manifest
from coordinator.home import open_home
from coordinator.store import tables as t
from coordinator.verifying import verify

if TYPE_CHECKING:
    from tests.model_servers.fake import FakeModelServer

HERE = Path(__file__).parent
PROGRAM = """
mark("start")
while not all((MARKS / "fired" / name).exists() for name in P["inputs"].get("hold", [])):
    time.sleep(0.02)
(HERE / f"{P['task_id']}.txt").write_text(P["task_id"])
(pathlib.Path(os.environ["COORDINATOR_ARTIFACTS"]) / "big.txt").write_text(P["task_id"] * 20_000)
hand_in(output={"done": True}, artifacts=[{"name": "big.txt", "path": "big.txt"}])
"""
CHECK = "import os, sys; open(sys.argv[1], 'a').write(f'{sys.argv[2]} 0 0 {os.getpid()} checked\\n')"


@dataclass(frozen=True)
class Plan:
    """Where a process dies. ``after`` and ``hold``: see ``crash_server.Deaths``."""

    label: str
    point: str
    after: str | None = None
    hold: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Loss:
    """What one death cost, in words that do not swing: each sorted, none twice."""

    lost: tuple[str, ...] = ()
    repeated: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    left: tuple[str, ...] = ()

    @classmethod
    def of(cls, **words: Mapping[str, bool]) -> Loss:
        return cls(**{key: listed(found) for key, found in words.items()})


def listed(found: Mapping[str, bool]) -> tuple[str, ...]:
    return tuple(sorted(word for word, is_so in found.items() if is_so))


class Server:
    """The process of crash_server.py. Its forks are its own children: it alone can wait for them."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "crash_server.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": str(HERE.parent.parent), "NO_COLOR": "1"},
        )  # fmt: skip

    def ask(self, **message: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


class Player:
    """``bench``: a user's repository, with a store, a home and an orchestration beside it."""

    def __init__(self, server: Server, bench: Any, fake_model: Callable[[], FakeModelServer]) -> None:
        """``fake_model``: starts the server of models that is there until the test ends."""
        self.server = server
        self.fake_model = fake_model
        self.bench = bench
        self.place = bench.place
        self.paid_micro_usd: Callable[[], int] = lambda: 0
        """What those who answer as models have been paid."""
        self._running: set[int] = set()
        self.fired = bench.folder / "fired"
        self.fired.mkdir()
        bench.commit({"readme.md": "hello\n"})

    # -- what is to be done

    def program(self, name: str, **fields: Any) -> dict[str, Any]:
        limits = {"lease_s": 30, "max_claims": 1000, **fields.pop("limits", {})}
        check = {"command": ["python", "-c", CHECK, str(self.place.marks_file), name]}
        task: dict[str, Any] = self.bench.program("program", PROGRAM, acceptance=[check], limits=limits, **fields)
        return task

    def function(self, name: str = "reads") -> dict[str, Any]:
        tools = {"tools": ["list_files", "read_file"]}
        task: dict[str, Any] = self.place.task(name, resources=tools, limits={"max_claims": 1000, "lease_s": 30})
        return task

    # -- who does it

    def start(self, do: str, plans: Iterable[Plan] = (), **told: Any) -> int:
        answer = self.server.ask(
            do=do, plans=[asdict(plan) for plan in plans], store=self.place.url, home=str(self.place.home),
            fired=str(self.fired), log=str(self.bench.folder / "process.log"), marks=str(self.bench.folder), **told,
        )  # fmt: skip
        self._running.add(answer["pid"])
        return int(answer["pid"])

    def ended(self, *, wait: bool = True) -> tuple[int, int]:
        """The next process that ends, and how; 0 if none has and it is not waited for."""
        answer = self.server.ask(wait=wait)
        self._running.discard(answer["pid"])
        return answer["pid"], answer["code"]

    def clean_up(self) -> None:
        for pid in self._running:
            os.kill(pid, signal.SIGKILL)
        while self._running:
            self.ended()

    def play(self, do: str, plan: Plan | None = None, code: int = 0, **told: Any) -> None:
        """One process to its end, which is its death if that is planned."""
        self.start(do, [plan] if plan else [], **told)
        found = self.ended()[1]
        due = code if plan is None else -signal.SIGKILL
        assert found == due, f"{do} ended with {found} instead of {due}\n{self.log}"
        assert plan is None or self.has_fired(plan)

    def work(self, plan: Plan | None = None, code: int = 0) -> None:
        self.play("work", plan, code, slots=1)

    def has_fired(self, plan: Plan) -> bool:
        return (self.fired / plan.label.replace(" ", "-")).exists()

    @property
    def log(self) -> str:
        log: Path = self.bench.folder / "process.log"
        return log.read_text(errors="replace")[-6000:] if log.exists() else ""

    def rows(self, query: Any) -> list[Any]:
        found: list[Any] = self.place.store.read_with(lambda tx: tx.conn.execute(query).all())
        return found

    # -- what came of it

    def broken(self) -> list[str]:
        """Every way in which what must hold of the run does not hold."""
        place, run = self.place, self.place.run()
        home = open_home(place.url, place.home)
        wrong = [f"verify: {found}" for found in verify(place.store, home, run.row).differences]
        for task in run.tasks:
            verbs = place.verbs(task.task_id)
            if task.state == "accepted" and verbs.count("accepted") != 1:
                wrong.append(f"{task.task_id} was accepted {verbs.count('accepted')} times")
            if sum(attempt.decision == "accepted" for attempt in task.attempts) != (task.state == "accepted"):
                wrong.append(f"{task.task_id} is {task.state}, its attempts say otherwise")
            if [attempt.number for attempt in task.attempts] != list(range(1, verbs.count("claimed") + 1)):
                wrong.append(f"{task.task_id} has attempts {[a.number for a in task.attempts]}")
            generations = [attempt.generation for attempt in task.attempts]
            if generations != sorted(set(generations)) or (generations and generations[-1] > task.generation):
                wrong.append(f"{task.task_id} has generations {generations} and stands at {task.generation}")
            wrong += [f"{task.task_id}@{a.number} has no end" for a in task.attempts if a.ended is None]
            if task.owner is not None:
                wrong.append(f"{task.task_id} is still held by {task.owner}")
        wrong += self._broken_names() + self._broken_folders() + self._broken_git(run) + self._broken_money(run)
        alive = {int(line[3]) for line in place.marks("start") if self._is_program(int(line[3]))}
        return wrong + [f"the child's process {pid} still runs" for pid in alive]

    def _broken_names(self) -> list[str]:
        """Rows that name bytes which are not there."""
        documents = self.rows(select(t.document.c.digest).where(t.document.c.data.is_(None)))
        wrong = []
        for (digest,) in documents:
            data = self.place.store.files.read(digest)
            if data is None or sha256_digest(data) != digest:
                wrong.append(f"document {digest} is named and not there")
        return wrong

    def _broken_folders(self) -> list[str]:
        """Workspaces that no row names, and such as are there though their row says that they are gone."""
        rows = {row.folder: row.removed_at for row in self.rows(select(t.workspace.c.folder, t.workspace.c.removed_at))}
        there = {str(path) for path in self.bench.workspaces}
        wrong = [f"no row names {path}" for path in there - rows.keys()]
        return wrong + [f"{path} is there, its row says it is gone" for path in there if rows.get(path) is not None]

    def _broken_git(self, run: Any) -> list[str]:
        if run.head is None:
            return []
        check = self._git(run, "fsck", "--strict", "--no-dangling", "--no-progress")
        wrong = [f"git fsck: {check.stdout}{check.stderr}"] if check.returncode or check.stdout else []
        for task in run.tasks:
            for attempt in task.attempts:
                if attempt.decision != "accepted":
                    continue
                manifest = Manifest.model_validate_json(self.place.store.bytes_of(attempt.manifest_digest))
                if manifest.workspace is None:
                    continue
                if self._git(
                    run, "merge-base", "--is-ancestor", manifest.workspace.candidate_commit, run.head
                ).returncode:
                    wrong.append(f"the head does not contain what was accepted of {task.task_id}")
        return wrong

    def _broken_money(self, run: Any) -> list[str]:
        """Budgets that do not say what was spent, or were passed, and turns that were stored twice."""
        charges: Counter[int] = Counter()
        of_run = select(t.task.c.id).where(t.task.c.orchestration_id == run.row)
        for row in self.rows(select(t.charge).where(t.charge.c.task_id.in_(of_run))):
            charges[row.task_id] += row.micro_usd
        wrong = [
            f"{task.task_id} is charged {task.charged_micro_usd}, its calls {charges[task.row]}"
            for task in run.tasks
            if task.charged_micro_usd != charges[task.row]
        ]
        charged, paid = run.charged_micro_usd, self.paid_micro_usd()
        if charged != charges.total() or charged < paid:
            wrong.append(f"the run is charged {charged}, its calls {charges.total()}; {paid} was paid")
        ((limit,),) = self.rows(select(t.orchestration.c.limit_micro_usd).where(t.orchestration.c.id == run.row))
        if limit is not None and charged > limit:
            wrong.append(f"the run is charged {charged} of {limit}")
        turns = [self.place.store.bytes_of(turn.response_digest) for turn in self.place.store.turns(run.row)]
        calls = Counter(call["call_id"] for turn in turns for call in json.loads(turn)["response"]["calls"])
        return wrong + [f"the call {call_id} is in {count} turns" for call_id, count in calls.items() if count > 1]

    def head_paths(self) -> set[str]:
        """Of the files that are accepted."""
        run = self.place.run()
        return set(self._git(run, "ls-tree", "-r", "--name-only", run.head).stdout.splitlines())

    def _git(self, run: Any, *words: str) -> subprocess.CompletedProcess[str]:
        git_dir = open_home(self.place.url, self.place.home).git_dir(run.document["git_dir"])
        return subprocess.run(["git", f"--git-dir={git_dir}", *words], capture_output=True, text=True)

    def _is_program(self, pid: int) -> bool:
        try:
            return b"program.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return False

    def loss_of_work(self) -> Loss:
        """Of a run with the one task ``one``, whose worker died once."""
        attempts = self.place.one("one").attempts
        begun = {int(line[1]) for line in self.place.marks("start", "one")}
        checked = len(self.place.marks("checked", "one"))
        lost = [attempt.number for attempt in attempts if attempt.ended == "lost"]
        return Loss.of(
            lost={
                "the claim": any(number not in begun for number in lost),
                "the child's work": any(number in begun for number in lost),
                "the check's outcome": checked > 1,
            },
            repeated={
                "the child": len(begun) > 1,
                "the workspace's making": len(self.rows(select(t.workspace.c.folder))) > 1,
                "the check": checked > 1,
            },
            unknown={"what the child did outside its workspace": any(number in begun for number in lost)},
            left=self.left(),
        )

    def left(self, exported: Path | None = None) -> dict[str, bool]:
        """What lies about when all is over."""
        home = self.place.home
        names = [path.name for path in (home / "workspaces").glob(".*")]
        checks = list((home / "checks").glob("*"))
        git_dirs = Counter(path.name for path in (home / "git").glob("*.git"))
        used = {name for name in [self.place.run().document.get("git_dir")] if name}
        return {
            "a workspace": bool(self.bench.workspaces),
            "a half-made workspace": any(name.startswith(".partial-") for name in names),
            "a half-deleted workspace": any(name.startswith(".removed-") for name in names),
            "a private folder": bool(self.bench.private_folders),
            "a check's folder": bool(checks),
            "a workspace's row": any(
                row.removed_at is None and not Path(row.folder).exists()
                for row in self.rows(select(t.workspace.c.folder, t.workspace.c.removed_at))
            ),
            "a git directory": bool(git_dirs.keys() - used),
            "a temporary file": any((home / "artifacts").rglob(".new-*")) or any(_temporary(home / "files")),
            "a temporary file beside the export": exported is not None and any(exported.parent.glob(".export-*")),
        }


def _temporary(folder: Path) -> list[Path]:
    return [path for path in folder.rglob(".*") if path.is_file()]
