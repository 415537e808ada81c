"""Which partitions a sink's records go to, where the user says it (KIP-837).

One number, several (the record is written to each), none (it is dropped), or no answer: then the
key says it. How many partitions there are is known where the record is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from everflow.columns.key_partitions import BY_HASH
from everflow.operators.user_code import require_users
from everflow.records import EdgeBatch, Int64
from everflow.runtime.step.step_functions import RecordFailure, raise_all
from everflow.serdes.windowed import python_keys
from everflow.topology.partitioners import OF_WINDOWS, partitions_of
from everflow.topology.plan import SinkOp, Source
from everflow.user_program import shown

BY_KEY = -1
"""In place of a partition: the key says it."""


@dataclass(frozen=True, kw_only=True)
class Partitions:
    """Of one sink's records of a micro-batch. ``said``: what a Column has said of each; None where
    a function is asked, or the bytes of the ``keys``."""

    op: SinkOp
    sources: Mapping[int, Source]
    batch: EdgeBatch
    said: pa.Array | None
    keys: pa.Array
    every_failure: bool = False

    def of(self, topic: str, rows: Int64 | None, count: int) -> tuple[Int64, Int64]:
        """Rows, and the partition of each, for the records in ``rows`` (None: all) that go to a
        topic of ``count`` partitions; a row is there once for each of its partitions. RecordFailure
        for a record of which none can be told; ``every_failure``: for all of them."""
        wanted = np.arange(len(self.batch), dtype=np.int64) if rows is None else rows
        by = self.op.partitioner
        if isinstance(by, str) and by in (*BY_HASH, OF_WINDOWS):
            keys = self.keys.take(pa.array(wanted))
            found_by_hash = partitions_of(by, topic, keys, self.op.key_serde, count)
            found_by_hash[keys.is_null().to_numpy(zero_copy_only=False)] = BY_KEY
            return wanted, found_by_hash
        if self.said is not None and pa.types.is_integer(self.said.type):
            numbers = self.said.fill_null(BY_KEY).to_numpy(zero_copy_only=False)[wanted]
            known = self.said.is_valid().to_numpy(zero_copy_only=False)[wanted]
            wrong = np.flatnonzero(known & ((numbers < 0) | (numbers >= count)))
            if len(wrong):
                told = wrong if self.every_failure else wrong[:1]
                rows_of = zip(wanted[told].tolist(), numbers[told].tolist(), strict=True)
                raise_all([self._wrong(row, number, topic, count) for row, number in rows_of])
            return wanted, numbers.astype(np.int64, copy=False)
        found_rows: list[int] = []
        found: list[int] = []
        failures: list[RecordFailure] = []
        for row, answer in self._answers(topic, wanted, count):
            if isinstance(answer, RecordFailure):
                failures.append(answer)
            else:
                try:
                    numbers_of = self._numbers(row, answer, topic, count)
                except RecordFailure as failure:
                    failures.append(failure)
                else:
                    found_rows += [row] * len(numbers_of)
                    found += numbers_of
            if failures and not self.every_failure:
                break
        if failures:
            raise_all(failures)
        return np.array(found_rows, np.int64), np.array(found, np.int64)

    def _answers(self, topic: str, rows: Int64, count: int) -> Iterable[tuple[int, Any]]:
        """What is said of each row: its partition, several, or why it fails."""
        if self.said is not None:
            yield from zip(rows.tolist(), self.said.take(pa.array(rows)).to_pylist(), strict=True)
            return
        fn = self.op.partitioner
        assert callable(fn)
        keys, values = python_keys(self.batch.key), self.batch.value.to_pylist()
        for row in rows.tolist():
            try:
                answer = fn(topic, keys[row], values[row], count)
            except BaseException as error:
                require_users(error)
                answer = RecordFailure.of(self.op, self.sources, self.batch, row, error)
            yield row, answer

    def _numbers(self, row: int, answer: Any, topic: str, count: int) -> list[int]:
        if answer is None:
            return [BY_KEY]
        several = isinstance(answer, list | tuple | set | frozenset)
        numbers = sorted(set(answer)) if several else [answer]
        for number in numbers:
            whole = isinstance(number, int | np.integer) and not isinstance(number, bool)
            if not whole or not 0 <= number < count:
                raise self._wrong(row, number, topic, count)
        return [int(number) for number in numbers]

    def _wrong(self, row: int, number: Any, topic: str, count: int) -> RecordFailure:
        error = ValueError(
            f"partitioner= gave {shown(number)}; {topic} has the partitions 0 to {count - 1} "
            f"(none: an empty list; as the key says: None)"
        )
        return RecordFailure.of(self.op, self.sources, self.batch, row, error)
