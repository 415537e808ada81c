"""One Spark session and one broker for a test run: starting them takes longer than most tests.
Topics and groups have names of their own."""

from __future__ import annotations

import logging
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator

import hypothesis
import pytest
from pyspark.sql import SparkSession

from everflow.kafka.admin import ClusterAdmin
from everflow.spark.session import get_session
from everflow.testing.broker import EmbeddedBroker

# Time is no property: on a busy machine an example may take any time (speed lives in benches).
# A change must pass or fail for its own sake: the same examples each time; new ones, and more, with
# `./run test --all`.
explore = os.environ.get("EVERFLOW_EXPLORE") == "1"
hypothesis.settings.register_profile(
    "everflow",
    max_examples=500 if explore else 50,
    deadline=None,
    print_blob=True,
    derandomize=not explore,
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large],
)
hypothesis.settings.load_profile("everflow")


# A JVM of a test lives for seconds: what its second compiler does takes a third of the suite's time
# and never pays. Both names are inherited by what a test starts: the first is of Spark's own
# scripts, the second of Kafka's.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1")
os.environ.setdefault("KAFKA_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# A shell starts what runs in its background with SIGINT ignored, for all its children; tests of
# Ctrl-C would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)


BEGAN = time.monotonic()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--stop-after",
        type=float,
        metavar="SECONDS",
        help="start no test later than this; the others are skipped",
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    limit = item.config.getoption("--stop-after")
    if limit is not None and time.monotonic() - BEGAN > limit:
        pytest.skip(f"not started within {limit:g} s; ./run test runs it")


@pytest.fixture(autouse=True)
def log_level() -> Iterator[None]:
    """A command that a test runs in this process may turn the log down; the next test hears it
    again."""
    logger = logging.getLogger("everflow")
    level = logger.level
    yield
    logger.setLevel(level)


@pytest.fixture(scope="session")
def spark() -> SparkSession:
    return get_session()


@pytest.fixture(scope="session")
def broker() -> Iterator[EmbeddedBroker]:
    """The broker of the run. A test may pause it, and lets it run again."""
    with EmbeddedBroker() as running:
        yield running


@pytest.fixture(scope="session")
def bootstrap(request: pytest.FixtureRequest) -> str:
    """``EVERFLOW_TEST_BOOTSTRAP`` names a broker that runs already (quicker while developing)."""
    running = os.environ.get("EVERFLOW_TEST_BOOTSTRAP")
    if running:
        return running
    started: EmbeddedBroker = request.getfixturevalue("broker")
    return started.bootstrap_servers


@pytest.fixture(scope="session")
def admin(bootstrap: str) -> ClusterAdmin:
    cluster = ClusterAdmin({"bootstrap.servers": bootstrap})
    cluster.wait_until_reachable(30, print)
    return cluster


@pytest.fixture
def name() -> str:
    return f"t{uuid.uuid4().hex[:8]}"


@pytest.fixture
def topic(admin: ClusterAdmin, name: str) -> Callable[[int], str]:
    """Creates topics of this test: ``topic(partitions)``."""
    made: list[str] = []

    def create(partitions: int = 1, **config: str) -> str:
        made.append(f"{name}-{len(made)}")
        admin.create_topics(
            {made[-1]: (partitions, {k.replace("_", "."): v for k, v in config.items()})}
        )
        return made[-1]

    return create
