"""Ways to be accepted without having done it: tests edited, runners shadowed, checks that see something else."""

from __future__ import annotations

from typing import Any

import pytest

SUITE = "import sys; sys.path.insert(0, '.')\nfrom code_under_test import f\ndef test_f(): assert f() == 2\n"
PYTEST = {"command": ["python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]}
GUARD = {"paths_unchanged": ["tests/", "**/conftest.py", "pytest*", "pytest*/", "*.toml", "*.cfg", "sitecustomize.py"]}
FIX = "open('code_under_test.py', 'w').write('def f(): return 2\\n')\n"

CHEATS = {
    "weakens an assertion": "open('tests/test_f.py', 'w').write('def test_f(): assert True\\n')",
    "deletes the test": "os.unlink('tests/test_f.py')",
    "adds a conftest": "open('conftest.py', 'w').write('collect_ignore_glob = [\"*\"]\\n')",
    "adds a deeper conftest": "open('tests/conftest.py', 'w').write('collect_ignore_glob = [\"*\"]\\n')",
    "shadows the runner": "open('pytest.py', 'w').write('import sys; sys.exit(0)\\n')",
    "shadows the runner by a folder": (
        "os.mkdir('pytest'); open('pytest/__init__.py', 'w').close(); open('pytest/__main__.py', 'w').close()"
    ),
    "configures the runner": "open('pytest.ini', 'w').write('[pytest]\\naddopts = --collect-only\\n')",
    "moves the tests away": "os.rename('tests', 'old-tests'); os.mkdir('tests')",
    "makes a link of the tests": "os.rename('tests', 'mine'); os.symlink('mine', 'tests')",
}


def suite(bench: Any) -> None:
    bench.commit({"tests/test_f.py": SUITE, "code_under_test.py": "def f(): return 1\n"})


@pytest.mark.parametrize("line", CHEATS.values(), ids=[*CHEATS])
def test_a_child_that_changes_what_judges_it_is_not_accepted(bench: Any, line: str) -> None:
    suite(bench)
    one = bench.one(bench.program("child", f"{line}\nhand_in()\n", acceptance=[GUARD]))
    assert one.state == "failed"
    assert one.decision.decision == "repair_required"
    (check,) = one.decision.checks
    assert (check.check, check.outcome) == ("paths_unchanged", "failed")


@pytest.mark.parametrize(
    "line",
    [
        "text = open('tests/test_f.py').read(); open('tests/test_f.py', 'w').write(''); time.sleep(0.05);"
        "open('tests/test_f.py', 'w').write(text)",
        "open('.git/info/exclude', 'a').write('pytest.py\\n'); open(MARKS / 'pytest.py', 'w').close()",
        "os.makedirs('tests/__pycache__'); open('.gitignore', 'w').write('__pycache__\\n');"
        "open('tests/__pycache__/test_f.cpython-311-pytest-9.2.0.pyc', 'wb').write(b'x')",
    ],
    ids=["edits the test and puts it back", "hides a file beside it", "leaves compiled files"],
)
def test_what_is_not_in_the_tree_decides_nothing_in_the_clean_checkout(bench: Any, line: str) -> None:
    suite(bench)
    one = bench.one(bench.program("child", f"{line}\nhand_in()\n", acceptance=[PYTEST, GUARD]))
    assert one.state == "failed"
    assert "exited 1" in one.reason  # the code was not mended, and that is what is said


def test_the_real_mending_is_accepted_however_the_child_ran_the_tests(bench: Any) -> None:
    suite(bench)
    ran = "subprocess.run([sys.executable, '-m', 'pytest', '-q', '-p', 'no:cacheprovider', 'tests'])\n"
    evidence = "hand_in(evidence=[{'name': 'tests', 'kind': 'command'}])\n"
    owed = [{"name": "tests", "kind": "command", "min_origin": "verified"}]
    one = bench.one(bench.program("child", FIX + ran + evidence, acceptance=[PYTEST, GUARD], required_evidence=owed))
    assert one.accepted, one.reason
    assert one.decision.evidence[0].found_origin == "verified"
    assert one.decision.processes[0].exit_status == 0


def test_a_claim_that_the_tests_passed_is_not_what_is_judged(bench: Any) -> None:
    suite(bench)
    claim = "hand_in(message='12 passed', evidence=[{'name': 'tests', 'kind': 'command', 'text': '12 passed'}])\n"
    one = bench.one(bench.program("child", claim, acceptance=[PYTEST]))
    assert one.state == "failed"
    assert one.decision.decision == "repair_required"


def test_a_check_has_no_environment_of_the_coordinator_and_no_terminal(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite(bench)
    monkeypatch.setenv("CANARY_TOKEN", "cnry-5577-aa")
    monkeypatch.setenv("PYTEST_ADDOPTS", "--collect-only")
    script = "import os, sys; print(sorted(os.environ)); assert sys.stdin.read() == '' and 'GIVEN' in os.environ"
    check = {"command": ["python", "-c", script], "env": {"GIVEN": "1"}}
    one = bench.one(bench.program("child", FIX + "hand_in()\n", acceptance=[check]))
    assert one.accepted, one.reason
    said = one.decision.processes[0].output_tail
    assert "CANARY_TOKEN" not in said
    assert "PYTEST_ADDOPTS" not in said


def test_a_check_that_cannot_judge_holds_nothing_against_the_child_and_asks_a_person(bench: Any) -> None:
    suite(bench)
    check = {"command": ["python", "-c", "import time; time.sleep(60)"], "timeout_s": 0.5}
    one = bench.one(bench.program("child", "hand_in()\n", acceptance=[check]))
    assert one.outcome == "waiting"
    (request,) = bench.place.store.requests(bench.place.run().row)
    assert request.kind == "not_judged"
    assert "its limit ended it" in request.question
    assert len(bench.attempts()) == 1


def test_a_check_that_writes_into_its_checkout_changes_no_candidate(bench: Any) -> None:
    suite(bench)
    check = {"command": ["python", "-c", "open('code_under_test.py', 'w').write('def f(): return 2')"]}
    one = bench.one(bench.program("child", "open('b.txt', 'w').write('b')\nhand_in()\n", acceptance=[check, PYTEST]))
    assert one.state == "failed"  # the second check has a checkout of its own
    assert list((bench.place.home / "checks").iterdir()) == []
