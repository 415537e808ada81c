"""What an exception handler is told of a record, and what it may answer (KIP-1033)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

DESERIALIZATION = "deserialization"
PROCESSING = "processing"
PRODUCTION = "production"
STAGES = (DESERIALIZATION, PROCESSING, PRODUCTION)


class Response(Enum):
    """What happens to a record that failed. Whatever it is, nothing of a record that is left out
    stays: no output, no store change.

    ``FAIL``: the instance stops with the error. ``CONTINUE``: the record is left out, and counted
    in ``dropped-records-total``. ``DEAD_LETTER``: left out, and written to the topic that
    ``errors.dead.letter.queue.topic.name`` names, in the transaction of its micro-batch; FAIL where
    it names none. ``RETRY``: the micro-batch is run again, until ``task.timeout.ms`` is over.
    A clock's call that is left out is counted there, and is no letter, as it has no record.
    """

    FAIL = "fail"
    CONTINUE = "continue"
    DEAD_LETTER = "dead-letter"
    RETRY = "retry"


@dataclass(frozen=True, kw_only=True)
class ErrorHandlerContext:
    """Where a record failed, or a processor's method that a clock called, which has no record.

    Attributes:
        stage: ``deserialization``, ``processing`` or ``production``.
        topic, partition, offset, timestamp (ms), headers: of the record that was read; of a clock's
            call None, -1, -1, the time that it was called with, and none.
        source_raw_key, source_raw_value: its bytes as they came.
        processor_node_id: the node that failed; None where it is not known.
        task_id: of the task that reads it, ``0_3``.
        attempt: how often its micro-batch was run before.
    """

    stage: str
    topic: str | None
    partition: int
    offset: int
    timestamp: int
    headers: Sequence[tuple[str, bytes | None]]
    source_raw_key: bytes | None
    source_raw_value: bytes | None
    processor_node_id: str | None
    task_id: str
    attempt: int

    @property
    def subject(self) -> str:
        """What failed, for people: the record's place, or the call."""
        if self.topic is not None:
            return f"record {self.topic}-{self.partition}@{self.offset}"
        return f"the clock's call at {self.timestamp} ms in node {self.processor_node_id}"


class ExceptionHandler(Protocol):
    """A function, or an object that can be called; picklable; called in Python workers, each of
    which has its own copy and one thread."""

    def __call__(self, context: ErrorHandlerContext, error: BaseException) -> Response:
        """What to do. The same record may be asked about again, when its micro-batch is run again.
        What it raises stops the instance."""
