"""Point reads on a short road: answered where their bytes arrive (note 058).

A read of one key is a microsecond of LMDB and four hundred of HTTP in general: a parser for all
that a request can be, a task, a thread, a response for all that an answer can be. So a request
that is a plain point read, whole and alone in what has arrived, is answered at once. Everything
else, and every read that is no success, goes the general road as if this one was not there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote

from everflow.runtime.serving.answers import ServedStores
from everflow.runtime.serving.parameters import Parameters, as_json

BEGIN, END, HEAD_END = b"GET /stores/", b" HTTP/1.1", b"\r\n\r\n"
MOST_BYTES = 4 << 10
"""Of a request on the short road."""
ACCEPTED = frozenset((b"accept", b"accept-encoding", b"accept-language", b"user-agent"))
"""Headers that change nothing of an answer."""


class PointReads:
    """Answers requests in bytes; on the event loop of the service, so nothing here may wait for a
    broker: what needs one has parameters, and those go the general road."""

    def __init__(self, answers: ServedStores, allowed: Callable[[str], bool]) -> None:
        """``allowed``: whether the value of the header Authorization ("": none) is enough."""
        self._answers, self._allowed = answers, allowed

    def body(self, request: bytes) -> bytes | None:
        """The answer of a plain point read; None for what goes the general road."""
        target = self._target(request)
        if target is None:
            return None
        try:
            return as_json(self._read(*target))
        except Exception:  # the general road says what is wrong with it
            return None

    def _target(self, request: bytes) -> tuple[str, str, str] | None:
        """Store, which read, and what stands behind it in the path; None unless this is one whole
        request with headers that are all understood."""
        if len(request) > MOST_BYTES or not request.startswith(BEGIN):
            return None
        if request.find(HEAD_END) != len(request) - len(HEAD_END):
            return None
        first, *lines = request[: -len(HEAD_END)].split(b"\r\n")
        if not first.endswith(END) or not self._understood(lines):
            return None
        path = first[len(BEGIN) : -len(END)]
        if b"?" in path or b"#" in path or b" " in path or not path.isascii():
            return None
        parts = unquote(path.decode("ascii")).split("/", 2)
        if len(parts) < 3 or "\n" in parts[2]:
            return None
        return parts[0], parts[1], parts[2]

    def _understood(self, lines: list[bytes]) -> bool:
        hosts, given = 0, ""
        for line in lines:
            name, colon, value = line.partition(b":")
            name = name.lower()
            if not colon or not value.isascii() or b"\r" in value or b"\n" in value:
                return False
            if name == b"host":
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

    def _read(self, store: str, what: str, rest: str) -> Mapping[str, Any]:
        if what == "entries":
            return self._answers.entry(Parameters(()), store, rest)
        if what != "window":
            raise LookupError(what)
        start, _, key = rest.partition("/")
        if not (start.isascii() and start.isdigit()):
            raise LookupError(start)
        return self._answers.window(Parameters(()), store, key, int(start))
