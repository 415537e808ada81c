"""Records of one partition in columns, as a step takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from everflow.records import Int64, joined_headers

_NOTHING: Int64 = np.empty(0, np.int64)


@dataclass(frozen=True, kw_only=True)
class LogColumns:
    """Records in log order, columns of one length. ``keys`` and ``values``: binary, null where the
    record has none; ``timestamps`` in ms; ``headers``: `everflow.records.HEADERS`, or None
    where no record has any, or they were not asked for. ``unread``: by row, why a record could not
    be read; the columns have what could."""

    keys: pa.Array
    values: pa.Array
    offsets: Int64
    timestamps: Int64
    headers: pa.Array | None = None
    unread: Mapping[int, Exception] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values."""
        return int(self.keys.nbytes + self.values.nbytes)

    def __post_init__(self) -> None:
        if isinstance(self.keys, pa.ChunkedArray) or isinstance(self.values, pa.ChunkedArray):
            raise TypeError("more than 2 GiB in one column: the reader did not keep to its bound")

    def before(self, offset: int) -> LogColumns:
        """The records below this offset."""
        count = int(np.searchsorted(self.offsets, offset))
        if count == len(self):
            return self
        return self.of(slice(0, count))

    def of(self, chosen: slice) -> LogColumns:
        """Some records that follow one another."""
        start, stop, _ = chosen.indices(len(self))
        return LogColumns(
            keys=self.keys[start:stop],
            values=self.values[start:stop],
            offsets=self.offsets[start:stop],
            timestamps=self.timestamps[start:stop],
            headers=None if self.headers is None else self.headers[start:stop],
            unread={row - start: why for row, why in self.unread.items() if start <= row < stop},
        )

    @staticmethod
    def concat(parts: Sequence[LogColumns]) -> LogColumns:
        """The records of all parts, one after the other."""
        if len(parts) == 1:
            return parts[0]
        if not parts:
            nothing = pa.array([], pa.binary())
            return LogColumns(keys=nothing, values=nothing, offsets=_NOTHING, timestamps=_NOTHING)
        begins = np.cumsum([0, *map(len, parts)]).tolist()
        return LogColumns(
            keys=pa.concat_arrays([part.keys for part in parts]),
            values=pa.concat_arrays([part.values for part in parts]),
            offsets=np.concatenate([part.offsets for part in parts]),
            timestamps=np.concatenate([part.timestamps for part in parts]),
            headers=joined_headers([(part.headers, len(part)) for part in parts]),
            unread={
                begin + row: why
                for begin, part in zip(begins, parts, strict=False)
                for row, why in part.unread.items()
            },
        )
