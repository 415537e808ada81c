"""Computes Columns of a plan by Spark jobs over rows at hand.

The truth that the service without jobs is held to (note 014).
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from everflow.spark.columns import column_rows, computed_slots, struct_type
from everflow.spark.session import get_session
from everflow.topology.plan import PhysicalPlan


class JobColumns:
    """A `ColumnComputer` for the Columns of a plan, whose numbers are their places in
    `PhysicalPlan.columns`. Uses the shared session; owned by the thread that makes it."""

    def __init__(self, plan: PhysicalPlan) -> None:
        self._plan, self._session = plan, get_session()

    def run(self, number: Any, rows: pa.RecordBatch, made: pa.Schema) -> pa.Table:
        """See `ColumnComputer`; raises PySparkException for what fails."""
        op = self._plan.columns[number]
        schema = struct_type(column_rows(self._plan, op).given_schema())
        frame = self._session.createDataFrame(pa.Table.from_batches([rows]), schema)
        # One partition: the rows keep their order.
        return computed_slots(frame.coalesce(1), self._plan, op).toArrow()

    def ask(self, number: int, message: pa.Buffer | memoryview) -> bytes:
        """Of nobody: a job calls Python functions itself."""
        raise AssertionError("a Spark job calls Python functions itself")

    def close(self) -> None:
        """Nothing is kept."""
