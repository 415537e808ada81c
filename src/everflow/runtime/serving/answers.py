"""What the query service answers, as plain values, out of the stores of an instance."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from everflow.errors import RetriableError
from everflow.runtime.query.key_metadata import StoreSite
from everflow.runtime.query.queries import InteractiveQueries, StoreQueries
from everflow.runtime.query.store_query import (
    ReadOnlyStore,
    StoreScan,
    key_bytes,
    values_at_home,
)
from everflow.runtime.serving.parameters import (
    MOST_ENTRIES,
    MOST_KEYS,
    MOST_SHOWN,
    BoundedPage,
    CopyChoice,
    Parameters,
    RefusedRequest,
    form_of,
    malformed,
    read_key,
    read_keys,
    read_start,
    require_kind,
    token_of,
)
from everflow.serdes.windowed import TIME_MAX, window_store_key
from everflow.snapshots.query_errors import (
    InvalidStateStoreError,
    StateElsewhereError,
)
from everflow.user_program import shown
from everflow.windows import Windowed

KEY_VALUE = ("key_value", "versioned")
TOGETHER = 50
"""Of many keys, how many are read before their values are written."""


class ServedStores:
    """One method for each path. ``queries``: who knows the stores there are; InvalidStateStoreError
    before the instance has started. ``status``: how the instance does; None: it is not watched."""

    def __init__(
        self,
        stores: InteractiveQueries,
        queries: Callable[[], StoreQueries],
        status: Callable[[], dict[str, Any]] | None = None,
    ) -> None:
        self._stores = stores
        self._queries = queries
        self._status = status

    def status(self, asked: Parameters) -> dict[str, Any]:
        """How the instance does, as `/status` says it at ``http.listen``: for the pages of other
        instances, which know this address alone."""
        asked.done()
        if self._status is None:
            raise RefusedRequest(404, "EF-QUERY", "The instance is not watched: set http.listen.")
        return self._status()

    def listed(self, asked: Parameters) -> dict[str, Any]:
        """Every store, and which of its partitions can be read here."""
        asked.done()
        return {
            "stores": [self._described(site) for _, site in sorted(self._queries().sites.items())]
        }

    def described(self, asked: Parameters, store: str) -> dict[str, Any]:
        """One store, and about how many entries it has here."""
        fresh = asked.freshness()
        asked.done()
        view = self._view(store, fresh)
        return {
            **self._described(self._queries().site(store)),
            "entries": view.approximate_num_entries() if view.partitions else 0,
        }

    def instances(self, asked: Parameters) -> dict[str, Any]:
        """Who has what, as of the last rebalance."""
        asked.done()
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
        """Who has a key."""
        asked.done()
        where = self._stores.query_metadata_for_key(store, self._key(store, key))
        return {
            "active": where.active_host,
            "standbys": list(where.standby_hosts),
            "partition": where.partition,
            "lag": where.lag,
        }

    # --- key-value stores -------------------------------------------------------------------------

    def entry(self, asked: Parameters, store: str, key: str) -> dict[str, Any]:
        """The value of a key; of a versioned store also as of a time."""
        site = self._kind(store, *KEY_VALUE)
        fresh, as_of = asked.freshness(), asked.number("as_of", None, -TIME_MAX)
        asked.done()
        found = self._key(store, key)
        view = self._view(store, fresh)
        if as_of is not None:
            require_kind(store, site.spec.kind, "versioned")
            version = view.get_as_of(found, as_of)
            return {"key": found, **_version(_present(version, store, key))}
        return {"key": found, "value": _present(view.get(found), store, key)}

    def entries_of(self, asked: Parameters, store: str, body: bytes) -> dict[str, Any]:
        """The values of many keys; of one that is not here, who has it."""
        self._kind(store, *KEY_VALUE)
        return self._many(asked, store, body, None)

    def entries(self, asked: Parameters, store: str) -> dict[str, Any]:
        """Entries of this instance in order of key bytes, partition by partition."""
        site = self._kind(store, *KEY_VALUE)
        serde = site.spec.key_serde
        first, last = asked.key("first", serde), asked.key("last", serde)
        prefix, reverse = asked.key("prefix", serde), asked.flag("reverse")
        if prefix is not None and (first is not None or last is not None or reverse):
            raise RefusedRequest(
                400, "EF-QUERY", "prefix stands alone: without first, last and reverse."
            )

        def ask(view: Any) -> Iterator[Any]:
            if prefix is not None:
                return view.prefix_scan(prefix)  # type: ignore[no-any-return]
            return view.reverse_range(first, last) if reverse else view.range(first, last)  # type: ignore[no-any-return]

        return self._page(asked, store, ask, "entries")

    def versions(self, asked: Parameters, store: str, key: str) -> dict[str, Any]:
        """What a key was, in order of time."""
        self._kind(store, "versioned")
        fresh = asked.freshness()
        first, last = (
            asked.number("from", 0, -TIME_MAX),
            asked.number("to", TIME_MAX - 1, -TIME_MAX),
        )
        asked.done()
        found = self._key(store, key)
        page, more = BoundedPage(MOST_ENTRIES), None
        for one in self._view(store, fresh).versions(found, first, last):
            if not page.add(_version(one)):
                more = one.timestamp
                break
        return {"key": found, "versions": page.rows, "next": more}

    # --- windows and sessions ---------------------------------------------------------------------

    def window(self, asked: Parameters, store: str, key: str, start: str) -> dict[str, Any]:
        """The window of a key that begins at a time."""
        self._kind(store, "window")
        fresh = asked.freshness()
        asked.done()
        time = read_start(start)
        found = self._key(store, key)
        value = self._view(store, fresh).fetch_window(found, time)
        return {"key": found, "start": time, "value": _present(value, store, f"{key}@{start}")}

    def window_of(self, asked: Parameters, store: str, start: str, body: bytes) -> dict[str, Any]:
        """The window of each of many keys that begins at a time; of a key that is not here, who
        has it."""
        self._kind(store, "window")
        return self._many(asked, store, body, read_start(start))

    def windows(self, asked: Parameters, store: str, key: str | None) -> dict[str, Any]:
        """Windows of a key, or of all keys here, that begin in an interval of time."""
        self._kind(store, "window")
        return self._in_time(asked, store, key, "windows", "fetch", "fetch_range")

    def sessions(self, asked: Parameters, store: str, key: str | None) -> dict[str, Any]:
        """Sessions of a key, or of all keys here, that touch an interval of time."""
        self._kind(store, "session")
        return self._in_time(asked, store, key, "sessions", "find_sessions", "find_sessions_range")

    # --- inside -----------------------------------------------------------------------------------

    def _many(
        self, asked: Parameters, store: str, body: bytes, start: int | None
    ) -> dict[str, Any]:
        """The values of the keys of a body, in a window store those of the windows that begin at
        ``start``. ``next``: the place of the first key for which there was no room."""
        fresh = asked.freshness()
        asked.done()
        spec, view = self._queries().site(store).spec, self._view(store, fresh)
        page, keys = BoundedPage(MOST_KEYS), read_keys(store, spec.key_serde, body)
        for begin in range(0, len(keys), TOGETHER):
            part = keys[begin : begin + TOGETHER]
            for key, value in zip(part, self._at_home(store, view, part, start), strict=True):
                row = _found(view, key, start) if value is None else {"key": key, "value": value}
                if not page.add(row):
                    return {"entries": page.rows, "next": len(page.rows)}
        return {"entries": page.rows, "next": None}

    def _at_home(self, store: str, view: Any, keys: Sequence[Any], start: int | None) -> list[Any]:
        """The values that the active tasks of the keys' own partitions have here, read together:
        one by one each costs ten times as much. None: a query of that key alone looks further, or
        says why."""
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
        """The store's queries ``of_key``, or ``of_range`` where no key is given, in an interval of
        time."""
        if key is None:
            serde = self._queries().site(store).spec.key_serde
            name, keys = of_range, [asked.key(end, serde) for end in ("first", "last")]
        else:
            name, keys = of_key, [self._key(store, key)]
        since, until = asked.number("from", 0), asked.number("to", TIME_MAX)
        name = f"backward_{name}" if asked.flag("reverse") else name
        ask = lambda view: getattr(view, name)(*keys, since, until)  # noqa: E731
        return self._page(asked, store, ask, what)

    def _page(
        self, asked: Parameters, store: str, ask: Callable[[Any], Iterator[Any]], what: str
    ) -> dict[str, Any]:
        """The next entries, and where the ones behind them begin."""
        fresh = asked.freshness()
        limit, after = asked.page()
        asked.done()
        view = self._view(store, fresh)
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
    """The entry of one of many keys: its value, or who has it and why there is none here."""
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
        raise RefusedRequest(
            404, "EF-NO-ENTRY", f"Store {store!r} has nothing under {shown(key, MOST_SHOWN)}."
        )
    return value
