"""Programs at fixed paces: what a user pays at his load, in latency, cores and memory.

Each pace has a start of its own, so that memory and the JVM's compiler are those of that pace. The
ceiling is the throughput of Kafka Streams as `bench programs` measures it, held as the instances
are, without a neighbour. A latency is that from sending a record to reading the result that has it
in it.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import psutil
from confluent_kafka.admin import AdminClient

from bench.latency import Live, LiveUse, processor_shares, run_live
from bench.limits import Hold, held_to
from bench.load.latency_schedule import Phase, schedule
from bench.load.machine import loop_ms
from bench.load.neighbour import neighbour
from bench.load.plan import AT, LoadPlan, Turn, is_warm, turns
from bench.load.table import FELL_BEHIND
from bench.memory import ProcessorUse, compiler_processor_s, tree_processor_s
from bench.programs import drain
from bench.programs.catalogue import PROGRAMS, Program
from bench.programs.matching import KEYS_FILE, latencies
from bench.results import Measurement
from bench.systems import FLINK_SQL, KAFKA_STREAMS, Job, Launcher, flink_script
from bench.topics import warm_broker

BENCH = "load"
MACHINE = "machine"
PACE_KEPT = 0.98
ASK_EVERY = 250
"""Transactions between two looks at the broker's compiler."""


_OF_BROKER: Mapping[str, Callable[[int], float]] = {
    "broker_processor": tree_processor_s,
    "broker_compiler": compiler_processor_s,
}


def measure(
    plan: LoadPlan, bootstrap_servers: str, launchers: Mapping[str, Launcher], folder: Path
) -> Iterator[Measurement]:
    """The machine's speed at the begin of each round; then, for each program, its ceiling, and each
    system at each pace in each round. Yields the figures of each start as it ends."""
    broker = process_listening(bootstrap_servers)
    warm(plan.transactions, bootstrap_servers)
    with contextlib.ExitStack() as stack:
        hold = None if plan.cores is None else stack.enter_context(held_to(plan.cores))
        if hold is not None:
            print(f"each instance is held to {plan.cores:g} cores by {hold.by}", flush=True)
        held = {system: _held(launcher, hold) for system, launcher in launchers.items()}
        for partitions in plan.partitions:
            for name in plan.programs:
                yield from _program(
                    plan, PROGRAMS[name], partitions, bootstrap_servers, held, hold, broker, folder
                )


def warm(least: int, bootstrap_servers: str) -> None:
    """Thousands of transactions, at least so many, until the broker's compiler rests: half of what
    a cold broker takes in its first minute is that."""
    broker = process_listening(bootstrap_servers)
    began = looked_at = time.monotonic()
    used = compiler_processor_s(broker) if broker else 0.0
    share: float | None = None
    done = 0

    def more(transactions: int) -> bool:
        nonlocal looked_at, used, share, done
        done = transactions
        if broker and transactions % ASK_EVERY == 0:
            now, so_far = time.monotonic(), compiler_processor_s(broker)
            share = (so_far - used) / (now - looked_at)
            looked_at, used = now, so_far
        return not is_warm(transactions, share, least)

    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    warm_broker(admin, bootstrap_servers, more)
    took = time.monotonic() - began
    compiler = "" if share is None else f"; its compiler takes {share:.2f} cores at the end"
    print(f"broker warmed by {done:,} transactions in {took:.0f} s{compiler}", flush=True)


def process_listening(bootstrap_servers: str) -> int | None:
    """The process of this machine that listens on the broker's port, if there is one to be seen."""
    port = int(bootstrap_servers.split(",")[0].rpartition(":")[2])
    try:
        found = psutil.net_connections(kind="tcp")
    except psutil.Error:
        return None
    return next(
        (one.pid for one in found if one.status == psutil.CONN_LISTEN and one.laddr.port == port),
        None,
    )


def _held(launcher: Launcher, hold: Hold | None) -> Launcher:
    return launcher if hold is None else lambda job: hold.applied(launcher(job))


def _program(
    plan: LoadPlan,
    program: Program,
    partitions: int,
    bootstrap_servers: str,
    launchers: Mapping[str, Launcher],
    hold: Hold | None,
    broker: int | None,
    folder: Path,
) -> Iterator[Measurement]:
    setting = plan.setting(program.name, partitions)
    able = {
        one: launcher
        for one, launcher in launchers.items()
        if one != FLINK_SQL or flink_script(program.name, live=True) is not None
    }
    ceiling = plan.ceilings.get(program.name)
    if ceiling is None and any(pace.share is not None for pace in plan.paces):
        full = drain.DrainPlan(
            guarantees=(plan.guarantee,),
            records=plan.ceiling_records,
            partitions=partitions,
            threads=plan.threads,
            timeout_s=plan.timeout_s,
        )
        only = {KAFKA_STREAMS: launchers[KAFKA_STREAMS]}
        for one in drain.measure(full, program, bootstrap_servers, only, folder):
            if one.metric == "throughput":
                ceiling = one.value
                yield _row(plan, setting, KAFKA_STREAMS, ("ceiling", "records/s", ceiling))
    round_seen = -1
    for number, turn in enumerate(turns(plan, list(able))):
        if turn.round != round_seen:
            round_seen = turn.round
            machine = loop_ms()
            print(f"machine: the loop takes {machine:.0f} ms", flush=True)
            yield Measurement(BENCH, MACHINE, MACHINE, "", "loop", "ms", machine)
        rate = turn.pace.records_per_s(ceiling or 0.0)
        case = f"{setting}{AT}{turn.pace.label}"
        figures, notes = _run(
            plan,
            program,
            partitions,
            turn,
            rate,
            bootstrap_servers,
            able[turn.system],
            broker,
            folder / f"load-{program.name}-{partitions}-{number}",
        )
        if hold is not None:
            notes.append(f"held by {hold.by}")
        print(
            f"{case}, round {turn.round + 1}: {turn.system} "
            + ", ".join(f"{metric} {value:,.2f} {unit}" for metric, unit, value in figures),
            *notes,
            sep="; ",
            flush=True,
        )
        for figure in figures:
            yield _row(plan, case, turn.system, figure, "; ".join(notes))


def _row(
    plan: LoadPlan, case: str, system: str, figure: tuple[str, str, float], note: str = ""
) -> Measurement:
    metric, unit, value = figure
    return Measurement(BENCH, case, system, plan.guarantee, metric, unit, value, note)


def _run(
    plan: LoadPlan,
    program: Program,
    partitions: int,
    turn: Turn,
    rate: int,
    bootstrap_servers: str,
    launcher: Launcher,
    broker: int | None,
    files: Path,
) -> tuple[list[tuple[str, str, float]], list[str]]:
    """One start at one pace: its figures (metric, unit, value), and what they alone would hide."""
    application_id = f"{files.name}-{turn.system}"
    job = Job(
        bootstrap_servers=bootstrap_servers,
        application_id=application_id,
        guarantee=plan.guarantee,
        threads=plan.threads,
        input_topic=f"{application_id}-input",
        output_topic=f"{application_id}-output",
        state_dir=Path(tempfile.mkdtemp(prefix="bench-state-")),
        program=program.name,
        live=True,
    )
    clock_offset_ns = time.time_ns() - time.monotonic_ns()
    phases = schedule([rate], plan.warm_up_s, plan.measured_s, idle_s=0)
    name = ["--program", program.name]
    live = Live(
        job=job,
        output_topics=[job.output_topic + branch for branch in program.branches],
        phases=phases,
        sender=[*name, "--clock-offset-ns", str(clock_offset_ns)],
        probe=["bench.programs.probe", *name],
        files=files,
        partitions=partitions,
        may_fall_behind=True,
    )
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    beside = neighbour() if plan.neighbour else contextlib.nullcontext()
    with beside, _watching(broker) as of_broker:
        use = run_live(live, admin, turn.system, launcher)
    return _figures(program, phases, rate, files, clock_offset_ns, use, of_broker)


@contextlib.contextmanager
def _watching(broker: int | None) -> Iterator[Mapping[str, ProcessorUse]]:
    """What the broker uses meanwhile, by metric; nothing where it is not on this machine."""
    uses = (
        {}
        if broker is None
        else {name: ProcessorUse(broker, of) for name, of in _OF_BROKER.items()}
    )
    try:
        yield uses
    finally:
        for use in uses.values():
            use.stop()


def _figures(
    program: Program,
    phases: Sequence[Phase],
    rate: int,
    files: Path,
    clock_offset_ns: int,
    use: LiveUse,
    of_broker: Mapping[str, ProcessorUse],
) -> tuple[list[tuple[str, str, float]], list[str]]:
    sent_ns = np.fromfile(files / "sent", dtype=np.int64)
    seen = np.fromfile(files / "seen", dtype=np.int64).reshape(-1, 3)
    keys = [bytes.fromhex(key) for key in json.loads((files / KEYS_FILE).read_text())]
    ((case, ms),) = latencies(
        program, phases, sent_ns, clock_offset_ns, seen, keys, use.given_up_ns
    )
    cores = {
        name: processor_shares(phases, sent_ns, used).get(case, 0.0)
        for name, used in {"processor": use.processor, **of_broker}.items()
    }
    measured = sent_ns[-phases[-1].records :]
    sent_per_s = (len(measured) - 1) / max(1e-9, float(measured[-1] - measured[0]) / 1e9)
    p50, p99 = np.percentile(ms, [50, 99])
    figures = [
        ("latency_p50", "ms", float(p50)),
        ("latency_p99", "ms", float(p99)),
        *((name, "cores", share) for name, share in cores.items()),
        ("memory", "MiB", use.memory_mib),
        *((f"memory_{kind}", "MiB", mib) for kind, mib in use.memory_parts_mib.items()),
        ("start", "s", use.start_s),
        ("sent", "records/s", sent_per_s),
    ]
    notes = []
    if sent_per_s < PACE_KEPT * rate:
        notes.append(f"the sender kept less than the {rate:,} records/s asked for")
    if use.given_up_ns is not None:
        notes.append(f"{FELL_BEHIND}: latencies are lower bounds")
    return figures, notes
