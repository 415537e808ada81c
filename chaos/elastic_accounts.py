"""The input of an elastic run, and its books: outputs and stores held against an undisturbed run
over the same input.

Record ``n`` carries the number ``n`` as its value. The first ``keys`` records bring every key once,
those behind them come at one pace and in the order of `bench.load.steady_sender`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from confluent_kafka import Consumer, Producer, TopicPartition

from bench.load.steady_sender import key_index, times_sent
from bench.topics import JAVA_PARTITIONER, end_offsets, key_of, produce_all
from everflow.state.changelog import pack_value, unpack_value
from everflow.state.lmdb_store import LmdbStore
from integration.crash.crash_topologies import COUNTS, copies_topic, counts_topic, input_topic

READ_AT_ONCE = 10_000
READ_TIMEOUT_S = 300.0


class Load(threading.Thread):
    """Sends at one pace until it is stopped. ``sent`` counts what came after the first ``keys``
    records."""

    def __init__(self, bootstrap: str, application: str, keys: int, rate: float) -> None:
        super().__init__(daemon=True)
        self.sent = 0
        self.began_s = self.ended_s = 0.0
        self._topic, self._keys, self._rate = input_topic(application), keys, rate
        self._servers = bootstrap
        self._failures: list[str] = []
        self._stop_asked = threading.Event()

    def fill(self) -> None:
        """Every key once, as fast as it goes."""
        rows = ((key_of(number).encode(), str(number).encode()) for number in range(self._keys))
        produce_all(self._servers, self._topic, rows)

    def run(self) -> None:
        settings = {"partitioner": JAVA_PARTITIONER, "linger.ms": 5, "enable.idempotence": True}
        producer = Producer({"bootstrap.servers": self._servers, **settings})
        self.began_s, started = time.time(), time.monotonic()
        while not self._stop_asked.wait(0.01):
            due = int((time.monotonic() - started) * self._rate)
            while self.sent < due:
                key = key_of(key_index(self.sent, self._keys)).encode()
                producer.produce(
                    self._topic, str(self._keys + self.sent).encode(), key, on_delivery=self._check
                )
                self.sent += 1
            producer.poll(0)
        self.ended_s = time.time()
        if producer.flush(60):
            self._failures.append("records are left unsent")

    def stop(self) -> None:
        """End the thread; RuntimeError if a record was refused."""
        self._stop_asked.set()
        self.join()
        if self._failures:
            raise RuntimeError(f"the load failed: {self._failures[0]}")

    def _check(self, error: object, _message: object) -> None:
        if error is not None:
            self._failures.append(str(error))


@dataclass
class Books:
    """What was lost, doubled or wrong; ``remarks`` say where."""

    lost: int = 0
    duplicated: int = 0
    stores_wrong: int = 0
    remarks: list[str] = field(default_factory=list)


def check_outputs(bootstrap: str, application: str, keys: int, sent: int, books: Books) -> None:
    """Every record was copied once, under its key; the counts of each key rise and end with the
    truth."""
    copied = np.zeros(keys + sent, dtype=np.int64)
    for _, key, value, _ in read_topic(bootstrap, copies_topic(application)):
        number = int(value)
        copied[number] += 1
        right = key_of(number if number < keys else key_index(number - keys, keys)).encode()
        if key != right:
            books.remarks.append(f"record {number} was copied under {key!r}, not {right!r}")
            books.lost += 1
    books.lost += int((copied == 0).sum())
    books.duplicated += int(np.maximum(copied - 1, 0).sum())
    books.remarks += [
        f"record {number} was copied {copied[number]} times"
        for number in np.flatnonzero(copied != 1)[:10].tolist()
    ]
    counts: dict[bytes, int] = {}
    for _, key, value, _ in read_topic(bootstrap, counts_topic(application)):
        count, before = int.from_bytes(value, "big"), counts.get(key, 0)
        if count <= before:
            books.duplicated += 1
            books.remarks.append(f"the count of {key.decode()} went from {before} to {count}")
        counts[key] = count
    for number, truth in enumerate(true_counts(keys, sent).tolist()):
        have = counts.get(key_of(number).encode(), 0)
        if have != truth:
            books.lost += max(0, truth - have)
            books.duplicated += max(0, have - truth)
            books.remarks.append(f"{key_of(number)} ended with {have} instead of {truth}")


def check_stores(
    bootstrap: str,
    application: str,
    keys: int,
    sent: int,
    copies: Mapping[tuple[int, int], Path],
    owners: Mapping[int, int],
    books: Books,
) -> None:
    """Every copy on every disk ((instance, partition) -> folder) is the fold of the changelog up to
    its own position (I2); those of the owners (partition -> instance) are at its end, and all of
    them together are the true counts."""
    total: dict[bytes, int] = {}
    for partition, owner in sorted(owners.items()):
        here = {
            instance: LmdbStore.open(folder)
            for (instance, place), folder in copies.items()
            if place == partition
        }
        order = sorted(here, key=lambda instance: here[instance].meta().position or 0)
        records = read_topic(bootstrap, f"{application}-{COUNTS}-changelog", partition)
        folded: dict[bytes, bytes] = {}
        ahead = next(records, None)
        for instance in order:
            position = here[instance].meta().position or 0
            while ahead is not None and ahead[0] < position:
                folded[ahead[1]] = pack_value(ahead[3], ahead[2])
                ahead = next(records, None)
            with here[instance].snapshot() as view:
                content = dict(view.range(None, None))
            here[instance].close()
            if content != folded:
                books.stores_wrong += 1
                wrong = [key for key in {*content, *folded} if content.get(key) != folded.get(key)]
                books.remarks.append(
                    f"instance {instance}, task 0_{partition}: {len(wrong)} of {len(folded)} keys "
                    f"differ"
                )
            if instance == owner:
                if ahead is not None:
                    books.stores_wrong += 1
                    books.remarks.append(
                        f"the owner of 0_{partition} is at {position}, records follow from "
                        f"{ahead[0]}"
                    )
                total |= {
                    key: int.from_bytes(unpack_value(stored)[1], "big")
                    for key, stored in content.items()
                }
    expected = {
        key_of(number).encode(): count
        for number, count in enumerate(true_counts(keys, sent).tolist())
    }
    if total != expected:
        books.stores_wrong += 1
        wrong = [key for key in {*total, *expected} if total.get(key) != expected.get(key)]
        books.remarks.append(
            f"{len(wrong)} counts in the stores are wrong, one of them of {wrong[0].decode()}"
        )


def true_counts(keys: int, sent: int) -> np.ndarray:
    """By key index: how often an undisturbed run counts it."""
    return times_sent(sent, keys) + 1


def read_topic(
    bootstrap: str, topic: str, partition: int | None = None
) -> Iterator[tuple[int, bytes, bytes, int]]:
    """(offset, key, value, timestamp in ms) of every committed record of one partition, or of all,
    up to the present end."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"{topic}-check",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        for number, end in end_offsets(bootstrap, topic).items():
            if partition not in (None, number):
                continue
            consumer.assign([TopicPartition(topic, number, 0)])
            position, deadline = 0, time.monotonic() + READ_TIMEOUT_S
            while position < end:
                if time.monotonic() > deadline:
                    raise RuntimeError(
                        f"{topic}-{number} could not be read beyond {position} of {end}"
                    )
                for message in consumer.consume(READ_AT_ONCE, timeout=0.2):
                    if message.error() is not None:
                        raise RuntimeError(f"{topic}-{number}: {message.error()}")
                    if (message.offset() or 0) < end:
                        yield (
                            message.offset() or 0,
                            message.key() or b"",
                            message.value() or b"",
                            message.timestamp()[1],
                        )
                position = max(
                    position, consumer.position([TopicPartition(topic, number)])[0].offset
                )
    finally:
        consumer.close()
