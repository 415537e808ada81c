"""Decides what a reset does: where inputs begin, which topics go, which are left alone. Pure.

Note 057 has the order of the steps and why.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from everflow.clock import instant, time_of
from everflow.errors import ConfigError
from everflow.logs import counted, some
from everflow.records import TopicPartition
from everflow.setting_checks import BY_DURATION, reset_duration_ms

if TYPE_CHECKING:
    from everflow.kafka.admin import MemberDescription

_SUFFIXES = (
    "-changelog",
    "-repartition",
    "-subscription-registration-topic",
    "-subscription-response-topic",
)
"""Of the internal topics of everflow and of Kafka Streams."""
_FORMS = (
    "earliest, latest, a time as 2026-11-26T08:00:00Z (UTC where it names no zone), or how long "
    "ago, as PT12H or P1DT6H"
)


@dataclass(frozen=True)
class Position:
    """A position of the inputs. ``time_ms``: the first record of this time or later."""

    kind: Literal["earliest", "latest", "time"]
    time_ms: int = -1

    def __str__(self) -> str:
        return instant(self.time_ms) if self.kind == "time" else self.kind


def parse_position(text: str, now_ms: int) -> Position:
    """Parse ``--to`` (KIP-171). Raises ConfigError."""
    if text == "earliest":
        return Position("earliest")
    if text == "latest":
        return Position("latest")
    ago_ms = reset_duration_ms(f"{BY_DURATION}{text}")
    try:
        time_ms = time_of(text) if ago_ms is None else max(1, now_ms - ago_ms)
    except ValueError:
        raise ConfigError(f"--to {text!r} is none of {_FORMS}") from None
    if time_ms > now_ms:
        raise ConfigError(f"--to {text} lies in the future; --to latest passes over what is there")
    return Position("time", time_ms)


def chosen_topics(
    named: Sequence[str], inputs: Sequence[str], tables: Collection[str]
) -> tuple[str, ...]:
    """The input topics that ``--input-topics`` names, all without it; ``tables`` are those of
    global tables. ConfigError for a topic that has no offsets of the group."""
    wanted = dict.fromkeys(
        name.strip() for part in named for name in part.split(",") if name.strip()
    )
    if named and not wanted:
        raise ConfigError("--input-topics names no topic")
    whole = [name for name in wanted if name in tables and name not in inputs]
    if whole:
        raise ConfigError(
            f"--input-topics {', '.join(whole)}: a global table is read from the beginning of its "
            f"topic at every start, so there is no offset to set"
        )
    unknown = [name for name in wanted if name not in inputs]
    if unknown:
        raise ConfigError(
            f"--input-topics {', '.join(unknown)}: the program reads no such topic. It reads "
            f"{some(inputs, 12)}. Nothing was changed."
        )
    return tuple(wanted) or tuple(inputs)


@dataclass(frozen=True)
class Leftover:
    """A topic that is named like an internal one and is not of this program. ``group``: whose it
    rather is; empty: an earlier program's of this application."""

    topic: str
    partitions: int
    group: str = ""


def leftovers(
    application_id: str,
    existing: Mapping[str, int],
    used: Collection[str],
    groups: Iterable[str],
) -> list[Leftover]:
    """Topics with the application's prefix and an internal topic's suffix, without those that the
    program uses: reads, writes, or makes.

    ``orders-eu-count-changelog`` begins with ``orders-``: where there is a group ``orders-eu``, the
    topic is that one's.
    """
    prefix = f"{application_id}-"
    longer = sorted((one for one in groups if one.startswith(prefix)), key=len, reverse=True)
    return [
        Leftover(name, count, next((one for one in longer if name.startswith(f"{one}-")), ""))
        for name, count in sorted(existing.items())
        if name.startswith(prefix) and name.endswith(_SUFFIXES) and name not in used
    ]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All steps of a reset. ``needed``: the program's internal topics, whether they exist or not,
    with their partitions; ``repartition`` some of them. ``offsets``: offsets to commit for the
    inputs, in the order of partitions; ``committed``: offsets that are committed now."""

    application_id: str
    servers: str
    position: Position
    chosen: tuple[str, ...]
    members: tuple[MemberDescription, ...]
    transactions: tuple[str, ...]
    folder: str | None
    stores: int
    existing: Mapping[str, int]
    needed: Mapping[str, int]
    repartition: frozenset[str]
    others: tuple[Leftover, ...]
    committed: Mapping[TopicPartition, int]
    offsets: Mapping[TopicPartition, int]

    @property
    def deleted(self) -> dict[str, int]:
        """Topics that go, with their partitions."""
        own = {name: self.existing[name] for name in sorted(self.needed) if name in self.existing}
        return own | {one.topic: one.partitions for one in self.others if not one.group}

    @property
    def untouched(self) -> bool:
        """True if the application has left nothing, here or in the cluster."""
        return not (self.members or self.transactions or self.deleted or self.committed) and (
            self.folder is None
        )

    def lines(self) -> list[str]:
        old = {one.topic for one in self.others}
        stores = f", {counted(self.stores, 'store')}"
        rows = [
            *(("member", _member(one)) for one in self.members),
            *(("fence", f"transactional id {name}") for name in self.transactions),
            *([] if self.folder is None else [("delete", f"folder {self.folder}{stores}")]),
            *(
                ("delete", f"topic {name}, {_partitions(count)}{' (old)' if name in old else ''}")
                for name, count in self.deleted.items()
            ),
            *(("commit", self._moved(tp)) for tp in self.offsets),
            *(
                ("create", f"topic {name}, {_partitions(count)}")
                for name, count in sorted(self.needed.items())
            ),
            *(
                ("leave", f"topic {one.topic}, of group {one.group}")
                for one in self.others
                if one.group
            ),
        ]
        head = f"reset of {self.application_id} at {self.servers}, inputs to {self.position}"
        shown = [head, *(f"  {verb:<8}{what}" for verb, what in rows)]
        if old - {one.topic for one in self.others if one.group}:
            shown.append(
                "(old): named like internal topics of this application, not this program's"
            )
        return shown

    def plain(self, *, dry_run: bool, done: bool) -> dict[str, Any]:
        return {
            "application_id": self.application_id,
            "dry_run": dry_run,
            "done": done,
            "to": str(self.position),
            "members": [
                {
                    "client_id": one.client_id,
                    "host": one.host,
                    "group_instance_id": one.instance_id,
                    "member_id": one.member_id,
                }
                for one in self.members
            ],
            "transactional_ids": list(self.transactions),
            "state_folder": self.folder,
            "delete_topics": [{"topic": n, "partitions": c} for n, c in self.deleted.items()],
            "offsets": [
                {
                    "topic": tp.topic,
                    "partition": tp.partition,
                    "committed": self.committed.get(tp),
                    "offset": offset,
                }
                for tp, offset in self.offsets.items()
            ],
            "create_topics": [
                {"topic": name, "partitions": count} for name, count in sorted(self.needed.items())
            ],
            "left_alone": [
                {"topic": one.topic, "group": one.group} for one in self.others if one.group
            ],
        }

    def _moved(self, tp: TopicPartition) -> str:
        now = self.committed.get(tp)
        before = "none" if now is None else f"{now:,}"
        kept = "" if tp.topic in self.chosen else " (kept)"
        return f"{tp}: {before} -> {self.offsets[tp]:,}{kept}"


def new_offsets(
    chosen: Collection[str],
    starts: Mapping[TopicPartition, int],
    committed: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """Offsets to commit for the inputs: ``starts`` of the ``chosen`` topics, the committed ones of
    the others.

    Those are committed again, too: beside an offset stand the stream times and layouts of stores
    that are gone, and records that are read again would be late by them.
    """
    kept = {tp: offset for tp, offset in committed.items() if tp.topic not in chosen}
    return dict(sorted({**kept, **starts}.items()))


def still_running(
    application_id: str, members: Collection[MemberDescription], session_timeout_ms: int
) -> str:
    """Why there is no reset while the group has members, and what to do."""
    return (
        f"The group {application_id} has members: {some(map(_member, members))}. Stop all "
        f"instances, then reset. Nothing was changed. One that was killed stays in the group until "
        f"its session is over, so does a static one (group.instance.id) that was stopped: "
        f"session.timeout.ms, {session_timeout_ms / 1000:g} s here. --force takes members out at "
        f"once; an instance that lives joins again."
    )


def _member(one: MemberDescription) -> str:
    static = f", group.instance.id {one.instance_id}" if one.instance_id else ""
    return f"{one.client_id} at {one.host.lstrip('/')}{static}"


def _partitions(count: int) -> str:
    return counted(count, "partition")
