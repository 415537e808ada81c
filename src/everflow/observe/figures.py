"""The table of all figures of `/metrics`: name, kind, labels, meaning, and where each is read.

Names and groups are Kafka Streams', in the form in which its JMX figures reach Prometheus
(``stream-task-metrics``, ``dropped-records-total`` -> ``kafka_streams_stream_task_metrics_
dropped_records_total``); ``everflow_`` begins what Kafka Streams does not have. The page
docs/guide/metrics.md is made of this table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from everflow import metrics as names
from everflow.metrics import Labels, Seen
from everflow.observe.health import ready
from everflow.observe.observation import Observation, ObservedTask

GAUGE, COUNTER = "gauge", "counter"
Values = Iterable[tuple[Labels, float]]

CLIENT = "kafka_streams_stream_metrics_"
THREAD = "kafka_streams_stream_thread_metrics_"
TASK = "kafka_streams_stream_task_metrics_"
NODE = "kafka_streams_stream_processor_node_metrics_"
STORE = "kafka_streams_stream_state_metrics_"
UPDATER = "kafka_streams_stream_state_updater_metrics_"
TOPIC = "kafka_streams_stream_topic_metrics_"
CONSUMER = "kafka_consumer_"
OURS = "everflow_"


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure. ``labels`` stand behind ``client_id``, which all have; ``read`` gives their
    values with the figure's."""

    name: str
    kind: str
    text: str
    read: Callable[[Observation], Values]
    labels: tuple[str, ...] = ()


def _one(value: Callable[[Observation], float | None]) -> Callable[[Observation], Values]:
    def read(seen: Observation) -> Values:
        found = value(seen)
        return [] if found is None else [((), found)]

    return read


def _total(name: str) -> Callable[[Observation], Values]:
    """A counter without labels."""
    return _one(lambda seen: seen.counters.get(name, 0.0))


def _series(name: str) -> Callable[[Observation], Values]:
    """Counters with labels."""
    return lambda seen: seen.series.get(name, {}).items()


def _recent(name: str, value: Callable[[Seen], float]) -> Callable[[Observation], Values]:
    """What was seen in the last minute."""
    return lambda seen: [
        (labels, value(found)) for labels, found in seen.recent.get(name, {}).items()
    ]


def _tasks(value: Callable[[ObservedTask], float | None]) -> Callable[[Observation], Values]:
    """One of each task for which ``value`` is known."""

    def read(seen: Observation) -> Values:
        for task in seen.tasks:
            found = value(task)
            if found is not None:
                yield (task.task, task.role), found

    return read


def _recents(
    prefix: str, name: str, labels: tuple[str, ...], text: str, *, least: bool = False
) -> Iterator[Figure]:
    """Mean, largest and, where it is told, smallest value of the last 30 to 60 s."""
    values: Mapping[str, Callable[[Seen], float]] = {
        "avg": lambda seen: seen.mean,
        "max": lambda seen: seen.most,
        **({"min": lambda seen: seen.least} if least else {}),
    }
    for ending, value in values.items():
        yield Figure(
            name=f"{prefix}{name.replace('-', '_')}_{ending}",
            kind=GAUGE,
            labels=labels,
            text=f"{text} ({ending} of the last 30 to 60 s)",
            read=_recent(name, value),
        )


def _left(task: ObservedTask, roles: tuple[str, ...]) -> float | None:
    return None if task.role not in roles or task.lag is None else float(task.lag)


def _restore_left(task: ObservedTask) -> float | None:
    return _left(task, ("active",)) if task.state == "RESTORING" else None


def _count(seen: Observation, role: str, states: tuple[str, ...]) -> float:
    return sum(1 for task in seen.tasks if task.role == role and task.state in states)


FIGURES: tuple[Figure, ...] = (
    # --- client ----------------------------------------------------------------------------------
    Figure(
        name=f"{CLIENT}client_state",
        kind=GAUGE,
        text="state of the instance (KIP-1091): 0 CREATED, 1 REBALANCING, 2 RUNNING, "
        "3 PENDING_SHUTDOWN, 4 NOT_RUNNING, 5 PENDING_ERROR, 6 ERROR",
        read=_one(lambda seen: seen.state_number),
    ),
    Figure(
        name=f"{CLIENT}alive_stream_threads",
        kind=GAUGE,
        text="stream threads that run",
        read=_one(lambda seen: sum(thread.alive for thread in seen.threads)),
    ),
    Figure(
        name=f"{CLIENT}failed_stream_threads_total",
        kind=COUNTER,
        text="stream threads that ended with an error: alert above 0",
        read=_total(names.FAILED_STREAM_THREADS),
    ),
    Figure(
        name=f"{OURS}failing_stream_threads",
        kind=GAUGE,
        text="stream threads whose batches fail at the moment and are run again",
        read=_one(lambda seen: sum(bool(thread.trouble) for thread in seen.threads)),
    ),
    Figure(
        name=f"{OURS}info",
        kind=GAUGE,
        labels=("application_id", "version", "topology", "program"),
        text="1; its labels say which application this is, everflow's version, and which program "
        "runs: the digits by which the group compares topologies, and the line of its first source",
        read=lambda seen: [((seen.application_id, seen.version, seen.topology, seen.program), 1.0)],
    ),
    Figure(
        name=f"{OURS}ready",
        kind=GAUGE,
        text="1 while `/ready` says yes",
        read=_one(lambda seen: float(ready(seen).ok)),
    ),
    Figure(
        name=f"{OURS}members",
        kind=GAUGE,
        text="instances in the group, as of the last rebalance",
        read=_one(lambda seen: seen.members),
    ),
    Figure(
        name=f"{OURS}desired_instances",
        kind=GAUGE,
        text="how many instances the application should have, as this one sees it: the autoscaler "
        "takes the largest",
        read=_one(lambda seen: seen.desired_instances),
    ),
    Figure(
        name=f"{OURS}application_tasks",
        kind=GAUGE,
        text="active tasks of the whole application: more instances than these find no work",
        read=_one(lambda seen: seen.application_tasks),
    ),
    Figure(
        name=f"{OURS}road_nodes",
        kind=GAUGE,
        labels=("road",),
        text="nodes of the topology by the road that computes them "
        "(`everflow describe --physical` names each)",
        read=lambda seen: [((road,), count) for road, count in seen.roads.items()],
    ),
    # --- threads ---------------------------------------------------------------------------------
    Figure(
        name=f"{THREAD}process_ratio",
        kind=GAUGE,
        labels=("thread_id",),
        text="share of the last 30 s in which the thread ran batches (0 to 1)",
        read=lambda seen: [((str(thread.number),), thread.busy) for thread in seen.threads],
    ),
    Figure(
        name=f"{THREAD}process_total",
        kind=COUNTER,
        labels=("thread_id", "task_id", "processor_node_id"),
        text="records processed and committed, by source",
        read=_series(names.PROCESSED),
    ),
    Figure(
        name=f"{THREAD}commit_total",
        kind=COUNTER,
        labels=("thread_id",),
        text="micro-batches committed",
        read=_series(names.BATCHES),
    ),
    *_recents(THREAD, names.BATCH_LATENCY, ("thread_id",), "ms of a micro-batch, plan to commit"),
    *_recents(THREAD, names.COMMIT_LATENCY, ("thread_id",), "ms of the commit in it"),
    Figure(
        name=f"{OURS}batch_seconds_total",
        kind=COUNTER,
        labels=("thread_id", "phase"),
        text="where the time of committed micro-batches went: `read` (fetch), `decode` (by the "
        "sources' serdes), `columns`, `operators`, `write` (encode and hand to the producer), "
        "`gate`, `offsets`, `delivery`, `commit`, `apply` (to the stores), and `plan` (all else: "
        "the driver, and the way there and back)",
        read=_series(names.BATCH_SECONDS),
    ),
    Figure(
        name=f"{OURS}busy_seconds_total",
        kind=COUNTER,
        labels=("thread_id",),
        text="seconds in micro-batches, those that failed included: its rate is a thread's "
        "utilisation",
        read=_series(names.BUSY_SECONDS),
    ),
    Figure(
        name=f"{OURS}batches_failed_total",
        kind=COUNTER,
        labels=("thread_id", "kind"),
        text="micro-batches that were run again, by the kind of failure (`aborted`: the group "
        "moved on, its transaction was aborted)",
        read=_series(names.FAILED_BATCHES),
    ),
    # --- transactions ----------------------------------------------------------------------------
    Figure(
        name=f"{OURS}last_commit_timestamp_seconds",
        kind=GAUGE,
        labels=("thread_id",),
        text="when the thread has committed something last (seconds since 1970)",
        read=lambda seen: [
            (labels, ms / 1000) for labels, ms in seen.series.get(names.LAST_COMMIT, {}).items()
        ],
    ),
    Figure(
        name=f"{OURS}transaction_open_seconds",
        kind=GAUGE,
        labels=("thread_id", "transactional_id"),
        text="for how long the thread's transaction was open when the brokers were asked; 0: none "
        "was. Asked for each 5 s while somebody reads `/metrics`, `/status` or the page",
        read=lambda seen: [
            ((str(one.thread), one.transactional_id), one.open_s)
            for one in seen.writers
            if one.open_s is not None
        ],
    ),
    Figure(
        name=f"{OURS}commits_refused_total",
        kind=COUNTER,
        labels=("thread_id", "cause"),
        text="micro-batches that were aborted as they were not allowed to commit, by cause: the "
        "task or the generation was somebody else's by then",
        read=_series(names.REFUSED_COMMITS),
    ),
    Figure(
        name=f"{OURS}producers_renewed_total",
        kind=COUNTER,
        labels=("thread_id",),
        text="how often a producer took a new epoch, as a request of its transaction had stayed "
        "without an answer, or the transaction was aborted (KIP-890)",
        read=_series(names.RENEWED_PRODUCERS),
    ),
    Figure(
        name=f"{OURS}writers_fenced_total",
        kind=COUNTER,
        text="open transactions of instances that were gone, ended here so that readers go on",
        read=_total(names.WRITERS_FENCED),
    ),
    Figure(
        name=f"{OURS}stable_offset_lag",
        kind=GAUGE,
        labels=("topic", "partition"),
        text="records of an input partition that an open transaction of anybody holds back: from "
        "the last stable offset to the log's end. Asked for as the above; at least once nothing is "
        "held back",
        read=lambda seen: [
            ((topic, str(partition)), one.records)
            for (topic, partition), one in seen.held_back.items()
        ],
    ),
    Figure(
        name=f"{OURS}stable_offset_held_seconds",
        kind=GAUGE,
        labels=("topic", "partition"),
        text="for how long at least that last stable offset had not moved then; 0 where nothing is "
        "held back",
        read=lambda seen: [
            ((topic, str(partition)), one.held_s)
            for (topic, partition), one in seen.held_back.items()
        ],
    ),
    # --- tasks -----------------------------------------------------------------------------------
    Figure(
        name=f"{TASK}dropped_records_total",
        kind=COUNTER,
        labels=("thread_id", "processor_node_id", "reason"),
        text="records that an operator left out (late, without a key): alert on it",
        read=_series(names.DROPPED),
    ),
    Figure(
        name=f"{OURS}late_unmatched_records_total",
        kind=COUNTER,
        labels=("thread_id", "processor_node_id"),
        text="rows of the outer side of a join of streams that came after window and grace, met "
        "nothing, and were emitted without a match",
        read=_series(names.UNMATCHED_LATE),
    ),
    Figure(
        name=f"{OURS}keys_checked_total",
        kind=COUNTER,
        labels=("topic_name",),
        text="keys of an input that were looked at, whether they lie in the partition that the "
        "partitioner of the topic gives them: up to 256 of a micro-batch",
        read=_series(names.KEYS_CHECKED),
    ),
    Figure(
        name=f"{OURS}keys_misplaced_total",
        kind=COUNTER,
        labels=("topic_name",),
        text="those that lie in another one: equal keys do not meet, alert on it",
        read=_series(names.KEYS_MISPLACED),
    ),
    Figure(
        name=f"{TASK}enforced_processing_total",
        kind=COUNTER,
        text="how often a task went on though an input had nothing to read (max.task.idle.ms)",
        read=_total(names.ENFORCED_PROCESSING),
    ),
    *_recents(
        TASK,
        names.RECORD_LATENESS,
        ("thread_id", "task_id"),
        "ms by which records lay behind the newest of their task",
    ),
    Figure(
        name=f"{OURS}dead_letters_total",
        kind=COUNTER,
        text="records written to the dead letter topic",
        read=_total(names.DEAD_LETTERS),
    ),
    Figure(
        name=f"{OURS}left_out_records_total",
        kind=COUNTER,
        labels=("exception", "processor_node_id", "topic_name"),
        text="records that failed and that an exception handler left out, by the error's class, "
        "node and input topic; dead letters or not",
        read=_series(names.LEFT_OUT),
    ),
    Figure(
        name=f"{OURS}task_state",
        kind=GAUGE,
        labels=("task_id", "role", "state"),
        text="1 for every task here, with its role and state",
        read=lambda seen: [((task.task, task.role, task.state), 1.0) for task in seen.tasks],
    ),
    Figure(
        name=f"{OURS}task_troubled",
        kind=GAUGE,
        labels=("task_id", "role"),
        text="1 for a task that does not get on at the moment",
        read=_tasks(lambda task: 1.0 if task.trouble else None),
    ),
    Figure(
        name=f"{TASK}restoring_remaining_records_total",
        kind=GAUGE,
        labels=("task_id", "role"),
        text="changelog records that an active task's restore has still to read",
        read=_tasks(_restore_left),
    ),
    Figure(
        name=f"{TASK}updating_remaining_records_total",
        kind=GAUGE,
        labels=("task_id", "role"),
        text="changelog records by which a standby, a warm-up or a global table is behind",
        read=_tasks(lambda task: _left(task, ("standby", "warm-up", "global"))),
    ),
    Figure(
        name=f"{OURS}restore_remaining_seconds",
        kind=GAUGE,
        labels=("task_id", "role"),
        text="how long that will take at the present rate",
        read=_tasks(lambda task: task.remaining_s if task.state == "RESTORING" else None),
    ),
    # --- nodes, topics, stores -------------------------------------------------------------------
    *_recents(
        NODE,
        names.RECORD_LATENCY,
        ("task_id", "processor_node_id"),
        "ms from a record's time to the commit of its batch: at a source of the records read, at "
        "a sink (task_id empty) of those written",
        least=True,
    ),
    Figure(
        name=f"{TOPIC}records_produced_total",
        kind=COUNTER,
        labels=("processor_node_id", "topic_name"),
        text="records written to an output or repartition topic",
        read=_series(names.SENT),
    ),
    Figure(
        name=f"{TOPIC}bytes_produced_total",
        kind=COUNTER,
        labels=("processor_node_id", "topic_name"),
        text="bytes of their keys and values",
        read=_series(names.SENT_BYTES),
    ),
    Figure(
        name=f"{STORE}put_total",
        kind=COUNTER,
        labels=("task_id", "store"),
        text="changes of a store (one for each key of a micro-batch)",
        read=_series(names.STORE_PUTS),
    ),
    Figure(
        name=f"{OURS}store_bytes",
        kind=GAUGE,
        labels=("task_id", "role", "store"),
        text="disk space of a store here",
        read=lambda seen: [
            ((task.task, task.role, store.name), store.bytes)
            for task in seen.tasks
            for store in task.stores
        ],
    ),
    Figure(
        name=f"{OURS}state_disk_bytes",
        kind=GAUGE,
        text="size of the disk of state.dir",
        read=_one(lambda seen: None if seen.disk is None else seen.disk.bytes),
    ),
    Figure(
        name=f"{OURS}state_disk_free_bytes",
        kind=GAUGE,
        text="what is left of it; stores are restored to it, too",
        read=_one(lambda seen: None if seen.disk is None else seen.disk.free),
    ),
    Figure(
        name=f"{OURS}changelog_records_total",
        kind=COUNTER,
        text="records written to changelogs",
        read=_total(names.CHANGELOG_RECORDS),
    ),
    # --- state updater ---------------------------------------------------------------------------
    Figure(
        name=f"{UPDATER}active_restoring_tasks",
        kind=GAUGE,
        text="active tasks that are restored",
        read=_one(lambda seen: _count(seen, "active", ("RESTORING",))),
    ),
    Figure(
        name=f"{UPDATER}standby_updating_tasks",
        kind=GAUGE,
        text="standbys that follow their changelogs",
        read=_one(lambda seen: _count(seen, "standby", ("RUNNING",))),
    ),
    Figure(
        name=f"{OURS}warmup_updating_tasks",
        kind=GAUGE,
        text="warm-ups that follow theirs",
        read=_one(lambda seen: _count(seen, "warm-up", ("RUNNING",))),
    ),
    Figure(
        name=f"{UPDATER}restore_records_total",
        kind=COUNTER,
        text="records restored",
        read=_total(names.RESTORED_RECORDS),
    ),
    Figure(
        name=f"{UPDATER}standby_update_rate",
        kind=GAUGE,
        text="records/s that standbys and warm-ups read",
        read=_one(lambda seen: seen.counters.get(names.COPIES_RATE, 0.0)),
    ),
    # --- consumer --------------------------------------------------------------------------------
    Figure(
        name=f"{CONSUMER}fetch_manager_metrics_records_lag",
        kind=GAUGE,
        labels=("topic", "partition"),
        text="records that wait, by input partition of the tasks that run here",
        read=lambda seen: [
            ((topic, str(partition)), lag) for (topic, partition), lag in seen.lags.items()
        ],
    ),
    Figure(
        name=f"{OURS}records_lag",
        kind=GAUGE,
        text="their sum; NaN while a task of this instance does not run yet",
        read=_one(lambda seen: seen.counters.get(names.LAG, math.nan)),
    ),
    Figure(
        name=f"{OURS}brokers_silent_seconds",
        kind=GAUGE,
        text="for how long the brokers have not told the ends of the input; 0 when they do",
        read=_one(lambda seen: seen.silent_s),
    ),
    Figure(
        name=f"{CONSUMER}coordinator_metrics_rebalance_total",
        kind=COUNTER,
        text="rebalances",
        read=_total(names.REBALANCES),
    ),
)
