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
    from everflow import errors as errors
    from everflow import serdes as serdes
    from everflow.assignment.api import ApplicationState as ApplicationState
    from everflow.assignment.api import AssignmentError as AssignmentError
    from everflow.assignment.api import KafkaStreamsAssignment as KafkaStreamsAssignment
    from everflow.assignment.api import KafkaStreamsState as KafkaStreamsState
    from everflow.assignment.api import TaskAssignment as TaskAssignment
    from everflow.assignment.api import TaskAssignor as TaskAssignor
    from everflow.config import StreamsConfig as StreamsConfig
    from everflow.dsl.stores import BufferConfig as BufferConfig
    from everflow.dsl.stores import EmitStrategy as EmitStrategy
    from everflow.dsl.stores import Materialized as Materialized
    from everflow.dsl.stores import Stores as Stores
    from everflow.dsl.stores import Suppressed as Suppressed
    from everflow.dsl.streams import BranchedKStream as BranchedKStream
    from everflow.dsl.streams import CogroupedKStream as CogroupedKStream
    from everflow.dsl.streams import GlobalKTable as GlobalKTable
    from everflow.dsl.streams import KGroupedStream as KGroupedStream
    from everflow.dsl.streams import KGroupedTable as KGroupedTable
    from everflow.dsl.streams import KStream as KStream
    from everflow.dsl.streams import KTable as KTable
    from everflow.dsl.streams import (
        SessionWindowedCogroupedKStream as SessionWindowedCogroupedKStream,
    )
    from everflow.dsl.streams import SessionWindowedKStream as SessionWindowedKStream
    from everflow.dsl.streams import TimeWindowedCogroupedKStream as TimeWindowedCogroupedKStream
    from everflow.dsl.streams import TimeWindowedKStream as TimeWindowedKStream
    from everflow.dsl.streams_builder import StreamsBuilder as StreamsBuilder
    from everflow.errors import ConfigError as ConfigError
    from everflow.errors import EverflowError as EverflowError
    from everflow.errors import SetupError as SetupError
    from everflow.errors import TopologyError as TopologyError
    from everflow.handlers import ErrorHandlerContext as ErrorHandlerContext
    from everflow.handlers import ExceptionHandler as ExceptionHandler
    from everflow.handlers import Response as Response
    from everflow.handlers import RetryOutages as RetryOutages
    from everflow.instance.client_state import ClientState as ClientState
    from everflow.instance.client_state import IllegalStateError as IllegalStateError
    from everflow.instance.client_state import StateListener as StateListener
    from everflow.instance.describe import TaskStatus as TaskStatus
    from everflow.instance.kafka_streams import KafkaStreams as KafkaStreams
    from everflow.instance.query.queries import KeyQueryMetadata as KeyQueryMetadata
    from everflow.instance.query.queries import LagInfo as LagInfo
    from everflow.instance.query.queries import StreamsMetadata as StreamsMetadata
    from everflow.instance.query.store_query import ReadOnlyKeyValueStore as ReadOnlyKeyValueStore
    from everflow.instance.query.store_query import ReadOnlySessionStore as ReadOnlySessionStore
    from everflow.instance.query.store_query import ReadOnlyVersionedStore as ReadOnlyVersionedStore
    from everflow.instance.query.store_query import ReadOnlyWindowStore as ReadOnlyWindowStore
    from everflow.instance.restore.listeners import RestoreListener as RestoreListener
    from everflow.instance.restore.listeners import RestoreProgress as RestoreProgress
    from everflow.instance.restore.listeners import StandbyUpdateListener as StandbyUpdateListener
    from everflow.instance.restore.listeners import SuspendReason as SuspendReason
    from everflow.instance.tasks.task import TaskRole as TaskRole
    from everflow.instance.tasks.task import TaskState as TaskState
    from everflow.instance.thread.stream_thread import (
        StreamThreadExceptionResponse as StreamThreadExceptionResponse,
    )
    from everflow.operators import agg as agg
    from everflow.operators.processors.processor import BatchProcessor as BatchProcessor
    from everflow.operators.processors.processor import Processor as Processor
    from everflow.operators.processors.processor import ProcessorContext as ProcessorContext
    from everflow.operators.processors.processor import PunctuationType as PunctuationType
    from everflow.operators.processors.processor import Record as Record
    from everflow.operators.processors.processor import RecordMetadata as RecordMetadata
    from everflow.operators.processors.processor import ValueTransformer as ValueTransformer
    from everflow.operators.processors.processor import punctuate as punctuate
    from everflow.operators.processors.stores import KeyValueStore as KeyValueStore
    from everflow.operators.processors.stores import SessionStore as SessionStore
    from everflow.operators.processors.stores import VersionedStore as VersionedStore
    from everflow.operators.processors.stores import WindowStore as WindowStore
    from everflow.records import TaskId as TaskId
    from everflow.records import TopicPartition as TopicPartition
    from everflow.sinks.batch import RefusedRows as RefusedRows
    from everflow.sinks.batch import SinkBatch as SinkBatch
    from everflow.snapshots.frames import diff_state as diff_state
    from everflow.snapshots.frames import read_state as read_state
    from everflow.snapshots.query_errors import InvalidStateStoreError as InvalidStateStoreError
    from everflow.snapshots.query_errors import StaleStateError as StaleStateError
    from everflow.snapshots.query_errors import StateElsewhereError as StateElsewhereError
    from everflow.snapshots.query_errors import StateMovingError as StateMovingError
    from everflow.snapshots.query_errors import StoreKindError as StoreKindError
    from everflow.snapshots.query_errors import StoreNotFoundError as StoreNotFoundError
    from everflow.snapshots.state_source import EverflowStateSource as EverflowStateSource
    from everflow.spark.session import session as session
    from everflow.state.store import VersionedRecord as VersionedRecord
    from everflow.topology.graph import FailOnInvalidTimestamp as FailOnInvalidTimestamp
    from everflow.topology.graph import LogAndSkipOnInvalidTimestamp as LogAndSkipOnInvalidTimestamp
    from everflow.topology.graph import RecordContext as RecordContext
    from everflow.topology.graph import TimestampExtractor as TimestampExtractor
    from everflow.topology.graph import (
        UsePartitionTimeOnInvalidTimestamp as UsePartitionTimeOnInvalidTimestamp,
    )
    from everflow.topology.graph import WallclockTimestampExtractor as WallclockTimestampExtractor
    from everflow.topology.program import Topology as Topology
    from everflow.windows import CountWindows as CountWindows
    from everflow.windows import JoinWindows as JoinWindows
    from everflow.windows import SessionWindows as SessionWindows
    from everflow.windows import SlidingWindows as SlidingWindows
    from everflow.windows import TimeWindows as TimeWindows
    from everflow.windows import Windowed as Windowed

__version__ = "0.1.0"

_NAMES = {
    "assignment.api": (
        "ApplicationState AssignmentError KafkaStreamsAssignment KafkaStreamsState "
        "TaskAssignment TaskAssignor"
    ),
    "config": "StreamsConfig",
    "dsl.stores": "BufferConfig EmitStrategy Materialized Stores Suppressed",
    "dsl.streams": (
        "BranchedKStream CogroupedKStream GlobalKTable KGroupedStream KGroupedTable KStream KTable "
        "SessionWindowedCogroupedKStream SessionWindowedKStream TimeWindowedCogroupedKStream "
        "TimeWindowedKStream"
    ),
    "dsl.streams_builder": "StreamsBuilder",
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
    "sinks.batch": "RefusedRows SinkBatch",
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
__all__ = sorted([*_MODULES, *_MODULE_OF])


def __getattr__(name: str) -> Any:
    found = _MODULES.get(name) or _MODULE_OF.get(name)
    if found is not None:
        from everflow.hidden_modules import raise_explained, require_unhidden

        try:
            module = importlib.import_module(found)
        except Exception as error:
            raise_explained(name, error)
        require_unhidden()
        return module if name in _MODULES else getattr(module, name)
    from everflow.foreign_names import telling  # rare: not paid for by every import

    return telling(__name__, lambda: __all__)(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
