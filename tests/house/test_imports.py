"""Who may import whom: one table, checked over the syntax tree of every module.

Only imports that run count: those under ``if TYPE_CHECKING:`` are for the type checker.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"

ARROW = frozenset({"pyarrow", "numpy"})
KAFKA = frozenset({"confluent_kafka", "kafka"})
CHECKSUM = frozenset({"crc32c"})

VALUES = (
    "errors",
    "config",
    "setting_checks",
    "handlers",
    "records",
    "serdes",
    "windows",
    "clock",
    "exact_texts",
    "memory",
    "metrics",
    "moves",
)
USER_SIDE = ("user_texts", "user_listener", "hidden_modules", "waits")
LAYER_0 = (
    *VALUES,
    "jvm",
    "sockets",
    "location",
    "foreign_names",
    "logs",
    "stop_signals",
    "retry",
    "threads",
    *USER_SIDE,
)
BASE = frozenset(f"everflow.{name}" for name in LAYER_0)
PURE = frozenset(
    f"everflow.{name}" for name in ("topology", "operators", "assignment", "columns")
) | {
    "everflow.state.store",
    "everflow.state.changelog",
    "everflow.state.key_ranges",
    "everflow.state.overlay",
    "everflow.state.left_out",
    "everflow.state.versions",
}
BELOW_RUNTIME = BASE | PURE | {"everflow.dsl", "everflow.travel"}
ENGINES = frozenset(
    f"everflow.{name}" for name in ("state", "kafka", "spark", "membership", "observe", "snapshots")
)
ALL_BELOW_CLI = BELOW_RUNTIME | ENGINES | {"everflow.runtime"}

TASKS = frozenset(f"everflow.runtime.{room}" for room in ("tasks", "commit", "restore", "topics"))

FRONT = ALL_BELOW_CLI | {"everflow"}
TOP = frozenset(
    {
        "everflow.autoscale",
        "everflow.fleet",
        "everflow.testing",
        "everflow.console",
        "everflow.demo",
        "everflow.cli",
    }
)
DIRECT = "everflow.client.direct"
"""Asks a host over HTTP."""
DEMO = frozenset({"confluent_kafka", "pandas", "pyspark", "rich"})

# The longest matching prefix decides. (prefix, what of everflow it may import, what of other
# packages). A prefix covers the module and everything under it.
TABLE: tuple[tuple[str, frozenset[str], frozenset[str]], ...] = (
    # 0: values; the standard library and Arrow
    *((name, BASE, ARROW | {"orjson"}) for name in sorted(BASE)),
    # 1: pure decisions; no I/O, threads, clock, Spark, Kafka, LMDB
    *((name, BASE | PURE, ARROW) for name in sorted(PURE)),
    # 2: how functions of the user reach the workers
    ("everflow.travel", BASE | {"everflow.travel"}, frozenset({"pyspark"})),
    # 2: what users write; may ask Spark what a Column means
    (
        "everflow.dsl",
        BELOW_RUNTIME | {"everflow.spark.session", "everflow.spark.expressions"},
        ARROW | {"pyspark"},
    ),
    # 3: the engines, each in its own folder; they do not know one another
    ("everflow.state", BASE | PURE | {"everflow.state"}, ARROW | {"lmdb"}),
    (
        "everflow.kafka",
        BASE
        | PURE
        | {
            f"everflow.kafka.{name}"
            for name in (
                "admin_answers",
                "broker_link",
                "client_log",
                "connection_settings",
                "connection_trouble",
                "coordinator_questions",
                "token_endpoint",
                "errors",
                "group_channel",
            )
        },
        KAFKA | {"numpy"},
    ),
    # it asks each client's own code what it would say to its settings
    ("everflow.kafka.client_settings", BASE | {"everflow.kafka"}, KAFKA),
    # it replays with the writer of batches
    ("everflow.kafka.dead_letters", BASE | PURE | {"everflow.kafka"}, KAFKA | {"numpy"}),
    ("everflow.kafka.reading", BASE | PURE | {"everflow.kafka"}, ARROW | KAFKA | CHECKSUM),
    ("everflow.kafka.writing", BASE | PURE | {"everflow.kafka"}, ARROW | KAFKA | CHECKSUM),
    (
        "everflow.spark",
        BASE | PURE | {"everflow.spark", "everflow.travel.own_code", "everflow.travel.udf_command"},
        ARROW | {"pyspark", "py4j", "pandas"},
    ),
    # imported before the fork of the Python workers, so that each starts warm: it names what
    # workers will need
    ("everflow.spark.launch.daemon", BASE | {"everflow.spark"}, frozenset({"pyspark"})),
    (
        "everflow.membership",
        BASE | PURE | {"everflow.membership", "everflow.kafka.group_channel"},
        KAFKA,
    ),
    # an instance over HTTP; it gets plain values and knows nobody
    (
        "everflow.observe",
        BASE | {"everflow.observe"},
        frozenset({"prometheus_client", "starlette", "uvicorn"}),
    ),
    # the same figures for a collector, where its packages are installed
    ("everflow.observe.otlp", BASE | {"everflow.observe"}, frozenset({"opentelemetry"})),
    # asks an instance over HTTP, from anywhere
    ("everflow.client", BASE | {"everflow.client"}, frozenset()),
    # starts instances as processes, and knows none from inside
    ("everflow.autoscale", BASE | {"everflow.autoscale", DIRECT}, frozenset()),
    # the same in the places of a Spark cluster
    (
        "everflow.fleet",
        BASE
        | {"everflow.fleet", "everflow.autoscale", "everflow.spark"}
        | {"everflow.observe.http_server", "everflow.observe.host_names"},
        frozenset({"pyspark", "py4j", "starlette"}),
    ),
    # what runs on the hosts beside Spark knows no Spark
    ("everflow.fleet.keeper", BASE | {"everflow.fleet", "everflow.autoscale", DIRECT}, frozenset()),
    *(
        (f"everflow.fleet.{name}", BASE | {"everflow.fleet", "everflow.autoscale"}, frozenset())
        for name in ("decision", "messages", "places")
    ),
    # 4: joins them: the rooms of runtime, lowest first; a room imports only rooms below it
    ("everflow.runtime.commit", BASE | {"everflow.runtime.commit"}, frozenset()),
    ("everflow.runtime.topics", BASE | PURE | {"everflow.runtime.topics"}, frozenset()),
    (
        "everflow.runtime.restore",
        BASE | PURE | {"everflow.runtime.restore", "everflow.state", "everflow.kafka.admin"},
        frozenset({"numpy"}),
    ),
    (
        "everflow.runtime.restore.restore_plan",
        BASE | PURE | {"everflow.state.store_meta"},
        frozenset(),
    ),
    (
        "everflow.runtime.step",
        BASE
        | PURE
        | {"everflow.runtime.step", "everflow.runtime.commit.batch", "everflow.travel.own_code"},
        ARROW,
    ),
    (
        "everflow.runtime.worker",
        BASE
        | PURE
        | {
            f"everflow.{name}"
            for name in ("runtime.worker", "runtime.step", "runtime.commit", "kafka", "state")
        },
        ARROW,
    ),
    # what PySpark's workers do with a function is PySpark's
    (
        "everflow.runtime.worker.python_calls",
        BASE | PURE | {"everflow.runtime.worker.resident_segments"},
        ARROW | {"pyspark"},
    ),
    (
        "everflow.runtime.worker.kafka_sink",  # its effects are ports: a simulation runs it
        BASE
        | PURE
        | {"everflow.runtime.step", "everflow.runtime.commit", "everflow.state.store_meta"}
        | {
            f"everflow.runtime.worker.{name}"
            for name in ("crash_points", "dead_letters", "large_records")
        },
        ARROW,
    ),
    ("everflow.runtime.tasks", BASE | PURE | TASKS, frozenset()),
    (
        "everflow.runtime.tasks.task_recovery",
        BASE | PURE | TASKS | {"everflow.kafka", "everflow.state"},
        frozenset(),
    ),
    (
        "everflow.runtime.copies",
        BASE
        | PURE
        | {
            f"everflow.{name}"
            for name in ("runtime.copies", "runtime.tasks", "runtime.restore", "state")
        },
        frozenset(),
    ),
    (
        "everflow.runtime.thread",
        BASE
        | PURE
        | {
            f"everflow.runtime.{room}"
            for room in ("thread", "worker", "step", "tasks", "topics", "commit")
        }
        | {"everflow.spark", "everflow.kafka.admin", "everflow.travel"},
        ARROW | {"pyspark", "py4j"},
    ),
    # a store as rows: copied or folded from its changelog, for whoever reads it for long
    (
        "everflow.snapshots",
        BASE
        | PURE
        | {"everflow.snapshots", "everflow.state", "everflow.kafka"}
        | {"everflow.spark.session", "everflow.spark.foreign"}
        | {"everflow.runtime.query.query_errors"},
        ARROW,
    ),
    # the same as a data source of PySpark
    (
        "everflow.snapshots.state_source",
        BASE | PURE | {"everflow.snapshots", "everflow.travel"},
        ARROW | {"pyspark"},
    ),
    (
        "everflow.runtime.query",
        BASE
        | PURE
        | {f"everflow.runtime.{name}" for name in ("query", "tasks", "client_state")}
        | {"everflow.snapshots", "everflow.state"}
        | {"everflow.kafka.group_channel", "everflow.kafka.group_description"},
        frozenset({"kafka", "pyarrow"}),
    ),
    (
        "everflow.runtime.serving",
        BASE
        | {f"everflow.runtime.{name}" for name in ("query", "serving")}
        | {"everflow.snapshots.query_errors"}
        | {"everflow.observe.http_server", "everflow.observe.host_names"}
        | {"everflow.client.key_forms"},
        frozenset({"starlette", "pyarrow", "orjson"}),
    ),
    # the instance: joins rooms and engines, and uses no engine's package itself
    (
        "everflow.runtime",
        BASE | PURE | ENGINES | {"everflow.runtime", "everflow.travel"},
        frozenset(),
    ),
    (
        "everflow.runtime.front",
        BASE
        | {"everflow.topology", "everflow.kafka"}
        | {
            f"everflow.runtime.{name}"
            for name in ("front", "client_state", "drain", "instance_life")
        },
        frozenset(),
    ),
    (
        "everflow.runtime.observed",
        BASE
        | {"everflow.topology", "everflow.observe"}
        | {
            f"everflow.runtime.{name}"
            for name in ("observed", "instance", "task_status", "task_words", "tasks", "wiring")
        },
        frozenset(),
    ),
    # what only the brokers know, while somebody looks
    (
        "everflow.runtime.observed.broker_facts",
        BASE | {"everflow.observe.observation", "everflow.kafka"},
        frozenset(),
    ),
    # for the page: the dead letter topic is read where somebody asks for it
    (
        "everflow.runtime.observed.topic_letters",
        BASE | {"everflow.observe.page.letters", "everflow.kafka"},
        frozenset(),
    ),
    ("everflow.runtime.client_state", BASE, frozenset()),
    # 5: on top; nothing below imports these
    ("everflow.testing", FRONT | {"everflow.testing"}, ARROW | KAFKA),
    # a secure broker's certificates, where somebody wants one
    ("everflow.testing.broker_security", BASE, frozenset({"cryptography", "trustme"})),
    ("everflow.console", FRONT | {"everflow.console", DIRECT}, frozenset({"rich"})),
    (
        "everflow.demo",
        FRONT | {"everflow.testing", "everflow.console", "everflow.demo"},
        ARROW | DEMO,
    ),
    (
        "everflow.cli",
        FRONT | TOP | {DIRECT},
        frozenset({"confluent_kafka", "pyspark", "rich", "typer"}),
    ),
    ("everflow", ALL_BELOW_CLI, frozenset()),
)

# Layer 1 decides with values: these standard modules are effects, clocks, randomness or threads.
IMPURE = frozenset(
    {"asyncio", "io", "multiprocessing", "os", "pathlib", "queue", "random", "secrets", "shutil"}
) | {
    "socket",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "uuid",
}
# A step measures itself, and looks at paths of the user's files; it starts and opens nothing.
EFFECTS = (
    *((prefix, IMPURE) for prefix in sorted(PURE)),
    ("everflow.runtime.step", IMPURE - {"time", "pathlib"}),
    ("everflow.fleet.decision", IMPURE),
)


def _module_name(path: Path) -> str:
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _under(name: str, prefix: str) -> bool:
    # "everflow" itself means the public names of the package's front door, not everything below it.
    return name == prefix or (prefix != "everflow" and name.startswith(prefix + "."))


def _imports(tree: ast.AST) -> list[tuple[int, str]]:
    """Every imported dotted name; ``from a.b import c`` gives ``a.b.c``, as c may be a module."""
    found: list[tuple[int, str]] = []
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            pending += node.orelse
            continue
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
        pending += ast.iter_child_nodes(node)
    return found


def _rule(module: str) -> tuple[frozenset[str], frozenset[str]]:
    fitting = [row for row in TABLE if module == row[0] or module.startswith(row[0] + ".")]
    prefix, inner, outer = max(fitting, key=lambda row: len(row[0]))
    assert prefix != "everflow" or module == "everflow", f"{module} is in no layer: add it to TABLE"
    return inner, outer


def violations(module: str, source: str) -> list[str]:
    """Say which imports of ``module`` the table forbids."""
    inner, outer = _rule(module)
    effects = next((effects for prefix, effects in EFFECTS if _under(module, prefix)), frozenset())
    wrong = []
    for line, name in _imports(ast.parse(source)):
        top = name.split(".")[0]
        if top == "everflow":
            # `from everflow import StreamsBuilder`: a class of the front door, unless it names a
            # submodule
            named = name if _is_module(name) or name == "everflow" else name.rpartition(".")[0]
            allowed = any(_under(named, prefix) for prefix in inner)
        elif top in sys.stdlib_module_names:
            allowed = top not in effects
        else:
            allowed = top in outer
        if not allowed:
            wrong.append(f"{module}:{line} imports {name}")
    return wrong


def _is_module(name: str) -> bool:
    path = SRC.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


MODULES = sorted(SRC.rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=_module_name)
def test_imports_follow_the_layers(path: Path) -> None:
    assert violations(_module_name(path), path.read_text()) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("everflow.topology.graph", "import pyspark"),
        ("everflow.topology.graph", "import time"),
        ("everflow.operators.join", "from everflow.state.lmdb_store import LmdbStore"),
        ("everflow.kafka.admin", "import everflow.spark.session"),
        ("everflow.kafka.admin", "def late():\n    from everflow import state"),
        ("everflow.kafka.admin", "from everflow.kafka.reading.log_reader import LogReader"),
        ("everflow.state.lmdb_store", "from everflow.runtime.tasks.task import Task"),
        ("everflow.runtime.commit.gate_client", "import confluent_kafka"),
        ("everflow.runtime.commit.batch", "from everflow.runtime.tasks.task import Task"),
        ("everflow.runtime.topics.end_offsets", "from everflow.kafka.admin import ClusterAdmin"),
        (
            "everflow.runtime.topics.topic_watch",
            "from everflow.runtime.commit.batch import BatchId",
        ),
        ("everflow.runtime.restore.restoration", "from everflow.runtime.tasks.task import Task"),
        (
            "everflow.runtime.restore.restore_plan",
            "from everflow.state.lmdb_store import LmdbStore",
        ),
        ("everflow.runtime.step.task_step", "import threading"),
        ("everflow.runtime.step.step_stores", "import lmdb"),
        ("everflow.runtime.step.step_failure", "from everflow.kafka.errors import classify"),
        (
            "everflow.runtime.worker.kafka_sink",
            "from everflow.runtime.thread.stream_thread import StreamThread",
        ),
        ("everflow.runtime.worker.kafka_sink", "from everflow.runtime.tasks.task import Task"),
        ("everflow.runtime.worker.kafka_sink", "import confluent_kafka"),
        ("everflow.runtime.worker.resident_step", "import pyspark"),
        ("everflow.runtime.tasks.task_manager", "import pyspark"),
        ("everflow.runtime.tasks.recovery", "from everflow.kafka.admin import ClusterAdmin"),
        (
            "everflow.runtime.tasks.task_recovery",
            "from everflow.runtime.copies.state_updater import StateUpdater",
        ),
        (
            "everflow.runtime.copies.state_updater",
            "from everflow.kafka.reading.copy_follower import CopyFollower",
        ),
        (
            "everflow.runtime.copies.known_copies",
            "from everflow.runtime.thread.stream_thread import StreamThread",
        ),
        (
            "everflow.runtime.thread.stream_thread",
            "from everflow.runtime.kafka_streams import KafkaStreams",
        ),
        ("everflow.runtime.thread.thread_job", "import confluent_kafka"),
        (
            "everflow.runtime.query.queries",
            "from everflow.runtime.kafka_streams import KafkaStreams",
        ),
        ("everflow.runtime.query.store_query", "import lmdb"),
        ("everflow.runtime.wiring", "import confluent_kafka"),
        ("everflow.runtime.client_state", "from everflow.runtime.tasks.task import Task"),
        ("everflow.runtime.tasks.task", "from everflow.testing.waiting import wait_until"),
        ("everflow.runtime.tasks.task", "from everflow import KafkaStreams"),
        ("everflow.records", "import lmdb"),
        ("everflow.console.terminal", "from everflow.cli.app import main"),
        ("everflow.demo.run", "from everflow.cli.run import run_program"),
        ("everflow.testing.broker", "import rich"),
    ],
)
def test_the_table_catches(module: str, source: str) -> None:
    assert len(violations(module, source)) == 1


def reached(start: str) -> set[str]:
    """What is imported, by modules of ours over any number of steps, when ``start`` and all under
    it are."""
    texts = {_module_name(path): path.read_text() for path in MODULES}
    pending = [module for module in texts if _under(module, start)]
    found: set[str] = set()
    while pending:
        module = pending.pop()
        if module in found:
            continue
        found.add(module)
        if module in texts:
            pending += [module.rsplit(".", n)[0] for n in range(1, module.count(".") + 1)]
            pending += [
                _imported(name, texts.keys()) for _, name in _imports(ast.parse(texts[module]))
            ]
    return found


def _imported(name: str, modules: Collection[str]) -> str:
    """The module that an import of ``name`` runs: itself, or the one that has it."""
    return name if name in modules else name.rpartition(".")[0] or name


@pytest.mark.parametrize("start", ["everflow.runtime.step", "everflow.runtime.worker"])
def test_what_a_worker_imports_reaches_neither_spark_nor_the_drivers_rooms(start: str) -> None:
    found = reached(start)
    drivers = ("tasks", "copies", "thread", "query", "restore", "topics", "kafka_streams", "wiring")
    assert {
        name for name in found if any(_under(name, f"everflow.runtime.{room}") for room in drivers)
    } == set()
    engines = (
        {name.split(".")[0] for name in found}
        - sys.stdlib_module_names
        - {"everflow", "orjson"}
        - ARROW
    )
    # of PySpark its worker, which is what is running
    assert engines <= (
        KAFKA | CHECKSUM | {"lmdb", "pyspark"} if start.endswith("worker") else set()
    )
    assert {name for name in found if _under(name, "pyspark")} <= {"pyspark"}


def test_reach_goes_over_several_steps() -> None:
    assert {"lmdb", "everflow.state.lmdb_env"} <= reached("everflow.runtime.query.queries"), (
        "through state.lmdb_store"
    )


def circles(sources: Mapping[str, str]) -> list[list[str]]:
    """Modules that import one another, directly or around; ``sources``: module -> its text. An
    import inside a function counts."""
    graph = {
        module: {_imported(name, sources) for _, name in _imports(ast.parse(text))} & sources.keys()
        for module, text in sources.items()
    }
    # What imports nothing that is left is in no circle, nor is what nothing left imports.
    while outside := {
        module
        for module, targets in graph.items()
        if not targets & graph.keys() or not any(module in others for others in graph.values())
    }:
        graph = {
            module: targets - outside for module, targets in graph.items() if module not in outside
        }
    return [sorted([module, *targets]) for module, targets in sorted(graph.items())]


def test_no_modules_import_one_another() -> None:
    assert circles({_module_name(path): path.read_text() for path in MODULES}) == []


def test_a_circle_is_seen_and_the_type_checkers_imports_make_none() -> None:
    late = "def f():\n    from p import b"
    typing = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p.b import x"
    assert circles(
        {
            "p.a": late,
            "p.b": "from p.c import x",
            "p.c": "import p.a",
            "p.top": "import p.a",
            "p.low": "",
        }
    ) == [
        ["p.a", "p.b"],
        ["p.b", "p.c"],
        ["p.a", "p.c"],
    ]
    assert circles({"p.a": typing, "p.b": "import p.a"}) == []


def test_the_architecture_page_has_all_of_layer_0() -> None:
    page = (SRC.parent / "docs" / "ARCHITECTURE.md").read_text()
    row = next(line for line in page.splitlines() if line.startswith("| 0 |"))
    assert set(row.split("|")[2].strip().split(", ")) == set(LAYER_0)


def test_every_room_has_a_row_of_its_own() -> None:
    rooms = {_module_name(path) for path in SRC.glob("everflow/runtime/*/__init__.py")}
    assert rooms - {row[0] for row in TABLE} == set(), (
        "its neighbours' row would let it import whatever they may"
    )


def test_imports_for_the_type_checker_are_free() -> None:
    source = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import pyspark\n"
    assert violations("everflow.topology.graph", source) == []


def test_the_test_driver_imports_no_client_of_the_group() -> None:
    """It costs a user's test run a second, and 200 warnings in its summary."""
    program = (
        "import sys, everflow.testing; everflow.testing.TopologyTestDriver; "
        "print([name for name in ('kafka', 'lmdb') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
