"""Public names, names of other APIs, and files that hide a module of Python's."""

import ast
import dataclasses
import re
import subprocess
import sys
from importlib.metadata import packages_distributions, requires
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import everflow
from everflow import (
    ConfigError,
    KafkaStreams,
    SessionWindows,
    StreamsBuilder,
    StreamsConfig,
    TimeWindows,
    TopologyError,
    agg,
    serdes,
)
from everflow.dsl.graph_builder import _first, _or_anew
from everflow.errors import UnknownImportError, UnknownNameError
from everflow.foreign_names import KAFKA_STREAMS, PYSPARK, foreign_names, names_of
from everflow.hidden_modules import NEEDED
from everflow.snapshots import query_errors

MODULES = {"everflow": everflow, "serdes": serdes, "agg": agg}


def _is_there(owner: str, name: str) -> bool:
    from everflow.dsl.streams import BranchedKStream
    from everflow.testing import topology_test_driver

    here = {**vars(topology_test_driver), "BranchedKStream": BranchedKStream}
    found = MODULES.get(owner) or here.get(owner) or getattr(everflow, owner)
    return hasattr(found, name) or name in (
        "config",
        "error",
        *getattr(found, "__dataclass_fields__", ()),
    )


def test_each_line_of_the_data_is_a_name_of_its_own() -> None:
    data = Path(everflow.__file__).parent / "foreign_names" / "names.tsv"
    read = [names for api in (KAFKA_STREAMS, PYSPARK) for names in names_of(api).values()]
    assert len(data.read_text().splitlines()) - 1 == sum(map(len, read))


@pytest.mark.parametrize("owner", foreign_names())
def test_an_entry_leads_to_a_name_that_is_there(owner: str) -> None:
    for name, entry in foreign_names()[owner].items():
        assert entry.here is None or _is_there(owner, entry.here), name
        if _is_there(owner, name):
            assert entry.here == name, f"{name} is there, so nobody is told: the table must agree"


def test_the_java_names_of_a_module_are_told_where_they_are_imported() -> None:
    with pytest.raises(UnknownImportError, match=r"Consumed.*keywords") as caught:
        from everflow import Consumed  # noqa: F401
    assert isinstance(caught.value, ImportError | TopologyError)
    assert caught.value.code == "EF-UNKNOWN-NAME"
    assert caught.value.where is not None
    assert caught.value.where.startswith(__file__)
    with pytest.raises(ImportError, match=r"did you mean StreamsBuilder\?"):
        from everflow import StreamBuilder  # noqa: F401


def _of(thing: Any) -> Any:
    """As a program without a type checker sees it: the names here are wrong on purpose."""
    return thing


def test_the_java_names_of_a_module_are_told_where_they_are_used() -> None:
    with pytest.raises(UnknownNameError, match="arguments"):
        everflow.StreamJoined  # noqa: B018
    with pytest.raises(UnknownNameError, match=r"serdes.*String.*serdes\.string"):
        _of(serdes).String()
    with pytest.raises(UnknownNameError, match=r"stddev.*built-ins"):
        _of(agg).stddev("value.item")
    with pytest.raises(UnknownNameError, match=r"average.*\bavg\b"):
        _of(agg).average("value.amount")


def test_the_java_names_of_windows_are_told_on_the_class_and_on_its_objects() -> None:
    with pytest.raises(UnknownNameError, match=r"TimeWindows\.of_size_with_no_grace\('1 hour'\)"):
        _of(TimeWindows).ofSizeWithNoGrace("1 hour")
    with pytest.raises(UnknownNameError, match="advance_by"):
        _of(TimeWindows.of_size("1 hour")).advanceBy("1 minute")
    with pytest.raises(UnknownNameError, match="of_inactivity_gap"):
        getattr(SessionWindows, "with")
    with pytest.raises(UnknownNameError, match=r"everflow\.ClientState"):
        _of(KafkaStreams).State  # noqa: B018


def test_submodules_are_imported_as_ever_and_asking_for_a_name_breaks_nothing() -> None:
    from everflow import testing, windows

    assert isinstance(testing.EmbeddedBroker, type)
    assert isinstance(windows.TimeWindows, type)
    assert not hasattr(everflow, "Consumed")
    assert not hasattr(TimeWindows, "ofSizeAndGrace")
    assert getattr(TimeWindows.of_size(1), "until", None) is None


def test_an_uncaught_error_reads_as_one_message_without_a_guess_of_pythons(tmp_path: Path) -> None:
    text = "from everflow import TimeWindows\nTimeWindows.of_size('1 hour').gracePeriodMs\n"
    told = run(tmp_path, text).splitlines()
    assert told[-2].endswith(
        "TimeWindows has no gracePeriodMs: it is grace_ms here, for example TimeWindows.of_size('1 "
        "hour').grace_ms"
    )
    assert told[-1].endswith("program.py:2")


@pytest.mark.parametrize("key", foreign_names()["StreamsConfig"])
def test_a_setting_of_kafka_streams_that_is_none_here_says_what_to_do(key: str) -> None:
    for written in (key, key.replace(".", "_")):
        with pytest.raises(ConfigError, match=f"^{re.escape(key)} is no setting.*[^.]\\.$"):
            StreamsConfig({"application.id": "a", "bootstrap.servers": "b:1", written: "1"})


KAFKA_STREAMS_4_4 = """
acceptable.recovery.lag allow.os.group.write.access application.id application.server bootstrap.servers
buffered.records.per.partition built.in.metrics.version cache.max.bytes.buffering client.id commit.interval.ms
config.providers connections.max.idle.ms default.client.supplier default.deserialization.exception.handler
default.dsl.store default.interactive.query.isolation.level default.key.serde default.list.key.serde.inner
default.list.key.serde.type default.list.value.serde.inner default.list.value.serde.type
default.production.exception.handler default.timestamp.extractor default.value.serde deserialization.exception.handler
dsl.store.format dsl.store.suppliers.class enable.metrics.push enable.transactional.statestores
ensure.explicit.internal.resource.naming errors.dead.letter.queue.topic.name group.instance.id group.protocol
log.summary.interval.ms max.task.idle.ms max.warmup.replicas metadata.cluster.check.enable metadata.max.age.ms
metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy metric.reporters metrics.num.samples
metrics.recording.level metrics.sample.window.ms num.standby.replicas num.stream.threads poll.ms
probing.rebalance.interval.ms processing.exception.handler processing.exception.handler.global.enabled
processing.guarantee processor.wrapper.class production.exception.handler rack.aware.assignment.non_overlap_cost
rack.aware.assignment.strategy rack.aware.assignment.tags rack.aware.assignment.traffic_cost receive.buffer.bytes
reconnect.backoff.max.ms reconnect.backoff.ms repartition.purge.interval.ms replication.factor request.timeout.ms
retry.backoff.ms rocksdb.config.setter security.protocol send.buffer.bytes state.cleanup.delay.ms
state.cleanup.dir.max.age.ms state.dir statestore.cache.max.bytes statestore.uncommitted.max.bytes task.assignor.class
task.timeout.ms topology.description.push.enabled topology.optimization upgrade.from window.size.ms
windowed.inner.class.serde windowstore.changelog.additional.retention.ms
"""  # noqa: E501
"""The keys of StreamsConfig in kafka-streams-4.4.0.jar, and its consumer's static membership."""


@pytest.mark.parametrize("key", KAFKA_STREAMS_4_4.split())
def test_every_setting_of_kafka_streams_is_one_here_or_is_told(key: str) -> None:
    here = {spec.name.replace("_", ".") for spec in dataclasses.fields(StreamsConfig)} | {
        "security.protocol"
    }  # passed on
    rack_aware = key.replace("_", ".") if key.startswith("rack.aware") else key
    assert (rack_aware in here) is (key not in foreign_names()["StreamsConfig"])


def test_a_keyword_that_is_a_class_elsewhere_says_what_that_is_here() -> None:
    with pytest.raises(TopologyError, match=r"key_value=.*tuple"):
        _of(StreamsBuilder()).stream("orders", key_value=print)


def test_a_name_that_nothing_is_near_to_is_not_answered_with_all_there_are() -> None:
    with pytest.raises(UnknownImportError, match=r"no Duration: .*of_size\('5 minutes'\)"):
        from everflow import Duration  # noqa: F401
    with pytest.raises(UnknownNameError, match=r"no Qzxqzx; .* (\w+, ){11}\w+ and \d+ more"):
        everflow.Qzxqzx  # noqa: B018


def test_an_error_of_a_start_shows_the_programs_line_and_one_of_everflow(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "from everflow import KafkaStreams\nfrom everflow.topology.program import Topology\n"
        "streams = KafkaStreams(Topology(()), application_id='a', bootstrap_servers='b:1', "
        "state_dir='state',\n"
        "    **{'producer.linger.ms': 'no number'})\nimport sys\ngetattr(streams, sys.argv[1])()\n"
    )
    for call in ("start", "run"):
        done = python(tmp_path, call)
        _, _, trace = done.stderr.partition("Traceback (most recent call last):\n")
        files = [line for line in trace.splitlines() if line.startswith("  File ")]
        assert (len(files), program.name in files[0]) == (2, True), done.stderr
        assert "\neverflow.errors.ConfigError: " in trace
        assert "Traceback" not in trace, "no second one"


def test_a_cell_is_called_as_jupyter_calls_it(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"/programs/ipykernel_7/36.py": ("Cell", "In[4]")}
    shell = SimpleNamespace(compile=SimpleNamespace(format_code_name=names.get))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert (
        str(TopologyError("no", where="/programs/ipykernel_7/36.py:2")) == "no\n  at Cell In[4]:2"
    )
    assert (_first("/programs/ipykernel_7/36.py:2"), _first("app.py:2")) == (
        "Cell In[4]:2",
        "app.py:2",
    )
    assert "cell of the StreamsBuilder" in _or_anew("/programs/ipykernel_7/36.py:2")
    assert _or_anew("app.py:2") == "", "a script that fails is run as a whole"
    assert str(TopologyError("no", where="/programs/a.py:2")) == "no\n  at /programs/a.py:2"
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    assert (
        str(TopologyError("no", where="/programs/ipykernel_7/36.py:2"))
        == "no\n  at /programs/ipykernel_7/36.py:2"
    )


HEAVY = ("pyspark", "pyarrow", "kafka", "lmdb")


def test_every_name_is_there_and_the_type_checker_sees_the_same_ones() -> None:
    found = {name: getattr(everflow, name) for name in everflow.__all__}
    assert [name for name, value in found.items() if value is None] == []
    tree = ast.parse(Path(everflow.__file__).read_text())
    checked = {
        (f"{node.module}.{alias.name}".removeprefix("everflow."), alias.name)
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    at_run_time = {
        (f"{path}.{name}".removeprefix("everflow."), name)
        for name, path in everflow._MODULE_OF.items()
    }
    at_run_time |= {
        (path.removeprefix("everflow."), name) for name, path in everflow._MODULES.items()
    }
    assert checked == at_run_time
    assert sorted(name for _, name in checked) == sorted(everflow.__all__)


def test_every_error_that_a_query_raises_can_be_caught_by_its_public_name() -> None:
    here = query_errors.__name__
    raised = {
        name
        for name, found in vars(query_errors).items()
        if isinstance(found, type) and found.__module__ == here
    }
    assert raised <= set(everflow.__all__)


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = f"import everflow, sys; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "program.py", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)


def run(folder: Path, program: str) -> str:
    """What ``python program.py`` says last, in an order that pytest's own imports do not change."""
    (folder / "program.py").write_text(program)
    done = python(folder)
    assert done.returncode == 1, done.stderr
    return done.stderr


@pytest.mark.parametrize("name", ["queue", "socket", "selectors"])
def test_a_file_that_hides_a_module_of_python_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.py").write_text("mine = 1\n")
    said = run(tmp_path, "from everflow import StreamsBuilder\n")
    file = tmp_path.resolve() / f"{name}.py"
    assert re.search(rf"SetupError: {file} hides .* module {name}, .* Rename the file\.\n", said)
    assert "cannot import name 'StreamsBuilder'" not in said


@pytest.mark.parametrize("name", ["json", "queue", "orjson"])
def test_a_folder_that_hides_a_library_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("mine = 1\n")
    said = run(tmp_path, "from everflow import StreamsBuilder, serdes, KafkaStreams\n")
    assert f"SetupError: {tmp_path.resolve() / name} hides " in said
    assert "Rename the folder." in said


@pytest.mark.parametrize("name", ["orjson", "pyarrow", "lmdb", "anyio"])
def test_a_file_that_hides_an_installed_package_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.py").write_text("mine = 1\n")
    program = "from everflow import KafkaStreams\nfrom everflow.testing import EmbeddedBroker\n"
    said = run(tmp_path, program + "import everflow.testing as t\nt.TopologyTestDriver\n")
    file = tmp_path.resolve() / f"{name}.py"
    assert re.search(rf"SetupError: {file} hides .* package {name} \(", said)
    assert "Rename the file." in said


def test_what_everflow_needs_is_what_its_distribution_asks_for() -> None:
    needs = [one for one in requires("everflow") or () if "extra" not in one]
    asked = {re.split(r"[^\w.-]", one)[0].replace("-", "_") for one in needs}
    owners = packages_distributions().items()
    names = {name for name, all_ in owners if asked & {one.replace("-", "_") for one in all_}}
    code = {name for name in names if name.isidentifier() and name != "cpython"}
    assert code | {"py4j"} == set(NEEDED)


def test_a_file_of_such_a_name_that_hides_nothing_is_not_blamed(tmp_path: Path) -> None:
    (tmp_path / "turtle.py").write_text("mine = 1\n")
    assert "hides" not in run(tmp_path, "from everflow import StreamsBilder\n")


def test_another_reason_is_not_lost(tmp_path: Path) -> None:
    program = (
        "import importlib\n"
        "def broken(name, package=None): raise AttributeError('half a library')\n"
        "import everflow\nimportlib.import_module = broken\nfrom everflow import TimeWindows\n"
    )
    assert "everflow.TimeWindows cannot be imported: half a library" in run(tmp_path, program)
