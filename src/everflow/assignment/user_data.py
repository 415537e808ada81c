"""The bytes a member sends along when it joins: who it is and which tasks it holds. Versioned, zlib-compressed."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass

from everflow.records import TaskId

_VERSION = 1
_MAGIC = b"ef"


class UserDataError(ValueError):
    """The bytes are not everflow's, or of a newer version than this one reads."""


@dataclass(frozen=True)
class UserData:
    """What one member tells the leader.

    ``process_id`` is the instance's, kept in its state folder; ``threads`` its stream threads (their transactional
    ids can be fenced by whoever takes over); ``generation`` the last one it completed; ``nonce`` only has to change:
    a rejoin with unchanged metadata is a silent no-op on the broker (scenario 20).
    """

    process_id: str
    owned: frozenset[TaskId] = frozenset()
    generation: int = -1
    threads: int = 1
    nonce: int = 0


def encode(data: UserData) -> bytes:
    """Magic, version byte, nonce byte, then compressed JSON. Owned tasks are written as runs of partitions."""
    body = {"p": data.process_id, "g": data.generation, "t": data.threads, "o": _runs(data.owned)}
    packed = zlib.compress(json.dumps(body, separators=(",", ":")).encode(), 6)
    return _MAGIC + bytes([_VERSION, data.nonce & 0xFF]) + packed


def decode(blob: bytes) -> UserData:
    """Inverse of ``encode``; UserDataError for anything else."""
    if blob[:2] != _MAGIC or len(blob) < 4:
        raise UserDataError("the member's user data are not everflow's: another program joined the group")
    if blob[2] > _VERSION:
        raise UserDataError(f"the member's user data have version {blob[2]}, this release reads up to {_VERSION}")
    try:
        body = json.loads(zlib.decompress(blob[4:]))
        owned = frozenset(TaskId(index, partition) for index, first, last in body["o"] for partition in range(first, last + 1))
        return UserData(body["p"], owned, body["g"], body["t"], blob[3])
    except (zlib.error, ValueError, KeyError, TypeError) as failure:
        raise UserDataError(f"the member's user data are damaged: {failure}") from failure


def _runs(tasks: frozenset[TaskId]) -> list[list[int]]:
    """``[sub-topology, first partition, last partition]`` for each unbroken run."""
    runs: list[list[int]] = []
    for index, partition in sorted(tasks):
        if runs and runs[-1][0] == index and runs[-1][2] == partition - 1:
            runs[-1][2] = partition
        else:
            runs.append([index, partition, partition])
    return runs
