from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from coordinator.cli.logs import _followed, _lines

RUN = """\
schema: coordinator/v1
name: out
objective: Write something.
source: {repo: .}
defaults: {isolation: none, limits: {deadline_s: 60, max_claims: 1}}
tasks:
  prog:
    objective: Write.
    agent: {command: [sh, prog.sh]}
    acceptance: [{cel: "output.ok == true"}]
  kid:
    needs: [prog]
    objective: Read.
    agent: {function: "kids.py:kid"}
    resources: {tools: [read_file]}
    acceptance: [{cel: "output.ok == true"}]
  never:
    needs: [kid]
    objective: Fail.
    agent: {command: [sh, silent.sh]}
    acceptance: [{cel: "output.ok == true"}]
  last:
    needs: [never]
    objective: Be blocked.
    agent: {command: [sh, silent.sh]}
    acceptance: [{cel: "output.ok == true"}]
"""
KIDS = """\
def kid(a):
    a.tools.read_file("kids.py")
    try:
        a.tools.read_file("no\\x1b[31m")
    except Exception:
        pass
    return a.completed({"ok": True})
"""
HAND_IN = (
    'printf \'{"outcome":"completed","output":{"ok":true}}\' > "$COORDINATOR_RESULT.part"\n'
    'mv "$COORDINATOR_RESULT.part" "$COORDINATOR_RESULT"\n'
)
HOSTILE = r"printf 'red \033[31m \007 half \303 50%%\rdone\r\n\342\200\256end\n'" + "\n"


def prepare(cli: Any, program: str) -> Any:
    (cli.folder / "orchestration.yaml").write_text(RUN)
    (cli.folder / "kids.py").write_text(KIDS)
    (cli.folder / "prog.sh").write_text(program + HAND_IN)
    (cli.folder / "silent.sh").write_text("exit 3\n")
    return cli


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory, cli_of: Any) -> Any:
    """A run that has ended; only looked at."""
    cli = prepare(cli_of(tmp_path_factory.mktemp("ended")), HOSTILE + "echo to stderr >&2\n")
    assert cli("run").returncode == 1
    return cli


def start(cli: Any, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        cli.argv(*words), cwd=cli.folder, env=cli.env(), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def until_claimed(run: subprocess.Popen[str]) -> None:
    assert run.stderr is not None
    assert any("prog: claimed" in line for line in iter(run.stderr.readline, "")), run.communicate()


def test_output_is_followed_while_the_program_runs_and_status_shows_its_last_line(cli: Any) -> None:
    go = cli.folder / "go"
    waits = f'echo first; while [ ! -e "{go}" ]; do sleep 0.05; done; printf "second\\nthird"\n'
    prepare(cli, waits)
    run = start(cli, "run")
    until_claimed(run)
    follower = start(cli, "logs", "out/prog", "-f")
    watcher = start(cli, "logs", "out/prog", "-f", "--json")
    assert follower.stdout is not None
    assert follower.stdout.readline() == "first\n"  # it is still running: nobody has said go
    shown = cli("status").stdout
    assert "\n│   wrote: first\n" in shown
    assert "being worked on" in shown
    go.touch()
    rest, said = follower.communicate(timeout=60)
    assert (follower.returncode, rest) == (0, "second\nthird")
    assert said == "out/prog@1: submitted, not judged yet\n" or said == "out/prog@1: accepted\n"
    chunks = [json.loads(line) for line in watcher.communicate(timeout=60)[0].splitlines()]
    assert "".join(chunk["output"] for chunk in chunks) == "first\nsecond\nthird"
    assert {chunk["attempt"] for chunk in chunks} == {"out/prog@1"}
    run.communicate(timeout=60)
    assert "wrote:" not in cli("status").stdout


def test_kept_output_is_shown_with_its_hostile_bytes_made_harmless(ended: Any) -> None:
    done = ended("logs", "out/prog")
    assert done.returncode == 0
    assert done.stdout == "red \ufffd[31m \ufffd half \ufffd 50%\ndone\n\ufffdend\nto stderr\n"
    assert ended("logs", "out/prog@1", "-f").stdout == done.stdout


def test_json_has_the_output_whole_and_the_worker_log(ended: Any) -> None:
    value = ended.json("logs", "out/prog")
    assert value["attempt"] == "out/prog@1"
    assert value["output"].startswith("red \x1b[31m")
    assert [entry["event"] for entry in value["log"]][:2] == ["child_started", "child_ended"]
    assert ended.json("logs", "out/kid")["output"] is None


def test_of_a_function_what_the_worker_saw_is_shown(ended: Any) -> None:
    text = ended("logs", "out/kid", "-f").stdout
    assert " child_started\n" in text
    assert " tool_call tool=read_file ok=True path=kids.py\n" in text
    assert " tool_call tool=read_file ok=False path=no" in text
    assert "\x1b" not in text
    assert "prog" not in text  # the same worker's lines about another task
    lines = [json.loads(line) for line in ended("logs", "out/kid", "-f", "--json").stdout.splitlines()]
    assert lines[0]["log"]["event"] == "child_started"


def test_a_program_that_wrote_nothing_is_said_to_have_written_nothing(ended: Any) -> None:
    done = ended("logs", "out/never")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "it wrote nothing\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["out/last"], "out/last has no attempt yet; -f waits for one"),
        (["out/last", "-f"], "out/last has no attempt"),
        (["out/prog@2"], "out/prog has no attempt 2: it has 1"),
        ([], "name a task of out: out/prog, out/kid"),
    ],
)
def test_what_has_no_log_is_bad_input(words: list[str], message: str, ended: Any) -> None:
    done = ended("logs", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


def test_following_is_left_with_ctrl_c(cli: Any) -> None:
    go = cli.folder / "go"
    prepare(cli, f'echo first; while [ ! -e "{go}" ]; do sleep 0.05; done\n')
    run = start(cli, "run")
    until_claimed(run)
    follower = start(cli, "logs", "out/prog", "-f")
    assert follower.stdout is not None
    follower.stdout.readline()
    follower.send_signal(signal.SIGINT)
    _, said = follower.communicate(timeout=30)
    assert (follower.returncode, said) == (130, "")
    go.touch()
    run.communicate(timeout=60)


def test_a_character_or_a_line_end_that_comes_in_halves_is_whole(tmp_path: Path) -> None:
    pieces = [b"a\xc3", b"\xa4\r", b"\nb", b"", b"c\n\xe2"]
    file = tmp_path / "out.log"

    def over() -> bool:
        with file.open("ab") as out:
            out.write(pieces.pop(0))
        return not pieces

    chunks = list(_followed(file, over))
    assert chunks == ["a", "ä", "\nb", "c\n\ufffd"]
    assert list(_lines(iter(chunks))) == ["aä", "bc"]
