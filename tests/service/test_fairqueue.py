"""The fair queue: users take turns."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from workbench.service.fairqueue import FairQueue

USERS = st.sampled_from("abcd")


def test_users_take_turns_independent_of_their_number_of_requests() -> None:
    queue: FairQueue[str] = FairQueue()
    for item in ("a1", "a2", "a3", "b1", "c1", "b2"):
        queue.put(item[0], item)
    assert queue.order() == ["a1", "b1", "c1", "a2", "b2", "a3"]
    assert queue.position("a2") == (4, 6)
    assert queue.position("x") is None


def test_a_new_user_waits_for_one_of_each_other_user_at_most() -> None:
    queue: FairQueue[str] = FairQueue()
    for i in range(10):
        queue.put("a", f"a{i}")
        queue.put("b", f"b{i}")
    assert queue.pop() == "a0"
    queue.put("c", "c0")
    assert queue.position("c0") == (3, 20)


@given(st.lists(USERS, max_size=30), st.data())
def test_order_equals_successive_pops_and_preserves_each_users_order(users: list[str], data: st.DataObject) -> None:
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


NAMED = st.tuples(st.sampled_from("ab"), st.sampled_from("123")).map(".".join)


def test_an_address_waits_for_one_request_of_each_other_address_whatever_their_user_names() -> None:
    queue: FairQueue[str] = FairQueue()
    for i in range(40):
        queue.put(f"a.{i}", f"a{i}")
    queue.put("b.me", "b0")
    queue.put("b.me", "b1")
    assert (queue.position("b0"), queue.position("b1")) == ((2, 42), (4, 42))
    assert [queue.pop() for _ in range(5)] == ["a0", "b0", "a1", "b1", "a2"]


@given(st.lists(NAMED, max_size=30), st.data())
def test_order_equals_successive_pops_with_addresses_and_users(users: list[str], data: st.DataObject) -> None:
    queue: FairQueue[tuple[str, int]] = FairQueue()
    items = [(user, i) for i, user in enumerate(users)]
    for item in items:
        queue.put(item[0], item)
    gone = data.draw(st.sets(st.sampled_from(items))) if items else set()
    assert all(queue.remove(item) for item in gone)
    promised, served = queue.order(), []
    while len(queue):
        assert queue.head() == promised[len(served)]
        served.append(queue.pop())
    assert served == promised
    for address in "ab":
        turns = Counter(user for user, _ in served[: len(served) // 2] if user.startswith(address))
        waiting = {user for user, _ in served[len(served) // 2 :] if user.startswith(address)}
        assert all(turns[user] <= turns[other] + 1 for user in turns for other in waiting)
