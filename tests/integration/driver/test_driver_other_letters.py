"""A JVM in a language with small and capital letters of its own: what goes by them is refused, and
the JVM stays what it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import functions as pyspark_functions

from everflow import StreamsBuilder, TopologyError, agg, serdes
from everflow.dsl.streams import KStream
from everflow.spark.session import get_session, letters_of, note_letters

pytestmark = pytest.mark.spark

F: Any = pyspark_functions
TEXT = serdes.string()


@pytest.fixture(params=["tr", "az", "lt"])
def language(request: pytest.FixtureRequest) -> Iterator[str]:
    session = get_session()
    jvm: Any = session._jvm
    locale = jvm.java.util.Locale
    before = locale.getDefault()
    try:
        locale.setDefault(locale.forLanguageTag(request.param))
        note_letters(session)
        yield request.param
        assert locale.getDefault().getLanguage() == request.param
    finally:
        locale.setDefault(before)
        note_letters(session)


BY_LANGUAGE: dict[str, Callable[[KStream], Any]] = {
    "upper": lambda s: s.map_values(F.upper("value")),
    "lower": lambda s: s.filter(F.length(F.lower("value")) > 1),
    "initcap": lambda s: s.select_key(F.initcap("value")),
    "ilike": lambda s: s.filter(F.col("value").ilike("éi")),
    "SQL": lambda s: s.map_values(F.expr("struct(concat('a', ucase(value)) as a)")),
    "an aggregate": lambda s: s.group_by_key().aggregate(store="s", n=agg.max(F.lcase("value"))),
}


def test_what_goes_by_the_language_is_refused_and_the_rest_is_not(language: str) -> None:
    for place in BY_LANGUAGE.values():
        with pytest.raises(TopologyError, match=r"user\.language=en") as raised:
            place(StreamsBuilder().stream("in", key=TEXT, value=TEXT))
        assert repr(language) in str(raised.value)
        assert raised.value.where is not None
    StreamsBuilder().stream("in", key=TEXT, value=TEXT).map_values(F.reverse("value"))


def test_elsewhere_nothing_is_refused() -> None:
    assert letters_of() == ""
    for place in BY_LANGUAGE.values():
        place(StreamsBuilder().stream("in", key=TEXT, value=TEXT))
