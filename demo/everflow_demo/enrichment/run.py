"""The enrichment end to end: broker, records, an instance, comparison. Leaves nothing behind."""

from __future__ import annotations

import json
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from everflow.config import StreamsConfig
from everflow.console.status import StatusLine
from everflow.logs import lines_to
from everflow.retry import shown_by
from everflow.spark.session import get_context
from everflow.stop_signals import owned
from everflow_demo import stage
from everflow_demo.data import load_flights
from everflow_demo.enrichment import batch, data, report, topology

APPLICATION_ID = "enrichment-demo"


def run_enrichment(
    *,
    guarantee: str,
    threads: int | None,
    limit: int | None,
    json_file: Path | None,
    console: Console,
    debug: bool = False,
) -> report.EnrichmentOutcome:
    """Run the demo and print it; the caller turns ``matches_batch`` into an exit code. ``limit``:
    only the first so many flights. Ends, and raises, as `everflow_demo.run.run_demo`."""
    with ExitStack() as stack:
        stack.enter_context(owned())
        status = stack.enter_context(StatusLine(console))
        stack.enter_context(lines_to(status.say, verbose=debug))
        stack.enter_context(shown_by(status.waiting))
        tables = (
            load_flights(limit),
            data.load_weather(),
            data.load_airlines(),
            data.load_planes(),
        )
        records = data.to_records(*tables)
        read = [given.topic for given in records]
        broker = stage.broker_with([*read, *topology.RESULT_TOPICS], stack, status)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="everflow-demo-")))
        config = StreamsConfig(
            **stage.settings(
                APPLICATION_ID, broker.bootstrap_servers, guarantee, threads, folder / "state"
            )
        )
        stage.send_all(records, broker.bootstrap_servers, status)
        get_context()
        program = topology.build()
        started = time.monotonic()
        stage.process(config, program, status)
        elapsed_s = time.monotonic() - started
        streamed = batch.to_figures(stage.read_results(config, topology.RESULT_TOPICS))
    outcome = report.EnrichmentOutcome(
        records_in={given.topic: len(given) for given in records},
        guarantee=guarantee,
        elapsed_s=elapsed_s,
        streamed=streamed,
        differences=batch.differences(streamed, batch.figures(*tables)),
    )
    report.show(outcome, console)
    if json_file is not None:
        json_file.write_text(json.dumps(outcome.to_json(), indent=2) + "\n")
    return outcome
