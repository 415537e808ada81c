"""The HTTP server of an instance: `http.listen` (note 049). It runs on a thread of its own.

Routes: `/metrics` for Prometheus, `/live` and `/ready` for probes, `/status` for people and
programs (JSON), `/rebalances` with a record of each rebalance (JSON), `/topology` as Kafka Streams
describes it, `/page` for a browser. A POST to `/drain` makes the instance hand over, leave and end;
it is heard from this host alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, cast

import uvicorn
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from everflow.errors import ConfigError
from everflow.observe.figures import COUNTER, FIGURES
from everflow.observe.observation import Health, Observation, live, ready, status_of
from everflow.observe.page.routes import Page
from everflow.observe.requests import (
    Application,
    OwnNames,
    Receive,
    Scope,
    Send,
    answer,
    own_host_only,
)
from everflow.rebalances import Rebalance

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def exposition(seen: Observation) -> bytes:
    """The text of `/metrics`; a figure without a value is left out."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_ObservationCollector(seen))
    return generate_latest(registry)


@dataclass(frozen=True, eq=False)
class _ObservationCollector(Collector):
    seen: Observation

    def collect(self) -> Iterator[Metric]:
        for figure in FIGURES:
            kind = CounterMetricFamily if figure.kind == COUNTER else GaugeMetricFamily
            family = kind(figure.name, figure.text, labels=("client_id", *figure.labels))
            for labels, value in figure.read(self.seen):
                family.add_metric((self.seen.client_id, *labels), value)
            if family.samples:
                yield family


MOST_CONNECTIONS = 512
SPARE = 64
"""Beyond them, for probes, where all of those are being answered."""


class OpenConnections:
    """The connections of one server; on its event loop alone."""

    def __init__(self, most: int = MOST_CONNECTIONS, spare: int = SPARE) -> None:
        self._most, self._spare = most, spare
        self._here: set[WholeRequestsProtocol] = set()

    @property
    def full(self) -> bool:
        """More are open than are allowed, and all of them were being answered."""
        return len(self._here) > self._most

    def came(self, one: WholeRequestsProtocol) -> bool:
        """True if it may stay. Where too many are open, the connection that waited for its client
        the longest is closed, of the address that has the most."""
        if len(self._here) >= self._most:
            self._close_one()
        if len(self._here) >= self._most + self._spare:
            return False
        self._here.add(one)
        return True

    def left(self, one: WholeRequestsProtocol) -> None:
        self._here.discard(one)

    def _close_one(self) -> None:
        number = Counter(one.address for one in self._here)
        since = {one: one.waits_since() for one in self._here}
        waiting = [(-number[one.address], at, one) for one, at in since.items() if at is not None]
        if waiting:
            *_, one = min(waiting, key=lambda row: row[:2])
            self.left(one)
            one.give_way()


REQUEST_S = 10.0
"""How long a request may take to arrive; between two of them uvicorn's own time-out counts."""
SAID_EVERY_S = 60.0


class BoundedLog(logging.Logger):
    """A line for each kind of uvicorn's remarks in `SAID_EVERY_S`: clients decide their number."""

    def __init__(self, address: str, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__("everflow", logging.WARNING)  # uvicorn's traces are not even made
        self._address, self._clock = address, clock
        self._said: dict[str, tuple[float, int]] = {}

    def _log(  # type: ignore[override]
        self, level: int, msg: object, _: object, exc_info: BaseException | None = None
    ) -> None:
        text, error = str(msg).strip(), exc_info
        kind = text if error is None else f"{text}: {type(error).__name__}"
        at_s, left_out = self._said.get(kind, (-SAID_EVERY_S, 0))
        now_s = self._clock()
        if now_s - at_s < SAID_EVERY_S:
            self._said[kind] = at_s, left_out + 1
            return
        self._said[kind] = now_s, 0
        more = f" ({left_out:,} more since the last such line)" if left_out else ""
        log.log(
            level,
            "The HTTP server at %s: %s%s",
            self._address,
            kind,
            more,
            exc_info=error,
        )


class WholeRequestsProtocol(H11Protocol):
    """uvicorn's own protocol, with the bound ``request_s`` for the arrival of a request."""

    def __init__(
        self,
        *args: Any,
        connections: OpenConnections,
        said: BoundedLog,
        request_s: float,
        **named: Any,
    ) -> None:
        super().__init__(*args, **named)
        self._connections, self.logger, self._request_s = connections, said, request_s
        self._deadline: asyncio.TimerHandle | None = None
        self._waits_since = 0.0

    @property
    def address(self) -> str:
        return self.client[0] if self.client else ""

    def waits_since(self) -> float | None:
        """Since when it is the client's turn to send or to read, by the loop's clock; None: it is
        being answered. Where a client does not read its answer, the time of the last one."""
        answered = self.cycle is None or self.cycle.response_complete
        return (
            self._waits_since if answered or self._under_way() or self.flow.write_paused else None
        )

    def give_way(self) -> None:
        """Close it, at once; `OpenConnections.left` may be called within it or later."""
        self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._waits_since = self.loop.time()
        if self._connections.came(self):
            self._wait_for_request()
        else:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.left(self)
        self._unset_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.timeout_keep_alive_task is not None or not self._under_way():
            self._unset_deadline()
        elif self._deadline is None:
            self._wait_for_request()

    def on_response_complete(self) -> None:
        """The unread rest of an answered request is not waited for."""
        self._unset_deadline()
        self._waits_since = self.loop.time()
        super().on_response_complete()

    def _under_way(self) -> bool:
        return str(self.conn.their_state) in ("IDLE", "SEND_BODY")

    def _wait_for_request(self) -> None:
        self._deadline = self.loop.call_later(self._request_s, self._too_late)

    def _unset_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_late(self) -> None:
        self._deadline = None
        if self._under_way():
            self.transport.close()


log = logging.getLogger("everflow")

PROBES = frozenset(("/live", "/ready"))
"""Paths that are answered whatever the request's Host, and beyond the limit of connections."""
PROBE_THREADS = 2
MOST_HEAD_BYTES = 64 << 10
"""Of a request's first line and headers: its path has a key of 16 KiB, each byte of it in three."""
STOP_S = 5.0
LOOPBACK = ("127.0.0.1", "::1", "::ffff:127.0.0.1")
Observe = Callable[[], Observation]


def application(
    observe: Observe,
    topology: str,
    drain: Callable[[], None] = lambda: None,
    page: Page | None = None,
    watch: Observe | None = None,
    rebalances: Callable[[], Sequence[Rebalance]] = tuple,
) -> Starlette:
    """``observe`` is called on a worker thread for each request; ``watch``, which asks the brokers,
    too, for all but probes. ``topology``: of `Topology.describe`; ``drain`` returns at once.
    ``rebalances``: the oldest first."""
    watched = watch or observe
    # Of their own: behind many readers, slow ones too, a probe would wait until it has failed.
    probing = ThreadPoolExecutor(PROBE_THREADS, thread_name_prefix="everflow-probes")

    async def probed(health_of: Callable[[Observation], Health], _: Request) -> Response:
        seen = await asyncio.get_running_loop().run_in_executor(probing, observe)
        found = health_of(seen)
        return JSONResponse(found._asdict(), status_code=200 if found.ok else 503)

    async def metrics(_: Request) -> Response:
        text = await run_in_threadpool(lambda: exposition(watched()))
        return Response(text, media_type=CONTENT_TYPE)

    async def status(_: Request) -> Response:
        return JSONResponse(status_of(await run_in_threadpool(watched)))

    async def rebalanced(_: Request) -> Response:
        return JSONResponse(await run_in_threadpool(lambda: [asdict(one) for one in rebalances()]))

    async def described(_: Request) -> Response:
        return PlainTextResponse(topology)

    async def drained(request: Request) -> Response:
        # A reader of the dashboard has a browser here, in which any site's page could send this.
        if request.client is None or request.client.host not in LOOPBACK:
            return PlainTextResponse("only from the host of the instance\n", status_code=403)
        if "origin" in request.headers:
            return PlainTextResponse("not from a browser\n", status_code=403)
        drain()
        return PlainTextResponse("it hands its tasks over and leaves\n", status_code=202)

    async def index(request: Request) -> Response:
        if page is not None and "text/html" in request.headers.get("accept", ""):
            return RedirectResponse("page")
        return PlainTextResponse(
            "/metrics\n/live\n/ready\n/status\n/rebalances\n/topology\n/page\n"
        )

    return Starlette(
        routes=[
            Route("/", index),
            Route("/metrics", metrics),
            Route("/live", partial(probed, live)),
            Route("/ready", partial(probed, ready)),
            Route("/status", status),
            Route("/rebalances", rebalanced),
            Route("/topology", described),
            Route("/drain", drained, methods=["POST"]),
            *(page.routes() if page is not None else ()),
        ]
    )


class HttpServer:
    """Listens from its making on; `close` from any thread. ConfigError: the address is not free."""

    def __init__(
        self,
        address: str,
        app: Starlette,
        setting: str = "http.listen",
        certificate: tuple[str, str] | None = None,
        request_s: float = REQUEST_S,
        names: OwnNames | None = None,
        free: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """``address``: host:port, from ``setting``; port 0 is any that is free (`address` then says
        which). ``certificate``: files of a certificate and its key, for TLS. ``names``: by which
        requests may call it (its address's own if None); ``free``: paths besides the probes that
        are answered whatever they call it (`own_host_only`)."""
        self._socket = _listening(address, setting)
        host, port = self._socket.getsockname()[:2]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        connections, said = OpenConnections(), BoundedLog(self.address)
        protocol = partial(
            WholeRequestsProtocol, connections=connections, said=said, request_s=request_s
        )
        hosts = names or OwnNames(address)
        guarded = own_host_only(
            _within(cast(Application, app), connections),
            hosts,
            lambda path: path in PROBES or free(path),
        )
        config = uvicorn.Config(
            cast(Any, guarded),
            interface="asgi3",
            loop="asyncio",
            workers=1,  # not the environment's WEB_CONCURRENCY
            # Not FORWARDED_ALLOW_IPS of the environment: /drain hears this host alone.
            proxy_headers=False,
            log_config=None,
            access_log=False,
            lifespan="off",
            # h11 is the one that bounds the head
            http=cast(Any, protocol),
            ws="none",
            h11_max_incomplete_event_size=MOST_HEAD_BYTES,
            timeout_graceful_shutdown=1,
            server_header=False,
            ssl_certfile=None if certificate is None else certificate[0],
            ssl_keyfile=None if certificate is None else certificate[1],
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="everflow-http", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """No more requests; waits for those in flight, a moment at most."""
        self._server.should_exit = True
        self._thread.join(STOP_S)
        self._socket.close()

    def _run(self) -> None:
        # It waits for a core instead of taking a worker's, with its caches (SCHED_BATCH, note 058).
        with contextlib.suppress(AttributeError, OSError):  # elsewhere, or not allowed
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        try:
            self._server.run(sockets=[self._socket])
        except Exception:  # processing goes on without it
            log.exception("The HTTP server at %s failed", self.address)


def _within(app: Application, connections: OpenConnections) -> Application:

    async def answered(scope: Scope, receive: Receive, send: Send) -> None:
        if connections.full and scope["path"] not in PROBES:
            text = "As many requests as can be answered at a time are being answered: ask again."
            await answer(send, 503, "EF-HTTP-FULL", text)
        else:
            await app(scope, receive, send)

    return answered


def _listening(address: str, setting: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only where the protocol is said; without it an answer takes 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, int(port)))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"{setting} = {address!r} cannot be listened at ({error.strerror or error}). Is "
            f"another instance of this machine there? Give each its own port, or port 0 for any "
            f"that is free."
        ) from error
    return listener
