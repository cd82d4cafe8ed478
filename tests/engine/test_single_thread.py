"""What is written without torch's threads is what torch would write."""

from __future__ import annotations

import pytest
import torch

from workbench.kernels.single_thread import allocate_lazy_zeros, fill_single_threaded, move_single_threaded

TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@pytest.mark.parametrize("dtype", TYPES)
def test_a_tensor_is_filled(dtype: torch.dtype) -> None:
    for value in (-torch.inf, 0.0, 1.5):
        tensor = torch.zeros(3, 5, dtype=dtype)
        assert fill_single_threaded(tensor, value) is tensor
        assert torch.equal(tensor, torch.full_like(tensor, value))


@pytest.mark.parametrize("dtype", TYPES)
def test_entries_are_moved_as_they_were_before(dtype: torch.dtype) -> None:
    """A path goes to the places in front of it, some of which it comes from."""
    whole = torch.randn(2, 2, 3, 2, 9, 4).to(dtype)
    wanted = whole.clone()
    part = whole[:, :, 1]
    wanted[:, :, 1, :, 3:6] = whole[:, :, 1].index_select(3, torch.tensor([3, 5, 8]))
    move_single_threaded(part, [3, 5, 8], 3)
    assert torch.equal(whole, wanted), "and the other rows are as they were"


@pytest.mark.parametrize("dtype", TYPES)
def test_zeros_that_nobody_touched_are_zeros_of_their_type(dtype: torch.dtype) -> None:
    made = allocate_lazy_zeros((2, 3, 5), torch.empty(0, dtype=dtype))
    assert torch.equal(made, torch.zeros(2, 3, 5, dtype=dtype))
    assert made.dtype is dtype
    assert made.is_contiguous()
    assert made.data_ptr() % 64 == 0, "as torch's own"
    made[1] = 2.0
    assert float(made.sum()) == 30.0
