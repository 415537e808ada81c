"""What goes between the driver of a fleet and the keepers on the hosts, in JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import TypeVar

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
    """The order for a keeper. ``settings``: of the instance, by dotted keys; ``folder``: on the
    host, with variables of its environment; ``url``, ``token``: of the driver; ``program``: the
    file on the host, ``attempt``: Spark's number of the task, both filled in by the task;
    ``drain_s``: longest duration of a drain."""

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
        """The order, completed by the task on the host."""
        return replace(self, program=program, attempt=attempt)


@dataclass(frozen=True, kw_only=True)
class Report(Message):
    """A keeper's report, about once a second. ``phase``: of the keeper; ``state``: of the instance;
    ``lines``: the instance's lines since the last report, and ``left_out`` the number of those that
    are in ``log``, its file on ``host``, only; ``desired``: as in `InstanceSeen`."""

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
