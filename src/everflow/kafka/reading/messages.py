"""What librdkafka's message objects hold, for everything that reads logs through it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from confluent_kafka import Message

from everflow.kafka.reading.log_chunk import LogChunk
from everflow.kafka.reading.log_columns import LogColumns
from everflow.records import HEADERS, Int64


def offset_of(message: Message) -> int:
    """The offset of a message that was read; only a produced one may lack it."""
    offset = message.offset()
    assert offset is not None
    return offset


def chunk_of(messages: Sequence[Message], next_position: int) -> LogChunk:
    """The records of one partition as a chunk that ends before ``next_position``."""
    return LogChunk(
        list(map(Message.key, messages)),
        list(map(Message.value, messages)),
        _times(messages),
        next_position,
        len(messages),
    )


def columns_of(messages: Sequence[Message], headers: bool) -> LogColumns:
    """The records of one partition in columns."""
    found = None
    if headers:
        found = pa.array([[{"key": h[0], "value": h[1]} for h in message.headers() or ()] for message in messages], HEADERS)
    return LogColumns(
        pa.array(list(map(Message.key, messages)), pa.binary()),
        pa.array(list(map(Message.value, messages)), pa.binary()),
        np.fromiter(map(offset_of, messages), np.int64, len(messages)),
        _times(messages),
        found,
    )


def _times(messages: Sequence[Message]) -> Int64:
    return np.fromiter((at for _, at in map(Message.timestamp, messages)), np.int64, len(messages))
