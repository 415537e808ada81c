"""How many rows a second come from a topic into PostgreSQL, Delta and Parquet files.

Before a figure counts, the rows are read: each record's is there once. PostgreSQL is a server of
the bench's own if one is installed, or the one that ``BENCH_SINKS_DSN`` names, in which a table may
be made.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient

from bench.results import Measurement
from bench.sinks.program import OPTIONS_VARIABLE
from bench.systems import EVERFLOW, SINKS, Job, RunningSystem, everflow_launch
from bench.throughput import time_run
from bench.topics import (
    PARTITIONS,
    GroupProgress,
    create_topics,
    end_offsets,
    produce_all,
    warm_broker,
)
from bench.verify import WrongOutputError

DSN_VARIABLE = "BENCH_SINKS_DSN"
TESTS = Path(__file__).resolve().parents[2] / "tests"
_INPUT = "bench-sinks-input"
_TABLE = "bench_sinks_rows"
MARKS: Mapping[str, float] = {"postgresql": 100_000.0, "delta": 300_000.0}
"""Rows/s."""


class TooSlowError(RuntimeError):
    """A mark was missed."""


@dataclass(frozen=True)
class SinksPlan:
    """``runs`` of each sink and guarantee, of so many ``records``."""

    guarantees: Sequence[str] = ("exactly_once_v2",)
    records: int = 1_000_000
    threads: int = 2
    runs: int = 1
    timeout_s: float = 600.0


@dataclass(frozen=True)
class Target:
    """A sink that is empty: its options, and its values of ``n``, read once all are there."""

    options: Mapping[str, object]
    read: Callable[[], list[int]]


def measure(plan: SinksPlan, bootstrap_servers: str, folder: Path) -> Iterator[Measurement]:
    """TooSlowError after all figures if a mark was missed."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    warm_broker(admin, bootstrap_servers)
    create_topics(admin, [_INPUT], PARTITIONS)
    rows = (
        (b"%d" % n, b'{"n": %d, "item": "item-%d", "price": %.2f}' % (n, n % 1000, n / 100))
        for n in range(plan.records)
    )
    produce_all(bootstrap_servers, _INPUT, rows)
    missed: list[str] = []
    with _postgresql_at() as dsn:
        yield from _each(plan, bootstrap_servers, folder, _targets(dsn), missed)
    if missed:
        raise TooSlowError("; ".join(missed))


def _each(
    plan: SinksPlan,
    bootstrap_servers: str,
    folder: Path,
    targets: Mapping[str, Callable[[Path], Target]],
    missed: list[str],
) -> Iterator[Measurement]:
    for guarantee in plan.guarantees:
        for run in range(plan.runs):
            for name, make in targets.items():
                found = _drained(plan, bootstrap_servers, guarantee, f"{name}-{run}", make, folder)
                print(f"{guarantee}, run {run + 1}, {name}: {found:,.0f} rows/s", flush=True)
                yield Measurement("sinks", name, EVERFLOW, guarantee, "throughput", "rows/s", found)
                if found < MARKS.get(name, 0.0):
                    missed.append(f"{name}: {found:,.0f} rows/s, the mark is {MARKS[name]:,.0f}")


@contextmanager
def _postgresql_at() -> Iterator[str]:
    """A dsn; empty where there is no server."""
    sys.path.append(str(TESTS))  # which start one, too
    from integration.debezium import postgres

    if named := os.environ.get(DSN_VARIABLE):
        yield named
    elif postgres.binaries() is None:
        print(f"PostgreSQL is left out: {postgres.MISSING}", flush=True)
        yield ""
    else:
        # The tests' server loses rows with the machine; this one does not.
        with postgres.server(fsync="on", wal_level="replica") as own:
            yield f"host=127.0.0.1 port={own.port} user={postgres.USER} dbname=postgres"


def _targets(dsn: str) -> dict[str, Callable[[Path], Target]]:
    found: dict[str, Callable[[Path], Target]] = {"parquet": _parquet, "delta": _delta}
    if dsn:
        found["postgresql"] = partial(_postgresql, dsn)
    return found


def _parquet(folder: Path) -> Target:
    import pyarrow.parquet as pq

    path = str(folder / "parquet")
    return Target(
        {"format": "parquet", "path": path},
        lambda: pq.ParquetDataset(path).read(["n"]).column("n").to_pylist(),
    )


def _delta(folder: Path) -> Target:
    path = str(folder / "delta")

    def read() -> list[int]:
        from deltalake import DeltaTable

        found: list[int] = DeltaTable(path).to_pyarrow_table(columns=["n"]).column("n").to_pylist()
        return found

    return Target({"format": "delta", "path": path}, read)


def _postgresql(dsn: str, folder: Path) -> Target:
    import psycopg

    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"DROP TABLE IF EXISTS {_TABLE}, everflow_positions")
        connection.execute(f"CREATE TABLE {_TABLE} (n bigint, item text, price double precision)")

    def read() -> list[int]:
        with psycopg.connect(dsn) as connection:
            return [n for (n,) in connection.execute(f"SELECT n FROM {_TABLE}")]

    return Target({"format": "postgresql", "dsn": dsn, "table": _TABLE}, read)


def _drained(
    plan: SinksPlan,
    bootstrap_servers: str,
    guarantee: str,
    run: str,
    make: Callable[[Path], Target],
    folder: Path,
) -> float:
    """Rows/s from joined to done."""
    application_id = f"bench-sinks-{guarantee.replace('_', '-')}-{run}"
    state = Path(tempfile.mkdtemp(prefix="bench-state-"))
    job = Job(
        bootstrap_servers=bootstrap_servers,
        application_id=application_id,
        guarantee=guarantee,
        threads=plan.threads,
        input_topic=_INPUT,
        output_topic=f"{application_id}-output",
        state_dir=state,
    )
    ends = end_offsets(bootstrap_servers, _INPUT)
    progress = GroupProgress(bootstrap_servers, application_id, _INPUT, ends)
    try:
        target = make(state)
        launch = everflow_launch(replace(job, program=SINKS))
        more: dict[str, Any] = {OPTIONS_VARIABLE: json.dumps(target.options)}
        launch = replace(launch, environment={**launch.environment, **more})
        log = folder / f"{application_id}.log"
        with closing(progress), RunningSystem(EVERFLOW, launch, log) as process:
            timing = time_run(process, progress, plan.timeout_s)
        verify(plan, target.read())
    finally:
        shutil.rmtree(state, ignore_errors=True)
    return plan.records / (timing.done_at - timing.joined_at)


def verify(plan: SinksPlan, found: Sequence[int]) -> None:
    """WrongOutputError unless each record's row is there once."""
    if sorted(found) != list(range(plan.records)):
        raise WrongOutputError(
            f"{len(found):,} rows, of {len(set(found)):,} records, are not each of "
            f"{plan.records:,} records once"
        )
