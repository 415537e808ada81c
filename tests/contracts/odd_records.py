"""Records as any client may write them: odd headers, keys, values and times, drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from everflow.kafka.writing.record_writer import RecordWriter
from everflow.records import TopicPartition

FARTHEST = (1 << 63) - 1
NAMES = (
    b"",
    b"trace",
    b"trace\0id",
    b"\0",
    b"a\0",
    "été".encode("latin-1"),
    "été".encode(),
    b"\xff\xfe\xed\xa0\x80",
    b"\xf0\x9f",
    "🦆".encode(),
    b"x" * 300,
    b"\x1b[2K\r\n",
)


class RawName(str):
    """A header's name of any bytes, as other languages' clients write them."""

    __slots__ = ("raw",)
    raw: bytes

    def __new__(cls, raw: bytes) -> RawName:
        made = super().__new__(cls, raw.decode(errors="replace"))
        made.raw = raw
        return made

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        return self.raw


class OddRecord(NamedTuple):
    key: bytes | None
    value: bytes | None
    time: int
    headers: tuple[tuple[bytes, bytes | None], ...] = ()

    @property
    def read(self) -> tuple[bytes | None, bytes | None, int, list[tuple[str, bytes | None]]]:
        """As every reader has it: like Java's, with U+FFFD for bad bytes of a name."""
        named = [(name.decode(errors="replace"), value) for name, value in self.headers]
        return self.key, self.value, self.time, named


def drawn(draw: random.Random, count: int) -> list[OddRecord]:
    def data() -> bytes | None:
        return draw.choice([None, b"", b"\0", b"v", draw.randbytes(draw.randrange(40))])

    def headers() -> tuple[tuple[bytes, bytes | None], ...]:
        if draw.random() < 0.4:
            return ()
        names = [*NAMES, draw.randbytes(draw.randrange(6))]
        return tuple((draw.choice(names), data()) for _ in range(draw.choice([1, 2, 5, 40])))

    times = (-1, 0, 1, 1_700_000_000_000, FARTHEST)
    return [OddRecord(data(), data(), draw.choice(times), headers()) for _ in range(count)]


def write(writer: RecordWriter, tp: TopicPartition, records: Sequence[OddRecord]) -> None:
    """Each in a batch of its own where the times of two would not fit into one."""
    for record in records:
        writer.write(
            tp.topic,
            [record.key],
            [record.value],
            np.array([record.time], np.int64),
            tp.partition,
            [[(RawName(name), value) for name, value in record.headers]],
        )
        writer.flush(30)
