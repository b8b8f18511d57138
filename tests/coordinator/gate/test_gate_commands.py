"""Programs that the gate runs: real ones, in a clean checkout; what their end says, and what it does not."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from contracts.results import Decision, ProcessRecord
from coordinator.gate import Case, JudgedTree, judge

NOW = datetime(2026, 8, 1, tzinfo=UTC)
MakeCase = Callable[..., Case]
MakeCandidate = Callable[..., JudgedTree]
PYTEST = ["python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
SUITE = {
    "pay.py": b"def pay():\n    return 1\n",
    "tests/test_pay.py": b"from pay import pay\n\n\ndef test_pay():\n    assert pay() == 2\n",
}
MENDED = {"pay.py": b"def pay():\n    return 2\n"}
RECORD = ProcessRecord(
    argv=["x"], how="exited", exit_status=0, signal=None, all_gone=True, left_behind=0, started_at="", elapsed_s=3,
    stdout_digest="", stderr_digest="", output_tail="",
)  # fmt: skip


def decide(case: Case) -> Decision:
    return judge(case, now=NOW).decision


def python(program: str, **options: Any) -> dict[str, Any]:
    return {"command": ["python", "-c", program], **options}


def ended(case: Case, **fields: Any) -> Case:
    """The case with a program that is recorded so."""

    def run(argv: Sequence[str], timeout_s: float, env: Mapping[str, str]) -> ProcessRecord:
        return RECORD.model_copy(update=fields)

    assert case.judged is not None
    return replace(case, judged=replace(case.judged, run_command=run))


# --- must be accepted


def test_a_program_that_exits_0_passes_and_its_record_is_in_the_decision(make_case: MakeCase) -> None:
    decision = decide(make_case(acceptance=[python("print(open('src/pay.py').read())")]))
    assert decision.decision == "accepted"
    (record,) = decision.processes
    assert (record.how, record.exit_status, "legacy_state" in record.output_tail) == ("exited", 0, True)


def test_the_environment_is_what_the_check_says_and_nothing_else(
    make_case: MakeCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "s")
    program = "import os; assert os.environ['A'] == 'b'; assert 'SECRET' not in os.environ"
    assert decide(make_case(acceptance=[python(program, env={"A": "b"})])).decision == "accepted"


def test_the_same_program_is_run_once_however_often_it_is_asked_for(make_case: MakeCase) -> None:
    check = python("")
    owed = [{"name": "run", "kind": "command", "min_origin": "verified"}]
    items = [{"name": "run", "kind": "command"}] * 3
    case = make_case(acceptance=[check, check, python("", timeout_s=5)], required_evidence=owed, evidence=items)
    decision = decide(case)
    assert (decision.decision, len(decision.processes)) == ("accepted", 2)


# --- must not be accepted


def test_a_suite_that_fails_goes_back_with_what_it_said_and_mended_it_is_accepted(
    make_case: MakeCase, make_candidate: MakeCandidate
) -> None:
    acceptance = [{"command": PYTEST}]
    decision = decide(make_case(judged=make_candidate({}, base=SUITE), acceptance=acceptance))
    assert decision.decision == "repair_required"
    (finding,) = decision.feedback
    assert finding.check == "command python -m pytest -q -p no:cacheprovider tests"
    assert finding.message.startswith("`python -m pytest -q -p no:cacheprovider tests` exited 1; its last output: ")
    assert "| E assert 1 == 2 |" in finding.message
    assert finding.message.endswith("s")
    assert decide(make_case(judged=make_candidate(MENDED, base=SUITE), acceptance=acceptance)).decision == "accepted"


def test_what_a_program_writes_is_harmless_and_cut_from_the_front(make_case: MakeCase) -> None:
    noise = (
        r"print('\x1b[31mred\x1b[0m \x1b]0;title\x07 \u202e\x00\r' + 'x' * 9000 + '\n\n end\t!'); raise SystemExit(3)"
    )
    (finding,) = decide(make_case(acceptance=[python(noise)])).feedback
    assert finding.message.isprintable()
    assert "exited 3; its last output: ..." in finding.message
    assert finding.message.endswith("x | end !")
    assert len(finding.message) < 2000
    silent = decide(make_case(acceptance=[python("raise SystemExit(1)")])).feedback
    assert silent[0].message.endswith("exited 1; it wrote nothing")


def test_tests_that_the_child_weakened_or_switched_off_do_not_help_it(
    make_case: MakeCase, make_candidate: MakeCandidate
) -> None:
    acceptance: list[dict[str, Any]] = [
        {"command": PYTEST},
        {"paths_unchanged": ["tests/", "**/conftest.py", "/pytest.py".lstrip("/")]},
    ]
    skip_all = (
        b"import pytest\ncollect_ignore_glob = ['*']\ndef pytest_sessionfinish(session):\n    session.exitstatus = 0\n"
    )
    for changed in (
        {"tests/test_pay.py": b"def test_pay():\n    pass\n"},
        {"tests/test_pay.py": None, "tests/test_other.py": b"def test():\n    pass\n"},
        {"conftest.py": skip_all},
        {"tests/conftest.py": skip_all},
        {"pytest.py": b"raise SystemExit(0)\n"},
    ):
        decision = decide(make_case(judged=make_candidate(changed, base=SUITE), acceptance=acceptance))
        assert decision.decision == "repair_required", changed
        assert decision.checks[1].outcome == "failed"
        assert {finding.place for finding in decision.checks[1].findings} == set(changed)


def test_what_lies_about_in_the_childs_folder_or_in_another_checkout_does_not_help_it(
    make_case: MakeCase, make_candidate: MakeCandidate
) -> None:
    # The first program leaves a file behind; the second would need it.
    leave = python("open('proof', 'w').write('x')")
    need = python("import sys, os; sys.exit(0 if os.path.exists('proof') else 4)")
    decision = decide(make_case(judged=make_candidate({}, base=SUITE), acceptance=[leave, need]))
    assert [check.outcome for check in decision.checks] == ["passed", "failed"]


# --- what has judged nothing is not held against the result, and accepts nothing


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ({"how": "timeout", "exit_status": None, "signal": 9}, "its limit ended it (after 3.0 s of at most 60 s)"),
        ({"how": "timeout", "exit_status": 0}, "its limit ended it"),
        ({"how": "start_failed", "exit_status": None}, "it could not be started"),
        ({"how": "unknown", "exit_status": None, "all_gone": False}, "nobody saw its end"),
        ({"how": "cancelled", "exit_status": None}, "cancelled"),
        ({"exit_status": None, "signal": 11}, "was ended by signal 11"),
        ({"exit_status": None}, "was ended by signal None"),
        ({"all_gone": False, "left_behind": 2}, "left 2 processes behind"),
        ({"all_gone": False, "left_behind": 1, "exit_status": 1}, "left 1 processes behind"),
    ],
    ids=range(9),
)
def test_a_program_that_did_not_come_to_its_own_end_has_judged_nothing(
    make_case: MakeCase, fields: dict[str, Any], cause: str
) -> None:
    decision = decide(ended(make_case(acceptance=[python("")]), **fields))
    assert (decision.decision, decision.checks[0].outcome, decision.feedback) == ("not_judged", "errored", [])
    assert cause in decision.reason
    assert len(decision.processes) == 1


def test_what_a_program_left_behind_and_what_was_then_killed_does_not_count_against_it(make_case: MakeCase) -> None:
    assert decide(ended(make_case(acceptance=[python("")]), left_behind=2)).decision == "accepted"


def test_real_programs_that_hang_are_missing_or_kill_themselves_have_judged_nothing(make_case: MakeCase) -> None:
    for check, cause in (
        (python("import time; time.sleep(60)", timeout_s=0.5), "its limit ended it"),
        ({"command": ["no-such-program"]}, "could not be run: FileNotFoundError"),
        (python("import os; os.kill(os.getpid(), 9)"), "was ended by signal 9"),
    ):
        decision = decide(make_case(acceptance=[check]))
        assert (decision.decision, decision.feedback) == ("not_judged", [])
        assert cause in decision.reason


def test_a_failure_stands_beside_a_program_that_has_judged_nothing(make_case: MakeCase) -> None:
    case = make_case(acceptance=[{"command": ["no-such-program"]}, python("raise SystemExit(1)")])
    assert decide(case).decision == "repair_required"


def test_without_a_source_there_is_nothing_to_run_in(make_case: MakeCase) -> None:
    decision = decide(replace(make_case(acceptance=[python("")]), judged=None))
    assert (decision.decision, decision.processes) == ("not_judged", [])
    assert "there is no source in which to run it" in decision.reason


def test_a_check_for_the_end_is_not_run_for_a_part(make_case: MakeCase) -> None:
    check = python("raise SystemExit(1)", when="end")
    decision = decide(make_case(acceptance=[check], outcome="partial"))
    assert (decision.decision, decision.partial, decision.processes) == ("accepted", True, [])


# --- command evidence


def proof(least: str) -> list[dict[str, Any]]:
    return [{"name": "tests", "kind": "command", "min_origin": least}]


def item(argv: Any = None) -> dict[str, Any]:
    return {"name": "tests", "kind": "command", "text": "all pass", "data": None if argv is None else {"argv": argv}}


def ran(*argv: str) -> dict[str, Any]:
    return RECORD.model_copy(update={"argv": list(argv)}).model_dump()


def test_the_same_tests_by_another_route_are_judged_by_the_gates_own_run(
    make_case: MakeCase, make_candidate: MakeCandidate
) -> None:
    judged = make_candidate(MENDED, base=SUITE)
    for processes in (
        [],
        [ran("./run-tests.sh")],
        [ran(sys.executable, "-m", "pytest")],
        [ran("make", "check"), ran("x")],
    ):
        case = make_case(
            judged=judged, acceptance=[{"command": PYTEST}], required_evidence=proof("verified"), evidence=[item()],
            processes=processes,
        )  # fmt: skip
        decision = decide(case)
        assert (decision.decision, decision.evidence[0].found_origin) == ("accepted", "verified")


@pytest.mark.parametrize("name", ["python", sys.executable])
def test_a_command_is_the_same_by_the_name_and_by_the_path_of_the_interpreter(make_case: MakeCase, name: str) -> None:
    case = make_case(acceptance=[python("")], required_evidence=proof("verified"), evidence=[item([name, "-c", ""])])
    assert decide(case).decision == "accepted"


@pytest.mark.parametrize(
    ("argv", "processes"),
    [
        (["./run.sh"], [["./run.sh"]]),
        (["./run.sh"], [["./other.sh"], ["./run.sh"], ["./run.sh"]]),
        (["python", "run.py"], [[sys.executable, "run.py"]]),
    ],
)
def test_a_program_that_the_runtime_saw_is_observed_and_no_more(
    make_case: MakeCase, argv: list[str], processes: list[list[str]]
) -> None:
    def case(least: str) -> Case:
        return make_case(
            required_evidence=proof(least), evidence=[item(argv)], processes=[ran(*words) for words in processes]
        )

    assert decide(case("observed")).decision == "accepted"
    refused = decide(case("verified"))
    assert refused.decision == "repair_required"
    assert "no check of this contract runs it again" in refused.reason


@pytest.mark.parametrize(
    ("argv", "processes", "fact"),
    [
        (None, [["./run.sh"]], "its data.argv does not say which program is meant"),
        (["./run.sh"], [], "the runtime saw no such program run"),
        (["./run.sh"], [["./run.sh", "-x"]], "the runtime saw no such program run"),
        (None, [["a"], ["b"]], "its data.argv does not say which program is meant"),
        ("./run.sh", [["./run.sh"]], "its data.argv is no list of arguments"),
        ([], [["./run.sh"]], "its data.argv is no list of arguments"),
        ([1], [["./run.sh"]], "its data.argv is no list of arguments"),
    ],
    ids=range(7),
)
def test_a_log_that_the_child_wrote_itself_is_its_own_word(
    make_case: MakeCase, argv: Any, processes: list[list[str]], fact: str
) -> None:
    case = make_case(
        required_evidence=proof("observed"), evidence=[item(argv) | {"origin": "verified"}],
        processes=[ran(*words) for words in processes],
    )  # fmt: skip
    decision = decide(case)
    assert decision.decision == "repair_required"
    assert fact in decision.reason


def test_a_run_that_failed_or_another_command_than_the_one_run_again_verifies_nothing(make_case: MakeCase) -> None:
    failing = make_case(
        acceptance=[python("raise SystemExit(1)")], required_evidence=proof("verified"), evidence=[item()]
    )
    assert "the check that runs it did not pass" in decide(failing).reason
    other = make_case(acceptance=[python("")], required_evidence=proof("verified"), evidence=[item(["true"])])
    assert "no check of this contract runs it again" in decide(other).reason
    part = make_case(
        acceptance=[python("", when="end")], required_evidence=proof("verified"), evidence=[item()], outcome="partial"
    )
    assert decide(part).decision == "repair_required"


def test_evidence_whose_run_has_judged_nothing_is_not_held_against_the_child(make_case: MakeCase) -> None:
    case = make_case(
        acceptance=[{"command": ["no-such-program"]}], required_evidence=proof("verified"), evidence=[item()]
    )
    decision = decide(case)
    assert (decision.decision, decision.feedback, decision.evidence[0].ok) == ("not_judged", [], False)


def test_a_copy_of_the_product_as_its_own_reference_is_seen_as_a_change(
    make_case: MakeCase, make_candidate: MakeCandidate, tmp_path: Path
) -> None:
    compare = python("import sys; sys.exit(open('out.csv').read() != open('expected.csv').read())")
    judged = make_candidate({"out.csv": b"9", "expected.csv": b"9"}, base={"expected.csv": b"1"})
    decision = decide(make_case(judged=judged, acceptance=[compare, {"paths_unchanged": ["expected.csv"]}]))
    assert [check.outcome for check in decision.checks] == ["passed", "failed"]
    assert decision.decision == "repair_required"


def test_an_inventory_with_one_caller_left_out_is_sent_back_by_a_recount(
    make_case: MakeCase, make_candidate: MakeCandidate
) -> None:
    script = Path(__file__).resolve().parents[3] / "examples" / "audit" / "verify_callers.py"
    base = {
        "verify_callers.py": script.read_bytes(),
        "lib.py": b"def start():\n    pass\n",
        "app.py": b"import lib\n\nlib.start()\n\n\ndef again():\n    lib.start()\n",
    }
    acceptance = [{"command": ["python", "verify_callers.py", "callers.json"]}]

    def decision(*lines: int) -> Decision:
        callers = [{"file": "app.py", "line": line} for line in lines]
        inventory = json.dumps({"symbol": "lib.start", "callers": callers, "not_covered": []}).encode()
        return decide(make_case(judged=make_candidate({"callers.json": inventory}, base=base), acceptance=acceptance))

    assert decision(3, 7).decision == "accepted"
    refused = decision(3)
    assert refused.decision == "repair_required"
    assert refused.feedback[0].message.endswith("app.py:7 calls lib.start, and is not listed")
