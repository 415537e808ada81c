"""What `bench growth` sends, and what must come out of it: every key once in a scattered order (the
fill), then records whose keys are drawn evenly. Pure but for `load`."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.load.latency_schedule import scattered
from bench.systems import COUNT
from bench.topics import draw_keys, key_of
from bench.verify import WrongOutputError

LATEST = "latest"
"""A table: the state holds each key's last value, and the output every change."""
NUMBER_DIGITS = 10
KEY_HEAD = len(key_of(0)) - 6

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Input:
    """Keys, the records after the fill, and the bytes of a value (10 at least)."""

    program: str
    keys: int
    records: int
    value_bytes: int

    def fill(self) -> Iterator[tuple[bytes, bytes]]:
        """Each key once."""
        for number in range(self.keys):
            yield self._row(scattered(number, self.keys), number)

    def updates(self) -> Iterator[tuple[bytes, bytes]]:
        """The records behind the fill."""
        for number, index in enumerate(draw_keys(self.records, self.keys), start=self.keys):
            yield self._row(index, number)

    def _row(self, index: int, number: int) -> tuple[bytes, bytes]:
        return key_of(index).encode(), (b"%010d" % number).ljust(self.value_bytes, b"x")

    def finals(self) -> Int64Array:
        """The last result of each key: its count, or the number of its last record."""
        drawn = np.array(draw_keys(self.records, self.keys), dtype=np.int64)
        if self.program == COUNT:
            return 1 + np.bincount(drawn, minlength=self.keys)
        finals = np.empty(self.keys, dtype=np.int64)
        numbers = np.arange(self.keys, dtype=np.int64)
        finals[[scattered(number, self.keys) for number in numbers.tolist()]] = numbers
        # Where an index comes twice, the last value stays.
        finals[drawn] = self.keys + np.arange(self.records, dtype=np.int64)
        return finals

    def result(self, value: bytes) -> int:
        """A count, or the number in a value that is as it was sent."""
        if self.program == COUNT:
            (count,) = struct.unpack(">q", value)
            return int(count)
        head = value[:NUMBER_DIGITS]
        if value != head.ljust(self.value_bytes, b"x"):
            raise WrongOutputError(f"a value is not what was sent: {value[:40]!r}")
        return int(head)


def check(made: Input, output: Iterable[tuple[bytes, bytes]], where: str) -> None:
    """WrongOutputError unless each key's results only rise and end where they must."""
    found: list[Any] = [-1] * made.keys
    for key, value in output:
        index, result = int(key[KEY_HEAD:]), made.result(value)
        if result <= found[index]:
            raise WrongOutputError(f"{where}: key {key!r} went from {found[index]} to {result}")
        found[index] = result
    wrong = np.flatnonzero(np.array(found, dtype=np.int64) != made.finals())
    if len(wrong):
        first = int(wrong[0])
        raise WrongOutputError(
            f"{where}: {len(wrong):,} of {made.keys:,} keys end wrongly, {key_of(first)} with "
            f"{found[first]} instead of {made.finals()[first]}"
        )
