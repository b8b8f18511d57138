from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import BadInput, Refused
from contracts.ports import Standing
from coordinator.approving import call_question
from coordinator.cli.deciding import answer, write_new
from coordinator.cli.showing import inspect
from coordinator.redaction import Redactor
from coordinator.store.database import Blob


def request_of(cli: Any, task_id: str) -> str:
    return next(str(item["request_id"]) for item in cli.json("status")["requests"] if item["task_id"] == task_id)


def test_an_answer_lets_the_task_go_on_and_says_how(report: Any) -> None:
    draft, colour = request_of(report, "draft"), request_of(report, "colour")
    done = report("answer", draft, "--approve", "-m", "fine")
    assert done.returncode == 0, done.stderr
    assert f"{draft} approved: report/draft goes to the gate again" in done.stdout
    assert f"next: coordinator answer {colour} --approve -m TEXT" in done.stdout
    again = report("answer", draft, "--approve", "-m", "fine")
    assert again.returncode == 0
    assert "nothing was changed" in again.stdout
    other = report("answer", draft, "--reject")
    assert other.returncode == 3
    assert "answered already (approved); needed an open request" in other.stderr
    done = report("answer", colour, "--approve", "-m", "blue")
    assert "next: coordinator worker" in done.stdout
    assert report("worker").returncode == 1  # broken has failed
    states = {task["task_id"]: task["word"] for task in report.json("status")["tasks"]}
    assert states == {"draft": "accepted", "colour": "accepted", "broken": "failed", "final": "blocked"}


def test_a_no_to_an_approval_fails_the_task_for_good(report: Any) -> None:
    done = report("answer", request_of(report, "draft"), "--reject", "-m", "not yet")
    assert "that is final" in done.stdout
    report("worker")
    draft = report.json("status")["tasks"][0]
    assert (draft["word"], draft["why"]) == ("failed", "not yet")


@pytest.mark.parametrize("approve", [True, False])
def test_an_answer_about_a_side_effect_is_said_to_be_told_to_the_task(
    approve: bool, sqlite_store: Any, build: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sqlite_store.create_run(build.run(build.task("one", resources={"effects": "declared"})))
    [claim] = sqlite_store.claim("w", work=1)
    operation = sqlite_store.prepare_operation(claim, "k", "run_command", Blob.of({"command": ["ship"]}))
    sqlite_store.send_operation(claim, operation.row)
    sqlite_store.end([build.ending(claim, "released")])
    home = tmp_path / "home"
    home.mkdir()
    told = {"message": "I looked", "store": sqlite_store.url, "home": home, "json": False}
    assert answer("run-q1", approve=approve, reject=not approve, **told) == 0
    word = "approved" if approve else "rejected"
    assert f"run-q1 {word}: run/one goes on, and is told what you said" in " ".join(capsys.readouterr().out.split())


@pytest.fixture
def call_asked_about(sqlite_store: Any, build: Any, tmp_path: Path) -> dict[str, Any]:
    """Where a child waits for a yes to a call, with a name of a file that would like to be more."""
    sqlite_store.create_run(build.run(build.task("one", resources={"effects": "declared"})))
    [claim] = sqlite_store.claim("w", work=1)
    standing = Standing("sha256:" + "a" * 64, ["deploy.sh", "x\n\x1b[2Japproved"])
    question = call_question(claim, "run_command", {"command": ["sh", "deploy.sh"]}, standing, Redactor({}))
    sqlite_store.end([build.ending(claim, "blocked", question=question)])
    home = tmp_path / "home"
    home.mkdir()
    return {"store": sqlite_store.url, "home": home}


@pytest.mark.parametrize("approve", [True, False])
def test_an_answer_about_a_call_says_what_it_covers(
    approve: bool, call_asked_about: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    said: dict[str, Any] = {"approve": approve, "reject": not approve, "message": "I looked", **call_asked_about}
    assert answer("run-q1", **said, json=False) == 0
    raw = capsys.readouterr().out
    out = " ".join(raw.split())
    goes_on = "can make this very call once" if approve else "is refused this call with your message"
    assert f"run/one goes on in a new attempt, which {goes_on}" in out
    assert "covers one call of run_command under contract version 1, sha256:" in out
    assert 'with {"command": ["sh", "deploy.sh"]} in files sha256:aaaaaaaaaaaaaaaa… changed "deploy.sh"' in out
    assert "\x1b" not in raw
    assert answer("run-q1", **said, json=True) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["action"]["changed_count"] == 2
    assert told["bound_digest"].startswith("sha256:")


@pytest.mark.parametrize("address", ["run", "run/one"])
def test_what_a_yes_to_a_call_would_cover_can_be_seen_before(
    address: str, call_asked_about: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert inspect(address, transcript=False, **call_asked_about, json=False) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "approval about one, open: May run_command be called once" in out
    assert "covers one call of run_command under contract version 1, sha256:" in out
    assert inspect(address, transcript=False, **call_asked_about, json=True) == 0
    assert '"tool": "run_command"' in capsys.readouterr().out


@pytest.mark.parametrize("words", [[], ["--approve", "--reject"]])
def test_an_answer_is_exactly_one_of_yes_and_no(words: list[str], waiting: Any) -> None:
    done = waiting("answer", "report-q1", *words)
    assert (done.returncode, done.stderr) == (2, "say exactly one of --approve and --reject\n")


def test_a_request_may_be_named_by_a_unique_beginning_only(waiting: Any) -> None:
    done = waiting("answer", "report-q", "--approve")
    assert done.returncode == 2
    assert "fits several requests: report-q1, report-q2" in done.stderr
    done = waiting("answer", "what", "--approve")
    assert "no request is called 'what'; open: report-q1, report-q2" in done.stderr


def test_nothing_is_exported_before_it_is_accepted(waiting: Any) -> None:
    done = waiting("export", "report/draft", "draft.md", "-o", "out.md")
    assert done.returncode == 3
    assert "found waiting" in done.stderr
    assert "needed an accepted result" in done.stderr
    assert not (waiting.folder / "out.md").exists()


def test_a_failed_task_and_a_rejected_attempt_export_nothing(answered: Any) -> None:
    done = answered("export", "report/broken")
    assert (done.returncode, "found failed" in done.stderr) == (3, True)
    done = answered("export", "report/draft@1", "draft.md")
    assert (done.returncode, "found attempt 1, repair required" in done.stderr) == (3, True)


def test_export_writes_the_accepted_bytes_once(answered: Any, tmp_path: Path) -> None:
    target = tmp_path / "out.md"
    done = answered("export", "report/draft", "draft.md", "-o", str(target))
    assert done.returncode == 0, done.stderr
    assert target.read_text() == "# Background\nx\n# Risks\ny\n"
    target.write_text("mine")
    again = answered("export", "report/draft", "draft.md", "-o", str(target))
    assert again.returncode == 3
    assert "never overwritten" in again.stderr
    assert target.read_text() == "mine"


def test_a_name_with_path_parts_does_not_escape(answered: Any, tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    store = str(answered.folder / ".coordinator" / "store.db")
    done = answered("export", "report/draft", "notes/../../evil.txt", "--store", store, "--json", cwd=inner)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.rglob("*.txt")] == ["evil.txt"]
    assert (inner / "evil.txt").read_text() == "evil"


def test_export_names_what_there_is(answered: Any) -> None:
    done = answered("export", "report/draft")
    assert (done.returncode, "name one: draft.md, notes/../../evil.txt, large.bin" in done.stderr) == (2, True)
    done = answered("export", "report/draft", "nope")
    assert "has no artifact 'nope'; it has: draft.md" in done.stderr
    done = answered("export", "report/colour")
    assert (done.returncode, "has no artifacts" in done.stderr) == (2, True)
    done = answered("export", "report")
    assert "name a task of report: report/draft" in done.stderr


def test_a_cancelled_run_says_how_much_ended(report: Any) -> None:
    done = report("cancel", "report/draft", "-m", "not needed")
    assert (done.returncode, done.stdout) == (0, "cancelled report/draft: 1 task ended\n")
    done = report("cancel", "report/draft")
    assert "nothing was changed" in done.stdout
    done = report("cancel", "report/broken")
    assert done.returncode == 3
    assert "found state failed; needed pending, running or submitted" in done.stderr
    assert report.json("cancel", "report") == {
        "address": "report", "cancelled_tasks": 2, "not_confirmed_stopped": [],
    }  # fmt: skip
    assert report("cancel", "report/draft@1").returncode == 2


@pytest.mark.parametrize("name", ["", ".", "..", "a/", "a/..", "..\\.."])
def test_a_name_that_is_no_file_name_needs_a_place(name: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="say where to write it with -o"):
        write_new(tmp_path, name, b"x")
    assert not list(tmp_path.iterdir())


def test_a_dangling_link_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(Refused, match="never overwritten"):
        write_new(tmp_path / "link", "x", b"x")
    assert not (tmp_path / "target").exists()


def test_a_folder_takes_the_last_part_of_the_name(tmp_path: Path) -> None:
    path = write_new(tmp_path, "reports/final.md", b"x")
    assert path == tmp_path / "final.md"
    assert not stat.S_IMODE(path.stat().st_mode) & 0o111


def test_what_could_not_be_written_whole_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Refused, match="No space left"):
        write_new(tmp_path / "out", "x", b"x")
    assert not (tmp_path / "out").exists()


def test_where_there_are_no_hard_links_a_file_is_written_whole_and_never_over_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_paths: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    assert write_new(tmp_path / "out", "x", b"first").read_bytes() == b"first"
    with pytest.raises(Refused, match="never overwritten"):
        write_new(tmp_path / "out", "x", b"second")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_folder_that_is_not_there_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="No such file or directory"):
        write_new(tmp_path / "no" / "out", "x", b"x")
