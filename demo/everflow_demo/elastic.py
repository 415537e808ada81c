"""Runs the demo's second part: another instance joins, takes its share, and leaves again.

The first instance works in this process, the second in one of its own. Nothing here tells the tasks
where to go: an instance is started and told to stop, that is all. The rest is watched.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from everflow import KafkaStreams
from everflow import metrics as names
from everflow.config import StreamsConfig
from everflow.console.status import StatusLine
from everflow.errors import EverflowError, FatalError
from everflow.instance.client_state import ENDED, ClientState
from everflow.instance.describe import ACTIVE, RESTORING, WARM_UP, TaskStatus, progress, role_of
from everflow.kafka.admin import ClusterAdmin
from everflow.records import TaskId, TopicPartition
from everflow_demo.feed import Feed, Pace
from everflow_demo.instance_process import InstanceProcess
from everflow_demo.progress import LagReader, Progress
from everflow_demo.report import Moves

_PERIOD_S = 0.05
_ANSWER_S = 10.0


class PartitionPause(NamedTuple):
    """A partition with waiting records and no commit; times in s, on the caller's clock."""

    since_s: float
    until_s: float

    @property
    def seconds(self) -> float:
        """How long."""
        return self.until_s - self.since_s


class Pauses:
    """Looks at offsets -> pauses. Pure. A commit ends a pause and begins the next one; where
    nothing waits there is none."""

    def __init__(self) -> None:
        self._since: dict[TopicPartition, float] = {}
        self._committed: dict[TopicPartition, int] = {}
        self._pauses: dict[TopicPartition, list[PartitionPause]] = {}
        self._looked_s = 0.0

    def add(
        self,
        at_s: float,
        committed: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
    ) -> None:
        """Take one look: offsets committed (0 where there is none), and the ends of the same
        partitions, read after them."""
        for tp, end in ends.items():
            offset = committed.get(tp, 0)
            since = self._since.setdefault(tp, at_s)
            if offset > self._committed.get(tp, 0):
                self._pauses.setdefault(tp, []).append(PartitionPause(since, at_s))
                self._since[tp] = at_s
            elif offset >= end:
                self._since[tp] = at_s
            self._committed[tp] = offset
        self._looked_s = at_s

    def longest(self, since_s: float, until_s: float) -> dict[TopicPartition, PartitionPause]:
        """The longest pause of each partition that reaches into the time between; none for one that
        never had work."""
        found = {}
        for tp, since in list(self._since.items()):
            pauses = [*self._pauses.get(tp, ()), PartitionPause(since, self._looked_s)]
            within = [
                pause
                for pause in pauses
                if pause.seconds > 0 and pause.until_s > since_s and pause.since_s < until_s
            ]
            if within:
                found[tp] = max(within, key=lambda pause: pause.seconds)
        return found


class PauseWatch:
    """Feeds `Pauses` from the broker, twenty times a second, from a thread of its own.

    ``pauses`` may be asked at any time from other threads. A look that fails is left out: the pause
    it would have ended only gets longer.
    """

    def __init__(
        self, admin: Mapping[str, Any], group: str, partitions: Iterable[TopicPartition]
    ) -> None:
        self.pauses = Pauses()
        self._settings = dict(admin)
        self._group = group
        self._partitions = list(partitions)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo-pauses", daemon=True)

    def __enter__(self) -> Pauses:
        self._thread.start()
        return self.pauses

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        admin = ClusterAdmin(self._settings)
        while not self._stop.wait(_PERIOD_S):
            try:
                # Not stable ones: asked this often, a transaction is nearly always under way.
                found = admin.committed(self._group, self._partitions, _ANSWER_S, stable=False)
                at_s = time.monotonic()
                committed = {tp: one.offset for tp, one in found.items()}
                ends = admin.end_offsets(self._partitions, "read_committed")
                self.pauses.add(at_s, committed, ends)
            except EverflowError:
                continue
        admin.close()


Instances = Mapping[str, Mapping[TaskId, TaskStatus]]
"""The tasks of each instance, by its name."""
PAUSE = "pause"
_WIDTH = 9


def matrix(
    instances: Instances, tasks: Sequence[TaskId], pauses: Mapping[TaskId, float]
) -> list[str]:
    """A row for each instance, a column for each task, below a head: the task's role there. Below
    them the longest pause of each task, in s; the row is left out where ``pauses`` is empty."""
    label = max(len(name) for name in instances) + 2
    rows = [" " * label + "".join(f"{task!s:<{_WIDTH}}" for task in tasks)]
    for name, found in instances.items():
        cells = (_cell(found[task]) if task in found else "" for task in tasks)
        rows.append(f"{name:<{label}}" + "".join(f"{cell:<{_WIDTH}}" for cell in cells))
    if pauses:
        cells = (f"{pauses[task]:.2f} s" if task in pauses else "" for task in tasks)
        rows.append(f"{PAUSE:<{label}}" + "".join(f"{cell:<{_WIDTH}}" for cell in cells))
    return [row.rstrip() for row in rows]


def copies(instances: Instances) -> list[str]:
    """``second: warm-up of 0_1 43 %, 12,000 records/s, 3 s left`` for each task that somebody waits
    for and of which that much is known."""
    return [
        f"{name}: {_DOING[role_of(status)]} {task} {progress([status])}"
        for name, tasks in instances.items()
        for task, status in sorted(tasks.items())
        if role_of(status) in _DOING and status.copied is not None and status.lag is not None
    ]


def roles(instances: Instances) -> frozenset[tuple[str, TaskId, str]]:
    """What changes when a task comes, goes or gets another role."""
    return frozenset(
        (name, task, role_of(status))
        for name, tasks in instances.items()
        for task, status in tasks.items()
    )


def shared(instances: Instances, tasks: Collection[TaskId]) -> bool:
    """Whether every instance processes some of these tasks, together all of them, and no copy is
    waited for."""
    active = [
        {task for task, status in found.items() if role_of(status) == ACTIVE}
        for found in instances.values()
    ]
    waited_for = any(
        role_of(status) in _DOING for found in instances.values() for status in found.values()
    )
    return all(active) and set(tasks) == set().union(*active) and not waited_for


def _cell(status: TaskStatus) -> str:
    role = role_of(status)
    return "restore" if role == RESTORING else role


_DOING = {WARM_UP: "warm-up of", RESTORING: "restore of"}


FEED_S = 75.0
"""The pace of the feed is that of all flights in this time; what is left when the second instance
has gone comes at once."""
ALONE, JOINING, BOTH, LEAVING = 0.15, 0.45, 0.65, 0.9
"""Shares of the flights that are sent until the end of each stretch."""
ALONE_S, BOTH_S = 6.0, 6.0
WARM_S = 3.0
"""The first batches of a new instance take longer: not counted as what is usual."""
SETTLED_S = 2.0
SETTINGS: Mapping[str, object] = {"acceptable.recovery.lag": 200}
"""The demo's stores are small: with the default even no copy at all would be near enough, and
nothing would be warmed up."""
FIRST, SECOND = "first", "second"
_POLL_S = 0.1
_SAMPLE_S = 0.5
_TIMEOUT_S = 900.0


@dataclass(kw_only=True)
class Ports:
    """What a run works with; all open, the second instance not started yet."""

    streams: KafkaStreams
    config: StreamsConfig
    inputs: Mapping[TaskId, tuple[TopicPartition, ...]]
    feed: Feed
    second: InstanceProcess
    status: StatusLine


@dataclass
class _Seen:
    moved: set[TaskId] = field(default_factory=set)
    roles: frozenset[tuple[str, TaskId, str]] = frozenset()
    shared_since: float | None = None


class ElasticRun:
    """One run; `work` does all. Not thread-safe."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._tasks = sorted(ports.inputs)
        self._progress = Progress()
        self._seen = _Seen()
        self._second: InstanceProcess | None = None
        self._pauses: Pauses | None = None
        self._pauses_since_s = 0.0
        self._started = time.monotonic()
        self._sampled_s = float("-inf")

    def work(self) -> Moves:
        """Until all flights are processed and committed. The first instance is started here, and
        still runs afterwards.

        Raises what stopped an instance; FatalError after 15 minutes.
        """
        ports = self._ports
        with ExitStack() as stack:
            ports.streams.start()
            self._reader = self._open_reader(stack)
            self._until(
                "the first instance to run", lambda: ports.streams.state is ClientState.RUNNING
            )
            partitions = [tp for inputs in ports.inputs.values() for tp in inputs]
            pauses = stack.enter_context(
                PauseWatch(ports.config.admin(), ports.config.application_id, partitions)
            )
            stack.enter_context(ports.feed)
            alone_s = self._alone(pauses)
            self._say("the second instance starts, a process of its own")
            before = ports.streams.metrics().get(names.REBALANCES, 0)
            start_s = self._pauses_since_s = time.monotonic()
            with ports.second as self._second:
                join_s = self._join()
                told_s = self._leave()
            end_s = time.monotonic()
            self._second = None
            self._pauses = None  # what follows is a burst, which has larger batches
            rebalances = int(
                float(ports.streams.metrics().get(names.REBALANCES, 0)) - float(before)
            )
            self._say("the second instance has left; the flights that are left come at once")
            ports.feed.all_at_once()
            self._until("all flights to be sent", lambda: ports.feed.done)
            sent_s = time.monotonic()
            self._until(
                "all flights to be processed",
                lambda: self._sampled_s > sent_s and self._progress.lag == 0,
            )
            return Moves(
                instances=2,
                rebalances=rebalances,
                join_s=join_s,
                leave_s=end_s - told_s,
                before=self._by_task(pauses, alone_s + WARM_S, start_s),
                meanwhile=self._by_task(pauses, start_s, end_s),
                moved=frozenset(self._seen.moved),
            )

    # --- the stretches ----------------------------------------------------------------------------

    def _alone(self, pauses: Pauses) -> float:
        alone_s = time.monotonic()
        self._pauses, self._pauses_since_s = pauses, alone_s + WARM_S
        self._ports.feed.allow(ALONE)
        self._pass(ALONE_S)
        return alone_s

    def _join(self) -> float:
        start_s = time.monotonic()
        self._ports.feed.allow(JOINING)
        self._until("the second instance to have its share", lambda: self._shared_for(SETTLED_S))
        assert self._seen.shared_since is not None
        join_s = self._seen.shared_since - start_s
        self._say(f"the second instance has its share, {join_s:.1f} s after its start")
        self._ports.feed.allow(BOTH)
        self._pass(BOTH_S)
        return join_s

    def _leave(self) -> float:
        told_s = time.monotonic()
        self._say("the second instance is told to stop: it hands its tasks over before it leaves")
        self._ports.feed.allow(LEAVING)
        self._ports.second.stop()
        self._until(
            "the second instance to leave", lambda: self._ports.second.ended and self._runs_all()
        )
        return told_s

    # --- watching ---------------------------------------------------------------------------------

    def _until(self, what: str, reached: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _TIMEOUT_S
        while True:
            self._look()
            if reached():
                return
            if time.monotonic() > deadline:
                raise FatalError(f"waited {_TIMEOUT_S:.0f} s for {what}: {self._progress.line()}")
            time.sleep(_POLL_S)

    def _pass(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        self._until("time to pass", lambda: time.monotonic() >= until)

    def _look(self) -> None:
        """Check that all goes on, and show it."""
        ports = self._ports
        if ports.streams.state in ENDED:
            raise ports.streams.error or FatalError("the first instance stopped by itself")
        if self._second is not None:
            _ = self._second.ended  # raises if it failed
        _ = ports.feed.done  # the same
        now = time.monotonic()
        self._sample(now)
        instances = self._instances()
        seen = self._seen
        seen.moved |= {
            task for task, status in instances.get(SECOND, {}).items() if role_of(status) == ACTIVE
        }
        if not shared(instances, self._tasks):
            seen.shared_since = None
        elif seen.shared_since is None:
            seen.shared_since = now
        changed = roles(instances) != seen.roles
        seen.roles = roles(instances)
        paused = (
            {} if self._pauses is None else self._by_task(self._pauses, self._pauses_since_s, now)
        )
        head = (
            f"{now - self._started:5.1f} s  {self._progress.line()} · {ports.feed.sent:,} "
            f"flights sent"
        )
        ports.status.show(
            "\n".join([head, *matrix(instances, self._tasks, paused), *copies(instances)]),
            now=changed,
        )

    def _sample(self, now: float) -> None:
        if now - self._sampled_s < _SAMPLE_S:
            return
        self._sampled_s = now
        sample = self._reader.sample(now)
        if sample is not None:
            self._progress.add(sample)
            self._ports.feed.lag(sample.log_end - sample.consumed)

    def _instances(self) -> Instances:
        instances = {FIRST: self._ports.streams.all_tasks()}
        return instances if self._second is None else {**instances, SECOND: self._second.tasks}

    def _shared_for(self, seconds: float) -> bool:
        since = self._seen.shared_since
        return (
            self._second is not None and since is not None and time.monotonic() - since >= seconds
        )

    def _runs_all(self) -> bool:
        return shared({FIRST: self._ports.streams.all_tasks()}, self._tasks)

    def _by_task(self, pauses: Pauses, since_s: float, until_s: float) -> dict[TaskId, float]:
        longest = pauses.longest(since_s, until_s)
        return {
            task: max((longest[tp].seconds for tp in inputs if tp in longest), default=0.0)
            for task, inputs in self._ports.inputs.items()
        }

    def _open_reader(self, stack: ExitStack) -> LagReader:
        admin = stack.enter_context(closing(ClusterAdmin(self._ports.config.admin())))
        topics = dict.fromkeys(tp.topic for inputs in self._ports.inputs.values() for tp in inputs)
        return LagReader(admin, self._ports.config.application_id, list(topics))

    def _say(self, text: str) -> None:
        self._ports.status.say(f"{time.monotonic() - self._started:5.1f} s  {text}")


def pace(records: int) -> Pace:
    """The pace of so many flights."""
    return Pace(records / FEED_S)
