"""The HTTP endpoint of a fleet's driver: supervisors report, operators read and resize."""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from everflow.autoscale import Autoscaler, InstanceSeen
from everflow.fleet.decision import TOKEN_HEADER, Report, Wanted, answer, moved, shown_lines
from everflow.observe.requests import RefusedRequest, body_of

HEARD_S = 10.0
"""A slot that has not been heard of for so long has no place."""


@dataclass
class _Place:
    since_s: float
    wanted: Wanted = Wanted.run
    newest: int = -1
    last: Report | None = None


@dataclass(eq=False)
class Places:
    """Used by the loop's thread and those of the HTTP server. ``say`` gets lines, on either."""

    say: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _places: dict[int, _Place] = field(default_factory=dict)

    def open(self, slot: int) -> None:
        with self._lock:
            self._places[slot] = _Place(self.clock())

    def close(self, slot: int) -> Report | None:
        """Close a slot whose instance has ended; its last report."""
        with self._lock:
            place = self._places.pop(slot, None)
            return None if place is None else place.last

    def want(self, slot: int, wanted: Wanted) -> None:
        """Set the answer to the next reports of a slot's supervisor."""
        with self._lock:
            if slot in self._places:
                self._places[slot].wanted = wanted

    def reported(self, report: Report) -> Wanted:
        """The order for the supervisor that reports; a supervisor without a slot gets ``stop``."""
        with self._lock:
            place = self._places.get(report.slot)
            wanted = answer(
                None if place is None else place.wanted,
                -1 if place is None else place.newest,
                report.attempt,
            )
            if place is None or report.attempt < place.newest:
                return wanted
            place.newest, place.since_s = report.attempt, self.clock()
            line = moved(place.last, report)
            # its lines are shown and not kept
            place.last = replace(report, lines=[], left_out=0)
        for text in ([line] if line else []) + shown_lines(report):
            self.say(text)
        return wanted

    def seen(self, slot: int, ending: bool) -> InstanceSeen:
        with self._lock:
            place = self._places.get(slot)
            if place is None or place.last is None or self._silent_s(place) > HEARD_S:
                return InstanceSeen(False, None, ending)
            last = place.last
            return InstanceSeen(last.state == "RUNNING" and last.ready, last.desired, ending)

    def last(self, slot: int) -> Report | None:
        with self._lock:
            place = self._places.get(slot)
            return None if place is None else place.last

    def without_s(self) -> dict[int, float]:
        """Slot -> seconds without a host; 0 if it has one."""
        with self._lock:
            silent = {slot: self._silent_s(place) for slot, place in self._places.items()}
            return {
                slot: 0.0 if self._places[slot].last is not None and for_s <= HEARD_S else for_s
                for slot, for_s in silent.items()
            }

    def _silent_s(self, place: _Place) -> float:
        return self.clock() - place.since_s


MOST_INSTANCES = 1_000
MOST_BODY_BYTES = 8 << 20
"""Above the lines of a report, of which each character may take 6 bytes."""
TOO_LARGE = f"it is larger than {MOST_BODY_BYTES:,} bytes"


@dataclass(frozen=True)
class Door:
    """What supervisors get that show the ``token``, and operators on the driver's ``own_hosts``."""

    token: str
    own_hosts: frozenset[str]
    application_id: str
    places: Places
    loop: Autoscaler

    def shown(self) -> dict[str, Any]:
        slots = []
        for slot, without_s in sorted(self.places.without_s().items()):
            last = self.places.last(slot)
            report = {} if last is None else asdict(last)
            known = {key: one for key, one in report.items() if key not in ("lines", "left_out")}
            slots.append({**known, "slot": slot, "without_place_s": round(without_s, 1)})
        return {
            "application_id": self.application_id,
            "instances": self.loop.least,
            "max": self.loop.most,
            "slots": slots,
        }


def application(door: Door) -> Starlette:
    async def report(request: Request) -> Response:
        shown = request.headers.get(TOKEN_HEADER, "").encode()  # a text must be ASCII there
        if not secrets.compare_digest(shown, door.token.encode()):
            return PlainTextResponse("this is no supervisor of this fleet\n", status_code=403)
        try:
            received = Report.from_json(await body_of(request, MOST_BODY_BYTES, TOO_LARGE))
        except (ValueError, RefusedRequest) as error:
            return PlainTextResponse(f"no report: {error}\n", status_code=400)
        wanted = await run_in_threadpool(lambda: door.places.reported(received))
        return JSONResponse({"wanted": wanted.value})

    async def fleet(request: Request) -> Response:
        return _only_from_here(request, door) or JSONResponse(door.shown())

    async def scale(request: Request) -> Response:
        refused = _only_from_here(request, door)
        if refused is not None:
            return refused
        try:
            door.loop.resize(*sizes(json.loads(await body_of(request, MOST_BODY_BYTES, TOO_LARGE))))
        except (ValueError, RefusedRequest) as error:
            return PlainTextResponse(f"{error}\n", status_code=400)
        return JSONResponse(door.shown())

    return Starlette(
        routes=[
            Route("/report", report, methods=["POST"]),
            Route("/fleet", fleet),
            Route("/scale", scale, methods=["POST"]),
        ]
    )


def sizes(asked: Any) -> tuple[int, int]:
    """Least and most instances. ValueError for a request without them."""
    if not isinstance(asked, dict):
        raise ValueError(f"{json.dumps(asked)} does not say how many instances")
    least = asked.get("instances")
    most = asked.get("max") or least
    if type(least) is not int or type(most) is not int or not 1 <= least <= most <= MOST_INSTANCES:
        raise ValueError(
            f"instances={least}, max={most}: a fleet has 1 to {MOST_INSTANCES:,} instances, and "
            f"max is no smaller"
        )
    return least, most


def _only_from_here(request: Request, door: Door) -> Response | None:
    # Whoever works on that host may have a browser there, in which any site's page could send this.
    if "origin" in request.headers:
        return PlainTextResponse("not from a browser\n", status_code=403)
    host = request.client.host if request.client is not None else ""
    if host in door.own_hosts:
        return None
    return PlainTextResponse("only from the host of the fleet's driver\n", status_code=403)
