from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from typing import Any

import pytest


def test_the_end_of_a_run_shows_tree_requests_and_the_next_command(waiting: Any) -> None:
    text = waiting("status").stdout
    lines = text.splitlines()
    assert lines[0] == "report  Write a report on the pilot."
    assert any(line.startswith("├── draft   waiting") and "1 of 2 repairs used" in line for line in lines)
    assert any("may cost $0.5" in line for line in lines)
    assert any(line.startswith("├── broken  failed") and "2 of 2 claims spent" in line for line in lines)
    assert "    needs draft (submitted), broken (failed)" in lines
    assert "report waits for 2 answers: 1 blocked, 1 failed, 2 waiting" in lines
    assert text.count("unenforced: ") == 1
    assert "  coordinator answer report-q1 --approve" in text
    assert lines[-1].startswith("next: coordinator answer report-q1 --approve")


def test_the_printed_answer_command_can_be_run_as_it_is(report: Any) -> None:
    for request in report.json("status")["requests"]:
        line = next(
            line for line in report("status").stdout.splitlines() if f" {request['request_id']} --reject" in line
        )
        assert report(*line.split()[1:]).returncode == 0


def test_commands_on_a_store_elsewhere_name_it(waiting: Any, tmp_path: Any) -> None:
    store = str(waiting.folder / ".coordinator" / "store.db")
    done = waiting("status", "--store", store, cwd=tmp_path)
    assert done.stdout.rstrip().endswith(f"--store {store}")


def test_what_comes_next_depends_on_how_it_ended(answered: Any) -> None:
    assert answered.json("status")["next"] == "coordinator inspect report/broken"


def test_the_json_of_a_run_keeps_its_keys(answered: Any) -> None:
    run = answered.json("status")
    assert {"run_id", "state", "ok", "tasks", "requests", "next", "unenforced", "source"} <= set(run)
    draft = run["tasks"][0]
    assert {"task_id", "state", "word", "why", "owner", "generation", "lease_until", "attempts", "claims_spent"} <= set(
        draft
    )
    assert [attempt["decision"] for attempt in draft["attempts"]] == ["repair_required", "accepted"]


def test_inspect_shows_contract_claims_checks_and_messages(answered: Any) -> None:
    text = answered("inspect", "report/draft").stdout
    for line in (
        "sections of draft.md: Background, Risks", "delegation draft of run report, child run child-",
        "attempt 1: repair required", "failed: sections of draft.md: Background, Risks",
        "attempt 2: accepted", "passed: approval: May the draft be published?", "bound to",
        "approval about draft, answered: May the draft be published? -> approved: blue",
        "passed: draft (artifact, at least verified), found verified",
    ):  # fmt: skip
        assert line in text, line
    only = answered("inspect", "report/draft@1").stdout
    assert "attempt 1" in only
    assert "attempt 2:" not in only
    document = answered.json("inspect", "report/draft@1")
    assert [attempt["number"] for attempt in document["attempts"]] == [1]
    assert document["contract"]["child_run_id"] == document["attempts"][0]["child_run_id"]


def test_inspect_of_a_run_shows_its_pin_and_files(answered: Any) -> None:
    text = answered("inspect").stdout
    assert "pinned at" in text
    assert "kids.py sha256:" in text
    assert "orchestration version 1" in text


def test_superseded_contract_versions_stay_visible(report: Any) -> None:
    file = report.folder / "orchestration.yaml"
    file.write_text(file.read_text().replace("Find the colour.", "Find the best colour."))
    assert report("run", "--as-new-version").returncode == 4
    text = report("inspect", "report/colour").stdout
    assert "older contract versions" in text
    assert "version 1: superseded" in text
    assert report("evidence", "--verify").returncode == 0


def test_history_tells_events_in_order(answered: Any) -> None:
    lines = answered("history").stdout.splitlines()
    assert lines[0].endswith("run: created")
    told = [line.split("Z  ")[1] for line in lines]
    assert [line.split(" by ")[0] for line in told if line.startswith("draft: ")][:3] == [
        "draft: issued", "draft: claimed", "draft: submitted",
    ]  # fmt: skip
    events = answered.json("history")
    assert [event["number"] for event in events] == sorted(event["number"] for event in events)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["status", "report/draft"], "`status` shows a run, not a task: `coordinator status report`"),
        (["history", "nope"], "no run is called 'nope': report"),
        (["inspect", "report/nope"], "no task is called 'nope': draft, colour, broken, final"),
        (["inspect", "report/draft@9"], "report/draft has no attempt 9: it has 2"),
        (["inspect", "report/final@1"], "report/final has no attempt 1: it has none yet"),
        (["inspect", "report/"], "'report/' is not an address: write RUN, RUN/TASK or RUN/TASK@N"),
        (["inspect", "report/draft@" + "9" * 5000], "is not an address"),
        (["evidence", "report@1"], "is not an address"),
    ],
)
def test_a_wrong_address_is_bad_input_that_says_what_there_is(words: list[str], message: str, answered: Any) -> None:
    done = answered(*words)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_unique_beginning_names_a_run_and_a_task(answered: Any) -> None:
    assert answered("inspect", "rep/dr").stdout.startswith("report/draft  accepted")


def test_watching_a_pipe_prints_a_block_for_each_change_and_ends_with_the_run(report: Any) -> None:
    watcher = subprocess.Popen(
        report.argv("status", "-w"), cwd=report.folder, env=report.env(), stdout=subprocess.PIPE, text=True
    )
    assert watcher.stdout is not None
    first = watcher.stdout.readline()
    assert first == "report  Write a report on the pilot.\n"
    assert report("cancel", "report").returncode == 0
    rest, _ = watcher.communicate(timeout=60)
    assert watcher.returncode == 1
    assert rest.count("report  Write a report") == 1
    assert "report was cancelled" in rest
    # Nothing changes any more: one block.
    again = report("status", "-w")
    assert again.returncode == 1
    assert again.stdout.count("report  Write a report") == 1
    lines = [json.loads(line) for line in report("status", "-w", "--json").stdout.splitlines()]
    assert [line["state"] for line in lines] == ["ended"]


def test_watching_on_a_terminal_ends_with_the_run_and_is_left_with_ctrl_c(waiting: Any, answered: Any) -> None:
    def watch(cli: Any) -> tuple[subprocess.Popen[bytes], int]:
        ours, theirs = pty.openpty()
        env = cli.env(TERM="xterm", COLUMNS="80")
        process = subprocess.Popen(
            cli.argv("status", "-w"), cwd=cli.folder, env=env, stdout=theirs, stderr=theirs, start_new_session=True
        )
        os.close(theirs)
        return process, ours

    def read(ours: int, until: bytes = b"\0") -> bytes:
        seen = b""
        while until not in seen:
            try:
                seen += os.read(ours, 65536)
            except OSError:
                break
        return seen

    ended, screen = watch(answered)
    assert b"report ended" in read(screen)
    assert ended.wait(30) == 1
    left, screen = watch(waiting)
    read(screen, b"from another terminal: coordinator answer report-q1")
    left.send_signal(signal.SIGINT)
    assert b"Traceback" not in read(screen)
    assert left.wait(30) == 130


def test_a_reader_that_has_enough_is_no_internal_error(answered: Any) -> None:
    for words in (["history"], ["inspect", "--json"]):
        process = subprocess.Popen(
            answered.argv(*words), cwd=answered.folder, env=answered.env(), stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        process.stdout.close()
        _, error = process.communicate(timeout=60)
        assert error == ""


@pytest.mark.parametrize("words", [["bogus"], ["run", "--workers", "x"], ["answer"], ["status", "--nope"]])
def test_a_wrong_command_line_is_bad_input_with_its_usage(words: list[str], waiting: Any) -> None:
    done = waiting(*words)
    assert done.returncode == 2
    assert done.stderr.startswith("Usage: ")
    assert "internal error" not in done.stderr
    assert json.loads(waiting(*words, "--json").stdout)["error"] == "BadInput"


def test_no_words_at_all_show_the_help(waiting: Any) -> None:
    assert "Commands:" in waiting().stderr
    assert waiting("--help").returncode == 0


def test_every_looking_command_works_as_a_process_of_its_own(answered: Any) -> None:
    for words in (["status"], ["inspect"], ["evidence"], ["history"], ["contract", "show", "report/draft"]):
        done = answered.process(*words, "--json")
        assert (done.returncode, done.stderr) == (0, "")
        json.loads(done.stdout)
