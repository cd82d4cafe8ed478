"""Share work between threads that run one function on the same arrays: each takes the next free piece.

A phase (a set of pieces that may be processed in any order) is represented by two counters, int64 [2], zeros at first:
number of pieces taken, number of pieces done.
"""

from __future__ import annotations

from typing import no_type_check

from numba import njit

from workbench.kernels.compiled.instructions import fetch_add, give_way

_SPINS = 4000
"""Number of checks of an unfinished phase before the waiting thread yields its core."""


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def take(phase, pieces):
    """Return the index of the next free piece of a phase, or −1 if there is none."""
    piece = fetch_add(phase.ctypes.data, 1)
    return piece if piece < pieces else -1


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def done(phase):
    """Count one more piece of a phase as done."""
    fetch_add(phase.ctypes.data + 8, 1)


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def wait(phase, pieces):
    """Wait until all pieces of a phase are done, whichever threads process them."""
    spins = 0
    while fetch_add(phase.ctypes.data + 8, 0) < pieces:
        spins += 1
        if spins > _SPINS:
            give_way()
