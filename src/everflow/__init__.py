"""everflow: Kafka Streams for PySpark. Public names, imported on first use, so that a worker or ``--help`` stays light.

    from everflow import StreamsBuilder, KafkaStreams, TimeWindows, agg, serdes
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from everflow import errors, serdes
    from everflow.config import StreamsConfig
    from everflow.dsl.grouped import KGroupedStream, TimeWindowedKStream
    from everflow.dsl.kstream import KStream
    from everflow.dsl.ktable import KTable
    from everflow.dsl.streams_builder import StreamsBuilder
    from everflow.errors import ConfigError, EverflowError, SetupError, TopologyError
    from everflow.operators import agg
    from everflow.runtime.kafka_streams import KafkaStreams
    from everflow.topology.graph import Topology
    from everflow.windows import TimeWindows

__version__ = "0.1.0"

__all__ = [
    "ConfigError",
    "EverflowError",
    "KGroupedStream",
    "KStream",
    "KTable",
    "KafkaStreams",
    "SetupError",
    "StreamsBuilder",
    "StreamsConfig",
    "TimeWindowedKStream",
    "TimeWindows",
    "Topology",
    "TopologyError",
    "agg",
    "errors",
    "serdes",
]

_MODULE_OF = {
    "ConfigError": "everflow.errors",
    "EverflowError": "everflow.errors",
    "KGroupedStream": "everflow.dsl.grouped",
    "KStream": "everflow.dsl.kstream",
    "KTable": "everflow.dsl.ktable",
    "KafkaStreams": "everflow.runtime.kafka_streams",
    "SetupError": "everflow.errors",
    "StreamsBuilder": "everflow.dsl.streams_builder",
    "StreamsConfig": "everflow.config",
    "TimeWindowedKStream": "everflow.dsl.grouped",
    "TimeWindows": "everflow.windows",
    "Topology": "everflow.topology.graph",
    "TopologyError": "everflow.errors",
}
_MODULES = {"agg": "everflow.operators.agg", "errors": "everflow.errors", "serdes": "everflow.serdes"}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    if name in _MODULE_OF:
        return getattr(importlib.import_module(_MODULE_OF[name]), name)
    raise AttributeError(f"module 'everflow' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
