"""Runs micro-batches in workers: a request in, a result or a classified failure out."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

from everflow.handlers import Handlers
from everflow.instance.thread.columns import ColumnsOfPlan, packed
from everflow.protocol.messages import (
    BatchFailedError,
    BatchFailure,
    BatchRequest,
    BatchResult,
    as_line,
    from_line,
)
from everflow.sockets import TooLargeError, read_line, remove_socket_folder, socket_folder
from everflow.spark.job import ServingJob, SparkGoneError
from everflow.topology.plan import PhysicalPlan
from everflow.travel.pickled_objects import PickledObjects
from everflow.worker.calls import SideBySide
from everflow.worker.decode import LogDecoder
from everflow.worker.failures import failure_of_text, says
from everflow.worker.serve import STOP, LmdbAccess, ResidentStep, WorkerPorts, wanted
from everflow.worker.sink import KafkaSink
from everflow.worker.task_step import TaskStep


def pack(
    plan: PhysicalPlan,
    columns: ColumnsOfPlan,
    *,
    handlers: Handlers,
    layouts: str,
    partitions: Mapping[str, int],
    read_committed: bool,
    ahead_bytes: int,
    retained_bytes: int,
) -> PickledObjects:
    """The resident step of a plan, with the program's variables as they are now; no secrets, as
    Spark serialises it. ``retained_bytes``: limit of `RetainedPages`. TopologyError."""
    sink = KafkaSink(handlers.topic, WorkerPorts(retained_bytes), layouts)
    resident = ResidentStep(
        step=TaskStep.of(
            plan,
            columns.prepared,
            LmdbAccess(),
            sink,
            handlers=handlers,
            calls=SideBySide(wanted),
            partitions=partitions,
        ),
        decoder=LogDecoder.of(plan, handlers, partitions),
        read_committed=read_committed,
        ahead_bytes=ahead_bytes,
        columns=columns.path,
    )
    return packed(resident, plan)


START_TIMEOUT_S = 60.0
END_TIMEOUT_S = 30.0
_POLL_S = 0.5


class ThreadJob:
    """A resident step: a Spark task that serves a stream thread's batches over a socket, begun with
    the first and after each failed one. Owned by that thread. ``serve(path)`` makes the job."""

    def __init__(self, serve: Callable[[str], ServingJob]) -> None:
        self._serve = serve
        self._job: ServingJob | None = None
        self._lines: Any = None
        self._pid = 0
        self._opened = ExitStack()

    def run(self, request: BatchRequest, serves: Callable[[int], bool]) -> BatchResult:
        """Blocks; ``serves``: see `stream_thread.Job`. BatchFailedError: batch, worker or Spark
        failed; it may be committed (D6)."""
        if self._lines is None:
            self._connect()
        if not serves(self._pid):
            self.close()
            text = f"batch {request.batch_id} is not wanted any more: nothing was written"
            raise BatchFailedError(BatchFailure(kind="worker", error=text))
        try:
            self._lines.write(as_line(request))
            self._lines.flush()
            line = read_line(self._lines, "the answer of a batch's worker")
        except TooLargeError as error:
            self.close()
            raise BatchFailedError(BatchFailure(kind="worker", error=str(error))) from error
        except OSError:
            line = b""
        if not line.endswith(b"\n"):  # nothing, or the half of an answer: its worker was killed
            raise self._failed()
        result: BatchResult = from_line(line)
        if result.failure is not None:
            self.close()
            raise BatchFailedError(result.failure)
        return result

    def close(self) -> None:
        """End the step after the batch in flight; idempotent, no error for a job that failed."""
        with suppress(OSError):  # it has ended already
            if self._lines is not None:
                self._lines.write(STOP)
                self._lines.flush()
        self._end()

    def _connect(self) -> None:
        folder, opened = socket_folder(), self._opened
        opened.callback(remove_socket_folder, folder)
        try:
            listener = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            listener.bind(path := str(folder / "r"))
            listener.listen(1)
            listener.settimeout(_POLL_S)
            self._job = self._serve(path)
            self._job.start()
            connection = self._accepted(listener, self._job)
        except BaseException:
            self._end()
            raise
        opened.enter_context(connection)
        lines = opened.enter_context(connection.makefile("rwb"))
        pid = read_line(lines, "a worker's process id")
        if not pid.endswith(b"\n"):  # it was killed meanwhile
            raise self._failed()
        self._pid, self._lines = int(pid), lines

    def _accepted(self, listener: socket.socket, job: ServingJob) -> socket.socket:
        waited_s = 0.0
        while True:
            try:
                return listener.accept()[0]
            except TimeoutError:
                waited_s += _POLL_S
                if job.ended.is_set() or waited_s > START_TIMEOUT_S:
                    raise self._failed() from None

    def _failed(self) -> BatchFailedError:
        """The reason why the step ended, which its Spark job reports a moment later."""
        job = self._end()
        error = None if job is None else job.failure
        if error is None:
            text = "the resident step ended without an error"
            return BatchFailedError(BatchFailure(kind="worker", error=text))
        text = str(error)
        if isinstance(error, SparkGoneError):
            failure = BatchFailure(kind="spark-gone", error=says(text), details=text)
        else:
            failure = failure_of_text(text)
            failure = replace(failure, details=f"{failure.details}\n{error.stack}")
        return BatchFailedError(failure)

    def _end(self) -> ServingJob | None:
        job, self._job, self._lines = self._job, None, None
        with suppress(OSError):  # no reader is left for unsent bytes
            self._opened.close()
        if job is not None:
            job.join(END_TIMEOUT_S)
        return job
