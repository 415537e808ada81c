"""Compresses the records of a batch as Kafka's brokers and Java clients read them. Pure."""

from __future__ import annotations

import pyarrow as pa

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
"""``compression.type`` and its number in a batch's attributes."""
# Arrow's own LZ4 frames chain their blocks, which Java refuses. The header: version 1, independent
# blocks of at most 64 KiB, no checksums; its last byte is the header's checksum.
_LZ4_HEAD = bytes.fromhex("04224d18604082")
_LZ4_BLOCK = 64 << 10
_LZ4_STORED = 1 << 31


def compressed(codec: str, level: int | None, records: pa.Buffer) -> pa.Buffer | bytes:
    """``records`` in one of `CODECS`; ``level`` where the codec has levels, None for its own."""
    if codec == "none":
        return records
    if codec == "lz4":
        return _lz4(records)
    return _codec(codec, level).compress(records)


def check_level(codec: str, level: int | None) -> str | None:
    """Why the codec cannot have that level; None if it can."""
    try:
        if codec not in ("none", "lz4"):
            _codec(codec, level)
    except (ValueError, TypeError, pa.ArrowException) as failure:
        return str(failure)
    return None


def _codec(codec: str, level: int | None) -> pa.Codec:
    # snappy has no levels
    return pa.Codec(codec) if level is None or codec == "snappy" else pa.Codec(codec, level)


def _lz4(records: pa.Buffer) -> bytes:
    block_codec = pa.Codec("lz4_raw")
    parts = [_LZ4_HEAD]
    for start in range(0, records.size, _LZ4_BLOCK):
        block = records.slice(start, min(_LZ4_BLOCK, records.size - start))
        packed = bytes(block_codec.compress(block))
        if len(packed) < block.size:
            parts += [len(packed).to_bytes(4, "little"), packed]
        else:
            parts += [(block.size | _LZ4_STORED).to_bytes(4, "little"), bytes(block)]
    return b"".join([*parts, bytes(4)])
