"""A Column analysed at an earlier start is what it was, without a start of Spark SQL."""

import dataclasses
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Column
from pyspark.sql import functions as F

from everflow.errors import TopologyError
from everflow.spark import expressions, session
from everflow.spark.expressions import MOST_ADDED, Analysis, analyse, keep, kept, key_of
from everflow.topology.graph import ColumnExpr
from unit.spark.test_expressions import ACCEPTED, EDGE

pytestmark = pytest.mark.spark
SAID = Analysis(schema="{}", plan="[]", sql="key", deterministic=True)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An own cache, in a Spark that only everflow has a say in."""
    session.get_session()
    monkeypatch.setattr(expressions, "cache_root", lambda: tmp_path)
    monkeypatch.setattr(expressions, "plain_context", session.get_context)
    monkeypatch.setattr(expressions, "_added", iter(range(MOST_ADDED)))
    return tmp_path / "columns"


@pytest.fixture
def next_start(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Begins one: Spark SQL has not been asked for, and whoever asks for it is told off."""

    def no_session() -> Any:
        raise AssertionError("Spark SQL is started")

    def begin() -> None:
        monkeypatch.setattr(expressions, "sql_runs", lambda: False)
        monkeypatch.setattr(expressions, "get_session", no_session)

    return begin


def _without_column(found: ColumnExpr) -> ColumnExpr:
    return dataclasses.replace(found, column=None)


@pytest.mark.parametrize("name", ACCEPTED)
def test_a_kept_column_is_what_the_analyser_says(name: str, next_start: Callable[[], None]) -> None:
    column = ACCEPTED[name][0]()  # once: in a process the variables of lambdas are numbered
    first = analyse(column, EDGE, None)
    next_start()
    assert _without_column(analyse(column, EDGE, None)) == _without_column(first)


def test_what_reads_the_same_and_is_not_is_asked_for(next_start: Callable[[], None]) -> None:
    """Spark shows all of these as ``1``, or ``1.0``."""
    alike: list[Column] = [F.lit("1"), F.lit(1), F.lit(True), F.lit(1.0), F.lit(Decimal("1.0"))]
    keys = {key_of(column, "schema") for column in alike}
    assert len(keys) == len(alike)
    assert None not in keys
    assert key_of(F.lit(1), "schema") == key_of(F.lit(1), "schema")
    assert key_of(F.lit(1), "schema") != key_of(F.lit(1), "other schema")
    analyse(F.lit(1), EDGE, None)
    next_start()
    with pytest.raises(AssertionError, match="Spark SQL is started"):
        analyse(F.lit("1"), EDGE, None)


@pytest.mark.parametrize(
    "column", [lambda: F.rand(), lambda: F.col("value.a") > 0], ids=["refused", "of another type"]
)
def test_a_refused_column_is_refused_again(column: Callable[[], Column], folder: Path) -> None:
    for _ in range(2):
        with pytest.raises(TopologyError):
            analyse(column(), EDGE, None, expected=pa.string())
    assert not folder.exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"plan": "[]"}', '{"plan": 1}', "\x00" * 80])
def test_a_broken_file_is_as_none(text: str, folder: Path, next_start: Callable[[], None]) -> None:
    next_start()
    keep("key", SAID)
    assert kept("key") == SAID
    (folder / "key.json").write_text(text)
    assert kept("key") is None
    (folder / "key.json").write_text(json.dumps({**dataclasses.asdict(SAID), "more": 1}))
    assert kept("key") is None


def test_a_spark_of_a_user_is_always_asked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expressions, "plain_context", lambda: None)
    analyse(F.col("value.a"), EDGE, None)
    assert not folder.exists()


def test_who_has_started_sql_asks_it() -> None:
    """What there is to say about the session is said then."""
    keep("key", SAID)
    assert kept("key") is None


def test_only_settings_of_everflows_own_make_a_plain_spark() -> None:
    ours = session.context_settings("")

    def plain(**more: str) -> bool:
        conf = {**ours, **{key.replace("_", "."): value for key, value in more.items()}}
        return session.is_plain(conf)

    assert plain()
    assert plain(spark_app_name="shop")
    for setting in ("spark_sql_extensions", "spark_sql_session_timeZone", "spark_jars"):
        assert not plain(**{setting: "x"})


def test_old_files_make_room(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expressions, "MOST_KEPT", 10)
    for number in range(40):
        keep(f"key-{number}", SAID)
    names = {file.stem for file in folder.iterdir()}
    assert len(names) <= 11
    assert "key-39" in names


def test_an_unwritable_folder_is_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(expressions, "cache_root", lambda: tmp_path / "file")
    keep("key", SAID)
    assert analyse(F.col("value.a"), EDGE, None).uses == {"value"}
