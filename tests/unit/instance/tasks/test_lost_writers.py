"""Whose open transactions a new owner may end: never a live member's (scenario 11)."""

from __future__ import annotations

from everflow.errors import RetriableError
from everflow.instance.tasks.recovery import fence_lost_writers, lost_writers

ME, LIVE, DEAD = (f"{digit * 8}-aaaa-bbbb-cccc-{digit * 12}" for digit in "123")


def test_only_ids_of_processes_that_are_no_members_are_lost() -> None:
    open_ids = [f"app-{ME}-0", f"app-{LIVE}-0", f"app-{DEAD}-0", f"app-{DEAD}-11"]
    open_ids += [f"other-{DEAD}-0", "app-foreign", f"app-x-{DEAD}-0"]
    assert lost_writers("app", open_ids, [f"app-{LIVE}", f"app-{ME}"], ME) == [
        f"app-{DEAD}-0",
        f"app-{DEAD}-11",
    ]


def test_the_own_process_lives_even_where_the_group_does_not_list_it() -> None:
    assert lost_writers("app", [f"app-{ME}-0"], [], ME) == []


def test_a_member_of_whom_the_process_cannot_be_told_may_own_any_of_them() -> None:
    assert lost_writers("app", [f"app-{DEAD}-0"], [f"app-{LIVE}", "everflow"], ME) == []


def test_nobody_is_asked_for_members_where_nothing_is_open_and_a_fault_is_no_failure() -> None:
    fenced: list[str] = []

    def refuse() -> list[str]:
        raise RetriableError("away")

    assert fence_lost_writers("app", ME, list, refuse, fenced.extend) == []
    assert fence_lost_writers("app", ME, lambda: [f"app-{DEAD}-0"], refuse, fenced.extend) == []
    assert fenced == []
    assert fence_lost_writers("app", ME, lambda: [f"app-{DEAD}-0"], list, fenced.extend) == [
        f"app-{DEAD}-0"
    ]
    assert fenced == [f"app-{DEAD}-0"]
