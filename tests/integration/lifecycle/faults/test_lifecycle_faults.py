"""A whole instance under faults: on the wire to the brokers, and in the user's code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError

from everflow import (
    KafkaStreams,
    StreamsBuilder,
    StreamThreadExceptionResponse,
    TaskId,
    Topology,
    serdes,
)
from everflow.errors import EverflowError, RecordError, ShutdownRequestedError
from everflow.instance.client_state import ClientState
from everflow.testing import wait_until
from everflow.testing.kafka_proxy import KafkaProxy, WireFault
from integration.lifecycle.lifecycle_cluster import (
    Application,
    Cluster,
    last_by_key,
    long,
    text,
    until_failed,
    until_running,
)

pytestmark = [pytest.mark.broker, pytest.mark.spark]
PARTITIONS = 2
WAIT_S = 60.0


def counting(source: str, output: str) -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string(), value=serdes.string())
    stream.group_by_key().count(store="counts").to_stream().to(output)
    return builder.build()


def failing(source: str, output: str, flag: Path) -> Topology:
    """While the file is there, each record of key ``bad`` fails."""
    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string(), value=serdes.string())
    there = str(flag)

    def check(key: str, value: str) -> str:
        if key == "bad" and Path(there).exists():
            raise ValueError("the service is away")
        return value

    stream.map_values(check, returns=serdes.string()).to(output)
    return builder.build()


@pytest.fixture
def proxy(bootstrap: str) -> Iterator[KafkaProxy]:
    with KafkaProxy(bootstrap) as standing:
        yield standing


def test_an_instance_counts_once_whatever_happens_on_the_wire(
    proxy: KafkaProxy, cluster: Cluster, tmp_path: Path
) -> None:
    source, output = cluster.topic("in", PARTITIONS), cluster.topic("out", PARTITIONS)
    behind = Cluster(proxy.bootstrap_servers, cluster.prefix)
    app = Application(behind, tmp_path, {"heartbeat_interval_ms": 500})
    sent = 0
    with app.running(counting(source, output)) as streams:

        def process() -> None:
            nonlocal sent
            batch = [text(f"k{n % 7}", "v", n, n % 7 % PARTITIONS) for n in range(sent, sent + 40)]
            cluster.write(source, batch)
            sent += 40
            app.until_processed(streams, source)

        process()
        faults: tuple[Callable[[], WireFault], ...] = (
            lambda: proxy.lose_answer("EndTxn"),
            lambda: proxy.drop("EndTxn"),
            lambda: proxy.lose_answer("Produce", topic=output),
            lambda: proxy.refuse("TxnOffsetCommit", KafkaError.ILLEGAL_GENERATION),
            lambda: proxy.refuse("TxnOffsetCommit", KafkaError.COORDINATOR_LOAD_IN_PROGRESS, 3),
            lambda: proxy.refuse("TxnOffsetCommit", KafkaError.NOT_COORDINATOR, 2),
            lambda: proxy.refuse("EndTxn", KafkaError.NOT_COORDINATOR, 2),
            lambda: proxy.refuse("Produce", KafkaError.NOT_LEADER_FOR_PARTITION, 3),
            lambda: proxy.refuse("EndTxn", KafkaError.PRODUCER_FENCED),
            lambda: proxy.hold("EndTxn", breaks=True),
        )
        for fault in faults:
            set_ = fault()
            process()
            set_.wait()
            if set_.act == "hold":
                set_.release()
        proxy.cut()
        cluster.write(source, [text("k0", "v", sent, 0)])
        sent += 1
        proxy.mend()
        app.until_processed(streams, source)
    counts = {key: long(value) for key, value in last_by_key(cluster.read(output)).items()}
    wanted = Counter(b"k%d" % (n % 7) for n in range(sent - 1))
    wanted[b"k0"] += 1
    assert counts == wanted
    behind.close()


def test_a_task_whose_code_fails_rests_while_the_others_go_on(
    app: Application, cluster: Cluster, tmp_path: Path
) -> None:
    source, output = cluster.topic("in", PARTITIONS), cluster.topic("out", PARTITIONS)
    flag = tmp_path / "service-is-away"
    flag.touch()
    streams = app.instance(failing(source, output, flag))
    met: list[EverflowError] = []

    def handler(error: EverflowError) -> StreamThreadExceptionResponse:
        met.append(error)
        return StreamThreadExceptionResponse.REPLACE_THREAD

    streams.set_uncaught_exception_handler(handler, most=50, within="1 hour")
    bad, good = TaskId(0, 0), TaskId(0, 1)
    try:
        streams.start()
        until_running(streams)
        cluster.write(source, [text("bad", "1", 1, 0), text("good", "1", 1, 1)])
        wait_until(lambda: met, WAIT_S, "the handler to be called")
        assert isinstance(met[0], RecordError)
        wait_until(lambda: len(cluster.read(output)) == 1, WAIT_S, "the other task's record")
        cluster.write(source, [text("good", "2", 2, 1)])
        wait_until(lambda: len(cluster.read(output)) == 2, WAIT_S, "its next one")
        trouble = streams.all_tasks()[bad].trouble
        assert trouble is not None
        assert "the service is away" in trouble.text
        assert streams.all_tasks()[good].trouble is None
        flag.unlink()
        app.until_processed(streams, source)
        assert streams.all_tasks()[bad].trouble is None
    finally:
        assert streams.close(WAIT_S)
    assert streams.error is None
    assert Counter(record.value for record in cluster.read(output)) == {b"1": 2, b"2": 1}


def test_a_handler_ends_the_whole_application(
    app: Application, cluster: Cluster, tmp_path: Path
) -> None:
    source, output = cluster.topic("in", PARTITIONS), cluster.topic("out", PARTITIONS)
    flag = tmp_path / "service-is-away"
    flag.touch()
    topology = failing(source, output, flag)
    both: list[KafkaStreams] = []
    for number in range(2):
        streams = app.instance(topology, state_dir=str(tmp_path / str(number)))
        streams.set_uncaught_exception_handler(
            lambda _: StreamThreadExceptionResponse.SHUTDOWN_APPLICATION
        )
        both.append(streams)
    try:
        for streams in both:
            streams.start()
        wait_until(lambda: cluster.members(app.id) == 2, WAIT_S, "both to be members")
        for streams in both:
            until_running(streams)
        cluster.write(source, [text("bad", "1", 1, 0)])
        errors = [until_failed(streams) for streams in both]
    finally:
        for streams in both:
            streams.close(WAIT_S)
    assert {type(error) for error in errors} == {RecordError, ShutdownRequestedError}
    assert [streams.state for streams in both] == [ClientState.ERROR] * 2
    assert cluster.members(app.id) == 0
