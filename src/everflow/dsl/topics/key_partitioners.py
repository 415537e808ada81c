"""By which partitioner a source's topics are written, as the user says it."""

from __future__ import annotations

import pyarrow as pa

from everflow.columns.key_partitions import BY_HASH
from everflow.dsl.functions import check_parameters
from everflow.errors import TopologyError
from everflow.topology.graph import FunctionExpr


def key_partitioner_of(
    given: object, operator: str, where: str | None
) -> str | FunctionExpr | None:
    """``partitioner`` of ``operator``, checked; None stays None."""
    if given is None or (isinstance(given, str) and given in BY_HASH):
        return given
    if callable(given):
        part = f"{operator}: partitioner"
        check_parameters(given, ("topic", "key", "value", "partitions"), part, where)
        return FunctionExpr(given, pa.int64())
    raise TopologyError(
        f"{operator}: partitioner is one of {', '.join(BY_HASH)}, or a function of (topic, key, "
        f"value, number of partitions) that gives a partition, found {given!r}; 'crc32' is "
        f"confluent-kafka's (librdkafka's consistent_random), 'murmur2' Java's",
        where=where,
    )
