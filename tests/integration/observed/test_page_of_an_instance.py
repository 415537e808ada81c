"""The page of a real instance: it starts, a record fails, the brokers go away and come back."""

import base64
import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from everflow import KafkaStreams, StreamsBuilder, Topology, serdes
from everflow.kafka.writing.record_writer import RecordWriter
from everflow.testing import wait_until
from everflow.testing.kafka_proxy import KafkaProxy
from integration.lifecycle.lifecycle_cluster import Application, Cluster, text

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.slow]

TOKEN = "a-token-of-many-characters"
WAIT_S = 90.0


def topology(source: str, sink: str) -> Topology:
    builder = StreamsBuilder()

    def checked(value: str) -> str:
        if value == "bad":
            raise ValueError(f"cannot take {value}")
        return value

    (
        builder.stream(source, key=serdes.string(), value=serdes.string(), name="in")
        .map_values(checked, returns=serdes.string(), name="checked")
        .to(sink, name="out")
    )
    return builder.build()


def get(streams: KafkaStreams, path: str, password: str = TOKEN) -> str:
    named = base64.b64encode(f"anybody:{password}".encode()).decode()
    asked = urllib.request.Request(
        f"http://{streams.http_address}{path}", headers={"Authorization": f"Basic {named}"}
    )
    with urllib.request.urlopen(asked, timeout=30) as answer:
        return str(answer.read().decode())


def view(streams: KafkaStreams) -> dict[str, Any]:
    return dict(json.loads(get(streams, "/page/view")))


def replay(streams: KafkaStreams, cause: dict[str, Any]) -> dict[str, Any]:
    return post(
        streams, "/page/replay", {name: cause[name] for name in ("exception", "node", "topic")}
    )


def post(streams: KafkaStreams, path: str, content: dict[str, Any]) -> dict[str, Any]:
    asked = urllib.request.Request(
        f"http://{streams.http_address}{path}",
        data=json.dumps(content).encode(),
        headers={"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(asked, timeout=120) as answer:
        return dict(json.loads(answer.read()))


def held_back_by_somebody(
    streams: KafkaStreams, cluster: Cluster, app: Application, source: str
) -> None:
    """Another program's transaction stays open: its records, and those behind it, are held back."""
    own = view(streams)["transactions"]["threads"]
    assert [row["thread"] for row in own] == [0]
    assert own[0]["commit_s"] is not None
    config = {"bootstrap.servers": cluster.bootstrap, "transaction.timeout.ms": 600_000}
    other = RecordWriter(config, f"{cluster.prefix}-other")
    try:
        other.begin()
        other.write(source, [b"k"], [b"other"], np.ones(1, np.int64), 0)
        other.flush(60)
        cluster.write(source, [text("k", "behind", 1, 0)])

        def rows() -> list[dict[str, Any]]:
            return list(view(streams)["transactions"]["held_back"])

        wait_until(lambda: [row["records"] for row in rows()] == [2], WAIT_S, "both to be held")
        wait_until(lambda: rows()[0]["held_s"] > 0, WAIT_S, "their offset to stand")
        assert rows()[0]["topic"] == source
        wait_until(
            lambda: view(streams)["transactions"]["threads"][0]["open_s"] == 0,
            WAIT_S,
            "the brokers to tell that the instance's own transaction is over",
        )
        status = json.loads(get(streams, "/status"))["transactions"]
        assert status["threads"][0]["transactional_id"].endswith("-0")
        (lag,) = (
            line
            for line in get(streams, "/metrics").splitlines()
            if line.startswith("everflow_stable_offset_lag{")
        )
        assert lag.endswith(" 2.0")
        other.abort()
    finally:
        other.close()
    wait_until(lambda: not rows(), WAIT_S, "nothing to be held back any more")
    app.until_processed(streams, source)


def says(streams: KafkaStreams, beginning: str) -> None:
    wait_until(
        lambda: view(streams)["verdict"]["text"].startswith(beginning),
        WAIT_S,
        f"the page to say {beginning!r}",
    )


def test_it_says_what_happens(own_proxy: KafkaProxy, cluster: Cluster, tmp_path: Path) -> None:
    source, sink, dead = (cluster.topic(name, 1) for name in ("in", "out", "dead"))
    token = tmp_path / "token"
    token.write_text(TOKEN)
    behind = Cluster(own_proxy.bootstrap_servers, cluster.prefix)
    app = Application(
        behind,
        tmp_path,
        {
            "http_listen": "127.0.0.1:0",
            "query_token_file": str(token),
            "errors_dead_letter_queue_topic_name": dead,
        },
    )
    with app.running(topology(source, sink), wait=False) as streams:
        first = view(streams)
        assert first["verdict"]["text"], "it has a word from the first moment on"
        cluster.write(source, [text("k", value, 1, 0) for value in ("good", "bad", "good", "bad")])
        app.until_processed(streams, source)
        says(streams, "It keeps up")
        (cause,) = view(streams)["letters"]["causes"]
        assert cause["exception"].endswith("ValueError")
        assert (cause["node"], cause["topic"], cause["records"]) == ("checked", source, 2)
        assert cause["sample"].startswith(f"{source}-0@")
        assert "cannot take bad" in cause["sample"]
        with pytest.raises(urllib.error.HTTPError, match="401"):
            get(streams, "/page", "no-token-at-all-of-this")
        (found,) = json.loads(get(streams, "/page/letters"))["causes"]
        assert (found["letters"], found["open"]) == (2, 2)
        assert "b'bad'" in found["sample"]
        assert replay(streams, found) == {"replayed": 2, "left": 0, "error": ""}
        wait_until(
            lambda: view(streams)["letters"]["causes"][0]["records"] == 4,
            WAIT_S,
            "them to fail again",
        )
        (again,) = json.loads(get(streams, "/page/letters"))["causes"]
        assert (again["letters"], again["open"]) == (4, 2)
        told = [event["text"] for event in view(streams)["events"]]
        assert any(text.startswith("Replayed 2 dead letters") for text in told)
        held_back_by_somebody(streams, cluster, app, source)
        own_proxy.cut()
        says(streams, "The brokers have not answered for")
        assert view(streams)["lags"]["rows"], "as they were"
        silent = next(
            line
            for line in get(streams, "/metrics").splitlines()
            if line.startswith("everflow_brokers_silent_seconds")
        )
        assert float(silent.rpartition(" ")[2]) > 0
        own_proxy.mend()
        says(streams, "It keeps up")
        cluster.write(source, [text("k", "good", 1, 0)])
        app.until_processed(streams, source)
    assert len(cluster.read(sink)) == 4
    assert len(cluster.read(dead)) == 4 + 2, "letters, and the notes that two were replayed"
