"""What librdkafka's message objects hold, for everything that reads logs through it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from confluent_kafka import Message

from everflow.kafka.log_chunk import LogChunk


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
        np.fromiter((at for _, at in map(Message.timestamp, messages)), np.int64, len(messages)),
        next_position,
        len(messages),
    )
