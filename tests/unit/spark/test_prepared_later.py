"""Columns that a worker prepares when it first asks for them: once, and named if they cannot be."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from everflow.errors import RetriableError
from everflow.spark.columns import NotComputableError, prepared_later
from everflow.topology.plan import Ticket
from everflow.worker.columns import ColumnClient, ColumnsFailed
from unit.worker.test_decode import ROWS, TABLE, rows, service


@contextmanager
def client() -> Iterator[ColumnClient]:
    with closing(ColumnClient("")) as made:
        yield made


def test_what_nobody_asks_for_is_never_prepared() -> None:
    def prepare() -> tuple[str, int]:
        raise AssertionError("nobody asked")

    prepared_later(prepare)


def test_it_is_prepared_once_for_all_workers(tmp_path: Path) -> None:
    calls: list[str] = []
    found: list[pa.Table] = []
    places = [str(tmp_path / name) for name in ("a", "b", "c")]

    def prepare() -> tuple[str, int]:
        calls.append(threading.current_thread().name)
        return places[0], 7

    ticket = prepared_later(prepare)
    with service(Path(places[0]), rows(), rows()), client() as first:
        found = [first.run(ticket, ROWS, ROWS.schema) for _ in range(2)]
    Path(places[0]).unlink()
    with service(Path(places[0]), rows()), client() as second:
        found.append(second.run(ticket, ROWS, ROWS.schema))
    assert found == [TABLE] * 3
    assert calls == ["everflow-columns-door"]


def test_a_worker_that_dies_before_it_asks_closes_no_door(tmp_path: Path) -> None:
    place = str(tmp_path / "a")
    ticket = prepared_later(lambda: (place, 7))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as killed:
        killed.connect(ticket.door)
    with service(Path(place), rows()), client() as other:
        assert other.run(ticket, ROWS, ROWS.schema) == TABLE


def test_where_it_cannot_be_prepared_the_worker_is_told_why_each_time() -> None:
    def prepare() -> tuple[str, int]:
        raise NotComputableError("this Spark offers no such service")

    ticket = prepared_later(prepare)
    for _ in range(2):
        with client() as asking, pytest.raises(ColumnsFailed) as failure:
            asking.run(ticket, ROWS, ROWS.schema)
        assert failure.value.row is None
        assert failure.value.text.endswith("this Spark offers no such service")


def test_a_driver_that_is_gone_is_no_matter_of_the_record(tmp_path: Path) -> None:
    with client() as asking, pytest.raises(RetriableError, match="driver"):
        asking.run(Ticket(str(tmp_path / "gone"), 0), ROWS, ROWS.schema)
