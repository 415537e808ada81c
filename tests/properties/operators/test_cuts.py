"""Every operator with state gives the same results, in the same order, and leaves the same in its
stores, wherever a script of records is cut into micro-batches.

The programs are those of the guide's tables (`semantics.families`): one topology of all of them,
every intermediate result wanted.
"""

import random
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from everflow import StreamsBuilder, serdes
from everflow.state.changelog import TIMESTAMP_BYTES
from everflow.testing import InputTopic, TopologyTestDriver
from semantics.families import PAGES, STATELESS
from semantics.probes import TEXT, Family, built, with_own_names

KEYS = ["a", "b", "b\0", "a", "", None]
LENGTH = 14
FAMILIES = {
    name: family
    for page in PAGES.values()
    for name, family in page.items()
    if family is not STATELESS
}
FOREIGN = re.compile(r"^table\.\w*join\(.*on=")
"""Of a foreign key's results those between are not fixed (docs/differences.md)."""

Record = tuple[str, str | None, int | None, int]
"""Side, key, value and time."""


class Programs:
    """All of them in one driver, which is emptied for each script."""

    def __init__(self) -> None:
        builder = StreamsBuilder()
        self.inputs: dict[str, list[tuple[str, Family]]] = {"left": [], "right": []}
        self.outputs: dict[str, bool] = {}
        for name, family in FAMILIES.items():
            for at, source in enumerate(family.programs.values()):
                if "global_table" in source:  # which is filled before all records of a batch
                    continue
                self._add(builder, family, source, f"{name}-{at}")
        self.driver = TopologyTestDriver(builder.build(), emit_every_update=True)
        self.topics: dict[str, InputTopic] = {
            topic: self.driver.create_input_topic(topic, TEXT, family.value)
            for listed in self.inputs.values()
            for topic, family in listed
        }

    def _add(self, builder: StreamsBuilder, family: Family, source: str, prefix: str) -> None:
        made = built(builder, family, with_own_names(source, prefix), prefix)
        for side, listed in made.sides.items():
            self.inputs[side] += [(topic, family) for topic in listed]
        self.outputs[made.output] = FOREIGN.match(source) is not None

    def run(self, script: Sequence[Record], cuts: Sequence[int]) -> tuple[Any, Any]:
        """Results by topic, and stores by name."""
        self.driver.reset()
        for begin, end in zip([0, *cuts], [*cuts, len(script)], strict=True):
            self.driver.pipe_batch(dict(self._piped(script[begin:end])))
        results = {}
        for topic, only_last in self.outputs.items():
            out = self.driver.create_output_topic(topic, serdes.bytes_(), serdes.bytes_())
            listed = [(one.key, one.value, one.timestamp) for one in out.read_records()]
            results[topic] = {one[0]: one[1] for one in listed} if only_last else listed
        return results, {
            name: self._content(name)
            for name in self.driver._stores
            if not name.endswith("-ttl")  # what is looked at for nothing may stay
        }

    def _content(self, name: str) -> list[tuple[bytes, bytes]]:
        """Of an operator's own formats without times, which nobody reads there."""
        own = self.driver._kept[name].key_serde == serdes.bytes_()
        found = self.driver._stores[name].range(None, None)
        return [(key, entry[TIMESTAMP_BYTES:] if own else entry) for key, entry in found]

    def _piped(self, records: Sequence[Record]) -> Iterator[tuple[InputTopic, list[Any]]]:
        for side, listed in self.inputs.items():
            for topic, family in listed:
                yield (
                    self.topics[topic],
                    [
                        (key, _value(family, value), time)
                        for of, key, value, time in records
                        if of == side
                    ],
                )


def _value(family: Family, value: int | None) -> Any:
    return value if value is None or family.value is not TEXT else f"v{value}"


def drawn(chance: random.Random) -> list[Record]:
    """Time goes on, with steps back and leaps. The sides take turns as they do in one micro-batch,
    where the earlier of the next ones comes first, so that all cuts have one order."""
    sides: dict[str, list[Record]] = {"left": [], "right": []}
    now = 10
    for _ in range(LENGTH):
        now += chance.choice([0, 1, 2, 3, 5, 9, 30])
        side = chance.choice(["left", "left", "right"])
        time = max(0, now - chance.choice([0, 0, 0, 0, 4, 8, 15, 60]))
        key, value = chance.choice(KEYS), chance.choice([1, 2, -1, 5, None])
        # No time is that of both sides.
        sides[side].append((side, key, value, 2 * time + (side == "right")))
    script = []
    while any(sides.values()):
        first = min((listed for listed in sides.values() if listed), key=lambda one: one[0][3])
        script.append(first.pop(0))
    return script


@pytest.fixture(scope="module")
def programs() -> Iterator[Programs]:
    made = Programs()
    yield made
    made.driver.close()


def require_the_same(
    programs: Programs, script: Sequence[Record], cuts: Sequence[int], others: Sequence[int]
) -> None:
    wanted, found = programs.run(script, cuts), programs.run(script, others)
    for kind in (0, 1):
        for name, one in wanted[kind].items():
            assert found[kind][name] == one, (name, script, cuts, others)


@pytest.mark.parametrize("seed", range(2))
def test_results_and_stores_do_not_depend_on_the_cut(programs: Programs, seed: int) -> None:
    chance = random.Random(seed)
    require_the_same(programs, drawn(chance), sorted(chance.sample(range(1, LENGTH), 3)), [])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 140))
def test_results_and_stores_are_as_of_record_after_record(programs: Programs, seed: int) -> None:
    chance = random.Random(seed)
    script, each = drawn(chance), range(1, LENGTH)
    require_the_same(programs, script, each, sorted(chance.sample(each, chance.randint(0, 5))))
