"""The HTTP server of an instance: `http.listen` (note 049). It runs on a thread of its own.

Routes: `/metrics` for Prometheus, `/live` and `/ready` for probes, `/status` for people and
programs (JSON), `/topology` as Kafka Streams describes it, `/page` for a browser. A POST to
`/drain` makes the instance hand over, leave and end; it is heard from this host alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, cast

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from everflow.errors import ConfigError
from everflow.observe.exposition import CONTENT_TYPE, exposition
from everflow.observe.health import Verdict, live, ready
from everflow.observe.host_names import (
    Application,
    OwnHostOnly,
    OwnNames,
    Receive,
    Scope,
    Send,
    answer,
)
from everflow.observe.observation import Observation
from everflow.observe.page.routes import Page
from everflow.observe.room import Room
from everflow.observe.status import status_of
from everflow.observe.whole_requests import REQUEST_S, BoundedLog, WholeRequestsProtocol

log = logging.getLogger("everflow")

PROBES = frozenset(("/live", "/ready"))
"""Paths that are answered whatever the request's Host, and beyond the room for connections."""
PROBE_THREADS = 2
MOST_HEAD_BYTES = 64 << 10
"""Of a request's first line and headers: its path has a key of 16 KiB, each byte of it in three."""
STOP_S = 5.0
LOOPBACK = ("127.0.0.1", "::1", "::ffff:127.0.0.1")
Look = Callable[[], Observation]


def application(
    look: Look,
    topology: str,
    drain: Callable[[], None] = lambda: None,
    page: Page | None = None,
    watch: Look | None = None,
) -> Starlette:
    """The routes. ``look`` is called on a worker thread, for each request, and ``watch`` in its
    place for who is no probe: what has to be asked of the brokers is in it. ``topology``: the text
    of `Topology.describe`; ``drain`` returns at once."""
    watched = watch or look
    # Of their own: behind many readers, slow ones too, a probe would wait until it has failed.
    probing = ThreadPoolExecutor(PROBE_THREADS, thread_name_prefix="everflow-probes")

    async def probed(verdict: Callable[[Observation], Verdict]) -> Response:
        seen = await asyncio.get_running_loop().run_in_executor(probing, look)
        found = verdict(seen)
        return JSONResponse(found._asdict(), status_code=200 if found.ok else 503)

    async def metrics(_: Request) -> Response:
        text = await run_in_threadpool(lambda: exposition(watched()))
        return Response(text, media_type=CONTENT_TYPE)

    async def alive(_: Request) -> Response:
        return await probed(live)

    async def is_ready(_: Request) -> Response:
        return await probed(ready)

    async def status(_: Request) -> Response:
        return JSONResponse(status_of(await run_in_threadpool(watched)))

    async def described(_: Request) -> Response:
        return PlainTextResponse(topology)

    async def drained(request: Request) -> Response:
        # Whoever has the page open has a browser here, in which any site's page could send this.
        if request.client is None or request.client.host not in LOOPBACK:
            return PlainTextResponse("only from the host of the instance\n", status_code=403)
        if "origin" in request.headers:
            return PlainTextResponse("not from a browser\n", status_code=403)
        drain()
        return PlainTextResponse("it hands its tasks over and leaves\n", status_code=202)

    async def index(request: Request) -> Response:
        if page is not None and "text/html" in request.headers.get("accept", ""):
            return RedirectResponse("page")
        return PlainTextResponse("/metrics\n/live\n/ready\n/status\n/topology\n/page\n")

    return Starlette(
        routes=[
            Route("/", index),
            Route("/metrics", metrics),
            Route("/live", alive),
            Route("/ready", is_ready),
            Route("/status", status),
            Route("/topology", described),
            Route("/drain", drained, methods=["POST"]),
            *(page.routes() if page is not None else ()),
        ]
    )


class HttpServer:
    """Listens from its making on; `close` from any thread. ConfigError where the address cannot be
    had."""

    def __init__(
        self,
        address: str,
        app: Starlette,
        setting: str = "http.listen",
        certificate: tuple[str, str] | None = None,
        ending: Callable[[], None] = lambda: None,
        request_s: float = REQUEST_S,
        names: OwnNames | None = None,
        free: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """``address``: host:port, from ``setting``; port 0 is any that is free (`address` then says
        which). ``certificate``: files of a certificate and its key, for TLS.
        ``ending`` ends answers that have no end, and returns at once. ``request_s``: how long a
        request may take to arrive.
        ``names``: by which requests may call it, the address's own where there are none; ``free``:
        paths besides the probes that are answered whatever they call it (`OwnHostOnly`)."""
        self._ending = ending
        self._socket = _listening(address, setting)
        host, port = self._socket.getsockname()[:2]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        room, said = Room(), BoundedLog(self.address)
        protocol = partial(WholeRequestsProtocol, room=room, said=said, request_s=request_s)
        hosts = names or OwnNames(address)
        guarded = OwnHostOnly(
            _within(cast(Application, app), room), hosts, lambda path: path in PROBES or free(path)
        )
        config = uvicorn.Config(
            cast(Any, guarded),
            interface="asgi3",
            loop="asyncio",
            workers=1,  # not the environment's WEB_CONCURRENCY
            # Who asks is who is connected: with FORWARDED_ALLOW_IPS in the environment it would be
            # what a header says, and /drain hears this host alone.
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
        self._ending()
        self._thread.join(STOP_S)
        self._socket.close()

    def _run(self) -> None:
        _interrupt_nobody()
        try:
            self._server.run(sockets=[self._socket])
        except Exception:  # processing goes on without it
            log.exception("The HTTP server at %s failed", self.address)


def _within(app: Application, room: Room) -> Application:
    """The application, for which there is room, or probes alone."""

    async def answered(scope: Scope, receive: Receive, send: Send) -> None:
        if room.full and scope["path"] not in PROBES:
            text = "As many requests as can be answered at a time are being answered: ask again."
            await answer(send, 503, "EF-HTTP-FULL", text)
        else:
            await app(scope, receive, send)

    return answered


def _interrupt_nobody() -> None:
    """From now on this thread, and those that it starts, wait for a core instead of taking it from
    who computes on it (sched(7), SCHED_BATCH; Linux alone has it). On a machine that is not full
    they have it as soon; on a full one each wake-up cost a worker what it had in the core's caches
    (note 058)."""
    with contextlib.suppress(AttributeError, OSError):  # elsewhere, or not allowed
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _listening(address: str, setting: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sends at once (TCP_NODELAY) only where the protocol is said: without it each answer
    # waits 40 ms for the acknowledgement of its own head.
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
