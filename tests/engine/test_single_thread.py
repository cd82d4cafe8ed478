"""Single-threaded replacements of torch functions give the same results."""

from __future__ import annotations

import pytest
import torch

from workbench.kernels.single_thread import allocate_lazy_zeros, fill_single_threaded, move_single_threaded

TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@pytest.mark.parametrize("dtype", TYPES)
def test_fill_equals_torch(dtype: torch.dtype) -> None:
    for value in (-torch.inf, 0.0, 1.5):
        tensor = torch.zeros(3, 5, dtype=dtype)
        assert fill_single_threaded(tensor, value) is tensor
        assert torch.equal(tensor, torch.full_like(tensor, value))


@pytest.mark.parametrize("dtype", TYPES)
def test_moved_entries_keep_their_values(dtype: torch.dtype) -> None:
    """A path moves to positions before it, which may overlap with its own."""
    whole = torch.randn(2, 2, 3, 2, 9, 4).to(dtype)
    wanted = whole.clone()
    part = whole[:, :, 1]
    wanted[:, :, 1, :, 3:6] = whole[:, :, 1].index_select(3, torch.tensor([3, 5, 8]))
    move_single_threaded(part, [3, 5, 8], 3)
    assert torch.equal(whole, wanted), "the other sequences are unchanged"


@pytest.mark.parametrize("dtype", TYPES)
def test_lazily_allocated_zeros_are_zeros_of_their_dtype(dtype: torch.dtype) -> None:
    made = allocate_lazy_zeros((2, 3, 5), torch.empty(0, dtype=dtype))
    assert torch.equal(made, torch.zeros(2, 3, 5, dtype=dtype))
    assert made.dtype is dtype
    assert made.is_contiguous()
    assert made.data_ptr() % 64 == 0, "equal to torch's"
    made[1] = 2.0
    assert float(made.sum()) == 30.0
