"""A lost worker of a Spark cluster: for how long the tasks of its instance show no output.

`everflow fleet` runs three instances on a cluster of three workers, with a standby for each task.
One worker is lost under load: SIGKILL to all that runs on its host, the executor, the supervisor
and the instance included. No worker is left that could host the instance again, so its tasks go to
their standbys and stay there.
"""

from __future__ import annotations

import json
import re
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka.admin import AdminClient

from bench.apps.topic_names import INPUT_TOPIC_VARIABLE, OUTPUT_TOPIC_VARIABLE
from bench.elastic import RUNNING_TIMEOUT_S, Application, Trial, application
from bench.events import RUNNING, View, balanced
from bench.failover import (
    AFTERMATH_S,
    FLEET_WORKER,
    FLOWING_S,
    HOT_LAG,
    RESUME_TIMEOUT_S,
    FailoverPlan,
)
from bench.fleet.spark_cluster import FOLDER, SparkCluster
from bench.gaps import Gap, gap_lines, worst
from bench.results import Measurement
from bench.systems import EVERFLOW, ROOT, Job, Launch, Launcher
from bench.topics import warm_broker

ACTIVE, STANDBY, WARM_UP = "active", "standby", "warm-up"
INSTANCES = 3
PARTITIONS = 2 * INSTANCES
ALLOWED_S = 2.0
"""Above the session time-out: the rebalance, the hand-over to the standby, the first batch."""
LOOK_S, LOOK_EVERY_S = 5.0, 1.0
CALM_S = 0.5
"""Without a committed output for longer, while nothing happens: the machine has other work."""
SETTLED_S = 5.0
"""The copies are where they are to be for so long before the load counts."""

_SLOT = re.compile(r"slot-(\d+)/state\b")
_ADDRESS = re.compile(r"\bhttp\.listen=(\S+)")


class WorkerTooDearError(RuntimeError):
    """A lost worker cost more than the session time-out and `ALLOWED_S`."""


@dataclass(frozen=True)
class Placed:
    """An instance of the fleet: its host, where it is watched, and what its `/status` says."""

    host: str
    address: str
    status: Mapping[str, Any]


def address_of(command_line: Sequence[str]) -> str | None:
    """Where the instance of a slot is watched, by its command line; None for any other process."""
    text = " ".join(command_line)
    found = _ADDRESS.search(text)
    return found.group(1) if found and _SLOT.search(text) else None


def view_of(status: Mapping[str, Any]) -> View:
    """What an instance does, of its `/status`; a task counts as active once it processes."""
    tasks = status.get("tasks", ())

    def of(role: str) -> frozenset[str]:
        return frozenset(task["task"] for task in tasks if task["role"] == role)

    return View(
        running=status.get("state") == RUNNING,
        active=frozenset(
            task["task"] for task in tasks if task["role"] == ACTIVE and task["state"] == RUNNING
        ),
        standby=of(STANDBY),
        warmup=of(WARM_UP),
    )


def ready(statuses: Sequence[Mapping[str, Any]], tasks: int) -> bool:
    """Whether each task has its instance and a standby that lacks little."""
    views = [view_of(status) for status in statuses]
    tasks_seen = [task for status in statuses for task in status.get("tasks", ())]
    lags = [task["lag"] for task in tasks_seen if task["role"] != ACTIVE]
    return (
        len(views) == INSTANCES
        and balanced(views, tasks, standbys=1)
        and all(lag is not None and lag <= HOT_LAG for lag in lags)
    )


def resumed_after(gaps: Mapping[int, Gap], lost_s: float, tasks: Sequence[str]) -> dict[str, float]:
    """Of each task: s from the loss of its worker to its first output elsewhere. ``gaps``: of its
    partition, the longest since then."""
    return {
        task: gaps[partition_of(task)].began_s + gaps[partition_of(task)].seconds - lost_s
        for task in tasks
    }


def note_of(steady_s: float) -> str:
    """What a figure alone would hide. ``steady_s``: the longest time without an output before the
    loss."""
    if steady_s <= CALM_S:
        return ""
    return f"the machine was busy: {steady_s:.1f} s without an output before anything happened"


def partition_of(task: str) -> int:
    """The count has one sub-topology, and its output as many partitions as its input."""
    return int(task.partition("_")[2])


def measure(plan: FailoverPlan, bootstrap_servers: str, log_folder: Path) -> Iterator[Measurement]:
    """Yields the figures of each run as it ends. WorkerTooDearError after the last one, where a
    run took too long."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    warm_broker(admin, bootstrap_servers)
    load = replace(plan.load, partitions=PARTITIONS)
    too_dear = []
    for guarantee, run in product(plan.guarantees, range(plan.runs)):
        folder = log_folder / f"cluster-{guarantee}-{run}"
        folder.mkdir()
        spark = SparkCluster(folder)
        trial = Trial(
            "fleet",
            EVERFLOW,
            _launcher(spark.master),
            guarantee,
            plan.threads,
            load,
            plan.settings(EVERFLOW),
        )
        with closing(spark), application(trial, admin, bootstrap_servers, log_folder) as app:
            # before its topics are deleted, too
            app.stack.callback(spark.close)
            figures = _run_once(plan, app, spark, run)
        note = note_of(figures["gap_steady"])
        for metric, value in figures.items():
            yield Measurement(
                "failover", FLEET_WORKER, EVERFLOW, guarantee, metric, "s", value, note
            )
        if figures["time_to_output"] > plan.session_timeout_s + ALLOWED_S:
            too_dear.append(f"{figures['time_to_output']:.2f} s ({guarantee}, run {run + 1})")
    if too_dear:
        raise WorkerTooDearError(
            f"the tasks of a lost worker were without output for {', '.join(too_dear)}: more than "
            f"the session time-out of {plan.session_timeout_s:g} s and {ALLOWED_S:g} s"
        )


def _launcher(master: str) -> Launcher:
    def launch(job: Job) -> Launch:
        settings = {"processing.guarantee": job.guarantee, **job.settings}
        conf = {
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": "512m",
        }
        command = [
            *(sys.executable, "-c", "from everflow.cli import main; main()"),
            *("fleet", "bench.apps.count_app:builder", "--master", master),
            *("--application-id", job.application_id),
            *("--bootstrap-servers", job.bootstrap_servers),
            *("--instances", str(INSTANCES), "--threads", str(job.threads)),
            *("--folder", f"${FOLDER}/fleet"),
            *(part for key, value in settings.items() for part in ("--set", f"{key}={value}")),
            *(part for key, value in conf.items() for part in ("--conf", f"{key}={value}")),
        ]
        topics = {
            f"spark.executorEnv.{INPUT_TOPIC_VARIABLE}": job.input_topic,
            f"spark.executorEnv.{OUTPUT_TOPIC_VARIABLE}": job.output_topic,
        }
        command += [part for key, value in topics.items() for part in ("--conf", f"{key}={value}")]
        return Launch(
            command,
            {
                "PYSPARK_PYTHON": sys.executable,
                "PYTHONPATH": str(ROOT),
                "PYTHONUNBUFFERED": "1",
            },
        )

    return launch


def _run_once(
    plan: FailoverPlan, app: Application, spark: SparkCluster, run: int
) -> dict[str, float]:
    for number in range(INSTANCES):
        spark.add_host(f"worker-{number + 1}")
    app.start()
    _wait_ready(app, spark)
    app.fill()
    with app.under_load() as probe:
        _wait_ready(app, spark)
        app.wait_output(probe, 0.0)
        load_s = time.time()
        app.watch(plan.settle_s)
        _wait_ready(app, spark)
        lost = placed(spark)[run % INSTANCES]
        tasks = sorted(view_of(lost.status).active)
        lost_s = spark.lose_host(lost.host)
        watched_s = lost_s + plan.session_timeout_s + AFTERMATH_S
        app.wait(
            "outputs on every partition again",
            lambda: (
                time.time() - min(probe.latest().values()) < FLOWING_S < time.time() - watched_s
            ),
            RESUME_TIMEOUT_S,
        )
        gaps = probe.longest_gaps(lost_s, time.time())
        steady = probe.longest_gaps(load_s, lost_s)
    after = resumed_after(gaps, lost_s, tasks)
    print(
        f"{app.trial.guarantee}, run {run + 1}, {FLEET_WORKER}: {lost.host} was lost, with the "
        f"instance that had {', '.join(tasks)}"
    )
    for task, seconds in after.items():
        print(f"  {task}: first output elsewhere after {seconds:.2f} s")
    mark_s = plan.session_timeout_s + ALLOWED_S
    print(
        f"  worst {max(after.values()):.2f} s; session time-out {plan.session_timeout_s:g} s, mark "
        f"{mark_s:g} s. Longest time without a committed output, by partition:"
    )
    print("\n".join(gap_lines(gaps, lost_s, steady)), flush=True)
    return {
        "time_to_output": max(after.values()),
        "gap_max": worst(gaps),
        "gap_steady": worst(steady),
    }


def _wait_ready(app: Application, spark: SparkCluster) -> None:
    """Each task has its instance and a hot standby, and has had them for a while."""
    looked_s = since_s = time.monotonic()

    def settled() -> bool:
        nonlocal looked_s, since_s
        now_s = time.monotonic()
        if now_s - looked_s < LOOK_EVERY_S:
            return False
        looked_s = now_s
        if not ready([one.status for one in placed(spark)], app.trial.load.partitions):
            since_s = now_s
        return now_s - since_s >= SETTLED_S

    app.wait("instances with a hot standby for each task", settled, RUNNING_TIMEOUT_S)


def placed(spark: SparkCluster) -> list[Placed]:
    """The instances that answer, by host."""
    found = []
    for host in spark.hosts():
        for process in spark.processes_of(host):
            address = None
            with suppress(psutil.Error):
                address = address_of(process.cmdline())
            if address is None:
                continue
            with (
                suppress(OSError, ValueError),
                urllib.request.urlopen(f"http://{address}/status", timeout=LOOK_S) as answer,
            ):
                found.append(Placed(host, address, json.load(answer)))
                break
    return found
