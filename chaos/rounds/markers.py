"""The door by which a broker's transaction coordinator brings its markers in: some come late there.

A transaction is committed once its coordinator has noted so; readers see that in each log by a
marker of its own. Where the logs are on several brokers these come at several moments
(KAFKA-10167): offsets may be committed while the changelog's end cannot be read yet, or the other
way round. One broker gets all its markers in one request. So it is given a door for what brokers
say to each other, and this stands before it: while it is told to, it brings one request in two
parts.
"""

from __future__ import annotations

import socket
import socketserver
import struct
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from kafka.protocol.producer.transaction import WriteTxnMarkersRequest, WriteTxnMarkersResponse

from chaos.rounds.schedule import OFFSETS
from everflow.sockets import require_size
from everflow.testing.broker import EmbeddedBroker
from everflow.testing.broker_security import INSIDE
from everflow.testing.kafka_proxy import correlation_of, header_of

LATE_S = 4.0
"""More than a group takes to give a task to another owner, and with another transaction's markers
before them less than anybody waits for an answer."""
OFFSETS_TOPIC = "__consumer_offsets"
_WRITE_MARKERS = 27
_ONE_BY_ONE = (18, _WRITE_MARKERS)
"""ApiVersions is what a connection begins with; the coordinator has a connection for its markers
alone, and sends one request at a time. All other requests may come before the last answer."""
_HOST = "127.0.0.1"
_BETWEEN = "BROKERS"
_CONNECT_S = 10.0


def parts(frame: bytes, late: str) -> list[bytes]:
    """The request that writes markers, as two, of which the second one has those of ``late``
    (`OFFSETS` or `LOGS`); as it is, where it has none of them or no others."""
    version = header_of(frame).version
    found = []
    for second in (False, True):
        request: Any = WriteTxnMarkersRequest.decode(frame, version=version, header=True)
        for marker in request.markers:
            marker.topics = [
                topic
                for topic in marker.topics
                if ((topic.name == OFFSETS_TOPIC) == (late == OFFSETS)) == second
            ]
        request.markers = [marker for marker in request.markers if marker.topics]
        if not request.markers:
            return [frame]
        found.append(bytes(request.encode(header=True)))
    return found


def joined(answers: list[bytes], version: int) -> bytes:
    """The broker's answers to such parts, as the one that the coordinator waits for: it looks each
    producer up once."""
    if len(answers) == 1:
        return answers[0]
    decoded: list[Any] = [
        WriteTxnMarkersResponse.decode(answer, version=version, header=True) for answer in answers
    ]
    by_producer: dict[int, Any] = {}
    for marker in (marker for answer in decoded for marker in answer.markers):
        first = by_producer.setdefault(marker.producer_id, marker)
        if first is not marker:
            first.topics = [*first.topics, *marker.topics]
    decoded[0].markers = list(by_producer.values())
    decoded[0].with_header(correlation_id=correlation_of(answers[0]))
    return bytes(decoded[0].encode(header=True))


class MarkerDoor:
    """Listens from the start on, `close` ends it. Any thread."""

    def __init__(self) -> None:
        door = self

        class Line(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                with suppress(OSError):
                    door._serve(self.request)

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            block_on_close = False

        self._server = Server((_HOST, 0), Line)
        self.port = int(self._server.server_address[1])
        self.upstream = (_HOST, 0)
        """Where the broker listens."""
        self._late = ""
        self._held = 0
        self._changed = threading.Condition()
        self._closed = threading.Event()
        threading.Thread(
            target=self._server.serve_forever,
            name="markers",
            kwargs={"poll_interval": 0.1},
            daemon=True,
        ).start()

    @property
    def held(self) -> int:
        """How many requests have been brought in two parts, `LATE_S` apart."""
        return self._held

    def hold(self, late: str) -> None:
        """Bring the markers of ``late`` (`OFFSETS` or `LOGS`) later than others from now on; "":
        all at once again."""
        self._late = late

    def close(self) -> None:
        """Bring nothing any more."""
        self._closed.set()
        self._server.shutdown()
        self._server.server_close()

    # --- a connection -----------------------------------------------------------------------------

    def _serve(self, down: socket.socket) -> None:
        with socket.create_connection(self.upstream, timeout=_CONNECT_S) as up:
            up.settimeout(None)
            for line in (up, down):
                line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            frame = _frame(down)
            while frame is not None and header_of(frame).key in _ONE_BY_ONE:
                if not self._bring(frame, up, down):
                    return
                frame = _frame(down)
            if frame is not None:
                up.sendall(_framed(frame))
                back = threading.Thread(target=_pump, args=(up, down), daemon=True)
                back.start()
                _pump(down, up)
                back.join()

    def _bring(self, frame: bytes, up: socket.socket, down: socket.socket) -> bool:
        late = self._late if header_of(frame).key == _WRITE_MARKERS else ""
        asked = parts(frame, late) if late else [frame]
        answers: list[bytes] = []
        for part in asked:
            if answers and self._closed.wait(LATE_S):
                return False
            up.sendall(_framed(part))
            answer = _frame(up)
            if answer is None:
                return False
            answers.append(answer)
        self._held += len(asked) > 1
        down.sendall(_framed(joined(answers, header_of(frame).version)))
        return True


SMALL_LOADS = {"offsets.load.buffer.size": "16384"}
"""A load of committed offsets that is cut off ends behind one of its pieces: with the usual 5 MiB
only the longest runs have a second one (note 064)."""


def broker_with_door(folder: Path, host: str, heap: str, door: MarkerDoor | None) -> EmbeddedBroker:
    """A broker that is not started. With a ``door`` it hears other brokers, itself too, by that
    alone."""
    if door is None:
        return EmbeddedBroker(folder, host=host, heap=heap, config=SMALL_LOADS)
    clients, between, controller = _free_ports(3)
    door.upstream = (_HOST, between)
    own = f"{INSIDE}://{host}:{clients}"
    return EmbeddedBroker(
        folder,
        host=host,
        port=clients,
        heap=heap,
        config={
            **SMALL_LOADS,
            "controller.quorum.voters": f"1@{_HOST}:{controller}",
            "listeners": f"{own},{_BETWEEN}://{_HOST}:{between},CONTROLLER://{_HOST}:{controller}",
            "advertised.listeners": f"{own},{_BETWEEN}://{_HOST}:{door.port}",
            "inter.broker.listener.name": _BETWEEN,
            "listener.security.protocol.map": ",".join(
                f"{name}:PLAINTEXT" for name in (INSIDE, _BETWEEN, "CONTROLLER")
            ),
        },
    )


def _free_ports(count: int) -> list[int]:
    """Free a moment ago, all at the same time."""
    with ExitStack() as held:
        doors = [held.enter_context(socket.socket()) for _ in range(count)]
        for door in doors:
            door.bind((_HOST, 0))
        return [door.getsockname()[1] for door in doors]


def _pump(source: socket.socket, sink: socket.socket) -> None:
    """Bring bytes over until one side is gone; then both are."""
    with suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    for line in (source, sink):
        with suppress(OSError):
            line.shutdown(socket.SHUT_RDWR)


def _frame(line: socket.socket) -> bytes | None:
    """The next one without its length; None at the end."""
    head = _exactly(line, 4)
    if head is None:
        return None
    (length,) = struct.unpack(">i", head)
    require_size(length, "a frame")
    return _exactly(line, length)


def _exactly(line: socket.socket, count: int) -> bytes | None:
    found = bytearray()
    while len(found) < count:
        piece = line.recv(count - len(found))
        if not piece:
            return None
        found += piece
    return bytes(found)


def _framed(frame: bytes) -> bytes:
    return struct.pack(">i", len(frame)) + frame
