"""`Stores`: declares the stores of processors."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from everflow.dsl.expressions import checked_serde
from everflow.dsl.graph_builder import check_name
from everflow.errors import TopologyError
from everflow.foreign_names import FittingClass, Telling
from everflow.serdes import Serde
from everflow.state.store import StoreSpec
from everflow.user_program import user_line
from everflow.windows import Duration, duration_ms


def _written(call: str, more: str = "") -> str:
    return f"Stores.{call}, key=serdes.string(), value=serdes.long(){more})"


class Stores(Telling, metaclass=FittingClass):
    """Declares stores, for ``process(..., stores=[...])``. All have a changelog,
    ``<application.id>-<name>-changelog``, unless ``logging=False``: then a task that moves begins
    with an empty one. ``in_memory=True``: not on disk (``state.memory.dir``); it is gone when the
    instance ends, and read anew from its changelog at the next start. Values without state, for any
    thread. TopologyError for what cannot be."""

    _WRITTEN: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "Stores": _written("key_value('seen'"),
            "key_value": _written("key_value('seen'"),
            "window": _written("window('hourly'", ", size='1 hour', retention='1 day'"),
            "session": _written("session('visits'", ", retention='1 day'"),
            "versioned": _written("versioned('prices'", ", history='1 hour'"),
        }
    )

    @staticmethod
    def key_value(
        name: str,
        *,
        key: Serde,
        value: Serde,
        ttl: Duration | None = None,
        logging: bool = True,
        in_memory: bool = False,
    ) -> StoreSpec:
        """One with the last value that was put under each key, and the time of the put. ``ttl``:
        how long (stream time) an entry stays behind its time; then it is not there, and is
        deleted in the changelog, too. What is itself that old when it is put changes nothing."""
        ttl_ms = None if ttl is None else _positive("ttl", ttl)
        return _made("key_value", name, key, value, (logging, in_memory), ttl_ms)

    @staticmethod
    def window(
        name: str,
        *,
        key: Serde,
        value: Serde,
        size: Duration,
        retention: Duration,
        logging: bool = True,
        in_memory: bool = False,
    ) -> StoreSpec:
        """A value of each key and window start; windows of ``size`` that are kept until stream time
        is ``retention`` behind their start."""
        where = user_line()
        size_ms, retention_ms = _positive("size", size), _positive("retention", retention)
        if retention_ms < size_ms:
            raise TopologyError(
                f"Stores.window({name!r}): the retention, {retention_ms} ms, is at least the "
                f"windows' size, {size_ms} ms",
                where=where,
            )
        return _made("window", name, key, value, (logging, in_memory), retention_ms, size_ms)

    @staticmethod
    def session(
        name: str,
        *,
        key: Serde,
        value: Serde,
        retention: Duration,
        logging: bool = True,
        in_memory: bool = False,
    ) -> StoreSpec:
        """A value of each key's session, kept until stream time is ``retention`` behind its end."""
        return _made(
            "session", name, key, value, (logging, in_memory), _positive("retention", retention)
        )

    @staticmethod
    def versioned(
        name: str,
        *,
        key: Serde,
        value: Serde,
        history: Duration,
        logging: bool = True,
        in_memory: bool = False,
    ) -> StoreSpec:
        """Versions of each key's value, each with the time from which it is valid (KIP-889), kept
        until ``history`` behind the highest time of a version; the latest is kept for ever. A
        version that is older than that when it comes is ignored."""
        history_ms = _history(history, name)
        return _made("versioned", name, key, value, (logging, in_memory), history_ms)


def _history(history: Duration, name: str) -> int:
    history_ms = duration_ms(history)
    if history_ms < 0:
        raise TopologyError(
            f"Stores.versioned({name!r}): a history may not be negative, found {history_ms} ms; it "
            f"says how long the store keeps what values were: history='1 hour'",
            where=user_line(),
        )
    return history_ms


def _positive(what: str, duration: Duration) -> int:
    found = duration_ms(duration)
    if found < 1:
        raise TopologyError(f"{what} is above 0, found {duration!r}", where=user_line())
    return found


def _made(
    kind: str,
    name: str,
    key: Serde,
    value: Serde,
    options: tuple[bool, bool],
    retention_ms: int | None = None,
    size_ms: int | None = None,
) -> StoreSpec:
    where, (logging, in_memory) = user_line(), options
    check_name("store", name, where)
    return StoreSpec(
        name=name,
        kind=kind,
        key_serde=checked_serde(key, "key", f"Stores.{kind}", where),
        value_serde=checked_serde(value, "value", f"Stores.{kind}", where),
        retention_ms=retention_ms,
        window_size_ms=size_ms,
        logging=bool(logging),
        in_memory=bool(in_memory),
        where=where,
    )
