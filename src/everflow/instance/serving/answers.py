"""Reads requests of the query service and answers them from the stores of an instance."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import orjson
import pyarrow as pa

from everflow.client import key_forms
from everflow.errors import RetriableError
from everflow.exact_texts import number_text, whole
from everflow.instance.query.queries import InteractiveQueries, StoreSite
from everflow.instance.query.store_query import (
    EntryPlace,
    ReadOnlyStore,
    StoreScan,
    key_bytes,
    values_at_home,
)
from everflow.observe.requests import RefusedRequest
from everflow.serdes import JsonSerde, Serde, SerdeError
from everflow.serdes.windowed import TIME_MAX, window_store_key
from everflow.snapshots.query_errors import (
    InvalidStateStoreError,
    StateElsewhereError,
    StoreKindError,
)
from everflow.user_program import shown
from everflow.windows import Windowed

MOST_KEY_BYTES = 16 << 10
MOST_ENTRIES = 1_000
ENTRIES = 100
MOST_KEYS = 1_000
MOST_BODY_BYTES = 1 << 20
MOST_PAGE_BYTES = 4 << 20
"""Size of a page's entries as JSON. A larger entry is a page of its own."""
MOST_SHOWN = 100
"""Length to which a refusal repeats text of the request."""
_TIMES = ("as_of", "from", "to")
_TRUE, _FALSE = ("", "true", "1"), ("false", "0")


def malformed(message: str) -> RefusedRequest:
    return RefusedRequest(400, message)


def shortened(text: str) -> str:
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


def read_start(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= TIME_MAX:
        return int(text)
    raise malformed(
        f"{shortened(text)!r} is no time: a window is asked for by its start, ms since the epoch "
        f"(window/START/KEY)."
    )


def read_key(serde: Serde, text: str) -> Any:
    """A key of a path: text as it is, bytes in base64, all else as JSON. RefusedRequest."""
    if len(text) > MOST_KEY_BYTES:
        raise RefusedRequest(
            413, f"A key of {len(text)} characters: {MOST_KEY_BYTES} are the most."
        )
    type_ = serde.type
    if pa.types.is_string(type_):
        return text
    if pa.types.is_binary(type_):
        try:
            return base64.b64decode(text, altchars=b"-_", validate=True)
        except ValueError as error:
            raise malformed(
                f"{shortened(text)!r} is no base64, as which keys of bytes are written."
            ) from error
    try:
        return JsonSerde(type_).decode(text.encode())
    except SerdeError as error:
        raise malformed(
            f"{shortened(text)!r} is no key, which are {serde!r}, written as JSON: {error}"
        ) from error


def plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if hasattr(value, "asDict"):
        return value.asDict()
    return str(value)


def as_json(content: Any) -> bytes:
    """Times as ISO 8601, bytes as base64, decimals, NaN and infinities as text."""
    written = orjson.dumps(content, default=plain, option=orjson.OPT_NON_STR_KEYS)
    if b"null" not in written:  # as which orjson writes NaN
        return written
    return orjson.dumps(_named(content), default=plain, option=orjson.OPT_NON_STR_KEYS)


def _named(content: Any) -> Any:
    if isinstance(content, float):
        return content if math.isfinite(content) else number_text(content)
    if isinstance(content, dict):
        return {name: _named(item) for name, item in content.items()}
    if hasattr(content, "asDict"):
        return _named(content.asDict())
    return [_named(item) for item in content] if type(content) in (list, tuple) else content


class BoundedPage:
    """The entries of one answer, written as they come, up to ``limit`` and `MOST_PAGE_BYTES`."""

    def __init__(self, limit: int) -> None:
        self.rows: list[orjson.Fragment] = []
        self._limit, self._bytes = limit, 0

    def add(self, row: Any) -> bool:
        """False where there is no room for ``row``: the next page begins with it."""
        if len(self.rows) >= self._limit:
            return False
        written = as_json(row)
        if self.rows and self._bytes + len(written) > MOST_PAGE_BYTES:
            return False
        self.rows.append(orjson.Fragment(written))
        self._bytes += len(written)
        return True


class CopyChoice(NamedTuple):
    stale: bool = False
    max_lag: int | None = None
    partition: int | None = None


class Parameters:
    """The parameters behind the ``?``, of which a path has the ``known`` ones."""

    def __init__(self, pairs: Sequence[tuple[str, str]], known: Collection[str]) -> None:
        self._values: dict[str, str] = {}
        for name, value in pairs:
            if name in self._values:
                raise malformed(f"{shortened(name)} is given twice.")
            self._values[name] = value
        if unknown := sorted(self._values.keys() - set(known)):
            have = ", ".join(sorted(known)) or "none"
            names = shortened(", ".join(unknown))
            raise malformed(f"{names}: unknown parameter; the known ones are: {have}.")

    def number(
        self,
        name: str,
        default: int | None,
        least: int = 0,
        most: int = TIME_MAX,
    ) -> Any:
        text = self._values.get(name)
        if text is None:
            return default
        try:
            value = whole(text)
        except ValueError as error:
            what = "no time in ms since the epoch" if name in _TIMES else "no whole number"
            raise malformed(f"{name}={shortened(text)!r} is {what}.") from error
        if not least <= value <= most:
            raise malformed(f"{name}={value}: it is at least {least} and at most {most}.")
        return value

    def flag(self, name: str) -> bool:
        text = self._values.get(name)
        if text is None or text in _FALSE:
            return False
        if text in _TRUE:
            return True
        raise malformed(f"{name}={shortened(text)!r}: it is true or false.")

    def key(self, name: str, serde: Serde) -> Any:
        text = self._values.get(name)
        return None if text is None else read_key(serde, text)

    def freshness(self) -> CopyChoice:
        found = CopyChoice(
            self.flag("stale"), self.number("max_lag", None), self.number("partition", None)
        )
        if found.max_lag is not None and not found.stale:
            raise malformed("max_lag bounds how far a copy may be behind: it goes with stale=true.")
        return found

    def page(self) -> tuple[int, EntryPlace | None]:
        limit = self.number("limit", ENTRIES, 1, MOST_ENTRIES)
        token = self._values.get("after")
        return limit, None if token is None else place_of(token)


def token_of(place: EntryPlace) -> str:
    """A place, for the next page: the client gives it back as it is."""
    data = place.partition.to_bytes(4, "big") + place.key
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def place_of(token: str) -> EntryPlace:
    try:
        data = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
    except ValueError:
        data = b""
    if len(data) < 4:
        raise malformed(f"after={shortened(token)!r} is not what a page before this one gave.")
    return EntryPlace(int.from_bytes(data[:4], "big"), data[4:])


def form_of(serde: Serde) -> str:
    type_ = serde.type
    forms = (
        (pa.types.is_string, key_forms.TEXT),
        (pa.types.is_binary, key_forms.BYTES),
        (pa.types.is_integer, key_forms.WHOLE),
        (pa.types.is_floating, key_forms.NUMBER),
        (pa.types.is_boolean, key_forms.TRUTH),
        (pa.types.is_struct, key_forms.OBJECT),
        (pa.types.is_list, key_forms.LIST),
    )
    return next((form for is_one, form in forms if is_one(type_)), key_forms.OTHER)


def read_keys(store: str, serde: Serde, body: bytes) -> list[Any]:
    """The keys of a body ``{"keys": [...]}``. SerdeError for another JSON type: 12 is not "12"."""
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise malformed(f"The body is no JSON: {error}") from error
    keys = content.get("keys") if isinstance(content, Mapping) else None
    if not isinstance(keys, list):
        raise malformed('The body is {"keys": [...]}.')
    if len(keys) > MOST_KEYS:
        raise RefusedRequest(413, f"{len(keys)} keys: {MOST_KEYS} are the most.")
    form = form_of(serde)
    for key in keys:
        refused = key_forms.refusal(store, repr(serde), form, key)
        if refused is not None:
            raise SerdeError(refused)
    as_text = form in (key_forms.TEXT, key_forms.BYTES)
    return [read_key(serde, key if as_text else orjson.dumps(key).decode()) for key in keys]


def require_kind(name: str, kind: str, *kinds: str) -> None:
    """StoreKindError, with the paths that the store has, unless it is one of ``kinds``."""
    if kind not in kinds:
        paths = {"window": "windows", "session": "sessions"}.get(kind, "entries")
        raise StoreKindError(
            f"Store {name!r} is a {kind} store: ask /stores/{name}/{paths} instead."
        )


KEY_VALUE = ("key_value", "versioned")
TOGETHER = 50


class ServedStores:
    """One method for each path."""

    def __init__(
        self,
        stores: InteractiveQueries,
        status: Callable[[], dict[str, Any]] | None = None,
    ) -> None:
        self._stores, self._queries = stores, stores._asked
        self._status = status

    def status(self, asked: Parameters) -> dict[str, Any]:
        """The instance's `/status`, for other dashboards, which know this address alone."""
        if self._status is None:
            raise RefusedRequest(404, "The instance is not watched: set http.listen.")
        return self._status()

    def listed(self, asked: Parameters) -> dict[str, Any]:
        return {
            "stores": [self._described(site) for _, site in sorted(self._queries().sites.items())]
        }

    def described(self, asked: Parameters, store: str) -> dict[str, Any]:
        view = self._view(store, asked.freshness())
        return {
            **self._described(self._queries().site(store)),
            "entries": view.approximate_num_entries() if view.partitions else 0,
        }

    def instances(self, asked: Parameters) -> dict[str, Any]:
        return {
            "instances": [
                {
                    "host": one.host,
                    "stores": sorted(one.store_names),
                    "standby_stores": sorted(one.standby_store_names),
                }
                for one in self._stores.metadata_for_all_streams_clients()
            ]
        }

    def owner(self, asked: Parameters, store: str, key: str) -> dict[str, Any]:
        where = self._stores.query_metadata_for_key(store, self._key(store, key))
        return {
            "active": where.active_host,
            "standbys": list(where.standby_hosts),
            "partition": where.partition,
            "lag": where.lag,
        }

    def entry(self, asked: Parameters, store: str, key: str) -> dict[str, Any]:
        site = self._kind(store, *KEY_VALUE)
        as_of = asked.number("as_of", None, -TIME_MAX)
        found, view = self._key(store, key), self._view(store, asked.freshness())
        if as_of is not None:
            require_kind(store, site.spec.kind, "versioned")
            version = view.get_as_of(found, as_of)
            return {"key": found, **_version(_present(version, store, key))}
        return {"key": found, "value": _present(view.get(found), store, key)}

    def entries_of(self, asked: Parameters, store: str, body: bytes) -> dict[str, Any]:
        self._kind(store, *KEY_VALUE)
        return self._many(asked, store, body, None)

    def entries(self, asked: Parameters, store: str) -> dict[str, Any]:
        site = self._kind(store, *KEY_VALUE)
        serde = site.spec.key_serde
        first, last = asked.key("first", serde), asked.key("last", serde)
        prefix, reverse = asked.key("prefix", serde), asked.flag("reverse")
        if prefix is not None and (first is not None or last is not None or reverse):
            raise malformed("prefix stands alone: without first, last and reverse.")

        def ask(view: Any) -> Iterator[Any]:
            if prefix is not None:
                return view.prefix_scan(prefix)  # type: ignore[no-any-return]
            return view.reverse_range(first, last) if reverse else view.range(first, last)  # type: ignore[no-any-return]

        return self._page(asked, store, ask, "entries")

    def versions(self, asked: Parameters, store: str, key: str) -> dict[str, Any]:
        self._kind(store, "versioned")
        first = asked.number("from", 0, -TIME_MAX)
        last = asked.number("to", TIME_MAX - 1, -TIME_MAX)
        found, view = self._key(store, key), self._view(store, asked.freshness())
        page, more = BoundedPage(MOST_ENTRIES), None
        for one in view.versions(found, first, last):
            if not page.add(_version(one)):
                more = one.timestamp
                break
        return {"key": found, "versions": page.rows, "next": more}

    def window(self, asked: Parameters, store: str, key: str, start: str) -> dict[str, Any]:
        self._kind(store, "window")
        time, found = read_start(start), self._key(store, key)
        value = self._view(store, asked.freshness()).fetch_window(found, time)
        return {"key": found, "start": time, "value": _present(value, store, f"{key}@{start}")}

    def window_of(
        self,
        asked: Parameters,
        store: str,
        start: str,
        body: bytes,
    ) -> dict[str, Any]:
        self._kind(store, "window")
        return self._many(asked, store, body, read_start(start))

    def windows(self, asked: Parameters, store: str, key: str | None) -> dict[str, Any]:
        self._kind(store, "window")
        return self._in_time(asked, store, key, "windows", "fetch", "fetch_range")

    def sessions(self, asked: Parameters, store: str, key: str | None) -> dict[str, Any]:
        self._kind(store, "session")
        return self._in_time(
            asked,
            store,
            key,
            "sessions",
            "find_sessions",
            "find_sessions_range",
        )

    def _many(
        self, asked: Parameters, store: str, body: bytes, start: int | None
    ) -> dict[str, Any]:
        """The values of the keys of a body. ``next``: the first key for which there was no room."""
        spec, view = self._queries().site(store).spec, self._view(store, asked.freshness())
        page, keys = BoundedPage(MOST_KEYS), read_keys(store, spec.key_serde, body)
        for begin in range(0, len(keys), TOGETHER):
            part = keys[begin : begin + TOGETHER]
            for key, value in zip(part, self._at_home(store, view, part, start), strict=True):
                row = _found(view, key, start) if value is None else {"key": key, "value": value}
                if not page.add(row):
                    return {"entries": page.rows, "next": len(page.rows)}
        return {"entries": page.rows, "next": None}

    def _at_home(
        self,
        store: str,
        view: Any,
        keys: Sequence[Any],
        start: int | None,
    ) -> list[Any]:
        """`values_at_home` for keys as JSON has them: one by one each costs ten times as much."""
        site = self._queries().site(store)
        if site.spec.kind == "versioned":
            return [None] * len(keys)
        stored = [key_bytes(site.spec, key) for key in keys]
        wanted = [(key, key if start is None else window_store_key(key, start)) for key in stored]
        try:
            return values_at_home(view, wanted, site.value_reader)
        except (InvalidStateStoreError, RetriableError):  # it moves: each key says so
            return [None] * len(keys)

    def _in_time(
        self, asked: Parameters, store: str, key: str | None, what: str, of_key: str, of_range: str
    ) -> dict[str, Any]:
        if key is None:
            serde = self._queries().site(store).spec.key_serde
            name, keys = of_range, [asked.key(end, serde) for end in ("first", "last")]
        else:
            name, keys = of_key, [self._key(store, key)]
        since, until = asked.number("from", 0), asked.number("to", TIME_MAX)
        name = f"backward_{name}" if asked.flag("reverse") else name

        def ask(view: Any) -> Iterator[Any]:
            return getattr(view, name)(*keys, since, until)  # type: ignore[no-any-return]

        return self._page(asked, store, ask, what)

    def _page(
        self, asked: Parameters, store: str, ask: Callable[[Any], Iterator[Any]], what: str
    ) -> dict[str, Any]:
        limit, after = asked.page()
        view = self._view(store, asked.freshness())
        partitions = view.partitions
        found = ask(view.behind(after))
        assert isinstance(found, StoreScan)
        page, ended, more = BoundedPage(limit), found.place, False
        for key, value in found:
            if not page.add(_row(key, value)):
                more = True
                break
            ended = found.place
        return {
            what: page.rows,
            "partitions": list(partitions),
            "next": token_of(ended) if more and ended is not None else None,
        }

    def _kind(self, store: str, *kinds: str) -> StoreSite:
        site = self._queries().site(store)
        require_kind(store, site.spec.kind, *kinds)
        return site

    def _key(self, store: str, text: str) -> Any:
        return read_key(self._queries().site(store).spec.key_serde, text)

    def _view(self, store: str, fresh: CopyChoice) -> Any:
        try:
            return self._stores.store(
                store, fresh.partition, stale=fresh.stale, max_lag=fresh.max_lag
            )
        except ValueError as error:  # of a partition that there is not
            raise malformed(str(error)) from error

    def _described(self, site: StoreSite) -> dict[str, Any]:
        view: ReadOnlyStore = self._stores.store(site.spec.name)
        copies: ReadOnlyStore = self._stores.store(site.spec.name, stale=True)
        return {
            "name": site.spec.name,
            "kind": site.spec.kind,
            "key": repr(site.spec.key_serde),
            "key_form": form_of(site.spec.key_serde),
            "partitions": site.partitions,
            "here": list(view.partitions),
            "copies": sorted(set(copies.partitions) - set(view.partitions)),
            "window_size_ms": site.spec.window_size_ms,
            "retention_ms": site.spec.retention_ms,
        }


def _row(key: Any, value: Any) -> dict[str, Any]:
    if isinstance(key, Windowed):
        return {"key": key.key, "start": key.start, "end": key.end, "value": value}
    return {"key": key, "value": value}


def _found(view: Any, key: Any, start: int | None) -> dict[str, Any]:
    """The entry of one of many keys: its value, or its host and why there is none here."""
    try:
        value = view.get(key) if start is None else view.fetch_window(key, start)
        return {"key": key, "value": value}
    except StateElsewhereError as elsewhere:
        return {"key": key, "host": elsewhere.host, "error": str(elsewhere)}
    except (InvalidStateStoreError, RetriableError) as error:
        return {"key": key, "host": None, "error": str(error)}


def _version(found: Any) -> dict[str, Any]:
    return {"value": found.value, "timestamp": found.timestamp, "valid_to": found.valid_to}


def _present(value: Any, store: str, key: str) -> Any:
    if value is None:
        what = f"Store {store!r} has nothing under {shown(key, MOST_SHOWN)}."
        raise RefusedRequest(404, what, "EF-NO-ENTRY")
    return value
