"""What a Java application and everflow make in turns is what Java makes alone."""

import json
import lzma
import tarfile
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from everflow.protocol.messages import of_kafka_streams
from everflow.testing.broker import EmbeddedBroker
from integration.from_before.made_state import BROKER, EXPECTED
from integration.lifecycle import taking_over
from integration.lifecycle.lifecycle_cluster import Application, Cluster

pytestmark = [pytest.mark.broker, pytest.mark.spark]

FOLDERS = sorted(path.parent for path in taking_over.SOURCES.glob(f"*/{EXPECTED}"))


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("continued")


def go_on(app: Application, output: str) -> None:
    """With everflow, until all there is was processed."""
    given = taking_over.arguments(app.cluster, output)
    with app.running(taking_over.program(*given)) as streams:
        app.until_processed(streams, *given[:2], f"{app.id}-by-value-repartition")


@pytest.mark.parametrize(
    ("version", "turns"),
    [
        ("4.4", ("java", "everflow", "java")),
        pytest.param("4.4", ("everflow", "java", "everflow"), marks=pytest.mark.slow),
        pytest.param("4.2", ("java", "everflow", "java"), marks=pytest.mark.slow),
    ],
    ids=lambda given: given if isinstance(given, str) else "-".join(given),
)
def test_in_turns_they_make_what_java_makes_alone(
    app: Application,
    cluster: Cluster,
    tmp_path: Path,
    classes: Path,
    version: str,
    turns: tuple[str, ...],
) -> None:
    java = taking_over.command(version, classes / version)
    taking_over.topics(cluster, "turns", "alone")
    records = taking_over.history(300)
    for turn, who in enumerate(turns):
        taking_over.write_turn(cluster, records, turn)
        if who == "everflow":
            go_on(app, "turns")
        else:
            taking_over.run_java(java, cluster, app.id, tmp_path / f"java-{turn}", "turns")
    alone = f"{cluster.prefix}-alone"
    taking_over.run_java(java, cluster, alone, tmp_path / "alone", "alone")
    assert taking_over.results(cluster, "turns") == taking_over.results(cluster, "alone")


def test_there_is_a_log_of_each_version() -> None:
    names = {one.name for one in FOLDERS if (one / taking_over.LOG).is_file()}
    assert names == {*taking_over.VERSIONS, "4.4-headers"}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda one: one.name)
def test_what_java_left_behind_is_gone_on_from(
    folder: Path, spark: SparkSession, tmp_path: Path
) -> None:
    """Its changelogs, repartition topics and offsets, as each version wrote them: the results are
    what Java's own were when it went on."""
    with tarfile.open(folder / taking_over.LOG) as archive:
        archive.extractall(tmp_path, filter="data")
    expected: Any = json.loads(lzma.decompress((folder / EXPECTED).read_bytes()))
    with EmbeddedBroker(tmp_path / "broker", config=BROKER) as broker:
        cluster = Cluster(broker.bootstrap_servers, taking_over.PREFIX)
        app = Application(cluster, tmp_path, {})
        found = taking_over.committed(cluster, app.id)
        assert found == expected["committed"]
        assert all(of_kafka_streams(text) for _, text in found.values())
        taking_over.write_turn(cluster, taking_over.history(200), 1)
        go_on(app, "out")
        results = taking_over.results(cluster, "out")
        cluster.close()
    assert results == expected["results"]
