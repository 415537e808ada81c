"""The state updater: copies follow their changelogs on one thread, each role with a budget (D9). A
promoted task is released with open stores, of which recovery replays the tail."""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from everflow.clock import Clock, Running, Spawn, on_thread
from everflow.errors import EverflowError, RetriableError, TaskTimeoutError
from everflow.instance.restore.listeners import (
    RestoreListener,
    StandbyUpdateListener,
    SuspendReason,
)
from everflow.instance.restore.restoration import FilledStore, PreparedStore, progress_of
from everflow.instance.restore.restore_plan import ChangelogState
from everflow.instance.tasks.task import (
    Released,
    StalledTask,
    StandbyTask,
    TaskRole,
    TaskState,
    TaskStore,
    TaskTimeouts,
)
from everflow.logs import ABOUT_ASSIGNMENT, rebalance_log
from everflow.records import Offsets, TaskId, TopicPartition
from everflow.state.left_out import Chunk
from everflow.user_program import ListenerGuard

log = logging.getLogger("everflow")


# --- stalled copies (note 051) --------------------------------------------------------------------

STALLED_MS = 10_000.0
"""If no record of a log with more records comes within this time, its leader does not answer."""
SAY_EVERY_MS = 10_000.0


class StalledCopy(NamedTuple):
    role: TaskRole
    stalled: StalledTask


@dataclass
class StalledCopies:
    """The copies that make no progress, and why. Owned by the updater's thread; any thread may call
    `stalled`. After ``task.timeout.ms`` the instance goes on and logs an error (note 051)."""

    timeouts: TaskTimeouts
    clock: Clock
    _roles: dict[TaskId, TaskRole] = field(default_factory=dict)
    _moved_ms: dict[TaskId, float] = field(default_factory=dict)
    """When each copy last made progress, or was last found to be stalled."""
    _over: set[TaskId] = field(default_factory=set)
    _said_ms: dict[TaskId, float] = field(default_factory=dict)

    def failed(
        self, tasks: Mapping[TaskId, TaskRole], cause: str, *, rests_after_ms: float | None = None
    ) -> None:
        """``rests_after_ms``: for how long it delayed the others; None: it is tried at once."""
        now_ms = self.clock.monotonic_ms()
        for task, role in tasks.items():
            self._roles[task] = role
            try:
                self.timeouts.failed([task], cause, now_ms)
            except TaskTimeoutError as error:
                if task not in self._over:
                    self._over.add(task)
                    log.error("%s. The instance goes on without this copy", error)
            if now_ms - self._said_ms.get(task, float("-inf")) >= SAY_EVERY_MS:
                self._said_ms[task] = now_ms
                text = "Task %s (%s) cannot follow its changelogs: %s"
                log.warning(text, task, role.value, cause)
        if rests_after_ms is not None:
            self.timeouts.rest(tasks, now_ms, rests_after_ms)

    def progressed(self, task: TaskId) -> None:
        self._moved_ms[task] = self.clock.monotonic_ms()
        if task in self._roles:
            self._forget(task)

    def behind(self, task: TaskId, role: TaskRole, where: str, cause: str = "") -> None:
        now_ms = self.clock.monotonic_ms()
        if now_ms - self._moved_ms.setdefault(task, now_ms) >= STALLED_MS:
            self._moved_ms[task] = now_ms
            silent = f"{where} has more records, but its leader does not send them"
            self.failed({task: role}, cause or silent)

    def stand_still(self) -> None:
        now_ms = self.clock.monotonic_ms()
        self._moved_ms = dict.fromkeys(self._moved_ms, now_ms)

    def keep(self, tasks: Collection[TaskId]) -> None:
        gone = [task for task in {*self._roles, *self._moved_ms} if task not in tasks]
        for task in gone:
            self._forget(task)
            self._moved_ms.pop(task, None)

    def resting(self) -> Set[TaskId]:
        return self.timeouts.resting(self.clock.monotonic_ms())

    def stalled(self) -> Mapping[TaskId, StalledCopy]:
        return {
            task: StalledCopy(role, stalled)
            for task, stalled in self.timeouts.stalled().items()
            if (role := self._roles.get(task)) is not None
        }

    def _forget(self, task: TaskId) -> None:
        self.timeouts.progressed(task)
        self._roles.pop(task, None)
        self._said_ms.pop(task, None)
        self._over.discard(task)


def concerned(
    roles: Mapping[TaskId, TaskRole],
    silent: Iterable[object],
    logs: Mapping[TaskId, Iterable[object]],
) -> dict[TaskId, TaskRole]:
    gone = set(silent)
    return {task: role for task, role in roles.items() if gone.intersection(logs.get(task, ()))}


ENDS_PERIOD_MS = 200.0
TOUCH_PERIOD_MS = 300_000.0
IDLE_WAIT_MS = 1_000.0
FAULT_PAUSE_MS = 500.0
HOT_AGAIN_MS = 10_000.0
"""A warm-up reports again after this time: the leader may have seen it a little behind."""
HOT_AGAIN_AT_MOST_MS = 600_000.0
"""A standby that falls behind often must not cost the group a rebalance each time."""


@dataclass(frozen=True, kw_only=True)
class UpdaterServices:
    """Effects of the updater, all called on its thread. ``open_follower``: a reader over no
    partition yet, one for each role. ``stable_ends``: of logs whose leaders answer. ``prepare(task,
    store, state, incarnation)``: the opened, claimed and judged store. ``distrust(task, store,
    reason)``: the next ``prepare`` rebuilds it. ``became_hot``: a copy has reached
    ``acceptable.recovery.lag``. ``lost``: no copy follows any more, for now. ``restores``: the
    progress of warm-ups; must not raise. ``standbys``: the user's listener. ``taken(task,
    changelog, position, chunk)``: the records that enter the store. ``doubt_topics``: logs of these
    lack the next records: created again?"""

    open_follower: Callable[[], Follower]
    states: Callable[[Collection[TopicPartition]], Mapping[TopicPartition, ChangelogState]]
    stable_ends: Callable[[Collection[TopicPartition]], Offsets]
    prepare: Callable[[TaskId, str, ChangelogState, str], PreparedStore]
    distrust: Callable[[TaskId, str, str], None]
    restores: RestoreListener
    became_hot: Callable[[TaskId], None] = lambda task: None
    lost: Callable[[], None] = lambda: None
    standbys: Callable[[], StandbyUpdateListener | None] = lambda: None
    new_incarnation: Callable[[], str] = lambda: "standby"
    paused: Callable[[], bool] = lambda: False
    taken: Callable[[TaskId, TopicPartition, int, Chunk], Chunk] = (
        lambda task, changelog, position, chunk: chunk
    )
    doubt_topics: Callable[[Collection[str]], None] = lambda topics: None
    spawn: Spawn = on_thread
    name: str = "everflow-state-updater"


@dataclass
class StateUpdater:
    """Follows tasks; `run_once` is the loop's body. What stands above it is safe on any thread."""

    services: UpdaterServices
    clock: Clock
    acceptable_lag: int
    task_timeout_ms: float = 300_000.0
    wake: threading.Event = field(default_factory=threading.Event)
    _tasks: dict[TaskId, CopiedTask] = field(default_factory=dict)
    _waiting: dict[TaskId, StandbyTask] = field(default_factory=dict)
    _owner: dict[TopicPartition, TaskId] = field(default_factory=dict)
    _unheard: Set[TaskId] = frozenset()
    """Tasks with a log of which the brokers last returned no end."""
    _ends: Offsets = field(default_factory=dict)
    _followed: Mapping[TaskId, FollowedTask] = field(default_factory=dict)
    _places: Mapping[TaskId, tuple[TaskStore, ...]] = field(default_factory=dict)
    _running: Running | None = None

    def __post_init__(self) -> None:
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lanes = CopyLanes(self.services.open_follower)
        self._guard = ListenerGuard("standby update listener")
        self._stalled = StalledCopies(TaskTimeouts(self.task_timeout_ms), self.clock)
        self._ends_ms = self._touched_ms = self._retry_ms = self._said_ms = float("-inf")
        self._stop = threading.Event()

    # --- called from other threads ---------------------------------------------------------------

    def add(self, tasks: Sequence[StandbyTask]) -> None:
        """Follow these tasks; they belong to the updater until `drop` gives them back."""
        self._command(lambda: self._take(tasks))

    def drop(self, tasks: Collection[TaskId], reason: SuspendReason, done: Released) -> None:
        """Release tasks after this round: ``done`` gets them, open, on the updater's thread."""
        self._command(lambda: self._let_go(frozenset(tasks), reason, done))

    def set_role(self, task: TaskId, role: TaskRole) -> None:
        self._command(lambda: self._change_role(task, role))

    def _command(self, command: Callable[[], None]) -> None:
        self._commands.put(command)
        self.wake.set()

    def followed(self) -> Mapping[TaskId, FollowedTask]:
        """Measurements of every task whose stores are open, as of the last round."""
        return self._followed

    def stores(self) -> Mapping[TaskId, tuple[TaskStore, ...]]:
        return self._places

    def stalled(self) -> Mapping[TaskId, StalledCopy]:
        return self._stalled.stalled()

    def start(self) -> None:
        self._running = self.services.spawn(self.services.name, self._run)

    def close(self) -> None:
        """End after the present round and close the stores, fresh where they are at the end."""
        self._stop.set()
        self.wake.set()
        if self._running is not None:
            self._running.join()
        self._take_commands()
        self._touch()
        for task in self._tasks.values():
            for store in task.stores.values():
                store.store.close()
        self._tasks.clear()
        self._lanes.close()

    # --- the loop --------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.run_once()
            except RetriableError as error:
                self._say(f"Standby tasks cannot follow their changelogs: {error}")
                self.clock.wait(self.wake, FAULT_PAUSE_MS)
            except Exception as error:  # the instance goes on without copies
                code = f"[{error.code}] " if isinstance(error, EverflowError) else ""
                text = "Standby tasks cannot follow their changelogs: %s%s"
                log.error(text, code, error, exc_info=not code)
                self._start_over()

    def run_once(self) -> None:
        """One round: commands, new tasks, records, measurements. RetriableError without brokers."""
        self.wake.clear()
        self._take_commands()
        self._open_waiting()
        if not self._tasks:
            self._publish()
            self._lanes.rest()
            self.clock.wait(self.wake, FAULT_PAUSE_MS if self._waiting else IDLE_WAIT_MS)
            return
        self._read_ends()
        if self.services.paused():
            self._stalled.stand_still()
            self._publish()
            self.clock.wait(self.wake, ENDS_PERIOD_MS)
            return
        moved = set[TaskId]()
        try:
            self._take_round(moved)
        except RetriableError as error:
            self._note_stalled(moved, error)
            raise
        self._note_stalled(moved)
        self._report()

    def _start_over(self) -> None:
        """After a fault of the reader or of a store: open everything anew, after a while."""
        tasks = list(self._tasks.values())
        self._tasks.clear()
        self._owner.clear()
        for task in tasks:
            self._open_anew(task)
        self._retry_ms = self.clock.monotonic_ms() + SAY_EVERY_MS
        self._publish()
        self.services.lost()
        try:
            self._lanes.close()
        except Exception as error:
            log.warning("A reader of changelogs cannot be closed: %s", error)

    def _say(self, text: str) -> None:
        now_ms = self.clock.monotonic_ms()
        if now_ms - self._said_ms >= SAY_EVERY_MS:
            log.warning("%s", text)
            self._said_ms = now_ms

    def _take_commands(self) -> None:
        while not self._commands.empty():
            self._commands.get_nowait()()

    def _take(self, tasks: Sequence[StandbyTask]) -> None:
        self._waiting.update({task.id: task for task in tasks})
        self._retry_ms = float("-inf")

    def _let_go(
        self,
        tasks: frozenset[TaskId],
        reason: SuspendReason,
        done: Released,
    ) -> None:
        released = [self._waiting.pop(task) for task in sorted(tasks) if task in self._waiting]
        found = [self._tasks.pop(task) for task in sorted(tasks) if task in self._tasks]
        for task in found:
            task.task.to(TaskState.SUSPENDED)
            released.append(task.task)
        try:  # the caller waits for the tasks, even if the reader or a disk fails
            for task in found:
                self._unfollow(task)
                for store in task.stores.values():
                    self._touch_one(store)
                    self._tell_suspended(store, reason)
            self._publish()
        finally:
            done(released)
        self._stalled.keep([*self._tasks, *self._waiting])

    def _open_anew(self, task: CopiedTask) -> None:
        task.task.to(TaskState.SUSPENDED)
        self._waiting[task.task.id] = task.task
        for store in task.stores.values():
            self._tell_suspended(store, SuspendReason.MIGRATED)

    def _unfollow(self, task: CopiedTask) -> None:
        for tp in task.stores:
            self._owner.pop(tp, None)
        self._lanes.unfollow(list(task.stores))

    def _change_role(self, task: TaskId, role: TaskRole) -> None:
        if task in self._waiting:
            self._waiting[task].role = role
        found = self._tasks.get(task)
        if found is None or found.task.role is role:
            return
        found.task.role = role
        if role is TaskRole.WARMUP:  # the group waits until it reports that it is hot
            found.hot, found.quiet_ms = False, 0.0
        for store in found.stores.values():
            self._tell_suspended(store, SuspendReason.MIGRATED)
            self._tell_start(store, role)
        self._lanes.follow(
            role, {tp: store.progress.position for tp, store in found.stores.items()}
        )

    def _open_waiting(self) -> None:
        now_ms = self.clock.monotonic_ms()
        if not self._waiting or now_ms < self._retry_ms:
            return
        self._retry_ms = now_ms + FAULT_PAUSE_MS
        resting = self._stalled.resting()
        turn = [self._waiting[task] for task in sorted(self._waiting) if task not in resting]
        if not turn:
            return
        logs = {
            task.id: [one.changelog for one in task.stores if one.changelog is not None]
            for task in turn
        }
        roles = {task.id: task.role for task in turn}
        try:
            states = self.services.states({tp for tps in logs.values() for tp in tps})
        except RetriableError as error:
            took_ms = self.clock.monotonic_ms() - now_ms
            named = concerned(roles, error.partitions, logs)
            self._stalled.failed(named or roles, str(error), rests_after_ms=took_ms)
            return
        for task in turn:
            try:
                self._open(task, states)
            except EverflowError as error:
                self._stalled.failed({task.id: task.role}, f"[{error.code}] {error}")
                continue
            self._stalled.progressed(task.id)
            del self._waiting[task.id]

    def _open(
        self,
        task: StandbyTask,
        states: Mapping[TopicPartition, ChangelogState],
    ) -> None:
        opened: dict[TopicPartition, CopiedStore] = {}
        places: list[TaskStore] = []
        for place in task.stores:
            if place.changelog is None:  # it cannot be copied, and begins empty with its task
                places.append(place)
                continue
            incarnation = self.services.new_incarnation()
            prepared = self.services.prepare(
                task.id, place.name, states[place.changelog], incarnation
            )
            assert prepared.plan is not None
            plan = prepared.plan
            if plan.rebuild:
                text, role = "Rebuilding %s of task %s (%s): %s", task.role.value
                log.warning(text, place.name, task.id, role, plan.reason)
            # The stable end comes with the first round.
            end = max(plan.start, states[place.changelog].end)
            progress = replace(
                progress_of(
                    task.id,
                    place.name,
                    place.changelog,
                    plan,
                ),
                end=end,
            )
            made, began_ms = prepared.store, self.clock.monotonic_ms()
            opened[place.changelog] = CopiedStore(
                store=made, incarnation=incarnation, progress=progress, began_ms=began_ms
            )
            places.append(TaskStore(place.name, prepared.store.path, place.changelog))
        self._lanes.follow(task.role, {tp: store.progress.position for tp, store in opened.items()})
        task.stores = tuple(places)
        task.to(TaskState.RUNNING)
        self._tasks[task.id] = CopiedTask(task=task, stores=opened)
        self._owner.update(dict.fromkeys(opened, task.id))
        self._ends_ms = float("-inf")
        for store in opened.values():
            self._tell_start(store, task.role)

    def _take_round(self, moved: set[TaskId]) -> None:
        for found in self._lanes.rounds(self._ends):
            for tp, chunk in found.chunks.items():
                task = self._tasks.get(self._owner.get(tp, TaskId(-1, -1)))
                if task is not None:
                    self._load(task, task.stores[tp], chunk)
                    moved.add(task.task.id)
            if found.gone:
                self.services.doubt_topics({tp.topic for tp in found.gone})
            for tp, reason in found.gone.items():
                task_id = self._owner.get(tp)
                if task_id is not None:
                    self._rebuild(self._tasks[task_id], tp, reason)

    def _note_stalled(
        self,
        moved: Collection[TaskId],
        fault: RetriableError | None = None,
    ) -> None:
        waiting = self._lanes.far_behind()
        for task_id, task in self._tasks.items():
            if task_id in self._unheard:
                continue
            stores = task.stores.items()
            behind = [tp for tp, store in stores if store.progress.position < (store.end or 0)]
            if task_id in moved or not behind:
                self._stalled.progressed(task_id)
            elif waiting.isdisjoint(behind):
                of_it = fault is not None and not fault.partitions.isdisjoint(behind)
                cause = str(fault) if of_it else ""
                self._stalled.behind(task_id, task.task.role, str(behind[0]), cause)

    def _load(self, task: CopiedTask, store: CopiedStore, chunk: Chunk) -> None:
        of = store.progress
        chunk = self.services.taken(task.task.id, of.changelog, of.position, chunk)
        at_end = store.end is not None and chunk.next_position >= store.end
        store.load(chunk, chunk.next_position, self.clock, at_end=at_end)
        records = chunk.records
        task.loaded.append((self.clock.monotonic_ms(), records))
        if store.restoring:
            self.services.restores.batch_restored(store.progress, records)
        elif records:
            self._tell_standby("batch_loaded", store.progress, records)

    def _rebuild(self, task: CopiedTask, tp: TopicPartition, reason: str) -> None:
        """The changelog begins behind the store's position: it missed deletes (scenario 13)."""
        store = task.stores[tp]
        self.services.distrust(task.task.id, store.progress.store, reason)
        del self._tasks[task.task.id]
        self._unfollow(task)
        self._open_anew(task)
        self._retry_ms = float("-inf")

    def _read_ends(self) -> None:
        now_ms = self.clock.monotonic_ms()
        if now_ms - self._ends_ms < ENDS_PERIOD_MS:
            return
        resting = self._stalled.resting()
        logs = {task: list(found.stores) for task, found in self._tasks.items()}
        asked = [tp for task, tps in logs.items() if task not in resting for tp in tps]
        roles = {task: found.task.role for task, found in self._tasks.items()}
        try:
            ends = self.services.stable_ends(asked) if asked else {}
        except RetriableError as error:  # no broker answers: all tasks wait
            self._stalled.failed(concerned(roles, asked, logs), str(error))
            raise
        silent = [tp for tp in asked if tp not in ends]
        unheard = concerned(roles, silent, logs)
        self._unheard = (self._unheard & resting) | unheard.keys()
        if silent:
            took_ms = self.clock.monotonic_ms() - now_ms
            cause = f"the leader of {silent[0]} does not answer where that log ends"
            self._stalled.failed(unheard, cause, rests_after_ms=took_ms)
        self._ends = {tp: end for tp, end in {**self._ends, **ends}.items() if tp in self._owner}
        self._ends_ms = now_ms
        for task in self._tasks.values():
            for tp, store in task.stores.items():
                if tp in ends:
                    store.end = ends[tp]
                    store.progress = replace(
                        store.progress, end=max(ends[tp], store.progress.position)
                    )
            # Also before its first records: a small copy may be at its end after one round.
            task.cold = task.cold or (task.lag() or 0) > self.acceptable_lag
        if now_ms - self._touched_ms >= TOUCH_PERIOD_MS:
            self._touched_ms = now_ms
            self._touch()

    def _report(self) -> None:
        for task_id, task in self._tasks.items():
            for store in task.stores.values():
                if store.restoring and store.at_end:
                    store.restoring = False
                    self.services.restores.restore_end(store.progress)
            self._report_hot(task_id, task)
        self._publish()

    def _report_hot(self, task_id: TaskId, task: CopiedTask) -> None:
        lag = task.lag()
        if lag is None:
            return
        if lag > self.acceptable_lag:
            task.hot = False  # the group's leader may count it as cold now, and wait for it
            return
        warmup, now_ms = task.task.role is TaskRole.WARMUP, self.clock.monotonic_ms()
        if (task.hot and not warmup) or now_ms - task.said_ms < task.quiet_ms:
            return
        task.hot = True
        if task.cold or warmup:
            longer_ms = min(max(HOT_AGAIN_MS, 2 * task.quiet_ms), HOT_AGAIN_AT_MOST_MS)
            task.said_ms, task.quiet_ms = now_ms, HOT_AGAIN_MS if warmup else longer_ms
            text = "Task %s (%s) has caught up: %d offsets behind"
            rebalance_log.info(
                text,
                task_id,
                task.task.role.value,
                lag,
                extra=ABOUT_ASSIGNMENT,
            )
            self.services.became_hot(task_id)

    def _publish(self) -> None:
        now_ms = self.clock.monotonic_ms()
        self._followed = {name: figures_of(task, now_ms) for name, task in self._tasks.items()}
        self._places = {task_id: task.task.stores for task_id, task in self._tasks.items()}

    def _touch(self) -> None:
        for task in self._tasks.values():
            for store in task.stores.values():
                self._touch_one(store)

    def _touch_one(self, store: CopiedStore) -> None:
        """Note that the store has followed its changelog until now; without it, it is rebuilt."""
        if store.at_end:
            store.store.touch(self.clock.now_ms())

    def _tell_start(self, store: CopiedStore, role: TaskRole) -> None:
        if role is TaskRole.WARMUP:
            store.restoring = True
            self.services.restores.restore_start(store.progress)
        else:
            self._tell_standby("update_start", store.progress)

    def _tell_suspended(self, store: CopiedStore, reason: SuspendReason) -> None:
        if store.restoring:
            store.restoring = False
            self.services.restores.restore_suspended(store.progress, reason.value)
        else:
            self._tell_standby("update_suspended", store.progress, reason)

    def _tell_standby(self, event: str, *about: object) -> None:
        listener = self.services.standbys()
        if listener is not None:
            self._guard.tell(event, lambda: getattr(listener, event)(*about))


# --- a reader and a budget for each role ----------------------------------------------------------

ROUND_WAIT_S = 0.05


BUDGETS: Mapping[TaskRole, tuple[int, int]] = {
    TaskRole.GLOBAL: (20_000, 1 << 22),
    TaskRole.WARMUP: (5_000, 1 << 20),
    TaskRole.STANDBY: (5_000, 1 << 18),
}
"""Of each role, in the order of a round, over all its partitions: the most records near the ends of
its changelogs, and bytes of keys and values far behind. A round bounds how long a promotion waits;
larger slices are no cheaper: 0.9 to 1.1 us of a core for a record from 256 KiB on."""


class FollowedRound(Protocol):
    @property
    def chunks(self) -> Mapping[TopicPartition, Chunk]: ...
    @property
    def gone(self) -> Mapping[TopicPartition, str]: ...


class Follower(Protocol):
    """The part of `everflow.kafka.reading.copy_follower.CopyFollower` that the updater needs."""

    @property
    def far_behind(self) -> Offsets: ...
    def follow(self, starts: Offsets) -> None: ...
    def unfollow(self, partitions: Collection[TopicPartition]) -> None: ...
    def poll(
        self, records_max: int, bulk_bytes: int, ends: Offsets, timeout_s: float
    ) -> FollowedRound: ...
    def rest(self) -> None: ...
    def close(self) -> None: ...


@dataclass
class CopyLanes:
    """One `Follower` per role; owned by one thread. Standbys never delay a warm-up, nor it them."""

    open_follower: Callable[[], Follower]
    _followers: dict[TaskRole, Follower] = field(default_factory=dict)
    _role: dict[TopicPartition, TaskRole] = field(default_factory=dict)
    _moved: bool = False
    """True if the last round brought records: then the next one does not wait for its first."""

    def follow(self, role: TaskRole, starts: Offsets) -> None:
        """Follow these partitions from these offsets; another role that follows one gives it up."""
        self.unfollow(starts)
        if not starts:
            return
        if role not in self._followers:
            self._followers[role] = self.open_follower()
        self._followers[role].follow(starts)
        self._role.update(dict.fromkeys(starts, role))

    def unfollow(self, partitions: Collection[TopicPartition]) -> None:
        for role, follower in self._followers.items():
            gone = [tp for tp in partitions if self._role.get(tp) is role]
            for tp in gone:
                del self._role[tp]
            if gone:
                follower.unfollow(gone)

    def rounds(self, ends: Offsets) -> Iterator[FollowedRound]:
        """One round, role by role, up to ``ends``. RetriableError after the other roles' turns."""
        roles = [role for role in BUDGETS if role in self._role.values()]
        self.rest()
        wait_s = 0.0 if self._moved else ROUND_WAIT_S / max(1, len(roles))
        self._moved = False
        fault: RetriableError | None = None
        for role in roles:
            try:
                found = self._followers[role].poll(*BUDGETS[role], ends, wait_s)
            except RetriableError as error:
                fault = fault or error
                continue
            self._moved = self._moved or bool(found.chunks)
            yield found
        if fault is not None:
            raise fault

    def far_behind(self) -> Set[TopicPartition]:
        return {tp for follower in self._followers.values() for tp in follower.far_behind}

    def rest(self) -> None:
        """Let the readers of roles without copies free their buffers for long reads."""
        for role, follower in self._followers.items():
            if role not in self._role.values():
                follower.rest()

    def close(self) -> None:
        """Stop following everything; may be used again afterwards."""
        followers, self._followers = self._followers, {}
        self._role.clear()
        for follower in followers.values():
            follower.close()


RATE_WINDOW_MS = 5_000.0


@dataclass(frozen=True)
class FollowedTask:
    """One followed task: ``offset_sum`` over its changelogs, ``lag`` in offsets against the last
    stable ones (None: not measured yet), ``rate`` in records/s, ``remaining_s`` until the end."""

    role: TaskRole
    offset_sum: int
    lag: int | None
    rate: float = 0.0
    remaining_s: float | None = None


@dataclass(kw_only=True)
class CopiedStore(FilledStore):
    """One store being followed; ``restoring``: the restore listener gets its progress."""

    end: int | None = None
    restoring: bool = False

    @property
    def at_end(self) -> bool:
        return self.end is not None and self.progress.position >= self.end


@dataclass(kw_only=True)
class CopiedTask:
    task: StandbyTask
    stores: dict[TopicPartition, CopiedStore] = field(default_factory=dict)
    cold: bool = False
    hot: bool = False
    said_ms: float = float("-inf")
    quiet_ms: float = 0.0
    loaded: deque[tuple[float, int]] = field(default_factory=deque)

    def lag(self) -> int | None:
        if any(store.end is None for store in self.stores.values()):
            return None
        return sum(
            max(0, (store.end or 0) - store.progress.position) for store in self.stores.values()
        )


def figures_of(task: CopiedTask, now_ms: float) -> FollowedTask:
    while task.loaded and now_ms - task.loaded[0][0] > RATE_WINDOW_MS:
        task.loaded.popleft()
    began_ms = min((store.began_ms for store in task.stores.values()), default=now_ms)
    began_ms = max(now_ms - RATE_WINDOW_MS, began_ms)
    rate = sum(records for _, records in task.loaded) / max(0.001, (now_ms - began_ms) / 1000)
    lag = task.lag()
    remaining = 0.0 if lag == 0 else None if lag is None or rate <= 0 else lag / rate
    offset_sum = sum(store.progress.position for store in task.stores.values())
    return FollowedTask(task.task.role, offset_sum, lag, rate, remaining)
