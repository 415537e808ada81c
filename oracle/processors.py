"""Processors of drawn programs, by name; `java/OracleProcessors.java` has the same.

Each puts first and reads then, and has an entry for each record, one without a key under ``-``: the
original's window and session stores go by the times of what was put (docs/differences.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from everflow import (
    Processor,
    ProcessorContext,
    PunctuationType,
    Record,
    Stores,
    ValueTransformer,
    Windowed,
    punctuate,
    serdes,
)
from everflow.state.store import StoreSpec

TEXT = serdes.string()
EVERY_MS = 20
"""Between two calls of a clock."""
RETENTION_MS = 50
HISTORY_MS = 20
REACH_MS = 30
GAP_MS = 10
CHILDREN = ("left", "right")


def last(text: str) -> str:
    """As in `programs`: the last twelve letters."""
    return text[-12:]


def _shown(text: str | None) -> str:
    return "-" if text is None else text


class _WithStore(Processor):
    def __init__(self, store: str) -> None:
        self.name = store

    def init(self, context: ProcessorContext) -> None:
        self.store = context.store(self.name)


class Running(_WithStore):
    """What has come of a key, in a key-value store; all keys where a value ends with ``z``."""

    def process(self, record: Record) -> None:
        key, value = _shown(record.key), record.value
        old = self.store.get(key)
        if value is None:
            self.store.delete(key)
            self.context.forward(record.with_value(old).with_headers(()))
        elif value.endswith("z"):
            whole = ",".join(f"{key}={value}" for key, value in self.store.all())
            self.context.forward(record.with_value(last(whole)))
        else:
            new = last((old or "") + value)
            self.store.put(key, new)
            seen = ("seen", None if old is None else old.encode())
            self.context.forward(record.with_value(new).with_headers([*record.headers, seen]))

    def _tell(self, time: int) -> None:
        for key, value in list(self.store.all()):
            self.store.delete(key)
            self.context.forward(Record(key, last(value + "!"), time))


class ByStreamTime(Running):
    """Forwards and forgets all, by stream time."""

    @punctuate(EVERY_MS)
    def tick(self, time: int) -> None:
        self._tell(time)


class ByWallClock(Running):
    """Forwards and forgets all, by wall clock."""

    @punctuate(EVERY_MS, PunctuationType.WALL_CLOCK_TIME)
    def tick(self, time: int) -> None:
        self._tell(time)


class Timed(_WithStore):
    """The time of the value before, in a timestamped store."""

    def process(self, record: Record) -> None:
        key = _shown(record.key)
        old = self.store.get_with_timestamp(key)
        self.store.put(key, record.value)
        before = "-" if old is None else str(old[1])
        self.context.forward(record.with_value(f"{_shown(record.value)}@{before}"))


class InWindows(_WithStore):
    """The values around a record, in a window store."""

    def process(self, record: Record) -> None:
        key, time, value = _shown(record.key), record.timestamp, record.value
        old = self.store.fetch(key, time)
        self.store.put(key, None if value is None else last((old or "") + value), time)
        near = self.store.fetch(key, max(0, time - REACH_MS), time + REACH_MS)
        told = " ".join(f"{at.start}={value}" for at, value in near)
        self.context.forward(record.with_value(last(told)))


class InSessions(_WithStore):
    """Sessions merged by hand, in a session store."""

    def process(self, record: Record) -> None:
        key, time = _shown(record.key), record.timestamp
        start, end, text = time, time, ""
        for session, value in list(self.store.find_sessions(key, time - GAP_MS, time + GAP_MS)):
            start, end = min(start, session.start), max(end, session.end)
            text += value
            self.store.remove(session)
        text = last(text + _shown(record.value))
        self.store.put(Windowed(key, start, end), text)
        self.context.forward(record.with_value(f"{start}-{end}={text}"))


class Versioned(_WithStore):
    """What was valid a little earlier, and what is now, in a versioned store."""

    def process(self, record: Record) -> None:
        key = _shown(record.key)
        self.store.put(key, record.value, record.timestamp)
        found = self.store.get(key, max(0, record.timestamp - 5)), self.store.get(key)
        told = ["-" if one is None else f"{one.value}@{one.timestamp}" for one in found]
        self.context.forward(record.with_value("|".join(told)))


class Split(Processor):
    """Values with an ``x`` to the left child, deletions to both."""

    def process(self, record: Record) -> None:
        if record.value is None:
            self.context.forward(record)
        else:
            self.context.forward(record, CHILDREN["x" not in record.value])


class Numbered(ValueTransformer):
    """A table's values behind the number of the update of their key; those with an ``xy`` are
    taken out."""

    def __init__(self, store: str) -> None:
        self.name = store

    def init(self, context: ProcessorContext) -> None:
        self.store = context.store(self.name)

    def transform(self, key: str, value: str | None) -> str | None:
        number = int(self.store.get(key) or 0) + 1
        self.store.put(key, str(number))
        return None if value is None or "xy" in value else last(f"{number}{value}")


def named(key: str, value: str | None) -> str | None:
    """The value behind its key; those that end with ``z`` are taken out."""
    return None if value is None or value.endswith("z") else last(f"{key}{value}")


MAKERS: Mapping[str, Callable[[str], Processor]] = {
    "running": Running,
    "running:stream": ByStreamTime,
    "running:wall": ByWallClock,
    "timed": Timed,
    "windows": InWindows,
    "sessions": InSessions,
    "versions": Versioned,
}


def _key_value(name: str) -> StoreSpec:
    return Stores.key_value(name, key=TEXT, value=TEXT)


_STORES: Mapping[str, Callable[[str], StoreSpec]] = {
    "windows": lambda name: Stores.window(
        name, key=TEXT, value=TEXT, size=1, retention=RETENTION_MS
    ),
    "sessions": lambda name: Stores.session(name, key=TEXT, value=TEXT, retention=RETENTION_MS),
    "versions": lambda name: Stores.versioned(name, key=TEXT, value=TEXT, history=HISTORY_MS),
}


def processed(stream: Any, node: Mapping[str, Any]) -> Any:
    """A node ``process``: the stream behind it, or its children."""
    does, name = node["does"], node.get("name", node["id"])
    if does == "split":
        return stream.process(Split, children=list(CHILDREN), name=name)
    store, clock = node["store"], node.get("clock")
    maker = MAKERS[does if clock is None else f"{does}:{clock}"]
    call = stream.process_values if node["values"] else stream.process
    made = _STORES.get(does, _key_value)(store)
    return call(lambda: maker(store), stores=[made], name=name)


def transformed(table: Any, node: Mapping[str, Any], kept: Mapping[str, Any]) -> Any:
    """A node ``transform_values``: the table behind it."""
    if node["does"] == "named":
        return table.transform_values(named, returns="string", **kept)
    calls = node["calls"]
    return table.transform_values(
        lambda: Numbered(calls), returns="string", stores=[_key_value(calls)], **kept
    )
