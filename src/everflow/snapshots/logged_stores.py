"""The stores of a topology with what is needed to read their changelogs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from everflow.errors import NoChangelogError
from everflow.operators.optimization import optimized
from everflow.snapshots.entry_columns import EntryColumns
from everflow.snapshots.query_errors import StoreNotFoundError
from everflow.topology.plan import plan
from everflow.topology.program import Topology
from everflow.topology.subtopologies import cut


@dataclass(frozen=True)
class LoggedStore:
    """``topic``: its changelog; ``left_out``: the topic of what processing left out (note 065)."""

    columns: EntryColumns
    topic: str
    left_out: str | None = None

    @property
    def name(self) -> str:
        return self.columns.spec.name


@dataclass(frozen=True)
class LoggedStores:
    """The stores of a topology. Picklable, as `PickledObjects` are."""

    found: Mapping[str, LoggedStore | NoChangelogError]
    """By name; where there is no changelog, what to raise for it."""

    def named(self, name: str) -> LoggedStore:
        """StoreNotFoundError lists those that there are; NoChangelogError."""
        found = self.found.get(name)
        if found is None:
            have = ", ".join(sorted(self.found)) or "none"
            raise StoreNotFoundError(f"The topology has no store {name!r}; it has: {have}.")
        if isinstance(found, NoChangelogError):
            raise found
        return found


def logged_stores(
    topology: Topology,
    application_id: str,
    optimization: str,
) -> LoggedStores:
    """``optimization``: ``topology.optimization``."""
    program = optimized(topology, optimization)
    planned = plan(program, cut(program).index_of, application_id)
    specs = {spec.name: spec for stores in planned.stores().values() for spec in stores}
    topics = {name: spec.changelog_topic(application_id) for name, spec in specs.items()}
    for table in planned.global_tables:
        specs[table.store.name], topics[table.store.name] = table.store, table.source.topic
    found: dict[str, LoggedStore | NoChangelogError] = {}
    for loaded in planned.loaded_tables:
        name = loaded.store.name
        found[name] = NoChangelogError(
            f"Store {name!r} is loaded from a DataFrame at each start: it has no changelog. Look "
            f"at the DataFrame, or at streams.store({name!r}) of an instance that runs."
        )
    for name, topic in topics.items():
        found[name] = (
            LoggedStore(
                EntryColumns(specs[name], planned.value_results(name)),
                topic,
                specs[name].left_out_topic(application_id),
            )
            if specs[name].logging
            else NoChangelogError(
                f"Store {name!r} has no changelog (logging is off): what it holds is known to the "
                f"instances that run alone. Look at streams.store({name!r}).to_dataframe() there."
            )
        )
    return LoggedStores(found)
