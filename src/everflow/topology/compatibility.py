"""Says what a change of a program needs: nothing, a rolling bounce, a migration or a reset. Pure.

Two programs are compared by what outlives their instances (note 067): stores, repartition topics,
input topics and the numbers of sub-topologies, which name tasks. Everything else may change while
instances are replaced one by one. What refuses the start of an instance is here, too, so that it
says what `everflow check` says (`lines_of`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from enum import IntEnum

from everflow.errors import StoreLayoutError, start_over
from everflow.records import TopicPartition
from everflow.topology.graph import Graph
from everflow.topology.program_facts import (
    NodeFacts,
    OutputFacts,
    ProgramFacts,
    RepartitionFacts,
    StoreFacts,
    repartition_of,
    stores_of,
)
from everflow.topology.store_layouts import (
    PATTERN,
    Kept,
    differing_parts,
    differing_types,
    differing_words,
    digest,
    gone_in,
    is_store,
    newest,
    repartition_in,
    words_of,
)
from everflow.user_program import place


class Effect(IntEnum):
    """What a change needs, the harmless first."""

    SAME = 0
    BOUNCE = 1
    MIGRATION = 2
    RESET = 3

    @property
    def text(self) -> str:
        return _EFFECTS[self]


_EFFECTS = {
    Effect.SAME: "same",
    Effect.BOUNCE: "safe by a rolling bounce",
    Effect.MIGRATION: "needs a migration",
    Effect.RESET: "needs a reset",
}


@dataclass(frozen=True, kw_only=True)
class Change:
    """One difference. ``kind``: store, repartition topic, input topic, sub-topology, global table,
    partitions, node, or program, for what cannot be told apart; ``where``: file and line of the new
    program, else of the old one."""

    effect: Effect
    kind: str
    name: str
    reason: str
    before: str = ""
    after: str = ""
    where: str | None = None


@dataclass(frozen=True, kw_only=True)
class Result:
    """What becomes of an output, ``topic NAME`` or ``sink NAME``. ``reason``: why it may differ;
    empty: its records are made as before, of what is kept."""

    name: str
    reason: str = ""
    where: str | None = None


# --- the comparison -------------------------------------------------------------------------------


def changes(old: ProgramFacts, new: ProgramFacts) -> list[Change]:
    """The differences, the gravest first; empty: the programs are the same, as far as is known."""
    missing = old.stores.keys() - new.stores.keys()
    gone = [name for name in missing if old.stores[name].layout and not old.stores[name].gone]
    found_again = renamed_stores(old, new, gone, new.stores.keys() - old.stores.keys())
    renamed = found_again.names
    found = [
        *_stores(old, new, found_again),
        *(_unreadable(new.stores) if old.java else ()),
        *_repartition(old, new),
        *_grown(old, new),
        *_subtopologies(old, new, renamed),
        *_tables(old, new),
        *_nodes(old, new),
    ]
    if effect_of(found) < Effect.MIGRATION:
        found += _otherwise(old, new)
    return sorted(found, key=lambda change: (-change.effect, change.kind, change.name))


def _otherwise(old: ProgramFacts, new: ProgramFacts) -> Iterator[Change]:
    """What a group refuses, and nothing else tells."""
    if None not in (old.fingerprint, new.fingerprint) and old.fingerprint != new.fingerprint:
        yield Change(
            effect=Effect.MIGRATION,
            kind="program",
            name="fingerprint",
            reason="something that all instances of a group share differs, and what it was is not "
            "known: a retention, a global table, or who writes a repartition topic; everflow check "
            "OLD NEW says more",
            before=old.fingerprint or "",
            after=new.fingerprint or "",
        )


def results(old: ProgramFacts, new: ProgramFacts, found: Sequence[Change]) -> list[Result] | None:
    """Of each output of both programs, as far as they can be seen: a function is its own code, not
    that of what it calls. None: what the old one computes is not known. ``found``: `changes`."""
    if old.outputs is None or new.outputs is None:
        return None
    listed = []
    for name in sorted(old.outputs.keys() | new.outputs.keys()):
        mine, its = old.outputs.get(name), new.outputs.get(name)
        if its is None:
            where = None if mine is None else mine.where
            listed.append(Result(name=name, reason="it is not written any more", where=where))
        elif mine is None:
            listed.append(Result(name=name, reason="it is new", where=its.where))
        else:
            listed.append(Result(name=name, reason=_may_differ(mine, its, found), where=its.where))
    return listed


def _may_differ(old: OutputFacts, new: OutputFacts, found: Sequence[Change]) -> str:
    """Empty: it may not."""
    stores = {*old.stores, *new.stores}
    lost = [
        f"{one.name} ({one.effect.text})"
        for one in found
        if one.kind == "store" and one.effect >= Effect.MIGRATION and one.name in stores
    ]
    if old.made == new.made:
        return "" if not lost else f"it is made of stores that change: {', '.join(lost)}"
    if old.shown != new.shown:
        return f"it has other types: {old.shown} before, {new.shown} now"
    nodes = {*old.nodes, *new.nodes}
    others = [one.name for one in found if one.name in nodes and one.kind == "node"] or lost
    return f"it is made otherwise{': ' if others else ''}{', '.join(others)}"


def effect_of(found: Sequence[Change]) -> Effect:
    return max((change.effect for change in found), default=Effect.SAME)


_GENERATED = re.compile(r"-\d{10}$")


@dataclass(frozen=True)
class RenamedStores:
    """``names``: new names by old ones. ``unclear``: old and new stores of the same types, of which
    nobody can say which one is which now."""

    names: Mapping[str, str]
    unclear: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]


def renamed_stores(
    old: ProgramFacts, new: ProgramFacts, gone: Collection[str], fresh: Collection[str]
) -> RenamedStores:
    """Which of the stores ``gone`` of the old program are which of ``fresh`` of the new one: the
    only one of the same types. Of several none is guessed."""
    mine, its = _places(old), _places(new)
    alike: dict[tuple[str, ...], list[str]] = {}
    for name in sorted(gone):
        others = tuple(
            other
            for other in sorted(fresh)
            if _may_be(old.stores[name], new.stores[other])
            and len({mine.get(name), its.get(other)} - {None}) < 2
        )
        if others:
            alike.setdefault(others, []).append(name)
    return RenamedStores(
        names={was[0]: now[0] for now, was in alike.items() if len(now) == len(was) == 1},
        unclear=tuple(
            (tuple(was), now) for now, was in alike.items() if not len(now) == len(was) == 1
        ),
    )


def which_is_which(was: Sequence[str], now: Sequence[str]) -> str:
    """Of `RenamedStores.unclear`, for people."""
    return (
        f"stores {', '.join(was)}: new ones of the same types are {', '.join(now)}; say which is "
        f"which with everflow migrate --rename OLD=NEW (--rename OLD= leaves a store)"
    )


def _may_be(old: StoreFacts, new: StoreFacts) -> bool:
    """True if nothing that is known of the old store says that it is another one."""
    return (
        differing_parts(old.layout, new.layout) is None
        and (old.subtopology is None or old.retention_ms == new.retention_ms)
        and (old.changelog is None or bool(old.changelog) == bool(new.changelog))
    )


def _places(program: ProgramFacts) -> dict[str, int]:
    """Which of the stores of its node each is, counted from 0, where nodes are known."""
    found: dict[str, int] = {}
    nodes: dict[str, int] = {}
    for name, facts in program.stores.items():
        if facts.node:
            found[name] = nodes.setdefault(facts.node, 0)
            nodes[facts.node] += 1
    return found


_NAME_IT = (
    ": its name is generated from the number of operators before it, so an operator was inserted "
    "or removed there. Name the store, as in store='counts', and no later change moves it"
)


def _stores(old: ProgramFacts, new: ProgramFacts, renamed: RenamedStores) -> Iterator[Change]:
    for name, other in renamed.names.items():
        yield Change(
            effect=Effect.MIGRATION,
            kind="store",
            name=name,
            reason=f"it is called {other} in the new program, and so is its changelog"
            + _NAME_IT * is_generated(name),
            before=name,
            after=other,
            where=new.stores[other].where,
        )
    for was, now in renamed.unclear:
        for name in was:
            yield Change(
                effect=Effect.MIGRATION,
                kind="store",
                name=name,
                reason=which_is_which(was, now) + _NAME_IT * is_generated(name),
                before=name,
                after=", ".join(now),
                where=new.stores[now[0]].where,
            )
    before = {*renamed.names, *(name for was, _ in renamed.unclear for name in was)}
    after = {*renamed.names.values(), *(name for _, now in renamed.unclear for name in now)}
    for name in sorted(old.stores.keys() & new.stores.keys()):
        yield from _store_changes(name, old.stores[name], new.stores[name])
    for name in sorted(old.stores.keys() - new.stores.keys() - before):
        if old.stores[name].gone:
            continue
        yield Change(
            effect=Effect.MIGRATION,
            kind="store",
            name=name,
            reason="the new program does not have it; its changelog stays until it is deleted",
            before=words_of(old.stores[name].layout),
            where=old.stores[name].where,
        )
    for name in sorted(new.stores.keys() - old.stores.keys() - after):
        if not old.stores_known and new.stores[name].changelog != f"{name}-changelog":
            continue
        yield Change(
            effect=Effect.MIGRATION,
            kind="store",
            name=name,
            reason="it is new: from inputs that are read already it gets only records to come, "
            "unless a migration fills it",
            after=words_of(new.stores[name].layout),
            where=new.stores[name].where,
        )


def _store_changes(name: str, old: StoreFacts, new: StoreFacts) -> Iterator[Change]:
    def change(reason: str, before: str, after: str) -> Change:
        return Change(
            effect=Effect.MIGRATION,
            kind="store",
            name=name,
            reason=reason,
            before=before,
            after=after,
            where=new.where or old.where,
        )

    yield from _layout_changes(name, old.layout, new)
    if old.retention_ms != new.retention_ms and old.subtopology is not None:
        yield change(
            "its retention changes: the store is rebuilt, and what the old retention has deleted "
            "is not there",
            f"{old.retention_ms} ms",
            f"{new.retention_ms} ms",
        )
    if old.changelog is not None and old.changelog != new.changelog:
        yield change("its changelog changes", old.changelog or "none", new.changelog or "none")


def _layout_changes(name: str, stored: Kept, now: StoreFacts) -> Iterator[Change]:
    parts = differing_parts(stored, now.layout)
    if parts is not None:
        effect, reason = _of_layouts(stored, now.layout)
        yield Change(
            effect=effect,
            kind="store",
            name=name,
            reason=reason,
            before=parts[0],
            after=parts[1],
            where=now.where,
        )


def _of_layouts(old: Kept, new: Kept) -> tuple[Effect, str]:
    if isinstance(old, str) or isinstance(new, str):
        return Effect.MIGRATION, "it contains something else"
    if old.kind != new.kind:
        return Effect.RESET, "it is another kind of store, or has windows of another size"
    if old.key != new.key:
        return Effect.RESET, "its keys have another type or are spread otherwise"
    return Effect.MIGRATION, "its values have another type or format"


def _unreadable(stores: Mapping[str, StoreFacts]) -> Iterator[Change]:
    """Stores whose bytes Kafka Streams (Java) writes otherwise."""
    for name, facts in sorted(stores.items()):
        if facts.private:
            yield Change(
                effect=Effect.RESET,
                kind="store",
                name=name,
                reason=facts.private,
                where=facts.where,
            )


_NOT_READ = "the new program does not have it; records that wait in it would not be read"


def _repartition(old: ProgramFacts, new: ProgramFacts) -> Iterator[Change]:
    for name in sorted(old.repartition.keys() | new.repartition.keys()):
        mine, its = old.repartition.get(name), new.repartition.get(name)
        if mine is None or its is None:
            if mine is None or not mine.gone:
                yield Change(
                    effect=Effect.MIGRATION,
                    kind="repartition topic",
                    name=name,
                    reason="it is new" if mine is None else _NOT_READ,
                    where=(its or mine or RepartitionFacts()).where,
                )
            continue
        yield from _words_changes(name, mine.words, its)
        if mine.spread != its.spread and _keeps_keys(name, old, new):
            yield Change(
                effect=Effect.RESET,
                kind="repartition topic",
                name=name,
                reason="its records are spread by another partitioner: a key that goes to another "
                "partition than before is no longer where its state is",
                before=mine.spread or "by key",
                after=its.spread or "by key",
                where=its.where,
            )
        if mine.partitions == its.partitions:
            continue
        if None not in (mine.partitions, its.partitions):
            yield _partitions(name, mine.partitions, its.partitions, its.where)
        elif old.nodes and new.nodes and not new.partitions:  # no cluster was asked
            inputs = "as many as its inputs have"
            yield Change(
                effect=Effect.MIGRATION,
                kind="partitions",
                name=name,
                reason="only one of the programs says how many partitions it has: if its inputs "
                "have another number, keys belong to other tasks (everflow check NEW "
                "--application-id knows)",
                before=inputs if mine.partitions is None else str(mine.partitions),
                after=inputs if its.partitions is None else str(its.partitions),
                where=its.where,
            )


def _keeps_keys(name: str, old: ProgramFacts, new: ProgramFacts) -> bool:
    """True if two whole programs have a store behind this repartition topic."""
    if old.nodes is None or not new.subtopologies:
        return False
    subs = (new.stores[one].subtopology for one in new.stores.keys() & old.stores.keys())
    return any(name in new.subtopologies[sub].repartition for sub in subs if sub is not None)


def _words_changes(
    name: str, stored: tuple[str, str] | str | None, now: RepartitionFacts
) -> Iterator[Change]:
    if stored is None or now.words is None or _digest_of(stored) == _digest_of(now.words):
        return
    reason, effect = "its keys or values have", Effect.MIGRATION
    before, after = _typed(stored), _typed(now.words)
    if not isinstance(stored, str) and not isinstance(now.words, str):
        key = stored[0] != now.words[0]
        reason = f"its {'keys' if key else 'values'} have"
        effect = Effect.RESET if key else Effect.MIGRATION
        differ = [
            (part, *differing_words(one, other))
            for part, one, other in zip(("key", "value"), stored, now.words, strict=True)
            if one != other
        ]
        before = ", ".join(f"{part} {one}" for part, one, _ in differ)
        after = ", ".join(f"{part} {other}" for part, _, other in differ)
    yield Change(
        effect=effect,
        kind="repartition topic",
        name=name,
        reason=f"{reason} another type or format: records that wait in it would be read wrongly",
        before=before,
        after=after,
        where=now.where,
    )


def _digest_of(words: tuple[str, str] | str) -> str:
    return words if isinstance(words, str) else digest(words)


def _typed(words: tuple[str, str] | str) -> str:
    return words if isinstance(words, str) else f"key {words[0]}, value {words[1]}"


def _partitions(name: str, old: int | None, new: int | None, where: str | None) -> Change:
    return Change(
        effect=Effect.MIGRATION,
        kind="partitions",
        name=name,
        reason="the number of its partitions changes, so keys belong to other tasks",
        before=str(old),
        after=str(new),
        where=where,
    )


def _grown(old: ProgramFacts, new: ProgramFacts) -> Iterator[Change]:
    """Inputs that were grown away from the stores behind them (`misfits`); and what the internal
    topics behind it have not as many partitions as: an input, or an internal topic itself."""
    for one in new.misfits:
        yield Change(
            effect=Effect.MIGRATION,
            kind="partitions",
            name=one.topic,
            reason=f"{one.why}: {one.cure}",
            before=str(one.tasks),
            after=str(one.partitions),
            where=one.where,
        )
    found: dict[str, tuple[int, int]] = {}
    for name, need in sorted(new.partitions.items()):
        there = old.partitions.get(name, need)
        if name not in new.topics and there != need:
            above = [one for one in _above(new, name) if new.partitions.get(one) == need]
            for topic in above or [name]:
                found.setdefault(topic, (there, need))
    for topic, (there, need) in sorted(found.items()):
        if topic in new.topics:
            yield Change(
                effect=Effect.MIGRATION,
                kind="partitions",
                name=topic,
                reason="it has another number of partitions than the stores and repartition topics "
                "behind it, so keys are in other partitions than their state",
                before=str(there),
                after=str(need),
            )
        else:
            yield _partitions(topic, there, need, None)


def _above(facts: ProgramFacts, internal: str) -> list[str]:
    """The topics, inputs or with declared partitions, that give an internal one its partitions."""
    within = facts.subtopologies or {}
    found: list[str] = []
    seen: set[str] = set()
    todo = [internal]
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        repartition = facts.repartition.get(name)
        if name in facts.topics or (repartition and repartition.partitions is not None):
            found.append(name)
            continue
        store = facts.stores.get(name.removesuffix("-changelog"))
        if store is not None and store.changelog == name and store.subtopology is not None:
            feeding = [within[store.subtopology]]
        else:
            feeding = [one for one in within.values() if name in one.writes]
        todo += [topic for one in feeding for topic in (*one.topics, *one.repartition)]
    return sorted(found)


def _subtopologies(
    old: ProgramFacts, new: ProgramFacts, renamed: Mapping[str, str]
) -> Iterator[Change]:
    if old.subtopologies is None or new.subtopologies is None:
        patterns = _patterns(old, new)

        def named(topics: Iterable[str]) -> list[str]:
            return [one for one in topics if not any(it.fullmatch(one) for it in patterns)]

        yield from _topics("", named(old.topics), named(new.topics))
        return
    pairs = paired_subtopologies(old, new, renamed)
    for number, facts in sorted(old.subtopologies.items()):
        other = pairs.get(number)
        if other is None:
            yield from _topics(f"sub-topology {number}, ", facts.topics, ())
            continue
        yield from _topics(f"sub-topology {other}, ", facts.topics, new.subtopologies[other].topics)
        if other != number:
            yield Change(
                effect=Effect.MIGRATION,
                kind="sub-topology",
                name=str(number),
                reason=f"it is number {other} in the new program, so its tasks {number}_0, ... "
                f"are called {other}_0, ...: numbers follow the names of the sources",
                before=str(number),
                after=str(other),
            )
    for number in sorted(new.subtopologies.keys() - set(pairs.values())):
        facts = new.subtopologies[number]
        if facts.topics:
            yield from _topics(f"sub-topology {number}, ", (), facts.topics)


def _patterns(*programs: ProgramFacts) -> list[re.Pattern[str]]:
    return [
        re.compile(topic.removeprefix(PATTERN))
        for program in programs
        for one in (program.subtopologies or {}).values()
        for topic in one.topics
        if topic.startswith(PATTERN)
    ]


def paired_subtopologies(
    old: ProgramFacts, new: ProgramFacts, renamed: Mapping[str, str]
) -> dict[int, int]:
    """Old sub-topologies and the new ones that have their stores, else their inputs."""
    assert old.subtopologies is not None
    assert new.subtopologies is not None
    votes: dict[tuple[int, int], int] = {}

    def vote(mine: int | None, its: int | None, weight: int) -> None:
        if mine is not None and its is not None:
            votes[mine, its] = votes.get((mine, its), 0) + weight

    for name, facts in old.stores.items():
        other = new.stores.get(renamed.get(name, name))
        vote(facts.subtopology, None if other is None else other.subtopology, 100)
    for mine, read in old.subtopologies.items():
        for its, reads in new.subtopologies.items():
            shared = {*read.topics, *read.repartition} & {*reads.topics, *reads.repartition}
            vote(mine, its, len(shared) + (mine == its and bool(shared)))
    found: dict[int, int] = {}
    for (mine, its), weight in sorted(votes.items(), key=lambda item: (-item[1], item[0])):
        if weight and mine not in found and its not in found.values():
            found[mine] = its
    return found


def same_nodes(old: ProgramFacts, new: ProgramFacts, stores: Mapping[str, str]) -> dict[str, str]:
    """New nodes by the old ones whose work they go on with. ``stores``: new names by old ones, of
    those that are carried. The others are those that compute the same, have the same name of the
    user's, or are of one kind, where there are as many as before: in the order of the programs."""
    found = {old.stores[one].node: new.stores[other].node for one, other in stores.items()}
    for of in (_text_of, _own_name, _label):
        taken = {*found.values()}
        mine = _grouped(of, (node for node in old.nodes or () if node.name not in found))
        its = _grouped(of, (node for node in new.nodes or () if node.name not in taken))
        for what in mine.keys() & its.keys() - {""}:
            if len(mine[what]) == len(its[what]):
                found |= dict(zip(mine[what], its[what], strict=True))
    return found


def _grouped(of: Callable[[NodeFacts], str], nodes: Iterable[NodeFacts]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for node in nodes:
        found.setdefault(of(node), []).append(node.name)
    return found


def _text_of(node: NodeFacts) -> str:
    return node.text


def _own_name(node: NodeFacts) -> str:
    return "" if is_generated(node.name) else node.name


def _label(node: NodeFacts) -> str:
    return node.shown.split(" ", 1)[0].rstrip(":")


def is_generated(name: str) -> bool:
    return _GENERATED.search(name) is not None


def _topics(where: str, old: Collection[str], new: Collection[str]) -> Iterator[Change]:
    for topic in sorted(set(old) - set(new)):
        yield Change(
            effect=Effect.MIGRATION,
            kind="input topic",
            name=topic,
            reason=f"{where}the new program does not read it",
            before="read",
        )
    for topic in sorted(set(new) - set(old)):
        yield Change(
            effect=Effect.MIGRATION,
            kind="input topic",
            name=topic,
            reason=f"{where}the old program does not read it",
            after="read",
        )


def _tables(old: ProgramFacts, new: ProgramFacts) -> Iterator[Change]:
    if old.tables is None or new.tables is None:
        return
    for name in sorted(old.tables.keys() | new.tables.keys()):
        mine, its = old.tables.get(name, ""), new.tables.get(name, "")
        if mine != its:
            yield Change(
                effect=Effect.MIGRATION,
                kind="global table",
                name=name,
                reason="each instance loads it anew, and all instances need the same one",
                before=mine,
                after=its,
            )


def _nodes(old: ProgramFacts, new: ProgramFacts) -> Iterator[Change]:
    """Those that differ in more than their stores, in the order of the program."""
    if old.nodes is None or new.nodes is None:
        yield Change(
            effect=Effect.BOUNCE,
            kind="program",
            name="functions and outputs",
            reason="they are not kept with the application, so they were not compared; they may "
            "change, as operators without a store may",
        )
        return
    mine, its = old.nodes, new.nodes
    told = {
        (facts.node, new.stores[name].node)
        for name, facts in old.stores.items()
        if name in new.stores and differing_parts(facts.layout, new.stores[name].layout)
    }
    matched = SequenceMatcher(None, [n.text for n in mine], [n.text for n in its], autojunk=False)
    for what, begin, end, first, last in matched.get_opcodes():
        if what == "equal":
            for one, other in zip(mine[begin:end], its[first:last], strict=True):
                if one.name != other.name and not _shifted(one.name, other.name):
                    yield _node("it has another name", one, other)
            continue
        removed, added = list(mine[begin:end]), list(its[first:last])
        while removed and added:
            one, other = removed.pop(0), added.pop(0)
            if (one.name, other.name) not in told:
                yield _differs(one, other)
        for one in removed:
            yield _node("the new program does not have it", one, None)
        for other in added:
            yield _node("it is new", None, other)


def _shifted(one: str, other: str) -> bool:
    """Both names are generated, and differ in the number alone."""
    return _GENERATED.sub("", one) == _GENERATED.sub("", other)


def _differs(old: NodeFacts, new: NodeFacts) -> Change:
    if old.shown == new.shown:
        return replace(_node("it has other code or other arguments", old, new), before="", after="")
    found = _node("it computes something else, or emits other types", old, new)
    before, after = differing_types(found.before, found.after)
    return replace(found, before=before, after=after)


def _node(reason: str, old: NodeFacts | None, new: NodeFacts | None) -> Change:
    known = new or old
    assert known is not None
    return Change(
        effect=Effect.BOUNCE,
        kind="node",
        name=known.name,
        reason=reason,
        before=old.shown if old else "",
        after=new.shown if new else "",
        where=known.where,
    )


# --- the report -----------------------------------------------------------------------------------

_LONGEST = 160


def report(found: Sequence[Change], outputs: Sequence[Result] | None = None) -> str:
    """For people: the verdict, the changes below what each of them needs, then what becomes of the
    results (`results`)."""
    lines = [effect_of(found).text]
    for effect in sorted({change.effect for change in found}, reverse=True):
        lines += ["", f"{effect.text}:"]
        lines += [line for one in found if one.effect is effect for line in lines_of(one)]
    return "\n".join([*lines, "", "results:", *_result_lines(outputs)]) + "\n"


def _result_lines(outputs: Sequence[Result] | None) -> Iterator[str]:
    if outputs is None:
        yield "  not known: an application keeps no functions; everflow check OLD NEW compares them"
        return
    if same := [one.name for one in outputs if not one.reason]:
        yield f"  as they are: {', '.join(same)}"
    for one in outputs:
        if one.reason:
            yield f"  {one.name}: {one.reason}"
            if one.where:
                yield f"      {'at:':<8}{place(one.where)}"
    if not outputs:
        yield "  neither program writes any"


def lines_of(change: Change) -> list[str]:
    """As `report` and the errors of a start have it."""
    at = place(change.where) if change.where else ""
    shown = {"at": at, "before": change.before, "now": change.after}
    return [
        f"  {change.kind} {change.name}: {change.reason}",
        *(f"      {word + ':':<8}{_short(change, text)}" for word, text in shown.items() if text),
    ]


def _short(change: Change, text: str) -> str:
    if change.kind != "node" or len(text) <= _LONGEST:
        return text
    return f"{text[: _LONGEST - 1]}…"


def listing(found: Iterable[Change]) -> str:
    return "\n".join(line for change in found for line in lines_of(change))


def report_json(found: Sequence[Change], outputs: Sequence[Result] | None = None) -> str:
    """``{"verdict", "changes": [{"effect", "kind", "name", "reason", "before", "after",
    "where"}], "results": [{"output", "same", "reason", "where"}]}``; the effects are ``same``,
    ``bounce``, ``migration`` and ``reset``; results that are not known are null."""
    listed = [
        {
            "effect": change.effect.name.lower(),
            "kind": change.kind,
            "name": change.name,
            "reason": change.reason,
            "before": change.before,
            "after": change.after,
            "where": change.where,
        }
        for change in found
    ]
    verdict = effect_of(found).name.lower()
    made = [
        {"output": one.name, "same": not one.reason, "reason": one.reason, "where": one.where}
        for one in outputs or ()
    ]
    told = {"results": None if outputs is None else made}
    return json.dumps({"verdict": verdict, "changes": listed, **told}, indent=2)


# --- what refuses a start -------------------------------------------------------------------------


def layouts_to_keep(
    application_id: str, graph: Graph, found: Iterable[Mapping[str, Kept]]
) -> dict[str, Kept]:
    """Those to be written from now on: of the program's stores, and of those that it no longer has,
    as ``found``. StoreLayoutError for one that was written otherwise than it is read."""
    stores = stores_of(graph, {})
    known = [(name, kept) for one in found for name, kept in one.items() if is_store(name)]
    wrong = {
        name: change
        for name, kept in known
        if name in stores
        for change in _layout_changes(name, kept, stores[name])
    }
    if wrong:
        differs = listing(wrong[name] for name in sorted(wrong))
        can_be_carried = effect_of(list(wrong.values())) < Effect.RESET
        both = (
            "To keep both, run the old program and carry the state over with everflow migrate. "
            if can_be_carried
            else ""
        )
        raise StoreLayoutError(
            f"Application {application_id} has stored something else than this program reads, so "
            f"it was not started.\n{differs}\nRead as it is written now, what is stored would give "
            "wrong figures. Nothing was read or changed; instances that run the old program go on."
            f"\n{both}To keep what is stored, write the operator as it was. To keep the change, "
            "give the program an application.id of its own: it makes its stores anew, from the "
            "input as auto.offset.reset says; or give the store another name and start once with "
            "--create-new-topics: it begins empty, with what is read from then on.\n"
            f"{start_over(application_id)}",
            difference=differs,
        )
    return {**dict(known), **{name: facts.layout for name, facts in stores.items()}}


def retyped(graph: Graph, found: Iterable[Mapping[str, Kept]]) -> list[Change]:
    """Repartition topics that were written otherwise than ``graph`` reads them."""
    stored = repartition_in(newest(found))
    return [
        change
        for name, now in sorted(repartition_of(graph).items())
        for change in _words_changes(name, stored.get(name) or None, now)
    ]


def left_behind(graph: Graph, found: Iterable[Mapping[str, Kept]]) -> list[Change]:
    """Repartition topics of the program before that ``graph`` does not have, while it has all of
    that program's stores: what waits in such a topic is missing in one of them. A program that has
    dropped a store does not miss what its topic holds."""
    last = newest(found)
    gone = gone_in(last)
    stores = {spec.name for node in graph.nodes for spec in getattr(node, "stores", ())}
    if not {entry for entry in last if is_store(entry)} - gone <= stores:
        return []
    topics = (topic.name for topic in graph.repartition_topics)
    dropped = repartition_in(last).keys() - repartition_in(dict.fromkeys(gone, "")).keys()
    return [
        Change(effect=Effect.MIGRATION, kind="repartition topic", name=name, reason=_NOT_READ)
        for name in sorted(dropped.difference(topics))
    ]


def require_read(
    application_id: str, found: Iterable[Change], waiting: Mapping[TopicPartition, int]
) -> None:
    """StoreLayoutError where records wait in a topic of `retyped` or `left_behind`; ``waiting``:
    how many by partition, of the topics' whole names."""
    lines: list[str] = []
    for change in found:
        topic = f"{application_id}-{change.name}"
        counts = {tp: count for tp, count in waiting.items() if tp.topic == topic and count > 0}
        if counts:
            lines += lines_of(change)
            lines += [
                f"      {topic}, partition {tp.partition}: {count:,} waiting"
                for tp, count in sorted(counts.items())
            ]
    if lines:
        differs = "\n".join(lines)
        raise StoreLayoutError(
            f"Application {application_id} has records in repartition topics that this program "
            f"would read as something else or not at all, so it was not started.\n{differs}\n"
            f"Nothing was read or changed. Run the old program until it has read them, while "
            f"nothing writes to its inputs (everflow lag {application_id} shows when); then stop "
            f"all instances and start this program.\n{start_over(application_id)}",
            difference=differs,
        )


def require_readable(application_id: str, graph: Graph) -> None:
    """StoreLayoutError for stores whose bytes Kafka Streams, which ran before, writes otherwise."""
    differs = listing(_unreadable(stores_of(graph, {})))
    if differs:
        raise StoreLayoutError(
            f"Application {application_id} was run by Kafka Streams (Java), and everflow cannot "
            f"read what that keeps in these stores, so it was not started.\n{differs}\n"
            "Nothing was read or changed, and the Java application can go on. To go on here, leave "
            "these operators to an application of their own, whose input is what this one writes; "
            "or give the program an application.id of its own: it makes its stores anew, from the "
            f"input. docs/guide/taking-over.md says more.\n{start_over(application_id)}",
            difference=differs,
        )
