"""What a Java application and everflow make in turns is what Java makes alone."""

import random
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bench.java_program import java_command
from everflow import JoinWindows, SessionWindows, StreamsBuilder, TimeWindows, Topology, serdes
from everflow.instance.query.queries import default_partitioner
from everflow.jvm import resolve_jars
from everflow.testing import wait_until
from integration.lifecycle.lifecycle_cluster import Application, Cluster, Record, text
from oracle.streams import SHORT_LIVED

pytestmark = [pytest.mark.broker, pytest.mark.spark]

SOURCES = Path(__file__).with_name("java")
TEXT = serdes.string()
GRACE = "10 minutes"
RESULTS = ("counts", "windows", "sessions", "pairs", "values")
PARTITIONS = 2
JAVA_S = 90.0


def program(visits_topic: str, others_topic: str, output: str) -> Topology:
    """What `java/Continued.java` is, with its names of stores and topics."""
    builder = StreamsBuilder()
    visits = builder.stream(visits_topic, key=TEXT, value=TEXT)
    others = builder.stream(others_topic, key=TEXT, value=TEXT)
    grouped = visits.group_by_key()
    grouped.count(store="counts").to_stream().to(f"{output}counts")
    windows = grouped.windowed_by(TimeWindows.of_size("1 second").grace(GRACE))
    windows.count(store="windows").to_stream().map(
        lambda key, count: (f"{key.key}@{key.start}", count), returns=("string", "bigint")
    ).to(f"{output}windows", value=serdes.long())
    sessions = grouped.windowed_by(SessionWindows.of_inactivity_gap("300 ms").grace(GRACE))
    sessions.count(store="sessions").to_stream().map(
        lambda key, count: (f"{key.key}@{key.start}-{key.end}", count), returns=("string", "bigint")
    ).to(f"{output}sessions", value=serdes.long())
    near = JoinWindows.of_time_difference("200 ms").grace(GRACE)
    visits.join(
        others,
        lambda left, right: f"{left}&{right}",
        windows=near,
        store="pairs",
        name="pairs",
        returns="string",
    ).to(f"{output}pairs")
    visits.select_key(lambda key, value: value, returns="string").group_by_key(
        name="by-value"
    ).reduce(
        lambda all_, value: all_ + value[0] if len(all_) < 40 else all_, store="values"
    ).to_stream().to(f"{output}values")
    return builder.build()


def history(records: int) -> list[tuple[bool, Record]]:
    """Records of visits (True) and others, in order of time."""
    drawn = random.Random(3)
    found = []
    for number in range(records):
        key = f"k{drawn.randrange(6)}"
        record = text(key, f"v{drawn.randrange(4)}", 1_000 + number * 40)
        partition = default_partitioner(key.encode(), PARTITIONS)
        found.append((drawn.random() < 0.7, record._replace(partition=partition)))
    return found


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command of the Java program."""
    classes = tmp_path_factory.mktemp("continued")
    java, *rest = java_command(resolve_jars("streams"), classes, SOURCES, "Continued")
    return [java, *SHORT_LIVED, *rest]


@contextmanager
def running_java(command: list[str], *arguments: str) -> Iterator[None]:
    """The Java program until the block ends; it has to end well."""
    process = subprocess.Popen([*command, *arguments], stdin=subprocess.PIPE)
    try:
        yield
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            ended = process.wait(JAVA_S)
        finally:
            process.kill()
    assert ended == 0


def until_there(cluster: Cluster, topic: str) -> None:
    wait_until(lambda: topic in cluster.topics(), JAVA_S, f"the topic {topic}")


def until_committed(cluster: Cluster, group: str, *topics: str) -> None:
    """Wait until all is committed, with nothing behind it but the markers of transactions."""

    def done(topic: str) -> bool:
        have = cluster.committed(group, topic)
        behind = 1 if topic.endswith("-repartition") else 0
        return all(
            have.get(tp.partition, (0, ""))[0] >= end - behind
            for tp, end in cluster.ends(topic).items()
        )

    for topic in topics:
        wait_until(partial(done, topic), JAVA_S, f"the commits of {group} in {topic}")


@pytest.mark.parametrize(
    "turns",
    [
        ("java", "everflow", "java"),
        pytest.param(("everflow", "java", "everflow"), marks=pytest.mark.slow),
    ],
    ids="-".join,
)
def test_in_turns_they_make_what_java_makes_alone(
    app: Application, cluster: Cluster, tmp_path: Path, java: list[str], turns: tuple[str, ...]
) -> None:
    visits, others = cluster.topic("visits", PARTITIONS), cluster.topic("others", PARTITIONS)
    for output in ("turns-", "alone-"):
        for result in RESULTS:
            cluster.topic(f"{output}{result}", PARTITIONS)
    records = history(300)
    for turn, who in enumerate(turns):
        part = records[turn * 100 : turn * 100 + 100]
        for topic, of_visits in ((visits, True), (others, False)):
            cluster.write(topic, [record for one, record in part if one == of_visits])
        inputs = (visits, others, f"{app.id}-by-value-repartition")
        given = (visits, others, f"{cluster.prefix}-turns-")
        if who == "everflow":
            with app.running(program(*given)) as streams:
                app.until_processed(streams, *inputs)
        else:
            folder = str(tmp_path / f"java-{turn}")
            with running_java(java, cluster.bootstrap, app.id, folder, *given):
                until_there(cluster, inputs[2])
                until_committed(cluster, app.id, *inputs[:2])
                until_committed(cluster, app.id, inputs[2])
    alone = f"{cluster.prefix}-alone"
    with running_java(
        java, cluster.bootstrap, alone, str(tmp_path / "alone"), visits, others, f"{alone}-"
    ):
        until_there(cluster, f"{alone}-by-value-repartition")
        until_committed(cluster, alone, visits, others)
        until_committed(cluster, alone, f"{alone}-by-value-repartition")
    for result in RESULTS:
        told, wanted = (
            settled(result, list(cluster.read(f"{cluster.prefix}-{output}-{result}")))
            for output in ("turns", "alone")
        )
        assert told == wanted, result


def settled(result: str, records: list[Record]) -> Any:
    """Of a table the last result of each key that is there, of pairs all of them."""
    if result == "pairs":
        return Counter((one.key, one.value, one.timestamp) for one in records)
    last = {one.key: (one.value, one.timestamp) for one in records}
    return {key: found for key, found in last.items() if found[0] is not None}
