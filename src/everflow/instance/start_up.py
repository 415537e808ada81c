"""Prepares an instance before it joins, without threads; errors reach the caller of `start`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from everflow.clock import Clock, Deadline
from everflow.config import StreamsConfig
from everflow.errors import (
    ConfigError,
    InternalTopicError,
    MigrationError,
    RetriableError,
    SchemaError,
    TopologyError,
    start_over,
)
from everflow.instance.tasks.blueprint import Blueprint
from everflow.instance.tasks.recovery import require_not_migrated
from everflow.instance.topics.internal_topics import (
    LEFT_OUT,
    InputIds,
    Ran,
    TopicFacts,
    TopicSpec,
    fixed_outputs,
    missing_outputs,
    prepare,
    require_compacted,
)
from everflow.kafka.admin import ClusterAdmin
from everflow.kafka.writing.transaction import fence_all
from everflow.logs import counted, rebalance_log, some
from everflow.protocol.messages import FILLED, mark_in, of_kafka_streams, parse_metadata
from everflow.records import CommittedOffset, TopicPartition
from everflow.retry import StoppedError, retrying, waiting
from everflow.serdes.registered import ask_schema
from everflow.state.task_directory import StateDirectory
from everflow.topology.compatibility import (
    layouts_to_keep,
    left_behind,
    require_read,
    require_readable,
    retyped,
)
from everflow.topology.connectors import TOPIC_CONFIG, connector_topic, connectors
from everflow.topology.event_time import LOWEST, require_lowest_fits
from everflow.topology.graph import FunctionNode, Graph, SinkNode, SourceNode, extractor_named
from everflow.topology.grown_topics import grown_topics, misfits, read_before, with_shares
from everflow.topology.idle_sources import bytes_for_layouts, require_metadata_fits
from everflow.topology.patterns import TopicGrowth, pattern_sources, with_topics
from everflow.topology.plan import (
    NodeOp,
    PhysicalPlan,
    emitting_every_update,
    plan,
    with_default_extractor,
)
from everflow.topology.program import Topology
from everflow.topology.store_layouts import (
    fingerprint,
    from_json,
    kept_text,
    never_read,
    topics_in,
)
from everflow.topology.subtopologies import (
    InternalTopics,
    SubTopologies,
    cut,
    fixed_tasks,
    internal_names,
    internal_topics,
)
from everflow.user_program import place

log = logging.getLogger("everflow")

FENCE_TIMEOUT_S = 30.0
FENCE_ATTEMPT_S = 5.0
"""Of the start, which may be stopped meanwhile."""
START_METADATA = "start"
WARM_UP_WAIT_S = 60.0
POLL_S = 0.1
COMMITTED_TIMEOUT_S = 30.0
_TOO_LONG = (
    "The layouts of %d stores are too long to be kept: the next start does not check them "
    "(docs/design/013)"
)


def prepare_cluster(
    topology: Topology,
    config: StreamsConfig,
    admin: ClusterAdmin,
    directory: StateDirectory,
    clock: Clock,
    stop: threading.Event,
) -> Blueprint:
    """Steps 2-7 of a start. EverflowError if ``stop`` is set; TaskTimeoutError (no broker answers),
    TopologyError, SchemaError, InternalTopicError (for an input that was grown, too),
    OffsetsExpiredError, StoreLayoutError, StateFormatError."""
    # 2. Wait until a broker answers.
    cluster_id = admin.wait_until_reachable(
        config.task_timeout_ms / 1000, partial(log.warning, "%s"), limit="task.timeout.ms"
    )
    if pattern_sources(topology):
        topology = with_topics(topology, admin.list_topics(), config.application_id)
    for source in pattern_sources(topology):
        assert source.reading.pattern is not None
        rebalance_log.info(
            "The pattern %s matches %s", source.reading.pattern.pattern, some(source.topics, 12)
        )
    topology = with_default_extractor(topology, extractor_named(config.default_timestamp_extractor))
    _require_times_fit(topology, config)
    require_schemas(topology)
    # 3. Fence earlier processes on this folder: open transactions hide offsets (D6).
    _fence_recorded(config, directory, clock, stop)
    topics, deadline = ClusterTopics(admin, config), Deadline(clock, config.task_timeout_ms)
    blueprint = retrying(
        lambda: topics.prepared(topology, cluster_id, directory),
        "preparing topics",
        clock=clock,
        deadline=deadline,
        stop=stop,
    )
    if not any(blueprint.inputs.values()):
        raise TopologyError(
            "The topology reads no topic; add builder.stream(...) or builder.table(...)."
        )
    return blueprint


def require_schemas(topology: Graph) -> None:
    """SchemaError, which names the place in the program, for a schema that a sink or a store writes
    by and the registry does not have. A registry that does not answer is asked again by the first
    write, which waits for it under task.timeout.ms: what does not need it runs meanwhile."""
    sinks = [node for node in topology.nodes if isinstance(node, SinkNode)]
    writers = [(node.name, node.where, (node.key_serde, node.value_serde)) for node in sinks]
    for sub in cut(topology).subtopologies:
        for store in sub.stores:
            if store.source_topic is None:
                serdes = (store.key_serde, store.value_serde)
                writers.append((f"store {store.name}", store.where, serdes))
    for name, where, serdes in writers:
        for serde in serdes:
            try:
                ask_schema(serde)
            except SchemaError as error:
                at = "" if where is None else f", at {place(where)}"
                raise SchemaError(f"{name}{at}: {error}. Nothing was read.") from error
            except RetriableError as error:
                log.warning("Starting without a schema registry; writes wait for it: %s", error)
                return


def _require_times_fit(topology: Graph, config: StreamsConfig) -> None:
    lowest = config.stream_time == LOWEST
    require_metadata_fits(topology, lowest=lowest)
    if lowest:
        require_lowest_fits(topology)


def extended(blueprint: Blueprint, growth: TopicGrowth, config: StreamsConfig) -> Blueprint:
    """The blueprint of an instance that has taken up new topics (note 037)."""
    partitions = {**blueprint.partitions, **growth.taken}
    topology = with_shares(growth.topology, partitions, blueprint.tasks)
    _require_times_fit(topology, config)
    subs, layouts = cut(topology), blueprint.layouts
    lowest = config.stream_time == LOWEST
    if len(layouts.encode()) > bytes_for_layouts(topology, lowest=lowest):
        log.warning(_TOO_LONG, len(blueprint.store_specs()))
        layouts = ""
    return replace(
        blueprint,
        plan=_planned(topology, subs, config),
        inputs={sub.index: sub.inputs(config.application_id) for sub in subs.subtopologies},
        partitions=partitions,
        offset_reset=offset_resets(subs, config),
        layouts=layouts,
        topology=topology,
    )


def _planned(topology: Graph, subs: SubTopologies, config: StreamsConfig) -> PhysicalPlan:
    chosen = emitting_every_update(topology) if config.emit_every_update else topology
    planned = plan(chosen, subs.index_of, config.application_id)
    require_calls_fit(planned, config)
    return planned


def require_calls_fit(planned: PhysicalPlan, config: StreamsConfig) -> None:
    """ConfigError for operators whose calls to the outside may outlast a batch (note 070)."""
    nodes = [op.node for op in planned.ops if isinstance(op, NodeOp)]
    functions = [node for node in nodes if isinstance(node, FunctionNode)]
    longest = {node: node.calls.longest_ms for node in functions if node.calls is not None}
    left_ms = config.max_poll_interval_ms - config.batches().target_ms
    if sum(longest.values()) <= left_ms:
        return
    lines = "".join(
        f"\n  {node.name} up to {ms / 1000:g} s"
        + ("" if node.where is None else f", at {place(node.where)}")
        for node, ms in longest.items()
    )
    raise ConfigError(
        f"The calls of a record may take longer than the {left_ms / 1000:g} s that "
        f"max.poll.interval.ms leaves to a batch:{lines}\n"
        f"  That is timeout= for each of retries= and one, and the pauses between them. Shorten "
        f"timeout=, have fewer retries=, or raise max.poll.interval.ms."
    )


def _partitions_of(counts: Mapping[str, int]) -> list[TopicPartition]:
    return [TopicPartition(name, p) for name, count in sorted(counts.items()) for p in range(count)]


def transactional_id(config: StreamsConfig, process_id: str, thread: int) -> str:
    """The same after a restart on the same state folder (D6)."""
    return f"{config.application_id}-{process_id}-{thread}"


def _fence_recorded(
    config: StreamsConfig, directory: StateDirectory, clock: Clock, stop: threading.Event
) -> None:
    recorded = directory.transactional_ids
    retrying(
        lambda: fence_all(config.producer(), recorded, FENCE_ATTEMPT_S),
        "fencing earlier writers",
        clock=clock,
        deadline=Deadline(clock, config.task_timeout_ms),
        stop=stop,
    )
    if recorded:
        log.info("Fenced %d transactional ids of earlier processes", len(recorded))
    threads = config.num_stream_threads if config.exactly_once else 0
    mine = [transactional_id(config, directory.process_id, n) for n in range(threads)]
    directory.record_transactional_ids(mine)
    directory.forget_transactional_ids(set(recorded) - set(mine))


def offset_resets(subs: SubTopologies, config: StreamsConfig) -> dict[str, str]:
    """Topic -> where it begins without a committed offset."""
    policies: dict[str, str] = {}
    for node in subs.topology.nodes:
        if isinstance(node, SourceNode):
            for topic in node.topics:
                internal = node.kind == "repartition"
                said = node.reading.offset_reset or config.auto_offset_reset
                name = f"{config.application_id}-{topic}" if internal else topic
                policies[name] = "earliest" if internal else said
    return policies


class ClusterTopics:
    """`internal_topics.TopicAdmin` on a real cluster, and a start's steps 4 to 7."""

    def __init__(self, admin: ClusterAdmin, config: StreamsConfig) -> None:
        self._admin, self._config = admin, config
        self._awaited: str | None = None
        """The application whose state is copied here, as an attempt before has read it."""

    def prepared(
        self,
        topology: Topology,
        cluster_id: str,
        directory: StateDirectory,
    ) -> Blueprint:
        """May be done again: a broker may not know a new topic's leader yet."""
        admin, config = self._admin, self._config
        # 4. The user's topics, and whether their partitions fit together.
        subs = cut(topology)
        described = admin.describe_topics(subs.topics)
        counts = {name: one.partitions for name, one in described.items()}
        there = admin.describe_topics(internal_names(subs, config.application_id))
        existing = {name: one.partitions for name, one in there.items()}
        self._require_fitting(subs, counts, existing)
        needed = internal_topics(
            subs,
            counts,
            config.application_id,
            existing=existing,
            topic_config=config.topic(),
            additional_retention_ms=config.windowstore_changelog_additional_retention_ms,
        )
        self._require_outputs(topology, max(counts.values(), default=1))
        require_compacted(
            [store for sub in subs.subtopologies for store in sub.stores], admin.topic_configs
        )
        # 5. Internal topics: created at the first start, validated at every other (I10).
        inputs = {topic: counts[topic] for sub in subs.subtopologies for topic in sub.source_topics}
        now = {name: described[name].topic_id for name in inputs if name in described}
        ids = InputIds(directory.input_ids(cluster_id), now)
        filled_from = self._filled_from(inputs)
        internal = {*needed.repartition, *needed.changelog}
        if filled_from is not None and (missing := internal - existing.keys()):
            raise RetriableError(
                f"everflow migrate, which copies the state of {filled_from} here, has not created "
                f"the topics {some(sorted(missing))} yet. Does it run, and was it given this "
                f"program?"
            )
        self._require_positions(subs, existing, counts)
        kept = self._prepare_internal(topology, needed, inputs, ids)
        self._prepare_connectors(subs)
        for name in ids.recreated:
            log.warning(
                "Topic %s was deleted and created again while the application was stopped (topic "
                "id %s -> %s). It is read from its committed offsets, or by auto.offset.reset "
                "without any; results of the old topic stay",
                name,
                ids.before[name],
                ids.now[name],
            )
        if ids.before != ids.now:
            directory.record_input_ids(cluster_id, ids.now)
        partitions = {**inputs, **{name: n for name, (n, _) in needed.repartition.items()}}
        made = {
            name: n for name, (n, _) in (*needed.repartition.items(), *needed.changelog.items())
        }
        tasks = fixed_tasks(subs, made, config.application_id)
        topology = with_shares(topology, counts, tasks)
        _require_times_fit(topology, config)
        subs = cut(topology)
        # 6. The stores' layouts are those of this program, and so are records that wait.
        layouts = self._compared_layouts(subs, partitions)
        # 7. The physical plan.
        return Blueprint(
            application_id=config.application_id,
            cluster_id=cluster_id,
            plan=_planned(topology, subs, config),
            inputs={sub.index: sub.inputs(config.application_id) for sub in subs.subtopologies},
            stores={sub.index: sub.stores for sub in subs.subtopologies},
            partitions=partitions,
            tasks=tasks,
            offset_reset=offset_resets(subs, config),
            repartition=frozenset(needed.repartition),
            kept=kept,
            fingerprint=fingerprint(subs),
            layouts=layouts,
            topology=topology,
            global_partitions={topic: counts[topic] for topic in subs.global_topics},
            filled_from=filled_from,
        )

    def _filled_from(self, inputs: Mapping[str, int]) -> str | None:
        """The application whose state is being copied here. ApplicationMigratedError: this one has
        gone elsewhere. MigrationError: the migration was given up since the attempt before; with
        no offsets left this would be a first start, beside the old version."""
        committed = self._committed(_partitions_of(inputs))
        require_not_migrated(self._config.application_id, committed)
        found = [mark_in(one.metadata) for one in committed.values()]
        if self._awaited is not None and not committed:
            raise MigrationError(
                f"The migration of {self._awaited} into {self._config.application_id}, which this "
                f"start waited for, was given up (everflow migrate --back). {self._awaited} goes "
                f"on. Nothing was read."
            )
        filled = (one.application_id for one in found if one and one.kind == FILLED)
        self._awaited = next(filled, None)
        return self._awaited

    def _require_fitting(
        self, subs: SubTopologies, counts: Mapping[str, int], existing: Mapping[str, int]
    ) -> None:
        """InternalTopicError for inputs whose partitions take keys away from their state."""
        name = self._config.application_id
        fixed = fixed_tasks(subs, existing, name)
        grown = {topic: counts[topic] for topic in grown_topics(subs, counts, fixed)}
        if not grown:
            return
        before = read_before(self._committed(_partitions_of(grown)))
        if found := misfits(subs, counts, fixed, before):
            raise InternalTopicError(
                f"Inputs do not fit the state behind them. "
                f"{' '.join(f'The {one.text}: {one.cure}.' for one in found)} {start_over(name)}"
            )
        for topic, (partitions, tasks) in sorted(grown_topics(subs, counts, fixed).items()):
            text = (
                "Topic %s has %d partitions, and the stores behind it %d: a task reads %d of them"
            )
            log.info(text, topic, partitions, tasks, partitions // tasks)

    def _require_positions(
        self, subs: SubTopologies, existing: Mapping[str, int], counts: Mapping[str, int]
    ) -> None:
        """InternalTopicError for state that would go on with topics that were never read: which of
        their records are in it already is not known."""
        name = self._config.application_id
        committed = self._committed(_partitions_of({**counts, **existing}))
        read = {tp.topic for tp in committed}
        texts = [from_json(parse_metadata(one.metadata).layouts) for one in committed.values()]
        if not (apart := never_read(subs, texts, read, existing, name)):
            return
        logs = {log: existing[log] for logs, _ in apart.values() for log in logs}
        spans = self.spans(_partitions_of(logs))
        filled = {tp.topic for tp, (start, end) in spans.items() if end > start}
        for number, (logs_of, topics) in sorted(apart.items()):
            if there := [log for log in logs_of if log in filled]:
                raise InternalTopicError(
                    f"Sub-topology {number} has state ({some(there, 3)} holds records), and reads "
                    f"only topics of which {name} has no committed offset: {some(topics, 3)}. From "
                    f"which record on they belong to that state is not known, so it was not "
                    f"started, and nothing was changed. For a new version of the program, carry "
                    f"the state over with everflow migrate; or give the stores other names and "
                    f"start once with --create-new-topics: they begin empty. {start_over(name)}"
                )

    def _require_outputs(self, topology: Topology, partitions: int) -> None:
        dead_letters = self._config.errors_dead_letter_queue_topic_name
        outputs = fixed_outputs(topology, dead_letters)
        found = self._admin.describe_topics(outputs)
        missing = {name: where for name, where in outputs.items() if name not in found}
        creates = self._admin.creates_topics() if missing else None
        error = missing_outputs(missing, creates, partitions, dead_letters)
        if error is not None:
            raise error

    def _prepare_internal(
        self, topology: Topology, needed: InternalTopics, counts: Mapping[str, int], ids: InputIds
    ) -> frozenset[str]:
        inputs, name = _partitions_of(counts), self._config.application_id
        # Where Kafka Streams ran the application last, its stores have to be read (note 034).
        if any(of_kafka_streams(one.metadata) for one in self._committed(inputs).values()):
            require_readable(name, topology)
        repartition, changelog = needed.repartition.items(), needed.changelog.items()
        specs = [TopicSpec(n, p, dict(c), "repartition") for n, (p, c) in repartition]
        specs += [
            TopicSpec(n, p, dict(c), LEFT_OUT if n in needed.left_out else "changelog")
            for n, (p, c) in changelog
        ]
        create_new = self._config.create_new_topics
        return prepare(self, name, specs, inputs, ids=ids, create_new=create_new)

    def _prepare_connectors(self, subs: SubTopologies) -> None:
        """The topic that says which of them are paused (note 074); it may come at a later start."""
        topic = connector_topic(self._config.application_id)
        if connectors(subs) and not self._admin.describe_topics([topic]):
            wanted = {topic: (1, TOPIC_CONFIG)}
            self._admin.create_topics(wanted, self._config.replication_factor)

    def _committed(
        self, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, CommittedOffset]:
        """Whatever is pending: under load some transaction always is."""
        group = self._config.application_id
        return self._admin.committed(group, partitions, COMMITTED_TIMEOUT_S, stable=False)

    def _compared_layouts(self, subs: SubTopologies, partitions: Mapping[str, int]) -> str:
        """The text that is committed beside offsets (notes 013, 067). StoreLayoutError."""
        name, graph = self._config.application_id, subs.topology
        committed = self._committed(_partitions_of(partitions))
        found = [from_json(parse_metadata(one.metadata).layouts) for one in committed.values()]
        kept = layouts_to_keep(name, graph, found)
        if changed := [*retyped(graph, found), *left_behind(graph, found)]:
            require_read(name, changed, self._unread({f"{name}-{one.name}" for one in changed}))
        lowest = self._config.stream_time == LOWEST
        text = kept_text(kept, subs, found, bytes_for_layouts(graph, lowest=lowest))
        if kept and not text:
            log.warning(_TOO_LONG, len(kept))
        return text

    def _unread(self, topics: Collection[str]) -> dict[TopicPartition, int]:
        """How many records wait in each partition; of a topic that is gone nothing."""
        there = self._admin.describe_topics(topics)
        every = _partitions_of({topic: one.partitions for topic, one in there.items()})
        committed = self._committed(every)
        read = {tp: committed[tp].offset if tp in committed else 0 for tp in every}
        return {tp: end - max(start, read[tp]) for tp, (start, end) in self.spans(every).items()}

    # --- `TopicAdmin` -----------------------------------------------------------------------------

    def topics(self, names: Iterable[str]) -> Mapping[str, TopicFacts]:
        found = self._admin.describe_topics(names)
        configs = self._admin.topic_configs(found)
        return {
            name: TopicFacts(described.partitions, described.topic_id, configs.get(name, {}))
            for name, described in found.items()
        }

    def create(self, topics: Iterable[TopicSpec]) -> None:
        wanted = {spec.name: (spec.partitions, spec.config) for spec in topics}
        self._admin.create_topics(wanted, self._config.replication_factor)

    def spans(
        self, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, tuple[int, int]]:
        asked = list(partitions)
        starts = self._admin.list_offsets(asked, "earliest", "read_uncommitted")
        ends = self._admin.end_offsets(asked, "read_uncommitted")
        return {tp: (starts[tp], ends[tp]) for tp in asked}

    def ran(self, partitions: Iterable[TopicPartition]) -> Ran:
        committed = self._committed(list(partitions))
        parsed = {tp: parse_metadata(offset.metadata) for tp, offset in committed.items()}
        ours = [one for one in parsed.values() if one.batch_id is not None]
        java = {tp for tp, offset in committed.items() if of_kafka_streams(offset.metadata)}
        foreign = {tp for tp, one in parsed.items() if one.batch_id is None} - java
        known = topics_in(from_json(one.layouts) for one in ours)
        return Ran(bool(ours or java), frozenset(tp.topic for tp in foreign), known)

    def topics_with_offsets(self) -> frozenset[str]:
        offsets = self._admin.all_committed(self._config.application_id)
        return frozenset(tp.topic for tp in offsets)


def await_warm(
    threads: Sequence[threading.Event],
    clock: Clock,
    stop: threading.Event,
) -> None:
    """Wait for the threads' workers, at most a minute for each. StoppedError."""
    rebalance_log.info(
        "Preparing Spark jobs and Python workers for %s", counted(len(threads), "stream thread")
    )
    with waiting("preparing Spark jobs and Python workers"):
        for warm in threads:
            slices = int(WARM_UP_WAIT_S / POLL_S)
            while slices and not stop.is_set() and not clock.wait(warm, POLL_S * 1000):
                slices -= 1
    if stop.is_set():
        raise StoppedError("stopped while stream threads were prepared")
    rebalance_log.info(
        "Joining the group (which waits for a killed member until its session times out: "
        "session.timeout.ms)"
    )
