"""Decides which old changelog becomes which new one, and how (note 067). Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from hashlib import blake2b

import pyarrow as pa

from everflow.errors import MigrationError
from everflow.logs import counted
from everflow.migration.programs import Form, Program
from everflow.records import TaskId, TopicPartition
from everflow.serdes import JsonSerde, PackedSerde, Serde
from everflow.serdes.arrow_types import type_text
from everflow.state.store import StoreSpec
from everflow.topology.compatibility import paired_subtopologies, renamed_stores
from everflow.topology.graph import clock_of
from everflow.topology.store_layouts import layout_of


class Values(str, Enum):
    """How values become those of the new program."""

    SAME = "as they are"
    FIELDS = "field by field"
    FUNCTION = "by a function"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the command line says. ``renames``: new names by old ones; ``functions``: new stores
    whose values a function converts; ``shorter``: new stores that may lose what a shorter retention
    does not keep."""

    renames: Mapping[str, str] = field(default_factory=dict)
    functions: Collection[str] = ()
    shorter: Collection[str] = ()


@dataclass(frozen=True, kw_only=True)
class StoreMove:
    """A changelog that is copied. ``source``, ``target``: topics, with ``before`` and ``after``
    partitions; ``kept_ms``: how long both programs keep an entry."""

    store: str
    was: str
    source: str
    target: str
    before: int
    after: int
    values: Values = Values.SAME
    form: Form = Form.KEY
    window_bytes: int = 0
    kept_ms: int | None = None
    remarks: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        parts = [f"store {self.store}"]
        parts += [f"was {self.was}"] * (self.was != self.store)
        parts.append(f"values {self.values.value}")
        if self.before != self.after:
            parts.append(f"keys to their partitions ({self.before} -> {self.after})")
        return ", ".join([*parts, *self.remarks])


@dataclass(frozen=True, kw_only=True)
class TopicMove:
    """A repartition topic whose waiting records are carried."""

    source: str
    target: str
    before: int
    after: int


@dataclass(frozen=True, kw_only=True)
class MigrationPlan:
    """``waiting``: topics whose records are carried; ``drained``: those that have to be read to
    their ends by the old version; ``fresh``: stores that begin empty; ``left``: old stores that the
    new program does not have. ``subtopologies``: old numbers by new ones; ``clocks``: names of
    stream times, new by old ones."""

    old: str
    new: str
    moves: tuple[StoreMove, ...]
    left_out: tuple[TopicMove, ...]
    waiting: tuple[TopicMove, ...]
    drained: tuple[str, ...]
    fresh: tuple[str, ...]
    left: tuple[str, ...]
    subtopologies: Mapping[int, int]
    clocks: Mapping[str, str]
    digest: str

    @property
    def lines(self) -> list[str]:
        rows = [
            *(("copy", move.text) for move in self.moves),
            *(("copy", f"topic {move.source}, as it is") for move in self.left_out),
            *(("carry", f"what waits in {move.source}") for move in self.waiting),
            *(("drain", f"topic {topic}") for topic in self.drained),
            *(("begin", f"store {name}, empty: it is new") for name in self.fresh),
            *(("leave", f"store {name}: the new program does not have it") for name in self.left),
        ]
        return [f"  {verb:<7}{what}" for verb, what in rows]


def planned(old: Program, new: Program, asked: Asked = Asked()) -> MigrationPlan:
    """MigrationError, with all that cannot be carried and why."""
    was = _names(old, new, asked.renames)
    unknown = {*asked.functions, *asked.shorter} - new.stores.keys()
    if unknown:
        raise _refused(old, [f"the new program has no store {', '.join(sorted(unknown))}"])
    refusals: list[str] = []
    moves: list[StoreMove] = []
    left_out: list[TopicMove] = []
    for name in sorted(was):
        found = _move(name, was[name], old, new, asked)
        if isinstance(found, str):
            refusals.append(f"store {name}: {found}")
        elif isinstance(found, TopicMove):
            left_out.append(found)
        else:
            moves.append(found)
    waiting, drained = _between(old, new, refusals)
    shared = {topic for topics in new.inputs.values() for topic in topics} & {
        topic for topics in old.inputs.values() for topic in topics
    }
    if not shared:
        refusals.append("the new program reads none of the topics that the old one reads")
    if old.application_id == new.application_id:
        refusals.append("both versions have one application.id; the new one needs its own")
    if refusals:
        raise _refused(old, refusals)
    names = {before: after for after, before in was.items()}
    pairs = paired_subtopologies(old.facts, new.facts, names)
    what = repr((moves, left_out, waiting, old.lines, new.lines, sorted(asked.functions)))
    return MigrationPlan(
        old=old.application_id,
        new=new.application_id,
        moves=tuple(moves),
        left_out=tuple(left_out),
        waiting=waiting,
        drained=drained,
        fresh=tuple(sorted(new.stores.keys() - was.keys())),
        left=tuple(sorted(old.stores.keys() - set(was.values()))),
        subtopologies={after: before for before, after in pairs.items()},
        clocks={
            # A time of an earlier release is kept under the name of a node, not of its store.
            **{
                old.facts.stores[before].node: new.facts.stores[after].node
                for after, before in was.items()
            },
            **{clock_of(before): clock_of(after) for after, before in was.items()},
        },
        digest=blake2b(what.encode(), digest_size=8).hexdigest(),
    )


def _refused(old: Program, refusals: Sequence[str]) -> MigrationError:
    listed = "\n".join(f"  {one}" for one in refusals)
    return MigrationError(
        f"Application {old.application_id} cannot be migrated so:\n{listed}\nNothing was changed, "
        f"and the old version goes on. Where a value's meaning changes, --values STORE="
        f"module:function carries it; the last resort is a new application.id without a migration, "
        f"or everflow reset: then the stores are made anew, from the input.",
        code="EF-MIGRATION-PLAN",
    )


def _names(old: Program, new: Program, renames: Mapping[str, str]) -> dict[str, str]:
    """Old names by new ones, of the stores that are carried."""
    for before, after in renames.items():
        for name, program, which in ((before, old, "old"), (after, new, "new")):
            if name not in program.stores:
                raise _refused(old, [f"--rename: the {which} program has no store {name}"])
    found = {after: before for before, after in renames.items()}
    for name in new.stores:
        if name in old.stores and name not in renames and name not in found:
            found[name] = name
    for before, after in renamed_stores(old.facts, new.facts).items():
        known = before in old.stores and after in new.stores
        if known and after not in found and before not in found.values():
            found[after] = before
    return found


def _move(
    name: str, was: str, old: Program, new: Program, asked: Asked
) -> StoreMove | TopicMove | str:
    """How a store is carried, or why it cannot be."""
    before, after = old.stores[was], new.stores[name]
    (source, count), (target, wanted) = old.changelogs[was], new.changelogs[name]
    if before.source_topic or after.source_topic:
        mine, its = (
            before.left_out_topic(old.application_id),
            after.left_out_topic(new.application_id),
        )
        if before.source_topic != after.source_topic or mine is None or its is None:
            return (
                "only one of the two has the user's topic as its changelog: set the same "
                "topology.optimization"
            )
        return TopicMove(source=mine, target=its, before=count, after=wanted)
    if why := _why_not(name, before, after, old, new):
        return why
    values = _values(name, before, after, asked)
    if not isinstance(values, Values):
        return values
    form, window_bytes = old.forms[was]
    if count != wanted and (why := _why_not_spread(count, wanted, form, old, was)):
        return why
    remarks = []
    if before.retention_ms is not None and after.retention_ms is not None:
        if after.retention_ms < before.retention_ms:
            if name not in asked.shorter:
                return (
                    f"its retention shrinks from {before.retention_ms} to {after.retention_ms} ms, "
                    f"so what is older is lost; allow it with --shorten {name}"
                )
            remarks.append(f"without what is older than {after.retention_ms} ms")
        if after.retention_ms > before.retention_ms:
            remarks.append(f"what {before.retention_ms} ms did not keep is not there")
    kept = [one.kept_ms for one in (before, after) if one.kept_ms is not None]
    return StoreMove(
        store=name,
        was=was,
        source=source,
        target=target,
        before=count,
        after=wanted,
        values=values,
        form=form,
        window_bytes=window_bytes,
        kept_ms=min(kept, default=None),
        remarks=tuple(remarks),
    )


def _why_not(
    name: str, before: StoreSpec, after: StoreSpec, old: Program, new: Program
) -> str | None:
    mine, its = layout_of(before), layout_of(after)
    if mine.kind != its.kind:
        return (
            f"it is another kind of store, or has windows of another size ({mine.kind}, now "
            f"{its.kind})"
        )
    if mine.key != its.key:
        return f"its keys have another type (before: {mine.key}, now: {its.key})"
    was_private = before.private or old.forms[before.name][0] is not Form.KEY
    if was_private and old.forms[before.name] != new.forms[name]:
        return "another operator has it, which keeps other entries"
    return None


def _values(name: str, before: StoreSpec, after: StoreSpec, asked: Asked) -> Values | str:
    if name in asked.functions:
        return Values.FUNCTION
    mine, its = layout_of(before).value, layout_of(after).value
    if mine == its:
        return Values.SAME
    fields = _fields(before.value_serde, before.folds), _fields(after.value_serde, after.folds)
    if None in fields or type(before.value_serde) is not type(after.value_serde):
        return _says(name, mine, its)
    was, now = fields
    assert was is not None
    assert now is not None
    if not was.keys() & now.keys() or any(was[one] != now[one] for one in was.keys() & now.keys()):
        return _says(name, mine, its)
    return Values.SAME if isinstance(after.value_serde, JsonSerde) else Values.FIELDS


def _says(name: str, mine: str, its: str) -> str:
    return (
        f"its values have another type (before: {mine}; now: {its}); say how one becomes the other "
        f"with --values {name}=module:function"
    )


def _fields(serde: Serde, folds: tuple[str, ...]) -> dict[str, str] | None:
    """Words of each field of a struct that is written by field names or in a known order."""
    if not isinstance(serde, JsonSerde | PackedSerde) or not pa.types.is_struct(serde.type):
        return None
    known = folds or ("",) * serde.type.num_fields
    return {
        one.name: f"{type_text(one.type)} ({fold})"
        for one, fold in zip(serde.type, known, strict=True)
    }


def _why_not_spread(count: int, wanted: int, form: Form, old: Program, was: str) -> str | None:
    if wanted < count:
        return (
            f"it would have {wanted} partitions, and has {count}: fewer are not supported, as the "
            f"topics in front of it keep theirs"
        )
    if form is Form.OWN:
        return (
            "its partitions change, and a processor's keys are its own: they do not say which "
            "record's key they belong to"
        )
    if form is Form.LOOKUPS:
        return "its partitions change, and records that wait for their entries are numbered by task"
    if "spread by" in str(old.facts.stores[was].layout):
        return "its partitions change, and its keys are not spread by murmur2"
    return None


def _between(
    old: Program, new: Program, refusals: list[str]
) -> tuple[tuple[TopicMove, ...], tuple[str, ...]]:
    """What is done with each old repartition topic: its records are drained by the old version,
    or, where a task reads others beside it, carried."""
    between = old.between()
    waiting, drained = [], []
    for index, topics in sorted(old.inputs.items()):
        for topic in topics:
            if topic not in old.repartition:
                continue
            short = topic.removeprefix(f"{old.application_id}-")
            target = f"{new.application_id}-{short}"
            mine, its = old.facts.repartition[short], new.facts.repartition.get(short)
            same = its is not None and mine.words == its.words
            if index in between or not same:
                drained.append(topic)
                continue
            before, after = old.partitions[topic], new.partitions[target]
            if before != after and (topic in old.spread or target in new.spread):
                refusals.append(f"topic {topic}: its keys are not spread by murmur2")
            waiting.append(TopicMove(source=topic, target=target, before=before, after=after))
    return tuple(waiting), tuple(drained)


# --- stream times ---------------------------------------------------------------------------------


def stream_times(
    plan: MigrationPlan,
    old: Program,
    new: Program,
    times: Mapping[TopicPartition, Mapping[str, int]],
) -> dict[TaskId, dict[str, int]]:
    """Of the new tasks, from those beside the old offsets: of the task with its number, or, where
    keys moved, of all the tasks that a key may come from, the highest."""
    before = old.tasks()
    found: dict[TaskId, dict[str, int]] = {}
    for task in new.tasks():
        index = plan.subtopologies.get(task.subtopology)
        tasks = [one for one in before if one.subtopology == index]
        alike = len(tasks) == sum(one.subtopology == task.subtopology for one in new.tasks())
        asked = [one for one in tasks if not alike or one.partition == task.partition]
        own: dict[str, int] = {}
        for name, time_ms in _times(asked, before, times):
            called = _renamed(name, plan.clocks)
            own[called] = max(time_ms, own.get(called, -1))
        found[task] = own
    return found


def _times(
    tasks: Sequence[TaskId],
    inputs: Mapping[TaskId, Sequence[TopicPartition]],
    times: Mapping[TopicPartition, Mapping[str, int]],
) -> Iterator[tuple[str, int]]:
    for task in tasks:
        for tp in inputs[task]:
            yield from times.get(tp, {}).items()


def _renamed(name: str, clocks: Mapping[str, str]) -> str:
    """A node's name, or one with a method's behind a slash."""
    node, slash, method = name.partition("/")
    return f"{clocks.get(node, node)}{slash}{method}"


def shown(plan: MigrationPlan, records: int, megabytes: float, seconds: float) -> list[str]:
    """For people."""
    return [
        f"migration of {plan.old} to {plan.new}",
        *plan.lines,
        f"to copy: {records:,} records at most, about {megabytes:,.1f} MB, about "
        f"{seconds:,.0f} s at the rate of this machine; "
        f"{counted(len(plan.moves) + len(plan.left_out), 'changelog')}",
    ]
