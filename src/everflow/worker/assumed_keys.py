"""Checks that keys are where `KStream.assume_partitioned` says, by a column (note 077).

Without the check a record in the wrong partition is no error: its key has a second aggregate in
another task, and neither of them is right.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from everflow.records import Int64, valid
from everflow.topology.partitioners import (
    KeyField,
    KeyFunction,
    partitioner_name,
    partitions_of,
)
from everflow.topology.plan import AssumedOp
from everflow.user_program import shown
from everflow.worker.failures import Failures


class MisplacedKey(ValueError):
    """A key is in another partition than the program assumes."""


def require_in_place(op: AssumedOp, failures: Failures, keys: pa.Array, count: int) -> None:
    """``keys``: bytes of the batch's keys, or of the field that says their partitions. A record
    without a key has no place. ``count``: partitions of the topic. RecordFailure for records whose
    keys belong to other tasks, or of which a function knows no partition."""
    batch, tasks = failures.batch, op.tasks or count
    rows = np.flatnonzero(valid(batch.key))
    keyed = keys if len(rows) == len(keys) else keys.take(pa.array(rows))
    found = _partitions(op, failures, keyed, rows, count)
    wrong = np.flatnonzero(found % tasks != batch.partition[rows])
    for row, home in zip(rows[wrong].tolist(), found[wrong].tolist(), strict=True):
        there = failures.sources[int(batch.source[row])].log(int(batch.partition[row]))
        failures.add(
            row,
            MisplacedKey(
                f"the key {shown(batch.key[row].as_py())} is in partition {there.partition} of "
                f"{there.topic}, and {partitioner_name(op.by)} puts it into partition {home} of "
                f"{count}: assume_partitioned does not hold, and two tasks would each have a part "
                f"of its results. Leave assume_partitioned out, so that a repartition topic brings "
                f"equal keys together, or give it the by= or partitioner= of whoever writes "
                f"{there.topic}"
            ),
        )
    failures.raise_added()


def _partitions(
    op: AssumedOp, failures: Failures, keys: pa.Array, rows: Int64, count: int
) -> Int64:
    """The partition of each of the ``keys``, those of ``rows``."""
    part = op.by
    by, serde = (part.by, part.serde) if isinstance(part, KeyField) else (part, op.key_serde)
    if not isinstance(by, KeyFunction):
        return partitions_of(by, op.topic, keys, serde, count)
    codes = keys.dictionary_encode()  # the function is called once for each key
    distinct, of = codes.dictionary, codes.indices.to_numpy(zero_copy_only=False)
    found = np.full(len(distinct), -1, np.int64)
    for number in range(len(distinct)):
        try:
            one = distinct[number : number + 1]
            found[number] = partitions_of(by, op.topic, one, serde, count)[0]
        except BaseException as error:
            for row in rows[of == number].tolist():
                failures.add(row, error)
    failures.raise_added()
    answers: Int64 = found[of]
    return answers
