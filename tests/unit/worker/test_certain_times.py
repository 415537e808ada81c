"""Which records are taken with ``stream.time=lowest``, and what is kept of it (note 076)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from everflow import serdes
from everflow.kafka.reading.record_columns import LogColumns
from everflow.protocol.messages import InputTime, TaskContext
from everflow.records import OffsetRange, TaskId, TopicPartition
from everflow.topology.batches import BatchInput
from everflow.worker.certain_times import CertainTimes, certain_times, not_done
from unit.builders import batch_request, source

LOG = TopicPartition("between", 0)
TASK = TaskId(0, 0)
HELD = replace(
    source("between", key=serdes.string(), value=serdes.long()),
    kind="repartition",
    timed="rows",
    held=True,
)


def taken(
    times: Sequence[int],
    known: InputTime | None,
    kept: Mapping[str, int] | None = None,
    start: int = 0,
    most_bytes: int = 1_000,
    most_taken: int | None = None,
) -> CertainTimes:
    """Of one input: its records from ``start`` on."""
    count = len(times)
    batch = BatchInput(
        batches={},
        rows={},
        source=np.zeros(count, np.int32),
        partition=np.zeros(count, np.int32),
        offset=np.arange(start, start + count, dtype=np.int64),
        timestamp=np.array(times, np.int64),
        bytes=100,
    )
    request = batch_request(
        {LOG: OffsetRange(start, start + count)},
        tasks=[TaskContext(TASK, "", "", kept or {})],
        log_ends={LOG: start + count + (most_bytes < 1_000)},
        most_bytes=most_bytes,
        times=None if known is None else {LOG: known},
        most_taken=most_taken,
    )
    found = certain_times(batch, (HELD,), request)
    assert found is not None
    return found


def test_records_are_taken_in_order_of_time_as_far_as_it_is_certain() -> None:
    found = taken([100, 50, 120, 60, 110], InputTime(ms=110, end=5))
    assert found.kept.tolist() == [True, True, False, True, True]
    assert found.rank.tolist() == [2, 0, 4, 1, 3]
    assert found.consumed == {LOG: 2}
    assert found.names[TASK] == {"rows/idle": 110, "rows/read": 5, "rows/done": 110}


def test_what_is_done_is_not_taken_again() -> None:
    kept = {"rows/idle": 110, "rows/read": 5, "rows/done": 110}
    found = taken([120, 60, 110, 90, 130], InputTime(ms=125, end=7), kept, start=2)
    assert found.kept.tolist() == [True, False, False, True, False]
    assert found.rank.tolist()[3] < found.rank.tolist()[0], "what is late comes at once"
    assert found.consumed == {LOG: 6}


def test_a_time_counts_from_the_end_of_the_log_on_for_which_it_was_told() -> None:
    found = taken([100, 50], InputTime(ms=110, end=3), {"rows/idle": 70})
    assert found.kept.tolist() == [False, True]
    assert found.names[TASK]["rows/idle"] == 70


def test_nothing_is_taken_while_no_time_is_known_and_all_of_what_is_silent() -> None:
    assert not taken([100, 50], InputTime()).kept.any()
    found = taken([100, 50], InputTime(ms=80, end=2, silent=True))
    assert found.kept.all()
    assert found.consumed == {LOG: 2}


def test_a_late_record_is_taken_though_the_certain_time_is_behind_what_is_done() -> None:
    kept = {"rows/idle": 70, "rows/read": 5, "rows/done": 110}  # done while its writers were silent
    found = taken([60, 110, 90], InputTime(ms=80, end=8), kept, start=5)
    assert found.kept.all()
    assert found.consumed == {LOG: 8}
    assert found.names[TASK]["rows/done"] == 110


def test_what_fills_a_batch_is_taken_all_the_same() -> None:
    found = taken([100, 50], InputTime(), most_bytes=100)
    assert found.kept.all()
    assert found.full == [LOG]
    assert len(found.remarks()) == 1


def next_of(found: CertainTimes) -> list[int]:
    return [one.offset for one in found.next((HELD,))]


def test_a_search_takes_the_earliest_records_and_says_which_is_next() -> None:
    times, known = [100, 50, 120, 60, 50], InputTime(ms=110, end=5)
    found = taken(times, known, most_taken=0)
    assert not found.kept.any()
    assert next_of(found) == [1, 4], "of one time: a position does not tell them apart"
    assert found.consumed == {LOG: 0}
    assert found.names[TASK] == {"rows/idle": -1, "rows/read": 5, "rows/done": -1}
    one_more = taken(times, known, most_taken=3)
    assert next_of(one_more) == [0]
    assert one_more.names[TASK] == {"rows/idle": 60, "rows/read": 5, "rows/done": 60}, (
        "the next owner, who is told 110, has something to do"
    )
    found = taken(times, known, most_taken=1)
    assert found.kept.tolist() == [False, True, False, False, True]
    assert next_of(found) == [3]
    assert found.names[TASK]["rows/done"] == 50
    found = taken(times, known, found.names[TASK], most_taken=1)
    assert found.kept.tolist() == [False, False, False, True, False]
    assert next_of(found) == [0]
    found = taken(times, known, found.names[TASK], most_taken=1)
    assert found.kept.tolist() == [True, False, False, False, False]
    assert next_of(found) == [], "the last one waits for its time"
    assert found.consumed == {LOG: 2}


def test_a_search_takes_what_fills_a_batch_in_the_order_of_the_log() -> None:
    found = taken([100, 50, 70], InputTime(), most_bytes=100, most_taken=1)
    assert found.kept.tolist() == [True, False, False]
    assert next_of(found) == [1]
    assert found.consumed == {LOG: 1}
    assert found.names[TASK] == {"rows/idle": -1, "rows/read": 3, "rows/done": -1}


def test_a_search_leaves_no_late_record() -> None:
    kept = {"rows/idle": 110, "rows/read": 5, "rows/done": 110}
    found = taken([120, 90, 115], InputTime(ms=130, end=7), kept, start=4, most_taken=0)
    assert found.kept.tolist() == [False, True, False]
    assert next_of(found) == [6]
    assert found.names[TASK]["rows/done"] == 110


def test_with_the_highest_time_what_was_held_back_is_taken_once() -> None:
    kept = {"rows/idle": 110, "rows/read": 5, "rows/done": 110}
    found = taken([120, 60, 110, 90], None, kept, start=2)
    assert found.kept.tolist() == [True, False, False, True]
    assert found.consumed == {LOG: 6}


def test_with_the_highest_time_a_short_range_leaves_the_rest_of_what_was_held_back() -> None:
    kept = {"rows/idle": 110, "rows/read": 9, "rows/done": 100}
    found = taken([120, 60, 150], None, kept, start=2)
    assert found.kept.tolist() == [True, False, True]
    assert found.consumed == {LOG: 5}
    assert found.names[TASK]["rows/done"] == 100, "one of 130 at offset 7 is still to come"
    assert found.names[TASK]["rows/read"] == 9


def test_a_range_that_ends_in_front_of_what_was_read_takes_nothing_and_is_read_on_at_once() -> None:
    """As the first one behind a move to a thread with less room: what lies behind may be earlier,
    and a position does not tell which of it is done."""
    kept = {"rows/idle": 110, "rows/read": 9, "rows/done": 100}
    for known in (InputTime(ms=200, end=4), InputTime(ms=200, end=4, silent=True)):
        found = taken([120, 60, 150], known, kept, start=2)
        assert not found.kept.any()
        assert next_of(found) == [2]
        assert found.consumed == {LOG: 2}
        assert found.names[TASK] == kept


def test_a_range_that_fills_a_batch_in_front_of_what_was_read_is_taken_in_its_order() -> None:
    kept = {"rows/idle": 110, "rows/read": 9, "rows/done": 100}
    found = taken([120, 60, 150], InputTime(ms=200, end=4), kept, start=2, most_bytes=100)
    assert found.kept.tolist() == [True, False, True]
    assert found.full == [LOG]
    assert found.consumed == {LOG: 5}
    assert found.names[TASK] == kept, "one of 130 at offset 7 is still to come"


def test_of_what_was_read_only_that_is_left_which_is_not_done() -> None:
    """Behind a record of a clock that is ahead all later ones would be read in each batch."""
    times = np.array([9_000, 60, 110, 90, 130], np.int64)
    texts = pa.array([b"any"] * len(times))
    offsets = np.arange(2, 7, dtype=np.int64)
    columns = LogColumns(keys=texts, values=texts, offsets=offsets, timestamps=times)
    kept = {"rows/idle": 110, "rows/read": 5, "rows/done": 110}
    tasks = [TaskContext(TASK, "", "", kept)]
    request = batch_request({LOG: OffsetRange(2, 7)}, tasks=tasks, log_ends={LOG: 7}, times={})
    found = not_done({LOG: columns}, (HELD,), request)[LOG]
    assert found.offsets.tolist() == [2, 5, 6], "the last two are new, one of them is late"
    highest = not_done({LOG: columns}, (HELD,), replace(request, times=None))
    assert len(highest[LOG]) == len(times)


def test_the_head_of_a_source_is_the_first_record_that_is_left_for_whatever_reason() -> None:
    log = TopicPartition("in", 0)
    own = replace(
        source("in", key=serdes.string(), value=serdes.long(), index=1), timed="own", merged=True
    )
    batch = BatchInput(
        batches={},
        rows={},
        source=np.array([1, 1, 1, 1], np.int32),
        partition=np.zeros(4, np.int32),
        offset=np.arange(4, dtype=np.int64),
        timestamp=np.array([50, 120, 130, 900], np.int64),
        bytes=100,
    )
    request = batch_request(
        {LOG: OffsetRange(0, 0), log: OffsetRange(0, 4)},
        tasks=[TaskContext(TASK, "", "", {})],
        log_ends={LOG: 0, log: 4},
        times={LOG: InputTime(ms=100, end=0)},
        until_ms={log: 500},
    )
    found = certain_times(batch, (HELD, own), request)
    assert found is not None
    assert found.kept.tolist() == [True, False, False, False]
    assert found.consumed == {LOG: 0, log: 1}
    assert found.heads == {log: 120}, "the bound leaves the last one alone"
    assert found.names[TASK]["own/idle"] == 119


@pytest.mark.parametrize(("wall_ms", "left"), [(10_000, [4]), (5_000, [])])
def test_a_record_far_ahead_does_not_keep_those_behind_it_from_being_read(
    wall_ms: int, left: Sequence[int]
) -> None:
    """One of the future is read at once, as the others would not come to its time soon."""
    log, times = TopicPartition("in", 0), [50, 9_000, 60, 70, 8_000]
    own = replace(source("in", key=serdes.string(), value=serdes.long()), timed="own")
    batch = BatchInput(
        batches={},
        rows={},
        source=np.zeros(5, np.int32),
        partition=np.zeros(5, np.int32),
        offset=np.arange(5, dtype=np.int64),
        timestamp=np.array(times, np.int64),
        bytes=100,
    )
    request = batch_request(
        {log: OffsetRange(0, 5)},
        tasks=[TaskContext(TASK, "", "", {})],
        log_ends={log: 5},
        times={},
        until_ms={log: 100},
        wall_clock_ms=wall_ms,
    )
    found = certain_times(batch, (own,), request)
    assert found is not None
    assert np.flatnonzero(~found.kept).tolist() == left
    assert found.heads == dict.fromkeys([log][: len(left)], 8_000)
    assert found.inputs[TASK][0].ms == 9_000
