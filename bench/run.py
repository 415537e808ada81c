"""`python -m bench.run NAME`: runs one bench on a broker of its own and prints, or writes, its
figures."""

from __future__ import annotations

import argparse
import contextlib
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from fractions import Fraction
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

# Started by its path, Python puts this folder, not its parent, on the import path.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import (
    assignor,
    failover,
    fairness,
    latency,
    memory_growth,
    pacing,
    report,
    restore,
    scaleout,
    throughput,
)
from bench.backlog import measure as backlog
from bench.calls import measure as calls
from bench.connect import measure as connect
from bench.connect import simulated
from bench.connect.groups import GroupPlan
from bench.connect.plot import drawing
from bench.elastic import Load
from bench.fleet import worker_lost
from bench.growth import runs as growth
from bench.growth.cases import DIMENSIONS, WITHOUT_SYSTEMS, GrowthPlan
from bench.growth.state import StateGrowsError
from bench.java_program import FLINK_MAIN, FLINK_SOURCES, NoJavaCompilerError, java_command
from bench.limits import CannotMeasureError
from bench.load import measure as load
from bench.load.plan import LoadPlan, paces
from bench.load.table import table
from bench.migrate import measure as migrate
from bench.nexmark.ratios import together
from bench.nexmark.truth import truths
from bench.programs import drain
from bench.programs.catalogue import NEXMARK, OPERATORS, PROGRAMS, WHOLE
from bench.programs.marks import print_marks
from bench.readers import measure as readers
from bench.results import (
    Measurement,
    Row,
    print_rows,
    print_table,
    results,
    summarise,
    write_json,
)
from bench.schemas import measure as schemas
from bench.sinks import measure as sinks
from bench.systems import (
    DEFAULT_SYSTEMS,
    EVERFLOW,
    EVERFLOW_BEFORE,
    EVERFLOW_LOWEST,
    EVERFLOW_SETTINGS,
    EVERFLOW_UNGUARDED,
    FLINK_SQL,
    KAFKA_STREAMS,
    KAFKA_STREAMS_SETTINGS,
    OURS,
    SYSTEMS,
    Launcher,
    SystemFailedError,
    everflow_before_launcher,
    everflow_launch,
    flink_launcher,
    kafka_streams_launcher,
)
from bench.topics import PARTITIONS
from bench.verify import WrongOutputError

GUARANTEES = ("exactly_once_v2", "at_least_once")
OF_PROGRAMS = ("programs", "operators", "nexmark")
BESIDE_KAFKA_STREAMS = (
    *OF_PROGRAMS,
    "load",
    "throughput",
    "latency",
    "scaleout",
    "failover",
    "restore",
    "growth",
    "migrate",
    "schemas",
)
BY_ITSELF = ("memory", "backlog", "fairness", "readers", "metrics", "calls", "sinks")
WITHOUT_BROKER = ("assignor", pacing.BENCH)
BENCHES = (*BESIDE_KAFKA_STREAMS, *BY_ITSELF, "connect", *WITHOUT_BROKER)
REPORT = "report"
"""Measures nothing: it makes the tables of docs/PERFORMANCE.md of committed results."""
MEASURES = ("throughput", "latency")
KEYS = 100_000
MIGRATE_KEYS = 20_000
KEYS_PER_TASK = {"scaleout": 1_000_000, "failover": 100_000}
BROKER_HEAP = "1g"


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0 when every run ended with right output; 1 otherwise, with the reason on
    stderr."""
    given = sys.argv[1:] if arguments is None else arguments
    options = _options(given)
    if options.bench == REPORT:
        for changed in report.write():
            print(f"made anew: {changed}")
        return 0
    done = results([], command_of(given), datetime.now(tz=timezone.utc).date().isoformat())
    print(f"machine: the loop takes {done.machine['loop_ms']} ms", flush=True)
    measurements: list[Measurement] = []
    failure: str | None = None
    folder = Path(tempfile.mkdtemp(prefix=f"everflow-bench-{options.bench}-"))
    print(f"logs: {folder}", flush=True)
    try:
        launchers = (
            _launchers(options.systems, folder, options.before)
            if options.bench in BESIDE_KAFKA_STREAMS and _is_of_systems(options)
            else {}
        )
        with _broker(
            options.bootstrap_servers if _is_of_systems(options) else "", folder
        ) as bootstrap_servers:
            for measurement in _measure(options, bootstrap_servers, launchers, folder):
                measurements.append(measurement)
                if options.json is not None:
                    # Each time: a run of hours may end badly.
                    write_json(replace(done, rows=_rows(measurements)), options.json)
    except (
        SystemFailedError,
        WrongOutputError,
        NoJavaCompilerError,
        memory_growth.MemoryGrowsError,
        backlog.TooMuchMemoryError,
        fairness.UnfairError,
        readers.TooCostlyError,
        assignor.SlowError,
        calls.TooSlowError,
        sinks.TooSlowError,
        schemas.TooSlowError,
        CannotMeasureError,
        StateGrowsError,
        worker_lost.WorkerTooDearError,
    ) as error:
        failure = str(error)
    rows = _rows(measurements)
    if rows:
        print()
        reference = next(
            (
                system
                for system in (KAFKA_STREAMS, EVERFLOW_BEFORE, EVERFLOW_UNGUARDED, EVERFLOW_LOWEST)
                if system in options.systems
            ),
            KAFKA_STREAMS,
        )
        if options.bench == load.BENCH:
            print_table(table(rows, EVERFLOW, reference))
        else:
            print_rows(rows, EVERFLOW, reference)
        if options.bench in (*OF_PROGRAMS, load.BENCH):
            for system in OURS:
                print_marks(rows, system)
    if options.json is not None:
        write_json(replace(done, rows=rows), options.json)
    if failure is not None:
        print(f"\nbench {options.bench} failed: {failure}", file=sys.stderr)
        return 1
    return 0


def _rows(measurements: Sequence[Measurement]) -> list[Row]:
    """The rows of the runs, and what NEXMark's queries come to together."""
    rows = summarise(measurements)
    return [*rows, *together(rows)]


def command_of(arguments: Sequence[str]) -> str:
    """The command that makes the same figures again: without the file that they were written to."""
    kept = list(arguments)
    if "--json" in kept:
        place = kept.index("--json")
        del kept[place : place + 2]
    return shlex.join(["./run", "bench", *kept])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    names = (*BENCHES, REPORT)
    parser.add_argument("bench", choices=names, metavar="NAME", help=" | ".join(names))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows as JSON")
    parser.add_argument(
        "--runs",
        type=_positive,
        help="runs of each case (throughput, failover, restore: 3; readers: 5; metrics: 9; the "
        "others: 1)",
    )
    parser.add_argument(
        "--systems",
        type=_one_of(SYSTEMS),
        default=DEFAULT_SYSTEMS,
        help=f"of {','.join(SYSTEMS)} (default {','.join(DEFAULT_SYSTEMS)})",
    )
    parser.add_argument(
        "--before",
        type=Path,
        metavar="CHECKOUT",
        help=f"a checkout of another commit with its own .venv: the system {EVERFLOW_BEFORE}",
    )
    parser.add_argument(
        "--guarantee",
        type=_one_of(GUARANTEES),
        help=f"throughput: {','.join(GUARANTEES)}; else {GUARANTEES[0]}",
    )
    parser.add_argument(
        "--keys",
        type=_numbers,
        help=f"distinct keys (default {KEYS}); growth: several, comma-separated",
    )
    parser.add_argument(
        "--threads", type=_positive, default=2, help="stream threads (default %(default)s)"
    )
    parser.add_argument(
        "--partitions",
        type=_numbers,
        help=f"latency, programs: of the input, and so tasks (default {PARTITIONS}); "
        "load, growth: several",
    )
    parser.add_argument(
        "--bootstrap-servers",
        help="use this broker; default: an embedded one, started and deleted by the bench",
    )
    parser.add_argument(
        "--records",
        type=_positive,
        help="throughput: 2,000,000; programs, load (the ceiling): each has its own; "
        "fairness: 2,000,000 a thread; "
        "readers: 6,000,000 a round; metrics: 2,000,000; calls: 100,000; sinks: 1,000,000; "
        "restore: 3,000,000; growth: 1,000,000",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=600.0,
        help="throughput, programs, restore, growth: s per run (default %(default)s)",
    )
    _add_memory(parser)
    _add_backlog(parser)
    parser.add_argument(
        "--concurrency", type=_positive, default=256, help="calls: at a time (default %(default)s)"
    )
    parser.add_argument(
        "--alone", action="store_true", help="schemas: the serdes alone, without the programs"
    )
    _add_programs(parser)
    _add_nexmark(parser)
    _add_latency(parser)
    _add_load(parser)
    _add_elastic(parser)
    _add_growth(parser)
    _add_migrate(parser)
    _add_connect(parser)
    return parser


def _options(arguments: list[str] | None) -> argparse.Namespace:
    """Growth takes several keys and partitions, the others one each."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if EVERFLOW_BEFORE in options.systems and options.before is None:
        parser.error(f"--systems {EVERFLOW_BEFORE}: --before says which checkout")
    _check_programs(parser, options)
    if options.bench != "growth":
        keys = MIGRATE_KEYS if options.bench == "migrate" else KEYS
        for name, default in (("keys", keys), ("partitions", PARTITIONS)):
            given = getattr(options, name) or (default,)
            if options.bench == load.BENCH and name == "partitions":
                options.partitions = given
                continue
            if len(given) > 1:
                parser.error(f"--{name}: {options.bench} takes one number")
            setattr(options, name, given[0])
        if options.cases == (failover.FLEET_WORKER,):
            options.systems = (EVERFLOW,)
    elif FLINK_SQL in options.systems:
        parser.error(f"--systems: growth has no program for {FLINK_SQL}")
    return options


def _check_programs(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    if options.bench in OF_PROGRAMS and "latency" in options.measure:
        if options.measure != MEASURES:
            parser.error(f"--measure latency: ./run bench load measures it for {options.bench}")
        options.measure = ("throughput",)
    if options.bench == load.BENCH:
        for program in options.programs or ():
            if not PROGRAMS[program].live:
                parser.error(f"--programs {program}: its results wait for a window's end")
        if KAFKA_STREAMS not in options.systems and any(
            pace.share is not None and program not in options.ceiling
            for pace in paces(options.rates, options.shares)
            for program in options.programs or WHOLE
        ):
            parser.error(
                f"--systems: without {KAFKA_STREAMS} there is no ceiling. Give --ceiling or --rates"
            )


def _is_of_systems(options: argparse.Namespace) -> bool:
    """Whether a system runs, and so a broker: the assignor is a pure decision, threads are paced
    on virtual time, and what a store's pages and its growth cost is measured without either."""
    if options.bench == "schemas":
        return not options.alone
    if options.bench == "connect":
        return options.members is None
    return options.bench not in WITHOUT_BROKER and (
        options.bench != "growth" or not set(options.dimensions) <= set(WITHOUT_SYSTEMS)
    )


def _add_memory(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--batches",
        type=_positive,
        default=2_000,
        help="memory: micro-batches (default %(default)s)",
    )


def _add_backlog(parser: argparse.ArgumentParser) -> None:
    only_backlog = parser.add_argument_group("backlog")
    only_backlog.add_argument(
        "--bytes", type=_positive, default=2_000_000_000, help="of each case (default %(default)s)"
    )
    only_backlog.add_argument(
        "--record-bytes",
        type=_numbers,
        default=(1_000, 1_000_000),
        help="a case each, comma-separated (default 1000,1000000)",
    )
    only_backlog.add_argument(
        "--memory", type=_positive, help="max.memory.bytes (default: as it is left out)"
    )
    only_backlog.add_argument(
        "--container",
        type=_positive,
        help="hold the instance to so many bytes by a cgroup (takes root)",
    )


def _add_programs(parser: argparse.ArgumentParser) -> None:
    programs = parser.add_argument_group("programs, operators, growth")
    programs.add_argument(
        "--programs",
        type=_one_of(tuple(PROGRAMS)),
        help=f"of {','.join(PROGRAMS)} (default: programs: those of no one operator, operators: "
        f"{','.join(OPERATORS)})",
    )
    programs.add_argument(
        "--transactions",
        type=_positive,
        default=3_000,
        help="that warm the broker at least; load, too (default %(default)s)",
    )
    programs.add_argument(
        "--measure",
        type=_one_of(MEASURES),
        default=MEASURES,
        help=f"of {','.join(MEASURES)} (default both)",
    )


def _add_nexmark(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--queries",
        type=_one_of(NEXMARK),
        help=f"nexmark: of {','.join(NEXMARK)} (default all)",
    )


def _add_latency(parser: argparse.ArgumentParser) -> None:
    only_latency = parser.add_argument_group("latency, load, calls")
    only_latency.add_argument(
        "--rates",
        type=_numbers,
        help="records/s, comma-separated (latency: 100,1000,10000; load: 100,1000)",
    )
    only_latency.add_argument(
        "--warm-up",
        type=float,
        help="s per rate, not measured (latency: 20, load: 60, calls: 10)",
    )
    only_latency.add_argument(
        "--seconds", type=float, help="s per rate, measured (latency: 30, load: 60, calls: 20)"
    )
    only_latency.add_argument(
        "--idle", type=float, default=70.0, help="s without records before the last case"
    )


def _add_load(parser: argparse.ArgumentParser) -> None:
    loaded = parser.add_argument_group("load")
    loaded.add_argument(
        "--shares",
        type=_shares,
        help="of the ceiling, comma-separated (default 1/4,1/2,3/4, or none if --rates is given)",
    )
    loaded.add_argument(
        "--ceiling",
        type=_ceilings,
        default={},
        metavar="PROGRAM=RECORDS/S,...",
        help="instead of the throughput of Kafka Streams, which the bench measures first",
    )
    loaded.add_argument("--minutes", type=float, help="measured per pace, in place of --seconds")
    loaded.add_argument(
        "--cores", type=float, help="hold each instance to so many cores, such as 1 or 0.5"
    )
    loaded.add_argument(
        "--neighbour",
        action="store_true",
        help="beside other work in bursts, half of the machine on average",
    )


def _add_elastic(parser: argparse.ArgumentParser) -> None:
    elastic = parser.add_argument_group("scaleout, failover")
    elastic.add_argument(
        "--keys-per-task", type=_positive, help="state (scaleout: 1,000,000, failover: 100,000)"
    )
    elastic.add_argument(
        "--rate",
        type=_positive,
        default=1_000,
        help="records/s over all tasks (default %(default)s)",
    )
    elastic.add_argument(
        "--settle",
        type=float,
        default=10.0,
        help="s under load before anything happens (default %(default)s)",
    )
    elastic.add_argument(
        "--cut-off",
        type=float,
        default=660.0,
        help="scaleout: s to wait for balance (default %(default)s)",
    )
    elastic.add_argument(
        "--session-timeout",
        type=float,
        default=6.0,
        help="failover: s, of both systems (default %(default)s)",
    )
    elastic.add_argument(
        "--cases",
        type=_one_of((*failover.CASES, failover.FLEET_WORKER)),
        default=failover.CASES,
        help=f"failover: default {','.join(failover.CASES)}",
    )


def _add_growth(parser: argparse.ArgumentParser) -> None:
    growing = parser.add_argument_group("growth")
    growing.add_argument(
        "--dimensions",
        type=_one_of(DIMENSIONS),
        default=DIMENSIONS,
        help=f"of {','.join(DIMENSIONS)} (default all)",
    )
    growing.add_argument("--sizes", type=_numbers, help="bytes of a value, comma-separated")
    growing.add_argument(
        "--changed", type=_numbers, help="pages: keys that change in a commit, comma-separated"
    )
    growing.add_argument(
        "--states", type=_numbers, help="state: entries of a store, comma-separated, rising"
    )
    growing.add_argument(
        "--limits-mib", type=_limits, help="memory: of an instance, 0: all; comma-separated"
    )
    growing.add_argument("--state-mib", type=_positive, help="memory: values of all keys")


def _add_migrate(parser: argparse.ArgumentParser) -> None:
    migrating = parser.add_argument_group("migrate")
    migrating.add_argument(
        "--changes",
        type=_one_of(tuple(migrate.CASES)),
        default=tuple(migrate.CASES),
        help=f"of {','.join(migrate.CASES)} (default all)",
    )
    migrating.add_argument(
        "--load", type=_positive, default=5_000, help="records/s (default %(default)s)"
    )


def _add_connect(parser: argparse.ArgumentParser) -> None:
    connecting = parser.add_argument_group("connect")
    connecting.add_argument(
        "--connectors", type=_positive, help="of 4 tasks each (default 60; simulated: 900)"
    )
    connecting.add_argument(
        "--members",
        type=_numbers,
        help="simulated groups of so many members, comma-separated, and nothing real",
    )
    connecting.add_argument(
        "--of",
        type=_one_of(connect.SYSTEMS),
        default=connect.SYSTEMS,
        help=f"of {','.join(connect.SYSTEMS)} (default both)",
    )
    connecting.add_argument("--delay", type=float, default=60.0, help="s that lost tasks wait")
    connecting.add_argument("--plot", type=Path, metavar="FILE", help="draw the courses as SVG")


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(_positive(part) for part in text.split(","))


def _shares(text: str) -> tuple[Fraction, ...]:
    parts = tuple(Fraction(part) for part in text.split(","))
    if not all(0 < part <= 1 for part in parts):
        raise argparse.ArgumentTypeError(f"{text}: a share is above 0, and at most 1")
    return parts


def _ceilings(text: str) -> dict[str, float]:
    found = {}
    for part in text.split(","):
        program, _, rate = part.partition("=")
        if program not in PROGRAMS:
            raise argparse.ArgumentTypeError(f"{program} is none of {', '.join(PROGRAMS)}")
        found[program] = float(rate)
    return found


def _limits(text: str) -> tuple[int, ...]:
    return tuple(0 if part == "0" else _positive(part) for part in text.split(","))


def _one_of(allowed: tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        parts = tuple(text.split(","))
        for part in parts:
            if part not in allowed:
                raise argparse.ArgumentTypeError(f"{part} is none of {', '.join(allowed)}")
        return parts

    return parse


def _measure(
    options: argparse.Namespace,
    bootstrap_servers: str,
    launchers: Mapping[str, Launcher],
    folder: Path,
) -> Iterator[Measurement]:
    if options.bench == "assignor":
        return assignor.measure(assignor.AssignorPlan(options.runs or 5))
    if options.bench == pacing.BENCH:
        return pacing.measure(pacing.PacingPlan())
    if options.bench == "connect":
        return _connect(options, bootstrap_servers, folder)
    common = {"guarantees": options.guarantee or GUARANTEES[:1], "threads": options.threads}
    if options.bench in BY_ITSELF:
        return _by_itself(options, common, bootstrap_servers, folder)
    if options.bench in OF_PROGRAMS:
        return _programs(options, bootstrap_servers, launchers, folder)
    if options.bench == load.BENCH:
        return load.measure(_load(options), bootstrap_servers, launchers, folder)
    if options.bench == "throughput":
        return throughput.measure(_throughput(options), bootstrap_servers, launchers, folder)
    if options.bench == "latency":
        return latency.measure(_latency(options), bootstrap_servers, launchers, folder)
    if options.bench == "migrate":
        return migrate.measure(_migrate(options), bootstrap_servers, launchers, folder)
    if options.bench == "schemas":
        return schemas.measure(_schemas(options), bootstrap_servers, launchers, folder)
    if options.bench == "growth":
        return growth.measure(_growth(options), bootstrap_servers, launchers, folder)
    if options.bench == "restore":
        restoring = restore.RestorePlan(
            records=options.records or 3_000_000,
            keys=options.keys,
            runs=options.runs or 3,
            timeout_s=options.timeout,
            **common,
        )
        return restore.measure(restoring, bootstrap_servers, launchers, folder)
    sent = Load(
        keys_per_task=options.keys_per_task or KEYS_PER_TASK[options.bench], rate=options.rate
    )
    if options.bench == "scaleout":
        growing = scaleout.ScaleoutPlan(
            load=sent,
            runs=options.runs or 1,
            settle_s=options.settle,
            cut_off_s=options.cut_off,
            **common,
        )
        return scaleout.measure(growing, bootstrap_servers, launchers, folder)
    losing = failover.FailoverPlan(
        load=sent,
        runs=options.runs or 3,
        settle_s=options.settle,
        session_timeout_s=options.session_timeout,
        cases=tuple(case for case in options.cases if case != failover.FLEET_WORKER),
        **common,
    )
    lost = (
        worker_lost.measure(losing, bootstrap_servers, folder)
        if failover.FLEET_WORKER in options.cases
        else ()
    )
    return chain(failover.measure(losing, bootstrap_servers, launchers, folder), lost)


def _connect(
    options: argparse.Namespace, bootstrap_servers: str, folder: Path
) -> Iterator[Measurement]:
    if options.members is not None:
        yield from simulated.measure(
            simulated.SimulatedPlan(
                members=options.members,
                connectors=options.connectors or 900,
                delay_s=options.delay,
            )
        )
        return
    group = GroupPlan(
        connectors=options.connectors or 60, threads=options.threads, delay_s=options.delay
    )
    plan = connect.ConnectPlan(group, options.of)
    courses: list[connect.Course] = []

    def seen(course: connect.Course) -> None:
        courses.append(course)
        if options.plot is not None:
            options.plot.write_text(drawing(group, courses))

    yield from connect.measure(plan, bootstrap_servers, folder, seen)


def _by_itself(
    options: argparse.Namespace,
    common: dict[str, Any],
    bootstrap_servers: str,
    folder: Path,
) -> Iterator[Measurement]:
    if options.bench == "memory":
        return memory_growth.measure(
            memory_growth.MemoryPlan(batches=options.batches, **common), bootstrap_servers, folder
        )
    if options.bench == "backlog":
        behind = backlog.BacklogPlan(
            size=options.bytes,
            record_bytes=options.record_bytes,
            keys=options.keys,
            memory=options.memory,
            container=options.container,
            timeout_s=options.timeout,
            **common,
        )
        return backlog.measure(behind, bootstrap_servers, folder)
    common |= {"records": options.records} if options.records else {}  # else the plan's own
    if options.bench == "readers":
        served = readers.ReadersPlan(rounds=options.runs or 5, **common)
        return readers.measure_readers(served, bootstrap_servers, folder)
    if options.bench == "metrics":
        watched = readers.MetricsPlan(rounds=options.runs or 9, **common)
        return readers.measure_metrics(watched, bootstrap_servers, folder)
    if options.bench == "calls":
        asking = calls.CallsPlan(
            concurrency=options.concurrency,
            runs=options.runs or 1,
            timeout_s=options.timeout,
            warm_up_s=options.warm_up or 10.0,
            measured_s=options.seconds or 20.0,
            **common,
        )
        return calls.measure(asking, bootstrap_servers, folder)
    if options.bench == "sinks":
        giving = sinks.SinksPlan(runs=options.runs or 1, timeout_s=options.timeout, **common)
        return sinks.measure(giving, bootstrap_servers, folder)
    return fairness.measure(fairness.FairnessPlan(**common), bootstrap_servers, folder)


def _programs(
    options: argparse.Namespace,
    bootstrap_servers: str,
    launchers: Mapping[str, Launcher],
    folder: Path,
) -> Iterator[Measurement]:
    full = drain.DrainPlan(
        guarantees=options.guarantee or GUARANTEES,
        records=options.records,
        threads=options.threads,
        runs=options.runs or 1,
        timeout_s=options.timeout,
        partitions=options.partitions,
    )
    load.warm(options.transactions, bootstrap_servers)
    if options.bench == "nexmark":
        yield from _nexmark(options, full, bootstrap_servers, launchers, folder)
        return
    listed = options.programs or (OPERATORS if options.bench == "operators" else WHOLE)
    for program in map(PROGRAMS.__getitem__, listed):
        yield from drain.measure(full, program, bootstrap_servers, launchers, folder)


def _load(options: argparse.Namespace) -> LoadPlan:
    measured_s = options.seconds if options.minutes is None else options.minutes * 60
    return LoadPlan(
        guarantee=(options.guarantee or GUARANTEES)[0],
        programs=options.programs or WHOLE,
        paces=paces(options.rates, options.shares),
        partitions=options.partitions,
        threads=options.threads,
        rounds=options.runs or 1,
        warm_up_s=options.warm_up or 60.0,
        measured_s=measured_s or 60.0,
        cores=options.cores,
        neighbour=options.neighbour,
        transactions=options.transactions,
        timeout_s=options.timeout,
        ceilings=options.ceiling,
        ceiling_records=options.records,
    )


def _nexmark(
    options: argparse.Namespace,
    plan: drain.DrainPlan,
    bootstrap_servers: str,
    launchers: Mapping[str, Launcher],
    folder: Path,
) -> Iterator[Measurement]:
    """Exactly once, where nothing else is asked for. All queries read one topic."""
    once = replace(plan, guarantees=options.guarantee or GUARANTEES[:1])
    queries = options.queries or NEXMARK
    programs = [PROGRAMS[query] for query in queries]
    records = plan.records or programs[0].records
    began = time.monotonic()
    expected = truths(queries, records, folder)
    took = time.monotonic() - began
    print(f"Spark's batch SQL over {records:,} events took {took:.1f} s", flush=True)
    with drain.loaded(once, programs[0], bootstrap_servers) as events:
        for program in programs:
            truth = expected[program.name]
            yield from drain.take_turns(
                once, program, events, bootstrap_servers, launchers, folder, truth
            )


def _throughput(options: argparse.Namespace) -> throughput.ThroughputPlan:
    return throughput.ThroughputPlan(
        guarantees=options.guarantee or GUARANTEES,
        records=options.records or 2_000_000,
        keys=options.keys,
        threads=options.threads,
        runs=options.runs or 3,
        timeout_s=options.timeout,
    )


def _latency(options: argparse.Namespace) -> latency.LatencyPlan:
    return latency.LatencyPlan(
        guarantees=options.guarantee or GUARANTEES[:1],
        rates=options.rates or latency.LatencyPlan.rates,
        keys=options.keys,
        threads=options.threads,
        runs=options.runs or 1,
        warm_up_s=options.warm_up or 20.0,
        measured_s=options.seconds or 30.0,
        idle_s=options.idle,
        partitions=options.partitions,
    )


def _migrate(options: argparse.Namespace) -> migrate.MigratePlan:
    return migrate.MigratePlan(
        cases=options.changes,
        rate=options.load,
        keys=options.keys,
        threads=options.threads,
        runs=options.runs or 1,
        settle_s=options.settle,
        after_s=options.seconds or 10.0,
    )


def _schemas(options: argparse.Namespace) -> schemas.SchemasPlan:
    drained = drain.DrainPlan(
        guarantees=options.guarantee or GUARANTEES[:1],
        records=options.records,
        threads=options.threads,
        runs=options.runs or 1,
        timeout_s=options.timeout,
    )
    values = min(schemas.SchemasPlan.values, options.records or schemas.SchemasPlan.values)
    return schemas.SchemasPlan(drained, values, programs=not options.alone)


def _growth(options: argparse.Namespace) -> GrowthPlan:
    """What is not given is the plan's own."""
    given = {
        "keys": options.keys,
        "partitions": options.partitions,
        "sizes": options.sizes,
        "changed": options.changed,
        "states": options.states,
        "records": options.records,
        "runs": options.runs,
        "limits_mib": options.limits_mib,
        "state_mib": options.state_mib,
        "warm_up_s": options.warm_up,
        "measured_s": options.seconds,
    }
    return GrowthPlan(
        guarantee=(options.guarantee or GUARANTEES[:1])[0],
        dimensions=options.dimensions,
        measures=options.measure,
        threads=options.threads,
        timeout_s=options.timeout,
        **{name: value for name, value in given.items() if value is not None},
    )


def _launchers(systems: tuple[str, ...], folder: Path, before: Path | None) -> dict[str, Launcher]:
    """Kafka Streams and Flink are compiled once, where one of their systems is asked for."""
    from everflow.jvm import resolve_jars

    launchers: dict[str, Launcher] = {
        system: partial(everflow_launch, system=system) for system in EVERFLOW_SETTINGS
    }
    if before is not None:
        launchers[EVERFLOW_BEFORE] = everflow_before_launcher(before)
    if any(system in KAFKA_STREAMS_SETTINGS for system in systems):
        # Java's class path takes the first of a name: Kafka Streams keeps its own libraries.
        jars = [*resolve_jars("streams"), *resolve_jars("schemas")]
        java = java_command(jars, folder / "classes")
        for system in KAFKA_STREAMS_SETTINGS:
            launchers[system] = kafka_streams_launcher(java, system)
    if FLINK_SQL in systems:
        flink = java_command(
            resolve_jars("flink"), folder / "flink-classes", FLINK_SOURCES, FLINK_MAIN
        )
        launchers[FLINK_SQL] = flink_launcher(flink)
    return {system: launchers[system] for system in systems}


@contextlib.contextmanager
def _broker(bootstrap_servers: str | None, folder: Path) -> Iterator[str]:
    """The given broker, or an embedded one for as long as the context lasts."""
    if bootstrap_servers is not None:
        yield bootstrap_servers
        return
    from everflow.testing.broker import EmbeddedBroker

    with EmbeddedBroker(heap=BROKER_HEAP) as broker:
        yield broker.bootstrap_servers


if __name__ == "__main__":
    sys.exit(main())
