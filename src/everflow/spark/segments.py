"""Segments: the stateless Column operators of one level as one Catalyst projection (design D2).

A segment turns rows (Kafka records on level 0, hop rows later) into hop rows. Every slot lives in
columns ``p<id>`` (live), ``p<id>_k`` and ``p<id>_x`` (value); expressions of the user run guarded
by their slot's live flag, so that a row that an earlier filter removed is never evaluated.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import cast

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import ArrayType, DataType, StringType, StructField, StructType

from everflow.serdes import Serde
from everflow.topology.graph import ColumnExpr
from everflow.topology.hops import MARKER, HopSchema
from everflow.topology.physical_plan import (
    DEAD_LETTER_SLOT,
    Decode,
    Encode,
    PhysicalPlan,
    Projection,
    Segment,
    Slot,
    in_catalyst,
)

_LOG_META = ("_src", "_part", "_off", "_ts")
_JSON = {
    # The bytes that `JsonSerde` writes: null fields and microseconds are explicit.
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "timeZone": "UTC",
}
_CORRUPT = "__everflow_corrupt"


def spark_type(kind: pa.DataType) -> DataType:
    """The Spark type of an Arrow type (``null`` becomes string: Spark cannot carry void columns
    through Arrow)."""
    return StringType() if pa.types.is_null(kind) else from_arrow_type(kind)


def spark_schema(schema: HopSchema) -> StructType:
    """A hop's schema as Spark sees it."""
    return StructType(
        [StructField(field.name, spark_type(field.type), True) for field in schema.arrow()]
    )


def hop_into_step(plan: PhysicalPlan, level: int) -> HopSchema:
    """Schema of the rows that segment ``level`` hands to step ``level``."""
    return HopSchema(plan.into_step(level), plan.headers, first=level == 0)


def hop_out_of_step(plan: PhysicalPlan, level: int) -> HopSchema:
    """Schema of the rows that step ``level`` hands to segment ``level + 1``."""
    return HopSchema(plan.out_of_step(level), plan.headers)


def first_segment(kafka: DataFrame, plan: PhysicalPlan) -> DataFrame:
    """Level 0: Kafka rows -> hop rows with the end marker last, in one Spark partition per input
    partition plus the marker's."""
    frame = _kafka_columns(kafka, plan)
    frame = _decode_all(frame, plan)
    frame = _run(frame, plan.segments[0], plan)
    frame = _shape(_drop_dead_rows(frame, plan), hop_into_step(plan, 0))
    # After the Kafka rows, never before: a marker that arrives proves that everything before it did
    # (scenario 33).
    return frame.union(_marker(kafka.sparkSession, hop_into_step(plan, 0)))


def later_segment(hop: DataFrame, plan: PhysicalPlan, level: int) -> DataFrame:
    """Levels above 0: hop rows of step ``level - 1`` -> hop rows; the marker passes through, as it
    is live on no slot."""
    return _shape(
        _projected(hop, plan, level, hop_out_of_step(plan, level - 1)), hop_into_step(plan, level)
    )


def rows_into_segment(plan: PhysicalPlan, level: int) -> HopSchema:
    """Schema of the rows that segment ``level`` is given in a resident step: of segment 0 the
    decoded records."""
    if level == 0:
        return HopSchema(
            tuple(plan.slots[decode.output] for decode in plan.segments[0].decodes),
            plan.headers,
            first=True,
        )
    return HopSchema(plan.out_of_step(level - 1), plan.headers, first=True)


def slots_of_segment(plan: PhysicalPlan, level: int) -> HopSchema:
    """The slots that segment ``level`` makes of such rows: all into the step but the dead letters,
    which decoding has found."""
    given = {slot.id for slot in rows_into_segment(plan, level).slots}
    slots = [
        slot for slot in plan.into_step(level) if slot.id != DEAD_LETTER_SLOT or slot.id in given
    ]
    return HopSchema(tuple(slots), plan.headers, first=True)


def computed_slots(rows: DataFrame, plan: PhysicalPlan, level: int) -> DataFrame:
    """`rows_into_segment` -> the columns of `slots_of_segment` alone, without rows' metadata."""
    made = slots_of_segment(plan, level)
    frame = _projected(rows, plan, level, rows_into_segment(plan, level))
    columns = [column for slot in made.slots for column in _slot_columns(slot)]
    fields = [field for slot in made.slots for field in made.slot_fields(slot)]
    return frame.select(
        *[c.cast(spark_type(f.type)).alias(f.name) for c, f in zip(columns, fields, strict=True)]
    )


def _projected(rows: DataFrame, plan: PhysicalPlan, level: int, incoming: HopSchema) -> DataFrame:
    columns = [F.col(field.name) for field in incoming.meta()]
    for slot in incoming.slots:
        columns += [
            F.col(f"p{slot.id}"),
            F.col(f"p{slot.id}_k"),
            _assemble(slot).alias(f"p{slot.id}_x"),
        ]
    return _run(rows.select(*columns), plan.segments[level], plan)


# --- Kafka rows -----------------------------------------------------------------------------------


def _kafka_columns(kafka: DataFrame, plan: PhysicalPlan) -> DataFrame:
    """Metadata columns, and the raw key and value."""
    index = F.lit(plan.sources[0].index)
    for source in plan.sources[1:]:
        index = F.when(F.col("topic") == source.topic, F.lit(source.index)).otherwise(index)
    columns = [
        index.cast("int").alias("_src"),
        F.col("partition").alias("_part"),
        F.col("offset").alias("_off"),
        F.unix_millis(F.col("timestamp")).alias("_ts"),
    ]
    if plan.headers:
        columns.append(F.col("headers").alias("_hdr"))
    return kafka.select(*columns, F.col("key").alias("_key"), F.col("value").alias("_value"))


def _decode_all(frame: DataFrame, plan: PhysicalPlan) -> DataFrame:
    """One slot per source plus the dead letter slot. Decoded values, then the fault, are stages of
    their own: referred to more than once, they would be evaluated more than once."""
    only = len(plan.sources) == 1
    mine = {
        d.output: F.lit(True) if only else F.col("_src") == d.source.index
        for d in plan.segments[0].decodes
    }
    parts: list[Column] = []
    for decode in plan.segments[0].decodes:
        for part, serde, raw in _parts(decode):
            column = F.col(f"_{part}") if raw else _decode_column(serde, F.col(f"_{part}"))
            parts.append(F.when(mine[decode.output], column).alias(f"_d{decode.output}_{part}"))
    frame = frame.select("*", *parts)
    if plan.parses_in_catalyst:
        frame = frame.select("*", _fault(plan, mine).alias("_fault"))
    kept = [F.col(name) for name in (*_LOG_META, *(["_hdr"] if plan.headers else []))]
    for decode in plan.segments[0].decodes:
        slot = f"p{decode.output}"
        live = (
            mine[decode.output] & F.col("_fault").isNull()
            if plan.parses_in_catalyst
            else mine[decode.output]
        )
        kept += [
            live.alias(slot),
            _value_of(decode, "key").alias(f"{slot}_k"),
            _value_of(decode, "value").alias(f"{slot}_x"),
        ]
    if plan.parses_in_catalyst:
        dead, bad = f"p{DEAD_LETTER_SLOT}", F.col("_fault").isNotNull()
        letter = F.struct(F.col("_value").alias("value"), F.col("_fault").alias("error"))
        kept += [
            bad.alias(dead),
            F.when(bad, F.col("_key")).alias(f"{dead}_k"),
            F.when(bad, letter).alias(f"{dead}_x"),
        ]
    return frame.select(*kept)


def _fault(plan: PhysicalPlan, mine: dict[int, Column]) -> Column:
    """Why a record cannot be decoded; NULL for good ones."""
    text = F.lit(None).cast("string")
    for decode in plan.segments[0].decodes:
        fault = F.lit(None).cast("string")
        for part, serde, _ in _parts(decode):
            if serde.kind == "json":
                bad = _is_bad_json(serde, F.col(f"_{part}"), F.col(f"_d{decode.output}_{part}"))
                fault = F.when(bad, F.lit(f"{part} is not a valid {serde!r}")).otherwise(fault)
        text = F.when(mine[decode.output], fault).otherwise(text)
    return text


def _parts(decode: Decode) -> list[tuple[str, Serde, bool]]:
    return [
        ("key", decode.source.key_serde, decode.raw_key),
        ("value", decode.source.value_serde, decode.raw_value),
    ]


def _value_of(decode: Decode, part: str) -> Column:
    """The decoded column without the parser's own field for corrupt text."""
    column = F.col(f"_d{decode.output}_{part}")
    serde = decode.source.key_serde if part == "key" else decode.source.value_serde
    raw = decode.raw_key if part == "key" else decode.raw_value
    if raw or serde.kind != "json":
        return column
    if not pa.types.is_struct(serde.type):
        return column
    fields = [column[field.name].alias(field.name) for field in serde.type]
    return F.when(column.isNotNull(), F.struct(*fields))


def _decode_column(serde: Serde, raw: Column) -> Column:
    """Bytes -> value in Catalyst; only kinds of `CATALYST_SERDES`."""
    if serde.kind == "bytes":
        return raw
    if serde.kind == "string":
        return raw.cast("string")
    # Of a map too, which the signature leaves out.
    schema = cast(StructType | ArrayType, spark_type(serde.type))
    # As strict as JSON is, and as `JsonSerde`.
    options = {
        "mode": "PERMISSIVE",
        "allowNonNumericNumbers": "false",
        "allowSingleQuotes": "false",
    }
    if isinstance(schema, StructType):
        schema = StructType([*schema.fields, StructField(_CORRUPT, StringType(), True)])
        options["columnNameOfCorruptRecord"] = _CORRUPT
    return F.from_json(raw.cast("string"), schema, options)


def _is_bad_json(serde: Serde, raw: Column, decoded: Column) -> Column:
    """Condition under which bytes are not the JSON they should be. The permissive parser accepts
    trailing text, turns empty bytes into NULL and repairs UTF-8 silently: each is checked here."""
    invalid = raw.isNotNull() & ~F.is_valid_utf8(raw.cast("string"))
    text = F.rtrim(raw.cast("string"))
    infinite = _has_infinity(decoded, serde.type)
    if infinite is not None:
        invalid = invalid | F.coalesce(infinite, F.lit(False))
    if not pa.types.is_struct(serde.type):
        return invalid | (raw.isNotNull() & decoded.isNull() & (text != F.lit("null")))
    corrupt = decoded.isNull() | decoded[_CORRUPT].isNotNull() | ~text.endswith("}")
    return invalid | (raw.isNotNull() & corrupt & (text != F.lit("null")))


def _has_infinity(column: Column, type_: pa.DataType) -> Column | None:
    """Whether a number became an infinity, which JSON cannot say: its text is too large for the
    type, and Jackson does not mind. None for types without floating numbers."""
    if pa.types.is_floating(type_):
        return F.abs(column) == F.lit(float("inf"))
    if pa.types.is_struct(type_):
        found = [
            one
            for field in type_
            if (one := _has_infinity(column[field.name], field.type)) is not None
        ]
        return (
            reduce(lambda a, b: a | b, (F.coalesce(one, F.lit(False)) for one in found))
            if found
            else None
        )
    if pa.types.is_map(type_):
        return _has_infinity(F.map_values(column), pa.list_(type_.item_type))
    if pa.types.is_list(type_) and _has_infinity(F.lit(None), type_.value_type) is not None:
        return F.exists(
            column,
            lambda item: F.coalesce(
                cast(Column, _has_infinity(item, type_.value_type)), F.lit(False)
            ),
        )
    return None


def _drop_dead_rows(frame: DataFrame, plan: PhysicalPlan) -> DataFrame:
    """Rows that no slot needs do not travel. Sources merged by time keep theirs: they carry stream
    time (D3)."""
    slots = hop_into_step(plan, 0).slots
    if any(
        not isinstance(p, Projection) or p.node.predicate is not None
        for p in plan.segments[0].projections
    ) or (len(plan.sources) > 1):
        alive = reduce(lambda a, b: a | b, (F.col(f"p{slot.id}") for slot in slots), F.lit(False))
    else:
        return frame  # every record is live on some slot
    merged = [source.index for source in plan.sources if source.merged]
    return frame.filter(alive | F.col("_src").isin(merged)) if merged else frame.filter(alive)


# --- projections ----------------------------------------------------------------------------------


def _run(frame: DataFrame, segment: Segment, plan: PhysicalPlan) -> DataFrame:
    names = {source.index: source.topic for source in plan.sources}
    for projection in segment.projections:
        frame = _project(frame, projection, names, plan.headers)
    return frame


def _project(
    frame: DataFrame, projection: Projection | Encode, topics: dict[int, str], headers: bool
) -> DataFrame:
    """One node on one slot. The names the user sees (key, value, ...) exist only inside this
    selection."""
    i, o = projection.input, projection.output
    before = frame.columns
    seen = frame.select(
        "*",
        F.col(f"p{i}_k").alias("key"),
        F.col(f"p{i}_x").alias("value"),
        F.col("_ts").alias("timestamp"),
        _topic_name(topics).alias("topic"),
        F.col("_part").alias("partition"),
        F.col("_off").alias("offset"),
        (
            F.col("_hdr") if headers else F.lit(None).cast("array<struct<key:string,value:binary>>")
        ).alias("headers"),
    )
    live = F.coalesce(F.col(f"p{i}"), F.lit(False))
    if isinstance(projection, Encode):
        key, value = _encoded(projection)
        new = [
            live.alias(f"p{o}"),
            F.when(live, key).alias(f"p{o}_k"),
            F.when(live, value).alias(f"p{o}_x"),
        ]
        return seen.select(*[F.col(name) for name in before], *new)
    node = projection.node
    if node.predicate is not None:
        live = F.when(live, F.coalesce(node.predicate.column, F.lit(False))).otherwise(F.lit(False))
        seen = seen.select("*", live.alias(f"p{o}"))
        live = F.col(f"p{o}")
    else:
        seen = seen.select("*", live.alias(f"p{o}"))
    key = _column(node.key, "key")
    value = _column(node.value, "value")
    guarded = F.coalesce(F.col(f"p{o}"), F.lit(False))
    key_type, value_type = spark_type(node.out.key), spark_type(node.out.value)
    return seen.select(
        *[F.col(name) for name in before],
        F.col(f"p{o}"),
        F.when(guarded, key).cast(key_type).alias(f"p{o}_k"),
        F.when(guarded, value).cast(value_type).alias(f"p{o}_x"),
    )


def _column(given: ColumnExpr | None, name: str) -> Column:
    """What a projection gives for key or value: a Column, the text of one, or what is there already
    under ``name``."""
    if given is None:
        return F.col(name)
    return F.expr(given.column) if isinstance(given.column, str) else cast(Column, given.column)


def _topic_name(topics: dict[int, str]) -> Column:
    name = F.lit(None).cast("string")
    for index, topic in topics.items():
        name = F.when(F.col("_src") == index, F.lit(topic)).otherwise(name)
    return name


def _encoded(encode: Encode) -> tuple[Column, Column]:
    key = _encode_column(encode.key_serde, F.col("key"))
    value = _encode_column(encode.value_serde, F.col("value"))
    if encode.topic is not None:
        value = F.struct(encode.topic.column.cast("string").alias("topic"), value.alias("value"))
    return key, value


def _encode_column(serde: Serde, column: Column) -> Column:
    """Value -> bytes in Catalyst; parts of other serdes stay as they are, the step encodes them."""
    if serde.kind == "string":
        # Bytes that are no text leave as U+FFFD, as from a step and as in Java, also where nothing
        # in Catalyst looked at them.
        return F.make_valid_utf8(column.cast("string")).cast("binary")
    if serde.kind == "json" and in_catalyst(serde):
        return F.to_json(column, _JSON).cast("binary")
    return column


# --- hop rows -------------------------------------------------------------------------------------


def _assemble(slot: Slot) -> Column:
    """A slot's value from its flat hop columns."""
    name = f"p{slot.id}"
    if not pa.types.is_struct(slot.type.value):
        return F.col(f"{name}_v")
    fields = [F.col(f"{name}_v{i}").alias(field.name) for i, field in enumerate(slot.type.value)]
    return F.when(F.coalesce(F.col(f"{name}_vn"), F.lit(False)), F.struct(*fields))


def _shape(frame: DataFrame, hop: HopSchema) -> DataFrame:
    """Exactly the hop's columns, in its order and types; struct values flattened."""
    columns = [F.col(field.name) for field in hop.meta()]
    for slot in hop.slots:
        columns += _slot_columns(slot)
    types = spark_schema(hop)
    if len(columns) != len(types.fields):
        raise AssertionError(f"hop has {len(types.fields)} columns, segment made {len(columns)}")
    return frame.select(
        *[c.cast(f.dataType).alias(f.name) for c, f in zip(columns, types.fields, strict=True)]
    )


def _slot_columns(slot: Slot) -> Sequence[Column]:
    name = f"p{slot.id}"
    live = F.coalesce(F.col(name), F.lit(False))
    columns = [live, F.col(f"{name}_k")]
    value = F.col(f"{name}_x")
    if not pa.types.is_struct(slot.type.value):
        return [*columns, value]
    return [*columns, value.isNotNull(), *[value[field.name] for field in slot.type.value]]


def _marker(session: SparkSession, hop: HopSchema) -> DataFrame:
    known = {"_src": MARKER, "_part": 0, "_off": 0, "_ts": 0, "_seq": 0}
    columns = [
        F.lit(known.get(field.name)).cast(field.dataType).alias(field.name)
        for field in spark_schema(hop).fields
    ]
    return session.range(0, 1, 1, 1).select(*columns)
