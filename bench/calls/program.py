"""The program of the calls: it asks an HTTP service about each record, and writes the answer.

`everflow run bench.calls.program:builder`; the topics, the service and how it is called come from
the environment.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
from collections import deque

from bench.apps.topic_names import INPUT_TOPIC_VARIABLE, OUTPUT_TOPIC_VARIABLE
from everflow import StreamsBuilder, serdes

PORT_VARIABLE = "BENCH_CALLS_PORT"
OPTIONS_VARIABLE = "BENCH_CALLS_OPTIONS"
"""The options of `map_values`, in JSON."""


class StatusError(Exception):
    """An answer other than 200."""

    def __init__(self, status: int) -> None:
        super().__init__(f"HTTP {status}")
        self.status = status


class Client:
    """HTTP over connections that are kept; one that is in doubt is closed."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._free: deque[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = deque()

    async def get(self, number: int) -> bytes:
        """The answer's body. StatusError; ConnectionError if there is none."""
        if self._free:
            reader, writer = self._free.pop()
        else:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            writer.write(b"GET /%d HTTP/1.1\r\nHost: localhost\r\n\r\n" % number)
            head = await reader.readuntil(b"\r\n\r\n")
            status, length = int(head[9:12]), int(head.rpartition(b"Content-Length: ")[2])
            body = await reader.readexactly(length)
        except asyncio.IncompleteReadError as error:
            writer.close()
            raise ConnectionError("the service has closed the connection") from error
        except BaseException:
            writer.close()
            raise
        self._free.append((reader, writer))
        if status != 200:
            raise StatusError(status)
        return body


@functools.cache
def client(port: int) -> Client:
    """One for each worker process."""
    return Client(port)


def builder() -> StreamsBuilder:
    """What comes out has its record's key, and what the service says: 1."""
    port = int(os.environ[PORT_VARIABLE])

    async def ask(value: str) -> int:
        return int(await client(port).get(json.loads(value)["number"]))

    streams_builder = StreamsBuilder()
    records = streams_builder.stream(
        os.environ[INPUT_TOPIC_VARIABLE], key=serdes.string(), value=serdes.string()
    )
    asked = records.map_values(
        ask, returns=serdes.long(), **json.loads(os.environ[OPTIONS_VARIABLE])
    )
    asked.to(os.environ[OUTPUT_TOPIC_VARIABLE])
    return streams_builder
