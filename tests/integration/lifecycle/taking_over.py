"""A program in Kafka Streams (`java/Continued.java`) and the same one here, and what a Java
application of each version leaves behind: a folder ``java/VERSION``, made by::

    PYTHONPATH=src:tests:. .venv/bin/python tests/integration/lifecycle/taking_over.py

Java runs on the first records and stops: ``log.tar.xz``, the log of its broker. Then Java goes on
with the next ones; ``expected.json.xz`` has its results, and the offsets that it had committed.
"""

from __future__ import annotations

import json
import lzma
import random
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.java_program import java_command
from everflow import JoinWindows, SessionWindows, StreamsBuilder, TimeWindows, Topology, serdes
from everflow.instance.query.queries import default_partitioner
from everflow.jvm import resolve_jars
from everflow.protocol.messages import KAFKA_STREAMS_HEAD
from everflow.testing import wait_until
from everflow.testing.broker import EmbeddedBroker
from integration.from_before.made_state import BROKER, EXPECTED, MADE_ANEW, archived
from integration.lifecycle.lifecycle_cluster import Cluster, Record, last_by_key, text
from oracle.streams import SHORT_LIVED

SOURCES = Path(__file__).with_name("java")
TEXT = serdes.string()
GRACE = "10 minutes"
RESULTS = ("counts", "windows", "sessions", "pairs", "values")
PARTITIONS = 2
JAVA_S = 90.0
VERSIONS = {"4.4": "streams", "4.2": "streams-4.2"}
"""Of Kafka Streams, and their class paths."""
HEADERS = {"dsl.store.format": "HEADERS"}
LOG = "log.tar.xz"
PREFIX = "java"


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


def command(version: str, classes: Path) -> list[str]:
    """Of the Java program, without its arguments."""
    java, *rest = java_command(resolve_jars(VERSIONS[version]), classes, SOURCES, "Continued")
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


def settled(result: str, records: Iterable[Record]) -> list[str]:
    """Of a table the last result of each key that is there, of pairs all of them."""
    found = list(records)
    if result != "pairs":
        left = last_by_key(found)
        found = list({one.key: one for one in found if one.key in left}.values())
    return sorted(
        f"{(one.key or b'').decode()} {(one.value or b'').hex()} {one.timestamp}" for one in found
    )


def write_turn(cluster: Cluster, records: Sequence[tuple[bool, Record]], turn: int) -> None:
    """A hundred records a turn."""
    part = records[turn * 100 : turn * 100 + 100]
    for topic, of_visits in (("visits", True), ("others", False)):
        cluster.write(
            f"{cluster.prefix}-{topic}", [record for one, record in part if one == of_visits]
        )


def topics(cluster: Cluster, *outputs: str) -> None:
    """Make those of the program."""
    for name in ("visits", "others", *(f"{one}-{result}" for one in outputs for result in RESULTS)):
        cluster.topic(name, PARTITIONS)


def arguments(cluster: Cluster, output: str) -> tuple[str, str, str]:
    """The program's topics."""
    prefix = cluster.prefix
    return f"{prefix}-visits", f"{prefix}-others", f"{prefix}-{output}-"


def run_java(
    java: Sequence[str],
    cluster: Cluster,
    application_id: str,
    folder: Path,
    output: str,
    settings: Sequence[str] = (),
) -> None:
    """Until it has processed and committed all there is."""
    given, between = arguments(cluster, output), f"{application_id}-by-value-repartition"
    with running_java(
        list(java), cluster.bootstrap, application_id, str(folder), *given, *settings
    ):
        until_there(cluster, between)
        until_committed(cluster, application_id, *given[:2])
        until_committed(cluster, application_id, between)


def results(cluster: Cluster, output: str) -> dict[str, list[str]]:
    return {
        result: settled(result, cluster.read(f"{cluster.prefix}-{output}-{result}"))
        for result in RESULTS
    }


def committed(cluster: Cluster, application_id: str) -> dict[str, list[Any]]:
    """By partition: the offset, and Kafka Streams' text beside it, up to where the client reads on
    (it ends at a NUL, which Java does not write)."""
    names = (*arguments(cluster, "")[:2], f"{application_id}-by-value-repartition")
    return {
        f"{topic}-{partition}": [offset, text[:KAFKA_STREAMS_HEAD]]
        for topic in names
        for partition, (offset, text) in sorted(cluster.committed(application_id, topic).items())
    }


def make(folder: Path, java: Sequence[str], settings: Sequence[str], work: Path) -> None:
    expected: dict[str, Any] = {"settings": list(settings)}
    records = history(200)
    for turn in (0, 1):
        with EmbeddedBroker(work / "broker", config=BROKER) as broker:
            cluster = Cluster(broker.bootstrap_servers, PREFIX)
            if turn == 0:
                topics(cluster, "out")
            write_turn(cluster, records, turn)
            run_java(java, cluster, f"{PREFIX}-app", work / "state", "out", settings)
            if turn == 0:
                expected["committed"] = committed(cluster, f"{PREFIX}-app")
            else:
                expected["results"] = results(cluster, "out")
            cluster.close()
        if turn == 0:
            archived(folder / LOG, {"broker/log": work / "broker" / "log"}, MADE_ANEW)
    text = json.dumps(expected, indent=1, sort_keys=True) + "\n"
    (folder / EXPECTED).write_bytes(lzma.compress(text.encode(), preset=9))


def main() -> None:
    plain: dict[str, str] = {}
    made = [(version, version, plain) for version in VERSIONS]
    for name, version, settings in [*made, ("4.4-headers", "4.4", HEADERS)]:
        folder = SOURCES / name
        folder.mkdir(exist_ok=True)
        with TemporaryDirectory() as temporary:
            work = Path(temporary)
            given = [f"{key}={value}" for key, value in settings.items()]
            make(folder, command(version, work / "classes"), given, work)
        for path in sorted(folder.iterdir()):
            print(f"{path.relative_to(SOURCES)}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
