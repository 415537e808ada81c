"""When results come: what ``KTable.suppress`` and ``emit_strategy`` take (KIP-328, KIP-825).

TopologyError, with the user's line and the cure, for what cannot be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import ClassVar

from everflow.errors import TopologyError
from everflow.foreign_names import FittingClass, Telling
from everflow.operators.suppress import BufferBounds, EarlyResults
from everflow.windows import Duration, checked_ms


@dataclass(frozen=True)
class BufferConfig(Telling, metaclass=FittingClass):
    """How much a task may hold back, and what happens when that is too little. Kafka Streams'
    ``Suppressed.BufferConfig``."""

    bounds: BufferBounds = field(default_factory=BufferBounds)

    _WRITTEN: ClassVar[str] = "BufferConfig.max_records(100_000).shut_down_when_full()"

    @staticmethod
    def unbounded() -> BufferConfig:
        """As much as there is: the buffer is a store on disk."""
        return BufferConfig()

    @staticmethod
    def max_records(count: int) -> BufferConfig:
        """At most ``count`` keys in a task; the oldest is given early."""
        return BufferConfig().with_max_records(count)

    @staticmethod
    def max_bytes(count: int) -> BufferConfig:
        """At most ``count`` bytes of keys and values in a task, and 8 a key; the oldest is given
        early."""
        return BufferConfig().with_max_bytes(count)

    def with_max_records(self, count: int) -> BufferConfig:
        """The same, and at most ``count`` keys."""
        return BufferConfig(replace(self.bounds, records=_positive(count, "max_records")))

    def with_max_bytes(self, count: int) -> BufferConfig:
        """The same, and at most ``count`` bytes."""
        return BufferConfig(replace(self.bounds, bytes=_positive(count, "max_bytes")))

    def emit_early_when_full(self) -> BufferConfig:
        """The oldest entry is given before its time; not for windows, whose result would not be the
        final one."""
        return BufferConfig(replace(self.bounds, stops=False))

    def shut_down_when_full(self) -> BufferConfig:
        """The instance ends with `BufferFullError`."""
        return BufferConfig(replace(self.bounds, stops=True))

    def with_no_bound(self) -> BufferConfig:
        """The same, with room for as much as there is."""
        return BufferConfig()


@dataclass(frozen=True)
class Suppressed(Telling, metaclass=FittingClass):
    """When ``KTable.suppress`` lets an entry out. ``wait_ms`` None: when its window closes."""

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
        """The final result of each window, once stream time has reached its end and grace; nothing
        before."""
        return Suppressed(None, BufferConfig() if buffer is None else buffer)

    @staticmethod
    def until_time_limit(limit: Duration, buffer: BufferConfig | None = None) -> Suppressed:
        """The last update of each key, ``limit`` (stream time) after the first that was held
        back."""
        wait_ms = checked_ms(limit, "a time limit")
        return Suppressed(wait_ms, BufferConfig() if buffer is None else buffer)


@dataclass(frozen=True)
class EmitStrategy(Telling, metaclass=FittingClass):
    """When windows give results (KIP-825): ``windowed.emit_strategy(...)``.

    ``final``: not each update; then ``early`` says what else is given than the final result.
    """

    final: bool = False
    early: EarlyResults | None = None

    _WRITTEN: ClassVar[str] = (
        "EmitStrategy.on_window_close(), or EmitStrategy.every('10 seconds') for early results, too"
    )

    @staticmethod
    def on_window_update() -> EmitStrategy:
        """With every batch that changes a window: the default."""
        return EmitStrategy()

    @staticmethod
    def on_window_close() -> EmitStrategy:
        """Once, when stream time has reached the window's end and grace."""
        return EmitStrategy(final=True)

    @staticmethod
    def every(amount: int | Duration) -> EmitStrategy:
        """Early results and the final one: with every ``amount``-th record that a window takes
        (``every(100)``), or when stream time is ``amount`` behind the first record that was not
        shown (``every("10 seconds")``); and what was not shown when the window closes. No result is
        given twice, and none depends on where a micro-batch was cut."""
        if isinstance(amount, int) and not isinstance(amount, bool):
            return EmitStrategy(True, EarlyResults(records=_positive(amount, "every")))
        cure = "; write EmitStrategy.every('10 seconds'), or every(100) for a number of records"
        wait_ms = checked_ms(amount, "the time of every", 1, cure)
        return EmitStrategy(True, EarlyResults(wait_ms=wait_ms))


def _positive(count: object, what: str) -> int:
    if isinstance(count, int) and not isinstance(count, bool) and count > 0:
        return count
    raise TopologyError(f"{what} takes a number above zero, found {count!r}")
