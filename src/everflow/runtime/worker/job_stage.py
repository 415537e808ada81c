"""Levels of a micro-batch that is a Spark job, run one after the other by one of its workers.

Rows leave a worker only where Spark has to compute Columns between two levels (design note 038).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from everflow.clock import in_utc
from everflow.runtime.commit.batch import BatchRequest
from everflow.runtime.step.task_step import TaskStep, failed
from everflow.runtime.step.timings import timed
from everflow.runtime.worker.isolation import Isolated, Trial, sound, stores_of, trial_of
from everflow.runtime.worker.log_input import LogInput, Read, read_by_kept, settle
from everflow.runtime.worker.resident_segments import TwinSegment, through_levels
from everflow.topology.hops import HopError, HopInput, HopSchema


class _NoColumns:
    """A `ColumnComputer` where there is none: what Arrow leaves is left to another job."""

    def run(self, number: object, rows: pa.RecordBatch, made: pa.Schema) -> pa.Table:
        raise AssertionError("a stage asks nobody for Columns")

    def ask(self, number: int, message: pa.Buffer | memoryview) -> bytes:
        raise AssertionError("a stage asks nobody for Columns")

    def close(self) -> None:
        """Nothing is kept."""


_NO_COLUMNS = _NoColumns()


@dataclass(frozen=True, kw_only=True)
class JobStage:
    """One stage; picklable.

    ``input``: what the first one reads and decodes; None: Spark hands over the hop rows of the
    first of the ``steps``. ``segments``: what Arrow computes before each of the steps.
    ``hop_out``: what the last of them writes; None for the plan's last.
    """

    input: LogInput | None
    segments: tuple[TwinSegment, ...]
    steps: tuple[TaskStep, ...]
    hop_out: HopSchema | None
    request: Callable[[], BatchRequest]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """What Spark's ``mapInArrow`` runs; a failure is told by the last row."""
        try:
            with in_utc():
                yield from self._rows(batches)
        except HopError:  # a stage before this one failed, and Spark says why
            raise
        except Exception as error:
            yield from failed(error, self.hop_out)

    def _rows(self, batches: Iterable[pa.RecordBatch]) -> list[pa.RecordBatch]:
        timings = {"began": time.time() * 1000}
        if self.input is None:
            request, hop = self.steps[0].read(batches, timings)
            return sound(self.steps, lambda steps: self._through(steps, request, hop, timings))
        for _ in batches:  # a worker that leaves input unread is not used again
            pass
        with timed(timings, "read"):
            request, read = self._read(self.input)

        def compute(
            request: BatchRequest, hop: HopInput, trial: Trial | None
        ) -> list[pa.RecordBatch]:
            steps = self.steps if trial is None else trial_of(self.steps, trial)
            return self._through(steps, request, hop, timings)

        isolated = Isolated(self.input.decoder, stores_of(self.steps), timings)
        rows = isolated.run(request, read, compute)
        settle(request)
        return rows

    def _through(
        self,
        steps: tuple[TaskStep, ...],
        request: BatchRequest,
        hop: HopInput,
        timings: dict[str, float],
    ) -> list[pa.RecordBatch]:
        return through_levels(self.segments, steps, _NO_COLUMNS, request, hop, timings)

    def _read(self, log: LogInput) -> tuple[BatchRequest, Read]:
        request = self.request()
        last = self.steps[-1]
        last.announce(request, last.level)
        return read_by_kept(log, request)
