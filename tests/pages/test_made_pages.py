"""Pages made of the code are those of today, and know every name of the other APIs."""

import inspect
import re
from collections import Counter
from pathlib import Path

import pytest

from configuration_page import FIELDS, PREFIXES, TEXTS
from everflow import (
    KGroupedStream,
    KStream,
    Materialized,
    ReadOnlyKeyValueStore,
    ReadOnlySessionStore,
    ReadOnlyWindowStore,
    StreamsBuilder,
    StreamsConfig,
)
from everflow.config import (
    CLIENT_PREFIXES,
    SHARED_PREFIXES,
    TAG_PREFIX,
    WITHOUT_EFFECT,
    dotted_name,
)
from everflow.dsl.streams import BranchedKStream
from everflow.foreign_names import PYSPARK, names_of
from made_pages import GUIDE, PAGES, made, marked

# The public methods of Kafka Streams 4.x, by the class here that stands in for theirs.
# Of Structured Streaming: what a DataFrame, its grouping, its writer and its query are asked for.
SPARK = {
    "KStream": "select selectExpr withColumn where groupBy union join withWatermark dropDuplicates "
    "dropDuplicatesWithinWatermark "
    "writeStream foreachBatch trigger outputMode option format queryName show collect orderBy "
    "printSchema explode "
    "applyInPandasWithState transformWithStateInPandas checkpoint cache",
    "StreamsBuilder": "readStream format option options subscribe schema load sql createDataFrame",
    "KGroupedStream": "agg sum avg min max applyInPandasWithState",
    "KafkaStreams": (
        "awaitTermination stop isActive status lastProgress recentProgress exception "
        "processAllAvailable id name"
    ),
}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_the_one_that_the_code_gives(name: str) -> None:
    text = (GUIDE / name).read_text()
    assert marked(text) == list(dict.fromkeys(marked(text)))
    assert set(marked(text)) == set(PAGES[name])
    assert text == made(text, PAGES[name]), "run .venv/bin/python tests/made_pages.py"


@pytest.mark.parametrize("owner", SPARK)
def test_no_method_of_structured_streaming_is_missing(owner: str) -> None:
    assert [name for name in SPARK[owner].split() if name not in names_of(PYSPARK)[owner]] == []


def _rows(title: str) -> list[list[str]]:
    """Cells of the table below a heading of the page for who comes from Kafka Streams."""
    text = (
        (GUIDE / "coming-from-kafka-streams.md")
        .read_text()
        .split(f"### {title}\n")[1]
        .split("\n#")[0]
    )
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    assert rows
    return rows


def test_the_keywords_that_stand_for_option_objects_are_there() -> None:
    classes = (StreamsBuilder, KStream, KGroupedStream, BranchedKStream)
    methods = [
        method
        for one in classes
        for name, method in inspect.getmembers(one, callable)
        if not name.startswith("_")
    ]
    methods.append(Materialized)
    known = {name for method in methods for name in inspect.signature(method).parameters}
    assert {
        word for row in _rows("Option objects") for word in re.findall(r"\b(\w+)=", row[1])
    } <= known


@pytest.mark.parametrize(
    "store", [ReadOnlyKeyValueStore, ReadOnlyWindowStore, ReadOnlySessionStore]
)
def test_the_queries_that_are_named_are_there(store: type) -> None:
    (here,) = [row[1] for row in _rows("Interactive queries") if store.__name__ in row[0]]
    names = re.findall(r"`(\w+)`", here)
    assert names
    assert [name for name in names if not hasattr(store, name)] == []


BASE = {"application_id": "app", "bootstrap_servers": "broker:9092"}


def test_every_key_has_one_text_and_every_text_a_key() -> None:
    written = Counter(name for texts in TEXTS.values() for name in texts)
    assert written == Counter(FIELDS.keys()), "write the key's text in tests/settings.yaml"


def test_texts_say_something_and_can_stand_in_a_table() -> None:
    for texts in TEXTS.values():
        for name, text in texts.items():
            assert len(text) in (1, 2), name
            assert len(text[0].split()) >= 3, name
            assert not set("|\n") & set("".join(text)), name


def test_every_beginning_of_a_clients_key_is_explained() -> None:
    assert set(PREFIXES) == {*CLIENT_PREFIXES, *SHARED_PREFIXES, TAG_PREFIX}


@pytest.mark.parametrize("name", sorted(FIELDS))
def test_every_key_can_be_written_as_the_page_writes_it(name: str) -> None:
    value = getattr(StreamsConfig(**BASE), name)
    assert getattr(StreamsConfig(**{**BASE, name: value}), name) == value
    dotted = {dotted_name(key): given for key, given in {**BASE, name: value}.items()}
    assert getattr(StreamsConfig(**dotted), name) == value


def test_who_sets_a_key_without_effect_is_told_what_the_page_says() -> None:
    shown = (GUIDE / "configuration.md").read_text()
    for name, instead in WITHOUT_EFFECT.items():
        config = StreamsConfig(**BASE, **{name: getattr(StreamsConfig(**BASE), name)})
        assert [instead in warning for warning in config.warnings()] == [True]
        assert instead in shown


ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "SCALING.md").read_text()


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def first_cells(title: str) -> list[list[str]]:
    rows = [
        line.strip("| ").split(" | ")
        for line in section(title).splitlines()
        if line.startswith("| `")
    ]
    assert rows
    return rows


@pytest.mark.parametrize("row", first_cells("Settings"), ids=lambda row: row[0])
def test_settings_exist_with_the_defaults_named(row: list[str]) -> None:
    key, default = row[0].strip("`"), row[1]
    if key == "client.tag.NAME":
        assert StreamsConfig(
            **{"application.id": "a", "bootstrap.servers": "b:1", "client.tag.NAME": "x"}
        ).tags() == {"NAME": "x"}
        return
    fields = StreamsConfig.__dataclass_fields__
    assert key.replace(".", "_") in fields
    if default.startswith("("):
        assert fields[key.replace(".", "_")].default in ("", None)
    else:
        assert str(fields[key.replace(".", "_")].default) == default


def test_the_example_is_the_one_that_is_tested() -> None:
    (code,) = re.findall(r"```python\n(    def assign.*?)```", PAGE, re.DOTALL)
    assert code in (ROOT / "examples" / "own_assignor.py").read_text()
