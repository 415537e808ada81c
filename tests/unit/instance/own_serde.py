"""A serde as a user writes one, for tests of what becomes of its errors."""

import pyarrow as pa


class OwnSerde:
    """A serde of a user: what it raises is no error of everflow."""

    kind, type = "own", pa.string()

    def decode(self, data: bytes | None) -> str | None:
        return None if data is None else {b"a": "A"}[data]

    def decode_array(self, data: pa.Array) -> pa.Array:
        return pa.array([self.decode(item) for item in data.to_pylist()], self.type)

    def encode(self, value: str | None) -> bytes | None:
        return None if value is None else {"A": b"a"}[value]

    def encode_array(self, values: pa.Array) -> pa.Array:
        return pa.array([self.encode(item) for item in values.to_pylist()], pa.binary())

    def __repr__(self) -> str:
        return "own()"
