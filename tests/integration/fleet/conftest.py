"""A broker, and a Spark cluster for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.fleet.spark_cluster import SparkCluster
from integration.lifecycle.lifecycle_cluster import Application, Cluster


@pytest.fixture
def app(cluster: Cluster, tmp_path: Path) -> Application:
    """Its name and its progress; no instance of it runs here."""
    return Application(cluster, tmp_path, {})


@pytest.fixture
def spark_cluster(tmp_path: Path) -> Iterator[SparkCluster]:
    found = SparkCluster(tmp_path)
    yield found
    found.close()
