"""`Stores`: declares the stores of processors."""

from __future__ import annotations

from everflow.dsl.expressions import checked_serde
from everflow.dsl.graph_builder import check_name
from everflow.errors import TopologyError
from everflow.foreign_names import Telling
from everflow.location import user_line
from everflow.serdes import Serde
from everflow.state.store import StoreSpec
from everflow.windows import Duration, duration_ms


class Stores(Telling):
    """Declares stores, for ``process(..., stores=[...])``; each belongs to one processor. All have
    a changelog, ``<application.id>-<name>-changelog``, unless ``logging=False``: then a task that
    moves begins with an empty one. TopologyError for what cannot be."""

    @staticmethod
    def key_value(name: str, *, key: Serde, value: Serde, logging: bool = True) -> StoreSpec:
        """A value, and its time, of each key."""
        return _made("key_value", name, key, value, logging)

    @staticmethod
    def window(
        name: str,
        *,
        key: Serde,
        value: Serde,
        size: Duration,
        retention: Duration,
        logging: bool = True,
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
        return _made("window", name, key, value, logging, retention_ms, size_ms)

    @staticmethod
    def session(
        name: str, *, key: Serde, value: Serde, retention: Duration, logging: bool = True
    ) -> StoreSpec:
        """A value of each key's session, kept until stream time is ``retention`` behind its end."""
        return _made("session", name, key, value, logging, _positive("retention", retention))


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
    logging: bool,
    retention_ms: int | None = None,
    size_ms: int | None = None,
) -> StoreSpec:
    where = user_line()
    check_name("store", name, where)
    return StoreSpec(
        name=name,
        kind=kind,
        key_serde=checked_serde(key, "key", f"Stores.{kind}", where),
        value_serde=checked_serde(value, "value", f"Stores.{kind}", where),
        retention_ms=retention_ms,
        window_size_ms=size_ms,
        logging=bool(logging),
        where=where,
    )
