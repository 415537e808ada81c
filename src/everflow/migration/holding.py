"""`Holder`: the member of the old group by whose wish its tasks stand still (note 067)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from everflow.assignment.cluster_state import AssignmentRules
from everflow.assignment.user_data import (
    HOLDING_VERSION,
    AnswerError,
    AssignmentData,
    UserData,
    UserDataError,
    decode,
    decode_assignment,
)
from everflow.clock import Clock, Running, on_thread
from everflow.errors import EverflowError, MigrationError, RetriableError
from everflow.kafka.admin import MemberDescription
from everflow.kafka.group_channel import GroupChannel, GroupSettings
from everflow.kafka.writing.transaction import GroupMetadata
from everflow.logs import some
from everflow.membership.assignor import Identity, MemberAssignor, name_of
from everflow.migration.programs import Program
from everflow.records import TaskId, TopicPartition

log = logging.getLogger("everflow")

SESSION_MS = 10_000
"""So long after a migrator was killed the old version gets its tasks back."""
HEARTBEAT_MS = 100
"""Two rebalances of the switch wait until the migrator has noticed them: with 500 ms, and with 50
between two looks, 0.2 s more."""
_JOIN_SLICE_S = 0.5
_PAUSE_S = 0.01
_RETRY_S = 0.5
_END_S = 5.0


class _NoEnds:
    """Where the migrator leads the group everyone keeps what it has (X2)."""

    def refresh(self) -> None:
        pass

    def latest(self) -> Mapping[TaskId, int] | None:
        return None


@dataclass(frozen=True)
class SeenMember:
    """A member as the group describes it. ``answer``: None where it could not be read."""

    member_id: str
    data: UserData
    answer: AssignmentData | None


def seen_members(members: Collection[MemberDescription]) -> list[SeenMember] | None:
    """The members of a settled group; None where one cannot be read."""
    found = []
    for one in members:
        try:
            data, answer = decode(one.subscription), decode_assignment(one.assignment)
        except UserDataError:
            return None
        found.append(SeenMember(one.member_id, data, answer))
    return found


def stand_still(members: Collection[SeenMember], held: Collection[TaskId]) -> bool:
    """True if no member has a task of ``held``, or is given one. Pure."""
    return all(
        not one.data.owned.intersection(held)
        and one.answer is not None
        and one.answer.error is AnswerError.NONE
        and not one.answer.active.intersection(held)
        for one in members
    )


def near_tasks(
    members: Collection[SeenMember],
    changelogs: Mapping[TaskId, Collection[TopicPartition]],
    ends: Mapping[TopicPartition, int],
    lag: int,
) -> set[TaskId]:
    """Tasks of which some member has a copy, to within ``lag`` of these ends. A state that is
    smaller than ``lag`` needs one, too: else it would be restored while nobody runs the task.
    Pure."""
    return {
        task
        for task, tps in changelogs.items()
        if any(
            task in one.data.offset_sums
            and one.data.offset_sums[task] >= sum(ends[tp] for tp in tps) - lag
            for one in members
        )
    }


def before_holding(members: Collection[SeenMember]) -> list[str]:
    """Names of members whose release knows nothing of held tasks. Pure."""
    return sorted(
        name_of(one.member_id, one.data.endpoint)
        for one in members
        if max(one.data.used_version, one.data.latest_version) < HOLDING_VERSION
    )


def others(members: Collection[SeenMember], topology: str) -> list[str]:
    """Names of members that run another program than the one with this digest. Pure."""
    return sorted(
        name_of(one.member_id, one.data.endpoint)
        for one in members
        if one.data.topology != topology
    )


def require_one_version(found: Collection[SeenMember], group: str, topology: str) -> None:
    """MigrationError if a member runs another program than the one with this digest, or a release
    of everflow that would not hold its tasks, or go on after the switch."""
    if strange := others(found, topology):
        raise MigrationError(
            f"Members of {group} run another program than --from names: {some(strange)}. Their "
            f"state would be carried wrongly. Nothing was switched, and all of them go on. Let one "
            f"version run alone, or give its program to --from.",
            code="EF-MIGRATION-MEMBERS",
        )
    if earlier := before_holding(found):
        raise MigrationError(
            f"Members of {group} run an earlier release of everflow, which cannot hold tasks, and "
            f"would go on after the switch: {some(earlier)}. Nothing was switched, and all of them "
            f"go on. Upgrade them first, one after the other, with the program that they run "
            f"(docs/SCALING.md).",
            code="EF-MIGRATION-MEMBERS",
        )


def grown_since(group: str, what: str) -> MigrationError:
    """Of ``what`` the old version has come to read while it was migrated."""
    return MigrationError(
        f"{group} has begun to read {what} since this command was called. Nothing was switched, "
        f"and the old version goes on. Call everflow migrate again: it goes on with the copy, and "
        f"carries those offsets, too.",
        code="EF-MIGRATION-PLAN",
    )


def tasks_of(members: Collection[SeenMember]) -> frozenset[TaskId]:
    """All that members have, or are given. Pure."""
    given = (one.answer.active for one in members if one.answer is not None)
    return frozenset().union(*(one.data.owned for one in members), *given)


class Holder:
    """A member that runs nothing. `hold` and `close` belong to one thread; it polls on its own."""

    def __init__(self, settings: GroupSettings, program: Program, process_id: str) -> None:
        identity = Identity(process_id=process_id, topology=program.lines)
        changelogs: dict[int, list[str]] = {index: [] for index in program.inputs}
        for name, (topic, _) in program.changelogs.items():
            index = program.facts.stores[name].subtopology
            if index is not None:
                changelogs[index].append(topic)
        self._assignor = MemberAssignor(
            identity,
            program.inputs,
            changelogs,
            dict,
            _NoEnds(),
            dict,
            AssignmentRules(),
            tasks=program.fixed,
        )
        self._assignor.draining = True  # it gets no task while there is anyone else
        self._settings, self._program = settings, program
        self._channel: GroupChannel | None = None
        self._running: Running | None = None
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._asked = False
        self.error: EverflowError | None = None
        self.answered: AssignmentData | None = None

    @property
    def group(self) -> str:
        return self._settings.group_id

    @property
    def topology(self) -> str:
        return self._assignor.topology

    @property
    def tasks(self) -> frozenset[TaskId]:
        """All that the program had as the plan was made."""
        return frozenset(self._program.tasks())

    def hold(self, tasks: Collection[TaskId]) -> None:
        """Ask the group to hold these, and no others; joins it the first time. RetriableError."""
        if self._channel is not None and self._assignor.held == frozenset(tasks):
            return
        self._assignor.held = frozenset(tasks)
        if self._channel is None:
            topics = self._assignor.topics
            self._channel = GroupChannel(self._settings, topics, self._assignor, self, _END_S)
            self._running = on_thread("everflow-holder", self._run)
        else:
            self._asked = True
            self._wake.set()

    def member(self) -> GroupMetadata | None:
        """Its identity in a settled generation, else None. EverflowError: it has no membership."""
        if self.error is not None:
            raise self.error
        channel = self._channel
        if channel is None or not channel.stable or self._asked:
            return None
        now = channel.metadata()
        if now.generation < 0:
            return None
        return GroupMetadata(now.generation, self._settings.group_id, now.member_id, None)

    def close(self) -> None:
        """Leave the group: the others get their tasks back, unless the switch took place."""
        self._stop.set()
        self._wake.set()
        if self._running is not None:
            self._running.join(_END_S)
        if self._channel is not None:
            self._channel.close(_END_S, True)
            self._channel = None

    def on_assignment(
        self, partitions: frozenset[TopicPartition], user_data: bytes, generation: int
    ) -> None:
        try:
            self.answered = self._assignor.answer(user_data)
        except UserDataError as failure:
            self.error = MigrationError(
                f"The answer of the leader of {self._settings.group_id} cannot be read: {failure}. "
                f"Nothing was switched, and its instances go on. Run one release of everflow on "
                f"all of them, and call everflow migrate again."
            )
            return
        if self.answered.error is not AnswerError.NONE:
            self.error = MigrationError(
                f"The group {self._settings.group_id} does not take the migrator: "
                f"{self.answered.message}. Nothing was switched, and its instances go on. Do they "
                f"run the program of --from? Let one version run alone, or give its program to "
                f"--from, and call everflow migrate again.",
                code="EF-MIGRATION-MEMBERS",
            )

    def _run(self) -> None:
        channel = self._channel
        assert channel is not None
        while not self._stop.is_set():
            pause_s = _PAUSE_S
            try:
                if self._asked and not channel.joining:
                    channel.request_rejoin()
                    self._asked = False
                channel.poll(_JOIN_SLICE_S)
            except RetriableError as failure:
                log.warning("%s; trying again", failure)
                pause_s = _RETRY_S
            except EverflowError as failure:
                self.error = failure
                return
            self._wake.wait(pause_s)
            self._wake.clear()


def await_still(
    holder: Holder,
    held: Collection[TaskId],
    members: Callable[[], Collection[MemberDescription]],
    clock: Clock,
    stop: threading.Event,
    timeout_ms: float,
) -> GroupMetadata:
    """Wait until nobody has a task of ``held``; the identity in whose generation that is so.
    MigrationError: not in time, or a member runs another program or an earlier release."""
    until_ms = clock.monotonic_ms() + timeout_ms
    last = "the migrator has not joined yet"
    while True:
        member = holder.member()
        found = None if member is None else seen_members(members())
        if member is not None and found and any(one.member_id == member.member_id for one in found):
            require_one_version(found, holder.group, holder.topology)
            if more := tasks_of(found) - holder.tasks:
                raise grown_since(holder.group, f"the inputs of the tasks {some(sorted(more))}")
            if stand_still(found, held) and holder.member() == member:
                return member
            busy = sorted(task for one in found for task in one.data.owned.intersection(held))
            last = f"tasks {some(busy)} are not given up yet" if busy else "it is being rebalanced"
        if clock.monotonic_ms() >= until_ms:
            raise MigrationError(
                f"The group {holder.group} did not stand still within "
                f"{timeout_ms / 1000:g} s: {last}. Does an instance hang? The old version goes "
                f"on; call everflow migrate again.",
                code="EF-MIGRATION-MEMBERS",
            )
        clock.wait(stop, 1000 * _PAUSE_S)
