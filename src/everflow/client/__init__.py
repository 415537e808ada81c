"""A client of the query service: reads stores of a running application from any process.

`key_forms`: the JSON forms of keys; `direct`: asks a host past any proxy, for commands and loops.
May import layer 0 and the standard library; knows no broker, no Spark and no runtime.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

from everflow.client import direct, key_forms
from everflow.errors import ConfigError, EverflowError
from everflow.windows import Windowed

__all__ = ["KeyOwner", "QueryClient", "QueryRefusedError", "QueryUnavailableError", "StoreInfo"]

MOST_REDIRECTIONS = 4
MOST_ANSWER_BYTES = 256 << 20
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0


class QueryRefusedError(EverflowError):
    """The service refuses the query: no such store, a key of another type, a wrong token.

    Attributes: status: the HTTP status.
    """

    code = "EF-QUERY"

    def __init__(self, message: str, *, status: int, code: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.code = code or self.code


class QueryUnavailableError(EverflowError):
    """No response within ``patience``; the text says why. Retry, or allow a replica (``stale``)."""

    code = "EF-QUERY-UNAVAILABLE"


class Connections:
    """Kept open, one to each instance. Owned by one thread at a time."""

    def __init__(
        self,
        servers: Sequence[str],
        token: str | None,
        tls: ssl.SSLContext | None,
        timeout_s: float,
        patience_s: float,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """``servers``: host:port each; ``timeout_s``: of one try; ``patience_s``: of all tries."""
        self._servers = list(servers)
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._tls = tls
        self._timeout_s, self._patience_s = timeout_s, patience_s
        self._clock, self._pause = clock, pause
        self._open: dict[str, http.client.HTTPConnection] = {}

    def ask(self, path: str, body: bytes | None = None, at: str | None = None) -> Any:
        """The answer's content, from an instance that has it; ``body``: JSON; ``at`` is asked
        first. Raises QueryRefusedError, QueryUnavailableError."""
        until_s, pause_s = self._clock() + self._patience_s, FIRST_PAUSE_S
        while True:
            reason = ""
            for server in dict.fromkeys([*([] if at is None else [at]), *self._servers]):
                found, failure = self._followed(server, path, body)
                if found is not None:
                    return found
                self._servers.sort(key=server.__eq__)  # last from now on
                reason = f"{server}: {failure}"
            if self._clock() + pause_s > until_s:
                raise QueryUnavailableError(f"{path}: no answer ({reason})")
            self._pause(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def close(self) -> None:
        for connection in self._open.values():
            connection.close()
        self._open.clear()

    def _followed(self, server: str, path: str, body: bytes | None) -> tuple[Any, str]:
        for _ in range(MOST_REDIRECTIONS):
            try:
                status, content, location = self._sent(server, path, body)
            except (OSError, http.client.HTTPException, ValueError) as failure:
                self._drop(server)
                return None, f"{type(failure).__name__}: {failure}"
            if status == 200:
                return content, ""
            if status == 307 and location is not None:
                server = urlsplit(location).netloc
                continue
            error = content.get("error") if isinstance(content, dict) else None
            if not isinstance(error, dict):
                if status >= 500:  # of a proxy, for example
                    return None, f"status {status}"
                raise _stranger(server, status)
            message = str(error.get("message", f"status {status}"))
            if status >= 500:
                return None, message
            raise QueryRefusedError(message, status=status, code=str(error.get("code", "")))
        return None, "each instance names another one"

    def _sent(
        self,
        server: str,
        path: str,
        body: bytes | None,
    ) -> tuple[int, Any, str | None]:
        """Status and content of the answer, and where it says that somebody else has it."""
        kept = server in self._open
        connection = self._connection(server)
        try:
            connection.request("GET" if body is None else "POST", path, body, self._headers)
            answer = connection.getresponse()
        except (ConnectionError, http.client.RemoteDisconnected):
            if not kept:
                raise
            self._drop(server)  # it was closed while nobody asked
            return self._sent(server, path, body)
        content = answer.read(MOST_ANSWER_BYTES + 1)
        if len(content) > MOST_ANSWER_BYTES:
            self._drop(server)
            raise QueryRefusedError(
                f"The answer of {server} to {path} is larger than {MOST_ANSWER_BYTES:,} bytes: ask "
                f"for fewer entries at once (limit), or for fewer keys.",
                status=answer.status,
            )
        try:
            found = json.loads(content) if content else None
        except ValueError as error:
            if answer.status < 500:
                raise _stranger(server, answer.status) from error
            found = None
        return answer.status, found, answer.getheader("Location")

    def _connection(self, server: str) -> http.client.HTTPConnection:
        if server not in self._open:
            scheme = "http" if self._tls is None else "https"
            self._open[server] = direct.connection_to(
                scheme,
                server,
                self._timeout_s,
                self._tls,
            )
        return self._open[server]

    def _drop(self, server: str) -> None:
        connection = self._open.pop(server, None)
        if connection is not None:
            connection.close()


def _stranger(server: str, status: int) -> QueryRefusedError:
    return QueryRefusedError(
        f"What answered at {server} (status {status}) is no query service: give the address of "
        f"query.listen, which is not that of http.listen.",
        status=status,
    )


PAGE = 1_000
NO_ENTRY = "EF-NO-ENTRY"
WRONG_KEY = "EF-SERDE"


class StoreInfo(NamedTuple):
    """A store of the application. ``key``: a description of its keys' serde; ``here``: partitions
    of which the answering instance has the active task; ``copies``: those of its replicas."""

    name: str
    kind: str
    key: str
    partitions: int
    here: tuple[int, ...]
    copies: tuple[int, ...]
    window_size_ms: int | None
    retention_ms: int | None


class KeyOwner(NamedTuple):
    """The instances that have a key's partition: ``host:port`` of the active task and the standbys,
    the partition's number, and the lag (offsets) of the answering instance's replica, or None."""

    active: str | None
    standbys: tuple[str, ...]
    partition: int
    lag: int | None


class QueryClient:
    """Reads the stores of an application through its query service (``query.listen``).

    ``servers`` may be any instances: the client follows to the owner of a key, and retries for
    ``patience`` seconds while a task migrates. Pass keys of the table's type: text, bytes, numbers,
    dicts (12 is refused if keys are text). Values are JSON: a timestamp is text, bytes are base64.

    Owned by one thread at a time. Every call may raise QueryRefusedError (a retry will not help)
    and QueryUnavailableError (no response in time). ``stale`` also lets replicas answer, which may
    lag by ``max_lag`` offsets (KIP-535).
    """

    def __init__(
        self,
        servers: str | Sequence[str],
        *,
        token: str | None = None,
        ca: str | None = None,
        tls: bool = False,
        timeout: float = 5.0,
        patience: float = 10.0,
    ) -> None:
        """``servers``: host:port of instances. ``ca``: file of the authority that signed the
        service's certificate (PEM); it implies ``tls`` (https). ``timeout``: seconds for one
        response. Raises ConfigError if ``servers`` is empty, or ``ca`` cannot be used."""
        context = _trusting(ca) if tls or ca is not None else None
        addresses = [servers] if isinstance(servers, str) else list(servers)
        if not addresses or not all(addresses):
            raise ConfigError(
                f"QueryClient({servers!r}) has nobody to ask: give host:port of one instance or "
                f"more, the address of query.listen."
            )
        for server in addresses:
            _require_address(server)
        self._connections = Connections(addresses, token, context, timeout, patience)
        self._keys_of: dict[str, tuple[str, str]] = {}  # by store: words and form

    def stores(self) -> list[StoreInfo]:
        """All stores of the application, as one instance reports them."""
        lists = ("here", "copies")
        return [
            StoreInfo._make(tuple(one[n]) if n in lists else one[n] for n in StoreInfo._fields)
            for one in self._ask("/stores")["stores"]
        ]

    def owner(self, store: str, key: Any) -> KeyOwner:
        """The instances that have a key's partition, as a `KeyOwner`."""
        found = self._ask(f"/stores/{_quoted(store)}/owner/{self._key(store, key)}")
        return KeyOwner(
            found["active"],
            tuple(found["standbys"]),
            found["partition"],
            found["lag"],
        )

    def get(
        self,
        store: str,
        key: Any,
        *,
        as_of: int | None = None,
        stale: bool = False,
        max_lag: int | None = None,
    ) -> Any:
        """The value of a key, None if there is none. In a versioned store ``as_of`` (ms since the
        epoch) selects the value at that time."""
        asked = _asked(stale, max_lag, as_of=as_of)
        found = self._entry(f"/stores/{_quoted(store)}/entries/{self._key(store, key)}", asked)
        return None if found is None else found["value"]

    def get_many(
        self, store: str, keys: Iterable[Any], *, stale: bool = False, max_lag: int | None = None
    ) -> list[Any]:
        """The value of each key, in the order of ``keys``; None for a key without a value."""
        wanted = list(keys)
        self._form(store, wanted)
        found: list[Any] = [None] * len(wanted)
        path = _with(f"/stores/{_quoted(store)}/entries", _asked(stale, max_lag))
        asks: list[tuple[str | None, list[int]]] = [(None, list(range(len(wanted))))]
        for at, places in asks:  # it grows: who has not a key names who has it
            left: dict[str | None, list[int]] = {}
            start = 0
            while start < len(places):
                part = places[start : start + PAGE]
                asked_for = {"keys": [wanted[place] for place in part]}
                body = json.dumps(asked_for, default=_json).encode()
                answer = self._connections.ask(path, body, at)
                rows = answer["entries"]
                for place, one in zip(part[: answer.get("next")], rows, strict=True):
                    if "error" in one:
                        left.setdefault(one["host"], []).append(place)
                    else:
                        found[place] = one["value"]
                start += len(rows)
            for host, others in left.items():
                if at is None and host is not None:
                    asks.append((host, others))
                else:  # they move: one after the other, with patience
                    for place in others:
                        found[place] = self.get(
                            store,
                            wanted[place],
                            stale=stale,
                            max_lag=max_lag,
                        )
        return found

    def range(
        self,
        store: str,
        first: Any = None,
        last: Any = None,
        *,
        prefix: Any = None,
        reverse: bool = False,
        stale: bool = False,
        max_lag: int | None = None,
    ) -> Iterator[tuple[Any, Any]]:
        """Keys and values of all instances, one partition after the other, ordered by key bytes
        within each partition. ``first`` and ``last`` are included; None leaves a side open."""
        asked = _asked(stale, max_lag, reverse=reverse)
        asked |= self._ends(store, first=first, last=last, prefix=prefix)
        for row in self._everywhere(store, "entries", asked):
            yield row["key"], row["value"]

    def versions(
        self, store: str, key: Any, time_from: int | None = None, time_to: int | None = None
    ) -> list[dict[str, Any]]:
        """The versions of a key that were valid from ``time_from`` to ``time_to`` (ms), in order of
        time: dicts with ``value``, ``timestamp`` and ``valid_to``."""
        path = f"/stores/{_quoted(store)}/versions/{self._key(store, key)}"
        found: list[dict[str, Any]] = []
        while True:
            page = self._ask(path, _asked(False, None, **_between(time_from, time_to)))
            found += page["versions"]
            time_from = page.get("next")
            if time_from is None:
                return found

    def fetch_window(
        self, store: str, key: Any, start: int, *, stale: bool = False, max_lag: int | None = None
    ) -> Any:
        """The value of a key in the window that starts at ``start`` (ms), None if there is none."""
        path = f"/stores/{_quoted(store)}/window/{start}/{self._key(store, key)}"
        found = self._entry(path, _asked(stale, max_lag))
        return None if found is None else found["value"]

    def fetch(
        self,
        store: str,
        key: Any,
        time_from: int | None = None,
        time_to: int | None = None,
        *,
        reverse: bool = False,
        stale: bool = False,
        max_lag: int | None = None,
    ) -> Iterator[tuple[Windowed, Any]]:
        """Windows of a key that start from ``time_from`` to ``time_to`` (ms, both included), in
        order of time."""
        asked = _asked(stale, max_lag, reverse=reverse, **_between(time_from, time_to))
        return map(
            _windowed,
            self._pages(
                store,
                "windows",
                "/" + self._key(store, key),
                asked,
            ),
        )

    def fetch_all(
        self,
        store: str,
        time_from: int | None = None,
        time_to: int | None = None,
        *,
        first: Any = None,
        last: Any = None,
        stale: bool = False,
        max_lag: int | None = None,
    ) -> Iterator[tuple[Windowed, Any]]:
        """Windows of all keys, or of keys from ``first`` to ``last``, that start from ``time_from``
        to ``time_to`` (ms): one partition after the other, ordered by key bytes within each."""
        asked = _asked(stale, max_lag, **_between(time_from, time_to))
        asked |= self._ends(store, first=first, last=last)
        return map(_windowed, self._everywhere(store, "windows", asked))

    def find_sessions(
        self,
        store: str,
        key: Any,
        time_from: int | None = None,
        time_to: int | None = None,
        *,
        reverse: bool = False,
        stale: bool = False,
        max_lag: int | None = None,
    ) -> Iterator[tuple[Windowed, Any]]:
        """The sessions of a key that end at ``time_from`` (ms) or later and start at ``time_to`` or
        earlier, in order of their ends."""
        asked = _asked(stale, max_lag, reverse=reverse, **_between(time_from, time_to))
        return map(
            _windowed,
            self._pages(
                store,
                "sessions",
                "/" + self._key(store, key),
                asked,
            ),
        )

    def close(self) -> None:
        """Close the connections to all instances; a later call opens new ones."""
        self._connections.close()

    def __enter__(self) -> QueryClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _key(self, store: str, key: Any) -> str:
        return _quoted(_text(key, self._form(store, [key])))

    def _ends(self, store: str, **keys: Any) -> dict[str, str]:
        present = {name: key for name, key in keys.items() if key is not None}
        form = self._form(store, list(present.values())) if present else ""
        return {name: _text(key, form) for name, key in present.items()}

    def _form(self, store: str, keys: Sequence[Any]) -> str:
        """The JSON form of a store's keys; asked for again before a refusal: it may be new."""
        refused = self._refusal(store, keys)
        if refused or store not in self._keys_of:
            self._keys_of = {
                one["name"]: (one["key"], one["key_form"]) for one in self._ask("/stores")["stores"]
            }
            refused = self._refusal(store, keys)
        if refused:
            raise QueryRefusedError(refused, status=400, code=WRONG_KEY)
        return self._keys_of[store][1] if store in self._keys_of else key_forms.TEXT

    def _refusal(self, store: str, keys: Sequence[Any]) -> str | None:
        """Of the first key that is none; what there is no store for, the service refuses."""
        if store not in self._keys_of:
            return None
        found = (key_forms.refusal(store, *self._keys_of[store], key) for key in keys)
        return next(filter(None, found), None)

    def _ask(self, path: str, asked: Mapping[str, Any] | None = None) -> Any:
        return self._connections.ask(_with(path, asked or {}))

    def _entry(self, path: str, asked: Mapping[str, Any]) -> Any:
        try:
            return self._ask(path, asked)
        except QueryRefusedError as refused:
            if refused.code == NO_ENTRY:
                return None
            raise

    def _everywhere(
        self, store: str, what: str, asked: Mapping[str, Any]
    ) -> Iterator[dict[str, Any]]:
        """One partition after the other, each at its owner, whom other instances name."""
        partitions = self._ask(f"/stores/{_quoted(store)}")["partitions"]
        for partition in range(partitions):
            yield from self._pages(store, what, "", {**asked, "partition": partition})

    def _pages(
        self, store: str, what: str, key: str, asked: Mapping[str, Any]
    ) -> Iterator[dict[str, Any]]:
        after: str | None = None
        while True:
            page = {"limit": PAGE} if after is None else {"limit": PAGE, "after": after}
            found = self._ask(f"/stores/{_quoted(store)}/{what}{key}", {**asked, **page})
            yield from found[what]
            after = found["next"]
            if after is None:
                return


def _require_address(server: str) -> None:
    try:
        parts = urlsplit(f"//{server}")
        fits = bool(parts.hostname) and (parts.port or 1) > 0 and parts.netloc == server
    except ValueError:  # a port that is no number
        fits = False
    if not fits:
        raise ConfigError(
            f"QueryClient: {server!r} is no host:port. It is the address of query.listen, without "
            f"http:// before it or a path behind it; tls=True asks by https."
        )


def _trusting(ca: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca)
    except OSError as error:  # of SSL, too
        raise ConfigError(
            f"QueryClient(ca={ca!r}) cannot be used ({error}): it is the file with the certificate "
            f"of the authority (PEM) that signed the service's."
        ) from error


def _asked(stale: bool, max_lag: int | None, **others: Any) -> dict[str, Any]:
    options = {"stale": stale, "max_lag": max_lag, **others}
    return {
        name: "true" if value is True else value
        for name, value in options.items()
        if value is not None and value is not False
    }


def _between(time_from: int | None, time_to: int | None) -> dict[str, int | None]:
    return {"from": time_from, "to": time_to}


def _text(key: Any, form: str) -> str:
    """A key as a path has it: text as it is, bytes in base64, everything else as JSON."""
    said = _json(key) if isinstance(key, bytes) else key
    if isinstance(said, str) and form in (key_forms.TEXT, key_forms.BYTES):
        return said
    return json.dumps(said, default=_json)


def _json(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.urlsafe_b64encode(value).decode()
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else str(value)


def _quoted(text: str) -> str:
    return quote(text, safe="")


def _with(path: str, asked: Mapping[str, Any]) -> str:
    return f"{path}?{urlencode(asked)}" if asked else path


def _windowed(row: Mapping[str, Any]) -> tuple[Windowed, Any]:
    return Windowed(row["key"], row["start"], row["end"]), row["value"]
