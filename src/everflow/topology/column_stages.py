"""How Columns that call Python functions are computed: by stages, over all columns made so far.

Spark's optimiser cuts a selection there: what the functions read, the functions, what is made of
their results. `everflow.spark.python_calls` finds the stages; a worker runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa


@dataclass(frozen=True)
class Compute:
    """Spark's code makes the columns ``made`` in the instance's JVM, where it has this
    ``number``."""

    number: int
    made: pa.Schema


@dataclass(frozen=True)
class Pick:
    """Columns as they are, or fields of structs: each by its column and the ordinals inside."""

    paths: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Chain:
    """``g(f(x))``: functions with the Spark types of their results, the innermost first.
    ``arguments``: the name of each (None: by position) and its column among the inputs."""

    functions: tuple[tuple[Callable[..., Any], Any], ...]
    arguments: tuple[tuple[str | None, int], ...]


@dataclass(frozen=True, kw_only=True)
class Call:
    """Functions of one kind over the columns behind the first ``kept``. Their results ``made``
    replace these."""

    eval_type: int
    """PySpark's `PythonEvalType`."""
    chains: tuple[Chain, ...]
    kept: int
    settings: Mapping[str, str]
    """What PySpark's workers are told of the session."""
    given: str
    """The inputs' types, Spark's JSON of a struct."""
    made: pa.Schema
    pickled: tuple[int, int] | None = None
    """The JVM's numbers for pickled arguments and for results; None where both are Arrow."""


Stage = Compute | Pick | Call
