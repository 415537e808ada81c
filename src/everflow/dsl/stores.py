"""What operators take: `Materialized` wherever ``store=`` is taken, `Stores` for processors;
when results come, for ``KTable.suppress`` and ``emit_strategy`` (KIP-328, KIP-825).

TopologyError, with the user's line and the cure, for what cannot be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar

from everflow.dsl.expressions import check_name, checked_serde
from everflow.errors import TopologyError
from everflow.foreign_names import FittingClass, Telling
from everflow.operators.suppress import BufferBounds, EarlyResults
from everflow.serdes import Serde
from everflow.state.store import StoreSpec
from everflow.topology.graph import StatefulNode
from everflow.user_program import user_line
from everflow.windows import Duration, checked_ms, duration_ms


@dataclass(frozen=True, kw_only=True)
class Materialized(Telling, metaclass=FittingClass):
    """The name of a store, with its options: ``grouped.count(store=Materialized("counts",
    retention="1 day"))``.

    ``retention``: how long, in stream time, a window or session is kept and can be queried; at
    least, and by default, as long as it accepts records (size + grace; sliding windows: twice the
    difference + grace; sessions: gap + grace). ``caching`` False: every update of the store is
    emitted, not only the last one of a key and micro-batch. ``logging`` False: no changelog; the
    store is lost with its disk, and an instance that takes over the task starts with an empty
    store. ``topic_config``: settings of the changelog topic, which override those of ``topic.`` in
    the configuration. ``history``: for ``table`` and ``to_table``: a versioned table (KIP-889),
    which keeps earlier values for this duration of stream time. ``in_memory`` True: the store is in
    memory (``state.memory.dir``), not on disk; it is lost when the instance ends, and the next
    start restores it from its changelog, if it has one. A join of streams has several stores, named
    after ``name``; all of them have the options.

    Raises TopologyError, with the fix, for invalid options.
    """

    name: str = field(kw_only=False)
    retention: Duration | None = None
    caching: bool = True
    logging: bool = True
    topic_config: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    history: Duration | None = None
    in_memory: bool = False

    _WRITTEN: ClassVar[str] = "Materialized('counts', retention='1 day')"

    def __post_init__(self) -> None:
        for option in ("retention", "history"):
            duration = getattr(self, option)
            if duration is not None:
                checked_ms(duration, f"Materialized({self.name!r}): {option}", 1)
        for option in ("caching", "logging", "in_memory"):
            if not isinstance(getattr(self, option), bool):
                raise self._refused(f"{option} is True or False, found {getattr(self, option)!r}")
        settings: object = self.topic_config
        if not isinstance(settings, Mapping) or not all(
            isinstance(text, str) for pair in settings.items() for text in pair
        ):
            raise self._refused(
                "topic_config is a dict of texts, {'segment.bytes': '1000000'}, found "
                f"{settings!r}"
            )
        if settings and not self.logging:
            raise self._refused(
                "topic_config= is for the changelog topic, and logging=False leaves that out"
            )

    def _refused(self, text: str) -> TopologyError:
        return TopologyError(f"Materialized({self.name!r}): {text}")

    @property
    def retention_ms(self) -> int:
        """`retention` in ms, or -1 if it is not given: the default then holds."""
        return -1 if self.retention is None else duration_ms(self.retention)

    def __hash__(self) -> int:
        return hash(self.name)


Store = str | Materialized
"""What is asked for with ``store=``: its name, or that with options."""


def kept_for(options: Materialized | None, least_ms: int) -> int:
    """The retention of windows or sessions that need ``least_ms``; TopologyError for less."""
    if options is None or options.retention is None:
        return least_ms
    if options.retention_ms < least_ms:
        raise TopologyError(
            f"store {options.name!r} keeps its windows for {options.retention_ms} ms, and they "
            f"take records for {least_ms} ms; write Materialized({options.name!r}, "
            f"retention='{least_ms} ms') or more, or a shorter grace"
        )
    return options.retention_ms


def materialized(node: StatefulNode, options: Mapping[str, Materialized]) -> StatefulNode:
    found = [options.get(spec.name) for spec in node.stores]
    if not any(found):
        return node
    stores = tuple(
        spec if one is None else _stored(spec, one)
        for spec, one in zip(node.stores, found, strict=True)
    )
    if not all(one is None or one.caching for one in found):
        if not hasattr(node.operator, "emit_every_update"):
            raise TopologyError(
                f"caching=False is for operators that give results by key, and {node.label} gives "
                f"every one; leave it out",
            )
        node = node.giving_every_update()
    return replace(node, stores=stores)


def kept_globally(spec: StoreSpec, options: Materialized | None) -> StoreSpec:
    """TopologyError for options that a global table has not."""
    if options is None:
        return spec
    if options != Materialized(options.name, in_memory=options.in_memory):
        raise TopologyError(
            f"a global table has its topic for a changelog, and gives no results: of Materialized "
            f"it takes in_memory= only, Materialized({options.name!r}, in_memory=True)",
        )
    return replace(spec, in_memory=options.in_memory)


def _stored(spec: StoreSpec, options: Materialized) -> StoreSpec:
    if options.retention is not None and spec.retention_ms != options.retention_ms:
        raise TopologyError(
            f"retention= is how long windows and sessions are kept, and store {spec.name!r} has "
            "none of its own to choose; leave it out"
        )
    if options.history is not None and not spec.versioned:
        raise TopologyError(
            f"history= is of tables, in the call that makes one: table(..., "
            f"store=Materialized({spec.name!r}, history='1 hour')), or to_table; leave it out"
        )
    return replace(
        spec,
        logging=options.logging,
        topic_config=MappingProxyType(dict(options.topic_config)),
        in_memory=options.in_memory,
    )


def _written(call: str, more: str = "") -> str:
    return f"Stores.{call}, key=serdes.string(), value=serdes.long(){more})"


class Stores(Telling, metaclass=FittingClass):
    """Declares stores for ``process(..., stores=[...])``. A store has a changelog,
    ``<application.id>-<name>-changelog``; with ``logging=False`` it has none, and a task that is
    reassigned starts with an empty store. With ``in_memory=True`` the store is in memory
    (``state.memory.dir``), not on disk; it is lost when the instance ends, and the next start
    restores it from its changelog, if it has one. Any thread may use a declaration. Raises
    TopologyError for invalid options."""

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
        """Declares a store of the last value of each key, with the time of its put. ``ttl``: how
        long (stream time) an entry is kept after that time. Then it is deleted, also from the
        changelog. A put that is already older than ``ttl`` is ignored."""
        ttl_ms = None if ttl is None else checked_ms(ttl, f"Stores.key_value({name!r}): ttl", 1)
        return _made("key_value", locals(), ttl_ms)

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
        """Declares a store with a value per key and window start, for windows of ``size``. A window
        is kept until stream time reaches its start + ``retention``."""
        size_ms = checked_ms(size, f"Stores.window({name!r}): size", 1)
        what = f"Stores.window({name!r}): retention"
        retention_ms = checked_ms(
            retention,
            what,
            size_ms,
            ", and the windows have that size",
        )
        return _made("window", locals(), retention_ms, size_ms)

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
        """Declares a store with a value per session. A session is kept until stream time reaches
        its end + ``retention``."""
        retention_ms = checked_ms(retention, f"Stores.session({name!r}): retention", 1)
        return _made("session", locals(), retention_ms)

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
        """Declares a store of versions: values of each key with the time from which each is valid
        (KIP-889). A version is kept until the highest time of a put reaches the version's end +
        ``history``; the latest one is kept forever. A put older than ``history`` is ignored."""
        history_ms = checked_ms(history, f"Stores.versioned({name!r}): history")
        return _made("versioned", locals(), history_ms)


def _made(
    kind: str, arguments: dict[str, Any], kept_ms: int | None, size_ms: int | None = None
) -> StoreSpec:
    check_name("store", arguments["name"])
    return StoreSpec(
        name=arguments["name"],
        kind=kind,
        key_serde=checked_serde(arguments["key"], "key", f"Stores.{kind}"),
        value_serde=checked_serde(arguments["value"], "value", f"Stores.{kind}"),
        retention_ms=kept_ms,
        window_size_ms=size_ms,
        logging=bool(arguments["logging"]),
        in_memory=bool(arguments["in_memory"]),
        where=user_line(),
    )


# --- when results come ----------------------------------------------------------------------------


@dataclass(frozen=True)
class BufferConfig(Telling, metaclass=FittingClass):
    """How much a task may buffer, and what happens when the buffer is full. Kafka Streams'
    ``Suppressed.BufferConfig``."""

    bounds: BufferBounds = field(default_factory=BufferBounds)

    _WRITTEN: ClassVar[str] = "BufferConfig.max_records(100_000).shut_down_when_full()"

    @staticmethod
    def unbounded() -> BufferConfig:
        """Sets no limit: the buffer is a store on disk."""
        return BufferConfig()

    @staticmethod
    def max_records(count: int) -> BufferConfig:
        """Limits a task's buffer to ``count`` keys; beyond that, the oldest row is emitted
        early."""
        return BufferConfig().with_max_records(count)

    @staticmethod
    def max_bytes(count: int) -> BufferConfig:
        """Limits a task's buffer to ``count`` bytes of keys and values, plus 8 per key; beyond
        that, the oldest row is emitted early."""
        return BufferConfig().with_max_bytes(count)

    def with_max_records(self, count: int) -> BufferConfig:
        """The same buffer, limited to ``count`` keys."""
        return BufferConfig(replace(self.bounds, records=_positive(count, "max_records")))

    def with_max_bytes(self, count: int) -> BufferConfig:
        """The same buffer, limited to ``count`` bytes."""
        return BufferConfig(replace(self.bounds, bytes=_positive(count, "max_bytes")))

    def emit_early_when_full(self) -> BufferConfig:
        """Emits the oldest row early when the buffer is full. `Suppressed.until_window_closes`
        refuses a limited buffer of this kind (`TopologyError`)."""
        return BufferConfig(replace(self.bounds, stops=False))

    def shut_down_when_full(self) -> BufferConfig:
        """Stops the instance with `BufferFullError` when the buffer is full."""
        return BufferConfig(replace(self.bounds, stops=True))

    def with_no_bound(self) -> BufferConfig:
        """Removes all limits of the buffer."""
        return BufferConfig()


@dataclass(frozen=True)
class Suppressed(Telling, metaclass=FittingClass):
    """When ``KTable.suppress`` emits a row. ``wait_ms``: ms of stream time after the row's first
    buffered update; None: when its window closes."""

    wait_ms: int | None
    buffer: BufferConfig = field(default_factory=BufferConfig)

    _WRITTEN: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "Suppressed": "Suppressed.until_window_closes()",
            "until_window_closes": "Suppressed.until_window_closes()",
            "until_time_limit": "Suppressed.until_time_limit('1 minute')",
        }
    )

    @staticmethod
    def until_window_closes(buffer: BufferConfig | None = None) -> Suppressed:
        """Emits only the final result of each window, when stream time reaches the window's end +
        grace (of a session: end + gap + grace). Not for count windows."""
        return Suppressed(None, BufferConfig() if buffer is None else buffer)

    @staticmethod
    def until_time_limit(limit: Duration, buffer: BufferConfig | None = None) -> Suppressed:
        """Emits the last update of each key, ``limit`` (stream time) after the key's first buffered
        update."""
        wait_ms = checked_ms(limit, "a time limit")
        return Suppressed(wait_ms, BufferConfig() if buffer is None else buffer)


@dataclass(frozen=True)
class EmitStrategy(Telling, metaclass=FittingClass):
    """When windows emit results (KIP-825): ``windowed.emit_strategy(...)``.

    ``final``: emit the final result, not every update. ``early``: the early results in addition;
    None: none.
    """

    final: bool = False
    early: EarlyResults | None = None

    _WRITTEN: ClassVar[str] = (
        "EmitStrategy.on_window_close(), or EmitStrategy.every('10 seconds') for early results, too"
    )

    @staticmethod
    def on_window_update() -> EmitStrategy:
        """Emits the last result of each window per micro-batch, or with ``emit.every.update`` every
        result. This is the default."""
        return EmitStrategy()

    @staticmethod
    def on_window_close() -> EmitStrategy:
        """Emits one result per window, when no further record can change it."""
        return EmitStrategy(final=True)

    @staticmethod
    def every(amount: int | Duration) -> EmitStrategy:
        """Emits early results and the final one: ``every(100)`` with every 100th record of a
        window, ``every("10 seconds")`` when stream time has advanced 10 seconds since the first
        record that is in no emitted result. When the window closes, its final result is emitted,
        unless that was emitted early. The results do not depend on the bounds of micro-batches."""
        if isinstance(amount, int) and not isinstance(amount, bool):
            return EmitStrategy(True, EarlyResults(records=_positive(amount, "every")))
        cure = "; write EmitStrategy.every('10 seconds'), or every(100) for a number of records"
        wait_ms = checked_ms(amount, "the time of every", 1, cure)
        return EmitStrategy(True, EarlyResults(wait_ms=wait_ms))


def _positive(count: object, what: str) -> int:
    if isinstance(count, int) and not isinstance(count, bool) and count > 0:
        return count
    raise TopologyError(f"{what} takes a number above zero, found {count!r}")
