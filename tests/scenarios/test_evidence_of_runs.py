"""Evidence in whole runs: only what the coordinator saw is observed, by whichever way it was read."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator import Coordinator, Orchestration

OWED = [{"name": "the greeting", "kind": "citation", "min_origin": "observed"}]


@pytest.fixture
def play(place: Any) -> Any:
    source = place.folder / "source"
    source.mkdir()
    (source / "readme.md").write_text("hello\n")
    (source / "secret.txt").write_text("hello from outside\n")

    def run(function: str, **fields: Any) -> Any:
        resources = {"tools": ["list_files", "read_file", "search_code"], "read_scope": ["*.md"]}
        task = place.task(function, resources=resources, required_evidence=OWED, acceptance=[], **fields)
        work = Orchestration.model_validate(place.document({"one": task}, source=str(source)))
        with Coordinator(place.url, home=place.home) as coordinator:
            return coordinator.run(work).tasks["one"]

    return run


def test_a_citation_without_a_reading_is_sent_back_with_the_missing_fact(play: Any, place: Any) -> None:
    one = play("cites_unread")
    assert one.accepted
    assert one.attempts == 2
    told = one.output["told"]
    assert "the greeting" in told
    assert "observed" in told
    assert len(place.marks("told")) == 1


def test_a_citation_that_is_never_read_is_never_accepted(play: Any) -> None:
    one = play("cites_unread", limits={"max_repairs": 0})
    assert one.state == "failed"
    assert one.manifest.evidence[0].origin == "claimed"
    assert one.manifest.observed_calls == []


@pytest.mark.parametrize("function", ["cites_what_it_read", "cites_what_it_searched"])
def test_a_reading_counts_by_whichever_tool_it_was_made(play: Any, function: str) -> None:
    one = play(function)
    assert one.accepted
    assert one.attempts == 1
    assert [(item.origin, item.seen_in_calls) for item in one.manifest.evidence] == [("observed", [1])]


def test_a_child_that_reaches_into_the_broker_has_observed_nothing_by_it(play: Any) -> None:
    one = play("forges", limits={"max_repairs": 0})
    assert one.state == "failed"
    assert one.output["refused"][0] == "ToolRefused"
    assert len(one.output["refused"]) == 3
    assert one.manifest.read_set == {}
    assert [call.ok for call in one.manifest.observed_calls] == [False] * 3
    assert {item.origin for item in one.manifest.evidence} == {"claimed"}


def test_an_artifact_of_a_needed_result_is_read_by_its_name(place: Any) -> None:
    tasks = {"one": place.task("hands_over"), "two": place.task("reads_artifact", needs=["one"])}
    with Coordinator(place.url, home=place.home) as coordinator:
        result = coordinator.run(Orchestration.model_validate(place.document(tasks)))
    assert result.tasks["two"].output == {"length": 100_009}
