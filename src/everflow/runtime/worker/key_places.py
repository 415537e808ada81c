"""Looks whether keys lie in the partitions that their topic's partitioner says.

librdkafka's producers (confluent-kafka, and so most in Python) spread keys by crc32, Java's and
everflow's by murmur2: topics of both are joined in vain, and nothing fails. So a few keys of each
micro-batch are looked at, of the sources whose keys a store relies on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from everflow.columns.key_partitions import BY_HASH, CRC32, key_partitions
from everflow.records import EdgeBatch, Int64, KeyPlaces
from everflow.topology.partitioners import KeyPartitioner, partitioner_name, partitions_of
from everflow.topology.plan import Source
from everflow.user_program import shown

MOST_KEYS = 256
"""Of a topic and micro-batch."""
FEWEST = 8
"""Of fewer keys nothing is concluded: they lie where several partitioners put them."""
ALL_UP_TO = 2_048
"""So many keys of a topic are looked at in the first micro-batches; then those of one in
`ONE_OF`."""
ONE_OF = 16


@dataclass(frozen=True)
class KeyCheck:
    """``partitions``: how many each topic has. It keeps count of what it has looked at, in a worker
    of its own."""

    partitions: Mapping[str, int] = field(default_factory=dict)
    _checked: dict[str, int] = field(default_factory=dict, repr=False, compare=False)
    _turns: dict[str, int] = field(default_factory=dict, repr=False, compare=False)

    def of(self, source: Source, raw: EdgeBatch) -> KeyPlaces | None:
        """Where keys of a micro-batch's raw records lie; None where none is looked at."""
        count = self.partitions.get(source.topic, 1)
        if source.partitioner is None or count == 1 or not len(raw):
            return None
        turn = self._turns[source.topic] = self._turns.get(source.topic, -1) + 1
        if self._checked.get(source.topic, 0) >= ALL_UP_TO and turn % ONE_OF:
            return None
        rows = np.arange(0, len(raw), -(-len(raw) // MOST_KEYS))
        keys = raw.key.take(pa.array(rows))
        # librdkafka's crc32 spreads empty keys at random, too.
        at_random = pc.equal(pc.binary_length(keys), 0) if source.partitioner == CRC32 else None
        keyed = (
            keys.is_valid()
            if at_random is None
            else pc.and_kleene(keys.is_valid(), pc.invert(at_random))
        )
        some = np.flatnonzero(keyed.to_numpy(zero_copy_only=False))
        if not len(some):
            return None
        keys, lie = keys.take(pa.array(some)), raw.partition[rows[some]].astype(np.int64)
        self._checked[source.topic] = self._checked.get(source.topic, 0) + len(keys)
        wrong = np.flatnonzero(_said(source, source.partitioner, keys, count) != lie)
        by = partitioner_name(source.partitioner)
        if not len(wrong):
            return KeyPlaces(source.node, source.topic, by, len(keys), 0)
        sample = f"{shown(keys[int(wrong[0])].as_py())} in {int(lie[wrong[0]])}"
        fits = [one for one in BY_HASH if (key_partitions(keys, count, one) == lie).all()]
        fits = fits if len(keys) >= FEWEST else []
        return KeyPlaces(
            source.node, source.topic, by, len(keys), len(wrong), sample, fits[0] if fits else ""
        )


def _said(source: Source, by: KeyPartitioner, keys: pa.Array, count: int) -> Int64:
    """The partition that the partitioner gives each key; -1 where a function of the user fails."""
    try:
        return partitions_of(by, source.topic, keys, source.key_serde, count)
    except Exception:  # a look at keys ends no application
        return np.full(len(keys), -1, np.int64)
