"""A resident step opens its reader with the first request, which says whom to ask for the
settings, and closes it at its end."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from everflow.protocol.messages import COMMITTED, BatchResult, WorkerClients, as_line
from everflow.worker import serve
from everflow.worker.serve import STOP, ResidentStep

WAIT_S = 60.0


class Reader:
    closed = False

    def close(self) -> None:
        self.closed = True


def test_a_reader_is_opened_by_the_first_request_and_closed_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, asked = Reader(), []
    told = WorkerClients({"bootstrap.servers": "b:1"})
    monkeypatch.setattr(serve, "clients_of", lambda request: told)

    def answer(
        step: ResidentStep, got: Any, columns: object, opened: contextlib.ExitStack
    ) -> BatchResult:
        step._connected(got, opened)
        result: BatchResult = got
        return result

    monkeypatch.setattr(ResidentStep, "_result", answer)

    def opened(client: Mapping[str, Any], *_: object, **__: object) -> Reader:
        asked.append(client)
        return reader

    monkeypatch.setattr(serve, "RangeReader", opened)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(tmp_path / "r"))
    listener.listen(1)
    listener.settimeout(WAIT_S)
    nothing: Any = SimpleNamespace(headers=False)
    path = str(tmp_path / "r")
    step = ResidentStep(
        step=nothing,
        decoder=nothing,
        read_committed=True,
        ahead_bytes=1,
        columns="",
    )
    served = threading.Thread(target=step, args=(path,), daemon=True)
    served.start()
    connection, _ = listener.accept()
    with listener, connection:
        for reason in ("first", "second"):
            request = as_line(BatchResult(outcome=COMMITTED, reason=reason))
            connection.sendall(request)
            assert connection.makefile("rb").readline() == request
        connection.sendall(STOP)
        served.join(WAIT_S)
    assert not served.is_alive()
    assert reader.closed
    assert asked == [told.reader]
