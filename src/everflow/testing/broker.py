"""A real Kafka broker as a child process: one KRaft node, for tests, benches and the demo.

Kafka's own code, so it answers as a cluster does; no safe place for data: one replica, no fsync.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Event
from typing import IO, Any, TypeVar

from everflow.errors import RetriableError, SetupError
from everflow.jvm import find_java, resolve_jars, start_options
from everflow.records import TopicPartition
from everflow.retry import waiting
from everflow.testing.broker_security import INSIDE, MUTUAL, SASL, BrokerSecurity
from everflow.testing.waiting import wait_until

T = TypeVar("T")

_START_TIMEOUT_S = 180.0
"""For machines that are slow or busy: more than 60 s have been seen."""
_STOP_TIMEOUT_S = 20.0
_PORT_ATTEMPTS = 3
_LOG_LINES_SHOWN = 25
_LOCK_NAME = "everflow.lock"
_LOCK_TIMEOUT_S = 3.0
"""A broker whose owner was killed ends a moment later."""
_HERE = Path(__file__).parent
_PAUSE_S = 0.05

_SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": INSIDE,
    "listener.security.protocol.map": f"{INSIDE}:PLAINTEXT,CONTROLLER:PLAINTEXT",
    # One node: every internal topic has one replica; few partitions, for a quick start.
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "8",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "8",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    # After SIGKILL a broker may register again only when its old session is over.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "metadata.max.idle.interval.ms": "0",
    "auto.create.topics.enable": "false",
    # Test data carries old timestamps.
    "log.retention.ms": "-1",
    "log.retention.check.interval.ms": "86400000",
    "log.segment.delete.delay.ms": "1000",
    # The default buffer of the log cleaner is a quarter of the heap.
    "log.cleaner.dedupe.buffer.size": "16777216",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "background.threads": "4",
}


def new_cluster_id() -> str:
    """A cluster id as Kafka makes them: base64 of 16 bytes. One that starts with a dash would be
    read as an option."""
    return urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "x")


class EmbeddedBroker:
    """A single-node Kafka broker for tests, which ends with the process that started it.

    ::

        with EmbeddedBroker() as broker:
            broker.create_topic("flights", partitions=4)
            producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)

    Owned by one thread. Ports are free ones on 127.0.0.1 and stay the same over ``restart``. If the
    owner dies, even by SIGKILL, the broker is killed within about 0.1 s, and a temporary data
    folder is deleted.

    Args:
        data_folder: for topics and ``broker.log``; kept, and reused if it holds a broker's data.
            None: a temporary folder, deleted by ``close``.
        host: the address of this machine that clients connect to, without ``security``.
        port: the port clients connect to; None: a free one.
        heap: the broker's largest heap, in Java's notation; its JVM also reads ``KAFKA_OPTS``.
        config: broker settings that override the defaults.
        security: clients need a password over TLS (``bootstrap_servers``) or a certificate
            (``mutual_servers``); see `BrokerSecurity`. None: anybody may connect.
        cluster_id: id of the broker's cluster (`EmbeddedCluster`); None: a new one.
        progress: called with a line when jars are downloaded.
    """

    def __init__(
        self,
        data_folder: Path | str | None = None,
        *,
        host: str = "127.0.0.1",
        port: int | None = None,
        heap: str = "512m",
        config: Mapping[str, str] | None = None,
        security: BrokerSecurity | None = None,
        cluster_id: str | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self._keep_data = data_folder is not None
        self._folder = Path(data_folder).absolute() if data_folder is not None else None
        self._host = host
        self._wanted_port = port
        self._ports: dict[str, int] | None = None
        self._heap = heap
        self._config = dict(config or {})
        self._security = security
        self._cluster_id = cluster_id or new_cluster_id()
        self._progress = progress
        self._guard: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> EmbeddedBroker:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> EmbeddedBroker:
        """Start the broker and wait until clients can use it; does nothing if it runs.

        Raises:
            SetupError: no Java, no jars, no free port, another broker on the folder, or the broker
                ended (``EF-BROKER``, its log's tail).
        """
        if self.running:
            return self
        class_path = os.pathsep.join(
            str(jar) for jar in resolve_jars("broker", progress=self._progress)
        )
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="everflow-broker-"))
        self._folder.mkdir(parents=True, exist_ok=True)
        with self._folder_locked() as lock, waiting("starting the Kafka broker"):
            self._start(class_path, lock)
        return self

    def _start(self, class_path: str, lock: int) -> None:
        known = self._ports  # a restart keeps its ports, because clients remember them
        for attempt in range(_PORT_ATTEMPTS):
            self._ports = known or _free_ports(self._wanted_port, self._doors)
            self._write_settings(self._ports)
            self._format(class_path)
            log_start = self.log_path.stat().st_size if self.log_path.exists() else 0
            self._launch(class_path, lock)
            problem = self._wait_ready()
            if problem is None:
                return
            self.kill()
            taken = "Address already in use" in self._log_tail(since=log_start)
            if not taken or known or attempt == _PORT_ATTEMPTS - 1:
                message = (
                    f"the Kafka broker on {self.bootstrap_servers} {problem}. Its log "
                    f"({self.log_path}):\n"
                )
                self._ports = known
                raise SetupError(message + self._log_tail(since=log_start), code="EF-BROKER")

    @contextmanager
    def _folder_locked(self) -> Iterator[int]:
        """The descriptor of a lock that the guard inherits, so that it lasts as long as the broker.
        Kafka's own comes late: a second broker has overwritten the first one's settings then."""
        with (self.data_folder / _LOCK_NAME).open("w") as file:
            try:
                wait_until(lambda: _locked(file), _LOCK_TIMEOUT_S, "the folder's lock")
            except AssertionError:
                raise SetupError(
                    f"another Kafka broker runs on {self.data_folder}; stop it, or take another "
                    f"folder",
                    code="EF-BROKER",
                ) from None
            yield file.fileno()

    def stop(self) -> None:
        """Shut the broker down (SIGTERM, after 20 s SIGKILL); data and ports are kept."""
        self._end("TERM", _STOP_TIMEOUT_S)

    def kill(self) -> None:
        """Kill the broker (SIGKILL) and wait for its end; data and ports are kept."""
        self._end("KILL", _STOP_TIMEOUT_S)

    def restart(self) -> EmbeddedBroker:
        """Stop the broker if it runs, then start it on the same data and ports."""
        self.stop()
        return self.start()

    def pause(self) -> None:
        """Freeze the broker (SIGSTOP): its connections stay open but get no responses."""
        self._say("STOP")

    def resume(self) -> None:
        """Let a paused broker run again."""
        self._say("CONT")

    def close(self) -> None:
        """Stop the broker. A broker with a temporary data folder is killed (SIGKILL), and its
        folder is deleted."""
        if self._keep_data:
            self.stop()
        else:
            self.kill()
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
                self._folder = None

    @property
    def running(self) -> bool:
        """True from `start` until the process of the broker has ended."""
        return self._guard is not None and self._guard.poll() is None

    @property
    def bootstrap_servers(self) -> str:
        """``host:port`` for clients, the same after a restart. Raises SetupError before the
        start."""
        return self._address(self._doors[0])

    @property
    def mutual_servers(self) -> str:
        """``host:port`` for clients with a certificate. Raises SetupError before the start, or
        without `BrokerSecurity`."""
        if self._security is None:
            raise SetupError("the embedded broker asks for no certificates", code="EF-BROKER")
        return self._address(MUTUAL)

    @property
    def security_folder(self) -> Path:
        """The folder of a broker with ``security``: ``ca.pem`` and a client's ``client.pem``."""
        return self.data_folder / "security"

    @property
    def inside_servers(self) -> str:
        """``host:port`` without TLS and password; clients have all rights. Raises SetupError before
        the start."""
        return self._address(INSIDE)

    def _address(self, door: str) -> str:
        if self._ports is None:
            raise SetupError("the embedded broker has no address before start()", code="EF-BROKER")
        return f"{self._host}:{self._ports[door]}"

    @property
    def _doors(self) -> tuple[str, ...]:
        """Names of the listeners; the first is the one for everybody."""
        return (INSIDE,) if self._security is None else (SASL, INSIDE, MUTUAL)

    @property
    def data_folder(self) -> Path:
        """The folder with topics and log. Raises SetupError while no temporary one exists yet."""
        if self._folder is None:
            raise SetupError(
                "the embedded broker has no data folder before start()", code="EF-BROKER"
            )
        return self._folder

    @property
    def log_path(self) -> Path:
        """The file of the broker's own log: warnings and errors."""
        return self.data_folder / "broker.log"

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        config: Mapping[str, str] | None = None,
        *,
        timeout_s: float = 30.0,
    ) -> None:
        """Create a topic and wait until every partition has a leader. Raises FatalError if the
        broker refuses the topic, RetriableError if the broker does not answer, TimeoutError if a
        partition has no leader after ``timeout_s`` seconds."""
        how = {"num_partitions": partitions, "replication_factor": 1, "configs": config or {}}
        _answer(self.inside_servers, lambda admin: admin.create_topics({name: how}), timeout_s)

        def led() -> bool:
            found = _partitions(self.inside_servers, timeout_s, name).values()
            return len(found) == partitions and all(one["leader_id"] >= 0 for one in found)

        try:
            wait_until(led, timeout_s, f"leaders of {partitions} partitions of topic {name}")
        except AssertionError as late:
            raise TimeoutError(str(late)) from None

    def _write_settings(self, ports: Mapping[str, int]) -> None:
        controller = f"127.0.0.1:{ports['CONTROLLER']}"
        inside = f"{INSIDE}://{self._host}:{ports[INSIDE]}"
        settings = {
            **_SETTINGS,
            "log.dirs": str(self.data_folder / "log"),
            "controller.quorum.voters": f"1@{controller}",
            "listeners": f"{inside},CONTROLLER://{controller}",
            "advertised.listeners": inside,
            **(self._security.settings(self.security_folder, ports) if self._security else {}),
            **self._config,
        }
        # In such a file a backslash begins an escape.
        lines = ((key, value.replace("\\", "\\\\")) for key, value in settings.items())
        text = "".join(f"{key}={value}\n" for key, value in lines)
        (self.data_folder / "server.properties").write_text(text)

    def _java(self, class_path: str, *flags: str) -> list[str]:
        log_settings = f"-Dlog4j2.configurationFile={_HERE / 'broker_log4j2.properties'}"
        return [str(find_java()), *start_options("broker"), *flags, log_settings, "-cp", class_path]

    def _format(self, class_path: str) -> None:
        if (self.data_folder / "log" / "meta.properties").exists():
            return
        settings = str(self.data_folder / "server.properties")
        command = [
            *self._java(class_path, "-Xmx128m", "-XX:TieredStopAtLevel=1"),
            *("kafka.tools.StorageTool", "format", "-t", self._cluster_id, "-c", settings),
            *(self._security.scram() if self._security else []),
        ]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=_START_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            text = f"formatting the broker's folder {self.data_folder} failed:"
            raise SetupError(f"{text}\n{done.stdout}{done.stderr}", code="EF-BROKER")

    def _launch(self, class_path: str, lock: int) -> None:
        options = os.environ.get("KAFKA_OPTS", "").split()
        command = self._java(
            class_path,
            f"-Xmx{self._heap}",
            "-Djava.awt.headless=true",
            *options,
        )
        command += ["kafka.Kafka", str(self.data_folder / "server.properties")]
        removed_with_owner = "-" if self._keep_data else str(self.data_folder)
        with self.log_path.open("ab") as log:
            self._guard = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", str(_HERE / "broker_guard.py")),
                    *(removed_with_owner, *command),
                ],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(lock,),
                # Ctrl-C is for the owner, who then stops the broker when it is done
                start_new_session=True,
            )

    def _wait_ready(self) -> str | None:
        """Wait for a metadata answer that names the broker; return None, or what went wrong."""
        # kafka-python takes a while to import: Java starts meanwhile.
        from everflow.kafka.broker_link import BrokerLink

        deadline = time.monotonic() + _START_TIMEOUT_S
        host, port = self.inside_servers.split(":")
        # A Kafka client would back off longer each time.
        client = {"bootstrap_servers": self.inside_servers, "reconnect_backoff_max_ms": 50}
        pause = Event()
        while time.monotonic() < deadline:
            if not self.running:
                return f"ended with exit code {self._guard.returncode if self._guard else None}"
            with suppress(OSError, RetriableError):
                socket.create_connection((host, int(port)), timeout=1.0).close()
                BrokerLink(client, request_timeout_ms=2_000, timeout_s=2.0).close()
                return None
            pause.wait(_PAUSE_S)
        return (
            f"was not ready within {_START_TIMEOUT_S:.0f} s: the machine is too busy, or has too "
            f"little memory "
            f"(the broker's heap: {self._heap}); start it again when there is more of both"
        )

    def _say(self, signal_name: str) -> None:
        if self._guard is not None and self._guard.stdin is not None and self._guard.poll() is None:
            with suppress(BrokenPipeError):
                self._guard.stdin.write(f"{signal_name}\n".encode())
                self._guard.stdin.flush()

    def _end(self, signal_name: str, timeout_s: float) -> None:
        guard = self._guard
        if guard is None:
            return
        self._say("CONT")  # a paused process takes no other signal than KILL
        self._say(signal_name)
        try:
            guard.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._say("KILL")
            guard.wait(timeout_s)
        if guard.stdin is not None:
            guard.stdin.close()
        self._guard = None

    def _log_tail(self, *, since: int) -> str:
        if not self.log_path.exists():
            return ""
        lines = self.log_path.read_bytes()[since:].decode(errors="replace").splitlines()
        return "\n".join(lines[-_LOG_LINES_SHOWN:])


def _answer(servers: str, question: Callable[[Any], T], timeout_s: float) -> T:
    """What brokers answer to a ``question`` of kafka-python's admin client, another one where the
    first is away. Raises FatalError where it is refused, RetriableError for no answer in time."""
    # A second to import, and 200 warnings in the summary of a user's tests.
    from kafka import KafkaAdminClient
    from kafka.errors import KafkaError

    from everflow.kafka.errors import classify

    deadline = time.monotonic() + timeout_s
    while True:
        left_s = max(_PAUSE_S, deadline - time.monotonic())
        try:
            with KafkaAdminClient(
                bootstrap_servers=servers.split(","),
                bootstrap_timeout_ms=int(min(left_s, 3.0) * 1000),  # then perhaps of another one
                request_timeout_ms=int(left_s * 1000),
            ) as admin:
                return question(admin)
        except KafkaError as failure:
            error = classify(failure, f"asking the brokers at {servers}")
            if not isinstance(error, RetriableError) or time.monotonic() >= deadline:
                raise error from failure
        time.sleep(_PAUSE_S)


def _partitions(servers: str, timeout_s: float, *topics: str) -> dict[TopicPartition, Any]:
    """What brokers say of each partition of these topics; none given: of all."""
    found = _answer(servers, lambda admin: admin.describe_topics(topics or None), timeout_s)
    return {
        TopicPartition(topic["name"], one["partition_index"]): one
        for topic in found
        for one in topic["partitions"]
    }


def _locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _free_ports(wanted: int | None, doors: Sequence[str]) -> dict[str, int]:
    """A free port for each listener, the controller's too; the first has the wanted one."""
    with ExitStack() as stack:
        ports = {}
        for name in (*doors, "CONTROLLER"):
            door = stack.enter_context(socket.socket())
            if name == doors[0]:
                door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                door.bind(("127.0.0.1", (wanted or 0) if name == doors[0] else 0))
            except OSError as error:
                raise SetupError(
                    f"port {wanted} is not free for the Kafka broker: {error}", code="EF-BROKER"
                ) from error
            ports[name] = door.getsockname()[1]
        return ports


_INTERNAL_PARTITIONS = "4"
_REPLICATED = {
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "default.replication.factor": "3",
    "offsets.topic.num.partitions": _INTERNAL_PARTITIONS,
    "transaction.state.log.num.partitions": _INTERNAL_PARTITIONS,
    # A follower that is away is out of the set soon.
    "replica.lag.time.max.ms": "3000",
    "controlled.shutdown.enable": "true",
}
_READY_S = 180.0


class EmbeddedCluster:
    """Three brokers on one machine (KRaft; replication factor 3, ``min.insync.replicas`` 2).

    ::

        with EmbeddedCluster() as cluster:
            cluster.create_topic("visits", partitions=4)
            cluster.brokers[0].kill()
            ...
            cluster.brokers[0].restart()
            cluster.wait_until_in_sync()

    Owned by one thread; some 1 GB of memory. ``heap``: of each broker; ``config``: broker settings
    over ours; ``progress``: gets a line when jars are downloaded.
    """

    def __init__(
        self,
        *,
        heap: str = "256m",
        config: Mapping[str, str] | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        free = list(_free_ports(None, "12345").values())
        ports, controllers = free[:3], free[3:]
        voters = ",".join(f"{n}@127.0.0.1:{port}" for n, port in enumerate(controllers, 1))
        cluster_id = new_cluster_id()
        self.brokers = tuple(
            EmbeddedBroker(
                port=port,
                heap=heap,
                cluster_id=cluster_id,
                progress=progress,
                config={
                    **_REPLICATED,
                    "node.id": str(number),
                    "controller.quorum.voters": voters,
                    "listeners": f"INSIDE://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
                    **(config or {}),
                },
            )
            for number, (port, controller) in enumerate(zip(ports, controllers, strict=True), 1)
        )
        """Node ids 1, 2, 3 in this order; each may be stopped, killed, paused and restarted."""

    def __enter__(self) -> EmbeddedCluster:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> EmbeddedCluster:
        """Start all three brokers at the same time. Raises the errors of `EmbeddedBroker.start`,
        and AssertionError if the brokers do not find each other within three minutes."""
        with ThreadPoolExecutor(len(self.brokers)) as pool:
            for started in [pool.submit(broker.start) for broker in self.brokers]:
                started.result()
        wait_until(lambda: len(self._known()) == 3, _READY_S, "three brokers that know each other")
        return self

    def close(self) -> None:
        """Stop the brokers and delete their data."""
        for broker in self.brokers:
            broker.close()

    @property
    def bootstrap_servers(self) -> str:
        """``host:port`` of all three brokers, including those that are down."""
        return ",".join(broker.bootstrap_servers for broker in self.brokers)

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        config: Mapping[str, str] | None = None,
        replicas: Sequence[EmbeddedBroker] = (),
    ) -> None:
        """Create a topic, and wait until the replicas of all topics are in sync. ``replicas``: the
        brokers of every partition, the leader first; by default all three. Raises FatalError if the
        brokers refuse the topic, RetriableError if no broker answers, AssertionError if the
        replicas are not in sync after two minutes."""
        nodes = [self._node(broker) for broker in replicas]
        placed = dict.fromkeys(range(partitions), nodes)
        free = {"num_partitions": partitions, "replication_factor": 3}
        how = {**({"assignments": placed} if replicas else free), "configs": config or {}}
        _answer(self.bootstrap_servers, lambda admin: admin.create_topics({name: how}), 30)
        self.wait_until_in_sync()

    def leader(self, topic: str, partition: int) -> EmbeddedBroker:
        """The broker that leads a partition now. Raises AssertionError if no broker does."""
        found = _partitions(self.bootstrap_servers, 10, topic)[TopicPartition(topic, partition)]
        node: int = found["leader_id"]
        assert node > 0, f"{topic}-{partition} has no leader"
        return self.brokers[node - 1]

    def coordinator(self, group: str) -> EmbeddedBroker:
        """The broker that coordinates a consumer group: its members and its committed offsets."""
        return self.leader("__consumer_offsets", _place(group))

    def transaction_coordinator(self, transactional_id: str) -> EmbeddedBroker:
        """The broker that coordinates the transactions of a transactional id."""
        return self.leader("__transaction_state", _place(transactional_id))

    def move(self, topic: str, partition: int, brokers: Sequence[EmbeddedBroker]) -> None:
        """Move a partition's replicas to exactly ``brokers``, the preferred leader first, and wait
        until one of them leads and the replicas of all topics are in sync. Raises AssertionError if
        the brokers refuse the move, or need more than three minutes for it."""
        wanted = [self._node(broker) for broker in brokers]
        tp = TopicPartition(topic, partition)
        refused = _answer(
            self.bootstrap_servers,
            lambda admin: admin.alter_partition_reassignments({tp: wanted})[tp],
            30,
        )
        assert refused is None, f"{tp} cannot be moved: {refused!r}"

        def moved() -> bool:
            now = _partitions(self.bootstrap_servers, 10, topic)[tp]
            return sorted(now["replica_nodes"]) == sorted(wanted) and now["leader_id"] in wanted

        wait_until(moved, _READY_S, f"{tp} to be on brokers {wanted}")
        self.wait_until_in_sync()

    def wait_until_in_sync(self, timeout_s: float = 120.0) -> None:
        """Wait until every partition of every topic has a leader and all its replicas are in sync.
        Raises AssertionError after ``timeout_s`` seconds."""
        wait_until(
            lambda: not self._behind(),
            timeout_s,
            "replicas to be in sync",
            self._behind,
        )

    def roll(self) -> None:
        """Restart the brokers one by one; after each, wait until the replicas are in sync."""
        for broker in self.brokers:
            broker.restart()
            self.wait_until_in_sync()

    def _node(self, broker: EmbeddedBroker) -> int:
        return self.brokers.index(broker) + 1

    def _known(self) -> list[int]:
        try:
            found = _answer(self.bootstrap_servers, lambda admin: admin.describe_cluster(), 5)
        except RetriableError:
            return []
        return [one["broker_id"] for one in found["brokers"] if not one["is_fenced"]]

    def _behind(self) -> list[str]:
        try:
            partitions = _partitions(self.bootstrap_servers, 5)
        except RetriableError as error:
            return [str(error)]
        return [
            f"{tp}: leader {one['leader_id']}, in sync {one['isr_nodes']} of {one['replica_nodes']}"
            for tp, one in partitions.items()
            if one["leader_id"] < 1 or len(one["isr_nodes"]) < len(one["replica_nodes"])
        ]


def _place(name: str) -> int:
    """The partition of Kafka's own topics that is about a group or a transactional id."""
    found = 0
    for unit in struct.unpack(f"<{len(name)}H", name.encode("utf-16-le")):
        found = (31 * found + unit) & 0xFFFFFFFF
    return (found & 0x7FFFFFFF) % int(_INTERNAL_PARTITIONS)
