"""Writes and reads what members and leader tell each other in a rebalance, in versions. Pure.

Magic, used version, latest version, then zlib JSON; what is at its default is left out, and a
reader ignores keys it does not know. Sets of tasks are written as runs of partitions
(``0:0-3,7;1:2``). Sizes: the broker keeps subscription and assignment of all members in one record
of at most 1 MB (``message.max.bytes``). 1,000 members with 10,000 scattered tasks and as many
standbys come to 0.41 MB here (``tests/unit/assignment/test_user_data.py`` holds the figure), and
names of topics, members and hosts take about as much again: so the program's fingerprint is sent as
a digest, and the host map only while it is small.
"""

from __future__ import annotations

import enum
import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from everflow.records import TaskId

LATEST_VERSION = 2
OLDEST_VERSION = 2
UNREAD = -1
"""As `AssignmentData.answers`: the leader could not read the nonce it would have to repeat."""
HOSTS_BUDGET_BYTES = 200_000
"""The host map is sent only while all copies of it, one per member, stay below this."""

_MAGIC = b"ef"
_DAMAGED = (
    zlib.error,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    OverflowError,  # "Infinity" where a number should be
    RecursionError,  # a hundred thousand brackets
)
_MOST_BYTES = 16 << 20
"""Limit of user data, unpacked: the broker keeps at most 1 MB of all members, packed."""
_MOST_TASKS = 1_000_000
_EMPTY: Mapping[Any, Any] = MappingProxyType({})


class UserDataError(ValueError):
    """The bytes are not everflow's, damaged, or of a version before the oldest that this release
    reads."""


class FutureVersionError(UserDataError):
    """The bytes have a newer version than this release reads; ``used`` and ``latest`` are those of
    their writer."""

    def __init__(self, message: str, used: int, latest: int) -> None:
        super().__init__(message)
        self.used, self.latest = used, latest


class AnswerError(enum.IntEnum):
    """Why a member got no assignment. On the wire: numbers never change their meaning."""

    NONE = 0
    INCOMPLETE_SOURCE_METADATA = 1
    ASSIGNMENT_FAILED = 2
    SHUTDOWN_REQUESTED = 3
    INCOMPATIBLE_TOPOLOGY = 4
    UNSUPPORTED_VERSION = 5
    PROCESS_ID_CLASH = 6


@dataclass(frozen=True, kw_only=True)
class UserData:
    """What one member tells the leader.

    ``process_id`` is the instance's, kept in its state folder. ``owned`` are its active tasks as of
    ``generation``, the last one it completed (-1 = none). ``offset_sums`` has every other copy on
    its disk. ``topology`` is `digest` of the fingerprint's lines. ``error`` is NONE or
    SHUTDOWN_REQUESTED (for the whole application). ``nonce`` changes with every join: unchanged
    metadata make a rejoin a silent no-op on the broker (scenario 20), and the answer repeats it
    (`AssignmentData.answers`).
    """

    process_id: str
    owned: frozenset[TaskId] = frozenset()
    generation: int = -1
    threads: int = 1
    offset_sums: Mapping[TaskId, int] = field(default_factory=lambda: _EMPTY)
    rack: str = ""
    tags: Mapping[str, str] = field(default_factory=lambda: _EMPTY)
    endpoint: str = ""
    draining: bool = False
    instance_id: str | None = None
    topology: str = ""
    error: AnswerError = AnswerError.NONE
    nonce: int = 0
    used_version: int = LATEST_VERSION
    latest_version: int = LATEST_VERSION


@dataclass(frozen=True)
class HostTasks:
    """Tasks behind one end point (``application.server``)."""

    active: frozenset[TaskId] = frozenset()
    standby: frozenset[TaskId] = frozenset()


@dataclass(frozen=True, kw_only=True)
class AssignmentData:
    """What the leader tells one member, besides its partitions.

    ``hosts`` by end point; None = left out for its size (ask the group instead: `hosts_of`).
    ``followup_ms``: this member is to ask for a rebalance that many ms after this one. ``message``
    explains ``error``. ``draining_done``: this member drains, and nobody else could take anything.
    ``answers`` repeats the nonce of the user data this was decided from; ``topology`` is the digest
    of the program the group runs, ``reference`` its lines, for a member refused for its program.
    ``latest_version`` is the leader's; ``version`` the one these bytes have.
    """

    active: frozenset[TaskId] = frozenset()
    standby: frozenset[TaskId] = frozenset()
    warmup: frozenset[TaskId] = frozenset()
    hosts: Mapping[str, HostTasks] | None = field(default_factory=lambda: _EMPTY)
    followup_ms: int | None = None
    error: AnswerError = AnswerError.NONE
    message: str = ""
    draining_done: bool = False
    answers: int = 0
    topology: str = ""
    reference: tuple[str, ...] = ()
    version: int = LATEST_VERSION
    latest_version: int = LATEST_VERSION


def digest(lines: Sequence[str]) -> str:
    """16 hex digits that stand for a fingerprint's lines."""
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=8).hexdigest()


def encode(data: UserData) -> bytes:
    body = {
        "p": data.process_id,
        "n": data.nonce,
        "o": runs(data.owned),
        "g": None if data.generation == -1 else data.generation,
        "t": None if data.threads == 1 else data.threads,
        "s": _number_runs(data.offset_sums),
        "r": data.rack,
        "a": dict(data.tags),
        "e": data.endpoint,
        "d": 1 if data.draining else None,
        "i": data.instance_id,
        "f": data.topology,
        "x": None if data.error is AnswerError.NONE else int(data.error),
    }
    return _pack(body, data.used_version, data.latest_version)


def decode(blob: bytes, latest_version: int = LATEST_VERSION) -> UserData:
    """Inverse of `encode`, up to ``latest_version``.

    Raises FutureVersionError (a rolling upgrade: answer it), UserDataError for anything else.
    """
    body, used, latest = _unpack(blob, "the member's user data", latest_version)
    try:
        return UserData(
            process_id=_text(body["p"]),
            owned=tasks_of_runs(body.get("o", "")),
            generation=int(body.get("g", -1)),
            threads=int(body.get("t", 1)),
            offset_sums=_numbers_of_runs(body.get("s", [])),
            rack=_text(body.get("r", "")),
            tags={_text(key): _text(value) for key, value in body.get("a", {}).items()},
            endpoint=_text(body.get("e", "")),
            draining=bool(body.get("d", 0)),
            instance_id=body.get("i"),
            topology=_text(body.get("f", "")),
            error=AnswerError(body.get("x", 0)),
            nonce=int(body["n"]),
            used_version=used,
            latest_version=latest,
        )
    except _DAMAGED as failure:
        raise UserDataError(f"the member's user data are damaged: {failure!r}") from failure


def encode_assignment(data: AssignmentData) -> bytes:
    """The assignment's user data."""
    hosts = None if data.hosts is None else _packed_hosts(data.hosts)
    body = {
        "n": data.answers,
        "a": runs(data.active),
        "s": runs(data.standby),
        "w": runs(data.warmup),
        "h": hosts,
        "H": 1 if hosts is None else None,
        "u": data.followup_ms,
        "x": None if data.error is AnswerError.NONE else int(data.error),
        "m": data.message,
        "d": 1 if data.draining_done else None,
        "f": data.topology,
        "l": list(data.reference),
    }
    return _pack(body, data.version, data.latest_version)


def decode_assignment(blob: bytes, latest_version: int = LATEST_VERSION) -> AssignmentData:
    """Inverse of `encode_assignment`, up to ``latest_version``. Raises FutureVersionError,
    UserDataError."""
    body, used, latest = _unpack(blob, "the leader's assignment data", latest_version)
    try:
        hosts = {
            _text(endpoint): HostTasks(tasks_of_runs(active), tasks_of_runs(standby))
            for endpoint, (active, standby) in body.get("h", {}).items()
        }
        return AssignmentData(
            active=tasks_of_runs(body.get("a", "")),
            standby=tasks_of_runs(body.get("s", "")),
            warmup=tasks_of_runs(body.get("w", "")),
            hosts=None if body.get("H") else hosts,
            followup_ms=body.get("u"),
            error=AnswerError(body.get("x", 0)),
            message=_text(body.get("m", "")),
            draining_done=bool(body.get("d", 0)),
            answers=int(body["n"]),
            topology=_text(body.get("f", "")),
            reference=tuple(_text(line) for line in body.get("l", [])),
            version=used,
            latest_version=latest,
        )
    except _DAMAGED as failure:
        raise UserDataError(f"the leader's assignment data are damaged: {failure!r}") from failure


def hosts_within_budget(
    hosts: Mapping[str, HostTasks], members: int
) -> Mapping[str, HostTasks] | None:
    """``hosts``, or None where ``members`` copies of it would take too much of the group's
    record."""
    size = len(zlib.compress(json.dumps(_packed_hosts(hosts), separators=(",", ":")).encode(), 6))
    return hosts if size * members <= HOSTS_BUDGET_BYTES else None


def hosts_of(group: Iterable[tuple[bytes, bytes]]) -> dict[str, HostTasks]:
    """The host map from (subscription, assignment) user data of all members, as a description of
    the group shows them.

    Members without an end point, or whose bytes cannot be read, are left out.
    """
    hosts: dict[str, HostTasks] = {}
    for subscription, assignment in group:
        try:
            endpoint, given = decode(subscription).endpoint, decode_assignment(assignment)
        except UserDataError:
            continue
        if endpoint and given.error is AnswerError.NONE:
            hosts[endpoint] = HostTasks(given.active, given.standby)
    return hosts


# --- runs -----------------------------------------------------------------------------------------


def runs(tasks: Iterable[TaskId]) -> str:
    """``sub-topology:first-last,single,...;...``; empty for no tasks."""
    by_subtopology: dict[int, list[list[int]]] = {}
    for index, partition in sorted(tasks):
        found = by_subtopology.setdefault(index, [])
        if found and found[-1][1] == partition - 1:
            found[-1][1] = partition
        else:
            found.append([partition, partition])
    return ";".join(
        f"{index}:"
        + ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in found)
        for index, found in by_subtopology.items()
    )


def tasks_of_runs(text: str) -> frozenset[TaskId]:
    """Inverse of `runs`; ValueError for anything else."""
    tasks: set[TaskId] = set()
    for part in _text(text).split(";") if text else ():
        index, _, spans = part.partition(":")
        for span in spans.split(","):
            first, _, last = span.partition("-")
            partitions = range(int(first), int(last or first) + 1)
            if len(partitions) + len(tasks) > _MOST_TASKS:
                raise ValueError(f"more than {_MOST_TASKS} tasks")
            tasks.update(TaskId(int(index), partition) for partition in partitions)
    return frozenset(tasks)


def _number_runs(numbers: Mapping[TaskId, int]) -> list[list[int]]:
    """``[sub-topology, first partition, number, number, ...]`` for each unbroken run."""
    found: list[list[int]] = []
    for index, partition in sorted(numbers):
        if not (found and found[-1][0] == index and found[-1][1] + len(found[-1]) - 2 == partition):
            found.append([index, partition])
        found[-1].append(numbers[TaskId(index, partition)])
    return found


def _numbers_of_runs(found: list[list[int]]) -> dict[TaskId, int]:
    return {
        TaskId(index, first + place): int(number)
        for index, first, *numbers in found
        for place, number in enumerate(numbers)
    }


def _packed_hosts(hosts: Mapping[str, HostTasks]) -> dict[str, list[str]]:
    return {
        endpoint: [runs(tasks.active), runs(tasks.standby)]
        for endpoint, tasks in sorted(hosts.items())
    }


# --- the envelope ---------------------------------------------------------------------------------


def _pack(body: Mapping[str, Any], used: int, latest: int) -> bytes:
    short = {
        key: value
        for key, value in body.items()
        if value or (value is not None and key in ("p", "n", "u", "i", "g"))
    }
    packed = zlib.compress(
        json.dumps(short, separators=(",", ":"), ensure_ascii=False).encode(
            "utf-8", "surrogatepass"
        ),
        9,
    )
    return _MAGIC + bytes([used, latest]) + packed


def _unpack(blob: bytes, what: str, newest: int) -> tuple[dict[str, Any], int, int]:
    if blob[:2] != _MAGIC or len(blob) < 4:
        raise UserDataError(
            f"{what} are not everflow's: another program is in the group; application.id must be "
            f"its own"
        )
    used, latest = blob[2], blob[3]
    if used > newest:
        says = (
            f"{what} have version {used}, this release reads up to {newest}: they come from a "
            f"newer everflow"
        )
        raise FutureVersionError(says, used, latest)
    if used < OLDEST_VERSION:
        raise UserDataError(
            f"{what} have version {used}, this release reads {OLDEST_VERSION} and later: upgrade "
            f"that instance"
        )
    try:
        body = json.loads(_unpacked(blob[4:]).decode("utf-8", "surrogatepass"))
    except _DAMAGED as failure:
        raise UserDataError(f"{what} are damaged: {failure!r}") from failure
    if not isinstance(body, dict):
        raise UserDataError(f"{what} are damaged: {type(body).__name__} where a record should be")
    return body, used, latest


def _unpacked(packed: bytes) -> bytes:
    """zlib's inverse, for texts of members; ValueError for what would unpack to more."""
    unpacking = zlib.decompressobj()
    text = unpacking.decompress(packed, _MOST_BYTES)
    if not unpacking.eof:
        why = f"more than {_MOST_BYTES} bytes" if unpacking.unconsumed_tail else "cut off"
        raise ValueError(why)
    return text


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"text expected, not {value!r}")
    return value
