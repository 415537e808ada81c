"""What commands print, and say of their options before anything starts."""

import io
import logging
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest
from rich.console import Console
from typer.testing import CliRunner

from everflow import __version__, autoscale
from everflow.cli import run as run_module
from everflow.cli.app import app, bytes_of
from everflow.cli.commands import assignments, merged_settings, named_as_typed, renamed
from everflow.cli.topics import parse_topics, topic_lines, topic_rows
from everflow.console.status import StatusLine
from everflow.errors import ConfigError, FatalError
from everflow.instance.client_state import ClientState
from everflow.kafka.admin import TopicShape
from everflow.logs import lines_to, rebalance_log, some

TAKE_LONG = {"kafka", "numpy", "pandas", "pyarrow", "pyspark"}
GIVEN = ["--application-id", "a", "--bootstrap-servers", "localhost:1"]


@pytest.fixture(autouse=True)
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "flights.py").write_text("builder = 1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EVERFLOW_BOOTSTRAP_SERVERS", raising=False)


@pytest.mark.parametrize("arguments", [["--version"], ["version"]])
def test_the_version_is_an_option_and_a_command(arguments: list[str]) -> None:
    done = CliRunner().invoke(app, arguments)
    assert (done.exit_code, done.output) == (0, f"{__version__}\n")


def test_the_command_line_imports_nothing_that_takes_long() -> None:
    """``run`` launches Spark's JVM first, and what it imports behind that has its time for free."""
    asked = f"import sys, everflow.cli.app; print(sorted({TAKE_LONG} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_settings_keep_equal_signs_of_the_value() -> None:
    found = assignments("--set", ["a.b=1", "sasl.config=x=y", "a.b=2"])
    assert found == {"a.b": "2", "sasl.config": "x=y"}


@pytest.mark.parametrize("wrong", ["commit.interval.ms", "=5"])
def test_a_setting_without_key_or_value_is_refused_by_name(wrong: str) -> None:
    with pytest.raises(ConfigError, match="key=value") as caught:
        assignments("--set", [wrong])
    assert repr(wrong) in str(caught.value)


def test_options_win_over_settings_and_missing_ones_do_not() -> None:
    given = ["application.id=a", "bootstrap.servers=h:1", "state.dir=/a"]
    options = {"application.id": "b", "state.dir": None}
    assert merged_settings(given, None, options) == {
        "application.id": "b",
        "bootstrap.servers": "h:1",
        "state.dir": "/a",
    }


def test_what_is_missing_is_named_as_it_is_typed_all_at_once() -> None:
    done = CliRunner().invoke(app, ["run", "flights:builder"])
    assert done.exit_code == 2
    assert "--application-id is missing" in done.output
    assert "is missing: host:port of a broker, or set EVERFLOW_BOOTSTRAP_SERVERS" in done.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--application-id", "a b", "--bootstrap-servers", "b:1"], "--application-id = 'a b' may"),
        (
            ["--set", "application.id=a b", "--bootstrap-servers", "b:1"],
            "application.id = 'a b' may hold letters",
        ),
        ([*GIVEN, "--state-dir", "flights.py"], "flights.py"),
        ([*GIVEN, "--set", "num.stream.threads=many"], "num.stream.threads"),
        ([*GIVEN, "--set", "sesion.timeout.ms=1"], "did you mean session.timeout.ms"),
        ([*GIVEN, "--set", "x"], "--set 'x': write it"),
        ([*GIVEN, "--memory", "much"], "--memory 'much'"),
        ([*GIVEN, "--memory", "100m"], "--memory (104,857,600)"),
    ],
)
def test_a_wrong_setting_is_named_as_it_was_given(arguments: list[str], says: str) -> None:
    done = CliRunner().invoke(app, ["run", "flights:builder", *arguments])
    assert done.exit_code != 0
    assert says in done.output
    assert "starting Spark" not in done.output


@pytest.mark.parametrize(
    ("text", "size"),
    [("1g", 1 << 30), ("1500M", 1500 << 20), ("2gb", 2 << 30), ("7k", 7 << 10), ("4096", 4096)],
)
def test_memory_is_given_in_units(text: str, size: int) -> None:
    assert bytes_of(text) == size


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("flihgts:builder", "no module 'flihgts'"),
        ("flights:bulider", "has no 'bulider'"),
        ("flights", "write it as module:name"),
        ("flights.py:bulider", "has no 'bulider'"),
    ],
)
@pytest.mark.parametrize("command", ["run", "describe"])
def test_a_wrong_module_or_name_is_told_before_spark_starts(
    command: str, target: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "flights", raising=False)  # of another folder
    done = CliRunner().invoke(app, [command, target, *(GIVEN if command == "run" else [])])
    assert done.exit_code == 2
    assert says in done.output
    assert "[EF-PROGRAM]" in done.output
    assert "starting Spark" not in done.output


def test_a_form_that_a_description_does_not_have_is_refused() -> None:
    done = CliRunner().invoke(app, ["describe", "a:b", "--physical", "--format", "mermaid"])
    assert done.exit_code == 2
    assert re.search("--physical .* not as mermaid", done.output)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("state.dir = 'x' is wrong.", "--state-dir = 'x' is wrong."),
        ("Check state.dir.", "Check --state-dir."),
        ("(state.dir)", "(--state-dir)"),
        ("my.state.dir and state.dir.a, state.dirs", "my.state.dir and state.dir.a, state.dirs"),
    ],
)
def test_only_whole_keys_are_renamed(text: str, shown: str) -> None:
    assert renamed(text, {"state.dir": "--state-dir"}) == shown


def test_an_error_stays_what_it_is() -> None:
    with (
        pytest.raises(FatalError, match=r"^--threads is 5$") as caught,
        named_as_typed({"num.stream.threads": "--threads"}),
    ):
        raise FatalError("num.stream.threads is 5", code="EF-ANY")
    assert caught.value.code == "EF-ANY"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["run", "flights:builder", "--guarantee", "exactly_once"],
            "'--guarantee': 'exactly_once' is not one of 'at_least_on",
        ),
        (["run", "flights:builder", "--threads", "many"], "Invalid value for '--threads': "),
        (["run", "flights:builder", "--threds", "3"], "--threds"),
        (["run"], "Missing argument 'MODULE:NAME'"),
        (["topic", "remove"], "No such command 'remove'"),
        (["rnu"], "No such command 'rnu'. Did you mean 'run'?"),
    ],
)
def test_an_unreadable_line_is_told_as_all_errors_are(arguments: list[str], says: str) -> None:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2
    first, last = done.output.splitlines()
    assert first.startswith("error: [EF-USAGE] ")
    assert says in first
    assert last.startswith(("  everflow", "  root"))
    assert " --help shows" in last


@pytest.mark.parametrize("arguments", [[], ["topic"]])
def test_a_group_without_a_command_shows_its_help(arguments: list[str]) -> None:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2
    assert "Usage: " in done.output
    assert "error: " not in done.output


@pytest.mark.parametrize(
    ("option", "leaves"), [([], None), (["--leave"], True), (["--stay"], False)]
)
def test_leave_and_stay_say_what_becomes_of_the_membership(
    option: list[str], leaves: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []

    def run_program(target: str, settings: object, **options: Any) -> int:
        given.append((target, options["leave_group"]))
        return 0

    monkeypatch.setattr(run_module, "run_program", run_program)
    done = CliRunner().invoke(
        app,
        ["run", "program:builder", "--application-id", "a", "--bootstrap-servers", "b:1", *option],
    )
    assert done.exit_code == 0, done.output
    assert given == [("program:builder", leaves)]


@pytest.mark.parametrize(
    ("took_s", "state", "pause_s"),
    [
        (0.002, ClientState.RUNNING, 1.0),
        (0.02, ClientState.RUNNING, 6.0),
        (0.5, ClientState.RUNNING, 30.0),
        (0.5, ClientState.REBALANCING, 10.0),
    ],
)
def test_slow_samples_come_less_often(took_s: float, state: ClientState, pause_s: float) -> None:
    """1,000 tasks take some hundredths of a second of a core; a start is told of more often."""
    assert run_module.pause_s(took_s, state) == pause_s


def test_moves_are_printed_with_the_time_and_only_once() -> None:
    out = io.StringIO()
    with StatusLine(Console(file=out, width=20), stamp=lambda: "21:14:06") as status:
        with lines_to(status.event):
            rebalance_log.info("Assigned 2 tasks: %s", "0_0, [0_1]")
            rebalance_log.warning("Lost 1 task: 0_0")
            logging.getLogger("everflow").info("Stream thread 0 runs tasks 0_0")
        rebalance_log.info("after the run")
    assert out.getvalue().splitlines() == [
        "21:14:06 Assigned 2 tasks: 0_0, [0_1]",
        "21:14:06 WARNING Lost 1 task: 0_0",
    ]


def test_progress_has_the_time_where_there_is_no_terminal_and_repeats_nothing() -> None:
    out, now = io.StringIO(), [0.0]
    with StatusLine(
        Console(file=out), clock=lambda: now[0], stamp=lambda: f"t{now[0]:.0f}"
    ) as status:
        for at in (0.0, 6.0, 12.0):
            now[0] = at
            status.show("lag 3" if at < 12 else "lag 2")
    assert out.getvalue().splitlines() == ["t0 lag 3", "t12 lag 2"]


def test_long_lists_are_cut_and_counted() -> None:
    assert some(range(7)) == "0, 1, 2, 3, 4 and 2 more"
    assert some(range(5)) == "0, 1, 2, 3, 4"
    assert some([]) == "none"


def test_topics_are_read_in_order() -> None:
    assert list(parse_topics(["orders:4", "a.b_c-d:1"]).items()) == [("orders", 4), ("a.b_c-d", 1)]
    assert parse_topics([]) == {}


WRONG = [
    ("orders", "name:partitions, e.g. orders:4"),
    ("orders:", "name:partitions, e.g. orders:4"),
    ("orders:four", "name:partitions, e.g. orders:4"),
    ("orders:-1", "name:partitions, e.g. orders:4"),
    ("orders:4:5", "not 'orders:4'"),
    (":4", "not ''"),
    ("..:4", r"not '\.\.'"),
    ("my orders:4", "not 'my orders'"),
    (f"{'x' * 250}:4", "1 to 249 letters"),
    ("orders:0", "1 to 1,000 partitions"),
    ("orders:1001", "1 to 1,000 partitions"),
]


@pytest.mark.parametrize(("argument", "says"), WRONG, ids=[argument[:20] for argument, _ in WRONG])
def test_what_is_no_topic_is_refused_with_the_reason(argument: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        parse_topics([argument])
    assert argument in str(refused.value)


def test_a_topic_is_given_once() -> None:
    with pytest.raises(ConfigError, match=r"orders.*twice"):
        parse_topics(["orders:4", "orders:4"])


def test_nothing_starts_with_a_wrong_topic() -> None:
    done = CliRunner().invoke(app, ["broker", "--topic", "orders"])
    assert done.exit_code == 2
    assert "[EF-CONFIG]" in done.output
    assert "broker is up" not in done.output


PROGRAM = """
from everflow import StreamsBuilder, serdes

builder = StreamsBuilder()
stream = builder.stream("in", key=serdes.string(), value=serdes.string())
stream.group_by_key().count(store="counts")
"""


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--at", "yesterday"], 2, "not a time: 'yesterday'"),
        (["--diff", "0=1", "0="], 2, "0=120,1=98; or end"),
        (["--diff", "end", "end", "--at", "0=1"], 2, "--diff has its"),
        (["--format", "parquet"], 2, "--format parquet and --path FOLDER go together"),
        (["--path", "here"], 2, "--format parquet and --path FOLDER go together"),
        (["--format", "json", "--output", "json"], 2, "take one"),
        (["--format", "parquet", "--path", "here", "--limit", "3"], 2, "leave --limit out"),
        ([], 1, "no store 'cuonts'; it has: counts."),
    ],
)
def test_what_is_wrong_is_told_without_a_broker(
    arguments: list[str], code: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "state_program.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    where = ["--application-id", "app", "--bootstrap-servers", "localhost:1"]
    done = CliRunner().invoke(app, ["state", "state_program:builder", "cuonts", *where, *arguments])
    assert (done.exit_code, says in done.output) == (code, True), done.output
    assert not (tmp_path / "here").exists()


def test_the_table_has_users_topics_first_and_marks_the_others() -> None:
    topics = {
        "__consumer_offsets": TopicShape(8, 1),
        "app-counts-changelog": TopicShape(4, 1),
        "app-by-x-repartition": TopicShape(4, 1),
        "orders": TopicShape(4, 3),
    }
    records = {
        "__consumer_offsets": 1_234,
        "app-counts-changelog": 2,
        "app-by-x-repartition": 0,
        "orders": 10,
    }
    lines = topic_lines(topic_rows(topics, records))
    assert [" ".join(line.split()) for line in lines] == [
        "TOPIC PARTITIONS REPLICATION RECORDS",
        "orders 4 3 10",
        "app-by-x-repartition 4 1 0 internal",
        "app-counts-changelog 4 1 2 internal",
        "__consumer_offsets 8 1 1,234 the broker's own",
    ]
    assert topic_lines([]) == ["no topics"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["create", "my orders"], "topic 'my orders': a topic's name is 1 to 249 letters"),
        (["create", "orders:0"], "topic 'orders:0': a topic has 1 to 1,000 partitions"),
        (["create", "orders", "orders:2"], "topic orders is given"),
        (["create", "orders", "--config", "cleanup.policy"], "--config 'cleanup.policy': write"),
        (["list", "--set", "securty.protocol=SSL"], "'securty.protocol'"),
        (["list", "--set", "x"], "--set 'x': write it"),
    ],
)
def test_wrong_arguments_are_named(arguments: list[str], says: str) -> None:
    done = CliRunner().invoke(app, ["topic", *arguments])
    assert done.exit_code == 2
    assert says in done.output
    assert "EF-CONFIG" in done.output


class Kept:
    """The loop that would run: what it was made with."""

    made: ClassVar[dict[str, Any]] = {}

    def __init__(self, **given: Any) -> None:
        Kept.made = given

    def run(self, stop: object) -> None:
        """At once over."""


COMMAND = ("autoscale", "scaled_program:builder", "--application-id", "orders")


@pytest.fixture(autouse=True)
def in_a_folder_with_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autoscale, "Autoscaler", Kept)
    monkeypatch.setattr(Kept, "made", {})
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "scaled_program.py").write_text("builder = len('')\n")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["autoscale", "scaled_program:bulider", *COMMAND[2:]], "has no 'bulider'"),
        (["autoscale", "no_such_program:x", *COMMAND[2:]], "no module 'no_such_program'"),
        (["autoscale", "scaled_program", *COMMAND[2:]], "write it as module:name"),
        ([*COMMAND, "--set", "comit.interval.ms=5"], "comit.interval.ms"),
        ([*COMMAND, "--set", "http.listen=0.0.0.0:9464"], "http.listen cannot be set"),
        ([*COMMAND, "--set", "group.instance.id=a"], "group.instance.id cannot be set"),
        ([*COMMAND, "--set", "state.dir=/x"], "--folder says where"),
    ],
)
def test_what_no_instance_could_run_with_is_refused(arguments: list[str], says: str) -> None:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2, done.output
    assert says in done.output
    assert not Kept.made


def test_settings_that_are_secret_stay_in_their_folder(tmp_path: Path) -> None:
    """A command line is read by everybody on the host."""
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "security.protocol").write_text("SASL_PLAINTEXT")
    (secrets / "sasl.mechanism").write_text("PLAIN")
    (secrets / "sasl.username").write_text("orders")
    (secrets / "sasl.password").write_text("hidden")
    given = [*COMMAND, "--set", "commit.interval.ms=50"]
    done = CliRunner().invoke(app, [*given, "--settings-folder", "secrets"])
    assert done.exit_code == 0, done.output
    options = Kept.made["options"]
    assert options[-3:] == ["--set", "commit.interval.ms=50", f"--settings-folder={secrets}"]
    assert "hidden" not in " ".join(options)
    missing = CliRunner().invoke(app, [*given, "--settings-folder", "nowhere"])
    assert missing.exit_code == 2
    assert "--settings-folder nowhere cannot" in missing.output
