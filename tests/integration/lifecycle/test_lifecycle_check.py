"""`everflow check` against an application on a real broker, and what its start refuses."""

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from everflow import Topology
from everflow.cli import app as commands
from everflow.errors import StoreLayoutError
from integration.lifecycle.lifecycle_cluster import Application, Cluster, text

pytestmark = [pytest.mark.broker, pytest.mark.spark]

PROGRAM = """
from everflow import StreamsBuilder, serdes
builder = StreamsBuilder()
words = builder.stream({source!r}, key=serdes.string(), value=serdes.string())
words = words{step}
words.repartition(name="again").group_by_key().count(store={store!r}).to_stream().to({output!r})
topology = builder.build()
"""
SAME = ".filter(lambda key, value: True)"
OTHER_STEP = ".filter(lambda key, value: len(value) < 1_000)"
OTHER_TYPE = ".map_values(lambda key, value: len(value), returns='bigint')"


@dataclass
class Programs:
    """Versions of one program, in files, and what the check says of each."""

    app: Application
    cluster: Cluster
    source: str = field(init=False)
    output: str = field(init=False)

    def __post_init__(self) -> None:
        self.source, self.output = self.cluster.topic("in"), self.cluster.topic("out")

    def text(self, step: str, store: str = "counts") -> str:
        return PROGRAM.format(source=self.source, output=self.output, step=step, store=store)

    def topology(self, step: str) -> Topology:
        names: dict[str, Any] = {}
        exec(self.text(step), names)
        topology: Topology = names["topology"]
        return topology

    def check(
        self, step: str, store: str = "counts", application: str = "", form: str = "json"
    ) -> Result:
        (self.app.folder / "changed.py").write_text(self.text(step, store))
        named = ["--application-id", application or self.app.id, "--output", form]
        asked = ["check", "changed.py:topology", *named]
        asked += ["--bootstrap-servers", self.cluster.bootstrap]
        return CliRunner().invoke(commands.app, asked)

    def changes(self, step: str, store: str = "counts") -> tuple[int, str, set[tuple[str, ...]]]:
        """Exit code, verdict, and what is graver than a rolling bounce."""
        result = self.check(step, store)
        data = json.loads(result.stdout)
        told = ("kind", "name", "before", "after")
        grave = {
            tuple(one[part] for part in told)
            for one in data["changes"]
            if one["effect"] in ("migration", "reset")
        }
        return result.exit_code, data["verdict"], grave


def test_a_program_is_checked_against_an_application_that_has_stopped(
    app: Application, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(app.folder)
    programs = Programs(app, cluster)
    source, between = programs.source, f"{app.id}-again-repartition"
    nobody = programs.check(SAME, application="nobody")
    assert nobody.exit_code == 2
    assert "EF-USAGE" in nobody.output
    assert "nobody" in nobody.output

    cluster.write(source, [text(f"w{n % 5}", "v", 1_000 + n, n % 2) for n in range(40)])
    with app.running(programs.topology(SAME)) as streams:
        app.until_processed(streams, source, between)
        assert programs.changes(SAME) == (0, "bounce", set()), "while it runs"
    assert programs.changes(SAME) == (0, "bounce", set())
    assert programs.changes(OTHER_STEP) == (0, "bounce", set())
    renamed = {("store", "counts", "counts", "totals")}
    assert programs.changes(SAME, "totals") == (1, "migration", renamed)

    cluster.write(between, [text("late", "of the old type", 5_000)] * 3)
    code, verdict, grave = programs.changes(OTHER_TYPE)
    assert (code, verdict) == (1, "migration")
    assert {one[:2] for one in grave} == {("repartition topic", "again-repartition")}
    with pytest.raises(StoreLayoutError) as refused:
        app.instance(programs.topology(OTHER_TYPE)).start()
    assert f"{between}, partition 0: 3 waiting" in refused.value.difference
    report = programs.check(OTHER_TYPE, form="text").stdout.splitlines()
    at = next(n for n, line in enumerate(report) if "again-repartition" in line)
    assert report[at] in refused.value.difference.splitlines()

    app.run_through(programs.topology(SAME), source, between)
    with app.running(programs.topology(OTHER_TYPE)) as streams:
        cluster.write(source, [text("w1", "v", 9_000)])
        app.until_processed(streams, source, between)
    counts = cluster.longs(programs.output)
    assert (counts[b"w1"], counts[b"late"]) == (8 + 1, 3)
    assert programs.changes(OTHER_TYPE) == (0, "bounce", set())
    assert programs.changes(SAME)[:2] == (1, "migration")

    cluster.grow(source, 3)  # before a repartition topic, which keeps its two
    assert programs.changes(OTHER_TYPE) == (0, "bounce", set())
    with app.running(programs.topology(OTHER_TYPE)) as streams:
        cluster.write(source, [text("w1", "v", 9_500, 2)])
        app.until_processed(streams, source, between)
    assert cluster.longs(programs.output)[b"w1"] == 8 + 2
