"""The stores of a topology with what is needed to read their changelogs. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from everflow.errors import NoChangelogError
from everflow.runtime.query.query_errors import StoreNotFoundError
from everflow.snapshots.entry_columns import EntryColumns
from everflow.topology.optimization import optimized
from everflow.topology.plan import plan
from everflow.topology.program import Topology
from everflow.topology.subtopologies import cut


@dataclass(frozen=True)
class LoggedStore:
    """``topic``: the full name of its changelog."""

    columns: EntryColumns
    topic: str

    @property
    def name(self) -> str:
        """As in the topology."""
        return self.columns.spec.name


def logged_store(
    topology: Topology, name: str, application_id: str, optimization: str
) -> LoggedStore:
    """The store of that name; ``optimization``: ``topology.optimization``. StoreNotFoundError lists
    those that there are; NoChangelogError."""
    found = optimized(topology, optimization)
    planned = plan(found, cut(found).index_of, application_id)
    specs = {spec.name: spec for stores in planned.stores().values() for spec in stores}
    topics = {name: spec.changelog_topic(application_id) for name, spec in specs.items()}
    for table in planned.global_tables:
        specs[table.store.name], topics[table.store.name] = table.store, table.source.topic
    for loaded in planned.loaded_tables:
        specs[loaded.store.name] = loaded.store
    spec = specs.get(name)
    if spec is None:
        have = ", ".join(sorted(specs)) or "none"
        raise StoreNotFoundError(f"The topology has no store {name!r}; it has: {have}.")
    if name not in topics:
        raise NoChangelogError(
            f"Store {name!r} is loaded from a DataFrame at each start: it has no changelog. Look "
            f"at the DataFrame, or at streams.store({name!r}) of an instance that runs."
        )
    if not spec.logging:
        raise NoChangelogError(
            f"Store {name!r} has no changelog (logging is off): what it holds is known to the "
            f"instances that run alone. Look at streams.store({name!r}).to_dataframe() there."
        )
    return LoggedStore(EntryColumns(spec, planned.value_results(name)), topics[name])
