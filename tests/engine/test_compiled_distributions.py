"""Compiled functions for distributions over a large vocabulary compared with plain ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import torch

from workbench.core.sampling import BLOCK, WIDE, SamplingParams, to_probs
from workbench.kernels import compilation, distributions
from workbench.kernels.distributions import (
    FEW,
    MAX_SINGLE_THREADED,
    TOP,
    summarise_logits,
    summarise_softmax,
    top_and_entropy,
)

pytestmark = pytest.mark.skipif(not compilation.may_compile(), reason="passes are compiled on Linux on x86-64")
WARM = SamplingParams(temperature=0.7)


@pytest.mark.parametrize(
    "sampling", [SamplingParams(), WARM, replace(WARM, top_k=3), replace(WARM, min_p=1.0)], ids=str
)
@pytest.mark.parametrize("size", [WIDE + 3 * BLOCK, WIDE + 37])
@pytest.mark.parametrize("n", [1, MAX_SINGLE_THREADED + 3])
def test_compiled_and_plain_versions_agree(
    n: int, size: int, sampling: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = 3 * torch.randn(n, size, generator=torch.Generator().manual_seed(n))
    logits[:, 5] = -torch.inf
    p = logits.softmax(1) if sampling.greedy else to_probs(logits, sampling)
    asked: list[str] = []
    really = compilation.load_kernels
    monkeypatch.setattr(distributions, "load_kernels", lambda part: (asked.append(part), really(part))[1])
    p_top, top, entropy = top_and_entropy(logits, p, sampling)
    assert asked == ["distributions"]
    monkeypatch.setenv("WORKBENCH_COMPILED", "0")
    plainly, likeliest, wanted = top_and_entropy(logits, p, sampling)
    assert p_top.tolist() == plainly.tolist()
    held = plainly > 0
    assert top[held].tolist() == likeliest[held].tolist()
    assert top.shape == (n, TOP)
    torch.testing.assert_close(entropy, wanted, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(entropy, torch.special.entr(p.double()).sum(1).float(), atol=2e-5, rtol=1e-5)


def test_nan_probs_give_nan_entropy() -> None:
    logits = torch.full((1, WIDE), torch.nan)
    assert top_and_entropy(logits, logits.softmax(1), SamplingParams())[2].isnan().all()


def test_other_dtypes_use_the_plain_version() -> None:
    logits = torch.randn(2, WIDE, dtype=torch.float64)
    p_top, _, entropy = top_and_entropy(logits, logits.softmax(1), SamplingParams())
    assert p_top.dtype == entropy.dtype == torch.float64


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", [WIDE, WIDE + 37, 5 * WIDE + 300])
@pytest.mark.parametrize("n", [1, MAX_SINGLE_THREADED + 3])
def test_statistics_from_logits_equal_those_of_their_softmax(n: int, size: int, dtype: torch.dtype) -> None:
    logits = (4 * torch.randn(n, size, generator=torch.Generator().manual_seed(n))).to(dtype)
    logits[:, 5], logits[0, 7:] = -torch.inf, logits[0, 7:] - 200
    found = summarise_softmax(logits, TOP)
    assert found is not None
    p = logits.double().softmax(1)
    order = logits.double().sort(dim=1, descending=True, stable=True).indices[:, :TOP]  # of equal logits, the first
    assert found.top.tolist() == order.tolist()
    torch.testing.assert_close(found.p_top.double(), p.gather(1, order), rtol=1e-5, atol=1e-30)
    torch.testing.assert_close(
        found.logs.double(), logits.double().log_softmax(1).gather(1, order), rtol=1e-6, atol=1e-5
    )
    torch.testing.assert_close(found.entropy.double(), torch.special.entr(p).sum(1), atol=2e-6, rtol=1e-5)
    tokens, at = torch.arange(n) + 3, torch.arange(n).flip(0)
    torch.testing.assert_close(found.token_probs(tokens, at).double(), p[at, tokens], rtol=1e-5, atol=1e-30)
    torch.testing.assert_close(found.token_probs(tokens).double(), p[torch.arange(n), tokens], rtol=1e-5, atol=1e-30)


def test_top_tokens_are_distinct_with_few_finite_logits() -> None:
    logits = torch.full((1, WIDE), -torch.inf)
    logits[0, [1999, 3]] = torch.tensor([0.5, 1.0])
    found = summarise_softmax(logits, TOP)
    assert found is not None
    assert found.top.tolist() == [[3, 1999, 0, 1, 2, 4, 5, 6]]
    assert found.p_top[0, 2:].tolist() == [0.0] * (TOP - 2)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_nan_logits_give_nan_entropy(sign: float) -> None:
    logits = torch.randn(1, WIDE)
    logits[0, 700] = sign * torch.nan
    found = summarise_softmax(logits, 1)
    assert found is not None
    assert found.entropy.isnan().all()


def test_greedy_rounds_compute_probs_on_request_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recorded values are the same in both cases."""
    logits = (4 * torch.randn(3, WIDE, generator=torch.Generator().manual_seed(1))).bfloat16()
    logits[1] = logits[1].roll(1)
    seen = summarise_logits(logits, SamplingParams())
    assert not isinstance(seen.probs, torch.Tensor)
    assert seen.best is not None
    assert seen.best.tolist() == logits.float().numpy().argmax(1).tolist()
    torch.testing.assert_close(seen.probs(), logits.float().softmax(1))
    assert seen.probs() is seen.probs()
    monkeypatch.setenv("WORKBENCH_COMPILED", "0")
    plain, tokens, at = summarise_logits(logits, SamplingParams()), torch.tensor([4, 9]), torch.tensor([2, 0])
    assert isinstance(plain.probs, torch.Tensor)
    torch.testing.assert_close(seen.entropy, plain.entropy, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(seen.p_top, plain.p_top, atol=0, rtol=2e-5)
    for rows in (at, None):
        torch.testing.assert_close(seen.token_probs(tokens, rows), plain.token_probs(tokens, rows), atol=0, rtol=2e-5)


def test_compiled_version_declines_unsupported_inputs() -> None:
    assert summarise_softmax(torch.randn(1, WIDE - 1), 1) is None
    assert summarise_softmax(torch.randn(1, WIDE), FEW + 1) is None
    assert summarise_softmax(torch.randn(1, WIDE, dtype=torch.float64), 1) is None


def test_each_requested_part_is_a_compiled_module() -> None:
    """A name without a module would look like a machine without compiled functions, only slower."""
    folder = Path(compilation.__file__).with_name("compiled")
    assert [part for part in get_args(compilation.KernelModule) if not (folder / f"{part}.py").is_file()] == []
