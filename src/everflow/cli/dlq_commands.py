"""``everflow dlq``: its commands and options; `everflow.kafka.dead_letters` does the work."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from everflow.cli.commands import Cluster, Form, Output, Yes, app, command, echo, require_yes
from everflow.cli.commands import show as shown
from everflow.clock import instant
from everflow.errors import ConfigError, FatalError
from everflow.logs import counted
from everflow.user_program import one_line

if TYPE_CHECKING:
    from everflow.config import StreamsConfig
    from everflow.kafka.admin import ClusterAdmin
    from everflow.kafka.dead_letters import Cause, DeadLetter, LetterPlace, OldLetters, Replayer

    Group = tuple[Cause, list[DeadLetter]]

T = TypeVar("T")
Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="A dead letter topic.")]

_WHERE_DROPPED = (
    "What came too late, the application that reads it counts: the metric dropped-records-total, "
    "reason late, has the node; a warning of the application, and its page, say so, too."
)


class ReplayTime(str, Enum):
    """The time of a record that is replayed."""

    record = "record"
    now = "now"

    def time_ms(self) -> int | None:
        """The time of all records; None: each keeps its own."""
        return int(time.time() * 1000) if self is ReplayTime.now else None


@dataclass(frozen=True)
class Chosen:
    error: Annotated[str | None, "Only records with this text in the error."] = None
    source: Annotated[
        str | None, typer.Option("--from", help="Only records of this source topic.")
    ] = None
    node: Annotated[str | None, "Only records that failed at this node."] = None

    def of(
        self, found: Sequence[DeadLetter], places: frozenset[LetterPlace] = frozenset()
    ) -> list[DeadLetter]:
        from everflow.kafka.dead_letters import Filter

        only = Filter(self.error, self.source, self.node, places)
        return [letter for letter in found if only.takes(letter)]


dlq = typer.Typer(
    help="List, show and replay dead-letter records.",
    no_args_is_help=True,
)
app.add_typer(dlq, name="dlq")


@command(dlq, "list")
def list_letters(
    topic: Topic, chosen: Chosen, cluster: Cluster, output: Form = Output.text
) -> None:
    """List dead-letter records: partition@offset, time, source record, node and error of each."""
    from everflow.kafka.dead_letters import line_of, plain_of

    _show(output, _listed(topic, cluster, chosen), plain_of, line_of)


@command(dlq)
def show(
    topic: Topic,
    place: Annotated[
        str, typer.Argument(metavar="PARTITION@OFFSET", help="As `everflow dlq list` shows it.")
    ],
    cluster: Cluster,
    output: Form = Output.text,
) -> None:
    """Show a dead-letter record: the error with its stack, and the bytes of the record."""
    from everflow.kafka.dead_letters import LetterPlace, plain_of, text_of

    wanted = LetterPlace.parse(place)
    with _replaying(topic, cluster) as (found, _, _, _):
        _require(topic, found, {wanted})
    letter = next(letter for letter in found if letter.place == wanted)
    shown(output, plain_of(letter), [text_of(letter)])


@command(dlq)
def group(
    topic: Topic,
    chosen: Chosen,
    cluster: Cluster,
    output: Form = Output.text,
) -> None:
    """Count dead-letter records by error, node and source topic; print one record of each group."""
    from everflow.kafka.dead_letters import groups

    _show(output, groups(_listed(topic, cluster, chosen)), _plain_group, _group_lines)


@command(dlq)
def replay(
    topic: Topic,
    to: Annotated[str | None, "Target topic. Default: the source topic of each record."] = None,
    *,
    only: Chosen,
    places: Annotated[
        list[str] | None,
        typer.Option(
            "--letter",
            metavar="PARTITION@OFFSET",
            help="Only this record, which must be replayable; repeatable.",
        ),
    ] = None,
    timestamp: Annotated[
        ReplayTime, "Time of the records: their own, or the present."
    ] = ReplayTime.record,
    latest_only: Annotated[
        bool,
        typer.Option(
            "--latest-only",
            help="Skip records whose source partition has a newer record of the same key.",
        ),
    ] = False,
    dry_run: Annotated[bool, "Only show the records."] = False,
    yes: Yes = False,
    output: Form = Output.text,
    cluster: Cluster,
) -> None:
    """Write dead-letter records back as the original records, each once, after a confirmation.
    Replay skips records that were replayed before (also by an interrupted replay), incomplete
    records and, without --to, records whose headers name no source topic. The application drops
    records that are too late for their window; --timestamp now gives them the present time. In a
    table, and in a sink that upserts, a replayed record replaces the row of a newer record of its
    key: the command counts such records, and --latest-only skips them."""
    from everflow.kafka.dead_letters import LetterPlace, line_of, refusal

    at = frozenset(map(LetterPlace.parse, places or ()))
    with _replaying(topic, cluster, dry_run, to) as (found, replayer, admin, config):
        _require(topic, found, at)
        taken = only.of(found, at)
        wanted = [one for one in taken if not one.replayed]
        judged = [(one, refusal(topic, one, to)) for one in wanted]
        refused = [(one, why) for one, why in judged if why is not None]
        if places and refused:
            raise refused[0][1]
        chosen = [one for one, why in judged if why is None]
        stale = [] if to is not None else _superseded(admin, config, chosen, found)
        if latest_only:
            chosen = [one for one in chosen if one not in stale]
        old = _old(admin, chosen, to) if timestamp is ReplayTime.record else None
        if dry_run and output is Output.text:
            for letter in chosen:
                echo(line_of(letter))
        if old is not None:
            echo(_warning(old, len(chosen)), err=True)
        if stale:
            echo(_newer(topic, stale, latest_only), err=True)
        if replayer is not None and chosen:
            topics = sorted({to or one.source or "" for one in chosen})
            question = f"Write {counted(len(chosen), 'record')} into {', '.join(topics)}?"
            require_yes(yes, question, "nothing was written")
            replayer.replay(chosen, to, timestamp.time_ms())
    done = [one for one in taken if one.replayed]
    if output is Output.json:
        result = {
            "dry_run": dry_run,
            "replayed": [str(one.place) for one in chosen],
            "replayed_before": [str(one.place) for one in done],
            "left_out": [{"letter": str(one.place), "why": str(why)} for one, why in refused],
            "late": old.count if old else 0,
            "newer_of_key": [str(one.place) for one in stale],
        }
        echo(json.dumps(result, indent=2))
    would = "would be replayed" if dry_run else "replayed"
    echo(f"{counted(len(chosen), 'dead letter')} {would}", err=True)
    if old is not None and not dry_run:
        echo(_WHERE_DROPPED, err=True)
    if done:
        was = "was" if len(done) == 1 else "were"
        first = f"{topic}-{done[0].place}" + (" first" if len(done) > 1 else "")
        count = counted(len(done), "dead letter")
        echo(f"{count} {was} already replayed before: {first}", err=True)
    _tell_left_out(topic, [one for one, _ in refused])


def _old(
    admin: ClusterAdmin,
    chosen: Sequence[DeadLetter],
    to: str | None,
) -> OldLetters | None:
    from everflow.kafka.dead_letters import OldLetters
    from everflow.records import TopicPartition

    names = {to or one.source or "" for one in chosen}
    shapes = admin.describe_topics(names) if names else {}
    logs = [TopicPartition(name, n) for name in shapes for n in range(shapes[name].partitions)]
    try:
        newest = admin.newest_times(logs)
    except FatalError as refused:  # brokers before 3.0
        echo(f"the brokers do not say how new the newest records are: {refused}", err=True)
        return None
    return OldLetters.among([one.age for one in chosen], to, newest)


def _superseded(
    admin: ClusterAdmin,
    config: StreamsConfig,
    chosen: Sequence[DeadLetter],
    found: Sequence[DeadLetter],
) -> list[DeadLetter]:
    from everflow.kafka.dead_letters import superseded
    from everflow.records import TopicPartition

    def spans(logs: Sequence[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        shapes = admin.describe_topics({tp.topic for tp in logs})
        there = [tp for tp in logs if tp.topic in shapes]
        there = [tp for tp in there if tp.partition < shapes[tp.topic].partitions]
        starts = admin.list_offsets(there, "earliest", "read_committed")
        ends = admin.list_offsets(there, "latest", "read_committed")
        return {tp: (starts[tp], ends[tp]) for tp in there}

    return superseded(config, chosen, found, spans)


def _newer(topic: str, stale: Sequence[DeadLetter], skipped: bool) -> str:
    one = len(stale) == 1
    said = (
        f"{counted(len(stale), 'dead letter')} {'has' if one else 'have'} a newer record of the "
        f"same key in the partition {'it' if one else 'they'} came from: {topic}-{stale[0].place}"
        + ("" if one else " first")
    )
    if skipped:
        return f"{said}. Skipped (--latest-only)."
    return (
        f"{said}. A table, or a sink that upserts, would go back to the older row. `--latest-only` "
        f"skips such records."
    )


def _warning(old: OldLetters, chosen: int) -> str:
    verb = "is" if old.count == 1 else "are"
    return (
        f"{old.count:,} of {counted(chosen, 'dead letter')} {verb} older than the newest record of "
        f"the topic: the oldest is of {instant(old.oldest)}, {old.topic} has a record of "
        f"{instant(old.newest)}. An application drops a record as late where its window, join or "
        f"ttl is over by then. `--timestamp now` gives the records the present time."
    )


def _show(
    output: Output,
    found: Sequence[T],
    plain: Callable[[T], dict[str, Any]],
    text: Callable[[T], str],
) -> None:
    if found or output is Output.json:
        shown(output, list(map(plain, found)), list(map(text, found)))


def _group_lines(group: Group) -> str:
    from everflow.kafka.dead_letters import line_of

    (kind, node, topic), members = group
    cause = "\t".join(map(one_line, (kind, node, topic)))
    head = f"{len(members):,} ({_open(members):,} not replayed)\t{cause}"
    return f"{head}\n  {line_of(members[0])}"


def _plain_group(group: Group) -> dict[str, Any]:
    from everflow.kafka.dead_letters import plain_of

    (kind, node, topic), members = group
    return {
        "exception": kind,
        "node": node,
        "topic": topic,
        "letters": len(members),
        "not_replayed": _open(members),
        "one": plain_of(members[0]),
    }


def _open(members: Sequence[DeadLetter]) -> int:
    return sum(not letter.replayed for letter in members)


def _listed(topic: str, cluster: Cluster, chosen: Chosen) -> list[DeadLetter]:
    """The chosen records with dead-letter headers. On stderr: how many have none, why none came."""
    with _replaying(topic, cluster) as (found, _, _, _):
        taken = chosen.of(found)
    letters = [one for one in found if not one.is_plain]
    plain = [one for one in taken if one.is_plain]
    listed = [one for one in taken if not one.is_plain]
    if plain:
        records = "a record" if len(plain) == 1 else f"{len(plain):,} records"
        echo(
            f"{topic} holds {records} without a dead letter's headers, {topic}-{plain[0].place} "
            f"first. `everflow dlq show {topic} {plain[0].place}` shows it.",
            err=True,
        )
    if not letters:
        echo(f"{topic} holds no dead letter", err=True)
    elif not listed:
        of = "the one dead letter" if len(letters) == 1 else f"the {len(letters):,} dead letters"
        echo(f"none of {of} in {topic} is asked for", err=True)
    return listed


def _require(
    topic: str,
    found: Sequence[DeadLetter],
    places: Collection[LetterPlace],
) -> None:
    missing = set(places) - {letter.place for letter in found}
    if missing:
        raise ConfigError(
            f"no dead letter {min(missing)} in {topic}; `everflow dlq list {topic}` shows them."
        )


def _tell_left_out(topic: str, refused: list[DeadLetter]) -> None:
    from everflow.kafka.dead_letters import refusal

    def tell(mine: list[DeadLetter], why: str) -> None:
        count = counted(len(mine), "dead letter")
        echo(f"{count} left out, {topic}-{mine[0].place} first: {why}", err=True)

    if cut := [one for one in refused if one.parts_left_out]:
        tell(cut, str(refusal(topic, cut[0], None)))
    if homeless := [one for one in refused if not one.parts_left_out]:
        tell(
            homeless,
            f"no header says which topic they came from. `everflow dlq replay {topic} --to TOPIC` "
            f"writes what is left into the one you name.",
        )


@contextmanager
def _replaying(
    topic: str, cluster: Cluster, dry_run: bool = True, target: str | None = None
) -> Iterator[tuple[list[DeadLetter], Replayer | None, ClusterAdmin, StreamsConfig]]:
    """The letters of the topic, read after any other replay of it has been ended."""
    from everflow.cli.records import partitions_of
    from everflow.kafka.dead_letters import Replayer, letters, stored

    with cluster.connected() as (config, admin, _), ExitStack() as stack:
        partitions = partitions_of(admin, topic)
        if target is not None:
            partitions_of(admin, target)
        replayer = None
        if not dry_run:
            count = cache(lambda name: len(partitions_of(admin, name)))
            replayer = stack.enter_context(closing(Replayer(config, topic, count)))
        starts = admin.list_offsets(partitions, "earliest", "read_committed")
        ends = admin.list_offsets(partitions, "latest", "read_committed")
        yield letters(stored(config, starts, ends)), replayer, admin, config
