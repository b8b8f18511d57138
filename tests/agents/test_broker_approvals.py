"""Which files a person's yes to a call covers, and how a call that waits for one ends the attempt."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from contracts.assignment import Assignment
from contracts.errors import Unanswered
from contracts.ports import Standing
from contracts.states import Outcome
from coordinator.runtimes import load_agents
from tests.agents.conftest import Programs

load_agents()
from agents.broker import Broker, ToolLoop, ToolRefused  # noqa: E402 - found once it is loaded

MakeBroker = Callable[..., Broker]
GRANT = {"commands": [["true"]], "effects": "declared", "needs_approval": ["run_command"]}


class Looks:
    """Implements ``contracts.ports.Operations``: nobody has said yes yet."""

    def __init__(self) -> None:
        self.seen: list[Standing | None] = []

    def files_are_missing(self, key: str) -> bool:
        return False

    def run(
        self,
        key: str,
        tool: str,
        arguments: Mapping[str, Any],
        send: Callable[[], str],
        standing: Callable[[], Standing] | None = None,
    ) -> str:
        self.seen.append(standing() if standing is not None else None)
        raise Unanswered(f"May {tool}?")


Look = Callable[..., Standing]


@pytest.fixture
def look(make_broker: MakeBroker, ws: Path) -> Look:
    """How a workspace is seen."""

    def see(folder: Path = ws, **base: bytes) -> Standing:
        looks = Looks()
        broker = make_broker(
            "run_command", grant=GRANT, workspace=folder, runner=Programs(folder), operations=looks, read=["src/"],
            base=base,
        )  # fmt: skip
        with pytest.raises(Unanswered):
            broker.run_command(["true"])
        (standing,) = looks.seen
        assert standing is not None
        return standing

    return see


def edit(ws: Path) -> None:
    (ws / "a").write_text("two")


def same_size(ws: Path) -> None:
    status = (ws / "a").stat()
    (ws / "a").write_text("owt")
    os.utime(ws / "a", ns=(status.st_atime_ns, status.st_mtime_ns))


def rename(ws: Path) -> None:
    (ws / "a").rename(ws / "b")


def swap(ws: Path) -> None:
    one, other = (ws / "a").read_bytes(), (ws / "d/e").read_bytes()
    (ws / "a").write_bytes(other)
    (ws / "d/e").write_bytes(one)


def remove(ws: Path) -> None:
    (ws / "d/e").unlink()


def runnable(ws: Path) -> None:
    (ws / "a").chmod(0o755)


def add_ignored(ws: Path) -> None:
    (ws / "hidden.log").write_text("ignored by git, read by sh")


def relink(ws: Path) -> None:
    (ws / "link").unlink()
    (ws / "link").symlink_to("d/e")


def link_for_file(ws: Path) -> None:
    (ws / "a").unlink()
    (ws / "a").symlink_to("one")


def odd_name(ws: Path) -> None:
    (ws / os.fsdecode(b"\xff")).write_text("x")


def hook(ws: Path) -> None:
    (ws / ".git/hooks").mkdir(exist_ok=True)
    (ws / ".git/hooks/pre-push").write_text("evil")


def config(ws: Path) -> None:
    with (ws / ".git/config").open("a") as file:
        file.write("[alias]\n\tpush = !evil\n")


def commit(ws: Path) -> None:
    identity = ["-c", "user.email=a@b", "-c", "user.name=a"]
    subprocess.run(["git", *identity, "commit", "-q", "--allow-empty", "-m", "x"], cwd=ws, check=True)


CHANGES = [
    edit, same_size, rename, swap, remove, runnable, add_ignored, relink, link_for_file, odd_name, hook, config, commit,
]  # fmt: skip


def fill(ws: Path) -> None:
    subprocess.run(["git", "init", "-q", "--template=", str(ws)], check=True)
    (ws / "d").mkdir()
    (ws / "a").write_text("one")
    (ws / "d/e").write_text("three")
    (ws / ".gitignore").write_text("*.log\n")
    (ws / "link").symlink_to("a")


@pytest.mark.parametrize("change", CHANGES)
def test_any_change_of_the_files_is_seen(look: Look, ws: Path, change: Callable[[Path], None]) -> None:
    fill(ws)
    before = look().tree_digest
    change(ws)
    assert look().tree_digest != before


def test_the_same_files_elsewhere_made_later_and_looked_at_by_git_are_the_same(look: Look, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "other")]
    for folder in folders:
        folder.mkdir()
        fill(folder)
    os.utime(folders[1] / "a", (1, 1))
    (folders[1] / "empty").mkdir()
    subprocess.run(["git", "add", "-A"], cwd=folders[1], check=True)
    assert look(folders[0]).tree_digest == look(folders[1]).tree_digest


def test_what_differs_from_the_base_is_named_whatever_the_child_may_read(look: Look, ws: Path) -> None:
    (ws / "same").write_text("x")
    (ws / "new").write_text("x")
    (ws / "edited").write_text("y")
    assert look(same=b"x", edited=b"x", gone=b"x").changed == ["edited", "gone", "new"]


def test_files_that_cannot_be_looked_at_are_no_files_to_approve(make_broker: MakeBroker, ws: Path) -> None:
    looks = Looks()
    broker = make_broker("run_command", grant=GRANT, runner=Programs(ws), operations=looks)
    ws.rename(ws.with_name("away"))
    ws.mkdir()
    with pytest.raises(ToolRefused, match="another folder stands where the workspace was"):
        broker.run_command(["true"])


def test_without_a_record_of_operations_nothing_that_needs_a_yes_is_sent(make_broker: MakeBroker, ws: Path) -> None:
    programs = Programs(ws)
    for effects in ("none", "declared", "possible"):
        broker = make_broker("run_command", grant={**GRANT, "effects": effects}, runner=programs)
        with pytest.raises(ToolRefused, match="nothing here records operations"):
            broker.run_command(["true"])
    assert programs.ran == []


def test_a_call_that_nobody_has_approved_ends_the_attempt_as_blocked(
    make_broker: MakeBroker, make_assignment: Callable[..., Assignment], ws: Path
) -> None:
    programs = Programs(ws)
    broker = make_broker("run_command", grant=GRANT, runner=programs, operations=Looks())
    loop = ToolLoop(make_assignment(broker=broker), broker)
    assert loop.call("run_command", {"command": ["true"]}).is_error
    assert loop.result is not None
    assert (loop.result.outcome, loop.result.question) == (Outcome.BLOCKED, "May run_command?")
    assert programs.ran == []


def test_a_model_is_told_which_calls_wait_for_a_person(make_broker: MakeBroker) -> None:
    told = {
        tool["name"]: tool["description"] for tool in make_broker("run_command", "read_file", grant=GRANT).offered()
    }
    assert "needs a person's yes to exactly that call" in told["run_command"]
    assert "person" not in told["read_file"]
