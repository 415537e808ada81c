"""Records that a micro-batch leaves out, and the answers of their handlers (note 041).

The decoder asks the handlers, since it has the bytes of the record as they came.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from everflow.errors import RetriableError
from everflow.handlers import ErrorHandlerContext, Handlers, Response
from everflow.protocol.messages import BatchFailure, BatchRequest
from everflow.records import EdgeBatch, TaskId, TopicPartition
from everflow.topology.plan import DEAD_LETTER_TYPE, Source
from everflow.worker.failures import DescribedFailure, RecordFailure, SparkSays, stack_of

Place = tuple[str, int, int]
"""Topic, partition, offset."""


class FailedElsewhere(Exception):
    """Stands for an error of another process or of Spark: its text is all there is of it."""


class Fault(NamedTuple):
    """Why a record is left out; ``cause`` where the error was raised in this process."""

    failure: BatchFailure
    cause: BaseException | None

    @property
    def error(self) -> BaseException:
        if isinstance(self.cause, RecordFailure):
            return self.cause.__cause__ or self.cause
        if self.cause is None or isinstance(self.cause, SparkSays):
            return FailedElsewhere(self.failure.error)
        return self.cause

    @property
    def stack(self) -> str:
        """Stack of the error, with the user's lines; empty where another process raised it."""
        return "" if self.error.__traceback__ is None else stack_of(self.error)


@dataclass
class Judge:
    """Asks the handlers about each failed record once, in one attempt of a micro-batch."""

    handlers: Handlers = field(default_factory=Handlers)
    attempt: int = 0
    wall_clock_ms: int = 0
    """Of the batch."""
    _aside: dict[Place, Fault] = field(default_factory=dict)
    _known: dict[Place, Response] = field(default_factory=dict)

    @staticmethod
    def of(handlers: Handlers, request: BatchRequest) -> Judge:
        """With what earlier attempts failed on."""
        judge = Judge(handlers, request.attempt, request.wall_clock_ms)
        for failure in request.aside:
            judge.set_aside(Fault(failure, None))
        return judge

    def set_aside(self, fault: Fault) -> bool:
        """Leaves the record out from the next decoding on, if its handler says so. False for one
        that is left out already."""
        assert fault.failure.record is not None
        place = fault.failure.record.place
        known = place in self._aside
        self._aside[place] = fault
        return not known

    def in_vain(self, fault: Fault) -> bool:
        """True if the record stops the instance without a question to its handler."""
        record = fault.failure.record
        return record is None or not self.handlers.may_continue(fault.failure.stage, record.node)

    def aside(self, source: Source, raw: EdgeBatch) -> dict[int, Fault]:
        """The rows of a source's records that are left out, with their faults."""
        found: dict[int, Fault] = {}
        for (topic, partition, offset), fault in self._aside.items():
            if topic == source.topic:
                rows = np.flatnonzero((raw.partition == partition) & (raw.offset == offset))
                found.update(dict.fromkeys(rows.tolist(), fault))
        return found

    def letters(self, source: Source, raw: EdgeBatch, faults: dict[int, Fault]) -> EdgeBatch:
        """The records of these rows on the dead letter slot, each with what its handler says.

        Raises what a record failed with that is to stop the instance and is not undecodable (those
        stop it if they are consumed), and RetriableError where a handler says RETRY.
        """
        rows = sorted(faults)
        bad = raw.take(np.array(rows, np.int64))
        answers = [
            self._answered(source, bad, at, faults[row], task_of(source, bad, at))
            for at, row in enumerate(rows)
        ]
        columns = [bad.value, *(pa.array(column, pa.string()) for column in _columns(answers))]
        value = pa.StructArray.from_arrays(columns, fields=list(DEAD_LETTER_TYPE.value))
        return bad.with_columns(value=value)

    def _answered(
        self, source: Source, bad: EdgeBatch, at: int, fault: Fault, task: TaskId
    ) -> tuple[str, str, str]:
        failure = fault.failure
        place = (source.topic, int(bad.partition[at]), int(bad.offset[at]))
        node = failure.record.node if failure.record is not None else source.node
        if place not in self._known:
            context = ErrorHandlerContext(
                stage=failure.stage,
                topic=source.topic,
                partition=place[1],
                offset=place[2],
                timestamp=int(bad.timestamp[at]),
                headers=_headers(bad, at),
                source_raw_key=bad.key[at].as_py(),
                source_raw_value=bad.value[at].as_py(),
                processor_node_id=node,
                task_id=str(task),
                attempt=self.attempt,
            )
            self._known[place] = self.handlers.answer(context, fault.error)
        response = self._known[place]
        if response is Response.RETRY:
            raise RetriableError(
                f"{failure.error} (record {'-'.join(map(str, place[:2]))}@{place[2]}; its handler "
                f"says RETRY)",
                [TopicPartition(*place[:2])],
            ) from fault.cause
        if response is Response.FAIL and failure.kind != "undecodable":
            raise _judged(fault)
        about = {
            "exception": failure.exception or failure.error.partition(":")[0],
            "stacktrace": failure.details or fault.stack,
            "stage": failure.stage,
            "node": node or "",
            "task": str(task),
            "attempt": self.attempt,
        }
        return failure.error, response.value, json.dumps(about)


def _judged(fault: Fault) -> Exception:
    """The error of a record that stops the instance."""
    failure = replace(fault.failure, judged=True)
    if isinstance(fault.cause, RecordFailure):
        fault.cause.failure = failure
        return fault.cause
    return DescribedFailure(failure)


def task_of(source: Source, batch: EdgeBatch, row: int) -> TaskId:
    """The task that reads the record."""
    return TaskId(source.subtopology, int(batch.partition[row]))


def _columns(answers: Sequence[tuple[str, str, str]]) -> list[list[str]]:
    return [[one[part] for one in answers] for part in range(3)]


def _headers(batch: EdgeBatch, row: int) -> list[tuple[str, bytes | None]]:
    if batch.headers is None:
        return []
    return [(header["key"], header["value"]) for header in batch.headers[row].as_py() or ()]
