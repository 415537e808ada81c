"""Each application has topics and a state folder of its own; one is there for all tests."""

import uuid
from collections.abc import Iterator

import pytest

from everflow.testing.broker import EmbeddedBroker
from integration.crash.crash_instance import Application


@pytest.fixture(scope="session")
def standing(
    broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Application]:
    """The application of all tests that leave it right: each finds it so, whatever came before."""
    name = f"standing{uuid.uuid4().hex[:8]}"
    app = Application(name, broker, tmp_path_factory.mktemp("crash") / name)
    yield app
    app.close()
