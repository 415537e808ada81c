"""On machines of other zones, languages, hash seeds and threads a program gives the same bytes."""

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from integration.lifecycle.lifecycle_cluster import Cluster, Record

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

RECORDS, PARTITIONS = 240, 3
PROGRAM = """
import datetime as dt
import sys
from pyspark.sql import SparkSession, functions as F
from pyspark.sql.types import StringType
from everflow import KafkaStreams, SessionWindows, StreamsBuilder, TimeWindows, agg, serdes
from everflow.instance.client_state import ClientState
from everflow.testing import wait_until

servers, source, each, tables, threads, count, session = sys.argv[1:]
if session == "given":
    java = "-Duser.timezone=Asia/Tokyo -Duser.language=tr -Duser.country=TR"
    (SparkSession.builder.master("local[4]").config("spark.ui.enabled", "false")
        .config("spark.driver.extraJavaOptions", java)
        .config("spark.sql.session.timeZone", "America/New_York").getOrCreate())
TEXT, VALUE = serdes.string(), serdes.json("n bigint, at timestamp, tags array<string>, price double")


def told(value):
    local = dt.datetime.fromtimestamp(value["n"])
    return f"{value['at'].isoformat()} {local.isoformat()} {value['at'].timestamp():.3f} {local:%A}"


def longest(key, value, found):
    at = max(one["at"] for one in (value, found) if one["at"] is not None)
    return {"n": max(found["n"], value["n"]), "at": at, "ids": sorted({*found["ids"], *value["tags"]})}


zone = F.udf(lambda at: f"{at.isoformat()} {at.tzinfo}", StringType())
builder = StreamsBuilder()
stream = builder.stream(source, key=TEXT, value=VALUE)
stream.map_values(told, returns="string").to(each, value=TEXT)
stream.map_values(
    F.struct(
        F.date_format("value.at", "yyyy-MM-dd HH:mm EEEE").alias("day"), F.hour("value.at").alias("hour"),
        zone(F.col("value.at")).alias("zone"), F.format_number("value.price", 2).alias("price"),
        F.sort_array("value.tags").alias("tags"), F.xxhash64("key", "value.n").alias("hash"),
        F.col("value.at").cast("string").alias("text"), F.to_json(F.col("value")).alias("json"),
    )
).to(each)
grouped = stream.group_by(F.element_at("value.tags", 1), name="by-tag")
functions = grouped.aggregate(
    initializer=lambda: {"n": 0, "at": None, "ids": []}, aggregator=longest,
    returns="n bigint, at timestamp, ids array<string>", store="functions")
functions.to_stream().map_values(lambda value: value, returns="n bigint, at timestamp, ids array<string>").to(tables)
days = grouped.windowed_by(TimeWindows.of_size("1 day")).aggregate(
    store="days", sets=agg.collect_set("value.n"), most=agg.top_n("value.price", 3), mean=agg.avg("value.price"))
days.to_stream().map(
    key=F.concat_ws("/", "key.key", F.timestamp_millis("key.start").cast("string")),
    value=F.col("value").withField("sets", F.sort_array("value.sets")),
).to(tables)
grouped.windowed_by(SessionWindows.of_inactivity_gap_and_grace("2 hours", "2 days")).count(store="sessions").to_stream().map(
    key=F.concat_ws("-", "key.key", F.col("key.start").cast("string"), F.col("key.end").cast("string")),
    value=F.when(F.col("value").isNotNull(), F.struct(F.col("value").alias("count"))),
).to(tables)
grouped.count(store="counts")
streams = KafkaStreams(
    builder.build(), application_id=each, bootstrap_servers=servers, state_dir=each, auto_offset_reset="earliest",
    num_stream_threads=int(threads))
streams.start()
wait_until(lambda: streams.state is ClientState.RUNNING, 300, "state RUNNING", lambda: [streams])
wait_until(
    lambda: sum(counted for _, counted in streams.store("counts").all()) == int(count), 300, "all records",
    lambda: [streams])
streams.close()
"""  # noqa: E501


class Machine(NamedTuple):
    """``environment`` beside that of the test; ``session``: whose Spark session it is."""

    environment: dict[str, str]
    threads: int
    session: str


MACHINES = [
    Machine({"TZ": "UTC", "PYTHONHASHSEED": "1"}, 1, "own"),
    Machine({"TZ": "Asia/Tokyo", "PYTHONHASHSEED": "2", "LC_ALL": "tr_TR.UTF-8"}, 3, "own"),
    Machine({"TZ": "America/New_York", "PYTHONHASHSEED": "3"}, 1, "given"),
]
Found = tuple[list[tuple[int, bytes, bytes, int]], dict[bytes | None, tuple[int, bytes | None]]]
"""Partition, key, value and time of what is written for each record, in order; of tables the
partition and value of each key."""


def written_on(machine: Machine, number: int, cluster: Cluster, source: str, folder: Path) -> Found:
    """What the program writes there: of what it writes for each record all, of tables what each key
    has in the end. In what order records of several partitions meet is nobody's word, so no result
    goes by that."""
    each = cluster.topic(f"each-{number}", PARTITIONS)
    tables = cluster.topic(f"tables-{number}", PARTITIONS)
    (folder / "program.py").write_text(PROGRAM)
    given = [cluster.bootstrap, source, each, tables, str(machine.threads), str(RECORDS)]
    done = subprocess.run(
        [sys.executable, "program.py", *given, machine.session],
        cwd=folder,
        env={**os.environ, **machine.environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    listed = sorted(
        (one.partition, one.key or b"", one.value or b"", one.timestamp)
        for one in cluster.read(each)
    )
    assert len(listed) == 2 * RECORDS, done.stdout
    last = {one.key: (one.partition, one.value) for one in cluster.read(tables)}
    return listed, {key: one for key, one in last.items() if one[1] is not None}


def test_the_same_bytes_come_out_on_every_machine(cluster: Cluster, tmp_path: Path) -> None:
    source = cluster.topic("in", PARTITIONS)
    hour_ms = 3_600_000
    cluster.write(
        source,
        [
            Record(
                f"I\u015f\u0131k{n % 11}".encode(),
                f'{{"n": {n * 86_399}, "at": "2026-03-29T{n % 24:02}:30:00.{n:03}Z", '
                f'"tags": ["t{n % 5}", "\u0130{n % 3}", "i"], "price": {n}.125}}'.encode(),
                1_774_742_400_000 + n % 24 * hour_ms,
                n % PARTITIONS,
            )
            for n in range(RECORDS)
        ],
    )
    first, *others = [
        written_on(machine, number, cluster, source, tmp_path)
        for number, machine in enumerate(MACHINES)
    ]
    for machine, (listed, last) in zip(MACHINES[1:], others, strict=True):
        assert [one for one in listed if one not in first[0]] == [], machine
        assert listed == first[0], machine
        assert dict(first[1].items() ^ last.items()) == {}, machine
