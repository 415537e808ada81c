"""``approx_count_distinct``: Spark's HyperLogLog++, in the layout of Spark's own sketch.

A sketch of precision p has 2^p registers of 6 bits, ten to a word of 64 bits, the first lowest;
words are big endian. Two sketches merge by the larger of each register, so what a sketch says does
not depend on the order or the cut of its values. What goes in are Spark's hashes (``xxhash64``).
"""

from __future__ import annotations

import json
import math
import pkgutil
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from everflow.operators.fold import StateColumn, valid
from everflow.operators.folds.items import Items
from everflow.records import Int64
from everflow.serdes.base import binary_from_matrix, matrix_from_binary

LOWEST, HIGHEST = 4, 18
"""The precisions that the corrections know."""
_PER_WORD, _BITS, _MASK = 10, 6, np.uint64(63)
_NEIGHBOURS = 6
_ALPHA = {4: 0.673, 5: 0.697, 6: 0.709}
_Words = npt.NDArray[np.uint64]


def precision_of(rsd: float) -> int:
    """The precision whose relative standard deviation is at most ``rsd``, as Spark's."""
    return math.ceil(2.0 * math.log(1.106 / rsd) / math.log(2.0))


def distinct(columns: Sequence[StateColumn], items: Items) -> list[pa.Array]:
    """Per group the sketch of its states and values."""
    precision = columns[0].limit
    width = words_of(precision)
    words = np.zeros((items.groups, width), np.uint64)
    there = np.flatnonzero(valid(items.states[0]))
    there = there[np.argsort(items.state_groups[there], kind="stable")]
    groups = items.state_groups[there]
    rows = matrix_from_binary(items.states[0].take(pa.array(there)), 8 * width)
    stored = np.ascontiguousarray(rows).view(">u8").astype(np.uint64).reshape(-1, width)
    begins = np.flatnonzero(np.diff(groups, prepend=-1) != 0)
    turns = np.arange(len(groups)) - np.repeat(begins, np.diff(begins, append=len(groups)))
    for turn in range(int(turns.max(initial=-1)) + 1):  # sessions that became one
        now = turns == turn
        words[groups[now]] = _larger(words[groups[now]], stored[now])
    used = np.flatnonzero(valid(items.values[0]))
    hashes = items.values[0].take(pa.array(used)).to_numpy().view(np.uint64)
    _add(words.reshape(-1), width, items.value_groups[used], hashes, precision)
    return [binary_from_matrix(words.astype(">u8").view(np.uint8).reshape(-1, 8 * width))]


def words_of(precision: int) -> int:
    """How many words a sketch takes."""
    return (1 << precision) // _PER_WORD + 1


def estimates(sketches: pa.Array, precision: int) -> pa.Array:
    """How many distinct values each sketch has seen, ``int64``; 0 for null."""
    width, registers = words_of(precision), 1 << precision
    there = valid(sketches)
    rows = matrix_from_binary(sketches.drop_null(), 8 * width)
    words = np.ascontiguousarray(rows).view(">u8").astype(np.uint64).reshape(-1, width)
    inverse, zeros = np.zeros(len(words)), np.zeros(len(words))
    for slot in range(_PER_WORD):
        used = words[:, : (registers - slot + _PER_WORD - 1) // _PER_WORD]
        found = (used >> np.uint64(slot * _BITS)) & _MASK
        inverse += np.ldexp(1.0, -found.astype(np.int32)).sum(axis=1)
        zeros += np.count_nonzero(found == 0, axis=1)
    alpha = _ALPHA.get(precision, 0.7213 / (1.0 + 1.079 / registers))
    raw = alpha * registers * registers / inverse
    corrected = np.where(raw < 5.0 * registers, raw - _bias(raw, precision), raw)
    with np.errstate(divide="ignore"):
        linear = registers * np.log(registers / zeros)
    few = (zeros > 0) & (
        (linear <= _corrections(precision).threshold) | (corrected <= 2.5 * registers)
    )
    counts = np.zeros(len(sketches), np.int64)
    counts[there] = np.floor(np.where(few, linear, corrected) + 0.5).astype(np.int64)
    return pa.array(counts)


def _larger(one: _Words, other: _Words) -> _Words:
    """The larger of each register."""
    found = np.zeros_like(one)
    for slot in range(_PER_WORD):
        shift = np.uint64(slot * _BITS)
        found |= np.maximum((one >> shift) & _MASK, (other >> shift) & _MASK) << shift
    return found


def _add(words: _Words, width: int, groups: Int64, hashes: _Words, precision: int) -> None:
    """Let hashes into the sketches of their groups, which lie one behind the other in ``words``."""
    registers = (hashes >> np.uint64(64 - precision)).astype(np.int64)
    rest = (hashes << np.uint64(precision)) | np.uint64(1 << (precision - 1))
    high, low = rest >> np.uint64(32), rest & np.uint64(0xFFFFFFFF)
    halves = np.where(high > 0, high, low).astype(np.float64)
    ranks = np.where(high > 0, 32, 64) - np.frexp(halves)[1] + 1
    # The last assignment wins: of a register's ranks the largest.
    places = groups * (1 << precision) + registers
    order = np.lexsort((ranks, places))
    last = order[np.diff(places[order], append=-1) != 0]
    at = groups[last] * width + registers[last] // _PER_WORD
    slots, new = registers[last] % _PER_WORD, ranks[last].astype(np.uint64)
    for slot in range(_PER_WORD):
        mine, shift = slots == slot, np.uint64(slot * _BITS)
        held = words[at[mine]]
        more = np.maximum((held >> shift) & _MASK, new[mine])
        words[at[mine]] = (held & ~(_MASK << shift)) | (more << shift)


class _Corrections(NamedTuple):
    """Of one precision. ``threshold``: up to which estimate linear counting is used; ``estimates``:
    known raw ones, rising; ``biases``: their mean biases."""

    threshold: float
    estimates: npt.NDArray[np.float64]
    biases: npt.NDArray[np.float64]


@cache
def _corrections(precision: int) -> _Corrections:
    """As Spark's own sketch has them (Heule et al., 2013)."""
    data = pkgutil.get_data(__name__, "sketch_bias.json")
    assert data is not None  # the loader of an installed package reads its files
    found, number = json.loads(data), precision - LOWEST
    estimates, biases = (np.array(found[name][number]) for name in ("estimates", "biases"))
    return _Corrections(found["thresholds"][number], estimates, biases)


def _bias(raw: npt.NDArray[np.float64], precision: int) -> npt.NDArray[np.float64]:
    """The mean bias of the six known estimates that are nearest to each raw one."""
    _, known, biases = _corrections(precision)
    low = np.maximum(np.searchsorted(known, raw) - _NEIGHBOURS + 1, 0)
    high = np.minimum(low + _NEIGHBOURS, len(known))
    while True:
        far = np.minimum(high, len(known) - 1)
        moves = (high < len(known)) & ((raw - known[far]) ** 2 < (raw - known[low]) ** 2)
        if not moves.any():
            break
        low, high = low + moves, high + moves
    total = np.zeros(len(raw))
    for near in range(_NEIGHBOURS):
        at = low + near
        total += np.where(at < high, biases[np.minimum(at, len(known) - 1)], 0.0)
    found: npt.NDArray[np.float64] = total / (high - low)
    return found
