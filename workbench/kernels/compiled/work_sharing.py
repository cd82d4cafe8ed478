"""Share work between threads that run one function on the same arrays: each thread takes the next free piece of work.

A phase is a set of pieces of work that may be processed in any order. It has two counters, int64 [2], zeros at first:
number of pieces taken, number of pieces done.
"""

from __future__ import annotations

from typing import no_type_check

from numba import njit

from workbench.kernels.compiled.instructions import fetch_add, give_way

_SPINS = 4000
"""Number of times that a waiting thread checks whether the other threads have finished before it yields its core."""


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def take(phase, pieces):
    """Take the next free piece of work of a phase: return its index, or −1 if no piece is left."""
    piece = fetch_add(phase.ctypes.data, 1)
    return piece if piece < pieces else -1


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def done(phase):
    """Count one more piece of work of a phase as done."""
    fetch_add(phase.ctypes.data + 8, 1)


@njit(nogil=True, cache=True, error_model="numpy")
@no_type_check
def wait(phase, pieces):
    """Wait until all pieces of work of a phase are done, whichever threads process them."""
    spins = 0
    while fetch_add(phase.ctypes.data + 8, 0) < pieces:
        spins += 1
        if spins > _SPINS:
            give_way()
