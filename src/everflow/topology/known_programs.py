"""What is known of a program that is not at hand: of an application by its offsets and topics, of a
group's program by the lines of its `fingerprint`. Pure; for `everflow.topology.compatibility`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from everflow.records import TopicPartition
from everflow.topology.compatibility import Effect, changes, listing
from everflow.topology.connectors import connector_topic
from everflow.topology.program_facts import ProgramFacts, RepartitionFacts, StoreFacts, reading
from everflow.topology.store_layouts import (
    PATTERN,
    Kept,
    StoreLayout,
    differing_lines,
    digest,
    gone_in,
    is_store,
    newest,
    program_in,
    reads_in,
    repartition_in,
    topics_in,
)


def facts_of_application(
    application_id: str,
    committed: Mapping[TopicPartition, Mapping[str, Kept]],
    topics: Mapping[str, int],
    *,
    java: bool = False,
) -> ProgramFacts:
    """Of an application that runs or ran. ``committed``: the partitions with an offset of its
    group, and what was kept beside each; ``topics``: partitions of its inputs and of its internal
    topics. What earlier releases or Java did not keep is known by the topics, or not at all."""
    texts = list(committed.values())
    last, prefix = newest(texts), f"{application_id}-"
    internal = {
        name.removeprefix(prefix): count
        for name, count in topics.items()
        if name.startswith(prefix) and name.endswith(("-changelog", "-repartition"))
    }
    internal.pop(connector_topic("").removeprefix("-"), None)  # no store's
    layouts = {entry: kept for one in [*texts, last] for entry, kept in one.items()}
    known, gone = topics_in(texts), gone_in(last)
    stores: dict[str, Kept] = {entry: kept for entry, kept in layouts.items() if is_store(entry)}
    if not known:
        stores = {
            name.removesuffix("-changelog"): ""
            for name in internal
            if name.endswith("-changelog") and not name.endswith("-left-out-changelog")
        }
    between = known.get("repartition")
    if between is None:
        between = frozenset(name for name in internal if name.endswith("-repartition"))
    digests, reads = repartition_in(last), reads_in(last)
    own = {f"{prefix}{name}" for name in internal}
    inputs = frozenset(tp.topic for tp in committed) - own
    return ProgramFacts(
        stores={
            name: StoreFacts(layout=kept, gone=name in gone)
            for name, kept in sorted(stores.items())
        },
        repartition={
            name: RepartitionFacts(words=digests.get(name) or None, gone=f"*{name}" in gone)
            for name in sorted(between)
        },
        subtopologies=None
        if reads is None
        else {number: reading(one) for number, one in reads.items()},
        tables=None,
        nodes=None,
        topics=inputs,
        partitions={**{name: topics[name] for name in inputs & topics.keys()}, **internal},
        fingerprint=program_in(last),
        stores_known=bool(known),
        java=java,
    )


_STORE = re.compile(
    r"(?P<kind>.+?) store (?P<name>\S+?)(?:, retention (?P<retention>\d+) ms)?"
    r"(?:, window (?P<size>\d+) ms)?, (?:changelog (?P<changelog>\S+)|no changelog) "
    r"\(key (?P<key>.*?), value (?P<value>.*)\)"
)
_TYPED = re.compile(r"(?P<name>\S+) \(key (?P<key>.*?), value (?P<value>.*)\)")
_LINE = re.compile(
    r"sub-topology (?P<number>\d+) (?P<verb>has|reads topic|reads topics that match|"
    r"reads repartition topic|writes repartition topic) (?P<rest>.+)"
)
_TABLE = re.compile(r"sub-topology \d+ keeps all of (?P<origin>.+?) in (?P<store>.+)")
_SPREAD = re.compile(r"store (?P<name>\S+) is spread by (?P<by>.+)")


def facts_of_lines(lines: Sequence[str]) -> ProgramFacts:
    """Of a `fingerprint`, which is all that members of a group tell each other. A line of another
    form, as of another release, is left out."""
    stores: dict[str, StoreFacts] = {}
    repartition: dict[str, RepartitionFacts] = {}
    reads: dict[int, list[str]] = {}
    writes: dict[int, list[str]] = {}
    tables: dict[str, str] = {}
    for line in lines:
        if (table := _TABLE.fullmatch(line)) and (store := _STORE.fullmatch(table["store"])):
            tables[store["name"]] = f"{table['origin']}; {'; '.join(_layout_in(store))}"
        if (found := _LINE.fullmatch(line)) is None:
            continue
        number, verb, rest = int(found["number"]), found["verb"], found["rest"]
        if verb == "has" and (store := _STORE.fullmatch(rest)):
            stores[store["name"]] = StoreFacts(
                layout=_layout_in(store),
                subtopology=number,
                retention_ms=None if store["retention"] is None else int(store["retention"]),
                changelog=store["changelog"] or "",
            )
        elif verb == "reads repartition topic" and (topic := _TYPED.fullmatch(rest)):
            repartition[topic["name"]] = RepartitionFacts(words=(topic["key"], topic["value"]))
            reads.setdefault(number, []).append(f"*{topic['name']}")
        elif verb == "writes repartition topic":
            writes.setdefault(number, []).append(rest)
        elif verb in ("reads topic", "reads topics that match"):
            word = "" if verb == "reads topic" else PATTERN
            reads.setdefault(number, []).append(f"{word}{rest}")
    for line in lines:
        if (found := _SPREAD.fullmatch(line)) and found["name"] in stores:
            facts = stores[found["name"]]
            assert isinstance(facts.layout, StoreLayout)
            layout = facts.layout._replace(key=f"{facts.layout.key}, spread by {found['by']}")
            stores[found["name"]] = replace(facts, layout=layout)
    return ProgramFacts(
        stores=stores,
        repartition=repartition,
        subtopologies={
            number: reading(reads.get(number, ()), tuple(writes.get(number, ())))
            for number in sorted({*reads, *writes})
        },
        tables=tables,
        nodes=(),
        topics=frozenset(topic for read in reads.values() for topic in read if is_store(topic)),
        fingerprint=digest(lines),
    )


def _layout_in(store: re.Match[str]) -> StoreLayout:
    size = f" of {store['size']} ms" if store["size"] else ""
    return StoreLayout(f"{store['kind']}{size}", store["key"], store["value"])


def difference_of_lines(theirs: Sequence[str], mine: Sequence[str]) -> str:
    """What a group that runs a program with the `fingerprint` ``theirs`` refuses in this one."""
    found = changes(facts_of_lines(theirs), facts_of_lines(mine))
    known = [one for one in found if one.effect >= Effect.MIGRATION and one.kind != "program"]
    return listing(known) or differing_lines(mine, theirs)
