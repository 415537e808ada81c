"""The program of the backlog: whole records in and out, in columns, and a count by key.

`everflow run bench.backlog.program:builder`; the topics come from the environment.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator

from pyspark.sql import functions as F

from bench.apps.topic_names import INPUT_TOPIC_VARIABLE, OUTPUT_TOPIC_VARIABLE
from everflow import StreamsBuilder, serdes

VALUE = "n bigint, price double, text string, words array<string>"
_SEED = 45
_TEXTS = 64


def builder() -> StreamsBuilder:
    """What comes out is as large as what goes in: the writer's queue fills, too."""
    streams_builder = StreamsBuilder()
    records = streams_builder.stream(
        os.environ[INPUT_TOPIC_VARIABLE], key=serdes.string(), value=serdes.json(VALUE)
    )
    kept = records.filter(F.col("value.n") >= 0)
    kept.map_values(
        n=F.col("value.n") + 1,
        price=F.col("value.price") * 2,
        text=F.upper("value.text"),
        words=F.col("value.words"),
    ).to(os.environ[OUTPUT_TOPIC_VARIABLE])
    kept.group_by_key().count(store="by-key")
    return streams_builder


def rows(records: int, record_bytes: int, keys: int) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of about so many bytes, the same ones in every run."""
    drawn = random.Random(_SEED)
    half = max(8, record_bytes // 2 - 30)
    texts = [json.dumps(_letters(drawn, half)) for _ in range(_TEXTS)]
    words = [
        json.dumps([_letters(drawn, 7) for _ in range(max(1, half // 11))]) for _ in range(_TEXTS)
    ]
    for number in range(records):
        text, found = texts[number % _TEXTS], words[number // 7 % _TEXTS]
        value = f'{{"n": {number}, "price": {number / 8}, "text": {text}, "words": {found}}}'
        yield b"key-%d" % drawn.randrange(keys), value.encode()


def _letters(drawn: random.Random, count: int) -> str:
    return "".join(drawn.choices("abcdefghijklmnopqrstuvwxyz", k=count))
