"""A resident step whose driver asks for nothing lets its reader rest (note 018)."""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from everflow.errors import RetriableError
from everflow.kafka.reading.range_reader import RangeReader
from everflow.kafka.reading.taps import Taps
from everflow.records import TopicPartition
from everflow.runtime.commit.batch import COMMITTED, BatchResult, WorkerClients, as_line
from everflow.runtime.worker import serve
from everflow.runtime.worker.serve import STOP, ResidentStep

WAIT_S = 60.0


class Reader:
    """Notes its rests; the first one fails where it is told to."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure, self.rested, self.closed = failure, threading.Event(), False

    def rest(self) -> None:
        self.rested.set()
        if self.failure is not None:
            raise self.failure

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("failure", [None, RetriableError("away")])
def test_a_reader_rests_until_the_next_request(
    tmp_path: Path, failure: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is opened by the first one, which says whom to ask for its settings."""
    reader, asked = Reader(failure), []
    told = WorkerClients({"bootstrap.servers": "b:1"})
    monkeypatch.setattr(serve, "clients_of", lambda request: told)
    monkeypatch.setattr(ResidentStep, "_serve", lambda _, got, own, columns: own.of(got) and got)

    def opened(client: Mapping[str, Any]) -> Reader:
        asked.append(client)
        return reader

    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(tmp_path / "r"))
    listener.listen(1)
    listener.settimeout(WAIT_S)
    given: Any = SimpleNamespace(reader=opened)
    nothing: Any = SimpleNamespace()
    path = str(tmp_path / "r")
    step = ResidentStep(step=nothing, input=given, columns="", channel=lambda: path)
    served = threading.Thread(target=step, daemon=True)
    served.start()
    connection, _ = listener.accept()
    with listener, connection:
        for reason in ("first", "second"):
            request = as_line(BatchResult(outcome=COMMITTED, reason=reason))
            connection.sendall(request)
            assert connection.makefile("rb").readline() == request
        assert reader.rested.wait(WAIT_S)
        connection.sendall(STOP)
        served.join(WAIT_S)
    assert not served.is_alive()
    assert reader.closed, "what a rest meets is met by the next range, too: it ends no step"
    assert asked == [told.reader]


def test_a_reader_does_not_rest_while_requests_come() -> None:
    reader = Reader()
    given: Any = SimpleNamespace()
    step = ResidentStep(step=given, input=given, columns="", channel=lambda: "")
    mine, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with mine, other:
        lines = mine.makefile("rwb")
        for number in range(3):
            other.sendall(b"%d\n" % number)
            assert step._request(mine, lines, reader) == b"%d\n" % number  # type: ignore[arg-type]
    assert not reader.rested.is_set()


class LetGo:
    """A tap that notes where it was sent."""

    positions: Mapping[TopicPartition, int] = {}

    def __init__(self) -> None:
        self.sent: list[Mapping[TopicPartition, int]] = []

    def go_to(self, starts: Mapping[TopicPartition, int], timeout_s: float = 0.0) -> None:
        self.sent.append(starts)


def test_a_reader_that_rests_has_no_log_for_which_librdkafka_asks() -> None:
    client: Any = LetGo()
    RangeReader({}, "g", True, taps=Taps(None, client)).rest()
    assert client.sent == [{}]
