"""The workers' side of the commit gate: ask the driver before anything is committed (D6).

Every failure to get an answer is an "abort": a worker without a driver must not commit.
"""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

from everflow.runtime.commit.batch import WorkerClients
from everflow.sockets import MOST_LINE_BYTES, TooLargeError, read_line, require_size


class GateAnswer(NamedTuple):
    """The driver's answer. ``group_metadata`` (exactly-once) goes into send_offsets; ``deferred``
    (at-least-once): the driver holds the offsets back until the group takes commits again."""

    ok: bool
    reason: str = ""
    group_metadata: bytes | None = None
    deferred: bool = False

    @staticmethod
    def of(answer: Mapping[str, Any]) -> GateAnswer:
        """What the driver said (`commit_gate.answer`)."""
        metadata = answer.get("group_metadata")
        return GateAnswer(
            ok=bool(answer.get("ok")),
            reason=str(answer.get("reason", "")),
            group_metadata=None if metadata is None else base64.b64decode(metadata),
            deferred=bool(answer.get("deferred", False)),
        )


class GateClient:
    """One connection to the gate; not shared between threads. Use as a context manager."""

    def __init__(self, path: str, timeout_s: float = 30.0) -> None:
        self._path = path
        self._timeout_s = timeout_s
        self._socket: socket.socket | None = None
        self._lines: BinaryIO | None = None

    def __enter__(self) -> GateClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def hello(self, batch: str, slot: str, pid: int) -> bool:
        """Report the process that serves a hop, so that the driver can kill it. False: the driver
        is gone or the batch is not current; the caller must not go on."""
        answer = self._ask({"op": "hello", "batch": batch, "slot": slot, "pid": pid})
        return bool(answer.get("ok"))

    def clients(self) -> WorkerClients:
        """Settings of the clients that this process opens. ConnectionError where the driver is
        gone."""
        answer = self._ask({"op": "clients"})
        if not answer.get("ok"):
            raise ConnectionError(str(answer.get("reason")))
        return WorkerClients(answer["reader"], answer["producer"])

    def commit(self, batch: str, offsets: Sequence[tuple[str, int, int, str]]) -> GateAnswer:
        """May ``batch`` commit these ``(topic, partition, offset, metadata)``? Answered once per
        batch id."""
        return GateAnswer.of(
            self._ask(
                {"op": "commit", "batch": batch, "offsets": [list(offset) for offset in offsets]}
            )
        )

    def close(self) -> None:
        """Close the connection; the next question opens a new one."""
        for opened in (self._lines, self._socket):
            if opened is not None:
                opened.close()
        self._socket = self._lines = None

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        data = json.dumps(question, separators=(",", ":")).encode() + b"\n"
        try:
            require_size(len(data), "the question to the commit gate", MOST_LINE_BYTES)
            connection, lines = self._connect()
            connection.sendall(data)
            line = read_line(lines, "the commit gate's answer")
            if not line.endswith(b"\n"):
                raise ConnectionError("the gate closed the connection")
            answer: dict[str, Any] = json.loads(line)
            return answer
        except TooLargeError as error:
            self.close()
            return {"ok": False, "reason": f"too large: {error}"}
        except (OSError, ValueError) as error:
            self.close()
            return {"ok": False, "reason": f"driver gone: {error}"}

    def _connect(self) -> tuple[socket.socket, BinaryIO]:
        if self._socket is None or self._lines is None:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.settimeout(self._timeout_s)
            try:
                connection.connect(self._path)
            except OSError:
                connection.close()
                raise
            self._socket, self._lines = connection, connection.makefile("rb")
        return self._socket, self._lines
