"""Who may import whom: the contracts of import-linter in ``pyproject.toml``.

Imports for the type checker and those inside functions count.
"""

import re
import subprocess
import sys
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("importlinter")  # of Python 3.11

import grimp
from importlinter.api import read_configuration
from importlinter.contracts.acyclic_siblings import AcyclicSiblingsContract
from importlinter.contracts.forbidden import ForbiddenContract
from importlinter.contracts.layers import LayersContract
from importlinter.contracts.protected import ProtectedContract

ROOT = Path(__file__).parents[2]
KINDS: dict[str, Any] = {
    "acyclic_siblings": AcyclicSiblingsContract,
    "forbidden": ForbiddenContract,
    "layers": LayersContract,
    "protected": ProtectedContract,
}
CONFIGURATION = read_configuration(str(ROOT / "pyproject.toml"))
ROOTS: list[str] = CONFIGURATION["session_options"]["root_packages"]
CONTRACTS: dict[str, dict[str, Any]] = {
    options["name"]: options for options in CONFIGURATION["contracts_options"]
}


@cache
def graph() -> grimp.ImportGraph:
    return grimp.build_graph(*ROOTS, include_external_packages=True, cache_dir=None)


def holds(name: str, *added: tuple[str, str]) -> bool:
    """Whether a contract does, with ``added`` imports too."""
    changed, options = deepcopy(graph()), dict(CONTRACTS[name])
    for importer, imported in added:
        changed.add_import(importer=importer, imported=imported)
    session = {"root_packages": ROOTS, "include_external_packages": "True"}
    contract = KINDS[options["type"]](name, session, options)
    return bool(contract.check(changed, verbose=False).kept)


@pytest.mark.parametrize("name", CONTRACTS)
def test_the_contracts_hold(name: str) -> None:
    assert holds(name), "`lint-imports` says which import breaks it"


MUTATIONS = {
    "Layers: a new module of everflow's own folder gets its place here": (
        "kafka.admin everflow.spark.session",
        "kafka.admin everflow.state.store",
        "state.lmdb_store everflow.instance.tasks.task",
        "operators.table everflow.dsl.streams",
        "topology.graph everflow.operators.table",
        "console.status everflow.cli.app",
        "instance.tasks.task everflow.testing.waiting",
        "client.direct everflow.topology.graph",
        "observe.otlp everflow.kafka.admin",
        "new_module everflow.errors",
    ),
    "No circles, of folders or of modules": (
        "operators.agg everflow.operators.aggregates.aggregate",
        "dsl.lowering.stateless everflow.dsl.lowering.tables",
        "errors everflow.config",
    ),
    "Rooms of an instance": (
        "protocol.messages everflow.instance.tasks.task",
        "instance.topics.internal_topics everflow.instance.commit_gate",
        "instance.restore.restoration everflow.instance.tasks.task",
        "instance.tasks.recovery everflow.instance.copies.state_updater",
        "instance.copies.known_copies everflow.instance.thread.stream_thread",
        "instance.thread.stream_thread everflow.instance.kafka_streams",
        "instance.query.queries everflow.instance.kafka_streams",
        "instance.client_state everflow.instance.tasks.task",
        "instance.bounded_run everflow.instance.kafka_streams",
    ),
    "Classes of the DSL above lowering": (
        "dsl.lowering.stateless everflow.dsl.streams",
        "dsl.graph_builder everflow.dsl.streams",
        "dsl.streams everflow.dsl.streams_builder",
    ),
    "Rooms of kafka": ("kafka.admin everflow.kafka.reading.log_reader",),
    "Decisions are pure: no clock, randomness, threads or I/O": (
        "topology.graph time",
        "state.store os",
        "fleet.decision random",
    ),
    "A step measures itself and looks at paths; it starts and opens nothing": (
        "worker.task_step threading",
    ),
    "What decides, and a step, reach no engine over any number of imports": (
        "topology.graph pyspark",
        "operators.table everflow.state.lmdb_store",
        "worker.stores lmdb",
        "worker.failures everflow.kafka.errors",
        "instance.restore.restore_plan everflow.state.lmdb_store",
        "protocol.messages kafka",
        "instance.topics.end_offsets everflow.kafka.admin",
        "operators.joins.stream_table everflow.dsl.expressions",
    ),
    "A worker reaches neither Spark's side of the driver nor the driver's rooms": (
        "worker.sink everflow.instance.thread.stream_thread",
        "worker.serve everflow.spark.session",
        "worker.sink everflow.instance.tasks.task",
    ),
    "The front door is for what stands above everything": ("instance.tasks.task everflow",),
    "The client of Kafka": (
        "instance.thread.thread_job kafka",
        "instance.assembly kafka",
        "worker.sink kafka",
    ),
    "The checksum of record batches": ("state.store_meta crc32c",),
    "LMDB": ("records lmdb", "instance.query.store_query lmdb"),
    "Spark": ("instance.tasks.task_manager pyspark", "worker.serve pyspark"),
    "Spark's JVM": ("dsl.expressions py4j",),
    "pandas": ("testing.broker pandas",),
    "HTTP and metrics": ("client.direct starlette",),
    "A collector's packages": ("observe.exposition opentelemetry",),
    "Certificates": ("testing.broker trustme",),
    "The terminal": ("testing.broker rich",),
    "The command line": ("testing.broker typer",),
    "JSON": ("kafka.admin orjson",),
    "Schemas of a registry": ("worker.decode fastavro", "dsl.streams confluent_kafka"),
    "Clients of sinks": ("worker.deliver psycopg", "dsl.streams deltalake"),
    "The type checker's own": ("errors typing_extensions",),
    "Arrow": ("membership.member pyarrow",),
    "numpy": ("dsl.streams numpy",),
    "Kafka's logs are read and written at the edges": (
        "instance.copies.state_updater everflow.kafka.reading.copy_follower",
    ),
    "Kafka is spoken to at the edges": ("instance.tasks.recovery everflow.kafka.admin",),
    "Stores on disk are opened at the edges": ("operators.table everflow.state.lmdb_store",),
    "Spark's session and Columns": ("instance.tasks.task everflow.spark.session",),
    "Of Spark the DSL needs the session and the meaning of Columns": (
        "dsl.streams everflow.spark.job",
    ),
    "The group": ("instance.thread.stream_thread everflow.membership.member",),
    "An instance over HTTP": ("instance.query.queries everflow.observe.http_server",),
    "How the user's functions travel": ("worker.sink everflow.travel.pickled_objects",),
    "Both sides of the gate know values alone": ("protocol.messages everflow.topology.graph",),
    "The sink's effects are ports: a simulation runs it": ("worker.sink everflow.kafka.admin",),
    "Copies, and queries of them, know no batch": (
        "instance.query.queries everflow.worker.task_step",
    ),
    "A stream thread knows no query and no restore": (
        "instance.thread.stream_thread everflow.instance.query.queries",
    ),
    "What serves queries asks them alone": ("instance.serving.answers everflow.state.store",),
    "What starts instances as processes knows none from inside": (
        "fleet.command everflow.topology.program",
    ),
    "Copies know no query and no start": (
        "instance.copies.state_updater everflow.instance.query.queries",
    ),
    "What runs on the hosts beside Spark knows no Spark": (
        "fleet.supervisor everflow.spark.session",
    ),
    "Of what stands beside the package, only its commands know": (
        "testing.broker everflow_simulation",
        "console.status everflow_demo",
    ),
    "What stands beside the package knows no command": ("testing.broker everflow.cli.app",),
}
"""Contract -> imports that break it: a module below everflow, and what it would import."""


def test_each_contract_is_broken_once() -> None:
    assert MUTATIONS.keys() == CONTRACTS.keys()


@pytest.mark.parametrize(
    ("name", "added"), [(name, added) for name, listed in MUTATIONS.items() for added in listed]
)
def test_the_contracts_catch(name: str, added: str) -> None:
    importer, imported = added.split()
    assert not holds(name, (f"everflow.{importer}", imported))


def test_imports_for_the_type_checker_count() -> None:
    assert graph().direct_import_exists(importer="everflow", imported="everflow.dsl.streams")


def test_every_package_that_is_used_has_a_contract() -> None:
    used = {name for name in graph().modules if not name.startswith("everflow")}
    told = {name for options in CONTRACTS.values() for name in options.get("protected_modules", ())}
    assert used - sys.stdlib_module_names <= told


def test_the_architecture_page_has_the_layers() -> None:
    page = (ROOT / "docs" / "ARCHITECTURE.md").read_text().splitlines()
    rows = [
        line.split("|")[2].strip().split(", ") for line in page if re.match(r"\| \d \| [a-z]", line)
    ]
    layers = CONTRACTS["Layers: a new module of everflow's own folder gets its place here"][
        "layers"
    ]
    assert [set(row) for row in rows] == [set(re.split(r" [:|] ", layer)) for layer in layers]


def test_the_test_driver_imports_no_client_of_the_group() -> None:
    """It costs a user's test run a second, and 200 warnings in its summary."""
    program = (
        "import sys, everflow.testing; everflow.testing.TopologyTestDriver; "
        "print([name for name in ('kafka', 'lmdb') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
