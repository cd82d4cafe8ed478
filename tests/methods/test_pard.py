"""PARD: one pass guesses what passes mask by mask would, masks leave nothing behind, what is dropped leaves no gap."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import worlds
from torch import Tensor

from workbench.core.sampling import SamplingParams
from workbench.engine import Engine, Request
from workbench.methods import registry
from workbench.methods.drafters.pard import PardNet
from workbench.training.family.pard import columns_of, dropped, guesses

D, N, K = 12, 5, 4
PROMPT = worlds.random_prompt(9)


def net_of() -> PardNet:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return PardNet(D, K, inner=8, inner_heads=2, ffn=16).double()


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_training_guesses_at_once_what_drafting_does_behind_each_pair() -> None:
    """Every column of every mask that is read, whatever was dropped elsewhere."""
    net, pairs = net_of(), drawn(1, N, 8)
    kept = [torch.tensor(columns) for columns in ([0, 1, 3, 4], [1, 4], [4])]
    found = net.unroll(pairs, kept)
    for column in range(N):
        inputs = torch.cat([pairs[:, : column + 1], net.masks(pairs, K - 1)], 1)
        alone = net.widen(net(inputs, torch.arange(column + K))[0, column:])
        for step, columns in enumerate([torch.arange(N), *kept]):
            if (at := (columns == column).nonzero()).numel():
                torch.testing.assert_close(found[step][0, int(at)], alone[step], rtol=0, atol=1e-12)


def test_a_mask_learns_from_its_own_column_and_from_no_later_text() -> None:
    net, pairs = net_of(), drawn(1, N, 8).requires_grad_()
    net.unroll(pairs, [torch.arange(N)] * 2)[2][:, 1].sum().backward()
    assert pairs.grad is not None
    assert (pairs.grad[0].abs().sum(-1) > 0).tolist() == [True, True, False, False, False]
    assert net.mask.grad is not None
    assert net.mask.grad.abs().sum() > 0


def test_conditional_drop_leaves_no_mask_without_the_masks_that_it_sees() -> None:
    """The released code steps on with a remainder, so that the end of a text goes on at its beginning."""
    columns = torch.arange(3, 103)
    found = dropped(columns, 5, torch.Generator().manual_seed(0))
    assert [len(each) for each in found] == [70, 48, 34, 24, 20]
    for earlier, later in zip([columns, *found], found, strict=False):
        assert set(later.tolist()) <= set(earlier.tolist())
        assert later.tolist() == sorted(later.tolist())
    again = dropped(columns, 5, torch.Generator().manual_seed(1))
    assert not torch.equal(found[0], again[0]), "by chance"


def test_each_mask_is_taught_the_token_at_its_own_place() -> None:
    """Of tokens 0 … 9 an answer is 4 … 8; a feature at s decides the token at s + 1. No label wraps around."""
    net, n = PardNet(D, 3, inner=8, inner_heads=2, ffn=16), 10
    features = torch.arange(float(n))[None, :, None].expand(1, n, D)
    answer = torch.zeros(1, n, dtype=torch.bool)
    answer[0, 3:8] = True
    teacher = type("Teacher", (), {"embedding": torch.zeros(n, D)})()
    read: list[list[int]] = []

    def seen(pairs: Tensor, kept: list[Tensor]) -> list[Tensor]:
        read.append([len(each) for each in kept])
        return [torch.arange(float(n - 1))[None, :, None], *(each[None, :, None].float() for each in kept)]

    net.unroll = seen  # type: ignore[method-assign, assignment]
    columns = columns_of(answer)
    assert columns.tolist() == [2, 3, 4, 5, 6]
    found = guesses(net, teacher, torch.arange(n)[None], features, answer, [columns, columns[1:]])  # type: ignore[arg-type]
    assert [guess[:, 0].tolist() for guess, _ in found] == [[2, 3, 4, 5, 6], [2, 3, 4, 5], [3, 4]]
    for step, (guess, truth) in enumerate(found):
        assert truth[:, 0].tolist() == [column + step + 1 for column in guess[:, 0].tolist()]


def test_a_round_is_one_pass_and_leaves_true_entries_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = worlds.world("llama", noise=None, heads=tmp_path / "heads")
    models.target.lm_head.get_parameter("weight").data.mul_(0.2)  # flat laws: untrained drafts are kept now and then
    engine, method = Engine(models), registry.get("pard").with_params(depth=3)
    row = engine.submit(Request(PROMPT, method, SamplingParams(2.0), 30, seed=2, stop_at_eos=False))
    lengths, counts, passes, plain = set(), list[int](), list[int](), PardNet.forward
    monkeypatch.setattr(PardNet, "forward", lambda self, *args: passes.append(1) or plain(self, *args))
    while not engine.idle:
        before = len(row.committed)
        engine.step()
        if row.state is None or len(row.committed) == before:
            continue
        lengths.add(len(row.committed) - before)
        with torch.inference_mode():
            mine = row.state.newest()
            counts.append(len(passes))
            fresh = row.drafter.prime(row, models)
        passes.clear()
        torch.testing.assert_close(mine, fresh.guess, rtol=0, atol=1e-10)
        assert row.state.entries.used == row.state.entries.stable == len(row.committed) - 1
    assert row.error is None
    assert set(counts[1:]) == {1}
    assert {1, 2} <= lengths, "drafts were rejected and accepted"
