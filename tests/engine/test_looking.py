"""The compiled look at wide laws, beside the plain one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from workbench.core.sampling import BLOCK, WIDE, SamplingParams, law
from workbench.engine import fused, looking
from workbench.engine.looking import ALONE, TOP, look

pytestmark = pytest.mark.skipif(not fused.may_compile(), reason="passes are compiled on Linux on x86-64")
WARM = SamplingParams(temperature=0.7)


@pytest.mark.parametrize(
    "sampling", [SamplingParams(), WARM, replace(WARM, top_k=3), replace(WARM, min_p=1.0)], ids=str
)
@pytest.mark.parametrize("size", [WIDE + 3 * BLOCK, WIDE + 37])
@pytest.mark.parametrize("n", [1, ALONE + 3])
def test_compiled_and_not_it_sees_the_same(
    n: int, size: int, sampling: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = 3 * torch.randn(n, size, generator=torch.Generator().manual_seed(n))
    logits[:, 5] = -torch.inf
    p = logits.softmax(1) if sampling.greedy else law(logits, sampling)
    asked: list[str] = []
    really = fused.compiled
    monkeypatch.setattr(looking, "compiled", lambda part: (asked.append(part), really(part))[1])
    p_top, top, entropy = look(logits, p, sampling)
    assert asked == ["laws"]
    monkeypatch.setenv("WORKBENCH_COMPILED", "0")
    plainly, likeliest, wanted = look(logits, p, sampling)
    assert p_top.tolist() == plainly.tolist()
    held = plainly > 0
    assert top[held].tolist() == likeliest[held].tolist()
    assert top.shape == (n, TOP)
    torch.testing.assert_close(entropy, wanted, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(entropy, torch.special.entr(p.double()).sum(1).float(), atol=2e-5, rtol=1e-5)


def test_a_law_that_is_none_shows_in_its_entropy() -> None:
    logits = torch.full((1, WIDE), torch.nan)
    assert look(logits, logits.softmax(1), SamplingParams())[2].isnan().all()


def test_other_dtypes_are_looked_at_plainly() -> None:
    logits = torch.randn(2, WIDE, dtype=torch.float64)
    p_top, _, entropy = look(logits, logits.softmax(1), SamplingParams())
    assert p_top.dtype == entropy.dtype == torch.float64
