"""The report by a model, over a server that speaks Chat Completions: what it hands in is judged, never believed."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from coordinator import Coordinator, Orchestration, RunResult
from tests.model_servers.script import Call, Reply, Say

if TYPE_CHECKING:
    from tests.model_servers.fake import FakeModelServer, Request

REPORT = Path(__file__).resolve().parents[2] / "examples" / "report"
TEXT = "# R\n\n## Background\n\nA pilot.\n\n## Risks\n\nNobody reads it.\n\n## Recommendation\n\nGo on.\n"
GOOD = {"text": TEXT, "facts_used": 3, "complete": True}
Play = Callable[..., RunResult]


def submit(output: Any) -> Reply:
    return Reply((Call("submit_result", {"outcome": "completed", "output": output}),))


def final(request: Request) -> Reply:
    """What a good model makes of the accepted draft: it finds its digest in the data."""
    [digest] = re.findall(r'"manifest": "(sha256:[0-9a-f]{64})"', json.dumps(request.body).replace('\\"', '"'))
    return submit({"text": f"{TEXT}\n## Sources\n\n{digest}\n", "built_from": digest, "complete": True})


@pytest.fixture
def play(fake_model: FakeModelServer, tmp_path: Path) -> Play:
    """Runs the example with its address replaced, as a person would edit it."""

    def run(*answers: Reply) -> RunResult:
        shutil.copytree(REPORT, tmp_path / "report")
        file = tmp_path / "report" / "orchestration.model.yaml"
        text = file.read_text()
        assert "http://127.0.0.1:11434/v1" in text
        file.write_text(text.replace("http://127.0.0.1:11434/v1", fake_model.openai_url))
        fake_model.send(*answers)
        fake_model.choose(final)
        with Coordinator(f"sqlite:///{tmp_path}/tasks.db") as coordinator:
            return coordinator.run(Orchestration.from_file(file))

    return run


def test_good_answers_are_accepted(play: Play, fake_model: FakeModelServer) -> None:
    result = play(submit(GOOD))
    assert result.ok
    assert len(fake_model.requests) == 2
    assert result.tasks["final"].output["built_from"] in result.tasks["final"].output["text"]


@pytest.mark.parametrize(
    ("bad", "finding"),
    [
        ({**GOOD, "confidence": 0.9}, "confidence"),
        ({**GOOD, "complete": "true"}, "True was expected"),
        ({**GOOD, "facts_used": "3"}, "not of type 'integer'"),
        ({"text": TEXT}, "required property"),
        (None, "not of type 'object'"),
        (json.dumps(GOOD), "not of type 'object'"),
        ({**GOOD, "text": TEXT.replace("## Risks\n", "")}, "Missing required sections: Risks"),
        ({**GOOD, "text": TEXT.replace("Nobody reads it.", "")}, "Empty required sections: Risks"),
    ],
    ids=[
        "an extra field", "a string for true", "a string for a number", "fields left out", "no output",
        "JSON in a text", "yes to a missing section", "yes to an empty section",
    ],
)  # fmt: skip
def test_an_output_off_its_schema_or_without_a_section_is_sent_back_with_the_reason_and_a_good_one_is_accepted(
    bad: Any, finding: str, play: Play, fake_model: FakeModelServer
) -> None:
    result = play(submit(bad), submit(GOOD))
    assert result.ok
    assert result.tasks["draft"].output == GOOD
    assert result.tasks["draft"].manifest is not None
    assert result.tasks["draft"].manifest.attempt == 2
    feedback = json.dumps(fake_model.requests[1].body)
    assert "===== data" in feedback
    assert finding in feedback


@pytest.mark.parametrize(
    "bad",
    [
        Reply(),
        Reply((Say("complete: true"),)),
        Reply((Call("submit_result", {"outcome": "completed", "output": GOOD}),), stop="length"),
        Reply((Call("submit_result", '{"outcome": "completed", "output": {"text": "# R\\n## Backgr'),)),
        Reply((Call("submit_result", None),)),
        Reply((Call("submit_result", {"outcome": "accepted", "output": GOOD}),)),
    ],
    ids=["empty", "text", "cut by the limit", "cut arguments", "no arguments", "an outcome of its own"],
)
def test_an_answer_that_is_no_result_is_never_one_and_the_model_is_told_so_in_the_same_attempt(
    bad: Reply, play: Play, fake_model: FakeModelServer
) -> None:
    result = play(bad, submit(GOOD))
    assert result.ok
    assert result.tasks["draft"].manifest is not None
    assert result.tasks["draft"].manifest.attempt == 1
    assert len(fake_model.requests) == 3


def test_a_model_that_never_hands_in_what_was_asked_is_never_accepted(play: Play, fake_model: FakeModelServer) -> None:
    result = play(*(submit({**GOOD, "text": f"## Background\n\n{number}\n"}) for number in range(3)))
    assert not result.ok
    assert (result.tasks["draft"].outcome, result.tasks["final"].accepted) == ("failed", False)
    assert len(fake_model.requests) == 3
