"""Matrix products with tiles (AMX): accuracy of two bfloat16 halves, without any effect on torch's own tiles."""

from __future__ import annotations

from typing import no_type_check

import numba
import numpy as np
import pytest
import torch

from workbench.kernels import compilation

pytestmark = pytest.mark.skipif(not compilation.may_compile(), reason="passes are compiled on Linux on x86-64")
INPUTS, OUTPUTS = 96, 80


@pytest.fixture(autouse=True)
def _tiles() -> None:
    if not compilation.may_use_tiles():
        pytest.skip("a processor without AMX")


def by_tiles(x: np.ndarray, weight: torch.Tensor, out: np.ndarray, is_dealt: bool = False, add: bool = False) -> None:
    """Compute out = x Wᵀ, or add it to out, in one pass."""
    from workbench.kernels.compiled import amx_tiles, layer_steps
    from workbench.kernels.compiled.llvm import TILES

    (outputs, n), rows = weight.shape, x.shape[0]
    packed, before = layer_steps.room(TILES, rows, n), amx_tiles.begin(True, rows)
    given = x.copy()
    if is_dealt:
        layer_steps.to_even_odd_order(x, given)
    come = layer_steps.ready(TILES, given, given if is_dealt else np.empty_like(x), packed)
    layer_steps.product(
        TILES, weight.data_ptr(), n, 0, outputs, come, rows, out.ctypes.data, out.shape[1], 0, int(add)
    )  # fmt: skip
    amx_tiles.end(before)


def random_operands(rows: int, seed: int = 0) -> tuple[np.ndarray, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(OUTPUTS, INPUTS, generator=generator).to(torch.bfloat16)
    return torch.randn(rows, INPUTS, generator=generator).numpy(), weight


@pytest.mark.parametrize("rows", [1, 2, 7, 15, 16, 17, 31, 33, 40, 64, 127])
def test_product_is_as_accurate_as_two_bfloat16_halves(rows: int) -> None:
    x, weight = random_operands(rows)
    exact, size = x.astype(np.float64) @ weight.double().numpy().T, np.abs(x) @ weight.float().abs().numpy().T
    for is_dealt in (False, True):
        out = np.full((rows + 1, OUTPUTS + 3), 7.0, np.float32)
        by_tiles(x, weight, out, is_dealt)
        assert (np.abs(out[:rows, :OUTPUTS] - exact) <= 2**-17 * size).all()  # with one half only: 2⁻⁹
        assert (out[rows] == 7).all()
        assert (out[:, OUTPUTS:] == 7).all()  # memory beside it is unchanged
        before = out.copy()
        by_tiles(x, weight, out, is_dealt, add=True)
        assert np.array_equal(out[:rows, :OUTPUTS], 2 * before[:rows, :OUTPUTS])


def test_product_of_a_row_does_not_depend_on_other_rows() -> None:
    x, weight = random_operands(127)
    alone = np.empty((127, OUTPUTS), np.float32)
    for row in range(127):
        by_tiles(x[row : row + 1], weight, alone[row : row + 1])
    for rows in (2, 13, 16, 17, 32, 50, 127):
        out = np.empty((rows, OUTPUTS), np.float32)
        by_tiles(x[:rows], weight, out)
        assert np.array_equal(out, alone[:rows])


def test_inf_and_nan_stay_in_their_row() -> None:
    x, weight = random_operands(3)
    out, spoiled = np.empty((3, OUTPUTS), np.float32), np.empty((3, OUTPUTS), np.float32)
    by_tiles(x, weight, out)
    x[1, 5], x[1, 6] = np.inf, np.nan
    by_tiles(x, weight, spoiled)
    assert not np.isfinite(spoiled[1]).any()
    assert np.array_equal(spoiled[[0, 2]], out[[0, 2]])


def test_tile_configuration_of_a_thread_is_restored() -> None:
    """Other code in this thread that uses tiles may rely on it."""
    from workbench.kernels.compiled import amx_tiles

    @numba.njit
    @no_type_check
    def within(theirs: np.ndarray, seen: np.ndarray) -> None:
        before = amx_tiles.begin(True, 5)
        amx_tiles.configure(theirs.ctypes.data)
        inner = amx_tiles.begin(True, 7)
        amx_tiles.store_config(seen[0].ctypes.data)
        amx_tiles.end(inner)
        amx_tiles.store_config(seen[1].ctypes.data)
        amx_tiles.end(before)

    theirs, seen = np.zeros(amx_tiles.CONFIG, np.uint8), np.zeros((2, amx_tiles.CONFIG), np.uint8)
    theirs[0], theirs[16], theirs[48] = 1, 24, 11  # one tile of 11 rows of 24 bytes
    within(theirs, seen)
    assert not np.array_equal(seen[0], theirs)
    assert np.array_equal(seen[1], theirs)
