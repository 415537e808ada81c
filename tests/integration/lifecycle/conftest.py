"""One broker and one Spark session for all tests of instances; every test has topics and an application of its own."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from lifecycle_cluster import Application, Cluster

from everflow.spark.session import get_session
from everflow.testing import EmbeddedBroker

pytestmark = [pytest.mark.broker, pytest.mark.spark]


@pytest.fixture(scope="session")
def lifecycle_broker() -> Iterator[str]:
    """``EVERFLOW_TEST_BOOTSTRAP`` names a broker that runs already (quicker while developing)."""
    running = os.environ.get("EVERFLOW_TEST_BOOTSTRAP")
    if running:
        yield running
        return
    with EmbeddedBroker() as broker:
        yield broker.bootstrap_servers


@pytest.fixture
def cluster(lifecycle_broker: str) -> Iterator[Cluster]:
    """The broker, with a name space for one test."""
    get_session()
    found = Cluster(lifecycle_broker, f"l{uuid.uuid4().hex[:8]}")
    yield found
    found.close()


@pytest.fixture
def app(cluster: Cluster, tmp_path: Path) -> Application:
    """An application of one stream thread under exactly-once."""
    return Application(cluster, tmp_path, {})
