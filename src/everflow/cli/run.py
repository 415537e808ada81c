"""``everflow run``: a progress line around `KafkaStreams.run` and what the instance says."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from rich.console import Console

from everflow import KafkaStreams
from everflow.cli.program import LOAD_SILENT_S, load_topology, place_of, put_current_folder_on_path
from everflow.config import StreamsConfig
from everflow.console.status import StatusLine
from everflow.console.terminal import LagReader, Progress, StateWait, input_topics
from everflow.errors import EverflowError, RetriableError
from everflow.instance.client_state import ClientState
from everflow.instance.describe import summary, task_lines
from everflow.instance.kafka_streams import Foreground
from everflow.instance.thread.batch_counts import tables
from everflow.kafka.admin import ClusterAdmin
from everflow.kafka.client_settings import check_clients
from everflow.logs import lines_to, time_of_day
from everflow.membership.own_assignor import check_assignor
from everflow.retry import shown_by, shown_elsewhere
from everflow.spark.job import launch_daemon_ahead, workers_ahead
from everflow.spark.session import get_context
from everflow.state.disk import require_usable
from everflow.stop_signals import EXIT_BASE
from everflow.topology.program import Topology

log = logging.getLogger("everflow")

WATCH_INTERVAL_S = 1.0
LONGEST_INTERVAL_S = 10.0
LONGEST_RUNNING_S = 30.0
"""The longest interval while the instance runs."""
WATCH_PAUSES = 300.0
"""A sample of 1,000 partitions takes long, a tenth of a second of a core: the pause behind it is so
many times as long."""
ASK_S = 3.0
"""For so long brokers are asked whether they are there."""
EXIT_FAILED = 1


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

    ``settings`` are dotted keys of `StreamsConfig`; ``debug`` shows Spark's own log;
    ``leave_group`` as in `KafkaStreams.run`; ``failed`` gets where to read more, if it does. Must
    be called from the main thread (signals).

    Raises:
        ConfigError, TopologyError, SetupError: before anything runs.
        EverflowError: what stopped the instance.
    """
    config = StreamsConfig(**settings)
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
                watching(streams, foreground, topology, status),
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
    """Seconds until the next sample, where the last one took ``took_s``."""
    longest_s = LONGEST_RUNNING_S if state is ClientState.RUNNING else LONGEST_INTERVAL_S
    return min(longest_s, max(WATCH_INTERVAL_S, took_s * WATCH_PAUSES))


@contextmanager
def watching(
    streams: KafkaStreams, foreground: Foreground, topology: Topology, status: StatusLine
) -> Iterator[None]:
    """Show the progress line from a thread of its own while the block runs."""
    config, stop = streams.config, threading.Event()
    topics = input_topics(topology, config.application_id)
    wait, progress = StateWait(streams.state, time.monotonic()), Progress()

    def watch() -> None:
        with closing(ClusterAdmin(config.admin(), stop=stop)) as admin:
            reader = LagReader(admin, config.application_id, topics)
            took_s = 0.0
            while not stop.wait(pause_s(took_s, streams.state)):
                now_s = time.monotonic()
                tasks = streams.all_tasks()
                said = foreground.ending or ("" if tasks else status.last_event)
                waits = wait.text(streams.state, now_s, said=said)
                try:
                    sample = reader.sample(now_s, summary(tasks))
                except EverflowError:
                    sample = None  # the instance itself reports brokers that are away
                took_s = time.monotonic() - now_s
                if sample is not None:
                    progress.add(sample)
                line = progress.line() if sample is not None else ""
                if (sample is not None or waits) and not stop.is_set():
                    below = task_lines(tasks) if status.has_below else ()
                    status.show(" · ".join(filter(None, (line, waits))), below=below)

    thread = threading.Thread(target=watch, name="everflow-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(timeout=5.0)
