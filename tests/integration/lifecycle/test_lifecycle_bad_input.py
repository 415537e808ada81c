"""Wrong input: refused before anything runs, or stopped at the record, with a message that names
place and cure."""

from __future__ import annotations

import inspect
import logging
import os
import re
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F
from typer.testing import CliRunner, Result

from everflow import StreamsBuilder, agg, serdes
from everflow.cli.app import app as everflow_command
from everflow.errors import (
    BatchTimeoutError,
    ColumnError,
    RecordError,
    RecordTimeError,
    RecordTooLargeError,
    StateLockedError,
    TaskTimeoutError,
    WorkerDiedError,
)
from everflow.instance.client_state import ClientState
from everflow.logs import log_path
from everflow.metrics import COMMITS
from integration.lifecycle.lifecycle_cluster import (
    Application,
    Cluster,
    Record,
    in_json,
    last_by_key,
    long,
    text,
    until_failed,
)

pytestmark = [pytest.mark.broker, pytest.mark.spark]

FAILED, USAGE = 1, 2
IN_SECONDS, TENS_OF_SECONDS = 20.0, 50.0
"""How soon an instance has to end: far below task.timeout.ms, with room for a busy machine."""
Run = Callable[..., Result]


@pytest.fixture
def run(app: Application, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """``everflow run`` on a program given as text, in this process: ``run(program, key=value,
    ...)``."""

    def invoke(program: str, **settings: object) -> Result:
        module = f"program_{app.cluster.prefix}"
        header = "from everflow import StreamsBuilder, serdes\nbuilder = StreamsBuilder()\n"
        (tmp_path / f"{module}.py").write_text(header + inspect.cleandoc(program) + "\n")
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(str(tmp_path))
        options = {
            "application.id": app.id,
            "bootstrap.servers": app.cluster.bootstrap,
            "state.dir": str(app.state),
        }
        options |= {key.replace("_", "."): str(value) for key, value in settings.items()}
        sets = [part for key, value in options.items() for part in ("--set", f"{key}={value}")]
        return CliRunner().invoke(everflow_command, ["run", f"{module}:builder", *sets])

    return invoke


def test_missing_source_topic(run: Run, cluster: Cluster) -> None:
    topic = f"{cluster.prefix}-absent"
    result = run(f"builder.stream('{topic}').group_by_key().count(store='n')")
    assert result.exit_code == USAGE
    assert (
        f"source topic {topic} does not exist; create it before the application starts"
        in result.output
    )
    assert f"program_{cluster.prefix}.py:3" in result.output
    assert cluster.topics() == {}


def test_missing_output_topic(run: Run, cluster: Cluster) -> None:
    source, output = cluster.topic("in", 3), f"{cluster.prefix}-nope-out"
    result = run(f"builder.stream('{source}').to('{output}')")
    assert result.exit_code == USAGE
    assert f"output topic {output} does not exist" in result.output
    assert f"everflow topic create {output}:3 --bootstrap-servers" in result.output
    assert f"program_{cluster.prefix}.py:3" in result.output
    assert set(cluster.topics()) == {source}


def test_missing_dead_letter_topic(run: Run, cluster: Cluster) -> None:
    source, letters = cluster.topic("in", 1), f"{cluster.prefix}-letters"
    result = run(
        f"builder.stream('{source}').for_each(print)", errors_dead_letter_queue_topic_name=letters
    )
    assert result.exit_code == USAGE
    assert (
        f"dead-letter topic {letters} (errors.dead.letter.queue.topic.name) does not exist"
        in " ".join(result.output.split())
    )


def test_topics_that_cannot_meet(run: Run, cluster: Cluster) -> None:
    two, three = cluster.topic("two", 2), cluster.topic("three", 3)
    result = run(f"""
        both = builder.stream('{two}').merge(builder.stream('{three}'))
        both.group_by_key().count(store='n')
    """)
    assert result.exit_code == USAGE
    assert "different partition counts" in result.output
    assert f"{three}: 3, {two}: 2" in result.output
    assert ".repartition(name='a-name', partitions=3)" in result.output
    assert f"program_{cluster.prefix}.py:4" in result.output
    assert set(cluster.topics()) == {two, three}, "nothing may be created before the check"


@pytest.mark.timeout(180)
def test_a_changed_aggregate_is_refused_with_its_state_or_only_its_changelog(
    run: Run, app: Application, cluster: Cluster
) -> None:
    source = cluster.topic("in", 1)
    cluster.write(source, [in_json("ann", {"amount": amount}) for amount in (5, 7)])
    builder = StreamsBuilder()
    orders = builder.stream(source, key=serdes.string(), value=serdes.json("amount bigint"))
    orders.group_by_key().aggregate(store="totals", n=agg.count(), total=agg.sum("value.amount"))
    app.run_through(builder.build(), source)
    before = [cluster.committed(app.id, source), cluster.read(f"{app.id}-totals-changelog")]
    for lost in (False, True):
        if lost:
            shutil.rmtree(app.state)
        began = time.monotonic()
        result = run(f"""
            from everflow import agg
            orders = builder.stream('{source}', key=serdes.string(), value=serdes.json('amount bigint'))
            orders.group_by_key().aggregate(store='totals', total=agg.sum('value.amount'), n=agg.count())
        """)  # noqa: E501
        assert time.monotonic() - began < IN_SECONDS
        assert result.exit_code == FAILED
        told = result.output[result.output.index("[EF-STORE-LAYOUT]") :]
        assert (
            f"[EF-STORE-LAYOUT] Application {app.id} has stored something else than this program "
            f"reads"
        ) in told
        assert re.search(
            rf"store totals of KSTREAM-AGGREGATE-\d+, at \S*program_{cluster.prefix}.py:5", told
        )
        assert "value stored: n bigint (count), total bigint (sum)" in told
        assert "value now:    total bigint (sum), n bigint (count)" in told
        assert "write the operator as it was" in told
        assert "an application.id of its own" in " ".join(told.split())
        assert f"everflow reset MODULE:NAME --application-id {app.id}" in " ".join(told.split())
        assert not [
            word for word in ("Traceback", "java.", "Py4J", "File ") if word in result.output
        ]
        assert [
            cluster.committed(app.id, source),
            cluster.read(f"{app.id}-totals-changelog"),
        ] == before


def test_broker_that_cannot_be_reached(app: Application, caplog: pytest.LogCaptureFixture) -> None:
    streams = app.instance(_passing("t", "u"), task_timeout_ms=3_000)
    object.__setattr__(streams.config, "bootstrap_servers", "127.0.0.1:1")
    began = time.monotonic()
    with (
        caplog.at_level(logging.WARNING, logger="everflow"),
        pytest.raises(TaskTimeoutError) as error,
    ):
        streams.start()
    assert 2.5 < time.monotonic() - began < 15
    assert "no answer from Kafka at 127.0.0.1:1 yet" in caplog.text
    assert "within 3 s (task.timeout.ms). Check bootstrap.servers" in str(error.value)
    assert streams.state is ClientState.ERROR


def _passing(source: str, output: str):  # type: ignore[no-untyped-def]
    builder = StreamsBuilder()
    builder.stream(source, key=serdes.string(), value=serdes.string()).to(output)
    return builder.build()


# --- records --------------------------------------------------------------------------------------


def records_with_bad_ones() -> list[Record]:
    """Twenty good records over two partitions, and three that are not JSON."""
    good = [in_json(f"k{i % 4}", {"n": i}, 1_000 + i, i % 4 % 2) for i in range(20)]
    bad = [
        Record(b"k0", b'{"n": ', 2_000, 0),
        Record(b"k1", b"\xff\xfe", 2_001, 1),
        Record(b"k2", b'{"n": 1} trailing', 2_002, 0),
    ]
    return [*good[:7], bad[0], *good[7:9], bad[1], bad[2], *good[9:]]


def test_undecodable_records_go_to_the_dead_letter_topic(
    app: Application, cluster: Cluster
) -> None:
    """At least once; test_poison_in_each_place has it exactly once."""
    source, output, dead = cluster.topic("in"), cluster.topic("out"), cluster.topic("dead", 1)
    cluster.write(source, records_with_bad_ones())
    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string(), value=serdes.json("n bigint"))
    stream.group_by_key().count(store="counts").to_stream().to(output)
    settings = {
        "errors_dead_letter_queue_topic_name": dead,
        "processing_guarantee": "at_least_once",
    }
    app.run_through(builder.build(), source, **settings)
    found = {key: long(value) for key, value in last_by_key(cluster.read(output)).items()}
    assert found == dict.fromkeys((b"k0", b"k1", b"k2", b"k3"), 5)
    letters = sorted(cluster.read(dead), key=lambda record: record.timestamp)
    bad = sorted(
        (r for r in cluster.read(source) if r.timestamp >= 2_000),
        key=lambda record: record.timestamp,
    )
    assert [(r.key, r.value, r.timestamp) for r in letters] == [
        (r.key, r.value, r.timestamp) for r in bad
    ]
    for letter, origin in zip(letters, bad, strict=True):
        headers = dict(letter.headers)
        assert headers["__streams.errors.topic"] == source.encode()
        assert headers["__streams.errors.partition"] == str(origin.partition).encode()
        assert headers["__streams.errors.offset"] == str(origin.offset).encode()
        assert b"not a valid" in (headers["__streams.errors.message"] or b"")
        assert headers["__streams.errors.exception"]
        assert "__streams.errors.stacktrace" in headers


def test_an_undecodable_record_stops_the_instance(
    run: Run, app: Application, cluster: Cluster
) -> None:
    source, output = cluster.topic("in"), cluster.topic("out")
    cluster.write(source, records_with_bad_ones())
    bad = {r.partition: r.offset for r in reversed(cluster.read(source)) if r.timestamp >= 2_000}
    result = run(f"""
        stream = builder.stream('{source}', value=serdes.json('n bigint'))
        stream.to('{output}')
    """)
    assert result.exit_code == FAILED
    assert result.output.count("[EF-RECORD]") == 1, "told once"
    assert result.output.splitlines()[-1] == f"  More is in the log: {log_path(app.state, app.id)}"
    assert any(
        f"{source}-{partition}@{offset}" in result.output for partition, offset in bad.items()
    )
    assert cluster.members(app.id) == 0


def test_a_function_that_raises_names_record_and_line(app: Application, cluster: Cluster) -> None:
    source, output = cluster.topic("in", 1), cluster.topic("out", 1)
    cluster.write(source, [text(f"k{i}", str(10 - i), 1_000 + i) for i in range(20)])
    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string(), value=serdes.string())
    line = inspect.currentframe().f_lineno + 1  # type: ignore[union-attr]
    stream.map_values(lambda value: 100 // int(value), returns="bigint", name="divide").to(output)
    streams = app.instance(builder.build())
    streams.start()
    error = until_failed(streams)
    assert isinstance(error, RecordError)
    assert (error.topic, error.partition, error.offset, error.node) == (source, 0, 10, "divide")
    assert "ZeroDivisionError" in str(error)
    assert f"{Path(__file__).name}:{line}" in str(error)
    assert cluster.read(output) == [], "nothing of a failed micro-batch may be visible"


def test_a_record_on_which_the_process_dies_is_found_and_named(
    app: Application, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """The worker can say nothing: batches become smaller until there is but one record to blame."""
    source, output = cluster.topic("in", 1), cluster.topic("out", 1)
    cluster.write(
        source, [text("k", "die" if number == 20 else str(number)) for number in range(40)]
    )
    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string(), value=serdes.string())
    stream.map_values(lambda value: os._exit(3) if value == "die" else value, returns="string").to(
        output
    )
    streams = app.instance(builder.build())
    with caplog.at_level(logging.WARNING, logger="everflow"):
        streams.start()
        error = until_failed(streams, TENS_OF_SECONDS)
    assert isinstance(error, WorkerDiedError)
    assert str(error).startswith(
        "A Python worker process died (no trace of why: killed (out of memory?), or ended by "
        "os._exit)"
    )
    assert f"times in a row, on {source}-0@20)" in str(error)
    assert "Correct the function" in str(error)
    assert "the same failure again, nothing has changed" in caplog.text
    assert "\tat " not in caplog.text
    assert [record.value for record in cluster.read(output)] == [
        str(number).encode() for number in range(20)
    ]


def loops(value: str) -> str:
    while value == "loop":
        pass
    return value


def test_a_loop_without_end_is_told_with_its_line_and_record(
    app: Application, cluster: Cluster
) -> None:
    """Its workers are ended, and say before where they were; that they died is not why."""
    source, output = cluster.topic("in", 1), cluster.topic("out", 1)
    cluster.write(
        source, [text("k", "loop" if number == 3 else str(number)) for number in range(6)]
    )
    builder = StreamsBuilder()
    builder.stream(source, key=serdes.string(), value=serdes.string()).map_values(
        loops, returns="string"
    ).to(output)
    streams = app.instance(builder.build(), max_poll_interval_ms=4_000)
    streams.start()
    error = until_failed(streams, TENS_OF_SECONDS)
    assert isinstance(error, BatchTimeoutError)
    told = str(error).splitlines()
    assert told[0] == (
        f"A batch has not ended within 4 s (max.poll.interval.ms) (2 times in a row, on "
        f"{source}-0@3)"
    )
    assert f"{__file__}:" in told[1]
    assert " in loops: " in told[1]
    assert (error.__cause__, error.__context__) == (None, None), (
        "whoever raises it sees what it says, not how it was found out"
    )
    assert [record.value for record in cluster.read(output)] == [b"0", b"1", b"2"]


def test_a_time_that_spark_cannot_hold_names_the_record(app: Application, cluster: Cluster) -> None:
    source, output = (
        cluster.topic("in", 1, message_timestamp_after_max_ms=str(2**63 - 1)),
        cluster.topic("out", 1),
    )
    cluster.write(source, [text("k", "1", 1_000), text("k", "2", 1_700_000_000_000_000_000)])
    builder = StreamsBuilder()
    builder.stream(source, key=serdes.string(), value=serdes.string()).to(output)
    streams = app.instance(builder.build())
    streams.start()
    error = until_failed(streams, IN_SECONDS)
    assert isinstance(error, RecordTimeError)
    assert f"beyond the year 294247, which Spark cannot hold (record {source}-0@1)" in str(error)
    assert "where Kafka expects milliseconds" in str(error)


# --- size -----------------------------------------------------------------------------------------


def test_records_that_suddenly_are_large_come_in_smaller_batches(
    app: Application, cluster: Cluster
) -> None:
    source, output = cluster.topic("in", 1), cluster.topic("out", 1)
    sizes = [10] * 500 + [100_000] * 60 + [10] * 500
    cluster.write(source, [text(f"k{row % 7}", "v" * size) for row, size in enumerate(sizes)])
    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string(), value=serdes.string())
    stream.map_values(lambda value: str(len(value)), returns=serdes.string()).to(output)
    with app.running(builder.build(), max_batch_bytes=1_000_000) as streams:
        app.until_processed(streams, source)
        batches = streams.metrics()[COMMITS]
    assert [record.value for record in cluster.read(output)] == [
        str(size).encode() for size in sizes
    ]
    assert isinstance(batches, float | int)
    assert batches >= 4, "6 MB in batches of 1 to 2"


def test_a_result_that_the_topic_does_not_take_stops_the_instance_at_once(
    app: Application, cluster: Cluster
) -> None:
    source, output = cluster.topic("in", 1), cluster.topic("out", 1)
    cluster.write(source, [text("k", "v" * 900_000)])
    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string(), value=serdes.string())
    stream.map_values(lambda value: value * 2, returns=serdes.string()).to(output)
    streams = app.instance(builder.build(), **{"producer.message.max.bytes": 5_000_000})
    streams.start()
    error = until_failed(streams, IN_SECONDS)
    assert isinstance(error, RecordTooLargeError)
    first, origin, cure = str(error).splitlines()
    assert first.startswith(f"A record for topic {output} is too large: 1,800,001 bytes")
    assert first.endswith(", more than the topic takes (max.message.bytes=1,048,588)")
    assert origin.strip().startswith(f"made of record {source}-0@0, by node ")
    assert f"Raise max.message.bytes of {output}" in cure


# --- folder ---------------------------------------------------------------------------------------


def test_a_state_folder_in_use_is_refused(app: Application, run: Run, cluster: Cluster) -> None:
    holder = textwrap.dedent(f"""
        import sys
        from pathlib import Path
        from everflow.state.task_directory import StateDirectory
        held = StateDirectory.open(Path({str(app.state)!r}), {app.id!r})
        print("held", flush=True)
        sys.stdin.read()
    """)
    with subprocess.Popen(
        [sys.executable, "-c", holder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline().strip() == "held"
        with pytest.raises(StateLockedError, match=rf"{other.pid}.*Stop"):
            app.instance(_passing("t", "u")).start()
        result = run("builder.stream('t').to('u')")
        assert result.exit_code == FAILED
        assert "a state.dir of its own" in result.output
        other.kill()
    assert cluster.topics() == {}


def test_columns_that_fail_stop_the_instance_with_the_cause(
    app: Application, cluster: Cluster, capfd: pytest.CaptureFixture[str]
) -> None:
    """ANSI arithmetic: the record is named; what is before it is committed."""
    source, output = cluster.topic("in", 1), cluster.topic("out", 1)
    cluster.write(source, [text("k", "1"), text("k", "one")])
    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string(), value=serdes.string())
    line = inspect.currentframe().f_lineno + 1  # type: ignore[union-attr]
    stream.map_values(F.col("value").cast("bigint")).to(output)
    streams = app.instance(builder.build())
    streams.start()
    error = until_failed(streams, IN_SECONDS)
    assert isinstance(error, ColumnError)
    first, where, cure = str(error).splitlines()
    assert first.startswith(
        "A Column cannot be computed: [CAST_INVALID_INPUT] The value 'one' of the type \"STRING\""
    )
    assert first.endswith(f" (on {source}-0@1)")
    assert where == f"  operator added at {__file__}:{line}"
    assert ".try_cast" in cure
    assert [record.value for record in cluster.read(output)] == [(1).to_bytes(8, "big")]
    assert "org.apache.spark" not in capfd.readouterr().err, "no Java on the terminal"


@pytest.mark.parametrize(
    ("records", "settings", "backlog"),
    [
        pytest.param(5, {}, 0, id="shorter"),
        pytest.param(50, {}, 0, id="longer"),
        pytest.param(
            50,
            {"processing_guarantee": "at_least_once"},
            0,
            id="at-least-once",
            marks=pytest.mark.slow,
        ),
        pytest.param(90_000, {}, 30_000, id="behind", marks=pytest.mark.slow),
    ],
)
def test_an_input_that_is_created_again_stops_the_instance(
    app: Application, cluster: Cluster, records: int, settings: dict[str, Any], backlog: int
) -> None:
    """With fewer records than the old topic had (its end tells) and with more (only its id
    does). No record of the new topic counts, whether the instance was at the end of the old one or
    behind."""
    source, output = cluster.topic("in", 1), cluster.topic("out", 1)
    cluster.write(source, [text("k", "old")] * 20)
    builder = StreamsBuilder()
    builder.stream(source, key=serdes.string(), value=serdes.string()).to(output)
    with app.running(builder.build(), **settings) as streams:
        app.until_processed(streams, source)
        if backlog:
            streams.pause()
            cluster.write(source, [text("k", "old")] * backlog)
        cluster.delete(source)
        assert cluster.topic("in", 1) == source
        cluster.write(source, [text("k", "new")] * records)
        if backlog:
            streams.resume()
        said = str(until_failed(streams))
        assert max((at for at, _ in cluster.committed(app.id, source).values()), default=0) <= 20
    assert [record.value for record in cluster.read(output)] == [b"old"] * 20
    assert source in said
    assert "deleted and created again" in said
    assert f"--reset-offsets --to-earliest --execute --group {app.id} --topic {source}" in said
