"""State of an earlier commit (``expected.json`` names it) is read, and gone on from."""

import json
import tarfile
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from everflow import RestoreProgress
from everflow.testing.broker import EmbeddedBroker
from integration.from_before import made_state

pytestmark = [pytest.mark.broker, pytest.mark.spark]
HERE = Path(__file__).parent


class Restores(list[RestoreProgress]):
    """What a listener is told."""

    def told(self, progress: RestoreProgress, _: object = None) -> None:
        self.append(progress)

    restore_start = batch_restored = restore_end = restore_suspended = told


def test_state_of_an_earlier_commit_is_gone_on_from(spark: SparkSession, tmp_path: Path) -> None:
    """What comes out and what is stored in the end are what that commit made itself; no store was
    made anew, or read a record of its changelog again."""
    with tarfile.open(HERE / "state.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    expected = json.loads((HERE / "expected.json").read_text())
    found = made_state.stored(tmp_path / "state")
    assert list(found) == list(expected["stored"])
    assert all(found.values()), "each has entries, to be read"
    topology, outputs = made_state.program()
    with EmbeddedBroker(tmp_path / "broker", config=made_state.BROKER) as broker:
        app = made_state.application(broker, tmp_path)
        made_state.write(app.cluster, made_state.THEN)
        streams, restores = app.instance(topology), Restores()
        streams.set_global_state_restore_listener(restores)
        try:
            streams.start()
            made_state.until_processed(app, streams)
        finally:
            assert streams.close(60.0)
        results = made_state.results(app.cluster, outputs)
        app.cluster.close()
    assert not [one for one in restores if one.rebuild or one.records]
    assert made_state.stored(tmp_path / "state") == expected["stored"]
    assert results == expected["results"]
