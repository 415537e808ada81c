"""Decides which old changelog becomes which new one, and how (note 067). Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from hashlib import blake2b
from typing import NamedTuple

import pyarrow as pa

from everflow.columns.key_partitions import MURMUR2
from everflow.errors import MigrationError
from everflow.logs import counted
from everflow.migration.programs import Form, Program
from everflow.records import TaskId, TopicPartition
from everflow.serdes import JsonSerde, PackedSerde, Serde
from everflow.serdes.arrow_types import type_text
from everflow.state.store import StoreSpec
from everflow.topology.compatibility import (
    paired_subtopologies,
    renamed_stores,
    same_nodes,
    which_is_which,
)
from everflow.topology.store_layouts import layout_of, serde_words
from everflow.topology.stream_times import node_of


class Values(str, Enum):
    """How values become those of the new program."""

    SAME = "as they are"
    FIELDS = "field by field"
    FUNCTION = "by a function"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the command line says. ``renames``: new names by old ones, empty: it is left;
    ``functions``: new stores whose values a function converts; ``shorter``: new stores that may
    lose what a shorter retention does not keep."""

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
    def data(self) -> dict[str, object]:
        return {
            "store": self.store,
            "was": self.was,
            "source": self.source,
            "target": self.target,
            "partitions": [self.before, self.after],
            "values": self.values.value,
        }

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

    @property
    def data(self) -> dict[str, object]:
        return {
            "source": self.source,
            "target": self.target,
            "partitions": [self.before, self.after],
        }


class Stage(NamedTuple):
    """A stage of the switch: once ``topics`` are read to their ends, the tasks of the
    sub-topologies ``parts`` stand still."""

    topics: tuple[str, ...]
    parts: frozenset[int]


@dataclass(frozen=True, kw_only=True)
class MigrationPlan:
    """``waiting``: topics whose records are carried; ``drained``: those that have to be read to
    their ends by the old version, in these ``stages``; ``fresh``: stores that begin empty, and why;
    ``left``: old stores that no new one is made of. ``subtopologies``: old numbers by new ones;
    ``clocks``: nodes with the names under which stream times are kept, new by old ones."""

    old: str
    new: str
    moves: tuple[StoreMove, ...]
    left_out: tuple[TopicMove, ...]
    waiting: tuple[TopicMove, ...]
    drained: tuple[str, ...]
    stages: tuple[Stage, ...]
    fresh: Mapping[str, str]
    left: tuple[str, ...]
    subtopologies: Mapping[int, int]
    clocks: Mapping[str, str]
    digest: str

    @property
    def steps(self) -> list[dict[str, object]]:
        """As JSON has them: ``do``, ``text``, and of a copy what is copied where."""
        rows: list[tuple[str, str, Mapping[str, object]]] = [
            *(("copy", move.text, move.data) for move in self.moves),
            *(("copy", f"topic {one.source}, as it is", one.data) for one in self.left_out),
            *(("carry", f"what waits in {one.source}", one.data) for one in self.waiting),
            *(("drain", f"topic {topic}", {"source": topic}) for topic in self.drained),
            *(
                ("begin", f"store {name}, empty: {why}", {"store": name})
                for name, why in self.fresh.items()
            ),
            *(
                ("leave", f"store {name}: the new program does not have it", {"store": name})
                for name in self.left
            ),
        ]
        return [{"do": verb, "text": text, **more} for verb, text, more in rows]

    @property
    def lines(self) -> list[str]:
        return [f"  {step['do']:<7}{step['text']}" for step in self.steps]


def planned(old: Program, new: Program, asked: Asked = Asked()) -> MigrationPlan:
    """MigrationError, with all that cannot be carried and why."""
    was, refusals = _names(old, new, asked.renames)
    named = {*asked.functions, *asked.shorter}
    if unknown := sorted(named - new.stores.keys()):
        raise _refused(old, [_not_there("new", new, name) for name in unknown])
    refusals += [
        f"store {name}: --values or --shorten names it, and nothing is carried into it: say which "
        f"store it was with --rename OLD={name}"
        for name in sorted(named - was.keys())
    ]
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
        stages=stages_of(old, drained),
        fresh=_fresh(old, new, was),
        left=tuple(sorted(_left(old, new, was))),
        subtopologies={after: before for before, after in pairs.items()},
        clocks=same_nodes(old.facts, new.facts, names),
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


def _names(
    old: Program, new: Program, renames: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """Old names by new ones, of the stores that are carried; and those of which it is not clear
    which one they are now."""
    for before, after in renames.items():
        for name, program, which in ((before, old, "old"), (after, new, "new")):
            if name and name not in program.stores:
                raise _refused(old, [f"--rename: {_not_there(which, program, name)}"])
    found = {after: before for before, after in renames.items() if after}
    for after in sorted(found):
        if len(both := [one for one, now in renames.items() if now == after]) > 1:
            raise _refused(old, [f"--rename: {' and '.join(both)} cannot both be {after} now"])
    for name in new.stores:
        if name in old.stores and name not in renames and name not in found:
            found[name] = name
    again = renamed_stores(
        old.facts,
        new.facts,
        old.stores.keys() - set(found.values()) - renames.keys(),
        new.stores.keys() - found.keys(),
    )
    found |= {after: before for before, after in again.names.items()}
    return found, sorted(which_is_which(*one) for one in again.unclear)


def _not_there(which: str, program: Program, name: str) -> str:
    if name in program.unlogged:
        return f"store {name} of the {which} program has no changelog, so nothing of it is carried"
    return f"the {which} program has no store {name}"


def _fresh(old: Program, new: Program, was: Mapping[str, str]) -> dict[str, str]:
    """Stores that begin empty, with the reason."""
    found = dict.fromkeys(sorted(new.stores.keys() - was.keys()), "it is new")
    for name in sorted(old.unlogged & found.keys()):
        found[name] = "it had no changelog"
    return found | dict.fromkeys(
        sorted(new.unlogged), "it has no changelog, so what it contains stays with the old version"
    )


def _left(old: Program, new: Program, was: Mapping[str, str]) -> set[str]:
    """Old stores of which nothing is in the new program; those that begin empty are in `_fresh`."""
    gone = old.unlogged - new.stores.keys()
    return (old.stores.keys() - set(was.values()) | gone) - new.unlogged


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
        if name in asked.functions:
            return "its changelog is the user's topic, which is not copied: leave out --values"
        return TopicMove(source=mine, target=its, before=count, after=wanted)
    if why := _why_not(name, before, after, old, new):
        return why
    values = _values(name, before, after, asked)
    if not isinstance(values, Values):
        return values
    if why := _why_not_inside(old.inside[was], new.inside[name]):
        return why
    form, window_bytes = new.forms[name]  # an entry goes where the new program puts its key
    if count != wanted and (why := _why_not_spread(count, wanted, form, old, was)):
        return why
    if why := _why_not_spread_by(_spread_by(old, was), _spread_by(new, name), count != wanted):
        return why
    if why := _why_not_hashed(_hashed(old, was), _hashed(new, name), count != wanted):
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
    (form, mine_bytes), (now, its_bytes) = old.forms[before.name], new.forms[name]
    private = before.private or form is not Form.KEY
    if form is not now or (private and mine_bytes != its_bytes):
        return "another operator has it, which keeps other entries"
    return None


def _values(name: str, before: StoreSpec, after: StoreSpec, asked: Asked) -> Values | str:
    if name in asked.functions:
        return Values.FUNCTION
    mine, its = layout_of(before).value, layout_of(after).value
    if mine == its:
        return Values.SAME
    if not _by_fields(before.value_serde, after.value_serde, before.folds, after.folds):
        return (
            f"its values have another type (before: {mine}; now: {its}); say how one becomes the "
            f"other with --values {name}=module:function"
        )
    return Values.SAME if isinstance(after.value_serde, JsonSerde) else Values.FIELDS


def _by_fields(
    before: Serde, after: Serde, folds: tuple[str, ...] = (), now_folds: tuple[str, ...] = ()
) -> bool:
    """True if both write structs field by field, of which some stay and those as they were."""
    was, now = _fields(before, folds), _fields(after, now_folds)
    if was is None or now is None or type(before) is not type(after):
        return False
    both = was.keys() & now.keys()
    return bool(both) and all(was[one] == now[one] for one in both)


def _why_not_inside(before: Sequence[Serde], after: Sequence[Serde]) -> str | None:
    """``before``, ``after``: of `Program.inside`."""
    for at, (one, other) in enumerate(zip(before, after, strict=True)):
        was, now = (serde_words(serde, key=at == 0) for serde in (one, other))
        if was != now and not (at and isinstance(other, JsonSerde) and _by_fields(one, other)):
            return (
                f"the records that wait in it have another type (before: {was}; now: {now}), and "
                f"nothing rewrites them"
            )
    return None


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
            "its partitions change, and its keys are not those of the records (a processor's are "
            "its own, those of deduplicate(by=) are ids): they do not say where an entry belongs"
        )
    if form is Form.LOOKUPS:
        return "its partitions change, and records that wait for their entries are numbered by task"
    if "spread by" in str(old.facts.stores[was].layout):
        return "its partitions change, and its keys are not spread by murmur2"
    return None


def _why_not_spread_by(before: list[str], after: list[str], moves: bool) -> str | None:
    if before == after and not (before and moves):
        return None
    named = ", ".join(sorted({*before, *after}))
    return (
        f"its records are spread by a partitioner ({named}) that is another one now, or has "
        f"another number of partitions, and does not say where an entry belongs"
    )


def _spread_by(program: Program, store: str) -> list[str]:
    """The functions and Columns by which the records of a store's tasks are spread."""
    index, prefix = program.facts.stores[store].subtopology, f"{program.application_id}-"
    topics = () if index is None else program.inputs[index]
    known = program.facts.repartition
    found = (
        known[topic.removeprefix(prefix)].spread
        for topic in topics
        if topic in program.spread and topic in program.repartition
    )
    return sorted(filter(None, found))


def _why_not_hashed(before: set[str], after: set[str], moves: bool) -> str | None:
    named = f"before: {', '.join(sorted(before))}; now: {', '.join(sorted(after))}"
    if moves and not all(by.startswith(MURMUR2) for by in after):
        return f"its partitions change, and its keys are not spread by murmur2 ({named})"
    if not moves and before != after:
        return (
            f"its keys belong to other partitions of as many, as they are spread otherwise "
            f"({named}). With more partitions, as in .repartition(name='a-name', partitions=...), "
            f"each entry goes where murmur2 puts its key"
        )
    return None


def _hashed(program: Program, store: str) -> set[str]:
    """By what the keys are spread of the topics that a store's tasks read; windows that came into
    the store's keys behind them were not hashed."""
    index = program.facts.stores[store].subtopology
    topics = () if index is None else program.inputs[index]
    windows = ", without the windows in front of the store" if program.forms[store][1] else ""
    if store in program.assumed:
        return {program.assumed[store] + windows}
    return {
        program.spread.get(topic, program.spread.get(f"{program.application_id}-{topic}", MURMUR2))
        + windows
        for topic in topics
    }


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


def stages_of(old: Program, drained: Collection[str]) -> tuple[Stage, ...]:
    """In which order the old version's sub-topologies stand still, so that ``drained`` are read to
    their ends: upstream first, and who reads one of these only once all that write it do nothing
    more. Those that read repartition topics alone need not be stopped: nothing comes to them any
    more. Where sub-topologies write for each other in a circle (a foreign-key join), they are
    stopped at once. Pure."""
    waits = {
        index: {one for topic in topics if topic in drained for one in old.writers[topic]}
        for index, topics in old.inputs.items()
        if any(topic in drained for topic in topics)
    }
    between = old.between()
    later: list[Stage] = []
    quiet = frozenset(old.inputs.keys() - waits.keys())
    stopped = quiet
    while left := waits.keys() - quiet:
        ready = {index for index in left if waits[index] <= quiet}
        if not ready:  # a circle
            stopped |= frozenset(left) - between
            later.append(Stage(_topics(old, drained, left), frozenset()))
            break
        later.append(Stage(_topics(old, drained, ready), frozenset(ready) - between))
        quiet |= ready
    return (Stage((), stopped), *later)


def _topics(old: Program, drained: Collection[str], parts: Collection[int]) -> tuple[str, ...]:
    return tuple(topic for part in sorted(parts) for topic in old.inputs[part] if topic in drained)


# --- stream times ---------------------------------------------------------------------------------


def stream_times(
    plan: MigrationPlan,
    old: Program,
    new: Program,
    times: Mapping[TopicPartition, Mapping[str, int]],
) -> dict[TaskId, dict[str, int]]:
    """Of the new tasks, from those beside the old offsets, each where its node is now: of the task
    with its number, or, where keys moved, the highest of all tasks that a key may come from."""
    tasks = _numbers_of_tasks(new)
    before = _numbers_of_tasks(old)
    found: dict[TaskId, dict[str, int]] = {task: {} for task in new.tasks()}
    renumbered = {mine: its for its, mine in plan.subtopologies.items()}
    for task, read in old.tasks().items():
        for name, time_ms in (one for tp in read for one in times.get(tp, {}).items()):
            called = _renamed(name, plan.clocks, new)
            index = new.times.places.get(node_of(called), renumbered.get(task.subtopology))
            if not called or index is None:
                continue
            alike = tasks[index] == before[task.subtopology]
            for number in (task.partition,) if alike else range(tasks[index]):
                own = found[TaskId(index, number)]
                own[called] = max(time_ms, own.get(called, -1))
    return found


def _numbers_of_tasks(program: Program) -> Counter[int]:
    return Counter(task.subtopology for task in program.tasks())


def _renamed(name: str, clocks: Mapping[str, str], new: Program) -> str:
    """Empty for the time of a node whose name another one has now."""
    node = node_of(name)
    if node in clocks:
        return clocks[node] + name[len(node) :]
    return "" if node in new.times.places else name


@dataclass(frozen=True)
class Estimate:
    """What is to be copied: ``records`` at most, their ``bytes``, and the time at the rate that was
    measured."""

    records: int
    bytes: int
    seconds: float


def shown(plan: MigrationPlan, found: Estimate) -> list[str]:
    """For people."""
    return [
        f"migration of {plan.old} to {plan.new}",
        *plan.lines,
        f"to copy: {found.records:,} records at most, about {found.bytes / 1e6:,.1f} MB, about "
        f"{found.seconds:,.0f} s at the rate of this machine; "
        f"{counted(len(plan.moves) + len(plan.left_out), 'changelog')}",
    ]
