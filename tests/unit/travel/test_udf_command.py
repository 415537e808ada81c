"""A function that PySpark has pickled for a UDF is one of the program again."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

from pyspark import serializers
from pyspark.sql.types import DoubleType

from everflow.spark.columns import function_of
from everflow.travel.parcel import Parcel

SEEN: list[object] = []
noted: Callable[[object], None] = lambda value: SEEN.append(value)  # noqa: E731  # is pickled by value, as what a decorator has wrapped is


def read_back(function: Callable[..., Any]) -> Callable[..., Any]:
    pickling: Any = serializers  # its classes are typed in Spark 4.2, and no longer in 4.3
    serializer = pickling.CloudPickleSerializer()
    found, kind = function_of(serializer.dumps((function, DoubleType())))
    assert kind == DoubleType()
    return found


def test_it_has_its_module_s_variables_and_the_module_stays_as_it_was() -> None:
    before = dict(globals())
    found = read_back(noted)
    found(1)
    assert found is not noted
    assert SEEN == [1]
    assert globals() == before
    assert before["__builtins__"] in (builtins, vars(builtins))


def test_functions_inside_it_have_them_too() -> None:
    def outer(value: object) -> None:
        (lambda: noted(value))()

    SEEN.clear()
    read_back(outer)(2)
    assert SEEN == [2]


def test_a_closure_has_what_it_held() -> None:
    held = [3]
    found = read_back(lambda: held)
    held.append(4)
    assert found() == [3]


def test_it_shares_variables_with_other_functions_of_the_program_in_a_worker() -> None:
    SEEN.clear()
    udf, others = Parcel.of([read_back(noted), lambda: SEEN]).copy()
    udf(5)
    assert others() == [5]
    assert SEEN == []
