from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def copy(answered: Any, tmp_path: Path) -> Any:
    """The ended report, to be damaged."""
    shutil.copytree(answered.folder, tmp_path / "copy")
    return type(answered)(tmp_path / "copy")


def sql(cli: Any, statement: str, *values: Any) -> list[Any]:
    connection = sqlite3.connect(cli.folder / ".coordinator" / "store.db")
    with connection:
        found = connection.execute(statement, values).fetchall()
    connection.close()
    return found


def flip(cli: Any, digest: str) -> None:
    """Change one bit of the stored bytes."""
    [(data,)] = sql(cli, "SELECT data FROM document WHERE digest = ?", digest)
    if data is not None:
        sql(cli, "UPDATE document SET data = ? WHERE digest = ?", bytes([data[0] ^ 1]) + data[1:], digest)
        return
    name = digest.removeprefix("sha256:")
    file = cli.folder / ".coordinator" / "artifacts" / name[:2] / name[2:]
    content = file.read_bytes()
    file.chmod(0o644)
    file.write_bytes(bytes([content[0] ^ 1]) + content[1:])


def draft_of(cli: Any) -> Any:
    return cli.json("evidence", "report/draft")[0]


def artifact(cli: Any, name: str) -> str:
    return next(str(entry["digest"]) for entry in draft_of(cli)["manifest"]["artifacts"] if entry["name"] == name)


def test_claimed_stands_beside_observed_and_verified(answered: Any) -> None:
    text = answered("evidence", "report/draft").stdout
    rows = [" ".join(line.split()) for line in text.splitlines()]
    assert "evidence claimed observed verified" in rows
    assert any(row.startswith("facts used (note, owed at least claimed)") and "not observed" in row for row in rows)
    assert any("artifact draft.md stored yes, by the gate" in row for row in rows)
    for line in ("gap costs are not covered", "assumed the pilot goes on", "observed no tool calls"):
        assert line in rows
    assert "other attempts: @1 repair required" in text
    assert text.count("unenforced:") == 1


def test_a_missing_piece_of_evidence_is_named_in_the_attempt_that_lacks_it(cli: Any) -> None:
    (cli.folder / "k.py").write_text("def go(a):\n    return a.completed(1)\n")
    (cli.folder / "orchestration.yaml").write_text(
        "schema: coordinator/v1\nname: lacking\nobjective: x\ndefaults: {isolation: none}\n"
        'tasks:\n  one: {objective: x, agent: {function: "k.py:go"}, required_evidence: [proof],'
        ' acceptance: [{cel: "true"}]}\n'
    )
    assert cli("run").returncode == 1
    text = " ".join(cli("evidence", "lacking/one@1").stdout.split())
    assert "proof (note, owed at least claimed) nothing handed in" in text
    assert "evidence 'proof' is missing" in text


def test_what_a_child_says_is_never_markup_or_a_control_code(answered: Any) -> None:
    for words in (["evidence"], ["inspect", "report/draft"], ["status"], ["history"], ["inspect"]):
        text = answered(*words).stdout
        assert not set(text) & {"\x1b", "\x07", "\x9b"}, words
    assert "[bold]20 staff[/bold]" in answered("evidence", "report/draft").stdout


def test_all_is_well_in_one_line(answered: Any) -> None:
    done = answered("evidence", "--verify")
    assert done.returncode == 0
    assert done.stdout.count("\n") == 1
    assert done.stdout.startswith("verified: every digest is right (1 run document, ")
    assert "2 questions, 2 answers" in done.stdout
    assert answered("evidence", "report/draft@2", "--verify").returncode == 0
    done = answered("evidence", "report/draft@7", "--verify")
    assert (done.returncode, "has no attempt 7: it has 2" in done.stderr) == (2, True)


@pytest.mark.parametrize("name", ["draft.md", "large.bin"])
def test_one_altered_byte_of_an_artifact_is_named(name: str, copy: Any) -> None:
    flip(copy, artifact(copy, name))
    done = copy("evidence", "--verify")
    assert done.returncode == 1
    assert f"report/draft@2: artifact '{name}': stored bytes of sha256:" in done.stdout
    assert copy("evidence", "report/colour", "--verify").returncode == 0
    refused = copy("export", "report/draft", name, "-o", "out")
    assert refused.returncode == 3
    assert "were changed" in refused.stderr
    assert not (copy.folder / "out").exists()


def test_a_lost_artifact_file_is_named(copy: Any) -> None:
    digest = artifact(copy, "large.bin").removeprefix("sha256:")
    (copy.folder / ".coordinator" / "artifacts" / digest[:2] / digest[2:]).unlink()
    done = copy("evidence", "report/draft", "--verify")
    assert done.returncode == 1
    assert "report/draft@2: artifact 'large.bin': the file of" in done.stdout


def test_every_difference_is_named_even_when_nothing_parses(copy: Any) -> None:
    run = copy.json("inspect")
    draft = copy.json("inspect", "report/draft")
    last = draft["attempts"][-1]
    [(document,)] = sql(copy, "SELECT d.digest FROM orchestration o JOIN document d ON d.id = o.document_id")
    digests = {
        "report: run document": document,
        "report/draft: terms": draft["terms_digest"],
        "report/draft@2: manifest": last["manifest_digest"],
        "report/draft@2: decision": last["decision_digest"],
        "pinned file 'kids.py'": run["files"]["kids.py"],
        "report/draft@1: artifact 'draft.md'": copy.json("evidence", "report/draft@1")[0]["manifest"]["artifacts"][0][
            "digest"
        ],
    }
    for digest in digests.values():
        flip(copy, digest)
    done = copy("evidence", "--verify")
    assert done.returncode == 1
    for name in digests:
        assert f"{name}: stored bytes of" in done.stdout, done.stdout
    assert f"{len(digests)} differences in" in done.stdout
    found = json.loads(copy("evidence", "--verify", "--json").stdout)
    assert (found["ok"], len(found["differences"])) == (False, len(digests))
    status = copy("status")
    assert status.returncode == 3
    assert "were changed" in status.stderr
    assert "evidence RUN --verify" in status.stderr


def test_a_decision_bound_to_another_manifest_is_named_and_bars_the_export(copy: Any) -> None:
    sql(
        copy,
        "UPDATE attempt SET manifest_id = (SELECT o.manifest_id FROM attempt o WHERE o.task_id = attempt.task_id AND"
        " o.number = 1) WHERE number = 2 AND task_id = (SELECT id FROM task WHERE key = 'draft')",
    )
    done = copy("evidence", "report/draft@2", "--verify")
    assert done.returncode == 1
    assert "report/draft@2: manifest: its attempt is 1, the store's row says 2" in done.stdout
    assert "report/draft@2: decision: its manifest is sha256:" in done.stdout
    refused = copy("export", "report/draft", "draft.md", "-o", "out")
    assert refused.returncode == 3
    assert "what is stored is not what was judged" in refused.stderr


def test_damaged_documents_are_shown_as_such_beside_the_rest(copy: Any) -> None:
    flip(copy, draft_of(copy)["attempt"]["decision_digest"])
    shown = copy("inspect", "report/draft")
    assert shown.returncode == 0
    assert "DAMAGED" in shown.stdout
    assert "attempt 1: repair required" in shown.stdout
    assert copy.json("evidence", "report/draft")[0]["damage"]


def test_a_late_result_is_marked_and_kept(cli: Any) -> None:
    (cli.folder / "k.py").write_text("def go(a):\n    a.cancel.wait(60)\n    return a.completed(1)\n")
    (cli.folder / "orchestration.yaml").write_text(
        "schema: coordinator/v1\nname: late\nobjective: x\n"
        "defaults: {isolation: none, limits: {deadline_s: 60}}\n"
        'tasks:\n  one: {objective: x, agent: {function: "k.py:go"}, acceptance: [{cel: "true"}]}\n'
    )
    worker = subprocess.Popen(cli.argv("run", "--json"), cwd=cli.folder, env=cli.env(), stdout=subprocess.DEVNULL)
    while "running" not in cli("status").stdout:
        assert worker.poll() is None
    done = cli("cancel", "late")
    assert "not yet confirmed stopped: one, attempt 1 in run-" in done.stdout
    assert worker.wait(60) == 1
    text = cli("evidence").stdout
    assert "late/one@1" in text
    assert "LATE" in text
    assert cli.json("evidence")[0]["late"] is True
    assert cli("export", "late/one").returncode == 3
    assert cli("evidence", "--verify").returncode == 0
