"""Point reads on a short road: several are answered with one look at a store (note 058).

A read of one key is a microsecond of LMDB and four hundred of HTTP in general: a parser for all
that a request can be, a task, a thread, a response for all that an answer can be. So a request
that is a plain point read, whole and alone in what has arrived, waits for a moment and is answered
with those that came meanwhile. Everything else, and every read that is no success, goes the general
road as if this one was not there.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple
from urllib.parse import unquote

from everflow.runtime.serving.answers import ServedStores
from everflow.runtime.serving.parameters import as_json
from everflow.serdes.windowed import TIME_MAX

BEGIN, END, HEAD_END = b"GET /stores/", b" HTTP/1.1", b"\r\n\r\n"
MOST_BYTES = 4 << 10
"""Of a request on the short road."""
MOST_CLIENTS = 1_000
"""Of which the headers are known, 4 MB at the most."""
ACCEPTED = frozenset((b"accept", b"accept-encoding", b"accept-language", b"user-agent"))
"""Headers that change nothing of an answer."""
_TARGET = re.compile(rb"[\x21-\x7e]+")
_VALUE = re.compile(rb"[\t\x20-\x7e]*")
"""What HTTP has in them (RFC 9112): the general road refuses other bytes of a target with 400."""


class PlainRead(NamedTuple):
    """What a plain read asks for: a key, as its text in the path says it, and of a window its
    start (ms)."""

    store: str
    key: str
    start: int | None


class PointReads:
    """Answers requests in bytes; on the event loop of the service, so nothing here may wait for a
    broker: what needs one has parameters, and those go the general road."""

    def __init__(
        self,
        answers: ServedStores,
        allowed: Callable[[str], bool],
        named: Callable[[str], bool],
    ) -> None:
        """``allowed``: whether the value of the header Authorization ("": none) is enough;
        ``named``: whether that of Host is one of the service's own names."""
        self._answers, self._allowed, self._named = answers, allowed, named
        self._plain: set[bytes] = set()

    def bodies(self, asked: Sequence[PlainRead]) -> list[bytes | None]:
        """See `ShortAnswers`."""
        found: list[bytes | None] = [None] * len(asked)
        stores: dict[tuple[str, bool], list[int]] = defaultdict(list)
        for number, point in enumerate(asked):
            stores[point.store, point.start is None].append(number)
        for (store, _), numbers in stores.items():
            points = [(asked[number].key, asked[number].start) for number in numbers]
            try:
                entries = self._answers.at_home(store, points)
                bodies = [None if entry is None else as_json(entry) for entry in entries]
            except Exception:  # the general road says what is wrong with it
                continue
            for number, body in zip(numbers, bodies, strict=True):
                found[number] = body
        return found

    def understood(self, request: bytes) -> PlainRead | None:
        """See `ShortAnswers`: one whole request with headers that are all understood."""
        if len(request) > MOST_BYTES or not request.startswith(BEGIN):
            return None
        if request.find(HEAD_END) != len(request) - len(HEAD_END):
            return None
        first, _, headers = request.partition(b"\r\n")
        if not first.endswith(END) or not self._headers_understood(headers):
            return None
        path = first[len(BEGIN) : -len(END)]
        if b"?" in path or b"#" in path or not _TARGET.fullmatch(path):
            return None
        try:
            parts = unquote(path.decode("ascii"), errors="strict").split("/", 2)
        except UnicodeDecodeError:
            return None
        if len(parts) < 3 or "\n" in parts[2]:
            return None
        return _point(*parts)

    def _headers_understood(self, headers: bytes) -> bool:
        """A client sends the same ones with each request, and they mean the same."""
        if headers in self._plain:
            return True
        if not self._are_plain(headers[: -len(HEAD_END)].split(b"\r\n")):
            return False
        if len(self._plain) >= MOST_CLIENTS:
            self._plain.clear()
        self._plain.add(headers)
        return True

    def _are_plain(self, lines: list[bytes]) -> bool:
        hosts, given = 0, ""
        for line in lines:
            name, colon, value = line.partition(b":")
            name = name.lower()
            if not colon or not _VALUE.fullmatch(value):
                return False
            if name == b"host":
                if not self._named(value.strip().decode()):
                    return False
                hosts += 1
            elif name == b"authorization":
                if given:
                    return False
                given = value.strip().decode()
            elif name == b"connection":
                if value.strip().lower() != b"keep-alive":
                    return False
            elif name not in ACCEPTED:
                return False
        return hosts == 1 and self._allowed(given)


def _point(store: str, what: str, rest: str) -> PlainRead | None:
    if what == "entries":
        return PlainRead(store, rest, None)
    start, _, key = rest.partition("/")
    if what != "window" or not (start.isascii() and start.isdigit()) or int(start) > TIME_MAX:
        return None
    return PlainRead(store, key, int(start))
