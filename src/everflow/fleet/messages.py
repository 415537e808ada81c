"""What goes between the driver of a fleet and the keepers on the hosts, in JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any

PROGRAM_FILE = "everflow-program.zip"
"""The user's program, as Spark hands it out."""
TOKEN_HEADER = "x-everflow-fleet"


class Wanted(str, Enum):
    """What the driver wants of an instance. drain: others take its tasks, it leaves the group;
    stop: it ends silently and stays a member, its tasks wait for it."""

    run = "run"
    drain = "drain"
    stop = "stop"


@dataclass(frozen=True, kw_only=True)
class SlotOrder:
    """What a keeper is to do. ``settings``: of the instance, by dotted keys; ``folder``: on the
    host, with variables of its environment; ``url``, ``token``: of the driver; ``program``: the
    file on the host, ``attempt``: Spark's number of the task, both written in by the task;
    ``drain_s``: so long a drain may take."""

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

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> SlotOrder:
        """Of `to_json`."""
        return SlotOrder(**json.loads(text))

    def placed(self, program: str, attempt: int) -> SlotOrder:
        """As the task on the host completes it."""
        return replace(self, program=program, attempt=attempt)


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a keeper says, about once a second. ``phase``: what the keeper does; ``state``: of the
    instance; ``lines``: what the instance has said since the last report, ``left_out`` how many are
    in ``log``, its file on ``host``, only; ``desired``: as `InstanceSeen`'s."""

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

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(data: Any) -> Report:
        """Of what `json.loads` made of `to_json`; TypeError, or ValueError, for anything else."""
        report = Report(**data)
        if not isinstance(report.slot, int) or not isinstance(report.attempt, int):
            raise ValueError("slot and attempt are numbers")
        return report


@dataclass(frozen=True)
class SlotOutcome:
    """How a slot's instance ended: its exit code, and the last lines of what it said."""

    code: int
    tail: str = ""

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> SlotOutcome:
        """Of `to_json`; ValueError for anything else."""
        try:
            return SlotOutcome(**json.loads(text))
        except TypeError as error:
            raise ValueError(str(error)) from None
