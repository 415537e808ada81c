"""Instances of the version before and of this one share a group, each of them as a process."""

import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from everflow.assignment.user_data import LATEST_VERSION, decode, decode_assignment
from everflow.migration.holding import SeenMember, seen_members
from everflow.records import TaskId
from everflow.testing import wait_until
from integration.from_before import made_state
from integration.from_before.group_bytes import COUNTS, TASKS, Instance
from integration.lifecycle.lifecycle_cluster import GUARANTEES, Cluster
from integration.lifecycle.migrating import POINT_S, Migration, process_id_in

TESTS = Path(__file__).parents[2]
SOURCES = sorted(made_state.HERE.glob(f"*/{made_state.SOURCE}"))
PROGRAM = """
words.repartition(name="again").group_by_key().count(store="counts").to_stream().to("{out}")
words.group_by_key().count(store="here")
"""
RENAMED = PROGRAM.replace('"counts"', '"totals"')
NUMBER_OF_TASKS = 8


@pytest.fixture(params=SOURCES, ids=lambda one: one.parent.name)
def before(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The folder of an everflow of another version."""
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path / "before", filter="data")
    return tmp_path / "before"


# --- what they tell each other, without a broker --------------------------------------------------

LEADS = """
import json, sys
from integration.from_before.group_bytes import Instance
from everflow.assignment.user_data import LATEST_VERSION
print(json.dumps({"version": LATEST_VERSION}), flush=True)
one = Instance("before", 0)
for line in sys.stdin:
    asked = json.loads(line)
    if "said" in asked:
        said = {name: bytes.fromhex(data) for name, data in asked["said"].items()}
        answers = one.assignor.assign(said, asked["counts"])
        told = {name: answer.user_data.hex() for name, answer in answers.items()}
    elif "answer" in asked:
        answer = one.assignor.answer(bytes.fromhex(asked["answer"]))
        if not answer.error:
            one.owned, one.generation = answer.active, asked["generation"]
        told = {"error": int(answer.error), "active": sorted(map(str, answer.active))}
    else:
        told = one.assignor.user_data().hex()
    print(json.dumps(told), flush=True)
"""


class Before:
    """An assignor of the version before, in a process of its own."""

    def __init__(self, release: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", LEADS],
            env={"PYTHONPATH": f"{release}:{TESTS}"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.latest_version = self._told()["version"]

    def ask(self, **what: Any) -> Any:
        assert self._process.stdin is not None
        print(json.dumps(what), file=self._process.stdin, flush=True)
        return self._told()

    def _told(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.mark.parametrize("leads", ["before", "now"])
def test_they_read_each_other_s_bytes(before: Path, leads: str) -> None:
    """Both are given tasks, whoever leads; one that says more than the leader reads says less at
    its next join."""
    other, one, active = Before(before), Instance("now", 0), dict[str, set[str]]()
    try:
        for generation in range(1, 4):
            said = {"b": other.ask(), "n": one.assignor.user_data().hex()}
            if leads == "before":
                answers = other.ask(said=said, counts=COUNTS)
            else:
                blobs = {name: bytes.fromhex(data) for name, data in said.items()}
                found = one.assignor.assign(blobs, COUNTS)
                answers = {name: answer.user_data.hex() for name, answer in found.items()}
            told = other.ask(answer=answers["b"], generation=generation)
            mine = one.assignor.answer(bytes.fromhex(answers["n"]))
            if not mine.error:
                one.owned, one.generation = mine.active, generation
            active = {"b": set(told["active"]), "n": set(map(str, mine.active))}
            assert not active["b"] & active["n"]
            assert decode_assignment(bytes.fromhex(answers["b"])).version <= other.latest_version
        assert decode(one.assignor.user_data()).used_version <= other.latest_version
        assert decode(one.assignor.user_data()).latest_version == LATEST_VERSION
        assert active["b"] | active["n"] == set(map(str, TASKS))
        assert all(active.values())
    finally:
        other.close()


# --- with a broker --------------------------------------------------------------------------------


class Shared(Migration):
    """Its instances `a` and `b` have state folders of their own; each is of either version."""

    def start(self, name: str, release: Path | None) -> psutil.Popen:
        return self.start_version("old", self.folder / name, release)

    def stop(self, process: psutil.Process) -> None:
        """As an operator does."""
        process.terminate()
        assert process.wait(POINT_S) == 0, (self.folder / "old.log").read_text()[-4_000:]

    def leads(self, name: str) -> int:
        """How often the instance has decided as the leader."""
        folder = self.folder / name / self.before.id / "logs"
        return sum(one.read_text().count("The leader decides") for one in folder.glob("*.log*"))

    def members(self) -> dict[str, SeenMember]:
        """By the name of the instance; none while the group is rebalanced."""
        found = seen_members(self.admin.members(self.before.id, settled=True)) or []
        names = {process_id_in(self.folder / name / self.before.id): name for name in "ab"}
        return {names.get(one.data.process_id, one.member_id): one for one in found}

    def until_shared(self, *names: str) -> dict[str, SeenMember]:
        """Wait until these share all tasks evenly."""

        def active() -> dict[str, frozenset[TaskId]]:
            found = self.members()
            return {name: one.answer.active for name, one in found.items() if one.answer}

        def shared() -> dict[str, SeenMember]:
            counts = {name: len(tasks) for name, tasks in active().items()}
            each = NUMBER_OF_TASKS // len(names)
            return self.members() if counts == dict.fromkeys(names, each) else {}

        return wait_until(shared, POINT_S, f"{names} to share the tasks", self.last_lines)

    def until_ended_with(self, process: psutil.Popen, code: str) -> None:
        """By itself, with this error."""
        ended = f"the process to end with {code}"
        wait_until(lambda: process.poll() is not None, POINT_S, ended, self.last_lines)
        assert process.poll() == 1, self.last_lines()
        assert code in (self.folder / "old.log").read_text()

    def last_lines(self) -> list[str]:
        return (self.folder / "old.log").read_text().splitlines()[-60:]

    def require_counted_once(self) -> None:
        super().require_counted_once()
        assert self.cluster.longs(f"{self.before.id}-here-changelog") == self.truth()

    def until_counted(self, words: int = 200) -> None:
        self.by_key(words)
        self.before.until_processed(None, self.source, f"{self.before.id}-again-repartition")


@pytest.fixture
def shared(request: pytest.FixtureRequest, cluster: Cluster, tmp_path: Path) -> Iterator[Shared]:
    """``param``: the guarantee, if not exactly once."""
    found = Shared(
        cluster,
        tmp_path,
        PROGRAM,
        RENAMED,
        guarantee=getattr(request, "param", "exactly_once_v2"),
    )
    yield found
    found.close()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.parametrize("shared", GUARANTEES, indirect=True)
def test_a_rolling_upgrade_and_the_way_back(before: Path, shared: Shared) -> None:
    """Tasks with state move to the new version and back, whoever leads; results are right, with
    either guarantee. A migration is refused while one of the version before is there."""
    old = shared.start("a", before)
    shared.until_counted()
    new = shared.start("b", None)
    members = shared.until_shared("a", "b")
    shared.until_counted()
    versions = {name: one.data.latest_version for name, one in members.items()}
    assert versions["a"] <= versions["b"] == LATEST_VERSION
    assert shared.leads("a"), "the version before leads"
    assert not shared.leads("b")

    if versions["a"] < LATEST_VERSION:
        code, said = shared.told("--instances", "0")
        assert (code, "EF-MIGRATION-MEMBERS" in said) == (1, True), said
        assert shared.cluster.committed(shared.after.id, shared.source) == {}
        shared.until_counted()

    shared.stop(old)
    shared.until_shared("b")
    shared.until_counted()
    assert shared.leads("b")

    had = shared.leads("a")
    old = shared.start("a", before)
    shared.until_shared("a", "b")
    shared.until_counted()
    assert shared.leads("a") == had, "this version leads"

    shared.stop(old)
    shared.start("a", None)
    members = shared.until_shared("a", "b")
    shared.until_counted()
    assert {one.data.latest_version for one in members.values()} == {LATEST_VERSION}
    assert new.is_running()
    shared.require_counted_once()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.parametrize("leads", ["before", "now"])
def test_an_input_that_doubles_ends_the_version_before_alone(
    before: Path, shared: Shared, leads: str
) -> None:
    """It knows no more partitions than tasks, and is refused until it is this version. What it ran
    goes on here, whoever led, with the new partitions."""
    releases = {"before": before, "now": None}
    first, second = sorted(releases, key=lambda one: one != leads)
    running = {first: shared.start("a", releases[first])}
    shared.until_counted()
    running[second] = shared.start("b", releases[second])
    shared.until_shared("a", "b")
    shared.until_counted()
    name, left = ("a", "b") if first == "before" else ("b", "a")
    assert shared.leads("a")
    assert not shared.leads("b")

    shared.cluster.grow(shared.source, 2 * shared.partitions)
    shared.partitions *= 2
    shared.by_key(200)
    shared.until_ended_with(running["before"], "EF-FATAL")
    shared.until_shared(left)
    shared.until_counted()
    shared.require_counted_once()

    refused = shared.launched("old", shared.folder / name, before)
    shared.until_ended_with(refused, "EF-INTERNAL-TOPIC")
    shared.until_counted()

    shared.start(name, None)
    shared.until_shared("a", "b")
    shared.until_counted()
    assert running["now"].is_running()
    shared.require_counted_once()
    assert len(shared.cluster.committed(shared.before.id, shared.source)) == shared.partitions
