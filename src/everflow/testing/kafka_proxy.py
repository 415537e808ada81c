"""A proxy before Kafka's brokers that drops, holds, delays and refuses chosen requests.

It puts its own addresses in the place of the brokers', so that a client that came to it stays with
it. Everything else passes as it is.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import threading
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal, NamedTuple, TypeVar

from kafka.protocol import admin, consumer, metadata, producer
from kafka.protocol.api_key import ApiKey

from everflow.sockets import require_size

NAMES: dict[int, str] = {int(key): key.name for key in ApiKey}
_NODE_ENDPOINTS_SINCE = {"Produce": 10, "Fetch": 16}
"""KIP-951: from these versions on a refusal names the new leader's address."""


class Header(NamedTuple):
    """The part of a request's header that all versions have."""

    key: int
    version: int
    correlation: int
    client: str

    @property
    def name(self) -> str:
        return NAMES.get(self.key, str(self.key))


def header_of(frame: bytes) -> Header:
    """``frame``: a request without its length."""
    key, version, correlation, length = struct.unpack_from(">hhih", frame)
    client = frame[10 : 10 + length].decode(errors="replace") if length > 0 else ""
    return Header(key, version, correlation, client)


def correlation_of(frame: bytes) -> int:
    return int(struct.unpack_from(">i", frame)[0])


def _message(name: str) -> Any:
    """kafka-python's class of a request or an answer, such as ``EndTxnResponse``."""
    return next(
        getattr(kinds, name)
        for kinds in (producer, consumer, metadata, admin)
        if hasattr(kinds, name)
    )


_WITH_ADDRESSES = ("Produce", "Fetch", "Metadata", "FindCoordinator", "DescribeCluster")


def _addresses(answer: Any, asked: Header) -> Iterator[Any]:
    if asked.name in ("Metadata", "DescribeCluster"):
        yield from answer.brokers
    elif asked.name == "FindCoordinator":
        yield from answer.coordinators if asked.version >= 4 else (answer,)
    else:
        yield from answer.node_endpoints or ()


_REFUSABLE = (
    *("Produce", "Fetch", "FindCoordinator", "AddPartitionsToTxn", "TxnOffsetCommit"),
    *("AddOffsetsToTxn", "EndTxn", "InitProducerId", "Heartbeat"),
)
_ONE_FOR_EACH = {
    "responses": ("topic_data", "topics"),
    "topics": ("topics",),
    "results_by_topic_v3_and_below": ("v3_and_below_topics",),
    "partition_responses": ("partition_data",),
    "partitions": ("partitions",),
    "results_by_partition": ("partitions",),
    "coordinators": ("coordinator_keys",),
}
"""An array of an answer, and the array of the request for whose parts it has one each."""
_IDENTITY = ("topic_id", "topic", "name", "partition_index", "index", "key")
"""Fields that an answer repeats."""
_NONE = ("base_offset", "high_watermark", "node_id", "port", "producer_epoch")
"""Fields that are -1 in a broker's refusal, and by kafka-python's default are not."""


def _refused(kind: Any, asked: Any, version: int, code: int) -> Any:
    """An answer, or a part of one: the innermost parts have the error."""
    made = kind(version=version)
    fields = [one for one in kind.fields.values() if one.for_version_q(version)]
    parts = {one.name for one in fields} & _ONE_FOR_EACH.keys()
    for each in fields:
        name = each.name
        if name in parts:
            of = next(
                getattr(asked, array) for array in _ONE_FOR_EACH[name] if hasattr(asked, array)
            )
            setattr(made, name, [_refused(each.data_class, one, version, code) for one in of])
        elif name.endswith("error_code") and not parts:
            setattr(made, name, code)
        elif name in _NONE:
            setattr(made, name, -1)
        elif name in _IDENTITY:
            there = name if hasattr(asked, name) else "partition"  # of a Fetch
            setattr(made, name, asked if isinstance(asked, str | int) else getattr(asked, there))
    return made


def refusal(frame: bytes, asked: Header, code: int) -> bytes:
    request, answer = _message(f"{asked.name}Request"), _message(f"{asked.name}Response")
    wanted = request.decode(frame, version=asked.version, header=True)
    made = _refused(answer, wanted, asked.version, code)
    made.with_header(correlation_id=asked.correlation)
    return bytes(made.encode(header=True))


T = TypeVar("T")
log = logging.getLogger("everflow.testing.proxy")

_HOST = "127.0.0.1"
_CALL_S = 10.0
_LAST_ANSWERS_S = 10.0
"""What a client asked for before it went is still brought to the broker, and its answer awaited."""
_Act = Literal["hold", "drop", "lose", "delay", "refuse"]


@dataclass(eq=False, repr=False)
class WireFault:
    """A fault that a `KafkaProxy` injects into requests. May be used from any thread."""

    _proxy: KafkaProxy
    act: _Act
    api: str
    _left: int | None
    _applies: Callable[[Header, bytes], bool]
    _: KW_ONLY
    seconds: float = 0.0
    code: int = 0
    breaks: bool = False
    _changed: threading.Condition = field(init=False, default_factory=threading.Condition)
    _happened: int = field(init=False, default=0)
    _answered: int = field(init=False, default=0)
    _let_go: asyncio.Event = field(init=False, default_factory=asyncio.Event)

    def __repr__(self) -> str:
        return f"<WireFault: {self.act} {self.api}, happened {self.happened} times>"

    @property
    def happened(self) -> int:
        """Number of requests into which the fault was injected."""
        return self._happened

    def wait(self, times: int = 1, timeout_s: float = 30.0) -> None:
        """Wait until the fault was injected into ``times`` requests. Raises AssertionError after
        ``timeout_s`` seconds."""
        self._wait(lambda: self._happened >= times, timeout_s, f"happen {times} times")

    def release(self, timeout_s: float = 30.0) -> None:
        """For ``hold``: pass the held requests to the broker, hold no further ones, and return when
        the broker has answered them. Raises AssertionError if the broker has not answered after
        ``timeout_s`` seconds."""
        with self._changed:
            self._left = 0
        self._proxy._loop.call_soon_threadsafe(self._let_go.set)
        self._wait(lambda: self._answered >= self._happened, timeout_s, "be answered")

    def end(self) -> None:
        """Stop injecting the fault. Requests held by ``hold`` stay held until `release`."""
        with self._changed:
            self._left = 0

    def _takes(self, header: Header, frame: bytes) -> bool:
        with self._changed:
            if header.name != self.api or self._left == 0 or not self._applies(header, frame):
                return False
            if self._left is not None:
                self._left -= 1
            if self.act != "lose":
                self._happened += 1
                self._changed.notify_all()
            return True

    def _note_answer(self) -> None:
        with self._changed:
            self._answered += 1
            if self.act == "lose":
                self._happened += 1
            self._changed.notify_all()

    def _wait(self, over: Callable[[], bool], timeout_s: float, what: str) -> None:
        with self._changed:
            if not self._changed.wait_for(over, timeout_s):
                raise AssertionError(
                    f"waited {timeout_s:g} s for {self!r} to {what}; requests seen: "
                    f"{dict(self._proxy.seen)}"
                )


class KafkaProxy:
    """A proxy between clients and a cluster without security. It injects faults into the requests
    of clients that use its ``bootstrap_servers``.

    ::

        with EmbeddedBroker() as broker, KafkaProxy(broker.bootstrap_servers) as proxy:
            fault = proxy.lose_answer("EndTxn")
            ...  # an application on proxy.bootstrap_servers commits
            fault.wait()

    A fault meets the next ``times`` requests (None: all) whose Kafka name is ``api``
    (``"Produce"``, ``"EndTxn"``...), whose client has a ``client.id`` that contains ``client``, and
    that name ``topic``. If several faults fit a request, the earliest that is left is applied. The
    proxy has its own thread; call it from any thread. ``upstream``: ``host:port`` of a broker.
    """

    def __init__(self, upstream: str) -> None:
        host, _, port = upstream.split(",")[0].rpartition(":")
        self._upstream = (host, int(port))
        self._faults: list[WireFault] = []
        self._doors: dict[int, _Door] = {}
        self._lines: set[_Line] = set()
        self._front: _Door | None = None
        self._refusing = False
        self._flows: asyncio.Event
        self.seen: Counter[str] = Counter()
        """Requests by name, those that were lost included."""

    def __enter__(self) -> KafkaProxy:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> KafkaProxy:
        """Listen on a free port, on a thread of the proxy's own; returns the proxy."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever,
            name="proxy",
            daemon=True,
        )
        self._thread.start()
        self._call(self._open())
        return self

    def close(self) -> None:
        """End every connection and the proxy's thread; held requests are lost."""
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CALL_S)
        self._loop.close()

    @property
    def bootstrap_servers(self) -> str:
        """``host:port`` of the proxy, for clients. Raises AssertionError before `start`."""
        assert self._front is not None, "the proxy is not started"
        return f"{_HOST}:{self._front.port}"

    def hold(
        self,
        api: str,
        times: int | None = 1,
        client: str = "",
        topic: str | None = None,
        *,
        breaks: bool = False,
    ) -> WireFault:
        """Holds the next ``times`` requests named ``api`` until `WireFault.release`; then the
        broker gets them, even if the client has gone. Later requests on the same connection wait,
        too. ``breaks``: the client's connection breaks at once, so that the client retries."""
        return self._set("hold", api, times, client, topic, breaks=breaks)

    def drop(
        self, api: str, times: int | None = 1, client: str = "", topic: str | None = None
    ) -> WireFault:
        """Breaks the connections of the next ``times`` requests named ``api``; the broker does not
        receive these requests."""
        return self._set("drop", api, times, client, topic)

    def lose_answer(
        self, api: str, times: int | None = 1, client: str = "", topic: str | None = None
    ) -> WireFault:
        """Passes the next ``times`` requests named ``api`` to the broker, but breaks the connection
        instead of returning the response."""
        return self._set("lose", api, times, client, topic)

    def delay(
        self,
        api: str,
        seconds: float,
        times: int | None = 1,
        client: str = "",
        topic: str | None = None,
    ) -> WireFault:
        """Holds each of the next ``times`` requests named ``api`` for ``seconds``, then passes it
        to the broker. Later requests on the same connection wait, too."""
        return self._set("delay", api, times, client, topic, seconds=seconds)

    def refuse(
        self,
        api: str,
        code: int,
        times: int | None = 1,
        client: str = "",
        topic: str | None = None,
    ) -> WireFault:
        """Answers the next ``times`` requests named ``api`` with Kafka's error ``code``; the broker
        does not receive them. ``api``: Produce, Fetch, FindCoordinator, InitProducerId, EndTxn,
        AddPartitionsToTxn, AddOffsetsToTxn, TxnOffsetCommit or Heartbeat, else ValueError."""
        if api not in _REFUSABLE:
            raise ValueError(f"a refusal of {api!r} cannot be made here")
        return self._set("refuse", api, times, client, topic, code=code)

    def cut(self, *, silent: bool = False) -> None:
        """Cut the network until `mend`: open connections break, and new ones break at once.
        ``silent``: connections stay open, but no request or response passes."""
        self._call(self._cut(silent))

    def mend(self) -> None:
        """End a `cut`: clients can connect again. Requests and responses that a silent `cut` held
        back are passed on."""
        self._call(self._mend())

    def _set(
        self, act: _Act, api: str, times: int | None, client: str, topic: str | None, **more: Any
    ) -> WireFault:
        if api not in NAMES.values():
            raise ValueError(f"{api!r} is none of {', '.join(NAMES.values())}")
        name = None if topic is None else topic.encode()

        def applies(header: Header, frame: bytes) -> bool:
            return client in header.client and (name is None or name in frame)

        fault = WireFault(self, act, api, times, applies, **more)
        self._faults.append(fault)
        return fault

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_CALL_S)

    async def _open(self) -> None:
        self._flows = asyncio.Event()
        self._flows.set()
        self._front = await self._door(self._upstream)

    async def _door(self, upstream: tuple[str, int]) -> _Door:
        door = _Door(upstream)
        door.server = await asyncio.start_server(
            lambda reader, writer: self._serve(door, reader, writer), _HOST, 0
        )
        door.port = door.server.sockets[0].getsockname()[1]
        return door

    async def _serve(
        self, door: _Door, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if self._refusing:
            writer.transport.abort()
            return
        line = _Line(self, door, reader, writer)
        self._lines.add(line)
        try:
            await line.run()
        finally:
            self._lines.discard(line)

    async def _close(self) -> None:
        for door in (*self._doors.values(), *([self._front] if self._front else [])):
            door.server.close()
        await self._cut(silent=False)
        while self._lines:
            await asyncio.sleep(0.01)

    async def _cut(self, silent: bool) -> None:
        if silent:
            self._flows.clear()
            return
        self._refusing = True
        for line in list(self._lines):
            line.abort()

    async def _mend(self) -> None:
        self._refusing = False
        self._flows.set()

    def _fault_for(self, header: Header, frame: bytes) -> WireFault | None:
        self.seen[header.name] += 1
        return next((one for one in list(self._faults) if one._takes(header, frame)), None)

    async def _redirected(self, frame: bytes, asked: Header) -> bytes:
        since = _NODE_ENDPOINTS_SINCE.get(asked.name, 0)
        if asked.name not in _WITH_ADDRESSES or asked.version < since:
            return frame
        answer = _message(f"{asked.name}Response").decode(
            frame,
            version=asked.version,
            header=True,
        )
        named = [one for one in _addresses(answer, asked) if one.host]
        for one in named:
            node = int(one.broker_id if asked.name == "DescribeCluster" else one.node_id)
            address = str(one.host), int(one.port)
            if node not in self._doors:
                self._doors[node] = await self._door(address)
            self._doors[node].upstream = address
            one.host, one.port = _HOST, self._doors[node].port
        return bytes(answer.encode(header=True)) if named else frame


@dataclass(eq=False)
class _Door:
    """The listener for one broker."""

    upstream: tuple[str, int]
    server: asyncio.Server = field(init=False)
    port: int = field(init=False)


@dataclass(eq=False)
class _Asked:
    """A request that a client waits for, in the order in which it asked."""

    header: Header
    fault: WireFault | None = None
    answer: bytes | None = field(default=None, repr=False)


@dataclass(eq=False)
class _Line:
    """A client's connection, and the proxy's to the broker behind it."""

    _proxy: KafkaProxy
    _door: _Door
    _reader: asyncio.StreamReader
    _writer: asyncio.StreamWriter
    _order: deque[_Asked] = field(init=False, default_factory=deque)
    _settled: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    _broken: bool = field(init=False, default=False)

    def abort(self) -> None:
        self._broken = True
        self._settled.set()
        self._writer.transport.abort()
        if hasattr(self, "_up"):
            self._up.transport.abort()

    async def run(self) -> None:
        try:
            self._down, self._up = await asyncio.open_connection(*self._door.upstream)
        except OSError:
            self._writer.transport.abort()
            return
        both = [asyncio.create_task(self._requests()), asyncio.create_task(self._answers())]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            # Where the client has gone, what it asked for is the broker's now.
            while both[0].done() and self._order and not self._broken and not both[1].done():
                self._settled.clear()
                await asyncio.wait_for(self._settled.wait(), _LAST_ANSWERS_S)
        except TimeoutError:
            pass
        finally:
            for task in both:
                task.cancel()
            for result in await asyncio.gather(*both, return_exceptions=True):
                if isinstance(result, Exception) and not isinstance(result, OSError | EOFError):
                    log.error("the proxy gives a connection up", exc_info=result)
            self.abort()

    async def _requests(self) -> None:
        while (frame := await _frame(self._reader)) is not None:
            header = header_of(frame)
            fault = self._proxy._fault_for(header, frame)
            await self._proxy._flows.wait()
            asked = _Asked(header, fault)
            if fault is not None and not await self._meets(fault, asked, frame):
                continue
            if asked.answer is None:
                if not (header.name == "Produce" and _wants_no_answer(frame, header)):
                    self._order.append(asked)
                self._up.write(_framed(frame))
                await self._up.drain()

    async def _meets(self, fault: WireFault, asked: _Asked, frame: bytes) -> bool:
        """Apply a fault; True if the request goes on to the broker."""
        if fault.act == "hold":
            if fault.breaks:
                self._writer.transport.abort()
            await fault._let_go.wait()
        elif fault.act == "delay":
            await asyncio.sleep(fault.seconds)
        elif fault.act == "drop":
            self.abort()
            return False
        elif fault.act == "refuse":
            asked.answer = refusal(frame, asked.header, fault.code)
            self._order.append(asked)
            self._pass_on()
            return False
        return True

    async def _answers(self) -> None:
        while (frame := await _frame(self._down)) is not None:
            correlation = correlation_of(frame)
            asked = next(
                one
                for one in self._order
                if one.header.correlation == correlation and one.answer is None
            )
            if asked.fault is not None:
                asked.fault._note_answer()
                if asked.fault.act == "lose":
                    self.abort()
                    return
            asked.answer = await self._proxy._redirected(frame, asked.header)
            await self._proxy._flows.wait()
            self._pass_on()
            if not self._writer.is_closing():
                with suppress(OSError):
                    await self._writer.drain()

    def _pass_on(self) -> None:
        """Answers leave in the order of the questions."""
        while self._order and (answer := self._order[0].answer) is not None:
            self._order.popleft()
            if not self._writer.is_closing():
                self._writer.write(_framed(answer))
        if not self._order:
            self._settled.set()


async def _frame(reader: asyncio.StreamReader) -> bytes | None:
    """The next one without its length; None at the end."""
    try:
        (length,) = struct.unpack(">i", await reader.readexactly(4))
        require_size(length, "a frame")
        return await reader.readexactly(length)
    except (asyncio.IncompleteReadError, OSError):
        return None


def _framed(frame: bytes) -> bytes:
    return struct.pack(">i", len(frame)) + frame


def _wants_no_answer(frame: bytes, header: Header) -> bool:
    request = producer.ProduceRequest.decode(frame, version=header.version, header=True)
    return bool(request.acks == 0)
