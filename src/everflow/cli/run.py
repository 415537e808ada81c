"""``everflow run``: a progress line around `KafkaStreams.run` and what the instance says."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from everflow import KafkaStreams
from everflow import metrics as names
from everflow.cli.program import LOAD_SILENT_S, load_topology, place_of, put_current_folder_on_path
from everflow.config import StreamsConfig
from everflow.console.status import StatusLine
from everflow.errors import RetriableError
from everflow.instance.client_state import ENDED, ClientState
from everflow.instance.describe import summary, task_lines
from everflow.instance.kafka_streams import Foreground
from everflow.instance.thread.batch_counts import tables
from everflow.kafka.admin import ClusterAdmin
from everflow.kafka.client_settings import check_clients
from everflow.logs import lines_to, time_of_day
from everflow.membership.own_assignor import check_assignor
from everflow.retry import shown_by, shown_elsewhere
from everflow.spark.job import launch_daemon_ahead, workers_ahead
from everflow.spark.session import get_context, plan_heap
from everflow.state.disk import require_usable
from everflow.stop_signals import EXIT_BASE

log = logging.getLogger("everflow")

WATCH_INTERVAL_S = 1.0
LONGEST_INTERVAL_S = 10.0
LONGEST_RUNNING_S = 30.0
WATCH_PAUSES = 300.0
"""A snapshot of 1,000 tasks takes hundredths of a second of a core; the pause is so many times
that."""
RATE_S = 10.0
"""Rates are taken over so long."""
ASK_S = 3.0
EXIT_FAILED = 1
_SETTLED = frozenset({ClientState.RUNNING, *ENDED})


def run_program(
    target: str,
    settings: Mapping[str, object],
    *,
    console: Console,
    debug: bool,
    leave_group: bool | None = None,
    failed: Callable[[str], None] = lambda _: None,
) -> int:
    """Load ``target`` and run it until a signal stops it; the exit code: 0 if it ran and ended in
    order, 128 and the number of the signal if that came before it ran, 1 if its end took too long.

    ``settings`` are dotted keys of `StreamsConfig`; ``failed`` gets where to read more. Main thread
    only (signals). ConfigError, TopologyError or SetupError before anything runs; EverflowError:
    what stopped the instance.
    """
    config = StreamsConfig(**settings)
    plan_heap(config.memory.heap)
    # `start` checks both too, but only behind the seconds that Spark takes.
    check_clients(config)
    put_current_folder_on_path()  # an assignor may lie beside the program
    check_assignor(config.task_assignor_class)
    require_usable(Path(config.state_dir).expanduser())
    with StatusLine(console, stamp=time_of_day) as status, lines_to(status.line, verbose=debug):

        def start_spark() -> object:
            launch_daemon_ahead()
            _ask_brokers(config, status)
            context = get_context()
            workers_ahead(context, min(config.num_stream_threads, os.cpu_count() or 1))
            return context

        with shown_by(status.waiting), status.waiting(f"loading {target}", after_s=LOAD_SILENT_S):
            topology = load_topology(target, start_spark=start_spark)
        streams = KafkaStreams(topology, config)
        status.say(streams._introduction(place_of(target)))
        foreground = Foreground(streams=streams, leave_group=leave_group)
        try:
            with (
                shown_by(shown_elsewhere),  # by its line
                tables.written_by(status.say),
                watching(streams, foreground, status),
            ):
                foreground.run()
        finally:
            if foreground.log_file is not None:
                failed(f"More is in the log: {foreground.log_file}")
        if foreground.signal is not None and not foreground.joined:
            return EXIT_BASE + foreground.signal
        return 0 if streams.state is ClientState.NOT_RUNNING else EXIT_FAILED


def _ask_brokers(config: StreamsConfig, status: StatusLine) -> None:
    """Warn of a wrong address before Spark starts. `KafkaStreams.start` waits for brokers later."""
    servers = config.bootstrap_servers
    with (
        closing(ClusterAdmin(config.admin())) as admin,
        status.waiting(f"asking Kafka at {servers}", after_s=1.0),
    ):
        try:
            admin.cluster_id(ASK_S)
        except RetriableError:
            log.warning(
                "no answer from Kafka at %s yet: it is waited for once Spark has started", servers
            )


def pause_s(took_s: float, state: ClientState) -> float:
    longest_s = LONGEST_RUNNING_S if state is ClientState.RUNNING else LONGEST_INTERVAL_S
    return min(longest_s, max(WATCH_INTERVAL_S, took_s * WATCH_PAUSES))


@dataclass
class Progress:
    """Metrics snapshots of an instance -> the progress line. Not thread-safe."""

    _snapshots: deque[tuple[float, float]] = field(default_factory=deque)

    def line(self, at_s: float, figures: Mapping[str, float | str], tasks: str) -> str:
        """``45,120 records/s · lag 12,345 · 6 active, 2 standby``: of this instance.

        ``figures``: of `KafkaStreams.metrics`; ``tasks``: `everflow.instance.describe.summary`.
        """
        self._snapshots.append((at_s, float(figures.get(names.RECORDS_CONSUMED, 0.0))))
        while len(self._snapshots) > 2 and at_s - self._snapshots[0][0] > RATE_S:
            self._snapshots.popleft()
        (began_s, before), (_, now) = self._snapshots[0], self._snapshots[-1]
        rate = (now - before) / (at_s - began_s) if at_s > began_s else 0.0
        lag = float(figures[names.LAG])
        known = "lag unknown" if math.isnan(lag) else f"lag {lag:,.0f}"
        return " · ".join(filter(None, (f"{rate:,.0f} records/s", known, tasks)))


@dataclass
class StateWait:
    """How long an instance has been in a state other than the one it is for. Not thread-safe."""

    state: ClientState
    since_s: float

    def text(self, state: ClientState, at_s: float, *, said: str) -> str:
        """``REBALANCING for 12 s: Joining the group``, with what was ``said`` last; empty while it
        runs and in the first second."""
        if state is not self.state:
            self.state, self.since_s = state, at_s
        elapsed = at_s - self.since_s
        if state in _SETTLED or elapsed < 1.0:
            return ""
        return f"{state.name} for {elapsed:.0f} s" + (f": {said}" if said else "")


@contextmanager
def watching(
    streams: KafkaStreams,
    foreground: Foreground,
    status: StatusLine,
) -> Iterator[None]:
    """Show the progress line from a thread of its own while the block runs."""
    stop = threading.Event()
    wait, progress = StateWait(streams.state, time.monotonic()), Progress()

    def watch() -> None:
        took_s = 0.0
        while not stop.wait(pause_s(took_s, streams.state)):
            now_s, state, tasks = time.monotonic(), streams.state, streams.all_tasks()
            said = foreground.ending or ("" if tasks else status.last_event)
            waits = wait.text(state, now_s, said=said)
            line = progress.line(now_s, streams.metrics(), summary(tasks))
            took_s = time.monotonic() - now_s
            shown = [line, waits] if tasks or state is ClientState.RUNNING else [waits]
            if any(shown) and not stop.is_set():
                below = task_lines(tasks) if status.has_below else ()
                status.show(" · ".join(filter(None, shown)), below=below)

    thread = threading.Thread(target=watch, name="everflow-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(timeout=5.0)
