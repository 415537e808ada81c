"""The demo end to end: broker, records, instance, results, comparison. Leaves nothing behind."""

from __future__ import annotations

import json
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console

from everflow.config import StreamsConfig
from everflow.console.status import StatusLine
from everflow.logs import lines_to
from everflow.records import TaskId, TopicPartition
from everflow.retry import shown_by
from everflow.spark.session import get_context
from everflow.stop_signals import owned
from everflow.topology.program import Topology
from everflow.topology.subtopologies import cut
from everflow_demo import batch, data, elastic, report, stage, topology
from everflow_demo.feed import Feed
from everflow_demo.instance_process import InstanceProcess
from everflow_demo.report import Moves

APPLICATION_ID = "flights-demo"


def run_demo(
    *,
    guarantee: str,
    threads: int | None,
    limit: int | None,
    json_file: Path | None,
    console: Console,
    debug: bool = False,
    instances: int = 1,
) -> report.Outcome:
    """Run the demo and print it; the caller turns ``matches_batch`` into an exit code.

    With two ``instances`` the flights come at a pace, and a second instance joins and leaves
    meanwhile (`everflow_demo.elastic`). Broker, state folders and instances end with this call,
    also when it is interrupted (SIGINT, SIGTERM: raises KeyboardInterrupt). Call it from the main
    thread.

    Raises:
        SetupError: no Java, no jars, no data package. FatalError: an instance stopped, or was not
        done in 15 minutes.
    """
    with ExitStack() as stack:
        stack.enter_context(owned())
        status = stack.enter_context(StatusLine(console))
        stack.enter_context(lines_to(status.say, verbose=debug))
        stack.enter_context(shown_by(status.waiting))
        flights = data.load_flights(limit)
        topics = (data.FLIGHTS_TOPIC, *topology.RESULT_TOPICS)
        broker = stage.broker_with(topics, stack, status)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="everflow-demo-")))
        settings = stage.settings(
            APPLICATION_ID, broker.bootstrap_servers, guarantee, threads, folder / "state"
        )
        if instances > 1:
            settings.update(elastic.SETTINGS)
        moves, elapsed_s = _stream(settings, data.to_records(flights), folder, instances, status)
        streamed = batch.to_figures(
            stage.read_results(StreamsConfig(**settings), topology.RESULT_TOPICS)
        )
    outcome = report.Outcome(
        records_in=flights.num_rows,
        guarantee=guarantee,
        elapsed_s=elapsed_s,
        streamed=streamed,
        differences=batch.differences(streamed, batch.figures(flights)),
        moves=moves,
    )
    report.show(outcome, console)
    if json_file is not None:
        json_file.write_text(json.dumps(outcome.to_json(), indent=2) + "\n")
    return outcome


def _stream(
    settings: dict[str, Any],
    records: data.TopicRecords,
    folder: Path,
    instances: int,
    status: StatusLine,
) -> tuple[Moves | None, float]:
    """Send the flights and process them: what moved between two instances, and the seconds that the
    processing took."""
    servers = settings["bootstrap.servers"]
    if instances == 1:
        stage.send_all([records], servers, status)
    get_context()
    program = topology.build()
    config = StreamsConfig(**settings)
    started = time.monotonic()
    moves = None
    if instances == 1:
        stage.process(config, program, status)
    else:
        feed = Feed(records, servers, elastic.pace(len(records)))
        second = InstanceProcess(
            {**settings, "state.dir": str(folder / "2" / "state")}, folder / "2"
        )
        moves = _process_elastic(config, program, feed, second, status)
    return moves, time.monotonic() - started


def _process_elastic(
    config: StreamsConfig,
    program: Topology,
    feed: Feed,
    second: InstanceProcess,
    status: StatusLine,
) -> Moves:
    """The same while the flights come in, and a second instance comes and goes."""
    inputs = {
        TaskId(sub.index, partition): tuple(
            TopicPartition(topic, partition) for topic in sub.inputs(config.application_id)
        )
        for sub in cut(program).subtopologies
        for partition in range(stage.PARTITIONS)
    }
    with stage.instance(config, program, status) as streams:
        return elastic.ElasticRun(
            elastic.Ports(
                streams=streams,
                config=config,
                inputs=inputs,
                feed=feed,
                second=second,
                status=status,
            )
        ).work()
