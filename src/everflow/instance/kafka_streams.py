"""`KafkaStreams`: one instance of an application, from start to close (`Instance`)."""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import thread as _executors  # noqa: F401  # registers its own end first
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import timedelta
from html import escape
from pathlib import Path
from typing import Any

from everflow import metrics as names
from everflow.clock import Clock, SystemClock, on_thread
from everflow.config import StreamsConfig, asked_at
from everflow.errors import ConfigError, EverflowError
from everflow.foreign_names import Telling
from everflow.instance.assembly import (
    ClusterPorts,
    Dependencies,
    instance_log,
    instance_settings,
    keep_rebalances,
)
from everflow.instance.bounded_run import BoundedRun, bounded_run
from everflow.instance.client_state import (
    ENDED,
    STOPPING,
    ClientState,
    IllegalStateError,
    Pause,
    StateListener,
)
from everflow.instance.describe import (
    TaskStatus,
    banner,
    copies_metrics,
    input_lag,
    statuses,
    summary,
    task_lines,
)
from everflow.instance.instance import RESTORE_THREADS, Instance
from everflow.instance.life import DRAIN_SHARE, InstanceLife, leaves
from everflow.instance.observer import Observer, observed
from everflow.instance.query.queries import InteractiveQueries, QueryPorts, store_queries
from everflow.instance.restore.changelogs import Changelogs, LeftOutLogs
from everflow.instance.restore.listeners import (
    RestoreListener,
    RestoreTracker,
    StandbyUpdateListener,
)
from everflow.instance.start_up import prepare_cluster
from everflow.instance.tasks.blueprint import Blueprint
from everflow.instance.tasks.task import TaskState, TaskStore
from everflow.instance.thread.retry_policy import (
    MOST_REPLACEMENTS,
    REPLACED_WITHIN_MS,
    ReplacementLimits,
    troubles_of,
)
from everflow.instance.thread.stream_thread import Uncaught, UncaughtExceptionHandler
from everflow.kafka.admin import ClusterAdmin
from everflow.kafka.client_settings import check_clients
from everflow.kafka.reading.log_reader import LogReader
from everflow.logs import LogFile, install, rebalance_log
from everflow.membership.own_assignor import check_assignor
from everflow.memory import share_one_area
from everflow.metrics import Metrics
from everflow.operators.optimization import optimized
from everflow.records import TaskId
from everflow.retry import waiting
from everflow.state.disk import MemoryFolder
from everflow.state.lmdb_store import LmdbStore
from everflow.state.task_directory import StateDirectory
from everflow.stop_signals import owned
from everflow.topology.program import Topology, checked_topology
from everflow.travel.pickled_objects import InertInstance, in_worker
from everflow.windows import Duration, duration_ms

log = logging.getLogger("everflow")

END_S = 60.0
"""Time-out of a shutdown besides the draining."""


class KafkaStreams(InteractiveQueries, Telling):
    """Runs a topology once. One object is one instance: a member of the consumer group
    ``application.id``.

        KafkaStreams(builder.build(), application_id="delays",
        bootstrap_servers="broker:9092").run()

    Args:
        topology: the result of `StreamsBuilder.build`.
        config: a `StreamsConfig`, or a mapping of its keys (``{"application.id": "delays"}``); or
        pass them as keywords.

    All methods may be called from any thread, except `run` (main thread). Raises ConfigError for
    wrong settings, TopologyError if ``topology`` is not one.
    """

    def __new__(cls, *_: object, **__: object) -> KafkaStreams:
        """In a Python worker that imports a program: a stand-in that refuses to start."""
        return InertInstance() if in_worker() else super().__new__(cls)  # type: ignore[return-value]

    def __init__(
        self,
        topology: Topology,
        config: StreamsConfig | Mapping[str, object] | None = None,
        *,
        clock: Clock | None = None,
        **keys: Any,
    ) -> None:
        checked_topology(topology, "KafkaStreams")
        self.config = (
            config
            if isinstance(config, StreamsConfig) and not keys
            else StreamsConfig(config, **keys)
        )
        self._topology = optimized(topology, self.config.optimization)
        self._clock = clock or SystemClock()
        self._life = InstanceLife(self._clock, on_thread, self._on_ended)
        self._metrics = Metrics()
        self._introduced = False
        self._tracker = RestoreTracker(self._metrics)
        self._standby_listener: StandbyUpdateListener | None = None
        self._uncaught = Uncaught(self._shut_down_all)
        self._spreading: EverflowError | None = None
        self._pause = Pause()
        self._joined = False
        self._caller_raises = False
        """The caller of `run` raises `error`: a log line would report it twice."""
        self._log_file: LogFile | None = None
        self._observer: Observer | None = None
        self._last_display: tuple[float, float] | None = None
        """When it was last displayed (s), and how many records had been processed by then."""

    def start(self) -> None:
        """Check settings, topics and the state folder, join the group and start the threads;
        returns before tasks run.

        Raises ConfigError, StateLockedError, StateFormatError, StateDiskError, TaskTimeoutError (no
        broker within ``task.timeout.ms``), TopologyError (topics), InternalTopicError,
        OffsetsExpiredError, StoreLayoutError, SetupError: the state is then ERROR. Returns early if
        the instance is closed meanwhile. Ctrl-C raises KeyboardInterrupt: state NOT_RUNNING."""
        self._require_created("the instance is started")
        install()
        share_one_area()
        if not self._introduced:
            for line in self._introduction().splitlines():
                rebalance_log.info("%s", line)
        failure = self._life.start(self._start)
        if isinstance(failure, EverflowError):
            log.debug("The start failed", exc_info=failure)
            # For people: the frames of everflow are in the log.
            raise failure.with_traceback(None) from None
        if failure is not None:
            raise failure

    def run(
        self,
        leave_group: bool | None = None,
        *,
        count: int | None = None,
        timeout: float | str | timedelta | None = None,
        collect: str | Sequence[str] | None = None,
    ) -> Any:
        """Call `start`, then block until the instance has stopped. The first SIGINT, SIGTERM or
        SIGHUP stops it as `close` does with ``leave_group``. After a second SIGINT or SIGTERM no
        more tasks are migrated, and batches in flight are aborted after a second
        (docs/STOPPING.md). Raises the error if an error stopped the instance. Signals work only if
        ``run`` is called on the main thread; a SIGHUP that is ignored (``nohup``) or that the
        program handles itself does not stop the instance.

        It also ends once at least ``count`` records were written to the output topics and committed
        (to the topics in ``collect``, or to all with a fixed name), and ``timeout`` after the start
        (seconds, ``"30 seconds"`` or a timedelta). ``collect``: an output topic; the call returns
        the records written to it meanwhile, by other programs too, as a list of tuples ``key,
        value, timestamp``, by partition. For a list of topics it returns a dict of lists."""
        try:
            bound = bounded_run(self._topology, self.config, count, timeout, collect)
            if bound is None:
                Foreground(streams=self, leave_group=leave_group).run()
                return None
            with closing(bound):
                Foreground(streams=self, leave_group=leave_group, bound=bound).run()
                return bound.result()
        except EverflowError as error:
            raise error.with_traceback(None) from None

    @staticmethod
    def running(application_id: str | None = None) -> list[KafkaStreams]:
        """The instances, of one application or of all, that were started in this process and have
        not begun to stop. ``KafkaStreams.running()[0].close()`` closes one that no variable
        holds."""
        found = _unclosed.running()
        return [one for one in found if application_id in (None, one.config.application_id)]

    def all_tasks(self) -> dict[TaskId, TaskStatus]:
        """Role, state and lag of every task on this instance, by task id."""
        instance = self._life.instance
        if instance is None:
            return {}
        known = (
            instance.book.owned(),
            instance.running_tasks(),
            instance.ends.ends(),
            {**instance.updater.followed(), **instance.global_tables.followed()},
        )
        restores = (list(instance.manager.recovering), self._tracker.progress())
        copies = {**instance.updater.stalled(), **instance.global_tables.stalled()}
        stalled = {task: copy.stalled for task, copy in copies.items()}
        troubles = troubles_of(stalled, instance.clock.monotonic_ms(), instance.clock.now_ms())
        for thread in list(instance.threads):
            troubles |= thread.troubles()
        return statuses(
            *known,
            *restores,
            handing_over=instance.manager.handing_over(),
            troubles=troubles,
            stalled_copies={task: copy.role for task, copy in copies.items()},
            paused=frozenset().union(*(thread.paused_tasks for thread in list(instance.threads))),
        )

    def metrics(self) -> dict[str, float | str]:
        """Counters since the start, the present lag (records; NaN while unknown), restore progress
        and other metrics, by their names in `everflow.metrics`."""
        values: dict[str, float | str] = {**self._metrics.snapshot()}
        values[names.CLIENT_STATE] = self.state.name
        instance = self._life.instance
        threads = [] if instance is None else instance.threads
        values[names.ALIVE_STREAM_THREADS] = sum(not thread.join(0) for thread in threads)
        failing = sum(thread.trouble is not None for thread in threads)
        values[names.FAILING_STREAM_THREADS] = failing
        tasks = self.all_tasks()
        known = tasks or self.state is ClientState.RUNNING
        values[names.LAG] = input_lag(tasks.values()) if known else math.nan
        values.update(copies_metrics({} if instance is None else instance.updater.followed()))
        return values

    def restoring(self) -> float | None:
        """Restored share (0 to 1) of the stores that are being restored; None if none is."""
        return self._tracker.fraction()

    @property
    def http_address(self) -> str | None:
        """``host:port`` of the HTTP server (``http.listen``); None if there is none or it has not
        started."""
        return None if self._observer is None else self._observer.address

    def _introduction(self, program: str = "") -> str:
        """The banner, which `start` then does not log; ``program``: the topology's origin."""
        self._introduced = True
        return banner(self.config, self._topology, program)

    @property
    def state(self) -> ClientState:
        """The instance's present `ClientState`; may be read from any thread."""
        return self._life.states.state

    @property
    def error(self) -> EverflowError | None:
        """The error that led to state ERROR, or, in state NOT_RUNNING, that of a failed shutdown;
        None if there was none."""
        return self._life.error

    def set_state_listener(self, listener: StateListener) -> None:
        """Call ``listener(new, old)`` on every change of state, on the thread that made it: return
        quickly. Only before `start`."""
        self._require_created("a state listener is set")
        self._life.states.listener = listener

    def set_global_state_restore_listener(self, listener: RestoreListener) -> None:
        """Call ``listener`` for every restore, on the thread that restores. Only before `start`."""
        self._require_created("a restore listener is set")
        self._tracker.listener = listener

    def set_standby_update_listener(self, listener: StandbyUpdateListener) -> None:
        """Call ``listener`` when stores of standby tasks are updated (KIP-988), on the state
        updater's thread. Only before `start`."""
        self._require_created("a standby update listener is set")
        self._standby_listener = listener

    def set_uncaught_exception_handler(
        self,
        handler: UncaughtExceptionHandler,
        *,
        most: int = MOST_REPLACEMENTS,
        within: Duration = REPLACED_WITHIN_MS,
    ) -> None:
        """``handler(error)`` decides what happens to a stream thread, or the instance, that cannot
        continue; it is called on the thread that met the error (KIP-671; design note 047). Only
        before `start`.

        REPLACE_THREAD: the thread is replaced, only for errors that may pass, and at most ``most``
        times ``within`` a time (text such as ``"10 minutes"``, ms or a timedelta); after that the
        instance ends. Meanwhile the failed task waits (1 s, twice as long each time, at most a
        minute); if it is unknown, all tasks of the thread wait. Other tasks continue. A task that
        could not be restored within ``task.timeout.ms`` is restored anew, as often. For other
        errors that no stream thread met, the instance ends.
        SHUTDOWN_CLIENT: the instance ends in state ERROR, as without a handler or if the handler
        raises or exits. SHUTDOWN_APPLICATION: all instances end, as after `shut_down_application`.
        Raises IllegalStateError after the start, ConfigError if ``most`` is below 1, TopologyError
        for a wrong duration."""
        self._require_created("an uncaught exception handler is set")
        if most < 1:
            raise ConfigError(
                f"set_uncaught_exception_handler: most is at least 1, found {most}. To end at the "
                f"first failure answer SHUTDOWN_CLIENT."
            )
        limits = ReplacementLimits(most, duration_ms(within))
        self._uncaught = replace(self._uncaught, handler=handler, limits=limits)

    def pause(self) -> None:
        """Pause this instance until `resume` (KIP-834): after the batches in flight it processes
        nothing, restores nothing and updates no standby.

        The instance stays a member and keeps tasks and state; new tasks are paused, too. May be
        called before `start`. A restart ends the pause."""
        self._pause.pause()

    def resume(self) -> None:
        """End a `pause`: the instance continues where it stopped. Does nothing without a pause."""
        self._pause.resume()

    def is_paused(self) -> bool:
        """True between `pause` and `resume`."""
        return self._pause.paused

    def add_stream_thread(self) -> str | None:
        """Add a stream thread (KIP-663). Returns its name once tasks begin to move to the thread.

        Starting its workers takes some seconds. Tasks move to the thread between two batches,
        without a restore. A restart uses ``num.stream.threads`` again. Returns None if the instance
        ends meanwhile, or the workers did not start within a minute. Raises IllegalStateError if
        the instance does not run, or Spark has no task slot left."""
        return self._member("no stream thread can be added").thread_count.add()

    def remove_stream_thread(self, timeout: float | None = None) -> str | None:
        """Remove the stream thread that was added last (KIP-663). Returns its name once the thread
        has ended; None if the instance ends meanwhile.

        Its tasks move to the other threads after the batch in flight, without a restore. Raises
        IllegalStateError if the instance does not run or has one thread only; TaskTimeoutError if
        that batch takes longer than ``timeout`` seconds (None: no limit): the thread then stays."""
        return self._member("no stream thread can be removed").thread_count.remove(timeout)

    def shut_down_application(self) -> None:
        """Ask all instances to stop, for an error that no restart repairs (KIP-671).

        The request is sent with a rebalance, which starts at once. Each instance ends in state
        ERROR, with a ShutdownRequestedError that names this one; no instance drains, all leave the
        group. Does not wait for them. Instances started later run. Raises IllegalStateError if this
        instance is not a member of the group."""
        instance = self._member("the others cannot be asked to end: that goes through the group")
        log.error("The whole application is asked to shut down")
        instance.member.shut_down_application()

    def clean_up(self) -> None:
        """Delete this instance's stores; the next start restores those that have a changelog.
        Allowed only before `start` or after the instance has stopped.

        The folder keeps the ids of the instance and of its transactions, which the next start ends.
        Raises IllegalStateError while the instance runs; StateLockedError if another process uses
        the folder; StateFormatError if the folder belongs to another application or a later
        release; StateDiskError."""
        if self.state is not ClientState.CREATED and self.state not in ENDED:
            raise IllegalStateError(
                f"In state {self.state.name} the stores are in use: clean up before the start, or "
                f"after close()."
            )
        state_dir = Path(self.config.state_dir).expanduser()
        if not (state_dir / self.config.application_id).is_dir():
            return
        with closing(StateDirectory.open(state_dir, self.config.application_id)) as directory:
            for task in directory.tasks():
                for store in directory.stores(task):
                    LmdbStore.close_at(directory.store_path(task, store))
                directory.remove_task(task)
            log.info("Deleted the stores in %s", directory.path)

    def _member(self, why: str) -> Instance:
        instance = self._life.instance
        if instance is None or self.state not in (ClientState.REBALANCING, ClientState.RUNNING):
            raise IllegalStateError(
                f"In state {self.state.name} {why}. It has to be REBALANCING or RUNNING: start the "
                f"instance first."
            )
        return instance

    def _require_created(self, what: str) -> None:
        if self.state is not ClientState.CREATED:
            raise IllegalStateError(
                f"In state {self.state.name} it is too late: {what} once, before anything else. To "
                f"run the topology again, close() "
                "this instance, then make a new KafkaStreams(...) and start that."
            )

    def __enter__(self) -> KafkaStreams:
        """``with KafkaStreams(...) as streams:`` closes at its end; call `start` in the block."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """`close`. Raises the error that stopped the instance, unless the block itself raised."""
        self.close()
        if kind is None and self.error is not None:
            raise self.error

    def close(self, timeout: float = 60.0, leave_group: bool | None = None) -> bool:
        """Stop the instance: finish the batches in flight, commit and release the state folder; a
        dynamic member also migrates its tasks and leaves the group. Returns False if that takes
        more than ``timeout`` seconds; it then continues in the background.

        ``leave_group`` None: a dynamic member drains and leaves; a static one
        (``group.instance.id``) stays in the group without a heartbeat. True: any member drains and
        leaves. False: any member stays in the group (KIP-812). To drain is to process every task
        until another instance has a caught-up replica of it, for at most ``drain.timeout.ms`` and
        most of ``timeout``. A `start` in another thread stops and returns; the state is
        NOT_RUNNING."""
        self._begin_close(timeout, leave_group)
        return self._life.states.wait_ended(timeout)

    def _begin_close(self, timeout: float, leave_group: bool | None) -> None:
        drains = leaves(leave_group, static=self.config.group_instance_id is not None)
        drain_s = min(self.config.drain_timeout_ms / 1000, DRAIN_SHARE * timeout)
        self._life.close(leave_group, drain_s if drains else 0.0)

    def _hurry_up(self, timeout_s: float) -> bool:
        """Wait for an end that has begun, which hands nothing over and cuts batches off."""
        self._life.hurry.set()
        return self._life.states.wait_ended(timeout_s)

    def __repr__(self) -> str:
        parts = [f"state {self.state.name}"]
        if self.state not in ENDED:
            parts += [summary(self.all_tasks()), self._lag()]
        if self.error is not None:
            text = str(self.error).partition("\n")[0]
            parts.append(f"error [{self.error.code}] {text}")
        return f"KafkaStreams({self.config.application_id}: {', '.join(filter(None, parts))})"

    def _repr_html_(self) -> str:
        tasks = {} if self.state in ENDED else self.all_tasks()
        lines = [
            f"<b>{escape(self.config.application_id)}</b> &nbsp; {self.state.name}",
            escape(" · ".join(filter(None, [*self._flow(), summary(tasks)]))),
        ]
        if self.error is not None:
            lines.append(f"<b>[{escape(self.error.code)}]</b> <pre>{escape(str(self.error))}</pre>")
        if tasks:
            listed = "\n".join(task_lines(tasks))
            lines.append(f"<pre>{escape(listed)}</pre>")
        described = f"<pre>{escape(self._topology.describe())}</pre>"
        lines.append(f"<details><summary>topology</summary>{described}</details>")
        return f"<div>{''.join(f'<div>{line}</div>' for line in lines)}</div>"

    def _flow(self) -> Sequence[str]:
        now, records = time.monotonic(), self._number(names.RECORDS_CONSUMED)
        before, self._last_display = self._last_display, (now, records)
        found = [f"{records:,.0f} records processed"]
        if before is not None and now - before[0] >= 0.1:
            found.append(
                f"{(records - before[1]) / (now - before[0]):,.0f} records/s since the last display"
            )
        return found if self.state in ENDED else [*found, self._lag()]

    def _lag(self) -> str:
        lag = self._number(names.LAG)
        return "lag unknown" if math.isnan(lag) else f"lag {lag:,.0f}"

    def _number(self, name: str) -> float:
        return float(self.metrics().get(name, 0))

    def _start(self) -> None:
        close_at_exit(self)
        config, opened, stop = self.config, self._life.opened, self._life.stop
        for warning in config.warnings():
            log.warning(warning)
        check_clients(config)
        check_assignor(config.task_assignor_class)
        config.handlers().require_nodes({node.name for node in self._topology.nodes})
        self._launch_spark_ahead()
        # 1. Lock the state folder.
        path = Path(config.state_dir).expanduser()
        memory = MemoryFolder(Path(config.state_memory_dir).expanduser(), self._topology.in_memory)
        directory = StateDirectory.open(
            path, config.application_id, sync=config.state_sync, memory=memory
        )
        opened.push(lambda kind, *_: self._release(directory, clean=kind is None))
        self._log_file = instance_log(config)
        # From here on the start is observed, for it may take long.
        if config.http_listen or config.otel_exporter_otlp_metrics_endpoint:
            limit_s = config.drain_timeout_ms / 1000 + END_S
            self._observer = observed(
                self,
                self._life,
                self._topology,
                directory.process_id,
                self._metrics,
                self._clock,
                drain=lambda: self._begin_close(limit_s, leave_group=True),
            )
        if config.query_listen:
            config = self.config = asked_at(config, self._served())
        # 2-7. Check the cluster, fence earlier writers, create and check topics and stores.
        admin = ClusterAdmin(config.admin(), stop=stop)
        opened.callback(admin.close)
        blueprint = prepare_cluster(
            self._topology,
            config,
            admin,
            directory,
            self._clock,
            stop,
        )
        if self._observer is not None:
            self._observer.know(blueprint, admin, config.exactly_once)
        left_out = LeftOutLogs(
            admin, blueprint.left_out, lambda: LogReader(config.consumer(), latest=True)
        )
        dependencies = Dependencies(
            config=config,
            clock=self._clock,
            admin=admin,
            blueprint=blueprint,
            directory=directory,
            changelogs=Changelogs(
                admin,
                blueprint.cluster_id,
                config.application_id,
                left_out,
            ),
        )
        context = self._spark()  # 8.
        # 9-12. The instance, which joins the group last.
        ports = ClusterPorts(
            dependencies, context, lambda: self._standby_listener, opened, self._on_growth
        )
        instance = self._life.instance = self._wired(ports)
        instance.uncaught = self._uncaught
        keep_rebalances(config, instance.rebalances, opened)
        asked = self._query_ports(dependencies, instance)
        self._queries = store_queries(
            blueprint,
            config.application_server,
            asked,
            self._clock,
        )
        instance.start()
        self._joined = True

    def _served(self) -> str:
        from everflow.instance.serving.routes import served

        status = None if self._observer is None else self._observer.status
        return self._life.opened.enter_context(served(self, self.config, status))

    @property
    def query_address(self) -> str | None:
        """``application.server``: the ``host:port`` at which ``query.listen`` or your own service
        answers queries for this instance; None if there is none or it has not started."""
        return self.config.application_server or None

    def _release(self, directory: StateDirectory, clean: bool) -> None:
        self._life.ending = "writing the stores to disk"
        directory.close(clean=clean)

    def _launch_spark_ahead(self) -> None:
        from everflow.spark.job import discard_daemon, launch_daemon_ahead
        from everflow.spark.launch import jvm_launch
        from everflow.spark.session import launch_ahead, plan_heap

        plan_heap(self.config.memory.heap)
        # For a start that fails before Spark's.
        self._life.opened.callback(jvm_launch.discard)
        self._life.opened.callback(discard_daemon)
        launch_ahead()
        launch_daemon_ahead()

    def _spark(self) -> Any:
        from everflow.spark.session import get_context, running_context

        if running_context() is None:
            rebalance_log.info("Starting Spark")
        return get_context(self.config.num_stream_threads + RESTORE_THREADS + 1, self._life.stop)

    def _wired(
        self,
        ports: ClusterPorts,
        kind: Callable[..., Instance] = Instance,
    ) -> Instance:
        settings, of_life = instance_settings(self.config), self._life
        life = (of_life.states, self._on_failed, of_life.stop, self._pause)
        return kind(ports, settings, self._clock, *life, self._metrics, self._tracker)

    def _query_ports(self, dependencies: Dependencies, instance: Instance) -> QueryPorts:
        def stores_in(state: TaskState) -> dict[TaskId, tuple[TaskStore, ...]]:
            return {task.id: task.stores for task in instance.all_tasks() if task.state is state}

        return QueryPorts(
            state=lambda: self.state,
            running=lambda: stores_in(TaskState.RUNNING),
            copies=lambda: {
                **instance.updater.stores(),
                **instance.manager.idle_stores(),
                # A thread restores its tasks after a batch that failed.
                **stores_in(TaskState.RESTORING),
            },
            global_stores=instance.global_tables.stores,
            hosts=instance.hosts.hosts,
            ends=lambda asked: dependencies.admin.end_offsets(asked, dependencies.isolation),
            draining=lambda: not self._life.stop.is_set(),
        )

    def _shut_down_all(self, error: EverflowError) -> None:
        """The handler wants all instances to end: this one when the others have heard it."""
        try:
            self.shut_down_application()
        except IllegalStateError as refused:
            log.error("%s", refused)
            return
        self._spreading = self._life.error = error

    def _on_failed(self, error: EverflowError) -> None:
        if self.state in STOPPING:
            return
        if error is self._spreading:
            return  # all are asked to end, and this one with them
        self._metrics.add(names.FAILED_STREAM_THREADS, 1)
        log.debug("How the error that stops the instance came about", exc_info=error)
        level = logging.INFO if self._caller_raises else logging.ERROR
        log.log(level, "The instance stops: [%s] %s", error.code, error)
        self._life.fail(error)

    def _on_growth(self, blueprint: Blueprint) -> None:
        if self._observer is not None:
            self._observer.know(blueprint)
        if self._queries is not None:
            self._queries.inputs = blueprint.inputs_of

    def _on_ended(self) -> None:
        if self._log_file is not None:
            self._log_file.close()


# --- in the foreground (docs/STOPPING.md) ---------------------------------------------------------

TICK_S = 0.1
RUN_END_S = 30.0
"""Beyond the time for handing over, an end may take so long before it goes on in the background."""


@dataclass(kw_only=True)
class Foreground:
    """``signal``: the number of the first; ``joined``: whether the start had gone through then."""

    streams: KafkaStreams
    leave_group: bool | None
    signal: int | None = None
    joined: bool = False
    bound: BoundedRun | None = None
    _ending_since_s: float = math.inf

    @property
    def timeout_s(self) -> float:
        return self.streams.config.drain_timeout_ms / 1000 / DRAIN_SHARE + RUN_END_S

    @property
    def ending(self) -> str:
        return self.streams._life.ending

    @property
    def log_file(self) -> Path | None:
        return None if self.streams._log_file is None else self.streams._log_file.path

    def run(self) -> None:
        """Start, and return when it has ended. Raises what stopped it, for the caller to report."""
        streams = self.streams
        streams._caller_raises = True
        with owned() as signals, signals.reported_to(self._on_signal):
            if self.bound is not None:
                self.bound.open()
            streams.start()
            if self.bound is not None:
                self.bound.started()
            over = False
            with waiting("joining the group"):
                while not over and streams.state is ClientState.REBALANCING:
                    over = self._is_over()
            while not over:
                over = self._is_over()
        if streams.error is not None:
            raise streams.error

    def _is_over(self) -> bool:
        self._end_if_reached()
        return self.streams._life.states.wait_ended(TICK_S) or self._overdue()

    def _end_if_reached(self) -> None:
        if self.bound is None or self.streams.state in STOPPING:
            return
        why = self.bound.reached()
        if why is not None:
            self._ending_since_s = time.monotonic()
            rebalance_log.info("stopping: %s", why)
            self.streams._begin_close(self.timeout_s, self.leave_group)

    def _overdue(self) -> bool:
        if self._ending_since_s == math.inf:
            return False
        over = time.monotonic() - self._ending_since_s > self.timeout_s
        if over:
            text = "The shutdown takes longer than %.0f s and goes on in the background"
            log.warning(text, self.timeout_s)
        return over

    def _on_signal(self, count: int, number: int) -> None:
        streams = self.streams
        if count == 1:
            self.signal, self.joined = number, streams._joined
            self._ending_since_s = time.monotonic()
            hurry = "SIGTERM" if number == signal.SIGHUP else "a second one"
            name = signal.Signals(number).name
            rebalance_log.info(
                "stopping: %s (%s; %s does not wait)",
                self._what(),
                name,
                hurry,
            )
            streams._begin_close(self.timeout_s, self.leave_group)
        elif count == 2:
            rebalance_log.info(
                "stopping now: batches in flight have a second to end, nothing more is handed over"
            )
            streams._life.hurry.set()
        else:
            rebalance_log.info(
                "still stopping: nothing can make it quicker but kill -9, which loses nothing that "
                "was committed"
            )

    def _what(self) -> str:
        if self.streams.state in STOPPING:
            return "its end has begun already"
        if not self.joined:
            return "it had not joined its group yet"
        if leaves(self.leave_group, static=self.streams.config.group_instance_id is not None):
            return "it commits, hands its tasks over, leaves the group"
        return "it commits, and stays in the group for a restart"


# --- instances that a program does not close ------------------------------------------------------
# `atexit` comes too late: executors have ended by then, and batches fail in the middle. The private
# `threading._register_atexit` calls before they end; without it nothing is closed. A notebook's
# kernel ends the JVM of the user's Spark session first: its ``do_shutdown`` closes before that.

HURRIED_S = 10.0


class _Unclosed:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started: weakref.WeakSet[KafkaStreams] = weakref.WeakSet()
        self._process = 0

    def watch(self, instance: KafkaStreams) -> None:
        with self._lock:
            self._started.add(instance)
            first, self._process = self._process != os.getpid(), os.getpid()
        register: Callable[[Callable[[], None]], None] | None = getattr(
            threading, "_register_atexit", None
        )
        if first and register is not None:
            register(self._close)
        if first:
            _before_kernel_ends(self._close)

    def running(self) -> list[KafkaStreams]:
        with self._lock:
            # Otherwise a fork's copy: the instance is its parent's.
            mine = self._process == os.getpid()
            return [found for found in self._started if mine and found.state not in STOPPING]

    def _close(self) -> None:
        """On the main thread, which has nothing else to do any more, or a kernel's for control."""
        for instance in self.running():
            log.warning(
                "The program ends without closing its instance: it is closed now "
                "(call close() or run(), or write `with KafkaStreams(...) as streams:`)"
            )
            try:
                instance.close()
            except KeyboardInterrupt:
                instance._hurry_up(HURRIED_S)


def _before_kernel_ends(close: Callable[[], None]) -> None:
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    kernel = getattr(shell, "kernel", None)
    shut_down = getattr(kernel, "do_shutdown", None)
    if kernel is None or shut_down is None:
        return

    def close_and_shut_down(restart: bool) -> Any:
        close()
        return shut_down(restart)

    kernel.do_shutdown = close_and_shut_down


_unclosed = _Unclosed()
close_at_exit = _unclosed.watch
