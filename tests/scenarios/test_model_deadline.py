"""A model that does not answer until its deadline, through a real worker: what it had noted is handed in in time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from contracts.orchestration import Orchestration
from contracts.results import Manifest
from coordinator.home import open_home
from coordinator.launch import launch, plan_launch
from tests.model_servers.script import Call, Reply, Wire

if TYPE_CHECKING:
    from tests.model_servers.fake import FakeModelServer

NOTES = Reply((Call("note_gap", {"text": "b.txt is not read"}),))
SILENCE = Reply((Call("submit_result", {"outcome": "completed"}),), wire=Wire(first_byte_after_s=60))


@pytest.mark.slow
def test_at_its_deadline_a_model_child_hands_in_what_it_noted(place: Any, fake_model: FakeModelServer) -> None:
    fake_model.by_turn(NOTES, SILENCE)
    model = {
        "model": "model-x", "base_url": fake_model.openai_url, "api": "chat", "stream": False, "api_key_env": None,
    }  # fmt: skip
    task = {
        "objective": "Read.", "agent": {"openai": model}, "isolation": "none",
        "acceptance": [{"cel": "output == null"}],
        "prices": {"model-x": {"input_mtok_usd": 3, "output_mtok_usd": 15}},
        "limits": {"deadline_s": 20, "max_claims": 1}, "budget": {"max_turns": 5},
    }  # fmt: skip
    home = open_home(place.url, place.home)
    launch(place.store, home, plan_launch(Orchestration.from_file(place.write({"one": task}))))
    place.ended(place.worker(), None)
    one = place.one("one")
    [attempt] = one.attempts
    assert attempt.manifest_digest is not None, one
    manifest = Manifest.model_validate_json(place.store.bytes_of(attempt.manifest_digest))
    assert (manifest.outcome, manifest.gaps) == ("partial", ["b.txt is not read"])
    assert "deadline" in manifest.message
