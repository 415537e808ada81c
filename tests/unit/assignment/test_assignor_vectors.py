"""Kafka Streams' own test vectors for assignors, by the reference's names, restated."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import pytest

from everflow.assignment.api import (
    KafkaStreamsAssignment,
    TaskAssignment,
    application_state,
    optimize_rack_aware_active_tasks,
)
from everflow.assignment.assignor import UNKNOWN_ENDS_RETRY_MS, assign, place
from everflow.assignment.cluster_state import (
    RUNNING,
    Assignment,
    AssignmentRules,
    ClusterState,
    Member,
    RackCosts,
    TaskInfo,
    costs_of,
    owners_of,
    tasks_of,
    validate_assignment,
)
from everflow.assignment.lags import Delay, Lags, hold_back, remember
from everflow.assignment.refine import refine
from everflow.assignment.standbys import place_standbys
from everflow.assignment.target import Placement
from everflow.records import TaskId, TopicPartition

END = 100_000
ALL = 2**63 - 1


def stateful(count: int) -> dict[TaskId, TaskInfo]:
    """``count`` tasks over sub-topologies of three."""
    ids = [TaskId(number // 3, number % 3) for number in range(count)]
    return {t: TaskInfo(t, (), (TopicPartition("c", n),), True) for n, t in enumerate(ids)}


def member(
    name: str,
    owned: Mapping[TaskId, object] | None = None,
    *,
    lags: Mapping[TaskId, int] | None = None,
    threads: int = 1,
) -> Member:
    sums = {task: END - lag for task, lag in (lags or {}).items()}
    return Member(
        member_id=name,
        process_id=name,
        owned=frozenset(owned or ()),
        generation=1,
        threads=threads,
        offset_sums=sums,
    )


def cluster(
    tasks: Mapping[TaskId, TaskInfo],
    *members: Member,
    acceptable: int = 0,
    warmups: int = 2,
    standbys: int = 0,
) -> ClusterState:
    rules = AssignmentRules(acceptable_lag=acceptable, max_warmups=warmups, num_standbys=standbys)
    return ClusterState(
        members=members,
        tasks=tasks,
        end_sums={task: END for task, info in tasks.items() if info.stateful},
        racks={},
        rules=rules,
    )


def copies(placement: Placement) -> dict[str, int]:
    """Tasks per member in any role."""
    count: Counter[str] = Counter(placement.active.values())
    for holders in (placement.standby, placement.warmup):
        for members in holders.values():
            count.update(members)
    return dict(count)


def actives(placement: Placement) -> dict[str, int]:
    return dict(Counter(placement.active.values()))


def decided(state: ClusterState) -> Placement:
    """What should be now; the whole decision is made as well, as it checks itself."""
    assign(state)
    return place(Lags(state))[1]


def probes(state: ClusterState) -> bool:
    return decided(state).movements > 0


def test_v1_warm_ups_beside_a_hot_standby() -> None:
    tasks = stateful(9)
    members = (member("c1", tasks), member("c2", lags=dict.fromkeys(tasks, 10)), member("c3"))
    state = cluster(tasks, *members, acceptable=11, standbys=1)
    placement = decided(state)
    assert copies(placement) == {"c1": 9, "c2": 9, "c3": 2}
    assert sum("c3" in holders for holders in placement.warmup.values()) == 2
    assert probes(state)


def test_v2_everyone_is_hot_with_the_largest_acceptable_lag() -> None:
    tasks = stateful(9)
    members = (member("c1", tasks), member("c2", lags=dict.fromkeys(tasks, 10)), member("c3"))
    state = cluster(tasks, *members, acceptable=ALL, standbys=1)
    assert copies(decided(state)) == {"c1": 6, "c2": 6, "c3": 6}
    assert not probes(state)


def test_v3_nobody_is_hot() -> None:
    tasks = stateful(9)
    state = cluster(
        tasks, *(member(name, lags=dict.fromkeys(tasks, 10)) for name in ("c1", "c2", "c3"))
    )
    assert actives(decided(state)) == {"c1": 3, "c2": 3, "c3": 3}
    assert not probes(state)


@pytest.mark.parametrize(
    ("number", "threads", "expected"),
    [
        pytest.param(6, {"c1": 1, "c2": 2, "c3": 3}, {"c1": 1, "c2": 2, "c3": 3}, id="V4"),
        pytest.param(9, {"c1": 6, "c2": 3}, {"c1": 6, "c2": 3}, id="V5"),
    ],
)
def test_v4_v5_actives(number: int, threads: dict[str, int], expected: dict[str, int]) -> None:
    state = cluster(
        stateful(number), *(member(name, threads=count) for name, count in threads.items())
    )
    assert actives(decided(state)) == expected


def v6(*, warm: bool) -> ClusterState:
    tasks = stateful(4)
    ids = sorted(tasks)
    newcomers = [
        member(name, lags={ids[2 + at]: 0} if warm else {}, threads=5)
        for at, name in enumerate(("c2", "c3"))
    ]
    return cluster(tasks, member("c1", tasks, threads=5), *newcomers)


def test_v6_newcomers_warm_up_first() -> None:
    placement = decided(v6(warm=False))
    assert actives(placement) == {"c1": 4}
    assert copies(placement) == {"c1": 4, "c2": 1, "c3": 1}
    assert probes(v6(warm=False))


def test_v7_then_it_is_balanced() -> None:
    assert actives(decided(v6(warm=True))) == {"c1": 2, "c2": 1, "c3": 1}
    assert not probes(v6(warm=True))


def test_v8_one_warm_up_although_no_standby_is_wanted() -> None:
    tasks = stateful(2)
    state = cluster(tasks, member("c1", tasks), member("c2"))
    assert copies(decided(state)) == {"c1": 2, "c2": 1}
    assert actives(decided(state)) == {"c1": 2}
    assert probes(state)


@pytest.mark.parametrize(
    ("standbys", "expected"), [pytest.param(0, 1, id="V9"), pytest.param(1, 4, id="V10")]
)
def test_v9_v10_the_budget_and_the_standbys_that_do_not_count(standbys: int, expected: int) -> None:
    tasks = stateful(4)
    state = cluster(tasks, member("c1", tasks), member("c2"), warmups=1, standbys=standbys)
    placement = decided(state)
    assert actives(placement) == {"c1": 4}
    assert copies(placement)["c2"] == expected
    assert sum(map(len, placement.warmup.values())) == 1 - standbys
    assert probes(state)


def test_v11_no_standby_for_a_single_process() -> None:
    tasks = stateful(2)
    state = cluster(tasks, member("c1", tasks), standbys=1)
    assert copies(decided(state)) == {"c1": 2}
    assert not probes(state)


def test_v12_the_most_caught_up_runs_it() -> None:
    tasks = stateful(1)
    task = TaskId(0, 0)
    members = (member("c1"), member("c2", lags={task: 1000}), member("c3", lags={task: 500}))
    state = cluster(tasks, *members, acceptable=100, standbys=1)
    placement = decided(state)
    assert placement.active == {task: "c3"}
    assert placement.standby == {task: {"c2"}}
    assert placement.warmup == {task: {"c1"}}
    assert probes(state)


def test_v13_a_claim_that_lags_gives_way_to_a_hot_copy() -> None:
    tasks = stateful(1)
    task = TaskId(0, 0)
    state = cluster(tasks, member("c1", tasks, lags={task: 500}), member("c2", lags={task: 0}))
    assert decided(state).active == {task: "c2"}
    assert probes(state)


def test_v14_every_process_gets_one() -> None:
    threads = {"c1": 100, "c2": 50, "c3": 1}
    state = cluster(stateful(9), *(member(name, threads=count) for name, count in threads.items()))
    assert set(actives(decided(state))) == set(threads)


def test_v15_nobody_has_anything() -> None:
    state = cluster(stateful(9), *(member(f"c{number}") for number in range(4)), standbys=1)
    assert decided(state).movements == 0


T0, T1, T2 = (TaskId(0, number) for number in range(3))
IDEAL = Placement({T0: "c1", T1: "c2", T2: "c3"}, {})


def refined(state: ClusterState, ideal: Placement = IDEAL) -> Placement:
    return refine(Lags(state), ideal)


def caught_up_elsewhere(warmups: int) -> ClusterState:
    return cluster(
        stateful(3),
        member("c1", lags={T0: 0}),
        member("c2", lags={T2: 0}),
        member("c3", lags={T1: 0}),
        warmups=warmups,
    )


def test_m1_actives_stay_where_they_are_hot() -> None:
    placement = refined(caught_up_elsewhere(warmups=2))
    assert placement.active == {T0: "c1", T1: "c3", T2: "c2"}
    assert placement.warmup == {T1: {"c2"}, T2: {"c3"}}
    assert placement.movements == 2


def test_m2_the_budget_is_for_the_whole_group() -> None:
    placement = refined(caught_up_elsewhere(warmups=1))
    assert placement.active == {T0: "c1", T1: "c3", T2: "c2"}
    assert placement.warmup == {T1: {"c2"}}
    assert placement.movements == 2


def test_m3_a_swap_with_a_hot_standby_is_free() -> None:
    tasks = {T0: stateful(1)[T0]}
    placement = refined(
        cluster(tasks, member("c1", lags={T0: 0}), member("c2"), warmups=0),
        Placement({T0: "c2"}, {T0: frozenset({"c1"})}),
    )
    assert placement.active == {T0: "c1"}
    assert placement.standby == {T0: {"c2"}}
    assert not placement.warmup
    assert placement.movements == 1


def test_m4_without_state_nothing_is_held_back() -> None:
    members = [member(name) for name in ("c1", "c2", "c3")]
    for tasks in (stateful(3), {task: TaskInfo(task, ()) for task in (T0, T1, T2)}):
        placement = refined(cluster(tasks, *members))
        assert placement.active == IDEAL.active
        assert placement.movements == 0


def test_m5_nobody_is_hot_but_some_are_nearer() -> None:
    state = cluster(
        stateful(3),
        member("c1", lags={T0: 0, T1: 20, T2: 30}),
        member("c2", lags={T1: 30, T2: 10}),
        member("c3", lags={T1: 10, T2: 20}),
    )
    placement = refined(state)
    assert placement.active == {T0: "c1", T1: "c3", T2: "c2"}
    assert placement.warmup == {T1: {"c2"}, T2: {"c3"}}
    assert placement.movements == 2


def racked(traffic: int, overlap: int) -> tuple[ClusterState, TaskAssignment]:
    """c1, c2, c3 stand in r1, r2, r3, beside an empty c4 and c5; every task reads one partition."""
    near = {
        TaskId(0, 0): {"r1"},
        TaskId(0, 1): {"r2", "r3"},
        TaskId(1, 0): {"r1", "r3"},
        TaskId(1, 1): {"r2"},
    }
    tasks = {
        task: TaskInfo(task, (TopicPartition(f"t{task.subtopology}", task.partition),), (), True)
        for task in near
    }
    racks = {tasks[task].inputs[0]: frozenset(where) for task, where in near.items()}
    given = {
        "c1": {TaskId(0, 1), TaskId(1, 1)},
        "c2": {TaskId(1, 0)},
        "c3": {TaskId(0, 0)},
        "c4": set(),
        "c5": set(),
    }
    stand = {"c1": "r1", "c2": "r2", "c3": "r3", "c4": "r1", "c5": "r2"}
    members = tuple(replace(member(name), rack=rack) for name, rack in stand.items())
    rules = AssignmentRules(
        rack_strategy="min_traffic", traffic_cost=traffic, non_overlap_cost=overlap
    )
    start = TaskAssignment(
        {name: KafkaStreamsAssignment(frozenset(some)) for name, some in given.items()}
    )
    return ClusterState(
        members=members, tasks=tasks, end_sums=dict.fromkeys(tasks, END), racks=racks, rules=rules
    ), start


def cost(state: ClusterState, start: TaskAssignment, answer: TaskAssignment) -> int:
    racks = RackCosts.of(state, state.members)
    assert racks is not None
    traffic, overlap = costs_of(state)
    return sum(
        traffic * racks.remote(state.tasks[task].inputs)[racks.rack_of[name]]
        + overlap * (task not in start.assignments[name].active)
        for name, given in answer.assignments.items()
        for task in given.active
    )


def test_r1_the_cheapest_exchange() -> None:
    state, start = racked(10, 1)
    best = optimize_rack_aware_active_tasks(application_state(state), start, state.tasks)
    assert cost(state, start, start) == 40
    assert cost(state, start, best) == 4
    assert {name: set(given.active) for name, given in best.assignments.items()} == {
        "c1": {TaskId(0, 0), TaskId(1, 0)},
        "c2": {TaskId(1, 1)},
        "c3": {TaskId(0, 1)},
        "c4": set(),
        "c5": set(),
    }


def test_r2_without_traffic_cost_nothing_moves() -> None:
    state, start = racked(0, 1)
    assert optimize_rack_aware_active_tasks(application_state(state), start, state.tasks) == start
    assert cost(state, start, start) == 0


def in_zones(*, distinct: bool) -> tuple[ClusterState, list[Member]]:
    """Nine members in three zones of three clusters; six tasks, all running in zone 1."""
    tasks = stateful(6)
    ids = sorted(tasks)
    members = []
    for number in range(9):
        owned = ids[2 * number : 2 * number + 2]
        tags = {
            "zone": f"z{1 + number // 3 if distinct else 1}",
            "cluster": f"k{1 + number % 3 if distinct else 1}",
        }
        members.append(replace(member(f"c{number + 1}", dict.fromkeys(owned)), tags=tags))
    return replace(
        cluster(tasks, *members, standbys=2),
        rules=AssignmentRules(
            acceptable_lag=0, max_warmups=2, num_standbys=2, rack_tags=("zone", "cluster")
        ),
    ), members


def test_g1_standbys_in_another_zone_and_cluster() -> None:
    state, members = in_zones(distinct=True)
    active = {task: one.member_id for one in members for task in one.owned}
    standby = place_standbys(Lags(state), members, sorted(active), active)
    count = Counter(one for followers in standby.values() for one in followers)
    assert dict(count) == {f"c{number}": 2 for number in range(4, 10)}
    tags = {one.member_id: one.tags for one in members}
    for task, followers in standby.items():
        for key in ("zone", "cluster"):
            assert len({tags[one][key] for one in (active[task], *followers)}) == 3


def test_g2_too_few_tags_still_give_all_standbys() -> None:
    state, members = in_zones(distinct=False)
    active = {task: one.member_id for one in members for task in one.owned}
    standby = place_standbys(Lags(state), members, sorted(active), active)
    assert all(len(followers) == 2 for followers in standby.values())
    load = Counter([*active.values(), *(one for some in standby.values() for one in some)])
    assert max(load.values()) - min(load.values()) <= 1


def test_x1_a_copy_beyond_the_end_counts_as_none() -> None:
    tasks = stateful(1)
    task = TaskId(0, 0)
    wrong = replace(member("c1"), offset_sums={task: END + 50_000})
    lags = Lags(cluster(tasks, wrong, member("c2", lags={task: 500}), acceptable=1_000))
    assert lags.lag("c1", task) == END
    assert decided(
        cluster(tasks, wrong, member("c2", lags={task: 500}), acceptable=1_000)
    ).active == {task: "c2"}
    # Not as in the reference: stable ends may lie behind a copy in order for a moment (note 005,
    # the end).
    a_moment_later = replace(member("c1"), offset_sums={task: END + 500})
    assert Lags(cluster(tasks, a_moment_later)).hot("c1", task)


@pytest.mark.parametrize("ends", [None, {}])
def test_x2_without_ends_everyone_keeps_what_it_has(ends: dict[TaskId, int] | None) -> None:
    tasks = stateful(4)
    ids = sorted(tasks)
    members = (
        member("c1", dict.fromkeys(ids[:3])),
        member("c2", lags={ids[3]: 9, ids[0]: 1}),
        member("c3"),
    )
    state = cluster(tasks, *members, standbys=1)
    decision = assign(replace(state, end_sums=ends))
    assert decision.active == {"c1": frozenset(ids[:3]), "c2": {ids[3]}, "c3": frozenset()}
    assert decision.standby["c2"] == {ids[0]}
    assert not any(decision.warmup.values())
    assert decision.followup_ms == UNKNOWN_ENDS_RETRY_MS


def test_scenario_22_a_member_back_without_its_disk_does_not_keep_its_task_cold() -> None:
    tasks = stateful(1)
    task = TaskId(0, 0)
    back = replace(member("c1", tasks), offset_sums={task: 0})
    state = cluster(tasks, back, member("c2", lags={task: 10}), acceptable=100, standbys=1)
    first = assign(state)
    assert first.withheld == {task}
    assert first.standby == {"c1": {task}, "c2": {task}}  # the next owner stays hot meanwhile
    follow_up = assign(replace(state, members=(replace(back, owned=frozenset()), state.members[1])))
    assert follow_up.active == {"c1": frozenset(), "c2": {task}}
    assert RUNNING not in back.offset_sums.values()


# What waits for a lost member, for how long.

A, B, FREE = TaskId(0, 0), TaskId(0, 1), TaskId(1, 0)
TASKS = {
    task: TaskInfo(task, (), (TopicPartition("c", task.partition),), True) for task in (A, B)
} | {FREE: TaskInfo(FREE, ())}
ONE = Member(member_id="m1", process_id="p1", owned=frozenset({A}), generation=1)
TWO = Member(member_id="m2", process_id="p2", owned=frozenset({B, FREE}), generation=1)


def delayed_cluster(*members: Member) -> ClusterState:
    return ClusterState(
        members=members,
        tasks=TASKS,
        end_sums={A: 100_000, B: 100_000},
        racks={},
        rules=AssignmentRules(),
    )


def step(
    delay: Delay, state: ClusterState, now_ms: int, max_delay_ms: int = 60_000
) -> tuple[Delay, Assignment]:
    delay, state = hold_back(delay, state, now_ms, max_delay_ms)
    return remember(delay, state, assign(state), now_ms)


def after_a_loss() -> tuple[Delay, Assignment]:
    delay, _ = step(Delay(), delayed_cluster(ONE, TWO), 0)
    return step(delay, delayed_cluster(ONE), 1_000)


def test_tasks_of_a_lost_member_wait_and_others_go_on() -> None:
    delay, decided = after_a_loss()
    assert decided.active == {"m1": {A}}
    assert decided.followup_ms == 60_000
    assert delay.lost == {B: "p2", FREE: "p2"}


def test_the_member_that_returns_gets_its_tasks() -> None:
    delay, _ = after_a_loss()
    back = Member(member_id="m9", process_id="p2", offset_sums={B: 99_990})
    delay, decided = step(delay, delayed_cluster(ONE, back), 30_000)
    assert decided.active == {"m1": {A}, "m9": {B, FREE}}
    assert delay.deadline_ms is None


def test_the_waiting_ends_and_a_further_loss_does_not_prolong_it() -> None:
    delay, _ = after_a_loss()
    delay, decided = step(delay, delayed_cluster(ONE), 40_000)
    assert decided.followup_ms == 21_000
    newcomer = Member(member_id="m3", process_id="p3")
    delay, decided = step(delay, delayed_cluster(newcomer), 50_000)
    assert delay.lost == {A: "p1", B: "p2", FREE: "p2"}
    assert decided.active == {"m3": frozenset()}
    delay, decided = step(delay, delayed_cluster(newcomer), 61_000)
    assert decided.active == {"m3": {A, B, FREE}}
    assert delay.deadline_ms is None
    assert delay.lost == {}


def test_a_hot_copy_elsewhere_takes_over_at_once() -> None:
    delay, _ = step(Delay(), delayed_cluster(ONE, TWO), 0)
    hot = replace(ONE, offset_sums={B: 99_999})
    delay, decided = step(delay, delayed_cluster(hot), 1_000)
    assert decided.active == {"m1": {A, B}}
    assert delay.lost == {FREE: "p2"}
    delay, _ = step(Delay(), delayed_cluster(ONE, TWO), 0)
    draining = replace(hot, draining=True)
    _, decided = step(delay, delayed_cluster(draining, Member(member_id="m3", process_id="p3")), 1)
    assert B not in decided.active["m3"]  # the copy is about to go, too


# KIP-415's own cases, of tasks without state: three workers with four tasks each.

WORK = [TaskId(connector, part) for connector in range(6) for part in range(2)]


class Workers:
    """A group whose leader decides with a delay of a minute; its members do as they are told."""

    def __init__(self, *names: str) -> None:
        self.tasks = list(WORK)
        self.present: dict[str, Member] = {}
        self.delay, self.now_ms, self.generation = Delay(), 0, 0
        self.join(*names)
        self.rebalance()

    def join(self, *names: str) -> None:
        for name in names:
            member_id = f"{name}-{self.generation}"
            self.present[name] = Member(member_id=member_id, process_id=name)

    def rebalance(self, after_ms: int = 0) -> Assignment:
        """Until nothing is handed over any more; the first decision."""
        self.now_ms += after_ms
        first: Assignment | None = None
        while True:
            self.generation += 1
            state = ClusterState(
                members=tuple(self.present.values()),
                tasks={task: TaskInfo(task, ()) for task in self.tasks},
                end_sums={},
            )
            self.delay, decided = step(self.delay, state, self.now_ms)
            for name, member in self.present.items():
                owned = decided.active[member.member_id]
                self.present[name] = replace(member, owned=owned, generation=self.generation)
            first = first or decided
            if not decided.withheld:
                return first

    def of(self, name: str) -> frozenset[TaskId]:
        return self.present[name].owned

    @property
    def waiting(self) -> set[TaskId]:
        return set(self.tasks).difference(*(member.owned for member in self.present.values()))


def test_a_worker_that_bounces_gets_its_own_tasks_and_nothing_else_moves() -> None:
    group = Workers("a", "b", "c")
    had = {name: group.of(name) for name in "abc"}
    assert {len(tasks) for tasks in had.values()} == {4}
    del group.present["c"]
    assert group.rebalance(100).followup_ms == 60_000
    assert group.waiting == had["c"]
    group.join("c")
    decided = group.rebalance(30_000)
    assert (decided.withheld, decided.followup_ms) == (frozenset(), None)
    assert {name: group.of(name) for name in "abc"} == had


def test_tasks_of_a_worker_that_stays_away_are_dealt_when_the_time_is_over() -> None:
    group = Workers("a", "b", "c")
    had = {name: group.of(name) for name in "ab"}
    del group.present["c"]
    group.rebalance(100)
    assert group.rebalance(59_999).followup_ms == 1
    assert group.waiting
    decided = group.rebalance(1)
    assert decided.withheld == frozenset()
    assert not group.waiting
    assert all(had[name] < group.of(name) and len(group.of(name)) == 6 for name in "ab")


def test_two_lost_workers_have_one_deadline_and_the_one_that_is_back_waits_for_nobody() -> None:
    group = Workers("a", "b", "c")
    had = {name: group.of(name) for name in "abc"}
    del group.present["b"]
    group.rebalance(100)
    del group.present["c"]
    assert group.rebalance(40_000).followup_ms == 20_000
    assert group.waiting == had["b"] | had["c"]
    group.join("c")
    assert group.rebalance(5_000).followup_ms == 15_000
    assert group.of("c") == had["c"]
    assert group.waiting == had["b"]
    group.rebalance(15_000)
    assert not group.waiting
    assert had["a"] < group.of("a")
    assert had["c"] < group.of("c")


def test_a_newcomer_takes_nothing_from_others_while_tasks_wait_then_the_lost_ones() -> None:
    group = Workers("a", "b", "c")
    had = {name: group.of(name) for name in "abc"}
    del group.present["c"]
    group.rebalance(100)
    group.join("d")
    assert group.rebalance(10_000).withheld == frozenset()
    assert group.of("d") == frozenset()
    group.rebalance(50_000)
    assert group.of("d") == had["c"]
    assert {name: group.of(name) for name in "ab"} == {name: had[name] for name in "ab"}


def test_a_worker_that_is_back_has_the_first_claim_before_a_newcomer() -> None:
    group = Workers("a", "b", "c")
    had = {name: group.of(name) for name in "abc"}
    del group.present["c"]
    group.rebalance(100)
    group.join("d")
    group.rebalance(10_000)
    group.join("c")
    group.rebalance(1_000)
    assert group.of("c") < had["c"]
    assert all(len(group.of(name)) == 3 for name in "abcd")
    assert all(group.of(name) < had[name] for name in "ab")


def test_a_connector_added_meanwhile_runs_at_once() -> None:
    group = Workers("a", "b", "c")
    lost = group.of("c")
    del group.present["c"]
    group.rebalance(100)
    new = [TaskId(6, part) for part in range(2)]
    group.tasks += new
    assert group.rebalance(1_000).withheld == frozenset()
    assert group.waiting == lost


def test_a_worker_that_drains_goes_for_good() -> None:
    group = Workers("a", "b", "c")
    group.present["c"] = replace(group.present["c"], draining=True)
    group.rebalance(100)
    assert group.of("c") == frozenset()
    group = Workers("a", "b", "c")
    draining = replace(group.present["c"], draining=True)
    everybody = [*list(group.present.values())[:2], draining]
    delayed = ClusterState(
        members=tuple(everybody),
        tasks={task: TaskInfo(task, ()) for task in WORK},
        end_sums={},
    )
    group.delay, decided = step(group.delay, delayed, 100)  # it is to let go, and dies instead
    assert decided.withheld == draining.owned
    del group.present["c"]
    group.rebalance(100)
    assert not group.waiting


def test_a_new_leader_waits_for_nobody() -> None:
    group = Workers("a", "b", "c")
    del group.present["a"]
    group.delay = Delay()
    group.rebalance(100)
    assert not group.waiting


def test_off_by_default_and_nothing_is_held_back_by_a_new_leader() -> None:
    delay, _ = step(Delay(), delayed_cluster(ONE, TWO), 0, max_delay_ms=0)
    assert step(delay, delayed_cluster(ONE), 1_000, max_delay_ms=0)[1].active == {
        "m1": {A, B, FREE}
    }
    assert step(Delay(), delayed_cluster(ONE), 1_000)[1].active == {"m1": {A, B, FREE}}


def test_an_old_claim_gives_way_and_equal_claims_free_the_task() -> None:
    task = TaskId(0, 0)
    old, new = (
        Member(member_id="m1", process_id="a", owned=frozenset({task}), generation=3),
        Member(member_id="m2", process_id="b", owned=frozenset({task}), generation=4),
    )
    assert owners_of([old, new]) == {task: frozenset({"m2"})}
    assert owners_of(
        [Member(member_id="m1", process_id="a", owned=frozenset({task}), generation=4), new]
    ) == {task: frozenset({"m1", "m2"})}


def test_the_validator_names_each_broken_rule() -> None:
    a, b = (
        Member(member_id="m1", process_id="a", owned=frozenset({TaskId(0, 0)}), generation=1),
        Member(member_id="m2", process_id="b"),
    )
    task = [TaskId(0, partition) for partition in range(5)]
    wrong = Assignment(
        active={"m1": frozenset({task[1]}), "m2": frozenset(task[:2]), "m9": frozenset()},
        standby={"m2": frozenset({task[1], TaskId(7, 7)})},
        warmup={"m8": frozenset({task[0]})},
        withheld=frozenset({task[2]}),
    )
    text = "\n".join(validate_assignment(wrong, [a, b], task, held_back={task[4]}))
    for expected in (
        "['m9'] differ",
        "0_1 is on m1 and on m2",
        "0_3 is on nobody",
        "nobody owns it",
        "while m1 still own",
        "0_1 has two roles on m2",
        "7_7, which does not exist, on m2",
        "m8 is given copies but is no member",
    ):
        assert expected in text
    assert "0_4" not in text


def test_tasks_read_every_topic_that_reaches_their_partition() -> None:
    found = tasks_of({0: ["a", "b"], 1: ["c"], 2: ["absent"]}, {"a": 2, "b": 1, "c": 1})
    assert found == {
        TaskId(0, 0): (TopicPartition("a", 0), TopicPartition("b", 0)),
        TaskId(0, 1): (TopicPartition("a", 1),),
        TaskId(1, 0): (TopicPartition("c", 0),),
    }
