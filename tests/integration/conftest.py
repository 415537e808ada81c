"""A test of an instance has own topics and an own application, on the run's broker and Spark."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from everflow.testing.kafka_proxy import KafkaProxy
from integration.lifecycle.lifecycle_cluster import Application, Cluster


@pytest.fixture
def cluster(bootstrap: str) -> Iterator[Cluster]:
    """The broker, with a name space for one test."""
    found = Cluster(bootstrap, f"l{uuid.uuid4().hex[:8]}")
    yield found
    found.close()


@pytest.fixture
def app(cluster: Cluster, spark: SparkSession, tmp_path: Path) -> Application:
    """An application of one stream thread under exactly-once."""
    return Application(cluster, tmp_path, {})


@pytest.fixture
def own_proxy(bootstrap: str) -> Iterator[KafkaProxy]:
    """A door before the run's broker, of one test."""
    with KafkaProxy(bootstrap) as standing:
        yield standing
