"""Headers of dead letters: which are everflow's, which are the record's own. Pure.

A record's own headers that are named like ours are renamed in its letter; a replay undoes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Header = tuple[str, bytes | None]

KAFKA_STREAMS = "__streams.errors."
OWN = "__everflow.errors."
RENAMED = "__everflow.own."
"""Stands before the name of a record's own header that is named like one of ours."""
EXCEPTION = f"{KAFKA_STREAMS}exception"
"""A record with this header is a dead letter, whatever other headers it has."""
_RESERVED = (KAFKA_STREAMS, "__everflow.")
_OF_KAFKA_STREAMS = frozenset(
    f"{KAFKA_STREAMS}{name}"
    for name in ("exception", "message", "stacktrace", "topic", "partition", "offset")
)
_OF_EVERFLOW = frozenset(
    f"{OWN}{name}" for name in ("stage", "node", "task", "attempt", "left.out")
)


def of_the_record(headers: Iterable[Header]) -> list[Header]:
    return [
        (f"{RENAMED}{name}" if name.startswith(_RESERVED) else name, data) for name, data in headers
    ]


def sorted_out(headers: Sequence[Header]) -> tuple[dict[str, str], list[Header]]:
    """A letter's headers about the error, by the ends of their names, and the record's own headers.

    Ours stand behind the record's, so the last one of a name counts, and everflow's begin behind
    the last `EXCEPTION`: in letters of earlier versions the record's own are not renamed.
    """
    begin = max(
        (at for at, (name, _) in enumerate(headers) if name == EXCEPTION), default=len(headers)
    )
    ours = any(name in _OF_EVERFLOW for name, _ in headers[begin:])
    about: dict[str, str] = {}
    own: list[Header] = []
    for at in range(len(headers) - 1, -1, -1):
        name, data = headers[at]
        if name in _OF_KAFKA_STREAMS:
            end = name.removeprefix(KAFKA_STREAMS)
        else:
            end = name.removeprefix(OWN) if name in _OF_EVERFLOW and at > begin else ""
        if end and end not in about:
            about[end] = (data or b"").decode(errors="replace")
        else:
            own.append((name.removeprefix(RENAMED) if ours else name, data))
    return about, own[::-1]
