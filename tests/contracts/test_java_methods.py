"""Every public method of Kafka Streams' DSL and processor API, from its jar, is in the page."""

import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from everflow.jvm import resolve_jars

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "coming-from-kafka-streams.md"
CLASSES = {
    "org.apache.kafka.streams": "StreamsBuilder",
    "org.apache.kafka.streams.kstream": (
        "KStream KTable GlobalKTable KGroupedStream KGroupedTable TimeWindowedKStream "
        "SessionWindowedKStream CogroupedKStream TimeWindowedCogroupedKStream "
        "SessionWindowedCogroupedKStream BranchedKStream Branched Consumed Produced Grouped Joined "
        "StreamJoined TableJoined Repartitioned Named Printed Materialized Suppressed "
        "Suppressed$BufferConfig EmitStrategy TimeWindows SlidingWindows SessionWindows "
        "JoinWindows UnlimitedWindows Windowed"
    ),
    "org.apache.kafka.streams.state": (
        "Stores StoreBuilder KeyValueStore WindowStore SessionStore VersionedKeyValueStore "
        "ReadOnlyKeyValueStore ReadOnlyWindowStore ReadOnlySessionStore"
    ),
    "org.apache.kafka.streams.processor.api": (
        "ProcessorContext FixedKeyProcessorContext ProcessingContext Record FixedKeyRecord "
        "RecordMetadata Processor FixedKeyProcessor ProcessorSupplier"
    ),
}
NAMES = [f"{package}.{name}" for package, names in CLASSES.items() for name in names.split()]
OF_ALL_OBJECTS = {"equals", "hashCode", "toString"}


@cache
def methods() -> dict[str, set[str]]:
    """The public methods of each class, by its full name."""
    javap = shutil.which("javap")
    if javap is None:
        pytest.skip("there is no javap: a JDK has it, a JRE has not")
    jars = os.pathsep.join(map(str, resolve_jars("oracle")))
    told = subprocess.run(
        [javap, "-public", "-cp", jars, *NAMES], capture_output=True, text=True, check=True
    ).stdout
    found: dict[str, set[str]] = {}
    for block in re.split(r"^Compiled from .*\n", told, flags=re.MULTILINE)[1:]:
        head, _, body = block.partition("{")
        declared = re.search(r"(?:class|interface) ([\w.$]+)", head)
        assert declared is not None, head
        name = declared[1]
        listed = set(re.findall(r"[\s.](\w+)\([^)]*\)[^(]*;", body))
        found[name] = listed - OF_ALL_OBJECTS - {re.split(r"[.$]", name)[-1]}
    return found


@cache
def written() -> dict[str, set[str]]:
    """What the page has of each class: the first cells of the table under its name, and of rows
    that begin with it, `Class.method`, `method`."""
    found: dict[str, set[str]] = {}
    under = ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("#"):
            under = line.strip("# ")
        if not line.startswith("|"):
            continue
        owner = under
        for said in re.findall(r"`([\w.]+)", line.split(" | ")[0]):
            named, _, method = said.rpartition(".")
            owner = named or owner
            found.setdefault(owner, set()).add(method)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_every_method_of_the_original_is_beside_ours(name: str) -> None:
    short = re.split(r"[.$]", name)[-1]
    assert methods()[name], f"{name} has no method: is it read at all?"
    assert methods()[name] - written().get(short, set()) == set(), f"of {short}, in {PAGE.name}"


def test_a_method_that_the_page_lacks_is_noticed() -> None:
    assert "mapValues" in methods()["org.apache.kafka.streams.kstream.KStream"]
    assert {"mapValues", "print"} <= written()["KStream"]
    assert "mapKeys" not in written()["KStream"]
