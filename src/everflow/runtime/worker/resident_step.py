"""The resident step: one Spark task that serves many micro-batches (design note 004).

A Spark job per micro-batch costs more than the work of a small one, and the way of a large one from
Kafka through the JVM costs more than reading it in columns here. So the worker reads its input
itself: it asks the driver for the next request over a socket, runs the plan's operators, answers
with the result, and goes on until it is told to stop.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass

from everflow.clock import in_utc
from everflow.kafka.reading.range_reader import RangeReader
from everflow.memory.spare import SpareMemory, trim_of_libc
from everflow.runtime.commit.batch import FAILED, BatchRequest, BatchResult
from everflow.runtime.step.step_failure import failure_of
from everflow.runtime.step.task_step import TaskStep
from everflow.runtime.step.timings import timed
from everflow.runtime.worker.column_client import ColumnClient
from everflow.runtime.worker.isolation import Isolated, Trial, stores_of, trial_of
from everflow.runtime.worker.log_input import QUIET_S, LogInput, settle
from everflow.runtime.worker.worker_ports import announce, clients_of
from everflow.sockets import read_line
from everflow.topology.hops import HopInput

STOP = "stop"


class _Reader:
    """What a step reads by, for as long as it serves: opened by the first request, which says whom
    to ask for the settings."""

    def __init__(self, log: LogInput, opened: ExitStack) -> None:
        self._log, self._opened = log, opened
        self._reader: RangeReader | None = None

    def of(self, request: BatchRequest) -> RangeReader:
        """The reader."""
        if self._reader is None:
            self._reader = self._log.reader(clients_of(request).reader)
            self._opened.callback(self._reader.close)
        return self._reader


@dataclass(frozen=True, kw_only=True)
class ResidentStep:
    """What the resident job's only task does; picklable. ``channel`` reads the socket's path (a
    local property)."""

    step: TaskStep
    input: LogInput
    columns: str
    """The socket where Spark's code computes Columns; empty where none needs it."""
    channel: Callable[[], str]

    def __call__(self) -> None:
        """Serve requests until told to stop, or until one has failed: the driver then ends this
        process."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(self.channel())
            lines = connection.makefile("rwb")
            with ExitStack() as opened:
                opened.enter_context(in_utc())
                columns = opened.enter_context(closing(ColumnClient(self.columns)))
                reader = _Reader(self.input, opened)
                spare = SpareMemory(trim_of_libc())
                while line := read_line(lines, "the driver's request for a batch"):
                    text = line.decode()
                    if text.strip() == STOP:
                        break
                    answer, going_on = self._answer(text, reader, columns)
                    lines.write(answer.encode() + b"\n")
                    lines.flush()
                    if not going_on:
                        break
                    spare.look()

    def _answer(self, text: str, reader: _Reader, columns: ColumnClient) -> tuple[str, bool]:
        try:
            return self._serve(text, reader, columns), True
        except Exception as error:
            return BatchResult(outcome=FAILED, failure=failure_of(error).to_dict()).to_json(), False

    def _serve(self, text: str, readers: _Reader, columns: ColumnClient) -> str:
        request = BatchRequest.from_json(text)
        timings = {"began": time.time() * 1000}
        with timed(timings, "read"):
            announce(request)
            reader = readers.of(request)
            if not request.tasks:  # the thread has none yet, so nobody waits
                self.input.warm_up(reader)
            request, read = self.input.read(reader, request)

        def compute(request: BatchRequest, decoded: HopInput, trial: Trial | None) -> BatchResult:
            reader.require_ids(QUIET_S)  # the brokers answer while the records are decoded
            step = self.step if trial is None else trial_of(self.step, trial)
            return step.run(request, decoded, columns, timings)

        isolated = Isolated(self.input.decoder, stores_of(self.step), timings)
        answer = isolated.run(request, read, compute)
        settle(request)
        return answer.to_json()


def refuse(error: Exception, channel: Callable[[], str]) -> None:
    """Answer the first request with ``error``: there is no step that could serve it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(channel())
        lines = connection.makefile("rwb")
        if read_line(lines, "the driver's first request").decode().strip() != STOP:
            lines.write(
                BatchResult(outcome=FAILED, failure=failure_of(error).to_dict()).to_json().encode()
                + b"\n"
            )
            lines.flush()
