"""Counts of words, and a web service that answers with them: queries of the stores while they are
written.

    everflow broker --port 9092 --topic words:4
    python word_service.py localhost:9092 8001 first
    echo tea | everflow produce words; curl -L localhost:8001/counts/tea

A second instance is the same line with another port and another state folder. Each answers what it
has and sends the client on to the owner of any other key. docs/QUERIES.md says what an answer
means, and what happens while tasks move.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import unquote

from pyspark.sql import functions as F

from everflow import (
    InvalidStateStoreError,
    KafkaStreams,
    StateElsewhereError,
    StateMovingError,
    StreamsBuilder,
    serdes,
)

builder = StreamsBuilder()
(
    builder.stream("words", key=serdes.string(), value=serdes.string())
    .group_by(F.lower("value"), name="by-word")
    .count(store="counts")
)


def serve(streams: KafkaStreams, host: str, port: int) -> ThreadingHTTPServer:
    """GET /<store>/<key> -> the value as JSON; with ?stale also from a copy, however old."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            name, key = map(unquote, path.strip("/").split("/"))
            try:
                self.answer(200, self.value(name, key, query == "stale"))
            except StateElsewhereError as elsewhere:
                if elsewhere.host is None:
                    self.answer(503, str(elsewhere), {"Retry-After": "1"})
                else:
                    self.answer(
                        307, str(elsewhere), {"Location": f"http://{elsewhere.host}{self.path}"}
                    )
            except InvalidStateStoreError as error:
                self.answer(503, str(error), {"Retry-After": "1"})

        def value(self, name: str, key: str, stale: bool) -> Any:
            try:
                return streams.store(name, stale=stale).get(key)
            except StateMovingError:
                return streams.store(name, stale=True, max_lag=1_000).get(key)

        def answer(
            self, status: int, content: Any, headers: Mapping[str, str] | None = None
        ) -> None:
            self.send_response(status)
            for header, value in (headers or {}).items():
                self.send_header(header, value)
            self.end_headers()
            self.wfile.write(json.dumps(content).encode())

        def log_message(self, *arguments: Any) -> None:
            """No line for each request."""

    server = ThreadingHTTPServer((host, port), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    return server


def main(bootstrap_servers: str, port: int, state_dir: str) -> None:
    """Count and answer until Ctrl-C or SIGTERM."""
    streams = KafkaStreams(
        builder.build(),
        application_id="word-service",
        bootstrap_servers=bootstrap_servers,
        application_server=f"localhost:{port}",
        state_dir=state_dir,
    )
    server = serve(streams, "localhost", port)
    try:
        streams.run()
    finally:
        server.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
