"""A store with unreadable bytes is mended from the changelog, or named; no record is (note 041)."""

import logging
from pathlib import Path

import numpy as np
import pytest

from everflow import StreamsBuilder, serdes
from everflow.errors import DamagedEntryError
from everflow.records import StoreChanges
from everflow.state.lmdb_store import LmdbStore
from everflow.state.store_meta import Owner
from integration.lifecycle.lifecycle_cluster import Application, Cluster, Record, text, until_failed

pytestmark = [pytest.mark.broker, pytest.mark.spark]
DAMAGE = b"\1\2\3"


def damage(folder: Path, key: bytes) -> None:
    """Bytes in a store on disk that nobody has written through its changelog."""
    (data,) = folder.glob("**/0_0/counts-*/data.mdb")
    store = LmdbStore.open(data.parent)
    meta = store.meta()
    store.apply(
        StoreChanges("counts", [key], [DAMAGE], np.array([1_000], np.int64)),
        position=None,
        expected=Owner(meta.incarnation or "", meta.last_batch or ""),
        batch=meta.last_batch or "",
    )


def test_a_store_is_rebuilt_and_a_changelog_that_is_damaged_ends_the_instance(
    app: Application, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    source, output, dead = (cluster.topic(name, 1) for name in ("in", "out", "dead"))
    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string(), value=serdes.string())
    stream.group_by_key().count(store="counts").to_stream().to(output)
    records = [text(key, "v", 1_000) for key in ("bad", "good")]
    streams = app.instance(builder.build(), errors_dead_letter_queue_topic_name=dead)
    streams.start()
    try:
        cluster.write(source, records)
        app.until_processed(streams, source)
        damage(app.state, b"bad")
        with caplog.at_level(logging.WARNING):
            cluster.write(source, records)
            app.until_processed(streams, source)
        found = cluster.longs(output)
        assert found == {b"bad": 2, b"good": 2}
        assert "Rebuilding counts of task 0_0 from its changelog: Store counts" in caplog.text

        changelog = f"{app.id}-counts-changelog"
        cluster.write(changelog, [Record(b"bad", DAMAGE, 1_000, 0)])
        damage(app.state, b"bad")
        cluster.write(source, records)
        error = until_failed(streams)
    finally:
        streams.close(60.0)
    assert isinstance(error, DamagedEntryError)
    assert (error.store, str(error.task), error.key) == ("counts", "0_0", b"bad")
    assert error.changelog == changelog
    for part in (
        "Store counts of task 0_0 is damaged: the entry of key 'bad' (b'bad') cannot be read",
        repr(DAMAGE),
        f"changelog {changelog}, partition 0",
        "read by node ",
        "No record of the input is to blame",
        "was rebuilt from its changelog",
    ):
        assert part in str(error)
    assert cluster.read(dead) == []
