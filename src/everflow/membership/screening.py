"""Screens a rebalance: unreadable members, other programs, cloned folders. Pure.

A refused member gets an answer of its own and no task; the others go on. Nobody is refused for
being alone: the program of the group is the one that the members run that own tasks in the newest
generation.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from everflow.assignment.user_data import (
    AnswerError,
    FutureVersionError,
    UserData,
    UserDataError,
    decode,
)


@dataclass(frozen=True)
class Refusal:
    """Why a member takes no part, and the sentence it is told."""

    error: AnswerError
    message: str


@dataclass(frozen=True)
class Screening:
    """``accepted`` and ``refused`` by member id; ``topology`` is the digest of the program that the
    group runs.

    ``common_version``: the newest version of user data that every member reads.
    """

    accepted: Mapping[str, UserData]
    refused: Mapping[str, Refusal]
    topology: str
    common_version: int
    nonces: Mapping[str, int] = field(default_factory=dict)

    @property
    def unread(self) -> bool:
        """Whether some member's claims could not be read: what nobody else claims may be its."""
        return any(
            refusal.error is AnswerError.UNSUPPORTED_VERSION for refusal in self.refused.values()
        )


def screen(members: Mapping[str, bytes], latest_version: int) -> Screening:
    """Read and sort the members; ``latest_version`` is this leader's."""
    readable: dict[str, UserData] = {}
    refused: dict[str, Refusal] = {}
    versions = [latest_version]
    for member_id, blob in sorted(members.items()):
        try:
            readable[member_id] = decode(blob, latest_version)
            versions.append(
                max(readable[member_id].used_version, readable[member_id].latest_version)
            )
        except FutureVersionError as failure:
            refused[member_id] = Refusal(AnswerError.UNSUPPORTED_VERSION, str(failure))
            versions.append(max(failure.used, failure.latest))
        except UserDataError as failure:
            refused[member_id] = Refusal(AnswerError.ASSIGNMENT_FAILED, str(failure))
    topology = _program(readable)
    for member_id, data in readable.items():
        if data.topology != topology:
            refused[member_id] = Refusal(
                AnswerError.INCOMPATIBLE_TOPOLOGY, _other_program(member_id, data)
            )
    refused.update(_clones({m: data for m, data in readable.items() if m not in refused}))
    accepted = {member_id: data for member_id, data in readable.items() if member_id not in refused}
    return Screening(
        accepted, refused, topology, min(versions), {m: data.nonce for m, data in readable.items()}
    )


def _program(members: Mapping[str, UserData]) -> str:
    """The digest most owners of the newest generation have; without owners, the most frequent
    one."""
    owners = [data for data in members.values() if data.owned]
    newest = max((data.generation for data in owners), default=-1)
    votes = [data for data in owners if data.generation == newest] or list(members.values())
    counted = Counter(data.topology for data in votes)
    # A tie goes to the member that is first in the order of process ids, which restarts do not
    # change.
    first = {
        data.topology: data.process_id
        for data in sorted(votes, key=lambda data: data.process_id, reverse=True)
    }
    return min(counted, key=lambda topology: (-counted[topology], first[topology]), default="")


def _other_program(member_id: str, data: UserData) -> str:
    where = f" at {data.endpoint}" if data.endpoint else ""
    return (
        f"member {member_id}{where} runs a program that does not fit the group's (fingerprint "
        f"{data.topology})"
    )


def _clones(members: Mapping[str, UserData]) -> dict[str, Refusal]:
    """All but the longest member of those with one process id (scenario 31)."""
    by_process: dict[str, list[str]] = defaultdict(list)
    for member_id in members:
        by_process[members[member_id].process_id].append(member_id)
    refused = {}
    for process_id, same in by_process.items():
        oldest, *newer = sorted(
            same, key=lambda m: (-members[m].generation, -len(members[m].owned), m)
        )
        for member_id in newer:
            refused[member_id] = Refusal(
                AnswerError.PROCESS_ID_CLASH,
                f"members {oldest} and {member_id} both have the process id {process_id}: their "
                f"state folders are copies of one "
                "another (a cloned volume?), and they would fence each other's transactions",
            )
    return refused
