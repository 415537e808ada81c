"""``everflow-state`` in a Spark of the user's own, whose executors are other processes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from integration.lifecycle.lifecycle_cluster import Application, Cluster
from integration.observed.test_state_frames import KEYS, changelog, topology, where, written
from markdown_pages import ROOT

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

KEY_NAMES = [f"k{k}" for k in range(KEYS)]

READER = """
import json, os, sys
from pyspark.sql import SparkSession
from everflow import EverflowStateSource

spark = SparkSession.builder.master("local-cluster[1,3,1024]").config("spark.ui.enabled", "false")
spark = spark.config("spark.executorEnv.PYTHONPATH", os.environ["PYTHONPATH"]).getOrCreate()
spark.sparkContext.setLogLevel("OFF")
spark.dataSource.register(EverflowStateSource)
answers = []
for options in json.load(sys.stdin):
    try:
        frame = spark.read.format("everflow-state").options(**options).load()
        rows = [row.asDict(recursive=True) for row in frame.collect()]
        answers.append([frame.count(), rows, frame.rdd.getNumPartitions()])
    except Exception as error:
        answers.append(str(error))
print(json.dumps(answers, default=str))
spark.stop()
"""


def test_a_cluster_reads_it_both_ways(app: Application, cluster: Cluster, tmp_path: Path) -> None:
    source = cluster.topic("in", 3)
    with app.running(topology(source)) as streams:
        for round_ in (1, 2):
            cluster.write(source, written(round_))
            app.until_processed(streams, source)
    (tmp_path / "state_of.py").write_text(
        "from everflow import Stores, StreamsBuilder, serdes\n"
        "from integration.observed.test_state_frames import topology\n"
        f"program = topology({source!r})\n"
        "def named(store):\n"
        "    builder = StreamsBuilder()\n"
        "    builder.stream('any').process(lambda record, context: None, stores=[store])\n"
        "    return builder.build()\n"
        "key = serdes.string()\n"
        "raw = named(Stores.key_value('means', key=key, value=serdes.bytes_()))\n"
        "wrong = named(Stores.key_value('means', key=key, value=serdes.int_()))\n"
        "other = named(Stores.key_value('nowhere', key=key, value=key))\n"
        "windows = named(\n"
        "    Stores.window('windows', key=key, value=serdes.long(), size=1_000, retention=1_000)\n"
        ")\n"
    )
    place = {name.replace("_", "."): value for name, value in where(app, cluster).items()}
    module = {**place, "topology": "state_of:program"}
    asked: list[dict[str, str]] = [
        {**module, "store": "means"},
        {**module, "store": "windows", "topology": "state_of:windows"},
        {**module, "store": "means", "topology": "state_of:raw", "diff.from": "0=0,1=0,2=0"},
        {**module, "store": "means", "topology": "state_of:programme"},
        {**module, "store": "nowhere", "topology": "state_of:other"},
        {**module, "store": "means", "at": "0=999999"},
        {**module, "store": "means", "topology": "state_of:wrong"},
    ]
    means, counts, changes, *refused = answers(tmp_path, asked)
    assert (means[0], means[2]) == (KEYS, 3)
    assert {row["key"]: row["value"]["many"] for row in means[1]} == dict.fromkeys(KEY_NAMES, 20)
    assert {row["key"]: row["value"] for row in counts[1]} == dict.fromkeys(KEY_NAMES, 10)
    assert {(row["key"], row["change"]) for row in changes[1]} == {(k, "added") for k in KEY_NAMES}
    for answer, says in zip(
        refused,
        [
            "The option topology: state_of:programme was not loaded",
            f"There is no topic {changelog(app, 'nowhere')}",
            f"{changelog(app, 'means')}-0 ends at offset",
            "is not what the topology says",
        ],
        strict=True,
    ):
        assert says in answer, answer


def answers(folder: Path, asked: list[dict[str, str]]) -> list[Any]:
    (folder / "reader.py").write_text(READER)
    paths = [str(ROOT / "src"), str(ROOT / "tests"), str(folder)]
    done = subprocess.run(
        [sys.executable, "reader.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYSPARK_PYTHON": sys.executable},
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5_000:]
    answered: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return answered
