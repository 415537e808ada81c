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
from everflow.observe.observation import Observation, ObservedTask
from everflow.observe.status import ready

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


def _gauge(name: str, text: str, read: Callable[[Observation], Values], *labels: str) -> Figure:
    return Figure(name=name, kind=GAUGE, text=text, read=read, labels=labels)


def _counter(name: str, text: str, read: Callable[[Observation], Values], *labels: str) -> Figure:
    return Figure(name=name, kind=COUNTER, text=text, read=read, labels=labels)


def _one(value: Callable[[Observation], float | None]) -> Callable[[Observation], Values]:
    def read(seen: Observation) -> Values:
        found = value(seen)
        return [] if found is None else [((), found)]

    return read


def _total(name: str) -> Callable[[Observation], Values]:
    return _one(lambda seen: seen.counters.get(name, 0.0))


def _series(name: str) -> Callable[[Observation], Values]:
    return lambda seen: seen.series.get(name, {}).items()


def _recent(name: str, value: Callable[[Seen], float]) -> Callable[[Observation], Values]:
    """The measurements of the last minute."""
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
        yield _gauge(
            f"{prefix}{name.replace('-', '_')}_{ending}",
            f"{text} ({ending} of the last 30 to 60 s)",
            _recent(name, value),
            *labels,
        )


def _left(task: ObservedTask, roles: tuple[str, ...]) -> float | None:
    return None if task.role not in roles or task.lag is None else float(task.lag)


def _restore_left(task: ObservedTask) -> float | None:
    return _left(task, ("active",)) if task.state == "RESTORING" else None


def _count(seen: Observation, role: str, states: tuple[str, ...]) -> float:
    return sum(1 for task in seen.tasks if task.role == role and task.state in states)


FIGURES: tuple[Figure, ...] = (
    # --- client ----------------------------------------------------------------------------------
    _gauge(
        f"{CLIENT}client_state",
        "state of the instance (KIP-1091): 0 CREATED, 1 REBALANCING, 2 RUNNING, "
        "3 PENDING_SHUTDOWN, 4 NOT_RUNNING, 5 PENDING_ERROR, 6 ERROR",
        _one(lambda seen: seen.state_number),
    ),
    _gauge(
        f"{CLIENT}alive_stream_threads",
        "stream threads that run",
        _one(lambda seen: sum(thread.alive for thread in seen.threads)),
    ),
    _counter(
        f"{CLIENT}failed_stream_threads_total",
        "stream threads that ended with an error: alert above 0",
        _total(names.FAILED_STREAM_THREADS),
    ),
    _gauge(
        f"{OURS}failing_stream_threads",
        "stream threads whose batches fail at the moment and are run again",
        _one(lambda seen: sum(bool(thread.trouble) for thread in seen.threads)),
    ),
    _gauge(
        f"{OURS}info",
        "1; its labels say which application this is, everflow's version, and which program "
        "runs: the digits by which the group compares topologies, and the line of its first source",
        lambda seen: [((seen.application_id, seen.version, seen.topology, seen.program), 1.0)],
        "application_id",
        "version",
        "topology",
        "program",
    ),
    _gauge(f"{OURS}ready", "1 while `/ready` says yes", _one(lambda seen: float(ready(seen).ok))),
    _gauge(
        f"{OURS}members",
        "instances in the group, as of the last rebalance",
        _one(lambda seen: seen.members),
    ),
    _gauge(
        f"{OURS}desired_instances",
        "how many instances the application should have, as this one sees it: the autoscaler "
        "takes the largest",
        _one(lambda seen: seen.desired_instances),
    ),
    _gauge(
        f"{OURS}application_tasks",
        "active tasks of the whole application: more instances than these find no work",
        _one(lambda seen: seen.application_tasks),
    ),
    _gauge(
        f"{OURS}road_nodes",
        "nodes of the topology by the road that computes them "
        "(`everflow describe --physical` names each)",
        lambda seen: [((road,), count) for road, count in seen.roads.items()],
        "road",
    ),
    # --- threads ---------------------------------------------------------------------------------
    _gauge(
        f"{THREAD}process_ratio",
        "share of the last 30 s in which the thread ran batches (0 to 1)",
        lambda seen: [((str(thread.number),), thread.busy) for thread in seen.threads],
        "thread_id",
    ),
    _counter(
        f"{THREAD}process_total",
        "records processed and committed, by source",
        _series(names.PROCESSED),
        "thread_id",
        "task_id",
        "processor_node_id",
    ),
    _counter(
        f"{THREAD}commit_total", "micro-batches committed", _series(names.BATCHES), "thread_id"
    ),
    *_recents(THREAD, names.BATCH_LATENCY, ("thread_id",), "ms of a micro-batch, plan to commit"),
    *_recents(THREAD, names.COMMIT_LATENCY, ("thread_id",), "ms of the commit in it"),
    _counter(
        f"{OURS}batch_seconds_total",
        "where the time of committed micro-batches went: `read` (fetch), `decode` (by the "
        "sources' serdes), `columns`, `operators`, `write` (encode and hand to the producer), "
        "`gate`, `offsets`, `delivery`, `commit`, `apply` (to the stores), and `plan` (all else: "
        "the driver, and the way there and back)",
        _series(names.BATCH_SECONDS),
        "thread_id",
        "phase",
    ),
    _counter(
        f"{OURS}busy_seconds_total",
        "seconds in micro-batches, those that failed included: its rate is a thread's utilisation",
        _series(names.BUSY_SECONDS),
        "thread_id",
    ),
    _counter(
        f"{OURS}batches_failed_total",
        "micro-batches that were run again, by the kind of failure (`aborted`: the group "
        "moved on, its transaction was aborted)",
        _series(names.FAILED_BATCHES),
        "thread_id",
        "kind",
    ),
    # --- transactions ----------------------------------------------------------------------------
    _gauge(
        f"{OURS}last_commit_timestamp_seconds",
        "when the thread has committed something last (seconds since 1970)",
        lambda seen: [
            (labels, ms / 1000) for labels, ms in seen.series.get(names.LAST_COMMIT, {}).items()
        ],
        "thread_id",
    ),
    _gauge(
        f"{OURS}transaction_open_seconds",
        "for how long the thread's transaction was open when the brokers were asked; 0: none "
        "was. Asked for each 5 s while somebody reads `/metrics`, `/status` or the dashboard",
        lambda seen: [
            ((str(one.thread), one.transactional_id), one.open_s)
            for one in seen.writers
            if one.open_s is not None
        ],
        "thread_id",
        "transactional_id",
    ),
    _counter(
        f"{OURS}commits_refused_total",
        "micro-batches that were aborted as they were not allowed to commit, by cause: the "
        "task or the generation was somebody else's by then",
        _series(names.REFUSED_COMMITS),
        "thread_id",
        "cause",
    ),
    _counter(
        f"{OURS}producers_renewed_total",
        "how often a producer took a new epoch, as a request of its transaction had stayed "
        "without an answer, or the transaction was aborted (KIP-890)",
        _series(names.RENEWED_PRODUCERS),
        "thread_id",
    ),
    _counter(
        f"{OURS}writers_fenced_total",
        "open transactions of instances that were gone, ended here so that readers go on",
        _total(names.WRITERS_FENCED),
    ),
    _gauge(
        f"{OURS}stable_offset_lag",
        "records of an input partition that an open transaction of anybody holds back: from "
        "the last stable offset to the log's end. Asked for as the above; at least once nothing is "
        "held back",
        lambda seen: [
            ((topic, str(partition)), one.records)
            for (topic, partition), one in seen.held_back.items()
        ],
        "topic",
        "partition",
    ),
    _gauge(
        f"{OURS}stable_offset_held_seconds",
        "for how long at least that last stable offset had not moved then; 0 where nothing is "
        "held back",
        lambda seen: [
            ((topic, str(partition)), one.held_s)
            for (topic, partition), one in seen.held_back.items()
        ],
        "topic",
        "partition",
    ),
    # --- tasks -----------------------------------------------------------------------------------
    _counter(
        f"{TASK}dropped_records_total",
        "records that an operator left out (late, without a key): alert on it",
        _series(names.DROPPED),
        "thread_id",
        "processor_node_id",
        "reason",
    ),
    _counter(
        f"{OURS}late_unmatched_records_total",
        "rows of the outer side of a join of streams that came after window and grace, met "
        "nothing, and were emitted without a match",
        _series(names.UNMATCHED_LATE),
        "thread_id",
        "processor_node_id",
    ),
    _counter(
        f"{OURS}keys_checked_total",
        "keys of an input that were looked at, whether they lie in the partition that the "
        "partitioner of the topic gives them: up to 256 of a micro-batch",
        _series(names.KEYS_CHECKED),
        "topic_name",
    ),
    _counter(
        f"{OURS}keys_misplaced_total",
        "those that lie in another one: equal keys do not meet, alert on it",
        _series(names.KEYS_MISPLACED),
        "topic_name",
    ),
    _counter(
        f"{TASK}enforced_processing_total",
        "how often a task went on though an input had nothing to read (max.task.idle.ms)",
        _total(names.ENFORCED_PROCESSING),
    ),
    *_recents(
        TASK,
        names.RECORD_LATENESS,
        ("thread_id", "task_id"),
        "ms by which records lay behind the newest of their task",
    ),
    _counter(
        f"{OURS}dead_letters_total",
        "records written to the dead letter topic",
        _total(names.DEAD_LETTERS),
    ),
    _counter(
        f"{OURS}left_out_records_total",
        "records that failed and that an exception handler left out, by the error's class, "
        "node and input topic; dead letters or not",
        _series(names.LEFT_OUT),
        "exception",
        "processor_node_id",
        "topic_name",
    ),
    _gauge(
        f"{OURS}task_state",
        "1 for every task here, with its role and state",
        lambda seen: [((task.task, task.role, task.state), 1.0) for task in seen.tasks],
        "task_id",
        "role",
        "state",
    ),
    _gauge(
        f"{OURS}task_troubled",
        "1 for a task that does not get on at the moment",
        _tasks(lambda task: 1.0 if task.trouble else None),
        "task_id",
        "role",
    ),
    _gauge(
        f"{TASK}restoring_remaining_records_total",
        "changelog records that an active task's restore has still to read",
        _tasks(_restore_left),
        "task_id",
        "role",
    ),
    _gauge(
        f"{TASK}updating_remaining_records_total",
        "changelog records by which a standby, a warm-up or a global table is behind",
        _tasks(lambda task: _left(task, ("standby", "warm-up", "global"))),
        "task_id",
        "role",
    ),
    _gauge(
        f"{OURS}restore_remaining_seconds",
        "how long that will take at the present rate",
        _tasks(lambda task: task.remaining_s if task.state == "RESTORING" else None),
        "task_id",
        "role",
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
    _counter(
        f"{TOPIC}records_produced_total",
        "records written to an output or repartition topic",
        _series(names.SENT),
        "processor_node_id",
        "topic_name",
    ),
    _counter(
        f"{TOPIC}bytes_produced_total",
        "bytes of their keys and values",
        _series(names.SENT_BYTES),
        "processor_node_id",
        "topic_name",
    ),
    _counter(
        f"{STORE}put_total",
        "changes of a store (one for each key of a micro-batch)",
        _series(names.STORE_PUTS),
        "task_id",
        "store",
    ),
    _gauge(
        f"{OURS}store_bytes",
        "disk space of a store here",
        lambda seen: [
            ((task.task, task.role, store.name), store.bytes)
            for task in seen.tasks
            for store in task.stores
        ],
        "task_id",
        "role",
        "store",
    ),
    _gauge(
        f"{OURS}state_disk_bytes",
        "size of the disk of state.dir",
        _one(lambda seen: None if seen.disk is None else seen.disk.bytes),
    ),
    _gauge(
        f"{OURS}state_disk_free_bytes",
        "what is left of it; stores are restored to it, too",
        _one(lambda seen: None if seen.disk is None else seen.disk.free),
    ),
    _counter(
        f"{OURS}changelog_records_total",
        "records written to changelogs",
        _total(names.CHANGELOG_RECORDS),
    ),
    # --- state updater ---------------------------------------------------------------------------
    _gauge(
        f"{UPDATER}active_restoring_tasks",
        "active tasks that are restored",
        _one(lambda seen: _count(seen, "active", ("RESTORING",))),
    ),
    _gauge(
        f"{UPDATER}standby_updating_tasks",
        "standbys that follow their changelogs",
        _one(lambda seen: _count(seen, "standby", ("RUNNING",))),
    ),
    _gauge(
        f"{OURS}warmup_updating_tasks",
        "warm-ups that follow theirs",
        _one(lambda seen: _count(seen, "warm-up", ("RUNNING",))),
    ),
    _counter(f"{UPDATER}restore_records_total", "records restored", _total(names.RESTORED_RECORDS)),
    _gauge(
        f"{UPDATER}standby_update_rate",
        "records/s that standbys and warm-ups read",
        _one(lambda seen: seen.counters.get(names.COPIES_RATE, 0.0)),
    ),
    # --- consumer --------------------------------------------------------------------------------
    _gauge(
        f"{CONSUMER}fetch_manager_metrics_records_lag",
        "records that wait, by input partition of the tasks that run here",
        lambda seen: [
            ((topic, str(partition)), lag) for (topic, partition), lag in seen.lags.items()
        ],
        "topic",
        "partition",
    ),
    _gauge(
        f"{OURS}records_lag",
        "their sum; NaN while a task of this instance does not run yet",
        _one(lambda seen: seen.counters.get(names.LAG, math.nan)),
    ),
    _gauge(
        f"{OURS}brokers_silent_seconds",
        "for how long the brokers have not told the ends of the input; 0 when they do",
        _one(lambda seen: seen.silent_s),
    ),
    _counter(
        f"{CONSUMER}coordinator_metrics_rebalance_total", "rebalances", _total(names.REBALANCES)
    ),
)
