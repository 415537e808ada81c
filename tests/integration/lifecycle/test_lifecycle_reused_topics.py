"""A topic that is a changelog, too: what processing left out stays out of each state made of it."""

import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import pytest

from everflow import KafkaStreams, StreamsBuilder, Topology, read_state, serdes
from everflow.testing import wait_until
from integration.lifecycle.lifecycle_cluster import Application, Cluster, Record, text

pytestmark = [pytest.mark.broker, pytest.mark.spark]

KEY, VALUE = serdes.string(), serdes.json("n int")
SETTINGS: Mapping[str, Any] = {
    "topology_optimization": "reuse.ktable.source.topics",
    "default_timestamp_extractor": "LogAndSkipOnInvalidTimestamp",
    "deserialization_exception_handler": "LogAndContinueExceptionHandler",
    "processing_exception_handler": "LogAndContinueProcessingExceptionHandler",
}
UNLUCKY = 13


def behind(key: str, value: dict[str, int] | None) -> int:
    """Fails behind the table, which has taken the record by then."""
    if value is None:
        raise LookupError("deleted")
    if value["n"] == UNLUCKY:
        raise LookupError(UNLUCKY)
    return value["n"] % 2


def topology(name: Callable[[str], str]) -> Topology:
    builder = StreamsBuilder()
    table = builder.table(name("people"), key=KEY, value=VALUE, store="people")
    table.to_stream().map(
        lambda key, value: (key, behind(key, value)), returns=(KEY, serdes.int_())
    ).to(name("out"), key=KEY, value=serdes.int_())
    return builder.build()


def number(key: str, n: int, time: int) -> Record:
    return text(key, f'{{"n": {n}}}', time)


FIRST = [
    number("bad-value", 1, 1_000),
    number("no-time", 2, 1_001),
    number("fails-behind", 3, 1_002),
    number("deletion-fails", 4, 1_003),
    number("mended", 5, 1_004),
]
SECOND = [
    text("bad-value", "no json", 2_000),
    text("bad-at-once", "no json", 2_001),
    number("no-time", 8, 2_002)._replace(timestamp=-1),
    number("fails-behind", UNLUCKY, 2_003),
    number("fails-at-once", UNLUCKY, 2_004),
    text("deletion-fails", None, 2_005),
    text("mended", "no json", 2_006),
]
THIRD = [number("mended", 6, 3_000), number("other", 7, 3_001), text("other", "{", 3_002)]
WANTED = {
    "bad-value": ({"n": 1}, 1_000),
    "no-time": ({"n": 2}, 1_001),
    "fails-behind": ({"n": 3}, 1_002),
    "deletion-fails": ({"n": 4}, 1_003),
    "mended": ({"n": 6}, 3_000),
    "other": ({"n": 7}, 3_001),
}
VALUES = {key: value for key, (value, _) in WANTED.items()}


def held(streams: KafkaStreams, **how: Any) -> dict[str, Any]:
    return dict(streams.store("people", **how).all())


def shown(app: Application, program: Topology) -> dict[str, Any]:
    """The store with its times, as its changelog says."""
    found = read_state(
        program,
        "people",
        application_id=app.id,
        bootstrap_servers=app.cluster.bootstrap,
        **{name.replace("_", "."): value for name, value in SETTINGS.items()},
    )
    return {
        row.key: ({"n": row.value.n}, round(row.timestamp.timestamp() * 1000))
        for row in found.collect()
    }


@pytest.fixture
def people(app: Application, cluster: Cluster) -> dict[str, str]:
    return {
        "people": cluster.topic("people", 1, cleanup_policy="compact"),
        "out": cluster.topic("out", 1),
    }


def test_a_standby_takes_a_task(app: Application, cluster: Cluster, people: dict[str, str]) -> None:
    program = topology(people.__getitem__)
    other = str(app.folder / "other")
    with ExitStack() as running:
        instances = [
            running.enter_context(
                app.running(program, num_standby_replicas=1, state_dir=folder, **SETTINGS)
            )
            for folder in (str(app.state), other)
        ]
        for records in (FIRST, SECOND, THIRD):
            cluster.write(people["people"], records)
            app.until_processed(None, people["people"])
        end = sum(map(len, (FIRST, SECOND, THIRD)))

        def copied() -> bool:
            parts = [one._life.instance for one in instances]
            followed = [part.updater.followed().values() for part in parts if part is not None]
            return any(one.offset_sum == end for figures in followed for one in figures)

        wait_until(copied, 30.0, "the standby to be as far as the task")
        stale = [dict(held(one, stale=True)) for one in instances]
    assert VALUES in stale
    for folder in (str(app.state), other):  # what both have on their disks, the tail of it replayed
        with app.running(program, state_dir=folder, **SETTINGS) as streams:
            assert held(streams) == VALUES
    shutil.rmtree(app.folder)
    with app.running(program, **SETTINGS) as streams:
        assert held(streams) == VALUES
    assert shown(app, program) == WANTED
