"""Everything around a group of instances under load: topics, input, observer; and the checks at the
end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from bench.topics import GroupProgress, end_offsets
from chaos.assignment_log import Rules, judge
from chaos.elastic_accounts import Books, Load, check_outputs, check_stores
from chaos.elastic_group import Group, Observer
from chaos.report import ChaosReport
from everflow.testing.broker import EmbeddedBroker
from integration.crash.crash_topologies import COUNTS, copies_topic, counts_topic, input_topic

FILL_S = 600.0
DRAIN_S = 300.0
HOT_LAG = 10_000
SLACK_S = 5.0
MARKERS_PER_S = 20.0


@dataclass
class Report(ChaosReport):
    """And what this run is about."""

    longest_pause_s: float = 0.0
    batches_for_one_commit: int = 0
    pauses_too_long: int = 0
    cold_handovers: int = 0
    two_actives: int = 0
    generations_changed_in_bounces: int = 0
    remarks: list[str] = field(default_factory=list)

    @property
    def right(self) -> bool:
        """Outputs, stores and assignments; pauses depend on the machine too."""
        return super().clean and not (
            self.cold_handovers or self.two_actives or self.generations_changed_in_bounces
        )

    @property
    def clean(self) -> bool:
        """Right, and nothing that stayed paused."""
        return self.right and not self.pauses_too_long


@dataclass(frozen=True)
class Sizes:
    """``keys`` that are counted before the load begins, ``rate`` of the load in records/s,
    ``partitions`` = tasks."""

    keys: int
    rate: float
    partitions: int

    @property
    def hot_lag(self) -> int:
        """``acceptable.recovery.lag``: small enough that an empty copy is never hot."""
        return min(HOT_LAG, max(50, self.keys // self.partitions // 10))


class Stage:
    """Use as a context manager, in one thread: ``start`` the first instance, ``fill``, do what is
    to be done with ``group``, ``finish``. Leaving the block ends everything."""

    def __init__(
        self,
        name: str,
        broker: EmbeddedBroker,
        folder: Path,
        sizes: Sizes,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.name, self.sizes = name, sizes
        self.report = Report()
        merged = {
            "acceptable.recovery.lag": sizes.hot_lag,
            "drain.timeout.ms": 120_000,
            "task.timeout.ms": 300_000,
            "rebalance.timeout.ms": 60_000,
            "state.cleanup.delay.ms": 86_400_000,  # a store that is gone was wiped, not tidied up
            **(settings or {}),
        }
        self.group = Group(name, broker.bootstrap_servers, folder, sizes.partitions, merged)
        self.load = Load(broker.bootstrap_servers, name, sizes.keys, sizes.rate)
        self._broker = broker
        self._observer = Observer(
            broker.bootstrap_servers, f"{name}-{COUNTS}-changelog", sizes.partitions
        )
        self._files: dict[tuple[int, int], tuple[Path, int]] = {}

    def __enter__(self) -> Stage:
        for topic in (input_topic(self.name), copies_topic(self.name), counts_topic(self.name)):
            self._broker.create_topic(topic, self.sizes.partitions)
        self._observer.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.group.close()
        self._observer.stop()

    def fill(self) -> None:
        """Let the running instances count every key once, then begin the load."""
        self.load.fill()
        self.wait_committed(FILL_S)
        self.load.start()

    def wait_committed(self, timeout_s: float = DRAIN_S) -> None:
        """Until the group has committed all that the input holds now."""
        ends = end_offsets(self._broker.bootstrap_servers, input_topic(self.name))
        progress = GroupProgress(
            self._broker.bootstrap_servers, self.name, input_topic(self.name), ends
        )
        try:
            total = progress.total_records()
            self.group.wait(
                "all input to be committed",
                lambda: progress.committed_records() >= total,
                timeout_s,
            )
        finally:
            progress.close()

    def note_files(self) -> None:
        """A store whose file is another one than before was wiped, or built anew."""
        found = self.group.store_files(COUNTS)
        for place, file in self._files.items():
            if found.get(place) != file:
                self.report.stores_wiped += 1
                self.report.remarks.append(
                    f"instance {place[0]}, task 0_{place[1]}: {file} became {found.get(place)}"
                )
        self._files = found

    def forget_files(self, instance: int) -> None:
        """That disk is wiped on purpose."""
        self._files = {place: file for place, file in self._files.items() if place[0] != instance}

    def finish(self) -> Report:
        """End the load, let everything be processed, stop the instances, check outputs, stores and
        the assignment log."""
        self.load.stop()
        self.wait_committed()
        owners = {
            int(task.split("_")[1]): process.instance
            for process in self.group.living()
            for task in process.view().active
        }
        for process in self.group.living():
            self.group.stop(process.instance)
        self.note_files()
        bootstrap, sizes, books, report = (
            self._broker.bootstrap_servers,
            self.sizes,
            Books(),
            self.report,
        )
        check_outputs(bootstrap, self.name, sizes.keys, self.load.sent, books)
        copies = {place: folder for place, (folder, _) in self._files.items()}
        check_stores(bootstrap, self.name, sizes.keys, self.load.sent, copies, owners, books)
        slack = int((sizes.rate / sizes.partitions + MARKERS_PER_S) * SLACK_S)
        rules = Rules(sizes.hot_lag, slack)
        verdict = judge(
            self.group.lives(), self._observer.ends(), rules, (self.load.began_s, self.load.ended_s)
        )
        report.lost, report.duplicated, report.stores_wrong = (
            books.lost,
            books.duplicated,
            books.stores_wrong,
        )
        report.longest_pause_s, report.batches_for_one_commit = (
            round(verdict.longest.seconds, 3),
            verdict.most_batches,
        )
        report.pauses_too_long, report.cold_handovers = (
            len(verdict.pauses),
            len(verdict.cold_handovers),
        )
        report.two_actives = len(verdict.two_actives)
        report.remarks += [
            *books.remarks,
            *verdict.two_actives,
            *verdict.cold_handovers,
            *verdict.pauses,
        ]
        return report
