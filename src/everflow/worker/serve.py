"""The resident step: one Spark task that serves many micro-batches (design note 004).

A Spark job per micro-batch costs more than the work of a small one. So the worker asks the driver
for the next request over a socket, reads its input itself, in columns, runs the plan's operators,
answers with the result, and goes on until the driver stops it.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace

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

READ_TIMEOUT_S = 30.0
QUIET_S = 10.0
"""How long a partition that does not answer may hold up tasks beside its own."""
STOP = b"stop\n"


@dataclass(kw_only=True)
class ResidentStep:
    """The only task of the long-running job; picklable. ``ahead_bytes``: how much is fetched ahead
    of the next request (`WorkerMemory.ahead`). ``columns``: the socket where Spark's code computes
    Columns; empty where none needs it."""

    step: TaskStep
    decoder: LogDecoder
    read_committed: bool
    ahead_bytes: int
    columns: str
    _reader: RangeReader | None = field(default=None, init=False)

    def __call__(self, path: str) -> None:
        """Serve the requests from this socket until the driver stops it, or one has failed: the
        driver then ends this process."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(path)
            lines = connection.makefile("rwb")
            with in_utc(), closing(ColumnClient(self.columns)) as columns, ExitStack() as opened:
                spare = SpareMemory(trim_of_libc())
                while line := read_line(lines, "the driver's request for a batch"):
                    if line == STOP:
                        break
                    try:
                        result = self._result(from_line(line), columns, opened)
                    except Exception as error:
                        result = BatchResult(outcome=FAILED, failure=failure_of(error))
                    lines.write(as_line(result))
                    lines.flush()
                    if result.outcome == FAILED:
                        break
                    spare.trim_if_due()

    def _result(
        self, request: BatchRequest, columns: ColumnClient, opened: ExitStack
    ) -> BatchResult:
        memory, timings = of_this_process(os.getpid()), {"began": time.time() * 1000}
        with timed(timings, "read"):
            announce(request)
            reader = self._connected(request, opened)
            if not request.tasks:  # the thread has none yet, so no record waits
                reader.warm_up({source.topic for source in self.decoder.sources}, READ_TIMEOUT_S)
            request, read = self._read(reader, request)
            memory.begin(sum(found.nbytes for found in read.values()))

        def compute(request: BatchRequest, decoded: BatchInput, trial: Trial | None) -> BatchResult:
            step = self.step if trial is None else trial_of(self.step, trial)
            return step.run(request, decoded, columns, timings)

        isolated = Isolated(self.decoder, stores_of(self.step), timings)
        result = isolated.run(request, read, compute)
        if not request.ranges:
            memory.settle()  # the process holds no records
        return result

    def _connected(self, request: BatchRequest, opened: ExitStack) -> RangeReader:
        """The first request opens it, since it names the gate, which has the settings."""
        if self._reader is None:
            client = clients_of(request).reader
            reader = self._reader = RangeReader(
                client, self.read_committed, self.decoder.headers, ahead_bytes=self.ahead_bytes
            )
            opened.callback(reader.close)
        return self._reader

    def _read(
        self, reader: RangeReader, request: BatchRequest
    ) -> tuple[BatchRequest, Mapping[TopicPartition, LogColumns]]:
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
        return replace(request.ending(read.ends), silent=read.silent), read.columns


def refuse(error: Exception, path: str) -> None:
    """Answer the first request with ``error``: there is no step that could serve it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(path)
        lines = connection.makefile("rwb")
        if read_line(lines, "the driver's first request") != STOP:
            lines.write(as_line(BatchResult(outcome=FAILED, failure=failure_of(error))))
            lines.flush()
