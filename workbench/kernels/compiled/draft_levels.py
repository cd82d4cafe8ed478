"""A level of a feature drafter's tree in one call: its pairs, its layer, its LM head, and what is likeliest.

Pairs are two products: what enters the stream, and what queries, keys and values read beside it; a drafter may have one
of them alone, or neither. Each of the five is shared by threads on its own; one behind the other they need no Python in
between, which for so small a layer costs as much as reading its weights.
"""

from __future__ import annotations

from typing import no_type_check

from numba import njit

from workbench.kernels.compiled.distributions import weigh_halves
from workbench.kernels.compiled.feature_inputs import join
from workbench.kernels.compiled.forward import read_logits, run_layers


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def level(joined, beside, layered, read, weighed):
    """Any number of threads run it on the same arrays. Tuples of the functions' arguments, which share arrays."""
    join(*joined)
    join(*beside)
    run_layers(*layered)
    read_logits(*read)
    weigh_halves(*weighed)


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def list_seen(sees, before, seen, count):
    """Which entries each of n nodes sees: the first `before`, and behind them those where `sees`, bool [n, s], says so.

    Writes `seen`, int32 [n, before + s], in increasing order, and `count`, int64 [n].
    """
    for t in range(sees.shape[0]):
        for j in range(before):
            seen[t, j] = j
        m = before
        for j in range(sees.shape[1]):
            if sees[t, j]:
                seen[t, m] = before + j
                m += 1
        count[t] = m
