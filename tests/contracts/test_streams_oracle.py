"""Operators are what Kafka Streams' are; and what holds them to it sees where they are not.

A slice of `./run oracle`.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from everflow.operators.aggregates.aggregate import PythonCogroup
from everflow.operators.aggregates.sliding_aggregate import SlidingBook
from everflow.operators.joins import StreamStreamJoin, StreamTableJoin, table_table
from everflow.operators.joins.joined_table import JoinedTable, TableEntries
from everflow.operators.joins.stream_stream import WaitingRecords
from everflow.operators.joins.stream_table import StreamGlobalJoin
from everflow.operators.joins.table_table import ForeignKeys
from everflow.operators.processors.stores import KeyValueStore
from everflow.operators.suppress import _Buffer
from everflow.operators.table import TableChanges, TableSpec, VersionedTableSpec
from everflow.records import EdgeBatch
from everflow.state.left_out import KeptEntry
from everflow.topology.graph import Inputs
from oracle.book import KEPT_FILTER
from oracle.streams import compare

pytestmark = pytest.mark.spark

WITHIN = 200


def test_operators_are_what_kafka_streams_has(spark: SparkSession) -> None:
    *_, report = compare(cases=100, seed=11)
    assert report.differing == []
    assert report.equal >= 100


def _narrower(join: Callable[..., Any]) -> Callable[..., Any]:
    """A left record meets what is one ms nearer."""

    def joined(self: StreamStreamJoin, inputs: Inputs) -> Any:
        left, narrower = self.sides[True], replace(self)
        nearer = replace(left, back_ms=left.back_ms - 1)
        vars(narrower)["sides"] = {**self.sides, True: nearer}
        return join(narrower, inputs)

    return joined


def _waiting_longer(buffer: _Buffer) -> _Buffer:
    buffer.spec = replace(buffer.spec, wait_ms=buffer.spec.wait_ms + 1)
    return buffer


def _later(join: Callable[..., Any]) -> Callable[..., Any]:
    """A record asks one ms later."""

    def entries(self: JoinedTable, asking: EdgeBatch, inputs: Inputs) -> Any:
        return join(self, replace(asking, timestamp=asking.timestamp + 1), inputs)

    return entries


def _never_behind(process: Callable[..., Any]) -> Callable[..., Any]:
    """No version is from the past."""

    def processed(self: VersionedTableSpec, inputs: Inputs) -> Any:
        (batch,) = inputs.sides
        times = np.maximum.accumulate(np.maximum(batch.timestamp, max(inputs.stream_times)))
        return process(self, inputs._replace(sides=(replace(batch, timestamp=times),)))

    return processed


def _without_the_right_window(begin: Callable[..., Any]) -> Callable[..., Any]:
    """No window begins behind an earlier record."""

    def began(self: SlidingBook, key: int, start: int, time: int, *given: Any) -> None:
        if start == time - self._difference:
            begin(self, key, start, time, *given)

    return began


def _of_the_first(call: Callable[..., Any]) -> Callable[..., Any]:
    """All streams have one aggregator."""

    def called(self: PythonCogroup, key: Any, value: dict[str, Any], aggregate: Any) -> Any:
        first = {"which": 0, "v0": value[f"v{value['which']}"]}
        return call(self, key, first, aggregate)

    return called


def _with_left(inputs: Inputs, made: Callable[[EdgeBatch], EdgeBatch]) -> Inputs:
    left, *others = inputs.sides
    return inputs._replace(sides=(made(left), *others))


def _without_old_values(batch: EdgeBatch) -> EdgeBatch:
    old = batch.with_columns(value=pa.nulls(len(batch), batch.value.type))
    return replace(batch, old=old)


def _keyed(batch: EdgeBatch) -> EdgeBatch:
    return batch.take(batch.key.is_valid().to_numpy(False).nonzero()[0])


QUICK = ("a window without its begin", "a processor's store keeps what is deleted")
"""Those of every run; the others with ``--all``."""
MUTATIONS: dict[str, tuple[str, Any, str, Callable[[Any], Any]]] = {
    "what was skipped comes back with a lost disk": (
        "table",
        KeptEntry,
        "of",
        lambda of: lambda _, stored, now_ms: of(-1, stored, now_ms),
    ),
    "a window without its begin": ("inner join of streams", StreamStreamJoin, "run", _narrower),
    "what has met waits on": (
        "outer join of streams",
        WaitingRecords,
        "_forget_met",
        lambda _: lambda self, task: None,
    ),
    "a late row is dropped": (
        "outer join of streams",
        StreamStreamJoin,
        "_late",
        lambda _: lambda self, batch: {},
    ),
    "a sliding window less": ("sliding windows", SlidingBook, "_begin", _without_the_right_window),
    "a version is never late": ("versioned table", VersionedTableSpec, "run", _never_behind),
    "a table one ms later": ("join with grace", JoinedTable, "entries_for", _later),
    "a global table without entries": (
        "join with global table",
        StreamGlobalJoin,
        "_entries",
        lambda entries: (
            lambda self, *given: pa.nulls(len(found := entries(self, *given)), found.type)
        ),
    ),
    "an old foreign key is not told": (
        "foreign-key join",
        ForeignKeys,
        "run",
        lambda join: lambda self, inputs: join(self, _with_left(inputs, _without_old_values)),
    ),
    "one aggregator for all streams": ("cogroup", PythonCogroup, "__call__", _of_the_first),
    "a processor's store keeps what is deleted": (
        "processor",
        KeyValueStore,
        "delete",
        lambda _: lambda self, key: self.get(key),
    ),
    "a table as it was before": (
        "join with table",
        JoinedTable,
        "when",
        lambda when: (
            lambda self, asking, updates, *rest, **first: when(
                self, asking, updates.take(updates.seq[:0]), *rest, **first
            )
        ),
    ),
    "a deletion always": (
        KEPT_FILTER,
        TableSpec,
        "_visible",
        lambda _: lambda self, batch, inputs: batch,
    ),
    "keyless records are dropped": (
        "join with table",
        StreamTableJoin,
        "run",
        lambda join: lambda self, inputs: join(self, _with_left(inputs, _keyed)),
    ),
    "a window closes late": (
        "suppress",
        _Buffer,
        "_load",
        lambda load: lambda self, updates: load(_waiting_longer(self), updates),
    ),
    "what was is not taken back": (
        "grouped table",
        TableChanges,
        "run",
        lambda join: lambda self, inputs: join(self, _with_left(inputs, _without_old_values)),
    ),
    "the earlier time": (
        "join of tables",
        table_table,
        "_results",
        lambda results: (
            lambda changes, *rest: results(
                replace(changes, other=TableEntries(changes.other.values, changes.other.times - 1)),
                *rest,
            )
        ),
    ),
}
assert all(hasattr(owner, method) for _, owner, method, _ in MUTATIONS.values())


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in MUTATIONS],
)
def test_a_broken_operator_is_found(
    name: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, owner, method, broken = MUTATIONS[name]
    monkeypatch.setattr(owner, method, broken(getattr(owner, method)))
    assert any(report.differing for report in compare(WITHIN, seed=1, having=kind)), name
