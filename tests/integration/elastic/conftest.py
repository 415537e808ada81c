"""The harness of `./run chaos elastic`, for tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from everflow.testing.broker import EmbeddedBroker


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running
