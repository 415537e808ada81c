"""A processor as a spec; `together` runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from everflow.operators.processors.processor import (
    Asked,
    Processor,
    Punctuation,
    PunctuationType,
)
from everflow.operators.processors.table_stores import ReadTable
from everflow.operators.processors.together import run_processors
from everflow.records import TasksResult
from everflow.serdes import Serde
from everflow.state.store import StoreSpec
from everflow.topology.graph import EdgeType, SharingProcessor, Surroundings


@dataclass(frozen=True, kw_only=True)
class ProcessSpec:
    """A processor: what makes one, its stores, the types of what it forwards.

    ``children``: names of the streams behind it that can be chosen; where there are some, the
    output's value is ``struct<child: int32, value>`` (child null: all of them). ``keeps_key``: what
    it forwards has the key of the record that it was given. ``key_serde``: of the records' keys; a
    store that has the same is asked for them at once. ``tables``: those it reads, in the order of
    the node's inputs; ``looks_up``: global ones. ``transforms``: it makes values of a table.
    """

    supplier: Callable[[], Processor]
    specs: tuple[StoreSpec, ...]
    out: EdgeType
    children: tuple[str, ...] = ()
    keeps_key: bool = False
    punctuations: tuple[Punctuation, ...] = ()
    key_serde: Serde | None = None
    tables: tuple[ReadTable, ...] = ()
    looks_up: tuple[StoreSpec, ...] = ()
    transforms: bool = False

    @property
    def wall_clocks(self) -> Mapping[str, int]:
        """See `ProcessorOperator`."""
        found = (one for one in self.punctuations if one.clock is PunctuationType.WALL_CLOCK_TIME)
        return {one.method: one.every_ms for one in found}

    @property
    def may_be_asked(self) -> bool:
        """Whether it makes values of a table from nothing but its entries, with no store and no
        clock: another one of its kind makes the same for those who ask (note 035)."""
        return self.transforms and not (self.specs or self.tables or self.punctuations)

    @property
    def asked(self) -> ProcessSpec:
        """The one that is asked."""
        return replace(self, supplier=Asked(self.supplier))

    def run_together(
        self, members: Sequence[SharingProcessor], surroundings: Surroundings
    ) -> list[TasksResult]:
        """See `ProcessorOperator`."""
        return run_processors(members, surroundings)
