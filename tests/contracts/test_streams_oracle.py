"""Operators are what Kafka Streams' are; and what holds them to it sees where they are not.

A slice of `./run oracle`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from everflow.operators.joins import StreamStreamJoin, StreamTableJoin, TableTableJoin
from everflow.operators.joins.joined_table import JoinedTable
from everflow.operators.joins.waiting_records import WaitingRecords
from everflow.operators.suppress import _Buffer
from everflow.operators.table import TableSpec
from everflow.operators.table_changes import TableChanges
from oracle.streams import compare

pytestmark = pytest.mark.spark

WITHIN = 200


def test_operators_are_what_kafka_streams_has(spark: SparkSession) -> None:
    *_, report = compare(cases=100, seed=11)
    assert report.differing == []
    assert report.equal >= 100


def _narrower(join: Callable[..., Any]) -> Callable[..., Any]:
    """A left record meets what is one ms nearer."""

    def joined(self: StreamStreamJoin, *given: Any) -> Any:
        nearer = replace(self.left, back_ms=self.left.back_ms - 1)
        return join(replace(self, left=nearer), *given)

    return joined


def _waiting_longer(buffer: _Buffer) -> _Buffer:
    buffer.spec = replace(buffer.spec, wait_ms=buffer.spec.wait_ms + 1)
    return buffer


MUTATIONS: dict[str, tuple[type, str, Callable[[Any], Any]]] = {
    "a window without its begin": (StreamStreamJoin, "join_tasks", _narrower),
    "what has met waits on": (WaitingRecords, "_forget_met", lambda _: lambda self, task: None),
    "a table as it was before": (
        JoinedTable,
        "when",
        lambda when: (
            lambda self, asking, updates, *rest, **first: when(
                self, asking, updates.take(updates.seq[:0]), *rest, **first
            )
        ),
    ),
    "a deletion always": (
        TableSpec,
        "_visible",
        lambda _: lambda self, batch, tasks: (batch, tasks),
    ),
    "keyless records are dropped": (
        StreamTableJoin,
        "join_tasks",
        lambda join: (
            lambda self, left, *rest: join(
                self, left.take(left.key.is_valid().to_numpy(False).nonzero()[0]), *rest
            )
        ),
    ),
    "a window closes late": (
        _Buffer,
        "_load",
        lambda load: lambda self, updates: load(_waiting_longer(self), updates),
    ),
    "what was is not taken back": (
        TableChanges,
        "join_tasks",
        lambda join: (
            lambda self, left, right, *rest: join(
                self, left.with_columns(value=pa.nulls(len(left), left.value.type)), right, *rest
            )
        ),
    ),
    "the earlier time": (
        TableTableJoin,
        "_in_order",
        lambda merge: (
            lambda self, left, right: merge(
                self, replace(left, timestamp=left.timestamp - 1), right
            )
        ),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_operator_is_found(
    name: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, method, broken = MUTATIONS[name]
    monkeypatch.setattr(owner, method, broken(getattr(owner, method)))
    assert any(report.differing for report in compare(WITHIN, seed=1)), name
