"""What earlier versions left behind (`made_state`) is read, and gone on from."""

import json
import lzma
import shutil
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from everflow import RestoreProgress
from everflow.assignment.user_data import UserDataError, decode, decode_assignment
from everflow.protocol.messages import parse_metadata
from everflow.testing.broker import EmbeddedBroker
from integration.from_before import made_state
from integration.from_before.group_bytes import TASKS, Instance, plain

FOLDERS = sorted(path.parent for path in made_state.HERE.glob(f"*/{made_state.EXPECTED}"))
of_each_version = pytest.mark.parametrize("folder", FOLDERS, ids=lambda one: one.name)


def expected_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(lzma.decompress((folder / made_state.EXPECTED).read_bytes()))
    return found


def read_as(before: Any, now: Any) -> bool:
    """True if all that a version has read is read now; what is new has a field more."""
    if isinstance(before, dict) and isinstance(now, dict):
        return all(key in now and read_as(one, now[key]) for key, one in before.items())
    return bool(before == now)


class Restores(list[RestoreProgress]):
    """What a listener is told."""

    def told(self, progress: RestoreProgress, _: object = None) -> None:
        self.append(progress)

    restore_start = batch_restored = restore_end = restore_suspended = told


def test_there_is_a_folder_for_each_version() -> None:
    """A file that was lost, or is not checked out, must not look like a test that passes."""
    assert len(FOLDERS) >= 2
    assert [one for one in FOLDERS if not (one / made_state.STATE).is_file()] == []
    assert [one for one in FOLDERS if (one / made_state.SOURCE).is_file()]


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.parametrize("disk", ["disk", pytest.param("empty", marks=pytest.mark.slow)])
@of_each_version
def test_its_state_is_gone_on_from(
    folder: Path, disk: str, spark: SparkSession, tmp_path: Path
) -> None:
    """What comes out, what is stored and what is written to changelogs in the end are what that
    version made itself: with its state folder, where no store is made anew or reads a record of its
    changelog again, and with an empty one, where all are restored."""
    with tarfile.open(folder / made_state.STATE) as archive:
        archive.extractall(tmp_path, filter="data")
    expected = expected_of(folder)
    found = made_state.stored(tmp_path / "state")
    assert list(found) == list(expected["stored"])
    assert all(found.values()), "each has entries, to be read"
    if disk == "empty":
        shutil.rmtree(tmp_path / "state")
    topology, outputs = made_state.program()
    with EmbeddedBroker(tmp_path / "broker", config=made_state.BROKER) as broker:
        app = made_state.application(broker, tmp_path)
        assert read_as(expected["committed"], made_state.committed(app))
        made_state.write(app.cluster, made_state.THEN)
        streams, restores = app.instance(topology), Restores()
        streams.set_global_state_restore_listener(restores)
        try:
            streams.start()
            made_state.until_processed(app, streams)
        finally:
            assert streams.close(60.0)
        results = made_state.results(app.cluster, outputs)
        logged = made_state.logged(app)
        app.cluster.close()
    again = {one.store for one in restores if one.rebuild or one.records}
    stores = {Path(name).name.rpartition("-")[0] for name in expected["stored"]}
    # Of global tables, which are read before anything runs, nobody is told.
    assert again == (set() if disk == "disk" else stores - {"names"})
    assert made_state.stored(tmp_path / "state") == expected["stored"]
    assert results == expected["results"]
    assert logged == expected["logged"]


@of_each_version
def test_what_is_beside_its_offsets_is_read(folder: Path) -> None:
    rows = expected_of(folder)["committed"]
    assert rows
    for partition, row in rows.items():
        assert row["read"]["batch_id"], partition
        assert read_as(row["read"], plain(parse_metadata(row["metadata"])._asdict())), partition


@of_each_version
def test_what_its_members_tell_each_other_is_read(folder: Path) -> None:
    rows = expected_of(folder)["rebalances"]
    assert rows
    for row in rows:
        for name, data in row["said"].items():
            if name in row["read"]:
                now = plain(decode(bytes.fromhex(data)))
                assert read_as(row["read"][name], now), row["situation"]
            else:
                with pytest.raises(UserDataError):
                    decode(bytes.fromhex(data))
        for name, data in row["answers"].items():
            now = plain(decode_assignment(bytes.fromhex(data)))
            assert read_as(row["read_answers"][name], now), row["situation"]


@of_each_version
def test_this_version_leads_its_members(folder: Path) -> None:
    """In a version of user data that all of them read: the same are refused, and each task is given
    to one member at most. Whom it is given to is the present assignor's concern."""
    for row in expected_of(folder)["rebalances"]:
        said = {name: bytes.fromhex(data) for name, data in row["said"].items()}
        latest = min(one["latest_version"] for one in row["read"].values())
        answers = Instance("leader", 0).assignor.assign(said, row["counts"])
        told = {name: decode_assignment(one.user_data) for name, one in answers.items()}
        errors = {name: one["error"] for name, one in row["read_answers"].items()}
        assert {name: int(one.error) for name, one in told.items()} == errors, row["situation"]
        for name, answer in told.items():
            assert answers[name].user_data[2] == answer.version <= latest, row["situation"]
            if name in row["read"]:
                assert answer.answers == row["read"][name]["nonce"]
        given = Counter(task for answer in told.values() for task in answer.active)
        assert set(given.values()) <= {1}, row["situation"]
        assert given.keys() <= TASKS, row["situation"]
