"""everflow is Kafka Streams for PySpark. Names are imported on first use: workers stay light.

    from everflow import StreamsBuilder, KafkaStreams, TimeWindows, agg, serdes

Public is what is here (`agg` is a module), and in `everflow.assignment`, `everflow.errors`,
`everflow.metrics`, `everflow.serdes` and `everflow.testing`; `tests/house/test_public_face.py` has
the list.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from everflow import errors, serdes
    from everflow.assignment.api import (
        ApplicationState,
        AssignmentError,
        KafkaStreamsAssignment,
        KafkaStreamsState,
        TaskAssignment,
        TaskAssignor,
    )
    from everflow.config import StreamsConfig
    from everflow.dsl.materialized import Materialized
    from everflow.dsl.stores import Stores
    from everflow.dsl.streams import (
        BranchedKStream,
        CogroupedKStream,
        GlobalKTable,
        KGroupedStream,
        KGroupedTable,
        KStream,
        KTable,
        SessionWindowedCogroupedKStream,
        SessionWindowedKStream,
        TimeWindowedCogroupedKStream,
        TimeWindowedKStream,
    )
    from everflow.dsl.streams_builder import StreamsBuilder
    from everflow.dsl.suppressed import BufferConfig, EmitStrategy, Suppressed
    from everflow.errors import ConfigError, EverflowError, SetupError, TopologyError
    from everflow.handlers import (
        ErrorHandlerContext,
        ExceptionHandler,
        Response,
        RetryOutages,
    )
    from everflow.instance.client_state import ClientState, IllegalStateError, StateListener
    from everflow.instance.describe import TaskStatus
    from everflow.instance.kafka_streams import KafkaStreams
    from everflow.instance.query.queries import KeyQueryMetadata, LagInfo, StreamsMetadata
    from everflow.instance.query.store_query import (
        ReadOnlyKeyValueStore,
        ReadOnlySessionStore,
        ReadOnlyVersionedStore,
        ReadOnlyWindowStore,
    )
    from everflow.instance.restore.listeners import (
        RestoreListener,
        RestoreProgress,
        StandbyUpdateListener,
        SuspendReason,
    )
    from everflow.instance.tasks.task import TaskRole, TaskState
    from everflow.instance.thread.stream_thread import StreamThreadExceptionResponse
    from everflow.operators import agg
    from everflow.operators.processors.processor import (
        BatchProcessor,
        Processor,
        ProcessorContext,
        PunctuationType,
        Record,
        RecordMetadata,
        ValueTransformer,
        punctuate,
    )
    from everflow.operators.processors.stores import (
        KeyValueStore,
        SessionStore,
        VersionedStore,
        WindowStore,
    )
    from everflow.records import TaskId, TopicPartition
    from everflow.snapshots.frames import diff_state, read_state
    from everflow.snapshots.query_errors import (
        InvalidStateStoreError,
        StaleStateError,
        StateElsewhereError,
        StateMovingError,
        StoreKindError,
        StoreNotFoundError,
    )
    from everflow.snapshots.state_source import EverflowStateSource
    from everflow.spark.session import session
    from everflow.state.store import VersionedRecord
    from everflow.topology.graph import (
        FailOnInvalidTimestamp,
        LogAndSkipOnInvalidTimestamp,
        RecordContext,
        TimestampExtractor,
        UsePartitionTimeOnInvalidTimestamp,
        WallclockTimestampExtractor,
    )
    from everflow.topology.program import Topology
    from everflow.windows import (
        CountWindows,
        JoinWindows,
        SessionWindows,
        SlidingWindows,
        TimeWindows,
        Windowed,
    )

__version__ = "0.1.0"

__all__ = [
    "ApplicationState",
    "AssignmentError",
    "BatchProcessor",
    "BranchedKStream",
    "BufferConfig",
    "ClientState",
    "CogroupedKStream",
    "ConfigError",
    "CountWindows",
    "EmitStrategy",
    "ErrorHandlerContext",
    "EverflowError",
    "EverflowStateSource",
    "ExceptionHandler",
    "FailOnInvalidTimestamp",
    "GlobalKTable",
    "IllegalStateError",
    "InvalidStateStoreError",
    "JoinWindows",
    "KGroupedStream",
    "KGroupedTable",
    "KStream",
    "KTable",
    "KafkaStreams",
    "KafkaStreamsAssignment",
    "KafkaStreamsState",
    "KeyQueryMetadata",
    "KeyValueStore",
    "LagInfo",
    "LogAndSkipOnInvalidTimestamp",
    "Materialized",
    "Processor",
    "ProcessorContext",
    "PunctuationType",
    "ReadOnlyKeyValueStore",
    "ReadOnlySessionStore",
    "ReadOnlyVersionedStore",
    "ReadOnlyWindowStore",
    "Record",
    "RecordContext",
    "RecordMetadata",
    "Response",
    "RestoreListener",
    "RestoreProgress",
    "RetryOutages",
    "SessionStore",
    "SessionWindowedCogroupedKStream",
    "SessionWindowedKStream",
    "SessionWindows",
    "SetupError",
    "SlidingWindows",
    "StaleStateError",
    "StandbyUpdateListener",
    "StateElsewhereError",
    "StateListener",
    "StateMovingError",
    "StoreKindError",
    "StoreNotFoundError",
    "Stores",
    "StreamThreadExceptionResponse",
    "StreamsBuilder",
    "StreamsConfig",
    "StreamsMetadata",
    "Suppressed",
    "SuspendReason",
    "TaskAssignment",
    "TaskAssignor",
    "TaskId",
    "TaskRole",
    "TaskState",
    "TaskStatus",
    "TimeWindowedCogroupedKStream",
    "TimeWindowedKStream",
    "TimeWindows",
    "TimestampExtractor",
    "TopicPartition",
    "Topology",
    "TopologyError",
    "UsePartitionTimeOnInvalidTimestamp",
    "ValueTransformer",
    "VersionedRecord",
    "VersionedStore",
    "WallclockTimestampExtractor",
    "WindowStore",
    "Windowed",
    "agg",
    "diff_state",
    "errors",
    "punctuate",
    "read_state",
    "serdes",
    "session",
]

_NAMES = {
    "assignment.api": (
        "ApplicationState AssignmentError KafkaStreamsAssignment KafkaStreamsState "
        "TaskAssignment TaskAssignor"
    ),
    "config": "StreamsConfig",
    "dsl.materialized": "Materialized",
    "dsl.stores": "Stores",
    "dsl.streams": (
        "BranchedKStream CogroupedKStream GlobalKTable KGroupedStream KGroupedTable KStream KTable "
        "SessionWindowedCogroupedKStream SessionWindowedKStream TimeWindowedCogroupedKStream "
        "TimeWindowedKStream"
    ),
    "dsl.streams_builder": "StreamsBuilder",
    "dsl.suppressed": "BufferConfig EmitStrategy Suppressed",
    "handlers": "ErrorHandlerContext ExceptionHandler Response RetryOutages",
    "errors": "ConfigError EverflowError SetupError TopologyError",
    "operators.processors.processor": (
        "BatchProcessor Processor ProcessorContext PunctuationType Record RecordMetadata "
        "ValueTransformer punctuate"
    ),
    "operators.processors.stores": "KeyValueStore SessionStore VersionedStore WindowStore",
    "records": "TaskId TopicPartition",
    "instance.client_state": "ClientState IllegalStateError StateListener",
    "instance.kafka_streams": "KafkaStreams",
    "instance.thread.stream_thread": "StreamThreadExceptionResponse",
    "instance.query.queries": "KeyQueryMetadata LagInfo StreamsMetadata",
    "snapshots.query_errors": "InvalidStateStoreError StaleStateError StateElsewhereError "
    "StateMovingError StoreKindError "
    "StoreNotFoundError",
    "instance.restore.listeners": (
        "RestoreListener RestoreProgress StandbyUpdateListener SuspendReason"
    ),
    "instance.query.store_query": (
        "ReadOnlyKeyValueStore ReadOnlySessionStore ReadOnlyVersionedStore ReadOnlyWindowStore"
    ),
    "instance.tasks.task": "TaskRole TaskState",
    "instance.describe": "TaskStatus",
    "snapshots.frames": "diff_state read_state",
    "snapshots.state_source": "EverflowStateSource",
    "spark.session": "session",
    "state.store": "VersionedRecord",
    "topology.graph": (
        "FailOnInvalidTimestamp LogAndSkipOnInvalidTimestamp RecordContext TimestampExtractor "
        "UsePartitionTimeOnInvalidTimestamp WallclockTimestampExtractor"
    ),
    "topology.program": "Topology",
    "windows": "CountWindows JoinWindows SessionWindows SlidingWindows TimeWindows Windowed",
}
_MODULE_OF = {
    name: f"everflow.{module}" for module, names in _NAMES.items() for name in names.split()
}
_MODULES = {
    "agg": "everflow.operators.agg",
    "errors": "everflow.errors",
    "serdes": "everflow.serdes",
}


def __getattr__(name: str) -> Any:
    found = _MODULES.get(name) or _MODULE_OF.get(name)
    if found is not None:
        from everflow.hidden_modules import raise_told, require_unhidden

        try:
            module = importlib.import_module(found)
        except Exception as error:
            raise_told(name, error)
        require_unhidden()
        return module if name in _MODULES else getattr(module, name)
    from everflow.foreign_names import telling  # rare: not paid for by every import

    return telling(__name__, lambda: __all__)(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
