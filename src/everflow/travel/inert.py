"""Makes it harmless that a worker imports a program: what only the driver has takes every call.

A worker rarely imports a program's modules, since they travel by value; it does for an import
inside a function of a module that the driver never imported, for an attribute that no function
names, and for an installed package. Then ``StreamsBuilder()``, Columns and a Spark session at
module level must neither start a second Spark nor fail.
"""

from __future__ import annotations

from typing import Any

from everflow.errors import FatalError

_in_worker: list[bool] = []


def in_worker() -> bool:
    """Whether this process is a Python worker that opened a parcel."""
    return bool(_in_worker)


def worker_imports_harmlessly() -> None:
    """From now on this process is a worker. PySpark's Columns and sessions find a Spark that takes
    every call. Idempotent."""
    if in_worker():
        return
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    SparkContext._active_spark_context = Inert()  # type: ignore[assignment]
    SparkSession.Builder.getOrCreate = lambda _: Inert()  # type: ignore[method-assign,assignment,return-value]
    _in_worker.append(True)


class Inert:
    """Takes every call, attribute and item, and gives itself; empty when iterated."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_: Any, **__: Any) -> Any:
        return self

    def __getitem__(self, _: Any) -> Any:
        return self

    def __iter__(self) -> Any:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __bool__(self) -> bool:
        return True

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __lt__(self, _: object) -> bool:
        return False

    __gt__ = __le__ = __ge__ = __lt__


class InertInstance(Inert):
    """A `KafkaStreams` that a worker made while it imported a program: it may be there, it must not
    start."""

    def start(self, *_: Any, **__: Any) -> None:
        """Refused with the cure."""
        raise FatalError(
            "a Spark Python worker imported a module that starts a KafkaStreams at once; put that "
            "line under "
            "`if __name__ == '__main__':` or into a function, so that the module can be imported "
            "without running it",
            code="EF-PROGRAM-IN-WORKER",
        )

    run = start
