"""Packed layers give the same products as plain ones, follow weight changes, and can be copied."""

from __future__ import annotations

import copy
import dataclasses

import model_helpers
import pytest
import torch
from torch import nn

from workbench.kernels import packed as packing
from workbench.kernels.packed import WIDENED, Matrix, PackedLinear, pack
from workbench.models.pass_costs import Costs, costs_of


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("rows", "width", "out"), [(1, 288, 768), (5, 288, 768), (1, 768, 288), (5, 768, 288), (3, 32, 64)]
)
@pytest.mark.parametrize("bias", [False, True])
def test_packed_products_equal_plain_ones(dtype: torch.dtype, rows: int, width: int, out: int, bias: bool) -> None:
    plain = nn.Linear(width, out, bias=bias, dtype=dtype).requires_grad_(False)
    packed = pack(copy.deepcopy(plain))
    assert type(packed) is PackedLinear
    x = torch.randn(1, rows, width, generator=torch.Generator().manual_seed(0)).to(dtype)
    tolerance = 1e-5 if dtype == torch.float32 else 3e-2
    torch.testing.assert_close(packed(x), plain(x), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 2, WIDENED - 1, WIDENED, 40])
def test_with_emulated_bfloat16_products_are_right_for_any_number_of_rows(
    rows: int, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "has_bfloat16", lambda: False)
    random = torch.Generator().manual_seed(rows)
    x, add = (torch.randn(rows, width, generator=random).bfloat16() for width in (64, 48))
    linear = nn.Linear(64, 48, bias=bias).bfloat16().requires_grad_(False)
    matrix = Matrix.from_linears(linear)
    wanted = linear.float()(x.float())
    assert matrix(x).dtype == torch.bfloat16
    assert matrix(x).shape == wanted.shape
    assert torch.allclose(matrix(x).float(), wanted, atol=2e-2)
    assert torch.allclose(matrix(x, add).float(), wanted + add, atol=5e-2)


def test_changed_weight_and_copy_are_packed_again() -> None:
    layer = pack(nn.Linear(288, 768, bias=False).requires_grad_(False))
    x = torch.ones(1, 4, 288)
    before = layer(x)
    shared_copy = copy.deepcopy(layer)
    shared_copy.weight.mul_(2)
    torch.testing.assert_close(shared_copy(x), 2 * before)
    torch.testing.assert_close(layer(x), before)
    layer.weight = nn.Parameter(3 * layer.weight, requires_grad=False)
    torch.testing.assert_close(layer(x), 3 * before)


def test_float64_models_are_not_packed() -> None:
    assert type(pack(nn.Linear(8, 8, dtype=torch.float64))) is nn.Linear


def test_costs_are_measured_once_and_interpolated(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    models = model_helpers.make_models("llama")
    costs = costs_of(models)
    assert all(seconds > 0 for seconds in costs.target_s.values())
    assert costs.draft_s > 0
    assert not models.target.slots
    models.shared.clear()
    assert costs_of(models) == costs  # read back from the file
    models.shared.clear()
    deeper = dataclasses.replace(models, target=model_helpers.make_models("llama", num_hidden_layers=5).target)
    assert deeper.target_name == models.target_name
    assert costs_of(deeper) != costs, "another model with the same name, like two folders with the same last part"
    line = Costs({1: 1.0, 4: 4.0, 8: 6.0}, 0.5)
    assert [line.verify_s(n) for n in (1, 2, 4, 6, 8, 16)] == [1.0, 2.0, 4.0, 5.0, 6.0, 12.0]
