"""The state of the other instances, which are asked while somebody reads (note 060).

Each is asked for its `/status` at its ``application.server``, a few at a time, with a time-out, a
size and a number, on threads of their own: a page never waits for an instance that is away.
"""

from __future__ import annotations

import json
import logging
import ssl
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import urlsplit

from everflow.client.direct import RefusedError, asked
from everflow.clock import Clock
from everflow.observe.observation import Observation, ObservedHost, observation_in
from everflow.observe.page.history import Facts, SnapshotHistory

log = logging.getLogger("everflow")

MOST_INSTANCES = 30
AT_A_TIME = 8
ASK_S = 3.0
"""The longest time of an answer, from the connection to its last byte."""
MOST_BYTES = 8 << 20
EVERY_MS = 5_000.0
SHARE = 10.0
"""A round that took long is followed by so many times that without one."""
FORGOTTEN_MS = 3_600_000.0


class InstanceSilentError(Exception):
    """An instance has not sent its status: why, for people."""


class OtherInstance(NamedTuple):
    """Another instance. ``facts``: its last snapshots, None: it has sent none; ``age_s``: their
    age; ``error``: why it did not answer the last time; ``silent_s``: for how long it has not."""

    host: str
    facts: Facts | None = None
    age_s: float = 0.0
    error: str = ""
    silent_s: float = 0.0


@dataclass
class _Known:
    history: SnapshotHistory = field(default_factory=lambda: SnapshotHistory(most_tasks=2_000))
    seen: Observation | None = None
    seen_ms: float = 0.0
    error: str = ""
    failing_ms: float | None = None


def _on_a_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="everflow-peers", daemon=True).start()


@dataclass(eq=False)
class OtherInstances:
    """``ask`` gives what an instance (host:port) says of itself; it blocks, or raises
    InstanceSilentError. ``own``: this instance's address, if any. Any thread may call `states`."""

    ask: Callable[[str], Observation]
    own: Callable[[], str]
    clock: Clock
    spawn: Callable[[Callable[[], None]], None] = _on_a_thread
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _known: dict[str, _Known] = field(default_factory=dict)
    _asking: bool = False
    _next_ms: float = 0.0

    def states(self, hosts: Sequence[ObservedHost]) -> list[OtherInstance]:
        """The state of the other ``hosts``, without waiting; those that are due are asked."""
        own = self.own()
        others = sorted(one.host for one in hosts if one.host != own)[:MOST_INSTANCES]
        now_ms = self.clock.monotonic_ms()
        with self._lock:
            due = bool(others) and not self._asking and now_ms >= self._next_ms
            self._asking |= due
            found = [self._state(host, now_ms) for host in others]
        if due:
            self.spawn(lambda: self._round(others))
        return found

    def _state(self, host: str, now_ms: float) -> OtherInstance:
        known = self._known.get(host)
        if known is None:
            return OtherInstance(host)
        silent_s = 0.0 if known.failing_ms is None else (now_ms - known.failing_ms) / 1000
        if known.seen is None:
            return OtherInstance(host, None, 0.0, known.error, silent_s)
        facts = known.history.facts(known.seen, known.seen_ms, self.clock.now_ms())
        return OtherInstance(
            host,
            facts,
            (now_ms - known.seen_ms) / 1000,
            known.error,
            silent_s,
        )

    def _round(self, hosts: Sequence[str]) -> None:
        began_ms = self.clock.monotonic_ms()
        try:
            with ThreadPoolExecutor(AT_A_TIME, thread_name_prefix="everflow-peers") as pool:
                list(pool.map(self._hear, hosts))
        finally:
            now_ms = self.clock.monotonic_ms()
            with self._lock:
                gone = [
                    host
                    for host, known in self._known.items()
                    if host not in hosts and known.seen_ms < now_ms - FORGOTTEN_MS
                ]
                for host in gone:
                    del self._known[host]
                self._asking = False
                self._next_ms = now_ms + max(EVERY_MS, SHARE * (now_ms - began_ms))

    def _hear(self, host: str) -> None:
        seen, error = None, ""
        try:
            seen = self.ask(host)
        except InstanceSilentError as silent:
            error = str(silent)
        except Exception as failure:  # a defect of ours is no reason to show nothing
            log.debug("An instance was not asked", exc_info=True)
            error = type(failure).__name__
        now_ms = self.clock.monotonic_ms()
        with self._lock:
            known = self._known.setdefault(host, _Known())
            known.error = error
            if seen is None:
                known.failing_ms = now_ms if known.failing_ms is None else known.failing_ms
            else:
                known.seen, known.seen_ms, known.failing_ms = seen, now_ms, None
                known.history.add(seen, now_ms, self.clock.now_ms())


@dataclass(frozen=True, kw_only=True)
class StatusClient:
    """Asks an instance of this application how it does; without ``tls`` over http."""

    application_id: str
    token: str = ""
    tls: ssl.SSLContext | None = None
    most_bytes: int = MOST_BYTES
    within_s: float = ASK_S

    def __call__(self, host: str) -> Observation:
        """Its answer, or InstanceSilentError. No redirection: the token is for this host alone."""
        try:
            place = urlsplit(f"//{host}")
            name, port = place.hostname, place.port
        except ValueError:
            name = port = None
        if not name or port is None or place.username is not None or place.path:
            raise InstanceSilentError("its application.server is no host:port")
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        url = f"{'http' if self.tls is None else 'https'}://{host}/status"
        most = self.most_bytes
        try:
            answer = asked(
                url,
                self.within_s,
                headers=headers,
                tls=self.tls,
                most_bytes=most,
            )
            seen = observation_in(json.loads(answer))
        except RefusedError as refused:
            why = _REASONS.get(refused.status, f"it answers {refused.status}")
            raise InstanceSilentError(why) from refused
        except OSError as failure:
            raise InstanceSilentError(str(failure) or type(failure).__name__) from failure
        except (ValueError, RecursionError) as failure:
            raise InstanceSilentError(f"its answer cannot be read: {failure}"[:300]) from failure
        if seen.application_id != self.application_id:
            raise InstanceSilentError(
                f"another application answers there: {seen.application_id}"[:300]
            )
        return seen


_REASONS = {
    401: "it does not know the token: query.token.file has to be the same for all instances",
    404: "it does not say how it does: it has no http.listen, or an older version",
}
