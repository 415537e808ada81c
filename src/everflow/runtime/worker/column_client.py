"""Asks the instance's JVM to compute Columns of a batch (`spark.columns`; note 014)."""

from __future__ import annotations

import socket
import struct
from typing import BinaryIO, NamedTuple

import pyarrow as pa

from everflow.errors import RetriableError
from everflow.sockets import TooLargeError, require_size

_NUMBERS = struct.Struct(">ii")
_NUMBER = struct.Struct(">i")
_FAILED = -1
SLICE_BYTES = 8_000_000


class ColumnsFailed(Exception):
    """Spark could not compute a row. ``text`` is the JVM's; ``row`` None where it is no row's
    fault."""

    def __init__(self, text: str, row: int | None) -> None:
        super().__init__(text.partition("\n")[0])
        self.text, self.row = text, row


class Ticket(NamedTuple):
    """For what is prepared when it is first asked for: a socket of the driver, and what to say
    there (`spark.prepared_later`)."""

    door: str
    number: int


class ColumnClient:
    """One connection, made when it is first needed; owned by one thread. ``path``: where; empty
    where only tickets are asked for.

    RetriableError where the JVM has hung up: whether it comes back is for the driver to know.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._numbers: dict[Ticket, int] = {}
        self._connection: socket.socket | None = None
        self._answers: BinaryIO | None = None

    def close(self) -> None:
        """Hang up. Idempotent."""
        for opened in (self._answers, self._connection):
            if opened is not None:
                opened.close()

    def run(self, number: int | Ticket, rows: pa.RecordBatch, made: pa.Schema) -> pa.Table:
        """What the segment of this number makes of ``rows``, row by row. Raises ColumnsFailed.

        They go in slices: the JVM holds a request and its answer some times over.
        """
        if isinstance(number, Ticket):
            number = self._redeemed(number)
        size = max(1, SLICE_BYTES * rows.num_rows // max(1, rows.nbytes))
        answers = []
        for start in range(0, rows.num_rows, size):
            try:
                answers.append(self._computed(number, rows.slice(start, size), made))
            except ColumnsFailed as failure:
                row = None if failure.row is None else start + failure.row
                raise ColumnsFailed(failure.text, row) from None
        return pa.Table.from_batches(answers, made)

    def _computed(self, number: int, rows: pa.RecordBatch, made: pa.Schema) -> pa.RecordBatch:
        return pa.ipc.read_record_batch(pa.py_buffer(self.ask(number, rows.serialize())), made)

    def ask(self, number: int, message: pa.Buffer | memoryview) -> bytes:
        """The answer to a message of any kind. Raises ColumnsFailed."""
        data = memoryview(message)
        try:
            require_size(data.nbytes, "what is sent to the JVM that computes Columns")
        except TooLargeError as error:
            raise ColumnsFailed(f"{error}; a record is too large for them", None) from error
        try:
            connection = self._connected()
            connection.sendall(_NUMBERS.pack(number, data.nbytes))
            connection.sendall(message)
            (size,) = _NUMBER.unpack(self._read(_NUMBER.size))
            if size != _FAILED:
                return self._read(size)
            row, size = _NUMBERS.unpack(self._read(_NUMBERS.size))
            text = self._read(size).decode()
        except TooLargeError as error:
            raise RetriableError(
                f"the JVM that computes Columns is not understood: {error}"
            ) from error
        except OSError as error:
            said = f"the JVM that computes Columns has hung up: {error}"
            raise RetriableError(said) from error
        raise ColumnsFailed(text, None if row == _FAILED else row)

    def _redeemed(self, ticket: Ticket) -> int:
        """The number that the driver gives for it; blocks while that is prepared."""
        known = self._numbers.get(ticket)
        if known is not None:
            return known
        try:
            with (
                socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door,
                door.makefile("rb") as answer,
            ):
                door.connect(ticket.door)
                door.sendall(_NUMBER.pack(ticket.number))
                number, size = _NUMBERS.unpack(answer.read(_NUMBERS.size))
                require_size(size, "the driver's answer at the door of Columns")
                text = answer.read(size).decode()
        except (OSError, struct.error) as error:
            raise RetriableError(f"the driver has hung up: {error}") from error
        if number == _FAILED:
            raise ColumnsFailed(text, None)
        self._path = text
        return self._numbers.setdefault(ticket, number)

    def _connected(self) -> socket.socket:
        if self._connection is None:
            self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._connection.connect(self._path)
            self._answers = self._connection.makefile("rb")
        return self._connection

    def _read(self, size: int) -> bytes:
        assert self._answers is not None
        require_size(size, "an answer")
        found = self._answers.read(size)
        if len(found) < size:
            raise ConnectionResetError(f"{len(found)} of {size} bytes came")
        return found
