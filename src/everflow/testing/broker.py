"""A real Kafka broker as a child process: one KRaft node, for tests, benches and the demo.

The broker is Kafka's own code, started from its jars; only its settings are those of a single node
that should be up quickly. It is a faithful peer (transactions, groups, compaction), not a safe
place for data: one replica, no fsync.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import IO

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from everflow.errors import SetupError
from everflow.jvm.class_archive import start_options
from everflow.jvm.jars import resolve_jars
from everflow.jvm.java import find_java
from everflow.testing.broker_security import INSIDE, MUTUAL, SASL, BrokerSecurity
from everflow.waits import waiting

_START_TIMEOUT_S = 180.0
"""For machines that are slow or busy: it takes 3 s on a quick one, more than 60 s have been
seen."""
_STOP_TIMEOUT_S = 20.0
_PORT_ATTEMPTS = 3
_LOG_LINES_SHOWN = 25
_LOCK_NAME = "everflow.lock"
_LOCK_TIMEOUT_S = 3.0
"""A broker whose owner was killed ends a moment later."""
_HERE = Path(__file__).parent
_QUIET = logging.getLogger("everflow.testing.broker.client")
_QUIET.addHandler(logging.NullHandler())
_QUIET.propagate = False

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
    # No record twice a second that says nothing: there is no other node to hear it.
    "metadata.max.idle.interval.ms": "0",
    # A mistyped topic must fail, not appear.
    "auto.create.topics.enable": "false",
    # Test data carries old timestamps: nothing may be deleted because its record time is years ago.
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
    """As Kafka makes them: base64 of 16 bytes; one that starts with a dash would be read as an
    option."""
    return urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "x")


class EmbeddedBroker:
    """A single-node Kafka broker, up within a few seconds and gone with the process that started
    it.

    ::

        with EmbeddedBroker() as broker:
            broker.create_topic("flights", partitions=4)
            producer = Producer({"bootstrap.servers": broker.bootstrap_servers})

    Owned by one thread. Ports are free ones on 127.0.0.1 and stay the same over ``restart``. If the
    owner dies, even by SIGKILL, the broker is killed within about 0.1 s, and a temporary data
    folder is deleted.

    Args:
        data_folder: where topics and ``broker.log`` live; kept afterwards, and used again if it
        holds a
            broker's data. None: a temporary folder, deleted by ``close``.
        host: the address of this machine that clients come in at, without ``security``.
        port: the port clients connect to; None: a free one.
        heap: the broker's largest heap, in Java's notation; its JVM hears ``KAFKA_OPTS``, too, as
        in Kafka's scripts.
        config: broker settings over ours.
        security: clients come in with a password over TLS (``bootstrap_servers``) or a
            certificate (``mutual_servers``); see `BrokerSecurity`. None: anybody.
        cluster_id: of the cluster that it is a node of (`EmbeddedCluster`); None: of its own.
        progress: told one line when jars are downloaded.
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

    # --- life cycle -------------------------------------------------------------------------------

    def __enter__(self) -> EmbeddedBroker:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def start(self) -> EmbeddedBroker:
        """Start and wait until clients can use it; does nothing if it runs.

        Raises:
            SetupError: no Java, no jars, no free port, another broker on the folder, or the broker
            ended (``EF-BROKER``, its
                log's tail).
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
        """The descriptor of a lock that the guard inherits: it lasts as long as the guard, and so
        as the broker. Kafka's own lock comes late: before it, a second broker has overwritten the
        first one's settings and opened its metadata log."""
        deadline = time.monotonic() + _LOCK_TIMEOUT_S
        pause = Event()
        with (self.data_folder / _LOCK_NAME).open("w") as file:
            while not _locked(file):
                if time.monotonic() > deadline:
                    message = (
                        f"another Kafka broker runs on {self.data_folder}; stop it, or take "
                        f"another folder"
                    )
                    raise SetupError(message, code="EF-BROKER")
                pause.wait(0.05)
            yield file.fileno()

    def stop(self) -> None:
        """Shut down in order (SIGTERM), by force after 20 s; data and ports are kept for
        ``restart``."""
        self._end("TERM", _STOP_TIMEOUT_S)

    def kill(self) -> None:
        """Kill the broker (SIGKILL) and wait for its end; data and ports are kept for
        ``restart``."""
        self._end("KILL", _STOP_TIMEOUT_S)

    def restart(self) -> EmbeddedBroker:
        """Stop it if it runs, then start on the same data and ports."""
        self.stop()
        return self.start()

    def pause(self) -> None:
        """Freeze the broker (SIGSTOP): its connections stay open and nobody answers."""
        self._say("STOP")

    def resume(self) -> None:
        """Let a paused broker run again."""
        self._say("CONT")

    def close(self) -> None:
        """Stop and delete a temporary data folder; nothing of it is needed then, so it ends by
        SIGKILL."""
        if self._keep_data:
            self.stop()
        else:
            self.kill()
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
                self._folder = None

    # --- what it offers ---------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """Whether the broker's process lives."""
        return self._guard is not None and self._guard.poll() is None

    @property
    def bootstrap_servers(self) -> str:
        """``host:port`` for clients; known once started (SetupError before), unchanged over
        restarts."""
        if self._ports is None:
            raise SetupError("the embedded broker has no address before start()", code="EF-BROKER")
        return f"{self._host}:{self._ports[self._doors[0]]}"

    @property
    def mutual_servers(self) -> str:
        """``host:port`` for clients with a certificate; SetupError before the start, and for a
        broker that is not a secure one."""
        if self._ports is None or self._security is None:
            raise SetupError("the embedded broker asks for no certificates", code="EF-BROKER")
        return f"127.0.0.1:{self._ports[MUTUAL]}"

    @property
    def security_folder(self) -> Path:
        """Where a secure broker's certificates are: ``ca.pem``, and ``client.pem`` for a
        client."""
        return self.data_folder / "security"

    @property
    def inside_servers(self) -> str:
        """``host:port`` for whoever made the broker: asks for nothing, and may do all. SetupError
        before the start."""
        if self._ports is None:
            raise SetupError("the embedded broker has no address before start()", code="EF-BROKER")
        return f"{self._host}:{self._ports[INSIDE]}"

    @property
    def _doors(self) -> tuple[str, ...]:
        """Names of the listeners; the first is the one for everybody."""
        return (INSIDE,) if self._security is None else (SASL, INSIDE, MUTUAL)

    @property
    def data_folder(self) -> Path:
        """The folder with topics and log; known once started, SetupError before."""
        if self._folder is None:
            raise SetupError(
                "the embedded broker has no data folder before start()", code="EF-BROKER"
            )
        return self._folder

    @property
    def log_path(self) -> Path:
        """The broker's own log: warnings and errors."""
        return self.data_folder / "broker.log"

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        config: Mapping[str, str] | None = None,
        *,
        timeout_s: float = 30.0,
    ) -> None:
        """Create a topic and wait until every partition has a leader.

        Raises:
            KafkaException: the broker refused (exists already, wrong name or setting).
            TimeoutError: no leaders in time.
        """
        admin = self._admin()
        topic = NewTopic(
            name, num_partitions=partitions, replication_factor=1, config=dict(config or {})
        )
        admin.create_topics([topic], operation_timeout=timeout_s)[name].result(timeout_s)
        deadline = time.monotonic() + timeout_s
        pause = Event()
        while time.monotonic() < deadline:
            found = admin.list_topics(name, timeout=timeout_s).topics[name].partitions
            if len(found) == partitions and all(p.leader >= 0 for p in found.values()):
                return
            pause.wait(0.02)
        raise TimeoutError(
            f"topic {name} was created, but not all {partitions} partitions have leaders"
        )

    # --- inside -----------------------------------------------------------------------------------

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.inside_servers}, logger=_QUIET)

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
        command = [
            *self._java(class_path, "-Xmx128m", "-XX:TieredStopAtLevel=1"),
            "kafka.tools.StorageTool",
        ]
        command += [
            "format",
            "-t",
            self._cluster_id,
            "-c",
            str(self.data_folder / "server.properties"),
        ]
        command += self._security.scram() if self._security else []
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=_START_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            raise SetupError(
                (
                    f"formatting the broker's folder {self.data_folder} "
                    f"failed:\n{done.stdout}{done.stderr}"
                ),
                code="EF-BROKER",
            )

    def _launch(self, class_path: str, lock: int) -> None:
        options = os.environ.get("KAFKA_OPTS", "").split()
        command = self._java(class_path, f"-Xmx{self._heap}", "-Djava.awt.headless=true", *options)
        command += ["kafka.Kafka", str(self.data_folder / "server.properties")]
        removed_with_owner = "-" if self._keep_data else str(self.data_folder)
        with self.log_path.open("ab") as log:
            self._guard = subprocess.Popen(
                [
                    sys.executable,
                    "-I",
                    "-S",
                    str(_HERE / "broker_guard.py"),
                    removed_with_owner,
                    *command,
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
        deadline = time.monotonic() + _START_TIMEOUT_S
        host, port = self.inside_servers.split(":")
        pause = Event()
        admin: AdminClient | None = None
        while time.monotonic() < deadline:
            if not self.running:
                return f"ended with exit code {self._guard.returncode if self._guard else None}"
            # A plain socket finds out that nobody listens; a Kafka client would back off longer
            # each time.
            if admin is None:
                with suppress(OSError):
                    socket.create_connection((host, int(port)), timeout=1.0).close()
                    admin = self._admin()
            else:
                with suppress(KafkaException):
                    if admin.list_topics(timeout=2.0).brokers:
                        return None
            pause.wait(0.05)
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


def _locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _free_ports(wanted: int | None, doors: Sequence[str]) -> dict[str, int]:
    """A port for each listener, the controller's too, all free a moment ago; the first has the
    wanted one."""
    with ExitStack() as held:
        ports = {}
        for name in (*doors, "CONTROLLER"):
            door = held.enter_context(socket.socket())
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
