"""Formats of a schema registry: the trades as a program, beside Kafka Streams with Java's serdes;
and the serdes alone, beside Java's, Spark's and fastavro's.

Before a figure of a program counts, its output is compared; before one of a serde does, what it
writes, and what it reads of that, are compared with the others'.
"""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

from bench.programs import drain
from bench.programs.catalogue import PROGRAMS
from bench.results import Measurement
from bench.schemas.formats import (
    AVERAGE,
    AVERAGES,
    AVRO,
    JSON,
    PROTOBUF,
    TRADE,
    TRADES,
    avro_schema,
    encoded,
    registered,
)
from bench.schemas.peer import HEAD, JavaPeer
from bench.schemas.programs import REGISTRY_VARIABLE, WITH_SCHEMAS
from bench.systems import EVERFLOW, KAFKA_STREAMS, Launcher
from bench.verify import WrongOutputError
from everflow import serdes
from everflow.jvm import resolve_jars
from everflow.serdes.registered import bound_to
from everflow.testing import SchemaRegistry

MARK = 5.0
"""Everflow's records/s of a program in Avro or Protobuf, in those of Kafka Streams."""
ROUNDS = 7
_SPARK_COPIES = 10
JAVA, SPARK, FASTAVRO = "java", "spark", "fastavro"


class TooSlowError(RuntimeError):
    """A mark was missed."""


@dataclass(frozen=True)
class SchemasPlan:
    """``values``: in a batch of the serdes alone; ``programs``: whether the programs run."""

    drained: drain.DrainPlan
    values: int = 50_000
    programs: bool = True


def measure(
    plan: SchemasPlan,
    bootstrap_servers: str,
    launchers: Mapping[str, Launcher],
    folder: Path,
) -> Iterator[Measurement]:
    """TooSlowError after all figures if a mark was missed."""
    yield from _alone(plan, folder)
    if not plan.programs:
        return
    found: dict[tuple[str, str], list[float]] = {}
    for program in (PROGRAMS["trades"], *WITH_SCHEMAS):
        with _registry(program.name.partition("-")[2]):
            for one in drain.measure(plan.drained, program, bootstrap_servers, launchers, folder):
                yield Measurement("schemas", *_but_bench(one))
                if one.metric == "throughput":
                    found.setdefault((program.name, one.system), []).append(one.value)
    missed = []
    for program in WITH_SCHEMAS:
        own, java = (found.get((program.name, one)) for one in (EVERFLOW, KAFKA_STREAMS))
        if own and java and (ratio := max(own) / max(java)) < MARK:
            missed.append(f"{program.name}: {ratio:.1f} x Kafka Streams, the mark is {MARK:g}")
    if missed:
        raise TooSlowError("; ".join(missed))


def _but_bench(one: Measurement) -> tuple[str, str, str, str, str, float, str]:
    return one.case, one.system, one.guarantee, one.metric, one.unit, one.value, one.note


@contextmanager
def _registry(kind: str) -> Iterator[None]:
    """For the programs' processes; none without a kind."""
    if not kind:
        yield
        return
    with SchemaRegistry() as registry:
        for subject, name, fields in ((TRADES, "Trade", TRADE), (AVERAGES, "Average", AVERAGE)):
            registry.register(subject, registered(kind, name, fields), kind.upper())
        os.environ[REGISTRY_VARIABLE] = registry.url
        try:
            yield
        finally:
            del os.environ[REGISTRY_VARIABLE]


# --- the serdes alone -----------------------------------------------------------------------------


def _alone(plan: SchemasPlan, folder: Path) -> Iterator[Measurement]:
    trades = [json.loads(PROGRAMS["trades"].row(number)[1]) for number in range(plan.values)]
    with JavaPeer.started(folder / "schema-classes") as java:
        for kind in (AVRO, PROTOBUF, JSON):
            with _registry("" if kind == JSON else kind):
                serde = _serde(kind)
                column = pa.array(trades, serde.type)
                written = serde.encode_array(column)
                if not serde.decode_array(written).equals(column):
                    raise WrongOutputError(f"{kind}: a value did not come back")
                own = _best(partial(serde.decode_array, written), plan.values)
                yield from _rates(
                    kind, EVERFLOW, own, _best(partial(serde.encode_array, column), plan.values)
                )
            if kind != JSON:
                yield from _beside(kind, java, trades, written.to_pylist(), serde.type, folder)


def _serde(kind: str) -> Any:
    if kind == JSON:
        types = {"string": "string", "double": "double", "long": "bigint"}
        return serdes.json(", ".join(f"{name} {types[type_]}" for name, type_ in TRADE.items()))
    made = serdes.avro if kind == AVRO else serdes.protobuf
    serde = made(subject=TRADES, registry=os.environ[REGISTRY_VARIABLE])
    return bound_to(serde, "trades", "value")


def _beside(
    kind: str,
    java: JavaPeer,
    trades: list[Any],
    values: list[bytes],
    type_: pa.DataType,
    folder: Path,
) -> Iterator[Measurement]:
    """WrongOutputError where others write other bytes."""
    some = values[:1_000]
    if some != [encoded(kind, one) for one in trades[:1_000]]:
        raise WrongOutputError(f"{kind}: other bytes than the library's")
    schema = registered(kind, "Trade", TRADE)
    schemas = (schema, schema) if kind == AVRO else ("Trade", schema)
    if java.again(kind, *schemas, some) != some:
        raise WrongOutputError(f"{kind}: other bytes than Java's")
    yield from _rates(kind, JAVA, *java.rates(kind, *schemas, values[:10_000]))
    if kind == AVRO:
        yield from _rates(kind, FASTAVRO, *_fastavro(values[:10_000], type_))
        yield from _rates(kind, SPARK, *_spark(values, schema, folder))


def _rates(kind: str, system: str, decoded: float, encoded_: float) -> Iterator[Measurement]:
    for metric, value in (("decode", decoded), ("encode", encoded_)):
        yield Measurement("schemas", f"{kind} alone", system, "", metric, "values/s", value)


def _best(
    run: Callable[[], object], values: int, clock: Callable[[], float] = time.thread_time
) -> float:
    """Values/s of the fastest round, by default of this thread's processor time: others may
    compute beside it."""
    spent = []
    for _ in range(ROUNDS):
        began = clock()
        run()
        spent.append(clock() - began)
    return values / min(spent)


def _fastavro(values: Sequence[bytes], type_: pa.DataType) -> tuple[float, float]:
    """One after the other, from a column and to one."""
    schema = fastavro.parse_schema(avro_schema("Trade", TRADE))
    data = pa.array([one[len(HEAD) :] for one in values], pa.binary())
    read = [fastavro.schemaless_reader(io.BytesIO(one), schema, None) for one in data.to_pylist()]
    column = pa.array(read, type_)

    def decode() -> pa.Array:
        rows = data.to_pylist()
        found = [fastavro.schemaless_reader(io.BytesIO(one), schema, None) for one in rows]
        return pa.array(found, type_)

    def encode() -> pa.Array:
        made = []
        for one in column.to_pylist():
            out = io.BytesIO()
            fastavro.schemaless_writer(out, schema, one)
            made.append(out.getvalue())
        return pa.array(made, pa.binary())

    return _best(decode, len(values)), _best(encode, len(values))


def _spark(values: Sequence[bytes], schema: str, folder: Path) -> tuple[float, float]:
    """`from_avro` and `to_avro` over a table in memory, in one thread. WrongOutputError where
    `to_avro` writes other bytes."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F
    from pyspark.sql.avro.functions import from_avro, to_avro

    jars = ",".join(map(str, resolve_jars("spark-avro")))
    session = (
        SparkSession.builder.master("local[1]")
        .config("spark.jars", jars)
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    try:
        copies = pa.table({"value": pa.array([*values] * _SPARK_COPIES, pa.binary())})
        pq.write_table(copies, folder / "values.parquet")
        bare = session.read.parquet(str(folder / "values.parquet")).select(
            F.expr(f"substring(value, {len(HEAD) + 1})").alias("value")
        )
        bare = bare.coalesce(1).cache()
        count = bare.count()
        read = bare.select(from_avro("value", schema).alias("value"))
        kept = read.cache()
        kept.count()
        back = kept.limit(1_000).select(to_avro("value", schema).alias("value")).collect()
        if [bytes(row.value) for row in back] != [one[len(HEAD) :] for one in values[:1_000]]:
            raise WrongOutputError("avro: other bytes than Spark's")
        fresh = bare.select(from_avro(F.col("value"), schema, {"mode": "FAILFAST"}).alias("value"))
        written = kept.select(to_avro("value", schema).alias("value"))
        return tuple(  # type: ignore[return-value]
            _best(one.write.format("noop").mode("overwrite").save, count, time.perf_counter)
            for one in (fresh, written)
        )
    finally:
        session.stop()
