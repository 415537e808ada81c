"""The driver's side of a resident step: requests out, results in, over a socket.

The Spark job runs until it is stopped."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from everflow.runtime.commit.batch import (
    BatchFailedError,
    BatchFailure,
    BatchRequest,
    BatchResult,
    as_line,
    from_line,
)
from everflow.runtime.worker.serve import STOP
from everflow.sockets import TooLargeError, read_line, remove_socket_folder, socket_folder
from everflow.spark.job import ServingJob, SparkJobError

START_TIMEOUT_S = 60.0
END_TIMEOUT_S = 30.0
_POLL_S = 0.5


class ResidentJob:
    """One resident step. Owned by one stream thread. ``serve(socket path)`` makes the Spark job;
    ``classify`` turns a job's failure into a BatchFailedError."""

    def __init__(
        self,
        serve: Callable[[str], ServingJob],
        classify: Callable[[SparkJobError], BatchFailedError],
    ) -> None:
        self._classify = classify
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
        """Why the step ended; its Spark job says so a moment later."""
        self._close()
        self._job.join(END_TIMEOUT_S)
        if self._job.failure is not None:
            return self._classify(self._job.failure)
        return BatchFailedError(
            BatchFailure(kind="worker", error="the resident step ended without a word")
        )

    def _close(self) -> None:
        for opened in (self._lines, self._connection, self._listener):
            try:
                if opened is not None:
                    opened.close()
            except OSError:
                pass  # what could not be flushed has nobody to read it
        self._lines, self._connection = None, None
        remove_socket_folder(self._folder)
