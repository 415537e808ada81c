"""What a worker does when the JVM that computes Columns answers, fails or hangs up."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from everflow.errors import RetriableError
from everflow.worker import columns
from everflow.worker.columns import ColumnClient, ColumnsFailed

ROWS = pa.RecordBatch.from_pydict({"a": [1, 2, 3]})
TABLE = pa.Table.from_batches([ROWS])


@contextmanager
def service(path: Path, *answers: bytes) -> Iterator[str]:
    """Reads a request for each of the answers, then hangs up."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen(1)

    def serve() -> None:
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as requests:
            for answer in answers:
                _, size = struct.unpack(">ii", requests.read(8))
                requests.read(size)
                connection.sendall(answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield str(path)
    finally:
        thread.join(10)
        listener.close()


def rows(batch: pa.RecordBatch = ROWS) -> bytes:
    message: bytes = batch.serialize().to_pybytes()
    return struct.pack(">i", len(message)) + message


def failure(row: int, text: str) -> bytes:
    return struct.pack(">iii", -1, row, len(text.encode())) + text.encode()


def test_an_answer_is_a_batch(tmp_path: Path) -> None:
    with service(tmp_path / "s", rows(), rows()) as path, closing(ColumnClient(path)) as client:
        assert client.run(1, ROWS, ROWS.schema).equals(TABLE)
        assert client.run(2, ROWS, ROWS.schema).equals(TABLE)


def test_many_bytes_go_in_slices_and_a_row_is_counted_over_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "SLICE_BYTES", 1)
    one = pa.RecordBatch.from_pydict({"a": [7]})
    answers = (rows(one), rows(one), failure(0, "third"))
    with (
        service(tmp_path / "s", *answers) as path,
        closing(ColumnClient(path)) as client,
        pytest.raises(ColumnsFailed) as failed,
    ):
        client.run(1, ROWS, ROWS.schema)
    assert failed.value.row == 2
    with service(tmp_path / "t", *[rows(one)] * 3) as path, closing(ColumnClient(path)) as client:
        assert client.run(1, ROWS, ROWS.schema).column("a").to_pylist() == [7, 7, 7]


def test_no_rows_need_no_answer(tmp_path: Path) -> None:
    with closing(ColumnClient(str(tmp_path / "none"))) as client:
        assert client.run(1, ROWS.slice(0, 0), ROWS.schema).num_rows == 0


@pytest.mark.parametrize(("row", "told"), [(2, 2), (-1, None)])
def test_a_failure_has_the_row_and_the_next_batch_its_answer(
    tmp_path: Path, row: int, told: int | None
) -> None:
    said = "SparkArithmeticException: [DIVIDE_BY_ZERO] é\n\tat ..."
    answers = (failure(row, said), rows())
    with service(tmp_path / "s", *answers) as path, closing(ColumnClient(path)) as client:
        with pytest.raises(ColumnsFailed) as failed:
            client.run(1, ROWS, ROWS.schema)
        assert (failed.value.row, failed.value.text) == (told, said)
        assert client.run(1, ROWS, ROWS.schema).equals(TABLE)


@pytest.mark.parametrize("answer", [b"", rows()[:2], rows()[:40], failure(1, "why")[:9]])
def test_a_jvm_that_hangs_up_is_a_passing_fault(tmp_path: Path, answer: bytes) -> None:
    """The driver knows whether it will ever come back."""
    with (
        service(tmp_path / "s", answer) as path,
        closing(ColumnClient(path)) as client,
        pytest.raises(RetriableError, match="hung up"),
    ):
        client.run(1, ROWS, ROWS.schema)


def test_nobody_there_is_a_passing_fault(tmp_path: Path) -> None:
    with closing(ColumnClient(str(tmp_path / "none"))) as client, pytest.raises(RetriableError):
        client.run(1, ROWS, ROWS.schema)
