"""Random numbers depend only on their address, and no two addresses share a number."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from workbench.core.random_stream import Purpose, RandomStream, seeded_uniforms

PINNED = [0.24722974711661783, 0.4237363566778556, 0.00016549824388090162]
seeds, purposes = st.integers(-(2**63), 2**64), st.sampled_from(Purpose)
addresses = st.tuples(st.integers(0, 2**31), purposes, st.integers(1, 60), st.integers(0, 16))


@settings(deadline=None)
@given(seeds, st.lists(addresses, min_size=1, max_size=6), st.data())
def test_a_number_depends_on_its_address_and_not_on_the_order(
    seed: int, asked: list[tuple], data: st.DataObject
) -> None:
    fresh = [RandomStream(seed).uniform(*address) for address in asked]
    one = RandomStream(seed)
    for i in data.draw(st.permutations(range(len(asked)))):
        found = one.uniform(*asked[i])
        assert (found == fresh[i]).all()
        assert ((found >= 0) & (found < 1)).all()
        position, purpose, n, level = asked[i]
        assert (one.uniform(position, purpose, n + 9, level)[:n] == fresh[i]).all(), (
            "a shorter draft uses the first numbers"
        )


def test_no_two_addresses_share_a_number() -> None:
    """Half of the neighbouring addresses in a run differ in one word: numbers of 53 bits must all differ."""
    found = [
        RandomStream(seed).uniform(position, purpose, 64, level)
        for seed, position, purpose, level in itertools.product((0, 1, 2**32), (0, 1, 7, 300), Purpose, (0, 1, 5))
    ]
    together = np.concatenate(found)
    assert len(np.unique(together)) == len(together)
    assert stats.kstest(together, "uniform").pvalue > 1e-5
    firsts = np.array([RandomStream(0).uniform(position, Purpose.BONUS, 1)[0] for position in range(2000)])
    assert stats.kstest(firsts, "uniform").pvalue > 1e-5
    assert abs(np.corrcoef(firsts[:-1], firsts[1:])[0, 1]) < 0.1, "numbers of neighbouring positions are independent"


def test_numbers_of_a_seed_are_the_same_on_every_machine() -> None:
    """Reference values: a change of these numbers changes all sampled text and must be announced."""
    assert RandomStream(7).uniform(12, Purpose.ACCEPT, 3, 1).tolist() == PINNED


def test_numbers_without_an_address_depend_on_the_seed() -> None:
    assert (seeded_uniforms(3, 20)[:5] == seeded_uniforms(3, 5)).all()
    assert not (seeded_uniforms(3, 5) == seeded_uniforms(4, 5)).any()
