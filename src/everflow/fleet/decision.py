"""What a fleet decides, and what goes between its driver and the supervisors on the hosts. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import TypeVar

from everflow.errors import ConfigError

PROGRAM_FILE = "everflow-program.zip"
"""The user's program, as Spark hands it out."""
TOKEN_HEADER = "x-everflow-fleet"
M = TypeVar("M", bound="Message")


class Wanted(str, Enum):
    """The driver's order for an instance. drain: it leaves the group, and others take its tasks;
    stop: it ends and stays a member, and its tasks wait for it."""

    run = "run"
    drain = "drain"
    stop = "stop"


@dataclass(frozen=True)
class Message:
    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls: type[M], text: str | bytes) -> M:
        """Inverse of `to_json`; ValueError for anything else."""
        try:
            return cls(**json.loads(text))
        except TypeError as error:
            raise ValueError(str(error)) from None


@dataclass(frozen=True, kw_only=True)
class SlotOrder(Message):
    """A supervisor's order. ``settings``: by dotted keys; ``folder``: on the host, with variables
    of its environment; ``url``, ``token``: of the driver; ``program`` (its file) and ``attempt``
    (Spark's number) are filled in by the task; ``drain_s``: limit of a drain."""

    slot: int
    target: str
    settings: Mapping[str, str]
    threads: int
    folder: str
    url: str
    token: str
    drain_s: float
    program: str = ""
    attempt: int = 0

    def placed(self, program: str, attempt: int) -> SlotOrder:
        return replace(self, program=program, attempt=attempt)


@dataclass(frozen=True, kw_only=True)
class Report(Message):
    """A supervisor's report, about once a second. ``phase``: of the supervisor; ``state``: of the
    instance; ``lines``: the instance's lines since the last report, and ``left_out`` the number of
    those that are in ``log``, its file on ``host``, only; ``desired``: as in `InstanceSeen`."""

    slot: int
    attempt: int
    host: str
    phase: str
    log: str = ""
    state: str = ""
    ready: bool = False
    lag: int | None = None
    desired: int | None = None
    lines: list[str] = field(default_factory=list)
    left_out: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.slot, int) or not isinstance(self.attempt, int):
            raise ValueError("slot and attempt are numbers")


@dataclass(frozen=True)
class SlotOutcome(Message):
    """The end of a slot's instance: its exit code, and its last lines."""

    code: int
    tail: str = ""


STOP_S = 60.0
"""So long an instance may take to end: a batch in flight has 30 s, then stores are written."""
DRIVER_SILENT_S = 60.0
"""A driver that has not answered for so long is gone."""
PLACE_S = 20.0
"""Seconds without an executor until that is logged."""
AGAIN_S = 600.0
"""Seconds until it is logged again."""
MOST_LINES = 200
"""Of an instance, in one report."""
MOST_CHARACTERS = 4_000
"""Of each line there."""

OWN_SETTINGS = {
    "group.instance.id": "it is made of the number of the instance",
    "state.dir": "--folder says where it lies on the hosts",
    "http.listen": "each instance listens on its host, where its supervisor asks it",
}


def require_not_own(
    settings: Mapping[str, object], own: Mapping[str, str] = OWN_SETTINGS, whom: str = "a fleet"
) -> None:
    """ConfigError for a setting that the loop gives each instance itself."""
    for key in own.keys() & settings.keys():
        raise ConfigError(f"{key} cannot be set for {whom}: {own[key]}")


def require_cluster(master: str | None) -> str:
    """The master of a cluster; ConfigError where it is none."""
    if not master:
        raise ConfigError(
            "--master is missing: the Spark cluster, e.g. spark://host:7077 (spark-submit gives "
            "its own)"
        )
    if master == "local" or master.startswith(("local[", "local-")):
        raise ConfigError(
            f"--master {master} is this machine alone: a fleet needs a cluster. Here `everflow "
            f"run` starts one instance and `everflow autoscale` several"
        )
    return master


def spark_settings(
    application_id: str, instances: int, cores: int, memory: str, chosen: Mapping[str, str]
) -> dict[str, str]:
    """Settings of the fleet's Spark; ``chosen`` ones win. An executor is a place (note 053)."""
    own = {
        "spark.app.name": f"everflow fleet {application_id}",
        "spark.executor.cores": str(cores),
        "spark.task.cpus": str(cores),
        "spark.executor.memory": memory,
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.minExecutors": "0",
        "spark.dynamicAllocation.initialExecutors": str(instances),
        "spark.dynamicAllocation.schedulerBacklogTimeout": "1s",
        "spark.dynamicAllocation.executorIdleTimeout": "30s",
        # A slot's task lives for months, and an executor that is killed counts as its failure.
        "spark.task.maxFailures": "10",
        "spark.speculation": "false",  # a second copy of an instance
        "spark.ui.showConsoleProgress": "false",
    }
    return {**own, **chosen}


def instance_settings(
    settings: Mapping[str, object], application_id: str, slot: int
) -> dict[str, str]:
    """A slot's settings; a static member, so that a restart anywhere moves no task (KIP-345)."""
    return {
        **{key: str(value) for key, value in settings.items()},
        "group.instance.id": f"{application_id}-{slot}",
    }


def instance_environment(environment: Mapping[str, str], python: str) -> dict[str, str]:
    """``environment`` with ``python``, without the task's Spark: an instance has its own."""
    kept = {
        name: value
        for name, value in environment.items()
        if name == "SPARK_SUBMIT_OPTS"
        or not name.startswith(("SPARK_", "PYSPARK_", "PYTHON_WORKER_", "PYTHON_UNIX_DOMAIN_"))
    }
    path = [
        entry
        for entry in kept.pop("PYTHONPATH", "").split(":")
        if entry and not entry.endswith(("/pyspark.zip", "-src.zip", ".jar"))
    ]
    if path:
        kept["PYTHONPATH"] = ":".join(path)
    kept["PYSPARK_PYTHON"] = python
    return kept


class Act(Enum):
    go_on = "go on"
    drain = "drain"
    stop = "stop"
    kill = "kill"
    done = "done"


@dataclass(frozen=True, kw_only=True)
class SupervisorState:
    """A supervisor's input for a decision. ``executor_there``: its Spark task is alive;
    ``silent_s``: since the driver's last answer; ``ending``: the order to end, sent ``ending_s``
    ago; ``code``: the instance's exit code, once it has ended."""

    executor_there: bool
    silent_s: float
    wanted: Wanted
    ending: Wanted | None = None
    ending_s: float = 0.0
    code: int | None = None


def target_order(state: SupervisorState) -> Wanted:
    """The state to bring the instance to. Without an executor or a driver it stops and stays a
    member: the slot goes on elsewhere under its name, or with the next fleet."""
    lost = not state.executor_there or state.silent_s > DRIVER_SILENT_S
    return Wanted.stop if lost else state.wanted


def next_act(state: SupervisorState, drain_s: float) -> Act:
    if state.code is not None:
        return Act.done
    wanted = target_order(state)
    if state.ending is None:
        return {Wanted.run: Act.go_on, Wanted.drain: Act.drain, Wanted.stop: Act.stop}[wanted]
    if state.ending is Wanted.drain and wanted is Wanted.stop:
        return Act.stop
    bound_s = drain_s if state.ending is Wanted.drain else STOP_S
    return Act.kill if state.ending_s > bound_s else Act.go_on


def answer(wanted: Wanted | None, newest: int, attempt: int) -> Wanted:
    """The answer to a supervisor; ``wanted`` None: no slot. One of an earlier attempt ends."""
    return Wanted.stop if wanted is None or attempt < newest else wanted


def moved(before: Report | None, now: Report) -> str | None:
    """The line for a slot that has another host than before, or waits there; None: no change."""
    if before is not None and before.attempt != now.attempt:
        return f"instance {now.slot} lost its executor on {before.host}; it restarts on {now.host}"
    if before is not None and before.phase == now.phase:
        return None
    if now.phase == "waits":
        return f"instance {now.slot} waits on {now.host} for its earlier process there to end"
    if now.phase == "runs":
        return f"instance {now.slot} runs on {now.host}, its log there: {now.log}"
    return None


def shown_lines(report: Report) -> list[str]:
    prefix = f"{report.slot}@{report.host} | "
    shown = [prefix + line for line in report.lines]
    if report.left_out:
        shown.insert(0, f"{prefix}({report.left_out} lines are only in {report.log})")
    return shown


@dataclass
class MissingPlaces:
    """Says that there are too few places, once and then seldom."""

    cores: int
    memory: str
    _reported: tuple[int, ...] = ()
    _reported_s: float = float("-inf")

    def text(self, without_s: Mapping[int, float], now_s: float) -> str | None:
        """``without_s``: slot -> for how long it has had no place; 0 where it has one."""
        missing = tuple(sorted(slot for slot, since in without_s.items() if since >= PLACE_S))
        if missing == self._reported and (not missing or now_s - self._reported_s < AGAIN_S):
            return None
        grown = bool(set(missing) - set(self._reported)) or missing == self._reported
        self._reported, self._reported_s = missing, now_s
        return self._said(missing, len(without_s)) if grown else None

    def _said(self, missing: Sequence[int], all_: int) -> str:
        numbers = ", ".join(str(one) for one in missing)
        cores = "1 core" if self.cores == 1 else f"{self.cores} cores"
        return (
            f"{len(missing)} of {all_} instances have no executor ({numbers}): each takes one of "
            f"{cores} and {self.memory}, and Spark has found none for {PLACE_S:g} s. They start as "
            f"soon as it does: add workers, end other applications, check spark.cores.max, or ask "
            f"for {all_ - len(missing)} instances"
        )
