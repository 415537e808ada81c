"""What a request of the query service says: keys in a path, parameters behind it. Pure."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson
import pyarrow as pa

from everflow.client import key_forms
from everflow.exact_texts import number_text, whole
from everflow.runtime.query.store_query import EntryPlace
from everflow.serdes import JsonSerde, Serde, SerdeError
from everflow.serdes.windowed import TIME_MAX
from everflow.snapshots.query_errors import StoreKindError

MOST_KEY_BYTES = 16 << 10
MOST_ENTRIES = 1_000
ENTRIES = 100
MOST_KEYS = 1_000
MOST_BODY_BYTES = 1 << 20
MOST_PAGE_BYTES = 4 << 20
"""Of a page's entries as JSON. One that is larger by itself is a page of its own."""
MOST_SHOWN = 100
"""Characters of what a request has that a refusal says again."""
_TIMES = ("as_of", "from", "to")
_TRUE, _FALSE = ("", "true", "1"), ("false", "0")


class RefusedRequest(Exception):
    """A request that is not understood, or too large: the status, a code and what to mend."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


def malformed(message: str) -> RefusedRequest:
    return RefusedRequest(400, "EF-QUERY", message)


def shortened(text: str) -> str:
    """Of what was sent, as much as a refusal repeats."""
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


def read_start(text: str) -> int:
    """Where a window begins, as a path says it. Raises RefusedRequest."""
    if text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= TIME_MAX:
        return int(text)
    raise malformed(
        f"{shortened(text)!r} is no time: a window is asked for by its start, ms since the epoch "
        f"(window/START/KEY)."
    )


def read_key(serde: Serde, text: str) -> Any:
    """A key as its text in a path or parameter says it: text as it is, bytes in base64, everything
    else as JSON. Raises RefusedRequest."""
    if len(text) > MOST_KEY_BYTES:
        raise RefusedRequest(
            413, "EF-QUERY", f"A key of {len(text)} characters: {MOST_KEY_BYTES} are the most."
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


def shown(value: Any) -> Any:
    """For orjson, of what it does not know: bytes in base64, decimals as text."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if hasattr(value, "asDict"):
        return value.asDict()
    return str(value)


def as_json(content: Any) -> bytes:
    """Times as ISO 8601, bytes as base64, decimals, NaN and infinities as text."""
    written = orjson.dumps(content, default=shown, option=orjson.OPT_NON_STR_KEYS)
    if b"null" not in written:  # as which orjson writes NaN
        return written
    return orjson.dumps(_named(content), default=shown, option=orjson.OPT_NON_STR_KEYS)


def _named(content: Any) -> Any:
    """``content``, with names for what is no number."""
    if isinstance(content, float):
        return content if math.isfinite(content) else number_text(content)
    if isinstance(content, dict):
        return {name: _named(item) for name, item in content.items()}
    if hasattr(content, "asDict"):
        return _named(content.asDict())
    return [_named(item) for item in content] if type(content) in (list, tuple) else content


class BoundedPage:
    """The entries of one answer, written as they come: so many of them, and so many bytes, at the
    most."""

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
    """Whether a copy may answer, and how many offsets it may be behind at the most."""

    stale: bool = False
    max_lag: int | None = None
    partition: int | None = None


class Parameters:
    """What stands behind the ``?``. Each is asked for by its name; `done` refuses the others."""

    def __init__(self, given: Sequence[tuple[str, str]]) -> None:
        self._given: dict[str, str] = {}
        self._known: set[str] = set()
        for name, value in given:
            if name in self._given:
                raise malformed(f"{shortened(name)} is given twice.")
            self._given[name] = value

    def text(self, name: str) -> str | None:
        self._known.add(name)
        return self._given.get(name)

    def number(self, name: str, default: int | None, least: int = 0, most: int = TIME_MAX) -> Any:
        """A whole number; ``default`` where it is left out."""
        text = self.text(name)
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
        text = self.text(name)
        if text is None or text in _FALSE:
            return False
        if text in _TRUE:
            return True
        raise malformed(f"{name}={shortened(text)!r}: it is true or false.")

    def key(self, name: str, serde: Serde) -> Any:
        """A key; None where it is left out."""
        text = self.text(name)
        return None if text is None else read_key(serde, text)

    def freshness(self) -> CopyChoice:
        found = CopyChoice(
            self.flag("stale"), self.number("max_lag", None), self.number("partition", None)
        )
        if found.max_lag is not None and not found.stale:
            raise malformed("max_lag bounds how far a copy may be behind: it goes with stale=true.")
        return found

    def page(self) -> tuple[int, EntryPlace | None]:
        """How many entries at the most, and behind which place."""
        limit = self.number("limit", ENTRIES, 1, MOST_ENTRIES)
        token = self.text("after")
        return limit, None if token is None else place_of(token)

    def done(self) -> None:
        """RefusedRequest for a parameter that nobody has asked for."""
        unknown = sorted(self._given.keys() - self._known)
        if unknown:
            have = ", ".join(sorted(self._known)) or "none"
            names = shortened(", ".join(unknown))
            raise malformed(f"{names}: no such parameter here; there is: {have}.")


def token_of(place: EntryPlace) -> str:
    """A place, for the next page: the client gives it back as it is."""
    data = place.partition.to_bytes(4, "big") + place.key
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def place_of(token: str) -> EntryPlace:
    """Inverse of `token_of`. Raises RefusedRequest."""
    try:
        data = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
    except ValueError:
        data = b""
    if len(data) < 4:
        raise malformed(f"after={shortened(token)!r} is not what a page before this one gave.")
    return EntryPlace(int.from_bytes(data[:4], "big"), data[4:])


def form_of(serde: Serde) -> str:
    """What keys of ``serde`` are in JSON, one of `everflow.client.key_forms`."""
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
    """The keys of a body ``{"keys": [...]}``. SerdeError for one of another type: JSON says what a
    key is, and 12 is not "12"."""
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise malformed(f"The body is no JSON: {error}") from error
    keys = content.get("keys") if isinstance(content, Mapping) else None
    if not isinstance(keys, list):
        raise malformed('The body is {"keys": [...]}.')
    if len(keys) > MOST_KEYS:
        raise RefusedRequest(413, "EF-QUERY", f"{len(keys)} keys: {MOST_KEYS} are the most.")
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
