"""Topics of the user that are changelogs of tables: they have to keep what is theirs. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from everflow.errors import TopologyError
from everflow.state.store import StoreSpec

Configs = Callable[[Iterable[str]], Mapping[str, Mapping[str, str]]]


def require_compacted(stores: Iterable[StoreSpec], configs: Configs) -> None:
    """TopologyError for a reused topic whose records are deleted: the table's entries would go with
    them. ``configs``: of existing topics; one whose brokers do not tell is let pass."""
    of_topic = {store.source_topic: store for store in stores if store.source_topic is not None}
    if not of_topic:
        return
    found = configs(of_topic)
    for topic, store in sorted(of_topic.items()):
        policy = found.get(topic, {}).get("cleanup.policy")
        if policy is not None and policy != "compact":
            raise TopologyError(
                f"the topic {topic} is to be the changelog of the table {store.name!r} "
                f"(topology.optimization=reuse.ktable.source.topics), and its "
                f"cleanup.policy={policy} deletes records: the table would lose entries. Set "
                f"cleanup.policy=compact for the topic, or leave topology.optimization at none",
                where=store.where,
            )
