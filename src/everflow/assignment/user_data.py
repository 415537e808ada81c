"""Writes and reads what members and leader tell each other in a rebalance, in versions. Pure.

Magic, used version, latest version, then zlib JSON without defaults; unknown keys are ignored. Sets
of tasks are runs of partitions (``0:0-3,7;1:2``). The broker keeps all members' data in one record
of at most 1 MB (``message.max.bytes``): 1,000 members with 10,000 scattered tasks and standbys take
0.41 MB of it, names would take as much again. So programs are sent as digests, and the host map
only while it is small.
"""

from __future__ import annotations

import enum
import hashlib
import json
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from everflow.assignment.cluster_state import MemberFacts
from everflow.records import TaskId

LATEST_VERSION = 3
"""2: the first. 3: `UserData.held`, which its leaders obey; its instances end where an offset says
that the application has gone (note 067). A reader of 2 passes over what 3 has more."""
OLDEST_VERSION = 2
HOLDING_VERSION = 3
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
class UserData(MemberFacts):
    """What one member tells the leader.

    ``topology`` is `digest` of the fingerprint's lines. ``error``: NONE or SHUTDOWN_REQUESTED (for
    the whole application). ``nonce`` changes with every join, as the broker ignores a rejoin
    without a change (scenario 20); `AssignmentData.answers` repeats it. ``held``: tasks that no
    member is to run now, by the wish of this one (note 067).
    """

    topology: str = ""
    held: frozenset[TaskId] = frozenset()
    error: AnswerError = AnswerError.NONE
    nonce: int = 0
    used_version: int = LATEST_VERSION
    latest_version: int = LATEST_VERSION


@dataclass(frozen=True)
class HostTasks:
    """Tasks behind one end point (``application.server``), or of one process id."""

    active: frozenset[TaskId] = frozenset()
    standby: frozenset[TaskId] = frozenset()


@dataclass(frozen=True, kw_only=True)
class AssignmentData:
    """What the leader tells one member, besides its partitions.

    ``hosts`` by end point; None = too large (ask the group: `hosts_of`). ``followup_ms``: ask for a
    rebalance that many ms after this one. ``message`` explains ``error``. ``draining_done``: nobody
    else can take what this draining member has. ``answers``: the nonce of the user data this was
    decided from. ``topology``: digest of the program the group runs, ``reference`` its lines, for a
    member with another. ``latest_version`` is the leader's; ``version`` that of these bytes.
    """

    active: frozenset[TaskId] = frozenset()
    standby: frozenset[TaskId] = frozenset()
    warmup: frozenset[TaskId] = frozenset()
    hosts: Mapping[str, HostTasks] | None = field(default_factory=dict)
    followup_ms: int | None = None
    error: AnswerError = AnswerError.NONE
    message: str = ""
    draining_done: bool = False
    answers: int = 0
    topology: str = ""
    reference: tuple[str, ...] = ()
    awaited: Mapping[str, HostTasks] = field(default_factory=dict)
    await_ms: int | None = None
    version: int = LATEST_VERSION
    latest_version: int = LATEST_VERSION

    @property
    def hosts_left_out(self) -> bool:
        return self.hosts is None


def digest(lines: Sequence[str]) -> str:
    """16 hex digits that stand for a fingerprint's lines."""
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=8).hexdigest()


def encode(data: UserData) -> bytes:
    return _pack(_MEMBER, data, data.used_version, data.latest_version)


def decode(blob: bytes, latest_version: int = LATEST_VERSION) -> UserData:
    """Inverse of `encode`, up to ``latest_version``. FutureVersionError (a rolling upgrade: answer
    it), UserDataError."""
    found, used, latest = _unpack(_MEMBER, blob, "the member's user data", latest_version)
    return UserData(**found, used_version=used, latest_version=latest)


def encode_assignment(data: AssignmentData) -> bytes:
    return _pack(_ANSWER, data, data.version, data.latest_version)


def decode_assignment(blob: bytes, latest_version: int = LATEST_VERSION) -> AssignmentData:
    """Inverse of `encode_assignment`, up to ``latest_version``. Raises FutureVersionError,
    UserDataError."""
    found, used, latest = _unpack(
        _ANSWER,
        blob,
        "the leader's assignment data",
        latest_version,
    )
    if found.pop("hosts_left_out"):
        found["hosts"] = None
    return AssignmentData(**found, version=used, latest_version=latest)


def hosts_within_budget(
    hosts: Mapping[str, HostTasks], members: int
) -> Mapping[str, HostTasks] | None:
    """``hosts``, or None where ``members`` copies of it would take too much of the group's
    record."""
    size = len(zlib.compress(json.dumps(_packed_hosts(hosts), separators=(",", ":")).encode(), 6))
    return hosts if size * members <= HOSTS_BUDGET_BYTES else None


def hosts_of(group: Iterable[tuple[bytes, bytes]]) -> dict[str, HostTasks]:
    """The host map from (subscription, assignment) user data; unreadable members are left out."""
    hosts: dict[str, HostTasks] = {}
    for subscription, assignment in group:
        try:
            endpoint, answer = decode(subscription).endpoint, decode_assignment(assignment)
        except UserDataError:
            continue
        if endpoint and answer.error is AnswerError.NONE:
            hosts[endpoint] = HostTasks(answer.active, answer.standby)
    return hosts


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


def _hosts(packed: Mapping[str, Sequence[str]]) -> dict[str, HostTasks]:
    return {
        _text(endpoint): HostTasks(tasks_of_runs(active), tasks_of_runs(standby))
        for endpoint, (active, standby) in packed.items()
    }


def _same(value: Any) -> Any:
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"text expected, not {value!r}")
    return value


class _Field(NamedTuple):
    """``default``: what is read where it was left out (None: it must be there, or may be None)."""

    key: str
    name: str
    write: Callable[[Any], Any]
    read: Callable[[Any], Any]
    default: Any = None


_MEMBER = (
    _Field("p", "process_id", _same, _text),
    _Field("n", "nonce", _same, int),
    _Field("o", "owned", runs, tasks_of_runs, ""),
    _Field("g", "generation", lambda one: None if one == -1 else one, int, -1),
    _Field("t", "threads", lambda one: None if one == 1 else one, int, 1),
    _Field("s", "offset_sums", _number_runs, _numbers_of_runs, ()),
    _Field("r", "rack", _same, _text, ""),
    _Field(
        "a",
        "tags",
        dict,
        lambda tags: {_text(k): _text(v) for k, v in tags.items()},
        {},
    ),
    _Field("e", "endpoint", _same, _text, ""),
    _Field("d", "draining", int, bool, 0),
    _Field("i", "instance_id", _same, _same),
    _Field("f", "topology", _same, _text, ""),
    _Field("x", "error", int, AnswerError, 0),
    _Field("h", "held", runs, tasks_of_runs, ""),
)
_ANSWER = (
    _Field("n", "answers", _same, int),
    _Field("a", "active", runs, tasks_of_runs, ""),
    _Field("s", "standby", runs, tasks_of_runs, ""),
    _Field("w", "warmup", runs, tasks_of_runs, ""),
    _Field("h", "hosts", lambda hosts: _packed_hosts(hosts or {}), _hosts, {}),
    _Field("H", "hosts_left_out", int, bool, 0),
    _Field("u", "followup_ms", _same, _same),
    _Field("x", "error", int, AnswerError, 0),
    _Field("m", "message", _same, _text, ""),
    _Field("d", "draining_done", int, bool, 0),
    _Field("f", "topology", _same, _text, ""),
    _Field("l", "reference", list, lambda lines: tuple(map(_text, lines)), ()),
    _Field("k", "awaited", lambda found: _packed_hosts(found), _hosts, {}),
    _Field("q", "await_ms", _same, lambda one: None if one is None else int(one)),
)
_KEPT = ("p", "n", "u", "i", "g")
"""Keys that are written also where the value is 0 or empty."""


def _pack(fields: Sequence[_Field], data: object, used: int, latest: int) -> bytes:
    body = [(one.key, one.write(getattr(data, one.name))) for one in fields]
    short = {key: value for key, value in body if value or (value is not None and key in _KEPT)}
    packed = zlib.compress(
        json.dumps(short, separators=(",", ":"), ensure_ascii=False).encode(
            "utf-8", "surrogatepass"
        ),
        9,
    )
    return _MAGIC + bytes([used, latest]) + packed


def _unpack(
    fields: Sequence[_Field], blob: bytes, what: str, newest: int
) -> tuple[dict[str, Any], int, int]:
    """The fields by name, and the versions: used, latest."""
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
        found = {one.name: one.read(body.get(one.key, one.default)) for one in fields}
    except _DAMAGED as failure:
        raise UserDataError(f"{what} are damaged: {failure!r}") from failure
    return found, used, latest


def _unpacked(packed: bytes) -> bytes:
    """zlib's inverse, for texts of members; ValueError for what would unpack to more."""
    unpacking = zlib.decompressobj()
    text = unpacking.decompress(packed, _MOST_BYTES)
    if not unpacking.eof:
        why = f"more than {_MOST_BYTES} bytes" if unpacking.unconsumed_tail else "cut off"
        raise ValueError(why)
    return text
