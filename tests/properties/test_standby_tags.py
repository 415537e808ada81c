"""Where copies go by tags: the same however members are grouped, without a look at everyone."""

import random
from collections.abc import Mapping, Sequence, Set

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everflow.assignment import standbys
from everflow.assignment.cluster_state import AssignmentRules, ClusterState, Member, TaskInfo
from everflow.assignment.lags import Lags
from everflow.assignment.standbys import SharedTags, new_tags
from everflow.records import TaskId, TopicPartition

EVERY_CLASS = 1 << 30


def group(
    members: Sequence[Member], tasks: int, keys: tuple[str, ...], copies: int
) -> ClusterState:
    infos = {
        TaskId(0, n): TaskInfo(TaskId(0, n), (), (TopicPartition("c", n),), True)
        for n in range(tasks)
    }
    rules = AssignmentRules(acceptable_lag=10, num_standbys=copies, rack_tags=keys)
    return ClusterState(
        members=tuple(members),
        tasks=infos,
        end_sums=dict.fromkeys(infos, 1_000),
        racks={},
        rules=rules,
    )


def placed(cluster: ClusterState, active: Mapping[TaskId, str]) -> dict[TaskId, frozenset[str]]:
    return standbys.place_standbys(Lags(cluster), cluster.members, sorted(cluster.tasks), active)


@given(st.integers(0, 2**32))
def test_the_groups_decide_how_long_it_takes_and_not_what_is_found(seed: int) -> None:
    rng = random.Random(seed)
    keys = tuple(rng.sample(["zone", "host", "room"], rng.randint(1, 3)))
    values = {key: rng.choice([1, 2, 3, 5, 15, 40]) for key in keys}
    tasks = rng.randint(1, 80)
    members = [
        Member(
            member_id=f"m{number:02}",
            process_id=f"p{number:02}",
            threads=rng.randint(1, 3),
            offset_sums={
                TaskId(0, rng.randrange(tasks)): rng.choice([100, 995, 1_000]) for _ in range(3)
            },
            tags={key: str(rng.randrange(values[key])) for key in keys},
        )
        for number in range(rng.randint(2, 40))
    ]
    cluster = group(members, tasks, keys, rng.randint(1, 4))
    active = {task: rng.choice(members).member_id for task in cluster.tasks}
    found = []
    for most in (
        0,
        standbys.MOST_GROUPS,
        EVERY_CLASS,
    ):  # one group; some; one for each class, each asked in its turn
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(standbys, "MOST_GROUPS", most)
            found.append(placed(cluster, active))
    assert found[0] == found[1] == found[2], f"seed {seed}"


def test_a_tag_of_many_values_does_not_mean_each_look(monkeypatch: pytest.MonkeyPatch) -> None:
    members = [
        Member(
            member_id=f"m{number:03}",
            process_id=f"p{number:03}",
            tags={"zone": str(number % 3), "host": f"{number % 3}-{number // 6}"},
        )
        for number in range(300)
    ]
    cluster = group(members, 1_000, ("zone", "host"), 2)
    active = {task: members[task.partition % 300].member_id for task in cluster.tasks}
    looks = 0

    def counted(tags: SharedTags, taken: Sequence[Set[str | None]]) -> int:
        nonlocal looks
        looks += 1
        return new_tags(tags, taken)

    monkeypatch.setattr(standbys, "new_tags", counted)
    standby = placed(cluster, active)
    tags = {member.member_id: member.tags for member in members}
    for task, followers in standby.items():
        holders = [*followers, active[task]]
        assert (
            len({tags[one]["zone"] for one in holders})
            == len({tags[one]["host"] for one in holders})
            == 3
        )
    assert looks < 1_000 * 2 * 20, f"{looks} looks for 2000 copies among 150 hosts"
