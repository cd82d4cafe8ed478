"""How threads that run one function on the same arrays share its work: each takes the next piece that nobody has.

A phase is int64 [2], zeros: pieces that were taken, pieces that are done.
"""

from __future__ import annotations

from typing import no_type_check

from numba import njit

from workbench.kernels.compiled.instructions import fetch_add, give_way

_SPINS = 4000
"""Looks at a phase that others have not ended, after which a core is left to whoever wants it."""


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def take(phase, pieces):
    """The next piece of a phase, or −1."""
    piece = fetch_add(phase.ctypes.data, 1)
    return piece if piece < pieces else -1


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def done(phase):
    """One piece more is done."""
    fetch_add(phase.ctypes.data + 8, 1)


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def wait(phase, pieces):
    """Until all pieces are done, whoever has them."""
    spins = 0
    while fetch_add(phase.ctypes.data + 8, 0) < pieces:
        spins += 1
        if spins > _SPINS:
            give_way()
