"""The programs in examples/ do what their text says; that of the trades has its own test."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Message, Producer

import dead_letters
import own_serde
import page_sessions
from everflow import KafkaStreams, serdes
from everflow.errors import RecordError
from everflow.kafka.admin import ClusterAdmin
from everflow.serdes import SerdeError
from everflow.testing import TopologyTestDriver, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
EXAMPLES = Path(__file__).parents[2] / "examples"
TEXT = serdes.string()
MINUTE_MS = 60_000
BUSY_S = 250.0
"""Long enough for a start of Spark on a machine that runs everything at once."""


def test_views_without_a_long_gap_are_one_visit_and_a_late_one_joins_two() -> None:
    with TopologyTestDriver(page_sessions.builder.build()) as driver:
        views = driver.create_input_topic("page-views", TEXT, page_sessions.VIEW)
        visits = driver.create_output_topic("visits", TEXT, page_sessions.VISIT)
        for minute, page in [(0, "/"), (32, "/shop"), (15, "/news"), (90, "/")]:
            views.pipe_input("ann", {"page": page, "ms": 1.0}, minute * MINUTE_MS)
        told = visits.read_key_values()
        table = {key: value for key, value in dict(told).items() if value is not None}
    assert table == {
        "ann@0": {
            "visitor": "ann",
            "seconds": 1_920.0,
            "pages": 3,
            "entered": "/",
            "left": "/news",
        },
        f"ann@{90 * MINUTE_MS}": {
            "visitor": "ann",
            "seconds": 0.0,
            "pages": 1,
            "entered": "/",
            "left": "/",
        },
    }, "the late view lies between both sessions"
    assert told.count((f"ann@{32 * MINUTE_MS}", None)) == 1, (
        "the second session is no visit any more"
    )


def test_payments_that_cannot_be_booked_are_told_why_and_can_come_again() -> None:
    booked_type = serdes.json("amount double, currency string")
    dead_type = serdes.json("reason string, text string, place string")
    wrong = [
        ("not json", "JSONDecodeError: Expecting value"),
        ('{"currency": "EUR"}', "KeyError: 'amount'"),
        ("[]", "TypeError: "),
        ('{"amount": -1, "currency": "EUR"}', "the amount is -1.0"),
        ('{"amount": 5, "currency": "XYZ"}', "we do not take XYZ"),
    ]
    with TopologyTestDriver(dead_letters.builder.build()) as driver:
        payments = driver.create_input_topic("payments", TEXT, TEXT)
        corrected = driver.create_input_topic("payments-corrected", TEXT, TEXT)
        booked = driver.create_output_topic("booked", TEXT, booked_type)
        dead = driver.create_output_topic("payments-dead", TEXT, dead_type)
        records = [(f"{row}", text) for row, (text, _) in enumerate(wrong)]
        payments.pipe_batch([("ann", '{"amount": "2.5", "currency": "EUR"}'), *records])
        letters = dead.read_key_values()
        corrected.pipe_input("0", '{"amount": 4, "currency": "USD"}')
        assert booked.read_key_values() == [
            ("ann", {"amount": 2.5, "currency": "EUR"}),
            ("0", {"amount": 4.0, "currency": "USD"}),
        ]
        assert dead.is_empty()
    assert [(key, value["text"]) for key, value in letters] == records
    for row, (_, reason) in enumerate(wrong):
        assert letters[row][1]["reason"].startswith(reason)
        assert letters[row][1]["place"] == f"payments-0@{row + 1}"


READINGS = [
    {"sensor": 7, "celsius": 61.25, "second": 1_000, "battery": 3_300},
    {"sensor": 65_535, "celsius": -40.0, "second": 2**32 - 1, "battery": 0},
    {"sensor": 8, "celsius": 60.0, "second": 1_001, "battery": 2_900},
]


def test_packets_of_an_own_serde_are_read_by_column_as_one_by_one() -> None:
    serde = own_serde.ReadingSerde()
    column = serde.encode_array(pa.array([*READINGS, None], serde.type))
    assert {len(packet) for packet in column.to_pylist()[:3]} == {10}
    assert serde.decode_array(column).to_pylist() == [*READINGS, None]
    assert [serde.decode(packet) for packet in column.to_pylist()] == [*READINGS, None]
    assert serde.decode_array(column[1:3]).to_pylist() == READINGS[1:]
    with pytest.raises(SerdeError, match=r"reading.*10.*5") as short:
        serde.decode_array(pa.array([column[0].as_py(), b"short"], pa.binary()))
    assert short.value.index == 1
    with pytest.raises(SerdeError, match="is no reading"):
        serde.encode({**READINGS[0], "sensor": 70_000})


def test_a_packet_that_is_none_stops_the_program_with_its_place() -> None:
    with TopologyTestDriver(own_serde.builder.build()) as driver:
        readings = driver.create_input_topic("readings", TEXT, own_serde.ReadingSerde())
        hot = driver.create_output_topic("hot", TEXT, serdes.double())
        readings.pipe_batch([("a", one) for one in READINGS])
        assert hot.read_key_values() == [("7", 61.25), ("8", 60.0)]
        with pytest.raises(RecordError, match=r"reading.*10.*3.*readings-0@3"):
            readings.pipe_raw(b"a", b"odd")


@pytest.mark.broker
def test_an_own_serde_reaches_the_workers_of_an_instance(
    bootstrap: str, admin: ClusterAdmin, name: str, tmp_path: Path
) -> None:
    admin.create_topics({"readings": (2, {}), "hot": (2, {})})
    produce(bootstrap, "readings", [own_serde.ReadingSerde().encode(one) for one in READINGS])
    streams = KafkaStreams(
        own_serde.builder.build(),
        application_id=name,
        bootstrap_servers=bootstrap,
        state_dir=str(tmp_path),
    )
    streams.start()
    try:
        hot = consumed(bootstrap, "hot", 2)
    finally:
        assert streams.close(60.0)
    assert hot == {b"7": serdes.double().encode(61.25), b"8": serdes.double().encode(60.0)}


@pytest.mark.broker
@pytest.mark.slow
def test_the_word_service_counts_answers_and_ends(
    bootstrap: str, admin: ClusterAdmin, tmp_path: Path
) -> None:
    admin.create_topics({"words": (2, {})})
    produce(bootstrap, "words", [b"Tea", b"pot", b"tea"])
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable,
        str(EXAMPLES / "word_service.py"),
        bootstrap,
        str(port),
        str(tmp_path / "state"),
    ]
    with (tmp_path / "log").open("wb") as log:
        service = subprocess.Popen(command, stdout=log, stderr=log)

    def answer(word: str) -> Any:
        try:
            with urlopen(f"http://localhost:{port}/counts/{word}", timeout=10) as found:
                return json.loads(found.read())
        except OSError as error:  # it starts, or its tasks do
            return error

    def counted() -> bool:
        assert service.poll() is None, (tmp_path / "log").read_text()
        return [answer("tea"), answer("pot"), answer("milk")] == [2, 1, None]

    try:
        wait_until(counted, BUSY_S, "the counts", lambda: [answer("tea")])
        service.send_signal(signal.SIGTERM)
        service.wait(60)
        assert "Traceback" not in (tmp_path / "log").read_text()
    finally:
        service.kill()
        service.wait()


def produce(bootstrap: str, topic: str, values: Sequence[bytes | None]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for value in values:
        producer.produce(topic, value=value)
    assert producer.flush(30) == 0


def consumed(bootstrap: str, topic: str, count: int) -> dict[bytes | None, bytes | None]:
    """The records of a topic as a table, once there are ``count``."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"reads-{topic}",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    found: list[Message] = []

    def all_there() -> bool:
        found.extend(consumer.consume(count, 0.1))
        return len(found) >= count

    try:
        wait_until(all_there, BUSY_S, f"{count} records of {topic}", lambda: found)
    finally:
        consumer.close()
    return {message.key(): message.value() for message in found}
