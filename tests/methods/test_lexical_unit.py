"""Lexical units: the target's predictions at placeholders are the draft, and no committed token reads a placeholder."""

from __future__ import annotations

from typing import Any

import model_helpers
import pytest
import torch

from workbench.core.sampling import SamplingParams
from workbench.core.tree import DraftTree
from workbench.decoders.draft_verify.verification_input import VerificationInput
from workbench.engine import Engine, Models, Request, Sequence
from workbench.methods import registry
from workbench.methods.lexical_unit.drafter import LexicalUnit, Unit

PROMPT = model_helpers.random_prompt(9)
UNIT = registry.get("lexical-unit")


@pytest.fixture(scope="module")
def models(device: str) -> Models:
    return model_helpers.make_models("llama", noise=None, device=device)


def run(models: Models, n: int = 24, sampling: SamplingParams = SamplingParams(), **params: Any) -> Any:  # noqa: B008
    """Yield a run's sequence after each of its rounds."""
    engine = Engine(models)
    method = UNIT.with_params(**{"policy": "fixed", "depth": 3, "places": 3} | params)
    row = engine.submit(Request(PROMPT, method, sampling, n, stop_at_eos=False))
    while not engine.is_idle:
        before = len(row.committed)
        engine.step()
        if row.slot is not None and len(row.committed) > before:
            yield row
    assert row.error is None


def placeholder_logits(models: Models, text: list[int], blank: int, m: int) -> torch.Tensor:
    """Return the logits at m placeholders after all of a text but its last token, by a plain pass."""
    ids = torch.tensor([[*text[:-1], *[blank] * m]], device=models.target.device)
    with torch.inference_mode():
        return models.target.model(ids, use_cache=False).logits[0, -m:]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_draft_equals_a_plain_pass_over_text_and_placeholders(temperature: float, models: Models) -> None:
    """After each kind of verification result: drafts accepted completely, partly, not at all."""
    ends = set[int]()
    for row in run(models, 40, SamplingParams(temperature)):
        wanted = placeholder_logits(models, row.committed, row.state.drafter.blank, 3)
        torch.testing.assert_close(row.state.drafter.logits, wanted, rtol=0, atol=1e-10)
        ends.add(len(row.trace.rounds[-1].path))
        drawn = row.trace.rounds[-1].signals
        sure = [drawn[f"prediction confidence [placeholder, {j}]"] for j in (1, 2, 3)]
        assert sure == pytest.approx(wanted.float().softmax(1).amax(1).tolist())
    assert len(ends) > 1


def test_greedy_drafts_are_the_most_likely_tokens(models: Models) -> None:
    engine = Engine(models)
    row = engine.submit(Request(PROMPT, UNIT.with_params(policy="fixed", depth=3, places=3), max_new_tokens=30))
    while not row.is_open:
        engine._admit()
    wanted = placeholder_logits(models, PROMPT, row.state.drafter.blank, 3).argmax(1).tolist()
    engine.step()
    assert row.trace is not None
    assert row.trace.rounds[0].nodes.tokens == wanted
    row.cancel()
    engine.step()


def test_placeholder_outside_the_targets_vocabulary_is_the_first_token() -> None:
    """Tokenizers may have more tokens than the model."""
    models = model_helpers.make_models("llama", noise=None, vocab_size=90)
    models.tokenizer = model_helpers.byte_tokenizer()
    assert models.tokenizer.encode("_", add_special_tokens=False) == [ord("_") + 1]
    assert ord("_") + 1 > 90
    for row in run(models, 6):
        assert row.state.drafter.blank == PROMPT[0]


def test_golden_mask_of_two_drafts_and_two_placeholders_each() -> None:
    """By hand: a placeholder attends to the draft up to its own node, to earlier placeholders there, and itself."""
    row = small_sequence()
    probes = LexicalUnit(places=2).probes(row, DraftTree.chain([7, 8]))
    x = [[0, 0, 1, 0, 0, 0, 0, 0], [0, 0, 1, 1, 0, 0, 0, 0],
         [1, 0, 0, 0, 1, 0, 0, 0], [1, 0, 0, 0, 1, 1, 0, 0],
         [1, 1, 0, 0, 0, 0, 1, 0], [1, 1, 0, 0, 0, 0, 1, 1]]  # fmt: skip
    assert probes.attention_mask.int().tolist() == x
    assert probes.depths.tolist() == [1, 2, 2, 3, 3, 4]
    assert probes.parents.tolist() == [-1, 2, 0, 4, 1, 6]
    assert probes.tokens.tolist() == [4] * 6
    assert probes.max_depth == 4
    none = LexicalUnit(places=2).probes(row, DraftTree.empty())
    assert none.attention_mask.int().tolist() == [[1, 0], [1, 1]]
    assert none.parents.tolist() == [-1, 0]


def small_sequence() -> Sequence:
    """Return a sequence whose placeholder is token 4."""
    row = model_helpers.make_sequence(Request([1, 2], UNIT), [1, 2], model_helpers.make_small_models(6, noise=None))
    row.state.drafter = Unit(4)
    return row


def test_placeholders_leave_no_entries_in_the_cache(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    """The committed entries equal a clean prefill's. Negative case: if drafts read placeholders, the text changes."""
    for row in run(models):
        model_helpers.assert_cache_equals_prefill(row)
    text = row.committed
    plain = VerificationInput.segment

    def seen(self: VerificationInput, row: Sequence, of: Models) -> Any:
        made = plain(self, row, of)
        if made.attention_mask is not None:
            made.attention_mask[: 1 + len(self.tree), 1 + len(self.tree) :] = True
        return made

    monkeypatch.setattr(VerificationInput, "segment", seen)
    assert [row.committed for row in run(models)][-1] != text
