"""An instance's dead letter topic for who watches the instance: looked at and replayed (056)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass

from everflow.config import StreamsConfig
from everflow.errors import ConfigError, EverflowError, FatalError
from everflow.kafka.admin import ClusterAdmin
from everflow.kafka.dead_letters import (
    Cause,
    LetterAge,
    LetterPlace,
    LetterTally,
    OldLetters,
    Replayer,
    portions,
    sample_of,
    stored,
    tallied,
)
from everflow.logs import counted, moves
from everflow.observe.page.letters import (
    CauseLetters,
    LetterCause,
    LettersFound,
    LettersReplayed,
)
from everflow.records import TopicPartition

MOST_LOOKED = 20_000
"""Offsets of the topic's end, over all partitions: it is read while records are processed."""
MOST_CAUSES = 40
MOST_REPLAYED = 5_000
"""Of one press of the button."""


@dataclass(frozen=True)
class _Part:
    """The part of the topic that is looked at."""

    starts: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]
    earlier: int

    @staticmethod
    def of(admin: ClusterAdmin, topic: str) -> _Part:
        """Its end, as it is committed now; nothing where it does not exist yet."""
        found = admin.describe_topics([topic])
        partitions = [
            TopicPartition(topic, n) for one in found.values() for n in range(one.partitions)
        ]
        first = admin.list_offsets(partitions, "earliest", "read_committed")
        ends = admin.list_offsets(partitions, "latest", "read_committed")
        each = max(1, MOST_LOOKED // max(1, len(partitions)))
        starts = {tp: max(first[tp], ends[tp] - each) for tp in partitions}
        return _Part(starts, ends, sum(starts[tp] - first[tp] for tp in partitions))


@dataclass(frozen=True)
class TopicLetters:
    """`everflow.observe.page.letters.DeadLetterService`. Each call has connections of its own."""

    config: StreamsConfig
    topic: str

    def look(self) -> LettersFound:
        """See `DeadLetterService`."""
        with closing(ClusterAdmin(self.config.admin())) as admin:
            part = _Part.of(admin, self.topic)
            tallies = self._tallied(part)
            newest = _newest(
                admin, {one.source or "" for t in tallies.values() for one in _ages(t)}
            )
        ranked = sorted(tallies.items(), key=lambda item: (-len(item[1].open), item[0]))
        causes = [
            CauseLetters(
                cause=LetterCause(*cause),
                letters=tally.letters,
                open=len(tally.open),
                sample=sample_of(tally.sample()),
                late=None if newest is None else _late(tally, newest),
            )
            for cause, tally in ranked[:MOST_CAUSES]
        ]
        return LettersFound(topic=self.topic, causes=causes, earlier=part.earlier)

    def replay(self, cause: LetterCause, time_ms: int | None) -> LettersReplayed:
        """See `DeadLetterService`. The oldest first, those that the part has which is looked at."""
        with (
            closing(ClusterAdmin(self.config.admin())) as admin,
            # Before the topic is read: what another replay commits later, it cannot commit.
            closing(Replayer(self.config, self.topic, _Counts(admin))) as replayer,
        ):
            part = _Part.of(admin, self.topic)
            tally = self._tallied(part).get(cause)
            open_ = sorted(tally.open) if tally is not None else []
            done, error = self._write(replayer, part, open_[:MOST_REPLAYED], time_ms)
        told = f" and then failed: {error}" if error else ""
        moves.info(
            "Replayed %s from %s into %s%s, as asked for on the page (%s at %s)%s",
            counted(done, "dead letter"),
            self.topic,
            cause.topic,
            "" if time_ms is None else " with the present time",
            cause.exception,
            cause.node,
            told,
        )
        return LettersReplayed(replayed=done, left=len(open_) - done, error=error)

    def _write(
        self, replayer: Replayer, part: _Part, chosen: list[LetterPlace], time_ms: int | None
    ) -> tuple[int, str]:
        """How many, and what has ended it."""
        done = 0
        starts: dict[TopicPartition, int] = {}
        for place in chosen:  # in order
            starts.setdefault(TopicPartition(self.topic, place.partition), place.offset)
        ends = {tp: part.ends[tp] for tp in starts}
        try:
            for portion in portions(stored(self.config, starts, ends), set(chosen)):
                done += replayer.replay(portion, None, time_ms)
        except EverflowError as failure:
            return done, f"[{failure.code}] {failure}"
        return done, ""

    def _tallied(self, part: _Part) -> dict[Cause, LetterTally]:
        return tallied(stored(self.config, part.starts, part.ends))


def _ages(tally: LetterTally) -> Iterable[LetterAge]:
    return tally.ages.values()


def _late(tally: LetterTally, newest: Mapping[TopicPartition, int]) -> int:
    """How many of the open letters are older than what is in the topics that they go to."""
    old = OldLetters.among(_ages(tally), None, newest)
    return 0 if old is None else old.count


def _newest(admin: ClusterAdmin, topics: set[str]) -> dict[TopicPartition, int] | None:
    """The latest record time in each partition of the topics; None where the brokers do not say
    it."""
    try:
        shapes = admin.describe_topics(topics) if topics else {}
        logs = [TopicPartition(name, n) for name in shapes for n in range(shapes[name].partitions)]
        return admin.newest_times(logs)
    except FatalError:  # brokers before 3.0, or a topic of somebody else's
        return None


class _Counts:
    """topic -> its partitions, asked for once."""

    def __init__(self, admin: ClusterAdmin) -> None:
        self._admin = admin
        self._known: dict[str, int] = {}

    def __call__(self, topic: str) -> int:
        if topic not in self._known:
            found = self._admin.describe_topics([topic])
            if topic not in found:
                raise ConfigError(
                    f"topic {topic}, which the dead letters came from, does not exist any more. "
                    f"`everflow dlq replay --to TOPIC` writes them into another one."
                )
            self._known[topic] = found[topic].partitions
        return self._known[topic]


def letters_of(config: StreamsConfig) -> TopicLetters | None:
    """None: the application has no dead letter topic."""
    topic = config.errors_dead_letter_queue_topic_name
    return TopicLetters(config, topic) if topic else None
