"""In a user's Spark session: what everflow prints, and what the user's own jobs still print."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from jupyter_client.manager import KernelManager

from everflow.testing import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

PROGRAM = """
import sys
from pyspark.sql import SparkSession, functions as F
from everflow import KafkaStreams, StreamsBuilder, serdes
from everflow.instance.client_state import ClientState
from everflow.testing import wait_until

servers, source, output = sys.argv[1:]
spark = SparkSession.builder.master("local[4]").getOrCreate()
builder = StreamsBuilder()
stream = builder.stream(source, key=serdes.string(), value=serdes.string())
stream.map_values(F.col("value").cast("int")).to(output, value=serdes.int_())
streams = KafkaStreams(
    builder.build(), application_id=source, bootstrap_servers=servers, state_dir="state", num_stream_threads=1)
print("-- the instance's --", flush=True)
streams.start()
wait_until(lambda: streams.state is ClientState.ERROR, 300, "state ERROR", lambda: [streams])
print("-- the user's --", flush=True)
try:
    spark.sparkContext.parallelize([0], 1).map(lambda number: 1 // number).collect()
except Exception as error:
    print("raised", type(error).__name__, flush=True)
"""  # noqa: E501
JAVA = ("\tat ", "Traceback", "ERROR Executor", "TaskSetManager", "PythonWorkerFactory", "[Stage")


def test_a_failure_prints_no_java(
    topic: Callable[..., str], bootstrap: str, tmp_path: Path
) -> None:
    source, output = topic(1), topic(1)
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(source, b"abc", b"k")
    assert producer.flush(30) == 0
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "program.py", bootstrap, source, output]
    done = subprocess.run(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, done.stdout
    ours, theirs = done.stdout.split("-- the instance's --")[1].split("-- the user's --")
    assert [line for line in ours.splitlines() if any(word in line for word in JAVA)] == []
    assert 'The value \'abc\' of the type "STRING" cannot be cast to "INT"' in ours
    assert "program.py:12" in ours
    assert "raised " in theirs
    assert "ERROR Executor: Exception in task" in theirs, (
        "the user's own jobs say what they said before"
    )


FEW_SLOTS = """
import sys
from pyspark.sql import SparkSession, functions as F
from everflow import KafkaStreams, StreamsBuilder, serdes

servers, source, output = sys.argv[1:]
spark = SparkSession.builder.master("local[2]").getOrCreate()
builder = StreamsBuilder()
builder.stream(source, key=serdes.string(), value=serdes.string()).to(output)
streams = KafkaStreams(
    builder.build(), application_id=source, bootstrap_servers=servers, state_dir="state", num_stream_threads=2)
try:
    streams.start()
except Exception as error:
    print(f"{error.code}: {error}", flush=True)
"""  # noqa: E501


def test_a_session_with_too_few_slots_is_refused_before_the_group_is_joined(
    topic: Callable[..., str], bootstrap: str, tmp_path: Path
) -> None:
    source, output = topic(1), topic(1)
    (tmp_path / "program.py").write_text(FEW_SLOTS)
    command = [sys.executable, "program.py", bootstrap, source, output]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (said,) = done.stdout.splitlines()
    assert said.startswith("EF-SETUP: ")
    assert "2 task slots" in said
    assert "num.stream.threads = 2" in said
    assert "local[3]" in said, "the cure"
    groups = AdminClient({"bootstrap.servers": bootstrap}).list_consumer_groups().result(30)
    assert source not in {group.group_id for group in groups.valid}


CELL = """
from pyspark.sql import SparkSession, functions as F
from everflow import KafkaStreams, StreamsBuilder, serdes
from everflow.instance.client_state import ClientState
from everflow.testing import wait_until

spark = SparkSession.builder.master("local[4]").config("spark.ui.showConsoleProgress", "false").getOrCreate()
builder = StreamsBuilder()
stream = builder.stream({source!r}, key=serdes.string(), value=serdes.string())
stream.map_values(F.col("value").cast("int")).to({output!r}, value=serdes.int_())
streams = KafkaStreams(
    builder.build(), application_id={source!r}, bootstrap_servers={servers!r}, state_dir="state", num_stream_threads=1)
streams.start()
wait_until(lambda: streams.state is ClientState.RUNNING, 300, "state RUNNING", lambda: [streams])
"""  # noqa: E501


def test_a_kernel_that_is_shut_down_closes_its_instance_before_the_spark_of_the_user_s(
    topic: Callable[..., str], bootstrap: str, tmp_path: Path
) -> None:
    source, output = topic(1), topic(1)
    manager = KernelManager(kernel_name="python3")
    with (tmp_path / "printed").open("w") as printed:
        manager.start_kernel(cwd=str(tmp_path), stdout=printed, stderr=printed)
        client = manager.client()
        client.start_channels()
        try:
            client.wait_for_ready(timeout=60)
            reply = client.execute_interactive(
                CELL.format(source=source, output=output, servers=bootstrap), timeout=400
            )
            assert reply["content"]["status"] == "ok", reply["content"]
            client.shutdown()
            wait_until(
                lambda: not manager.is_alive(),
                120,
                "the kernel to end",
                lambda: [(tmp_path / "printed").read_text()],
            )
        finally:
            client.stop_channels()
            manager.shutdown_kernel(now=True)
    log = (tmp_path / "state" / source / "logs" / "everflow.log").read_text()
    assert "state RUNNING -> PENDING_SHUTDOWN" in log
    assert log.splitlines()[-1].endswith("state PENDING_SHUTDOWN -> NOT_RUNNING")
    assert "Traceback" not in (tmp_path / "printed").read_text() + log
    assert "Spark has ended" not in log
