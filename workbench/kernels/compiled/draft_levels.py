"""Compute one level of a feature drafter's (EAGLE's) tree in one call: input products, layer, LM head, top tokens.

There are two input products: one gives the input of the residual stream, the other a term that is added to queries,
keys and values. A drafter may have both, one or neither. Threads share the work within each of the five functions. The
functions are called from compiled code, because Python code between them would take as long as reading the weights of
such a small layer.
"""

from __future__ import annotations

from typing import no_type_check

from numba import njit

from workbench.kernels.compiled.distributions import summarise_softmax_bf16
from workbench.kernels.compiled.feature_inputs import join
from workbench.kernels.compiled.forward import read_logits, run_layers


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def level(joined, beside, layered, read, weighed):
    """Compute one level of a feature drafter's (EAGLE's) tree; several threads may call this with the same arrays.

    Each argument is the tuple of arguments of one compiled function: `joined` and `beside` of `feature_inputs.join`
    (residual stream; terms added to queries, keys and values), `layered` of `forward.run_layers`, `read` of
    `forward.read_logits`, `weighed` of `distributions.summarise_softmax_bf16`.
    """
    join(*joined)
    join(*beside)
    run_layers(*layered)
    read_logits(*read)
    summarise_softmax_bf16(*weighed)


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def list_seen(sees, before, seen, count):
    """List the KV-cache entries that each of n nodes of a tree attends to.

    Every node attends to the first `before` entries. `sees`, bool [n, s], says which of the next s entries it attends
    to. Writes the indices of these entries to `seen`, int32 [n, before + s], in increasing order, and their number to
    `count`, int64 [n].
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
