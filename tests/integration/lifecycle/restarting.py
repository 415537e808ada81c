"""One process that starts, looks at, closes, changes and starts an application again, with a Spark
session of its own beside it: ``python restarting.py SERVERS APPLICATION SOURCE OUTPUT ROUNDS``. A
round's line of JSON says what it holds once closed."""

import gc
import json
import os
import sys
import threading
from collections import Counter

import psutil
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from everflow import KafkaStreams, StreamsBuilder, Topology, serdes
from everflow.instance.client_state import ClientState
from everflow.snapshots.query_errors import InvalidStateStoreError
from everflow.testing import wait_until

ROUND_S = 120.0


def topology(source: str, output: str, suffix: str) -> Topology:
    """Counts values with ``suffix``, which is another one each time."""
    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string(), value=serdes.string()).filter(
        F.col("value").isNotNull()
    )
    suffixed = stream.map_values(lambda value: value + suffix, returns=serdes.string())
    grouped = suffixed.group_by(lambda key, value: value, name="by-value", returns=serdes.string())
    grouped.count(store="counts").to_stream().to(output)
    return builder.build()


def look(streams: KafkaStreams) -> dict[str, int]:
    """All counts; none while a task is being recovered."""
    try:
        return dict(streams.store("counts").all())
    except InvalidStateStoreError:
        return {}


def held(broker: int) -> dict[str, Counter[str]]:
    """Threads by name, and all of them in one number; descriptors by what they are; processes below
    this one."""
    process = psutil.Process()
    sockets = {
        found.fd: _other_end(found.raddr, broker) for found in process.net_connections("all")
    }
    threads = Counter(thread.name.rstrip("0123456789") for thread in threading.enumerate())
    return {
        "threads": threads + Counter(native=process.num_threads()),
        "descriptors": Counter(
            sockets.get(int(name)) or _file(name) for name in os.listdir("/proc/self/fd")
        ),
        "processes": Counter(child.name() for child in process.children(recursive=True)),
    }


def _other_end(address: object, broker: int) -> str:
    port = address[1] if isinstance(address, tuple) and len(address) == 2 else None
    return (
        "socket"
        if port is None
        else "socket to the broker"
        if port == broker
        else "socket to the JVM"
    )


def _file(descriptor: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").split(":[")[0]
    except OSError:
        return "gone"


def once(
    servers: str,
    application: str,
    source: str,
    output: str,
    suffix: str,
    producer: Producer,
    spark: SparkSession,
) -> None:
    streams = KafkaStreams(
        topology(source, output, suffix),
        application_id=application,
        bootstrap_servers=servers,
        num_stream_threads=2,
        processing_guarantee="exactly_once_v2",
        state_dir="state",
    )
    streams.start()
    wait_until(
        lambda: streams.state is ClientState.RUNNING, ROUND_S, "state RUNNING", lambda: [streams]
    )
    producer.produce(source, b"v", b"k")
    assert producer.flush(ROUND_S) == 0
    wait_until(
        lambda: look(streams).get(f"v{suffix}") == 1, ROUND_S, "the count", lambda: [streams]
    )
    assert spark.range(3).count() == 3
    assert "RUNNING" in streams._repr_html_()
    assert streams.close()


def main() -> None:
    servers, application, source, output, rounds = sys.argv[1:]
    spark = (
        SparkSession.builder.master("local[8]").config("spark.ui.enabled", "false").getOrCreate()
    )
    producer = Producer({"bootstrap.servers": servers})
    for number in range(int(rounds)):
        once(servers, application, source, output, f"-{number}", producer, spark)
        gc.collect()
        print(json.dumps(held(int(servers.rpartition(":")[2]))), flush=True)


if __name__ == "__main__":
    main()
