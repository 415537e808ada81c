"""Programs as users write them, with real workers: a builder at module level and whatever functions
use of the program around it.

After the import each file is replaced by one that cannot be imported: what runs in the workers has
travelled.
"""

import importlib
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from everflow.testing import wait_until
from integration.lifecycle.lifecycle_cluster import Application, Cluster, last_by_key, text

pytestmark = [pytest.mark.broker, pytest.mark.spark]

START_S = 180.0
CANNOT_BE_IMPORTED = "raise RuntimeError('a worker imported the program')\n"

TOPOLOGY = """
    from dataclasses import dataclass

    import pyarrow as pa
    from everflow import StreamsBuilder, serdes

    import beside
    from .prices import Price, taxed

    SOURCE, OUTPUT, WORDS = {names}
    builder = StreamsBuilder()
    RATE, EXPECTED, seen = 3, Price(2), []
    TABLE = {{str(n): "x" * 100 for n in range(20_000)}}    # Spark sends more than a megabyte in another way

    @dataclass(frozen=True)
    class Named:
        name: str
        fn: object
        def __call__(self, key, value): return self.name, str(self.fn(value))

    @dataclass(frozen=True)
    class Pipes:
        kind = "pipes"
        type = pa.list_(pa.string())
        def encode(self, value): return None if value is None else "|".join(value).encode()
        def decode(self, data): return None if data is None else data.decode().split("|")
        def encode_array(self, values): return pa.array([self.encode(v) for v in values.to_pylist()], pa.binary())
        def decode_array(self, data): return pa.array([self.decode(d) for d in data.to_pylist()], self.type)

    def first(value):
        seen.append(value)
        return len(seen)

    def second(value):
        seen.append(value)
        return len(seen)

    CASES = {{
        "def": lambda value: taxed(value, RATE), "identity": lambda value: Price(2) == EXPECTED,
        "beside": lambda value: beside.shout(value), "large": lambda value: len(TABLE),
        "first": first, "second": second,
    }}
    source = builder.stream(SOURCE, key=serdes.string(), value=serdes.string())
    for name, fn in CASES.items():
        source.map(Named(name, fn), returns=("string", "string")).to(OUTPUT)

    def start(): return [beside.NAME]
    def collect(key, value, words): return [*words, value]

    words = source.group_by_key().aggregate(initializer=start, aggregator=collect, store="words", value=Pipes())
    words.to_stream().to(WORDS)
    """  # noqa: E501


PRICES = """
    from dataclasses import dataclass

    @dataclass
    class Price:
        n: int

    def taxed(value, n): return value * n
    """


class Program:
    """A folder of a user's program, importable until it is broken."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: list[Path] = []

    def write(self, name: str, source: str) -> None:
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(source))
        self.files.append(file)

    def forbid_imports(self) -> None:
        for file in self.files:
            file.write_text(CANNOT_BE_IMPORTED)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    monkeypatch.syspath_prepend(str(tmp_path / "program"))
    return Program(tmp_path / "program")


def test_everything_that_functions_use_of_the_program_around_them_travels(
    app: Application, cluster: Cluster, program: Program
) -> None:
    source, output, words = (cluster.topic(name, 1) for name in ("in", "out", "words"))
    program.write("beside.py", "NAME = 'beside'\ndef shout(value): return value.upper() + NAME\n")
    program.write("shop/__init__.py", "")
    program.write("shop/prices.py", PRICES)
    program.write("shop/topology.py", TOPOLOGY.format(names=(source, output, words)))
    importlib.invalidate_caches()
    module = importlib.import_module("shop.topology")
    program.forbid_imports()
    cluster.write(source, [text("k", "a")])
    with app.running(module.builder.build()) as streams:
        app.until_processed(streams, source)
        assert {
            r.key.decode(): r.value.decode() for r in cluster.read(output) if r.key and r.value
        } == {
            "def": "aaa",
            "identity": "True",
            "beside": "Abeside",
            "large": "20000",
            "first": "1",
            "second": "2",
        }
        cluster.write(source, [text("k", "b")])
        app.until_processed(streams, source)
        again = last_by_key(cluster.read(output))
        assert (again[b"first"], again[b"second"]) == (b"3", b"4"), (
            "a variable lives as long as its worker, for all functions"
        )
        assert last_by_key(cluster.read(words)) == {b"k": b"beside|a|b"}
    assert module.seen == []


def test_an_installed_builder_is_run(app: Application, cluster: Cluster, program: Program) -> None:
    source, output = cluster.topic("in", 1), cluster.topic("out", 1)
    installed = Program(program.folder / "site-packages")
    sys.path.insert(0, str(installed.folder))
    try:
        installed.write(
            "installed_library.py",
            "from everflow import StreamsBuilder\ndef up(value): return value.upper()\n",
        )
        installed.write(
            "installed_program.py",
            f"""
            from everflow import StreamsBuilder, serdes
            import installed_library
            builder = StreamsBuilder()
            def shout(value): return installed_library.up(value)
            stream = builder.stream({source!r}, key=serdes.string(), value=serdes.string())
            stream.map_values(shout, returns="string").to({output!r})
            """,
        )
        importlib.invalidate_caches()
        topology = importlib.import_module("installed_program").builder.build()
        installed.files[1].write_text(CANNOT_BE_IMPORTED)
        cluster.write(source, [text("k", "ab")])
        app.run_through(topology, source)
    finally:
        sys.path.remove(str(installed.folder))
    assert [record.value for record in cluster.read(output)] == [b"AB"]


MAIN = """
    from dataclasses import dataclass
    from everflow import KafkaStreams, StreamsBuilder, serdes
    {imports}

    builder = StreamsBuilder()
    LIMIT = 2

    @dataclass
    class Word:
        text: str

    def cut(value):
        return helper.mark(Word(value).text[:LIMIT])

    stream = builder.stream({source!r}, key=serdes.string(), value=serdes.string())
    stream.map_values(cut, returns="string").to({output!r})

    if __name__ == "__main__":
        KafkaStreams(builder.build(), application_id={app!r}, bootstrap_servers={servers!r}, num_stream_threads=1,
                     state_dir={state!r}).run()
    """  # noqa: E501


def test_a_module_runs_as_main(cluster: Cluster, tmp_path: Path) -> None:
    program = Program(tmp_path)
    program.write("package/__init__.py", "")
    program.write("package/inner/__init__.py", "")
    program.write("package/inner/helper.py", "def mark(text): return text + ':'\n")
    source, output = cluster.topic("in", 1), cluster.topic("out", 1)
    cluster.write(source, [text("k", "abc")])
    known = {
        "app": f"{cluster.prefix}-module",
        "servers": cluster.bootstrap,
        "state": str(tmp_path / "state"),
    }
    program.write(
        "package/inner/module.py",
        MAIN.format(imports="from . import helper", source=source, output=output, **known),
    )
    with (tmp_path / "said.txt").open("w") as said:
        child = subprocess.Popen(
            [sys.executable, "-m", "package.inner.module"],
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
            stderr=said,
        )
    try:

        def done() -> bool:
            assert child.poll() is None, (tmp_path / "said.txt").read_text()
            return bool(cluster.read(output))

        wait_until(done, START_S, "its result")
    finally:
        child.terminate()
        child.wait(60)
    assert [record.value for record in cluster.read(output)] == [b"ab:"]
