"""Tells whoever writes a name of Kafka Streams' Java API or of PySpark what it is called here.

    FOREIGN_NAMES["KStream"]["leftJoin"]

`Telling` gives that to a class, `telling` to a module. What is not in the tables gets the nearest
name there is. The tables are `kafka_streams`, `kafka_streams_tables`, `kafka_streams_processors`,
`kafka_streams_settings` and `pyspark`, made of `entries`; the guide's pages for newcomers are made
of them, too.
May import layer 0. Pure; it runs where somebody wrote the name.
"""

from __future__ import annotations

import difflib
import importlib.util
import sys
from abc import ABCMeta
from collections.abc import Callable, Iterable, Mapping
from types import FrameType, MappingProxyType
from typing import TYPE_CHECKING, Any

from everflow.errors import UnknownImportError, UnknownNameError
from everflow.foreign_names import (
    kafka_streams,
    kafka_streams_processors,
    kafka_streams_settings,
    kafka_streams_tables,
    pyspark,
)
from everflow.foreign_names.entries import ForeignName, Names
from everflow.location import user_line
from everflow.moves import some

KAFKA_STREAMS: Mapping[str, Names] = MappingProxyType(
    {
        "StreamsBuilder": kafka_streams.STREAMS_BUILDER,
        "KStream": kafka_streams.KSTREAM,
        "KTable": kafka_streams.KTABLE,
        "KGroupedStream": kafka_streams.KGROUPED_STREAM,
        "TimeWindowedKStream": kafka_streams.WINDOWED_KSTREAM,
        "SessionWindowedKStream": kafka_streams.WINDOWED_KSTREAM,
        "KGroupedTable": kafka_streams_tables.KGROUPED_TABLE,
        "GlobalKTable": kafka_streams_tables.GLOBAL_KTABLE,
        "CogroupedKStream": kafka_streams_tables.COGROUPED_KSTREAM,
        "BranchedKStream": kafka_streams.BRANCHED_KSTREAM,
        "Suppressed": kafka_streams_tables.SUPPRESSED,
        "BufferConfig": kafka_streams_tables.BUFFER_CONFIG,
        "EmitStrategy": kafka_streams_tables.EMIT_STRATEGY,
        "Materialized": kafka_streams_tables.MATERIALIZED,
        "JoinWindows": kafka_streams.JOIN_WINDOWS,
        "TimeWindows": kafka_streams.TIME_WINDOWS,
        "SlidingWindows": kafka_streams.SLIDING_WINDOWS,
        "SessionWindows": kafka_streams.SESSION_WINDOWS,
        "Stores": kafka_streams_processors.STORES,
        "ProcessorContext": kafka_streams_processors.PROCESSOR_CONTEXT,
        "Topology": kafka_streams.TOPOLOGY,
        "KafkaStreams": kafka_streams.KAFKA_STREAMS,
        "StreamsConfig": kafka_streams_settings.STREAMS_CONFIG,
        "TopologyTestDriver": kafka_streams.TOPOLOGY_TEST_DRIVER,
        "InputTopic": kafka_streams.INPUT_TOPIC,
        "OutputTopic": kafka_streams.OUTPUT_TOPIC,
        "serdes": kafka_streams.SERDES,
        "everflow": kafka_streams.EVERFLOW,
    }
)
"""Class or module of ours -> name in Kafka Streams' Java API -> what it is here."""

PYSPARK: Mapping[str, Names] = MappingProxyType(
    {
        "StreamsBuilder": pyspark.STREAMS_BUILDER,
        "KStream": pyspark.KSTREAM,
        "KTable": pyspark.KTABLE,
        "KGroupedStream": pyspark.KGROUPED_STREAM,
        "TimeWindowedKStream": pyspark.WINDOWED_KSTREAM,
        "SessionWindowedKStream": pyspark.WINDOWED_KSTREAM,
        "Topology": pyspark.TOPOLOGY,
        "KafkaStreams": pyspark.KAFKA_STREAMS,
        "agg": pyspark.AGG,
        "everflow": pyspark.EVERFLOW,
    }
)
"""Class or module of ours -> name in PySpark -> what it is here."""

FOREIGN_NAMES: Mapping[str, Names] = MappingProxyType(
    {
        owner: MappingProxyType({**PYSPARK.get(owner, {}), **KAFKA_STREAMS.get(owner, {})})
        for owner in dict.fromkeys((*KAFKA_STREAMS, *PYSPARK))
    }
)
"""Both tables as one; where both know a name, Kafka Streams' meaning holds."""


OWN = frozenset(
    {
        "KStream.derived",
        "KStream.repartitioned",
        "KGroupedStream.grouped",
        "KGroupedStream.stream",
        "TimeWindows.expand",
        "TimeWindows.is_open",
        "Topology.consumers",
        "Topology.node",
        "Topology.repartition_topics",
        "StreamsConfig.admin",
        "StreamsConfig.assignment",
        "StreamsConfig.batches",
        "StreamsConfig.consumer",
        "StreamsConfig.given",
        "StreamsConfig.main_consumer",
        "StreamsConfig.producer",
        "StreamsConfig.shared_client",
        "StreamsConfig.topic",
        "InputTopic.rewind",
        "InputTopic.written",
        "KGroupedStream.edge",
        "KGroupedStream.graph",
        "KGroupedTable.edge",
        "KGroupedTable.graph",
        "KGroupedTable.grouped",
        "CogroupedKStream.graph",
        "TimeWindowedCogroupedKStream.graph",
        "SessionWindowedCogroupedKStream.graph",
        "TimeWindowedKStream.graph",
        "SessionWindowedKStream.graph",
        "BranchedKStream.graph",
        "agg.result_type",
    }
)
"""Of public classes and modules what other modules of everflow call: no programs, so nobody is told
of it."""


def explain(owner: str, name: str, known: Iterable[str]) -> str:
    """What to say of ``name`` to whoever looks for it on ``owner``, which has the names
    ``known``."""
    entry = entry_of(owner, name)
    if entry is not None:
        return f"{owner} has no {name}: {entry}"
    public = [
        other for other in known if not other.startswith("_") and f"{owner}.{other}" not in OWN
    ]
    here = spelled_here(name, public)
    if here is not None:
        return f"{owner} has no {name}: it is {here} here"
    spelled = {_plain(other): other for other in public}
    near = difflib.get_close_matches(_plain(name), spelled, n=1, cutoff=0.6)
    hint = f"did you mean {spelled[near[0]]}?" if near else f"it has {some(sorted(public), 12)}"
    return f"{owner} has no {name}; {hint}"


def spelled_here(name: str, known: Iterable[str]) -> str | None:
    """The name among ``known`` that is ``name`` in snake_case (``fetchAll``: ``fetch_all``), None
    if there is none."""
    return next((other for other in known if _plain(other) == _plain(name)), None)


def entry_of(owner: str, name: str) -> ForeignName | None:
    """What ``name`` of another API is on ``owner``: the entry as it is written, or in snake_case or
    other capitals."""
    names = FOREIGN_NAMES.get(owner, {})
    if name in names:
        return names[name]
    return next((entry for other, entry in names.items() if _plain(other) == _plain(name)), None)


def _plain(name: str) -> str:
    return name.replace("_", "").replace(".", "").lower()


def _unknown(owner: str, name: str, known: Iterable[str]) -> AttributeError:
    """Python asks for names of its own (``__copy__``, IPython's, pickle's), and for what a getter
    could not give."""
    known = list(known)
    if name.startswith("_") or name in known:
        return AttributeError(f"{owner!r} object has no attribute {name!r}")
    return UnknownNameError(explain(owner, name, known), name=name, where=user_line())


class TellingClass(ABCMeta):
    """The class of `Telling` classes."""

    if not TYPE_CHECKING:  # a type checker knows the names

        def __getattr__(cls, name: str) -> Any:
            raise _unknown(cls.__name__, name, dir(cls))


class Telling(metaclass=TellingClass):
    """A class whose objects, and itself, answer an unknown name with what it is called here: an
    UnknownNameError, which is an AttributeError too, so that ``hasattr``, ``copy`` and notebooks
    find nothing unusual."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise _unknown(type(self).__name__, name, dir(type(self)))


def telling(module: str, names: Callable[[], Iterable[str]]) -> Callable[[str], Any]:
    """A module's ``__getattr__``: the same for ``import module; module.Name`` and ``from module
    import Name``.

    ``names`` gives the module's public names, when they are needed.
    """

    def __getattr__(name: str) -> Any:
        owner = module.rpartition(".")[2]
        if (
            _in_import_statement()
            and not name.startswith("_")
            and importlib.util.find_spec(f"{module}.{name}") is None
        ):
            # An AttributeError would become Python's own "cannot import name", without a word of
            # ours.
            raise UnknownImportError(explain(owner, name, names()), where=user_line())
        raise _unknown(owner, name, names())

    return __getattr__


def _in_import_statement() -> bool:
    """Whether the module is asked by ``from module import ...``, which looks names up in a function
    of importlib's."""
    caller: FrameType | None = sys._getframe(1)
    while caller is not None and caller.f_code.co_name == "__getattr__":
        caller = caller.f_back
    return caller is not None and caller.f_code.co_name == "_handle_fromlist"
