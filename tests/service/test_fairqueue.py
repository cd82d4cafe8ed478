"""Turns of users."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from workbench.service.fairqueue import FairQueue

USERS = st.sampled_from("abcd")


def test_users_take_turns_whoever_put_in_more() -> None:
    queue: FairQueue[str] = FairQueue()
    for item in ("a1", "a2", "a3", "b1", "c1", "b2"):
        queue.put(item[0], item)
    assert queue.order() == ["a1", "b1", "c1", "a2", "b2", "a3"]
    assert queue.place("a2") == (4, 6)
    assert queue.place("x") is None


def test_a_new_user_waits_for_one_of_each_other_user_at_most() -> None:
    queue: FairQueue[str] = FairQueue()
    for i in range(10):
        queue.put("a", f"a{i}")
        queue.put("b", f"b{i}")
    assert queue.pop() == "a0"
    queue.put("c", "c0")
    assert queue.place("c0") == (3, 20)


@given(st.lists(USERS, max_size=30), st.data())
def test_order_is_what_pops_give_and_each_user_keeps_theirs(users: list[str], data: st.DataObject) -> None:
    queue: FairQueue[tuple[str, int]] = FairQueue()
    items = [(user, i) for i, user in enumerate(users)]
    for item in items:
        queue.put(item[0], item)
    gone = data.draw(st.sets(st.sampled_from(items))) if items else set()
    assert all(queue.remove(item) for item in gone)
    assert not queue.remove(("z", 0))
    promised = queue.order()
    served = [queue.pop() for _ in range(len(queue))]
    assert served == promised
    assert queue.pop() is None
    for user in "abcd":
        assert [i for u, i in served if u == user] == [i for u, i in items if u == user and (u, i) not in gone]


@given(st.lists(USERS, max_size=30))
def test_nobody_is_served_twice_before_everybody_was_served_once(users: list[str]) -> None:
    queue: FairQueue[str] = FairQueue()
    for user in users:
        queue.put(user, user)
    served: Counter[str] = Counter()
    waiting = Counter(users)
    while (user := queue.pop()) is not None:
        served[user] += 1
        waiting[user] -= 1
        assert all(served[user] - served[other] <= 1 for other in waiting if waiting[other])
