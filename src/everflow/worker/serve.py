"""The resident step: one Spark task that serves many micro-batches (design note 004).

A Spark job per micro-batch costs more than the work of a small one, and the way of a large one from
Kafka through the JVM costs more than reading it in columns here. So the worker reads its input
itself: it asks the driver for the next request over a socket, runs the plan's operators, answers
with the result, and goes on until the driver stops it.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import Any

from everflow.clock import in_utc
from everflow.kafka.reading.range_reader import RangeReader
from everflow.kafka.reading.record_columns import LogColumns
from everflow.memory import SpareMemory, of_this_process, trim_of_libc
from everflow.protocol.messages import (
    FAILED,
    BatchRequest,
    BatchResult,
    as_line,
    from_line,
    timed,
)
from everflow.records import TopicPartition
from everflow.sockets import read_line
from everflow.topology.batches import BatchInput
from everflow.worker.columns import ColumnClient
from everflow.worker.decode import LogDecoder
from everflow.worker.failures import failure_of
from everflow.worker.isolation import Isolated, Trial, stores_of, trial_of
from everflow.worker.ports import announce, clients_of
from everflow.worker.task_step import TaskStep

# --- reading --------------------------------------------------------------------------------------


READ_TIMEOUT_S = 30.0
QUIET_S = 10.0
"""How long a partition that does not answer may hold up tasks beside its own."""
Read = Mapping[TopicPartition, LogColumns]


@dataclass(frozen=True, kw_only=True)
class LogInput:
    """Reads the ranges of a micro-batch; picklable. ``ahead_bytes``: how much is fetched ahead of
    the next request (`WorkerMemory.ahead`)."""

    decoder: LogDecoder
    read_committed: bool
    ahead_bytes: int

    def reader(self, client: Mapping[str, Any]) -> RangeReader:
        """Connections of one thread, for `read`. ``client``: librdkafka properties
        (`WorkerClients.reader`)."""
        return RangeReader(
            client,
            self.read_committed,
            self.decoder.headers,
            ahead_bytes=self.ahead_bytes,
        )

    def warm_up(self, reader: RangeReader) -> None:
        """Connect before there is anything to read."""
        reader.warm_up({source.topic for source in self.decoder.sources}, READ_TIMEOUT_S)

    def read(self, reader: RangeReader, request: BatchRequest) -> tuple[BatchRequest, Read]:
        """The request with the ranges that were read, and their records. Raises what
        `RangeReader.read` raises."""
        quiet_s = None if request.patient else QUIET_S
        read = reader.read(
            request.ranges,
            READ_TIMEOUT_S,
            request.most_bytes,
            quiet_s,
            request.latest_ends,
            request.topic_ids,
        )
        of_this_process(os.getpid()).begin(sum(found.nbytes for found in read.columns.values()))
        return replace(request.ending(read.ends), silent=read.silent), read.columns


def settle(request: BatchRequest) -> None:
    """The work of a request is done; where it had no records, this process holds none."""
    if not request.ranges:
        of_this_process(os.getpid()).settle()


# --- serving --------------------------------------------------------------------------------------


STOP = b"stop\n"


class _Reader:
    """The connections of a step, for as long as it serves. The first request opens them, since it
    names the gate, which has the settings."""

    def __init__(self, log: LogInput, opened: ExitStack) -> None:
        self._log, self._opened = log, opened
        self._reader: RangeReader | None = None

    def of(self, request: BatchRequest) -> RangeReader:
        if self._reader is None:
            self._reader = self._log.reader(clients_of(request).reader)
            self._opened.callback(self._reader.close)
        return self._reader


@dataclass(frozen=True, kw_only=True)
class ResidentStep:
    """The only task of the long-running job; picklable. ``channel`` reads the socket's path (a
    local property)."""

    step: TaskStep
    input: LogInput
    columns: str
    """The socket where Spark's code computes Columns; empty where none needs it."""
    channel: Callable[[], str]

    def __call__(self) -> None:
        """Serve requests until the driver stops it, or until one has failed: the driver then ends
        this process."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(self.channel())
            lines = connection.makefile("rwb")
            with ExitStack() as opened:
                opened.enter_context(in_utc())
                columns = opened.enter_context(closing(ColumnClient(self.columns)))
                reader = _Reader(self.input, opened)
                spare = SpareMemory(trim_of_libc())
                while line := read_line(lines, "the driver's request for a batch"):
                    if line == STOP:
                        break
                    result = self._result(line, reader, columns)
                    lines.write(as_line(result))
                    lines.flush()
                    if result.outcome == FAILED:
                        break
                    spare.trim_if_due()

    def _result(self, line: bytes, reader: _Reader, columns: ColumnClient) -> BatchResult:
        try:
            return self._serve(from_line(line), reader, columns)
        except Exception as error:
            return BatchResult(outcome=FAILED, failure=failure_of(error))

    def _serve(self, request: BatchRequest, readers: _Reader, columns: ColumnClient) -> BatchResult:
        timings = {"began": time.time() * 1000}
        with timed(timings, "read"):
            announce(request)
            reader = readers.of(request)
            if not request.tasks:  # the thread has none yet, so no record waits
                self.input.warm_up(reader)
            request, read = self.input.read(reader, request)

        def compute(request: BatchRequest, decoded: BatchInput, trial: Trial | None) -> BatchResult:
            step = self.step if trial is None else trial_of(self.step, trial)
            return step.run(request, decoded, columns, timings)

        isolated = Isolated(self.input.decoder, stores_of(self.step), timings)
        result = isolated.run(request, read, compute)
        settle(request)
        return result


def refuse(error: Exception, channel: Callable[[], str]) -> None:
    """Answer the first request with ``error``: there is no step that could serve it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(channel())
        lines = connection.makefile("rwb")
        if read_line(lines, "the driver's first request") != STOP:
            lines.write(as_line(BatchResult(outcome=FAILED, failure=failure_of(error))))
            lines.flush()
