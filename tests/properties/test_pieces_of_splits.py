"""A split is read in pieces of any sizes, by one process after the other, with errors in between:
all its rows come once, in order (note 073)."""

import pickle
from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everflow.sources.pieces import PIECE_S, UNUSED_S, OpenSplits, Piece, Place
from everflow.sources.splits import Kept, Split, SplitError

COLUMNS = pa.schema([("n", pa.int64())])
ENDLESS = 1 << 40


class Listed:
    """A `Source` of one split, in batches of these sizes. ``fails_at``: the first reading raises
    before this batch."""

    @property
    def columns(self) -> pa.Schema:
        return COLUMNS

    def __init__(self, sizes: list[int], fails_at: int | None = None) -> None:
        self.sizes, self.fails_at, self.opened = sizes, fails_at, 0

    def plan(self, kept: Kept) -> list[Split]:
        return []

    def read(self, data: bytes) -> Iterator[pa.RecordBatch]:
        self.opened += 1
        fails_at = self.fails_at if self.opened == 1 else None
        first = 0
        for at, size in enumerate(self.sizes):
            if at == fails_at:
                raise TimeoutError("no answer")
            yield pa.record_batch(
                [pa.array(range(first, first + size), pa.int64())], schema=COLUMNS
            )
            first += size


def take(splits: OpenSplits, source: Listed, row: int, most: int, offset: int = 7) -> Piece:
    place = Place(0, offset, row)
    return splits.take(source, place, b"", most, ENDLESS, splits.begin())


def ns(piece: Piece) -> list[int]:
    found = [n for batch in piece.rows for n in batch.column(0).to_pylist()]
    assert len(found) == piece.length
    return found


@given(
    sizes=st.lists(st.integers(0, 5), max_size=6),
    steps=st.lists(st.tuples(st.integers(1, 7), st.sampled_from(["go", "again", "dies"]))),
    fails_at=st.none() | st.integers(0, 5),
)
def test_all_rows_come_once(
    sizes: list[int], steps: list[tuple[int, str]], fails_at: int | None
) -> None:
    source, splits = Listed(sizes, fails_at), OpenSplits(monotonic=lambda: 0.0)
    rows, over = list[int](), False
    for most, what in [*steps, *[(3, "go")] * (sum(sizes) + 2)]:
        if over:
            break
        try:
            piece = take(splits, source, len(rows), most)
        except TimeoutError:
            continue
        assert ns(piece) == list(range(len(rows), len(rows) + piece.length))
        assert piece.length <= most
        if what == "dies":  # before the commit: another process has the split then
            splits = OpenSplits(monotonic=lambda: 0.0)
        elif what == "again":  # the batch is run again
            assert ns(take(splits, source, len(rows), most)) == ns(piece)
        else:
            rows, over = rows + ns(piece), piece.over
    assert over
    assert rows == list(range(sum(sizes)))


def test_a_split_that_has_become_shorter_says_so() -> None:
    splits = OpenSplits()
    take(splits, Listed([5, 5]), 0, 5)
    with pytest.raises(SplitError, match="it has 4 rows, and 5 were read before"):
        take(OpenSplits(), Listed([4]), 5, 5)


def test_the_next_split_closes_the_one_before() -> None:
    splits, source = OpenSplits(), Listed([2, 2])
    take(splits, source, 0, 2)
    take(splits, source, 0, 2, offset=8)
    assert ns(take(splits, source, 2, 9, offset=8)) == [2, 3]
    assert source.opened == 2


def test_time_ends_a_piece_after_what_the_source_gives_at_once() -> None:
    now = [0.0]
    splits, source = OpenSplits(monotonic=lambda: now[0]), Listed([1] * 5)
    until_s = splits.begin()
    now[0] = PIECE_S
    place = Place(0, 7, 0)
    assert splits.take(source, place, b"", ENDLESS, ENDLESS, until_s).length == 1


def test_bytes_end_a_piece() -> None:
    splits = OpenSplits()
    place = Place(0, 7, 0)
    assert splits.take(Listed([1] * 5), place, b"", ENDLESS, 9, splits.begin()).length == 2


def test_what_is_not_used_is_closed_and_a_copy_has_nothing_open() -> None:
    now, closed = [0.0], list[bool]()

    class Closing(Listed):
        def read(self, data: bytes) -> Iterator[pa.RecordBatch]:
            try:
                yield from super().read(data)
            finally:
                closed.append(True)

    splits = OpenSplits(monotonic=lambda: now[0])
    take(splits, Closing([1, 1]), 0, 1)
    now[0] = UNUSED_S + 1
    splits.begin()
    assert closed
    splits = OpenSplits()
    take(splits, Listed([1, 1]), 0, 1)
    copy = pickle.loads(pickle.dumps(splits))
    source = Listed([1, 1])
    assert ns(take(copy, source, 1, 1)) == [1]
    assert source.opened == 1
