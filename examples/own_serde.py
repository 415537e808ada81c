"""A serde of one's own: readings of sensors as packets of ten bytes, decoded a column at a time
with NumPy.

    everflow broker --port 9092 --topic readings:4 --topic hot:4
    everflow run own_serde:builder --application-id hot-sensors --bootstrap-servers 127.0.0.1:9092

A type, `encode` and `decode` would be enough; with methods for a whole column, as here, a batch is
decoded at once. A serde is compared and copied to the workers, so it is frozen. A packet that is
none is refused with its row, so that the error, or the dead letter, names that record and no other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F

from everflow import StreamsBuilder, serdes
from everflow.serdes import SerdeError

PACKET = np.dtype([("sensor", ">u2"), ("celsius", ">i2"), ("second", ">u4"), ("battery", ">u2")])
"""On the wire: temperature in hundredths of a degree, battery in millivolts."""


@dataclass(frozen=True)
class ReadingSerde:
    """Packets <-> struct<sensor int, celsius double, second bigint, battery int>."""

    kind: str = "reading"

    @property
    def type(self) -> pa.DataType:
        fields = {
            "sensor": pa.int32(),
            "celsius": pa.float64(),
            "second": pa.int64(),
            "battery": pa.int32(),
        }
        return pa.struct(list(fields.items()))

    def encode(self, value: dict[str, Any] | None) -> bytes | None:
        if value is None:
            return None
        row = (value["sensor"], round(value["celsius"] * 100), value["second"], value["battery"])
        try:
            return np.array([row], PACKET).tobytes()
        except (OverflowError, TypeError) as error:
            raise SerdeError(f"{value} is no reading: {error}") from None

    def decode(self, data: bytes | None) -> Any:
        return self.decode_array(pa.array([data], pa.binary()))[0].as_py()

    def encode_array(self, values: pa.Array) -> pa.Array:
        return pa.array([self.encode(value) for value in values.to_pylist()], pa.binary())

    def decode_array(self, data: pa.Array) -> pa.Array:
        packets = data.to_pylist()
        for row, packet in enumerate(packets):
            if packet is not None and len(packet) != PACKET.itemsize:
                raise SerdeError(
                    f"a reading takes {PACKET.itemsize} bytes, found {len(packet)}", index=row
                )
        missing = np.array([packet is None for packet in packets], bool)
        found = np.frombuffer(
            b"".join(packet or bytes(PACKET.itemsize) for packet in packets), PACKET
        )
        columns = [
            pa.array(found["sensor"].astype(np.int32)),
            pa.array(found["celsius"] / 100.0),
            pa.array(found["second"].astype(np.int64)),
            pa.array(found["battery"].astype(np.int32)),
        ]
        return pa.StructArray.from_arrays(columns, fields=list(self.type), mask=pa.array(missing))


builder = StreamsBuilder()
(
    builder.stream("readings", key=serdes.string(), value=ReadingSerde())
    .filter(F.col("value.celsius") >= 60)
    .map(key=F.col("value.sensor").cast("string"), value=F.col("value.celsius"))
    .to("hot", value=serdes.double())
)
