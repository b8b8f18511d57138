"""Clients for the tests of the model servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.model_servers.asking import Asker
    from tests.model_servers.fake import FakeModelServer


@pytest.fixture
def make_asker(fake_model: FakeModelServer) -> Iterator[Callable[..., Asker]]:
    """Makes clients of the fake server, which the end of the test closes."""
    from tests.model_servers.asking import Asker

    made: list[Asker] = []

    def make(api: str, *, stream: bool = False, **options: Any) -> Asker:
        made.append(Asker(api, options.pop("url", fake_model.url), stream=stream, **options))
        return made[-1]

    yield make
    for asker in made:
        asker.close()


@pytest.fixture(
    params=[(api, stream) for api in ("messages", "responses", "chat") for stream in (False, True)],
    ids=lambda form: f"{form[0]}-{'streamed' if form[1] else 'plain'}",
)
def asker(request: pytest.FixtureRequest, make_asker: Callable[..., Asker]) -> Asker:
    """A client of the fake server in each API, plain and streamed."""
    api, stream = request.param
    return make_asker(api, stream=stream)
