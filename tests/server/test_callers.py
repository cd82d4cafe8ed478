"""The client address of a request: taken from the connection and trusted proxies, never from the caller's headers."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ui.fake_client import FakeWorkbench

from workbench.core.errors import CapacityError, ParameterError
from workbench.server.access_control import AccessControl
from workbench.server.app import make
from workbench.server.callers import PRIVATE, VARIABLE, caller_of, from_environment, networks
from workbench.service.fairqueue import FairQueue
from workbench.service.limits import Limits
from workbench.ui.space import PUBLIC_LIMITS

NEAR = networks(["10.0.0.0/8", "::1"])
PROXY, ONE, OTHER = "10.16.3.80", "203.0.113.7", "198.51.100.9"


@given(st.lists(st.one_of(st.ip_addresses().map(str), st.text("0123456789.,:[] x", max_size=12)), max_size=6))
def test_headers_of_a_visitor_do_not_change_their_address(claims: list[str]) -> None:
    assert caller_of(ONE, claims, NEAR) == ONE  # straight from the visitor
    assert caller_of(PROXY, [", ".join([*claims, ONE])], NEAR) == ONE  # the proxy appends the address that it saw
    assert caller_of(PROXY, [*claims, ONE], NEAR) == ONE  # or adds its own header


@pytest.mark.parametrize(("peer", "said", "address"), [
    (PROXY, [], PROXY),
    (PROXY, [f"6.6.6.6, {ONE}, 10.0.0.2"], ONE),  # two trusted proxies
    (PROXY, ["10.0.0.3, 10.0.0.2"], "10.0.0.3"),  # a visitor inside the trusted network
    (PROXY, [f"{ONE}:4711"], ONE),
    (PROXY, ["[2001:db8::1]:4711"], "2001:db8::1"),
    (PROXY, ["unknown"], PROXY),
    ("::ffff:10.0.0.1", [ONE], ONE),
    ("::1", [ONE], ONE),
    ("testclient", [ONE], "testclient"),
])  # fmt: skip
def test_the_address_is_the_last_one_reported_by_a_trusted_proxy(peer: str, said: list[str], address: str) -> None:
    assert caller_of(peer, said, NEAR) == address


def test_trusted_proxies_come_from_option_environment_or_space() -> None:
    assert from_environment({}) == ()
    assert from_environment({VARIABLE: " 10.1.0.1, 10.2.0.0/16,"}) == ("10.1.0.1", "10.2.0.0/16")
    assert from_environment({"SPACE_ID": "me/it"}) == PRIVATE
    with pytest.raises(ParameterError, match=r"'nginx' is not an IP address") as refused:
        networks(["nginx"])
    assert refused.value.option == "trusted-proxy"


class FullClient(FakeWorkbench):
    """A client whose runs never end; it records the users of running requests."""

    def __init__(self) -> None:
        super().__init__()
        self.limits = Limits(**PUBLIC_LIMITS)
        self.users: list[str] = []
        self.queue: FairQueue[str] = FairQueue()

    def targets(self) -> list[dict[str, Any]]:
        return [{"name": "text-target", "kind": "bundled"}]

    drafters = targets

    def start(self, *_: Any, user: str, **__: Any) -> Any:
        self.limits.check_room(user, self.users)
        self.users.append(user)
        self.queue.put(user, user)
        raise RuntimeError("never answered")


def ask(client: Any, address: str, n: int, **headers: str) -> list[int]:
    """Return the statuses of `n` requests through a proxy, each with another user name."""

    async def all_of_them() -> list[int]:
        door = httpx.ASGITransport(make(client, AccessControl(trusted=PRIVATE)), client=(PROXY, 1))
        async with httpx.AsyncClient(transport=door, base_url="http://localhost") as http:
            found = []
            for i in range(n):
                said = {
                    "authorization": f"Bearer {i}",
                    "x-workbench-user": f"u{i}",
                    "x-forwarded-for": f"6.6.6.{i}, {address}",
                }
                body = {"model": "text-target", "prompt": "x", "speculation": {"method": "autoregressive"}}
                answer = await http.post("/v1/completions", json=body, headers=said | headers)
                found.append(answer.status_code)
            return found

    return asyncio.run(all_of_them())


def test_forty_made_up_names_at_one_address_do_not_block_another_address() -> None:
    client = FullClient()
    statuses = ask(client, ONE, 40)
    most = PUBLIC_LIMITS["runs_per_address"]
    assert statuses == [500] * most + [429] * (40 - most)
    assert len(set(client.users)) == most  # each request has its own user name
    assert ask(client, OTHER, 1) == [500]  # another address gets a run
    assert client.queue.position(client.users[-1]) == (2, most + 1)  # second in the queue


def test_an_ipv6_network_of_one_visitor_is_one_address() -> None:
    client = FullClient()
    statuses = [ask(client, f"2001:db8:1:2::{i:x}", 1, authorization=f"{i}")[0] for i in range(12)]
    assert statuses.count(429) == 12 - PUBLIC_LIMITS["runs_per_address"]
    assert ask(client, "2001:db8:1:3::1", 1) == [500]


def test_a_public_app_has_limits_for_an_address_wherever_it_runs() -> None:
    limits = Limits(**PUBLIC_LIMITS)
    assert limits.runs_per_address is not None
    assert limits.runs_per_address < limits.runs / 2
    with pytest.raises(CapacityError, match="address"):
        limits.check_room("a.9", [f"a.{i}" for i in range(limits.runs_per_address)])
