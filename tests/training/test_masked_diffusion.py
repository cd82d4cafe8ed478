"""The recipe `diffusion-target`: its loss, its batches, and a model that `llada` decodes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from workbench.engine import Engine, Request
from workbench.methods import registry
from workbench.models.bundle import DEFAULT_TARGET, bundled
from workbench.models.loading import load_models
from workbench.training.masked_diffusion import (
    LEAST_MASKED,
    AnswerWindows,
    MaskedDiffusionOptions,
    first_layers,
    masked_loss,
)
from workbench.training.recipes import RECIPES
from workbench.training.tokenizer import load_tokenizer

pytestmark = pytest.mark.skipif(DEFAULT_TARGET not in bundled(), reason="needs the bundled models")


class Fixed(torch.nn.Module):
    """A model whose hidden states are one-hot inputs, so that its logits are known."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.seen: list[torch.Tensor] = []
        self.lm_head = torch.nn.Linear(vocabulary, vocabulary, bias=False)
        torch.nn.init.eye_(self.lm_head.weight)

    def model(self, ids: torch.Tensor, **options: Any) -> Any:
        self.seen.append(ids)
        assert not options["attention_mask"].any(), "no position is hidden from another"
        return SimpleNamespace(last_hidden_state=torch.nn.functional.one_hot(ids, self.lm_head.in_features).float())


def test_the_loss_counts_masked_answer_tokens_by_the_state_before_them() -> None:
    vocabulary, mask = 9, 8
    ids, prompts = torch.tensor([[1, 2, 3, 4, 5], [5, 4, 3, 2, 1]]), torch.tensor([2, 3])
    model, expected = Fixed(vocabulary), 0.0
    loss = masked_loss(model, ids, prompts, mask, torch.Generator().manual_seed(4))  # type: ignore[arg-type]
    (seen,) = model.seen
    assert (seen[0, :2] == ids[0, :2]).all(), "the prompt is never masked"
    assert (seen[1, :3] == ids[1, :3]).all()
    assert (seen == mask).any()
    share = LEAST_MASKED + (1 - LEAST_MASKED) * torch.rand(2, 1, generator=torch.Generator().manual_seed(4))
    for row in range(2):
        for at in range(int(prompts[row]), 5):
            if seen[row, at] == mask:
                logits = torch.nn.functional.one_hot(seen[row, at - 1], vocabulary).float()
                cost = -float(logits.log_softmax(0)[ids[row, at]])
                expected += cost / float(share[row]) / (5 - int(prompts[row])) / 2
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-2)  # bfloat16 products


def test_windows_are_problems_padded_with_the_end_token() -> None:
    tokenizer: Any = load_tokenizer(bundled()[DEFAULT_TARGET])
    windows = AnswerWindows(tokenizer, MaskedDiffusionOptions(tasks=("json",), rows=4, longest=96))
    ids, prompts = windows.batch(3)
    assert len(ids) == 4
    assert 48 <= ids.shape[1] <= 96
    for row, n in zip(ids.tolist(), prompts.tolist(), strict=True):
        assert tokenizer.decode(row[:n]).endswith("<|assistant|>")
        answer = row[n:]
        end = answer.index(windows.end)
        assert set(answer[end:]) == {windows.end}
        assert tokenizer.decode(answer[:end]).startswith("{")
    again, _ = windows.batch(3)
    assert again.shape == ids.shape


def test_it_starts_from_the_first_layers_of_the_target() -> None:
    model: Any = first_layers(2)
    assert model.config.num_hidden_layers == len(model.model.layers) == 2
    whole: Any = load_models(DEFAULT_TARGET, None, "cpu", "float32").target.model
    assert torch.equal(model.model.layers[1].mlp.up_proj.weight, whole.model.layers[1].mlp.up_proj.weight)


@pytest.mark.slow
def test_a_trained_model_is_decoded_by_llada(tmp_path: Path) -> None:
    options = MaskedDiffusionOptions(
        out=tmp_path / "model", checkpoint=None, minutes=None, steps=2, rows=2, tasks=("json",), held=1, longest=96
    )
    lines = list[str]()
    figures = RECIPES["diffusion-target"].run(options, lines.append)
    assert set(figures["held"]) == {"json"}
    models = load_models(str(options.out), None, "cpu", "float32")
    assert models.mask_token is not None
    assert models.predicts_next
    trace = Engine(models).generate(Request("Turn this", registry.get("llada"), max_new_tokens=12, stop_at_eos=False))
    assert len(trace.token_ids) == 12
    assert models.mask_token not in trace.token_ids
    text = (options.out / "README.md").read_text(encoding="utf-8")
    assert f"{figures['parameters']:,} parameters" in text
    assert "| json |" in text
