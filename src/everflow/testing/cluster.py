"""Three real brokers: what one cannot show is that another one takes over."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import TracebackType
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from everflow.testing.broker import EmbeddedBroker, new_cluster_id
from everflow.testing.waiting import wait_until

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
_EVERYWHERE = {"replication_factor": 3}
_READY_S = 180.0


class EmbeddedCluster:
    """Three brokers on one machine (KRaft, replication 3, two replicas have to have a record).

    ::

        with EmbeddedCluster() as cluster:
            cluster.create_topic("visits", partitions=4)
            cluster.brokers[0].kill()
            ...
            cluster.brokers[0].restart()
            cluster.wait_until_in_sync()

    Owned by one thread; some 1 GB of memory. ``heap``: of each broker; ``config``: broker settings
    over ours; ``progress``: told one line when jars are downloaded.
    """

    def __init__(
        self,
        *,
        heap: str = "256m",
        config: Mapping[str, str] | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        ports, controllers = _free_ports(3), _free_ports(3)
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def start(self) -> EmbeddedCluster:
        """Start all three at the same time, as none is ready without another; raises as
        `EmbeddedBroker.start`."""
        with ThreadPoolExecutor(len(self.brokers)) as pool:
            for started in [pool.submit(broker.start) for broker in self.brokers]:
                started.result()
        wait_until(lambda: len(self._known()) == 3, _READY_S, "three brokers that know each other")
        return self

    def close(self) -> None:
        """Stop them and delete their data."""
        for broker in self.brokers:
            broker.close()

    @property
    def bootstrap_servers(self) -> str:
        """``host:port`` of all three; those that are down are listed, too."""
        return ",".join(broker.bootstrap_servers for broker in self.brokers)

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        config: Mapping[str, str] | None = None,
        replicas: Sequence[EmbeddedBroker] = (),
    ) -> None:
        """Create a topic whose partitions all have these ``replicas``, the first of which leads
        (none given: all three brokers, as they choose), and wait until all are in sync. Raises
        KafkaException where the brokers refuse it, AssertionError where they are late."""
        placed = [[self._node(broker) for broker in replicas]] * partitions
        how: dict[str, Any] = {"replica_assignment": placed} if replicas else _EVERYWHERE
        topic = NewTopic(name, partitions, config=dict(config or {}), **how)
        admin = self._admin()  # it has to live until the answer
        admin.create_topics([topic], operation_timeout=30)[name].result(30)
        self.wait_until_in_sync()

    def leader(self, topic: str, partition: int) -> EmbeddedBroker:
        """The broker that leads a partition now. Raises AssertionError where none does."""
        found = self._admin().list_topics(topic, timeout=10).topics[topic].partitions[partition]
        assert found.leader > 0, f"{topic}-{partition} has no leader"
        return self.brokers[found.leader - 1]

    def coordinator(self, group: str) -> EmbeddedBroker:
        """The broker that coordinates a group: its members and its committed offsets."""
        return self.leader("__consumer_offsets", _place(group))

    def transaction_coordinator(self, transactional_id: str) -> EmbeddedBroker:
        """The broker that begins and ends the transactions of an id."""
        return self.leader("__transaction_state", _place(transactional_id))

    def move(self, topic: str, partition: int, brokers: Sequence[EmbeddedBroker]) -> None:
        """Have a partition's replicas on these brokers and no others, the first of which leads;
        returns once it is so. Raises AssertionError where that is late or refused."""
        # A second to import, and 200 warnings in the summary of a user's tests.
        from kafka import KafkaAdminClient
        from kafka import TopicPartition as ClientPartition

        wanted = [self._node(broker) for broker in brokers]
        place = ClientPartition(topic, partition)
        admin = KafkaAdminClient(bootstrap_servers=self.bootstrap_servers.split(","))
        try:
            refused = admin.alter_partition_reassignments({place: wanted})[place]
        finally:
            admin.close()
        assert refused is None, f"{topic}-{partition} cannot be moved: {refused!r}"

        def moved() -> bool:
            found = self._admin().list_topics(topic, timeout=10).topics[topic]
            replicas, leader = (
                found.partitions[partition].replicas,
                found.partitions[partition].leader,
            )
            return sorted(replicas) == sorted(wanted) and leader in wanted

        wait_until(moved, _READY_S, f"{topic}-{partition} to be on brokers {wanted}")
        self.wait_until_in_sync()

    def wait_until_in_sync(self, timeout_s: float = 120.0) -> None:
        """Until every partition of every topic has its leader and all replicas. Raises
        AssertionError where that takes longer than ``timeout_s`` seconds."""
        wait_until(lambda: not self._behind(), timeout_s, "replicas to be in sync", self._behind)

    def roll(self) -> None:
        """Restart one broker after the other, each once the replicas are in sync again."""
        for broker in self.brokers:
            broker.restart()
            self.wait_until_in_sync()

    # --- inside -----------------------------------------------------------------------------------

    def _node(self, broker: EmbeddedBroker) -> int:
        return self.brokers.index(broker) + 1

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap_servers})

    def _known(self) -> list[int]:
        try:
            return list(self._admin().list_topics(timeout=5).brokers)
        except KafkaException:
            return []

    def _behind(self) -> list[str]:
        try:
            topics = self._admin().list_topics(timeout=5).topics
        except KafkaException as error:
            return [str(error)]
        return [
            f"{name}-{number}: leader {found.leader}, in sync {found.isrs} of {found.replicas}"
            for name, topic in topics.items()
            for number, found in topic.partitions.items()
            if found.leader < 1 or len(found.isrs) < len(found.replicas)
        ]


def _place(name: str) -> int:
    """The partition of Kafka's own topics that is about a group or a transactional id."""
    found = 0
    for unit in struct.unpack(f"<{len(name)}H", name.encode("utf-16-le")):
        found = (31 * found + unit) & 0xFFFFFFFF
    return (found & 0x7FFFFFFF) % int(_INTERNAL_PARTITIONS)


def _free_ports(count: int) -> list[int]:
    """Free a moment ago, all at the same time."""
    with ExitStack() as held:
        doors = [held.enter_context(socket.socket()) for _ in range(count)]
        for door in doors:
            door.bind(("127.0.0.1", 0))
        return [door.getsockname()[1] for door in doors]
