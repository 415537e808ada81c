"""A function of the user as a sink: `KStream.for_each_batch`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from everflow.sinks.batch import SinkBatch


@dataclass(frozen=True)
class BatchFunction:
    """A `Sink`. ``takes``: the rows alone (1), or the batch, too; ``frame``: of pandas."""

    fn: Callable[..., Any]
    takes: int
    frame: bool

    def write(self, batch: SinkBatch) -> None:
        """Call the function; raises what it raises."""
        rows = batch.rows.to_pandas() if self.frame else batch.rows
        self.fn(rows, batch) if self.takes == 2 else self.fn(rows)
