"""Creates internal topics at the first start, and checks them at every other (invariant I10).

What a topic should look like comes from the topology (`topology.subtopologies.internal_topics`);
here is the decision what to do about it, and the calls that do it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from everflow.errors import InternalTopicError, OffsetsExpiredError, start_over
from everflow.records import TopicPartition

log = logging.getLogger("everflow")


LEFT_OUT = "left-out"
"""A kind of topic that earlier releases did not have."""


@dataclass(frozen=True)
class TopicSpec:
    """An internal topic as the topology needs it; ``name`` is the full name, ``kind``
    ``repartition``, ``changelog`` or `LEFT_OUT`."""

    name: str
    partitions: int
    config: Mapping[str, str]
    kind: str


@dataclass(frozen=True)
class TopicFacts:
    """An existing topic. ``config`` may be empty where the broker does not tell."""

    partitions: int
    topic_id: str | None = None
    config: Mapping[str, str] = field(default_factory=dict)


class TopicAdmin(Protocol):
    """The part of the cluster's administration that this module needs."""

    def topics(self, names: Iterable[str]) -> Mapping[str, TopicFacts]:
        """The existing ones of ``names``, with their config."""

    def create(self, topics: Iterable[TopicSpec]) -> None:
        """Create them and wait until they are usable; one that exists by now is no error."""

    def spans(
        self, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, tuple[int, int]]:
        """Log start and log end (read_uncommitted) of partitions."""

    def any_committed(self, partitions: Iterable[TopicPartition]) -> bool:
        """Whether the application's group has a committed offset on any of the partitions."""


def problems(spec: TopicSpec, facts: TopicFacts) -> list[str]:
    """What is wrong with an existing topic, for people; empty if it will do.

    Only what would lose or mix data counts: partitions, and a clean-up that deletes what must stay.
    Other settings are the operator's. What is deleted by age anyway need not be compacted: Kafka
    Streams does not compact the changelogs of stream joins.
    """
    found = []
    if facts.partitions != spec.partitions:
        found.append(
            f"{spec.name} has {facts.partitions} partitions, the topology needs {spec.partitions}"
        )
    wanted, policy = spec.config.get("cleanup.policy"), facts.config.get("cleanup.policy")
    if policy is not None and wanted is not None:
        have, need = set(policy.split(",")), set(wanted.split(","))
        if spec.kind == "repartition" and "compact" in have:
            found.append(
                f"{spec.name} has cleanup.policy={policy}: compaction would lose records before "
                f"they are read"
            )
        elif (need == {"compact"} and "compact" not in have) or not have & need:
            found.append(
                f"{spec.name} has cleanup.policy={policy}: it must be {wanted}, or state would be "
                f"lost"
            )
        elif need == {"compact"} and "delete" in have:
            found.append(
                f"{spec.name} has cleanup.policy={policy}: old state would be deleted, it must be "
                f"compact"
            )
    return found


def keeps_unread(spec: TopicSpec, facts: TopicFacts | None) -> bool:
    """Whether records stay until everflow deletes them: by age or size the brokers would also
    delete what was not read (the operator may have set that). ``facts`` None: it is new."""
    config = {**spec.config, **({} if facts is None else facts.config)}
    return all(config.get(name, "-1") == "-1" for name in ("retention.ms", "retention.bytes"))


def is_first_start(
    application_id: str, any_committed: bool, spans: Mapping[TopicPartition, tuple[int, int]]
) -> bool:
    """First start = neither committed offsets nor any record in an internal topic (D5).

    Raises OffsetsExpiredError when internal topics hold records but the group has no offsets:
    counting the input again from the start on top of the present state would be silent double
    counting (scenario 15).
    """
    if any_committed:
        return False
    filled = sorted({tp.topic for tp, (start, end) in spans.items() if end > start})
    if filled:
        raise OffsetsExpiredError(
            f"The group {application_id} has no committed offsets, but its internal topics hold "
            f"records "
            f"({', '.join(filled[:5])}{', ...' if len(filled) > 5 else ''}). Either the offsets "
            f"expired (the application was down "
            "for longer than offsets.retention.minutes) or the group was deleted. Starting would "
            "count the input twice. "
            f"{start_over(application_id)}"
        )
    return True


def _other_program(application_id: str) -> str:
    """The cause to look at first: starting over would then destroy an application that is well."""
    return (
        f"Most likely another topology (or one with a changed store name) runs or ran under the "
        f"application.id {application_id}: "
        "then delete nothing, and give this program an application.id of its own, or its stores "
        "the names they had."
    )


def prepare(
    admin: TopicAdmin,
    application_id: str,
    specs: Iterable[TopicSpec],
    inputs: Iterable[TopicPartition],
) -> frozenset[str]:
    """Create (first start) or validate (any other) the internal topics; called before the instance
    joins the group. Gives the repartition topics that keep what is not read (`keeps_unread`).

    ``inputs`` are the partitions of all topics the application reads that exist by now. Raises
    InternalTopicError for a topic that is missing after the first start or that does not fit,
    OffsetsExpiredError as `is_first_start`.
    """
    needed = {spec.name: spec for spec in specs}
    # In this order, since another instance may start for the first time meanwhile: it creates
    # topics, commits where its inputs begin, and only then writes. So records that are seen have
    # offsets behind them, and offsets that are seen have topics.
    existing = admin.topics(needed)
    partitions = [
        TopicPartition(n, p) for n, facts in existing.items() for p in range(facts.partitions)
    ]
    repartition = [tp for tp in partitions if needed[tp.topic].kind == "repartition"]
    spans = admin.spans(partitions) if partitions else {}
    first = is_first_start(application_id, admin.any_committed([*inputs, *repartition]), spans)
    if not first and len(existing) < len(needed):
        existing = admin.topics(needed)
    wrong = [
        text for name, facts in sorted(existing.items()) for text in problems(needed[name], facts)
    ]
    if wrong:
        raise InternalTopicError(
            f"Internal topics do not fit the topology: {'; '.join(wrong)}. "
            f"{_other_program(application_id)} Or the number of input "
            f"partitions was changed: keys are then in other partitions than their state. "
            f"{start_over(application_id)}"
        )
    missing = [spec for name, spec in sorted(needed.items()) if name not in existing]
    kept = frozenset(
        name
        for name, spec in needed.items()
        if spec.kind == "repartition" and keeps_unread(spec, existing.get(name))
    )
    if not missing:
        return kept
    lost = [spec for spec in missing if spec.kind != LEFT_OUT]
    names = ", ".join(spec.name for spec in lost)
    if not first and lost:
        raise InternalTopicError(
            f"Internal topics are missing: {names}. {application_id} has run before, so they are "
            f"not created silently: state could "
            f"be lost. {_other_program(application_id)} Only if these topics were deleted: restore "
            f"them from a backup; or, "
            f"without one, give up the state. {start_over(application_id)}"
        )
    admin.create(missing)
    for spec in missing:
        log.info("Created topic %s (%d partitions)", spec.name, spec.partitions)
        if not first:
            log.warning(
                "The topic %s is new, and %s has run before: it is not known what processing left "
                "out of the table's topic until now. If the table is restored, such records are "
                "in it",
                spec.name,
                application_id,
            )
    return kept
