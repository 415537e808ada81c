"""Decodes the records of the log, on every road: a plan's step before all others.

One decoder per serde is one truth: what a record's bytes say does not depend on how the batch runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from everflow.errors import EverflowError, RetriableError
from everflow.kafka.reading.log_columns import LogColumns
from everflow.operators.user_code import require_users
from everflow.records import EdgeBatch, Int64, TopicPartition
from everflow.runtime.step.record_times import odd_times, refuse_negative
from everflow.serdes import Serde
from everflow.serdes.fitting import column_of
from everflow.serdes.json_serde import JsonSerde
from everflow.topology.hops import HopInput, as_text, concat
from everflow.topology.physical_plan import (
    DEAD_LETTER_SLOT,
    DEAD_LETTER_TYPE,
    PhysicalPlan,
    Source,
)
from everflow.user_texts import error_text


@dataclass(frozen=True)
class LogDecoder:
    """Records of the log -> the slots of the sources, and the dead letters."""

    sources: tuple[Source, ...]
    headers: bool

    @staticmethod
    def of(plan: PhysicalPlan) -> LogDecoder:
        """For any plan."""
        return LogDecoder(plan.sources, plan.headers)

    def run(self, read: Mapping[TopicPartition, LogColumns]) -> HopInput:
        """Undecodable records are live on the dead letter slot alone. Raises RecordTimeError."""
        index = {source.topic: source.index for source in self.sources}
        lengths = [len(columns) for columns in read.values()]
        hop = HopInput(
            batches={},
            rows={},
            source=np.repeat(np.array([index[tp.topic] for tp in read], np.int32), lengths),
            partition=np.repeat(np.array([tp.partition for tp in read], np.int32), lengths),
            offset=_joined([columns.offsets for columns in read.values()]),
            timestamp=_joined([columns.timestamps for columns in read.values()]),
            control="{}",
        )
        letters = []
        odd = odd_times(hop, self.sources)
        for source in self.sources:
            mine = LogColumns.concat(
                [found for tp, found in read.items() if tp.topic == source.topic]
            )
            raw = _raw(mine, np.flatnonzero(hop.source == source.index), hop)
            decoded, bad = decoded_records(source, raw)
            if odd and source.own_times:
                refuse_negative(source, decoded)
            hop.batches[source.slot], hop.rows[source.slot] = decoded, decoded.seq
            letters.append(bad)
            hop.bytes += raw.key.nbytes + raw.value.nbytes
        dead = concat(letters)
        hop.batches[DEAD_LETTER_SLOT], hop.rows[DEAD_LETTER_SLOT] = dead, dead.seq
        return hop


def decoded_records(source: Source, raw: EdgeBatch) -> tuple[EdgeBatch, EdgeBatch]:
    """Raw records of a source -> the decoded ones, and those that cannot be decoded as dead
    letters, whose bytes are as they came."""
    errors: dict[int, str] = {}
    key = _decoded(source.key_serde, raw.key, "key", errors)
    value = _decoded(source.value_serde, raw.value, "value", errors)
    good = raw.with_columns(key, value)
    if not errors:
        return good, _dead_letters(raw, np.empty(0, np.int64), errors)
    rows = np.array(sorted(errors), dtype=np.int64)
    keep = np.ones(len(raw), dtype=bool)
    keep[rows] = False
    return good.take(np.flatnonzero(keep)), _dead_letters(raw, rows, errors)


def _decoded(serde: Serde, raw: pa.Array, part: str, errors: dict[int, str]) -> pa.Array:
    if serde.kind == "string":
        return as_text(raw)
    if isinstance(serde, JsonSerde):
        column, bad = serde.decode_marked(raw)
        errors.update((row, _told(part, serde, str(error))) for row, error in bad.items())
        return column
    try:
        return serde.decode_array(raw)
    except RetriableError:  # an outage (of a schema registry, say) is no fault of a record
        raise
    except BaseException as error:  # a serde of the user may raise anything
        require_users(error)
        return _decoded_each(serde, raw.to_pylist(), part, errors)


def _decoded_each(
    serde: Serde, raw: Iterable[bytes | None], part: str, errors: dict[int, str]
) -> pa.Array:
    rows = []
    for row, data in enumerate(raw):
        try:
            rows.append(column_of([serde.decode(data)], serde.type))  # which need not fit
        except RetriableError:
            raise
        except BaseException as error:
            require_users(error)
            text = str(error) if isinstance(error, EverflowError) else error_text(error)
            errors[row] = _told(part, serde, text)
            rows.append(pa.nulls(1, serde.type))
    return pa.concat_arrays(rows)


def _told(part: str, serde: Serde, why: str) -> str:
    return f"{part} is not a valid {serde!r}: {why}"


def _dead_letters(raw: EdgeBatch, rows: Int64, errors: Mapping[int, str]) -> EdgeBatch:
    bad = raw.take(rows)
    texts = pa.array([errors[int(row)] for row in rows], pa.string())
    value = pa.StructArray.from_arrays([bad.value, texts], fields=list(DEAD_LETTER_TYPE.value))
    return bad.with_columns(value=value)


def _joined(columns: Sequence[Int64]) -> Int64:
    return np.concatenate(columns) if columns else np.empty(0, np.int64)


def _raw(found: LogColumns, rows: Int64, hop: HopInput) -> EdgeBatch:
    return EdgeBatch(
        key=found.keys,
        value=found.values,
        timestamp=hop.timestamp[rows],
        seq=rows,
        source=hop.source[rows],
        partition=hop.partition[rows],
        offset=hop.offset[rows],
        headers=found.headers,
    )
