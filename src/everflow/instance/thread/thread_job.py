"""Runs micro-batches in workers: a request in, a result or a classified failure out."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark import SparkContext

from everflow.errors import EverflowError
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
from everflow.spark.job import ServingJob, SparkGoneError, SparkJobError, local_property
from everflow.topology.plan import PhysicalPlan
from everflow.travel.parcel import Parcel
from everflow.worker.decode import LogDecoder
from everflow.worker.failures import failure_of_text, says
from everflow.worker.ports import LmdbAccess, WorkerPorts
from everflow.worker.serve import STOP, LogInput, ResidentStep, refuse
from everflow.worker.sink import KafkaSink
from everflow.worker.task_step import TaskStep

CHANNEL_PROPERTY = "everflow.resident"


@dataclass(frozen=True, kw_only=True)
class JobSettings:
    """``handlers``: of records that fail; ``held_bytes``: limit of a worker's changed pages of
    stores (`RetainedPages`). No secrets: all of it is serialised through Spark."""

    read_committed: bool
    held_bytes: int
    handlers: Handlers = field(default_factory=Handlers)
    layouts: str = ""
    ahead_bytes: int
    partitions: Mapping[str, int]
    """Partition count of each input topic."""


def resident_channel() -> str:
    path = local_property(CHANNEL_PROPERTY)
    if path is None:
        raise RuntimeError("no channel in the job's local properties")
    return path


@dataclass(frozen=True)
class PackedResident:
    """A packed `ResidentStep`: it is serialised as one parcel, so that its functions share the
    program's variables."""

    work: Parcel

    def __call__(self) -> None:
        try:
            resident: ResidentStep = self.work.open()
        except EverflowError as error:  # this worker lacks something that it needs
            refuse(error, resident_channel)
        else:
            resident()


def pack(plan: PhysicalPlan, settings: JobSettings, columns: ColumnsOfPlan) -> Parcel:
    """The resident step of a plan, with the program's variables as they are now. TopologyError with
    the user's line for a value that cannot be serialised."""
    sink = KafkaSink(settings.handlers.topic, WorkerPorts(settings.held_bytes), settings.layouts)
    step = TaskStep.of(plan, columns.prepared, LmdbAccess(), sink, handlers=settings.handlers)
    log = LogInput(
        decoder=LogDecoder.of(plan, settings.handlers, settings.partitions),
        read_committed=settings.read_committed,
        ahead_bytes=settings.ahead_bytes,
    )
    resident = ResidentStep(step=step, input=log, columns=columns.path, channel=resident_channel)
    return packed(resident, plan)


class ThreadJob:
    """Runs a stream thread's micro-batches in a resident step, which begins with the first batch
    and after each failed one, and goes on when tasks change. Owned by that thread."""

    def __init__(self, context: SparkContext, work: Parcel, number: int, name: str) -> None:
        self._context, self._work = context, work
        self._number, self._name = number, name
        self._resident: ResidentJob | None = None

    def run(self, request: BatchRequest) -> BatchResult:
        """Run one micro-batch; blocks. BatchFailedError: the batch failed, and it is not known
        whether it was committed (D6)."""
        if self._resident is None:
            self._resident = ResidentJob(self._serving)
        try:
            result = self._resident.run(request)
            if result.failure is not None:
                raise BatchFailedError(result.failure)
        except BatchFailedError:
            self.close()
            raise
        return result

    def close(self) -> None:
        resident, self._resident = self._resident, None
        if resident is not None:
            resident.stop()

    def _serving(self, path: str) -> ServingJob:
        return ServingJob(
            self._context,
            self._number,
            self._name,
            PackedResident(self._work),
            {CHANNEL_PROPERTY: path},
        )


def _classified(error: SparkJobError) -> BatchFailedError:
    if isinstance(error, SparkGoneError):
        return BatchFailedError(
            BatchFailure(kind="spark-gone", error=says(str(error)), details=str(error))
        )
    failure = failure_of_text(str(error))
    return BatchFailedError(replace(failure, details=f"{failure.details}\n{error.stack}"))


# --- the resident step ----------------------------------------------------------------------------

START_TIMEOUT_S = 60.0
END_TIMEOUT_S = 30.0
_POLL_S = 0.5


class ResidentJob:
    """The driver's side of a resident step, a Spark task that serves batches until it is stopped:
    requests out, results in, over a socket. Owned by one stream thread. ``serve(socket path)``
    makes the Spark job."""

    def __init__(self, serve: Callable[[str], ServingJob]) -> None:
        self._folder = socket_folder()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._connection: socket.socket | None = None
        self._lines: Any = None
        try:
            path = str(self._folder / "r")
            self._listener.bind(path)
            self._listener.listen(1)
            self._listener.settimeout(_POLL_S)
            self._job = serve(path)
            self._job.start()
        except BaseException:
            self._listener.close()
            remove_socket_folder(self._folder)
            raise

    def run(self, request: BatchRequest) -> BatchResult:
        """Serve one micro-batch; blocks. An answer that says FAILED is the step's last.
        BatchFailedError if its worker or Spark fails."""
        if self._lines is None:
            self._connect()
        try:
            self._lines.write(as_line(request))
            self._lines.flush()
            line = read_line(self._lines, "the answer of a batch's worker")
        except TooLargeError as error:
            self.stop()
            raise BatchFailedError(BatchFailure(kind="worker", error=str(error))) from error
        except OSError:
            line = b""
        if not line.endswith(b"\n"):  # nothing, or the half of an answer: its worker was killed
            raise self._failed()
        result: BatchResult = from_line(line)
        return result

    def stop(self) -> None:
        """End the step after the batch in flight, so that its worker is free; idempotent, never
        raises for a job that failed."""
        try:
            if self._lines is not None:
                self._lines.write(STOP)
                self._lines.flush()
        except OSError:
            pass  # it has ended already
        self._close()
        self._job.join(END_TIMEOUT_S)

    def _connect(self) -> None:
        waited = 0.0
        while True:
            try:
                self._connection, _ = self._listener.accept()
                break
            except TimeoutError:
                waited += _POLL_S
                if self._job.ended.is_set() or waited > START_TIMEOUT_S:
                    raise self._failed() from None
        self._lines = self._connection.makefile("rwb")

    def _failed(self) -> BatchFailedError:
        """The reason why the step ended, which its Spark job reports a moment later."""
        self._close()
        self._job.join(END_TIMEOUT_S)
        if self._job.failure is not None:
            return _classified(self._job.failure)
        return BatchFailedError(
            BatchFailure(kind="worker", error="the resident step ended without an error")
        )

    def _close(self) -> None:
        for opened in (self._lines, self._connection, self._listener):
            try:
                if opened is not None:
                    opened.close()
            except OSError:
                pass  # no reader is left for unsent bytes
        self._lines, self._connection = None, None
        remove_socket_folder(self._folder)
