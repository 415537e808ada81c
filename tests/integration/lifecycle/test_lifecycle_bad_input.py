"""Wrong input is refused before anything runs, or stopped at its record, with place and cure."""

import inspect
import re
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F
from typer.testing import CliRunner, Result

from everflow import StreamsBuilder, serdes
from everflow.cli.app import app as everflow_command
from everflow.errors import BatchTimeoutError, ColumnError
from everflow.logs import log_path
from everflow.records import TaskId
from everflow.state.lmdb_store import LmdbStore
from everflow.state.store_meta import FORMAT as STORE_FORMAT
from everflow.state.task_directory import FORMAT, StateDirectory
from integration.lifecycle.lifecycle_cluster import Application, Cluster, text, until_failed

pytestmark = [pytest.mark.broker, pytest.mark.spark]

FAILED, USAGE = 1, 2
IN_SECONDS, TENS_OF_SECONDS = 20.0, 50.0
"""How soon an instance has to end: far below task.timeout.ms, with room for a busy machine."""
ONCE_OR_MORE = {"processing_guarantee": "at_least_once"}
Run = Callable[..., Result]


@pytest.fixture
def run(app: Application, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """``everflow run`` on a program given as text: ``run(program, key=value, ...)``."""

    def invoke(program: str, **settings: object) -> Result:
        module = f"program_{uuid.uuid4().hex[:8]}"
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


def test_unusable_topics_are_named_before_anything_is_created(run: Run, cluster: Cluster) -> None:
    two, three = cluster.topic("two", 2), cluster.topic("three", 3)
    absent = f"{cluster.prefix}-absent"
    both = f"builder.stream('{two}').merge(builder.stream('{three}'))"
    refused = {
        f"builder.stream('{absent}').group_by_key().count(store='n')": f"source topic {absent}",
        f"builder.stream('{three}').to('{absent}')": f"everflow topic create {absent}:3 ",
        f"{both}.group_by_key().count(store='n')": f"{three}: 3, {two}: 2",
    }
    for program, says in refused.items():
        result = run(program)
        assert result.exit_code == USAGE
        assert says in result.output
        assert ".py:3" in result.output
    assert set(cluster.topics()) == {two, three}


def refusal(result: Result) -> str:
    assert result.exit_code == FAILED
    return " ".join(result.output.split()).partition("error: [EF-STATE-FORMAT] ")[2]


def test_state_of_a_later_release_is_refused_and_stays(
    run: Run, app: Application, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = f"builder.stream('{cluster.topic('in', 1)}').group_by_key().count(store='n')"
    directory = StateDirectory.open(app.state, app.id)
    path, store = directory.path, directory.store_path(TaskId(0, 0), "n")
    with monkeypatch.context() as later:
        later.setattr("everflow.state.store_meta.FORMAT", 98)
        LmdbStore.open(store, kind="key_value").close()
    directory.close()
    known = f"this release reads up to {STORE_FORMAT}. Run the release that wrote it, or remove the"
    assert refusal(run(program)).startswith(f"The store in {store} has format 98, {known} folder: ")
    metadata = path / "process-metadata"
    metadata.write_text(metadata.read_text().replace(f'"format": {FORMAT}', '"format": 99'))
    before = metadata.read_bytes(), (store / "data.mdb").read_bytes()
    known = f"this release reads up to {FORMAT}. Run the release that wrote it, or choose another"
    assert refusal(run(program)).startswith(f"The state folder {path} has format 99, {known} ")
    assert (metadata.read_bytes(), (store / "data.mdb").read_bytes()) == before


def test_what_raises_names_record_and_line(run: Run, app: Application, cluster: Cluster) -> None:
    source, output = cluster.topic("in", 1), cluster.topic("out", 1)
    cluster.write(source, [text(f"k{i}", str(10 - i), 1_000 + i) for i in range(20)])
    result = run(f"""
        stream = builder.stream('{source}', value=serdes.string())
        stream.map_values(lambda value: 100 // int(value), returns='bigint').to('{output}')
    """)
    assert result.exit_code == FAILED
    assert result.output.count("[EF-RECORD]") == 1, "told once"
    for part in (f"{source}-0@10", "ZeroDivisionError", ".py:4"):
        assert part in result.output
    assert result.output.splitlines()[-1].endswith(f" log: {log_path(app.state, app.id)}")
    assert cluster.members(app.id) == 0
    assert cluster.read(output) == [], "nothing of a failed micro-batch may be visible"


def loops(value: str) -> str:
    while value == "loop":
        pass
    return value


def test_an_endless_loop_is_told_with_line_and_record(app: Application, cluster: Cluster) -> None:
    """Its workers are ended, and say before where they were; that they died is not why."""
    source, output = cluster.topic("in", 1), cluster.topic("out", 1)
    cluster.write(source, [text("k", value) for value in ("0", "1", "2", "loop", "4", "5")])
    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string(), value=serdes.string())
    stream.map_values(loops, returns="string").to(output)
    streams = app.instance(builder.build(), max_poll_interval_ms=4_000)
    streams.start()
    error = until_failed(streams, TENS_OF_SECONDS)
    assert isinstance(error, BatchTimeoutError)
    told = str(error).splitlines()
    assert re.search(rf"4 s \(max\.poll\.interval\.ms\) \(2 times .*{source}-0@3\)$", told[0])
    assert f"{__file__}:" in told[1]
    assert " in loops: " in told[1]
    assert (error.__cause__, error.__context__) == (None, None), (
        "whoever raises it sees what it says, not how it was found out"
    )
    assert [record.value for record in cluster.read(output)] == [b"0", b"1", b"2"]


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
    assert re.match(r"A Column .*: \[CAST_INVALID_INPUT\] .*'one'", first)
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
        pytest.param(50, ONCE_OR_MORE, 0, id="at-least-once", marks=pytest.mark.slow),
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
    assert "created again" in said
    assert f"--reset-offsets --to-earliest --execute --group {app.id} --topic {source}" in said
