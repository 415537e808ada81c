"""An instance whose batch hangs ends all the same: the worker is killed, the group is left."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

import pytest

from everflow import StreamsBuilder, serdes
from everflow.runtime import instance_end
from everflow.testing import wait_until
from integration.lifecycle.lifecycle_cluster import Application, Cluster, text

pytestmark = [pytest.mark.broker, pytest.mark.spark]


def test_a_shutdown_does_not_wait_for_a_batch_that_hangs(
    app: Application,
    cluster: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(instance_end, "HANGS_MS", 2_000.0)
    source, output = cluster.topic("in", 1), cluster.topic("out", 1)
    cluster.write(source, [text("k", "loop")])
    reached = tmp_path / "reached"

    def hangs(value: str) -> str:
        reached.touch()
        threading.Event().wait()  # for ever
        return value

    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string(), value=serdes.string())
    stream.map_values(hangs, returns="string").to(output)
    streams = app.instance(builder.build())
    streams.start()
    wait_until(reached.exists, 60, "the function to be called")
    began = time.monotonic()
    with caplog.at_level(logging.INFO):
        assert streams.close(timeout=60)
    assert time.monotonic() - began < 40
    assert cluster.members(app.id) == 0
    assert "its batch is cut off (it has not ended within 2 s)" in caplog.text
