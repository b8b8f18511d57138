"""A new external step cannot be forgotten: each is enclosed by named points, or a reason is given why it need not."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from coordinator.crash_points import POINTS

HERE = Path(__file__).parent
TOP = HERE.parent.parent


def _by_path(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"scenarios_{name}", HERE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


scan, table = _by_path("external_scan"), _by_path("external_steps")

WHAT_TO_DO = """
This function does something outside of the process that tests/scenarios/external_steps.py does not list so:

    {row}

Is a death right before and right after it a death at two named points that are there already? Then add that line to
the group with these points. Else name a new point in the code (contracts.steps.reached), describe it in
coordinator/crash_points.py, add a Plan to tests/scenarios/test_crash_points.py and find what it costs
(tests/scenarios/losses.py says how). Where no point is needed, say why in a few words."""


def problems(found: dict[str, frozenset[str]], steps: Any = None) -> list[str]:
    listed: dict[str, str] = {}
    wrong = []
    for group in table.STEPS if steps is None else steps:
        if not group.points and not group.why:
            wrong.append(f"a group names neither points nor a reason: {sorted(group.functions)}")
        wrong += [f"{point} is no named point" for point in group.points if point not in POINTS]
        wrong += [f"{function} is listed twice" for function in group.functions if function in listed]
        listed |= group.functions
    for function, effects in found.items():
        said = " ".join(sorted(effects))
        if listed.get(function) != said:
            wrong.append(WHAT_TO_DO.format(row=f'"{function}": "{said}",'))
    gone = listed.keys() - found.keys()
    return wrong + [f"{function} is gone or has no such effect: take its line away" for function in sorted(gone)]


def test_every_external_step_is_enclosed_by_named_points_or_needs_none() -> None:
    wrong = problems(scan.effects_of_packages(TOP))
    assert wrong == [], "\n".join(wrong)


def test_a_step_that_is_new_or_gone_or_does_more_is_told_with_what_to_do() -> None:
    step = table.Steps({"a.py:old": "mkdir", "a.py:gone": "mkdir"}, points=("claimed",))
    found = {"a.py:old": frozenset({"mkdir", "os.rename"}), "a.py:new": frozenset({"os.kill"})}
    more, new, gone = problems(found, [step])
    assert '"a.py:old": "mkdir os.rename",' in more
    assert '"a.py:new": "os.kill",' in new
    assert "contracts.steps.reached" in new
    assert gone == "a.py:gone is gone or has no such effect: take its line away"
    nothing, unknown, twice = problems(
        {"a.py:f": frozenset({"mkdir"})}, [table.Steps({"a.py:f": "mkdir"}), table.Steps({"a.py:f": "mkdir"}, ("x",))]
    )
    assert nothing.startswith("a group names neither points nor a reason")
    assert (unknown, twice) == ("x is no named point", "a.py:f is listed twice")


@pytest.mark.parametrize(
    ("code", "effect"),
    [
        ("os.replace(a, b)", "os.replace"),
        ("os.open(a, os.O_CREAT | os.O_WRONLY)", "os.open"),
        ("os.fdopen(fd, 'wb')", "open"),
        ("open(path, 'a')", "open"),
        ("open(path, mode)", "open"),
        ("path.open(mode='w')", "open"),
        ("path.write_bytes(b'')", "write_bytes"),
        ("(folder / 'x').replace(other)", "replace"),
        ("Path(a).symlink_to(b)", "symlink_to"),
        ("shutil.rmtree(folder)", "shutil.rmtree"),
        ("subprocess.run(argv)", "subprocess.run"),
        ("await asyncio.create_subprocess_exec(*argv)", "create_subprocess_exec"),
        ("os.killpg(pid, 9)", "os.killpg"),
        ("tempfile.mkdtemp()", "tempfile.mkdtemp"),
        ("sock.sendall(data)", "sendall"),
        ("await session.call_tool(name, {})", "call_tool"),
        ("await ask_sdk(create, {})", "ask_sdk"),
        ("run_git(['update-ref', name, commit], git_dir=git_dir)", "git-update-ref"),
        ("run_git(words, git_dir=git_dir)", "git-?"),
        ("connection.execute('DELETE FROM task')", "execute"),
        ("tx.conn.execute(update(t.task).values(state='accepted'))", "SQL"),
        ("delete_folder(place)", "delete_folder"),
    ],
)
def test_the_scan_sees_an_effect_wherever_it_is(code: str, effect: str) -> None:
    body = f"async def f():\n    def g():\n        pass\n    if x:\n        {code}\n"
    assert dict(scan.effects_in(body)) == {"f": {effect}}
    within = "class C:\n" + "".join(f"    {line}\n" for line in body.splitlines())
    assert dict(scan.effects_in(within)) == {"C.f": {effect}}
    if not code.startswith("await"):
        assert dict(scan.effects_in(code)) == {"<module>": {effect}}


@pytest.mark.parametrize(
    "code",
    [
        "text.replace('a', 'b')",
        "moment.replace(tzinfo=UTC)",
        "open(path)",
        "open(path, 'rb')",
        "path.open(encoding='utf-8')",
        "tree.open(node)",
        "os.open(path, os.O_RDONLY)",
        "os.path.join(a, b)",
        "shutil.which('git')",
        "path.read_bytes()",
        "run_git(['rev-parse', 'HEAD'], git_dir=git_dir)",
        "tx.conn.execute(select(t.task))",
        "self._db.write(change)",
        "sys.stdout.write(text)",
    ],
)
def test_the_scan_leaves_what_only_reads(code: str) -> None:
    assert dict(scan.effects_in(code)) == {}
