"""Each of our sockets refuses what is larger than anything that is sent there on purpose."""

import asyncio
import io
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from everflow import sockets
from everflow.errors import FatalError, RetriableError
from everflow.instance.commit_gate import CommitGate, GateBackend, GateBook
from everflow.instance.thread.thread_job import ThreadJob
from everflow.protocol.messages import BatchFailedError
from everflow.records import MemberMetadata
from everflow.sockets import MOST_MESSAGE_BYTES, TooLargeError, read_line, require_size
from everflow.testing import kafka_proxy
from everflow.topology.plan import Ticket
from everflow.worker import serve as resident
from everflow.worker.columns import ColumnClient, ColumnsFailed
from everflow.worker.serve import GateClient, PackedResident, ResidentStep

MOST = 1_000
WAIT_S = 60.0
ROWS = pa.RecordBatch.from_pydict({"a": [1, 2, 3]})


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "MOST_LINE_BYTES", MOST)


@contextmanager
def listening(path: Path, serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """One connection is served on a thread of its own."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen(1)
    listener.settimeout(WAIT_S)

    def accept() -> None:
        connection, _ = listener.accept()
        with connection:
            serve(connection)

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield str(path)
    finally:
        thread.join(WAIT_S)
        listener.close()


def read_to_the_end(connection: socket.socket) -> None:
    """Until the other side has closed: who hangs up earlier may be noticed before its answer."""
    while connection.recv(MOST):
        pass


def test_a_line_is_bounded_and_the_end_of_the_stream_is_none() -> None:
    lines = io.BytesIO(b"x" * (MOST - 1) + b"\n" + b"y" * MOST + b"\n")
    assert read_line(lines, "a line") == b"x" * (MOST - 1) + b"\n"
    with pytest.raises(TooLargeError, match=r"1,001 bytes.*1,000"):
        read_line(lines, "a line")
    assert read_line(io.BytesIO(b"half"), "a line") == b"half"
    assert read_line(io.BytesIO(), "a line") == b""


def test_a_length_is_bounded_on_both_sides() -> None:
    require_size(0, "it")
    require_size(MOST_MESSAGE_BYTES, "it")
    with pytest.raises(TooLargeError, match=r"1,073,741,825 bytes.*1,073,741,824"):
        require_size(MOST_MESSAGE_BYTES + 1, "it")
    with pytest.raises(TooLargeError, match=r"length.*-2"):
        require_size(-2, "it")


@pytest.fixture
def gate() -> Iterator[str]:
    member = MemberMetadata(4, "member-1", None)
    server = CommitGate(
        book=GateBook(), backend=GateBackend(lambda: member, lambda _: b"", lambda _: True)
    )
    yield server.start()
    server.close()


def test_the_gate_closes_on_who_asks_too_much(gate: str, caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(WAIT_S)
        asking.connect(gate)
        asking.sendall(b"x" * (MOST + 1))
        assert asking.recv(1) == b"", "it has hung up, and waits for no end of the line"
    assert re.search("question .* gate has 1,001 bytes", caplog.text)
    with closing(GateClient(gate)) as client:
        assert client.commit("i.0.0", []).reason.startswith("unknown-batch")


def test_no_commit_is_larger_than_a_gate_hears(gate: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resident, "MOST_LINE_BYTES", MOST)
    with closing(GateClient(gate)) as client:
        answer = client.commit("i.0.0", [("topic", 0, 1, "m" * MOST)])
        assert not answer.ok
        assert re.match("too large: .* question .* has 1,0", answer.reason)
        assert client.commit("i.0.0", []).reason.startswith("unknown-batch")


def test_a_worker_reads_no_answer_without_an_end(tmp_path: Path) -> None:
    def serve(connection: socket.socket) -> None:
        connection.recv(MOST)  # or the question meets a connection that has ended
        connection.sendall(b"x" * (MOST + 1))

    with listening(tmp_path / "g", serve) as path, closing(GateClient(path)) as client:
        answer = client.commit("i.0.0", [])
    assert not answer.ok
    assert answer.reason.startswith("too large: the commit gate's answer has 1,001 bytes")


@dataclass
class Job:
    """A Spark job of which nothing is known."""

    ended: threading.Event = field(default_factory=threading.Event)
    failure: Any = None

    def start(self) -> None:
        """See `ServingJob`."""

    def join(self, timeout_s: float) -> None:
        """See `ServingJob`."""


def test_a_batch_whose_answer_is_too_large_has_failed() -> None:
    workers = []

    def serve(path: str) -> Any:
        def work() -> None:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.connect(path)
                connection.sendall(b"4321\n")
                connection.makefile("rb").readline()
                connection.sendall(b"x" * (MOST + 1) + b"\n")

        workers.append(threading.Thread(target=work, daemon=True))
        workers[0].start()
        return Job()

    job = ThreadJob(serve)
    request: Any = "a request"
    with pytest.raises(BatchFailedError) as failed:
        job.run(request, lambda pid: pid == 4321)
    assert re.match("the answer .* worker has 1,001 bytes", failed.value.failure.error)
    job.close()
    workers[0].join(WAIT_S)


def too_large(connection: socket.socket) -> None:
    connection.recv(MOST)  # the worker's process id
    connection.sendall(b"x" * (MOST + 1) + b"\n")


def test_a_worker_refuses_a_request_that_is_too_large(tmp_path: Path) -> None:
    nothing: Any = None
    with listening(tmp_path / "r", too_large) as path:
        step = ResidentStep(
            step=nothing, decoder=nothing, read_committed=True, ahead_bytes=1, columns=""
        )
        with pytest.raises(TooLargeError, match=r"request .* batch has 1,001 bytes"):
            step(path)
    assert step._reader is None, "nothing is connected to for a request that is refused"
    with (
        listening(tmp_path / "f", too_large) as path,
        pytest.raises(TooLargeError, match="the driver's first request"),
    ):
        PackedResident(nothing, path)._refuse(FatalError("no step"))


@pytest.mark.parametrize("size", [-2, MOST_MESSAGE_BYTES + 1])
def test_an_answer_of_the_jvm_is_bounded(tmp_path: Path, size: int) -> None:
    """-1 says that it failed; any other negative length would read until the JVM hangs up."""

    def serve(connection: socket.socket) -> None:
        connection.recv(8)
        connection.sendall(struct.pack(">i", size))
        read_to_the_end(connection)

    with (
        listening(tmp_path / "c", serve) as path,
        closing(ColumnClient(path)) as client,
        pytest.raises(RetriableError, match="understood"),
    ):
        client.run(1, ROWS, ROWS.schema)


def test_too_large_for_the_jvm_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "MOST_MESSAGE_BYTES", 10)
    with (
        closing(ColumnClient(str(tmp_path / "none"))) as client,
        pytest.raises(ColumnsFailed) as failed,
    ):
        client.run(1, ROWS, ROWS.schema)
    assert "10 are the most; " in failed.value.text


@pytest.mark.parametrize("size", [-2, MOST_MESSAGE_BYTES + 1])
def test_an_answer_at_the_door_is_bounded(tmp_path: Path, size: int) -> None:
    def serve(connection: socket.socket) -> None:
        connection.recv(4)
        connection.sendall(struct.pack(">i", size))
        read_to_the_end(connection)

    with (
        listening(tmp_path / "d", serve) as path,
        closing(ColumnClient("")) as client,
        pytest.raises(RetriableError, match="driver"),
    ):
        client.run(Ticket(path, 0), ROWS, ROWS.schema)


@pytest.mark.parametrize("size", [-1, MOST_MESSAGE_BYTES + 1])
def test_the_proxy_ends_a_connection_whose_frames_are_none(size: int) -> None:
    async def read(data: bytes) -> bytes | None:
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        return await asyncio.wait_for(kafka_proxy._frame(reader), WAIT_S)

    assert asyncio.run(read(struct.pack(">i", size))) is None
    assert asyncio.run(read(struct.pack(">i", 3) + b"abc")) == b"abc"
