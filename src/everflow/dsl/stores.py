"""`Stores`: declares the stores of processors."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from everflow.dsl.expressions import checked_serde
from everflow.dsl.graph_builder import check_name
from everflow.foreign_names import FittingClass, Telling
from everflow.serdes import Serde
from everflow.state.store import StoreSpec
from everflow.user_program import user_line
from everflow.windows import Duration, checked_ms


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
        ttl_ms = None if ttl is None else checked_ms(ttl, f"Stores.key_value({name!r}): ttl", 1)
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
        size_ms = checked_ms(size, f"Stores.window({name!r}): size", 1)
        what = f"Stores.window({name!r}): retention"
        retention_ms = checked_ms(retention, what, size_ms, ", and the windows have that size")
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
        retention_ms = checked_ms(retention, f"Stores.session({name!r}): retention", 1)
        return _made("session", name, key, value, (logging, in_memory), retention_ms)

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
        history_ms = checked_ms(history, f"Stores.versioned({name!r}): history")
        return _made("versioned", name, key, value, (logging, in_memory), history_ms)


def _made(
    kind: str,
    name: str,
    key: Serde,
    value: Serde,
    options: tuple[bool, bool],
    retention_ms: int | None = None,
    size_ms: int | None = None,
) -> StoreSpec:
    logging, in_memory = options
    check_name("store", name)
    return StoreSpec(
        name=name,
        kind=kind,
        key_serde=checked_serde(key, "key", f"Stores.{kind}"),
        value_serde=checked_serde(value, "value", f"Stores.{kind}"),
        retention_ms=retention_ms,
        window_size_ms=size_ms,
        logging=bool(logging),
        in_memory=bool(in_memory),
        where=user_line(),
    )
