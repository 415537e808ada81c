"""Checks that the application's topics still exist, with the same ids and partitions. Positions,
state and the assignment belong to a topic as it was at the start. Nothing else would notice: a new
log that is longer than the position looks like the old one."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from everflow.clock import Clock
from everflow.errors import (
    EverflowError,
    FatalError,
    InternalTopicError,
    MissingSourceTopicError,
    read_again,
    start_over,
)

log = logging.getLogger("everflow")

NO_TOPIC_ID = "A" * 22
"""The id that brokers before Kafka 2.8 return."""
PERIOD_MS = 10_000.0
CONFIRM_MS = 1_000.0
MISSING_ANSWERS = 5
"""In a row: a broker that has just started may know no topic at all for a moment."""


_GLOBAL_ANEW = (
    "Start the instances again: each then reads the topic of its global table as it is now."
)


class TopicState(Protocol):
    """`kafka.admin.TopicDescription`."""

    @property
    def partitions(self) -> int: ...

    @property
    def topic_id(self) -> str: ...


class TopicChanges:
    """Decides from the brokers' answers whether a topic has changed. Pure; one thread at a time.
    ``partitions``: of the inputs as the application runs with them. ``inputs``: topics that other
    programs write; the others are internal. ``may_grow(partitions of all, topic, number)``: the
    application takes up the topic's new partitions."""

    def __init__(
        self,
        application_id: str,
        partitions: Mapping[str, int],
        inputs: Collection[str],
        topics: Collection[str],
        global_topics: Collection[str] = (),
        may_grow: Callable[[Mapping[str, int], str, int], bool] = lambda *_: False,
    ) -> None:
        self._application_id = application_id
        self._inputs = frozenset(inputs).union(global_topics)
        self._global = frozenset(global_topics)
        self._may_grow = may_grow
        self._topics = frozenset(topics)
        self._partitions = dict(partitions)
        self._ids: dict[str, str] = {}
        self._suspects: frozenset[str] = frozenset()
        self._grown: list[Mapping[str, int]] = []
        self._missing: dict[str, int] = {}

    @property
    def suspected(self) -> bool:
        """True if the last answer showed a change, which the next one has to confirm."""
        return bool(self._suspects or self._missing)

    @property
    def topics(self) -> frozenset[str]:
        return self._topics

    @property
    def ids(self) -> Mapping[str, str]:
        """Of the first answer; without topics of which the brokers know none. From any thread."""
        return {
            name: topic_id for name, topic_id in list(self._ids.items()) if topic_id != NO_TOPIC_ID
        }

    def grow(self, partitions: Mapping[str, int]) -> None:
        """The application also reads these topics, with so many partitions; from any thread."""
        self._grown.append(partitions)

    def _take_grown(self) -> None:
        while self._grown:
            found = self._grown.pop(0)
            self._topics, self._inputs = self._topics.union(found), self._inputs.union(found)
            self._partitions.update(found)

    def after(
        self, now: Mapping[str, TopicState], doubted: Collection[str] = ()
    ) -> FatalError | None:
        """Take an answer of the brokers. Returns an error once two answers in a row show a change,
        or one for a ``doubted`` topic; or once a topic was missing in `MISSING_ANSWERS`."""
        self._missing = {
            name: self._missing.get(name, 0) + 1 for name in self._topics if name not in now
        }
        self._take_grown()  # afterwards: the answer is not about them
        gone = [
            name for name, answers in sorted(self._missing.items()) if answers >= MISSING_ANSWERS
        ]
        if gone:
            return self._gone(gone)
        changed = {}
        for name, state in sorted(now.items()):
            topic_id = self._ids.setdefault(name, state.topic_id)
            partitions = self._partitions.setdefault(name, state.partitions)
            if state.topic_id != topic_id:
                changed[name] = self._recreated(name, topic_id, state.topic_id)
            elif state.partitions != partitions and not self._may_grow(
                self._partitions, name, state.partitions
            ):
                changed[name] = self._resized(name, partitions, state.partitions)
        sure = [text for name, text in changed.items() if name in self._suspects.union(doubted)]
        self._suspects = frozenset(changed)
        return FatalError(" ".join(sure)) if sure else None

    def _gone(self, topics: list[str]) -> FatalError:
        names = ", ".join(topics)
        what = f"Topic {names} was" if len(topics) == 1 else f"Topics {names} were"
        # A topic that this user may not see has another answer (TOPIC_AUTHORIZATION_FAILED).
        happened = f"{what} deleted while the application ran"
        if internal := [topic for topic in topics if topic not in self._inputs]:
            return InternalTopicError(
                f"{happened}. Internal topics are not created again silently: the records of "
                f"{', '.join(internal)} are lost. Stop all instances; restore from a backup, or "
                f"give up the state. {start_over(self._application_id)}"
            )
        return MissingSourceTopicError(
            f"{happened}. What was counted of it stays in the state and the output. To go on with "
            f"a new topic of that name, create it with the same number of partitions first. "
            f"{read_again(self._application_id, topics[0])} {start_over(self._application_id)}"
        )

    def _recreated(self, topic: str, before: str, now: str) -> str:
        return self._changed(
            topic,
            f"Topic {topic} was deleted and created again while the application ran (topic id "
            f"{before} -> {now})",
            f"the positions belong to the old topic, so the beginning of the new one would not be "
            f"read. {read_again(self._application_id, topic)}",
            "the records of this internal topic are lost. Stop all instances; restore the topic "
            "from a backup, or give up the state.",
        )

    def _resized(self, topic: str, before: int, now: int) -> str:
        return self._changed(
            topic,
            f"Topic {topic} has now {now} partitions, was {before} when the application started",
            f"its new partitions are not read. Stop all instances and start them again; with "
            f"stores or repartition topics that is refused, for keys are now in other partitions "
            f"than their state: create the topic again with {before} partitions, or give up the "
            f"state.",
            "keys of this internal topic no longer meet their state. Stop all instances; create "
            "the topic as it was from a backup, or give up the state.",
        )

    def _changed(self, topic: str, happened: str, of_input: str, of_internal: str) -> str:
        if topic in self._global:
            return f"{happened}. {_GLOBAL_ANEW}"
        means = of_input if topic in self._inputs else of_internal
        return f"{happened}: {means} {start_over(self._application_id)}"


class TopicWatch:
    """Asks the brokers about every 10 s, and after `doubt`, on a thread of its own. ``failed``:
    called once, on that thread, which then ends. ``check_new``: takes up new topics; blocks for a
    request."""

    def __init__(
        self,
        read: Callable[[], Mapping[str, TopicState]],
        changes: TopicChanges,
        failed: Callable[[EverflowError], None],
        clock: Clock,
        check_new: Callable[[], None] = lambda: None,
    ) -> None:
        self._check_new = check_new
        self._read, self._changes, self._failed, self._clock = read, changes, failed, clock
        self._stop, self._woken = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._doubted = frozenset[str]()

    def doubt(self, topics: Collection[str]) -> None:
        """Leaders of logs of these topics reported other topic ids: ask soon. From any thread."""
        with self._lock:
            self._doubted = self._doubted.union(topics)
        self._woken.set()

    def check_once(self) -> bool:
        doubted = self._doubted
        try:
            now = self._read()
        except EverflowError as error:
            log.debug("The topics cannot be checked now: %s", error)
            return False
        with self._lock:
            self._doubted -= doubted
        changed = self._changes.after(now, doubted)
        if changed is not None:
            self._failed(changed)
            return True
        try:
            self._check_new()
        except EverflowError as error:
            log.debug("New topics cannot be listed now: %s", error)
        return False

    def start(self) -> None:
        """Note the topics as they are (one request), then check them on a thread until `close`."""
        self.check_once()
        threading.Thread(target=self._run, name="everflow-topic-watch", daemon=True).start()

    def close(self) -> None:
        self._stop.set()
        self._woken.set()

    def _run(self) -> None:
        try:
            while not self._rest():
                if self.check_once():
                    return
        except Exception:  # a defect of the watch is no reason to stop the application
            log.exception("Checking the topics failed; they are not checked any more")

    def _rest(self) -> bool:
        """Wait for at least `CONFIRM_MS`, even in doubt; True if the thread is to end."""
        if self._clock.wait(self._stop, CONFIRM_MS) or self._changes.suspected:
            return self._stop.is_set()
        self._clock.wait(self._woken, PERIOD_MS - CONFIRM_MS)
        self._woken.clear()
        return self._stop.is_set()
