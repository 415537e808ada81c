"""The rows of a DataFrame's table as its store keeps them: sorted key bytes, each once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from everflow.operators.fold import valid
from everflow.records import StoreChanges
from everflow.topology.graph import LoadedTableNode
from everflow.user_program import shown

CHUNK_ROWS = 50_000


class LoadedRows(NamedTuple):
    """``keys`` and ``values``: binary columns; ``without_key``: rows that were left out."""

    store: str
    keys: pa.Array
    values: pa.Array
    without_key: int

    def chunks(self, at_ms: int) -> Iterator[StoreChanges]:
        """Parts that a store takes at once, one at least; ``at_ms``: the time of all entries."""
        for start in range(0, max(1, len(self.keys)), CHUNK_ROWS):
            part = slice(start, start + CHUNK_ROWS)
            keys = self.keys[part].to_pylist()
            times = np.full(len(keys), at_ms, np.int64)
            yield StoreChanges(self.store, keys, self.values[part].to_pylist(), times)


def loaded_rows(node: LoadedTableNode) -> LoadedRows:
    """The table's rows as they are now. ValueError for a key that two of them have; and whatever
    loading raises."""
    store = node.store
    keys, values, without_key = [pa.array([], pa.binary())], [pa.array([], pa.binary())], 0
    for key, value in node.rows.rows():
        keyed = np.flatnonzero(valid(key))
        without_key += len(key) - len(keyed)
        at = pa.array(keyed)
        keys.append(store.key_serde.encode_array(key.take(at)).cast(pa.binary()))
        values.append(store.value_serde.encode_array(value.take(at)).cast(pa.binary()))
    every = pa.concat_arrays(keys)
    order = pc.sort_indices(every)
    every = every.take(order)
    if len(every) > 1:
        again = pc.equal(every[1:], every[:-1])
        if pc.any(again).as_py():
            twice = store.key_serde.decode(every[pc.index(again, True).as_py()].as_py())
            raise ValueError(
                f"two rows have the key {shown(twice)}; leave one out, for example by "
                f"dropDuplicates on the key"
            )
    return LoadedRows(store.name, every, pa.concat_arrays(values).take(order), without_key)
