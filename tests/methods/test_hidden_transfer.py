"""Hidden transfer: predictions of pseudo hidden states, the layer where they enter, and equality with a plain pass."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import model_helpers
import pytest
import torch
from methods.test_drafts import drafts
from torch import Tensor
from transformers import DynamicCache

from workbench.core.sampling import SamplingParams
from workbench.engine import Engine, Models, Request
from workbench.methods import registry
from workbench.methods.hidden_transfer.drafter import Transfers
from workbench.methods.hidden_transfer.train import run_probes
from workbench.models.loading import HeadInfo
from workbench.training.family.in_pass import ProbeAnchors, guesses
from workbench.training.heads.artefact import save_net

PROMPT = [3, 1, 4, 1, 5]
LAYERS = 3


def make_models(folder: Path, layer: int = 1, transfers: int = 3, **more: Any) -> Models:
    """Return models with six tokens, three layers and untrained matrices; float64."""
    models = model_helpers.make_small_models(6, noise=None, num_hidden_layers=LAYERS, **more)
    net = Transfers(models.target.hidden_size, transfers, layer)
    generator = torch.Generator().manual_seed(0)
    for weight in net.parameters():
        torch.nn.init.normal_(weight, std=0.5, generator=generator)
    info = save_net(net, folder, models.target_name, torch.float32)
    models.heads[Transfers.kind] = HeadInfo("tiny", folder, info)
    return models


def streams(model: Any, text: Sequence[int]) -> list[Tensor]:
    """Return the residual stream after 0, 1, … L layers at each position, by a plain pass, without the final norm."""
    found = list[Tensor]()
    hooks = [layer.register_forward_hook(lambda m, a, out: found.append(out)) for layer in model.model.layers]
    try:
        model.model(torch.tensor([text]), use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return [model.get_input_embeddings()(torch.tensor([text])), *found]


@torch.inference_mode()
def pseudo_state_logits(models: Models, net: Transfers, text: Sequence[int], n: int) -> Tensor:
    """Return the target's logits at the last of n pseudo states after a text; [V].

    Computed by hand: the text and the pseudo states pass the upper layers as one text of length `len(text) + n`.
    """
    model: Any = models.target.model
    below = streams(model, text)[net.transfer_layer]
    x = torch.cat([below, torch.stack([weight.double() @ below[0, -1] for weight in net.parameters()])[None, :n]], 1)
    places = torch.arange(x.shape[1])[None]
    unseen = torch.full((x.shape[1], x.shape[1]), torch.finfo(x.dtype).min, dtype=x.dtype).triu(1)[None, None]
    rope = model.model.rotary_emb(x, places)
    for layer in model.model.layers[net.transfer_layer :]:
        x = layer(x, attention_mask=unseen, position_ids=places, position_embeddings=rope)
    return model.lm_head(model.model.norm(x))[0, -1]


@pytest.mark.parametrize("layer", [1, 2, LAYERS])
@pytest.mark.parametrize("grower", ["template", "dynamic-sparse"])
def test_predictions_equal_a_plain_pass_over_text_and_pseudo_states(grower: str, layer: int, tmp_path: Path) -> None:
    """The pseudo states were probe positions after a node of a tree; the newest token was not committed yet."""
    models, levels = make_models(tmp_path, layer), set[int]()
    more = {"nodes": 12} if grower == "template" else {"places": 30, "counts_time": False}
    for draft in drafts(models, "hidden-transfer", SamplingParams(), depth=3, grower=grower, **more):
        for node, token, path in draft.nodes():
            wanted = pseudo_state_logits(models, draft.state.net, draft.committed[:-1], len(path) + 1).softmax(0)[token]
            assert draft.tree.score is not None
            assert float(draft.tree.score[node]) == pytest.approx(float(wanted), rel=1e-5), (node, path)
            levels.add(len(path))
    assert levels >= {0, 1}
    assert levels == {0, 1, 2} or grower != "template"


def test_after_the_last_layer_they_equal_linear_medusa_heads(tmp_path: Path) -> None:
    """No layer remains, so that a prediction is the LM head's output for a matrix times the last state."""
    models = make_models(tmp_path, LAYERS)
    model: Any = models.target.model
    for draft in drafts(models, "hidden-transfer", SamplingParams(), depth=3, grower="template", nodes=12):
        with torch.inference_mode():
            last = streams(model, draft.committed[:-1])[LAYERS][0, -1]
            heads = model.lm_head(model.model.norm(torch.stack([p @ last for p in draft.state.net.parameters()])))
        for node, token, path in draft.nodes():
            assert draft.tree.score is not None
            assert float(draft.tree.score[node]) == pytest.approx(float(heads.softmax(-1)[len(path), token]), rel=1e-5)


@pytest.mark.parametrize("layer", [1, LAYERS])
def test_kv_cache_equals_a_fresh_prefill(layer: int, tmp_path: Path) -> None:
    """Pseudo states leave no entries in any layer or position."""
    models = make_models(tmp_path, layer)
    engine = Engine(models)
    row = engine.submit(Request(PROMPT, registry.get("hidden-transfer"), max_new_tokens=24, stop_at_eos=False))
    kept = 0
    while not engine.is_idle:
        engine.step()
        if not engine.is_idle and (n := row.cache_slot.length) > len(PROMPT):
            clean = DynamicCache()
            model: Any = models.target.model
            with torch.inference_mode():
                model.model(torch.tensor([row.committed[:n]]), past_key_values=clean, use_cache=True)
            for mine, wanted in zip(models.target.cache.layers, clean.layers, strict=True):
                for part in ("keys", "values"):
                    found, truth = getattr(mine, part)[row.cache_slot.index, :, :n], getattr(wanted, part)[0]
                    torch.testing.assert_close(found, truth, atol=1e-9, rtol=1e-9)
            kept += 1
    assert kept > 4


def test_without_matrices_it_is_plain_decoding(tmp_path: Path) -> None:
    models = make_models(tmp_path, transfers=0)
    method = registry.get("hidden-transfer")
    trace = Engine(models).generate(Request(PROMPT, method, max_new_tokens=12, stop_at_eos=False))
    assert trace.token_ids == model_helpers.hf_greedy(models.target.model, PROMPT, 12)
    assert [(len(r.nodes), len(r.probes)) for r in trace.rounds] == [(0, 0)] * 12


def test_other_sequences_in_the_batch_read_their_own_tokens(tmp_path: Path) -> None:
    """Probes of the sequences: entering at a middle layer, none, tokens, and embeddings of no token."""
    models = model_helpers.make_small_models(6, heads=tmp_path / "heads", num_hidden_layers=LAYERS)
    models.heads |= make_models(tmp_path / "matrices").heads
    names = ("hidden-transfer", "autoregressive", "lookahead", "draft-model", "hidden-transfer", "early-exit")
    requests = [
        Request(PROMPT[: 5 - i % 4], registry.get(name), SamplingParams(1.0), 16, seed=i, stop_at_eos=False)
        for i, name in enumerate(names)
    ]
    assert model_helpers.generate_batched(models, requests) == model_helpers.generate_separately(models, requests)


@pytest.mark.parametrize("layer", [1, LAYERS])
def test_each_pseudo_state_is_trained_on_the_feature_that_decides_its_token(layer: int) -> None:
    """Of tokens 0 … 9, the answer is 4 … 8; after position 3, the first pseudo state is at position 4."""
    models = model_helpers.make_small_models(10, noise=None, num_hidden_layers=LAYERS)
    net = Transfers(models.target.hidden_size, 3, layer).double()
    for weight in net.parameters():
        torch.nn.init.normal_(weight, std=0.5)
    ids, features = torch.arange(10)[None], torch.arange(10.0)[None, :, None].expand(1, 10, 4)
    answer = torch.zeros(1, 10, dtype=torch.bool)
    answer[0, 3:8] = True
    at = torch.tensor([[3, 5, 6]])
    found = list(guesses(net, models.target.model, run_probes, ids, features, ProbeAnchors(at, answer)))
    assert len(found) == 3
    for step, (states, truth) in enumerate(found):
        places = [place for place in at[0].tolist() if place + step + 1 <= 7]
        assert truth[:, 0].tolist() == [place + step + 1 for place in places]
        for place, state in zip(places, states, strict=True):
            wanted = pseudo_state_logits(models, net, list(range(place + 1)), step + 1)
            torch.testing.assert_close(models.target.lm_head(state[0]), wanted, atol=1e-6, rtol=1e-6)


def test_gradients_pass_only_the_upper_layers_and_reach_no_later_position() -> None:
    """Predictions after a position depend on hidden states up to it, and on no other pseudo state."""
    models = model_helpers.make_small_models(10, noise=None, num_hidden_layers=LAYERS)
    model: Any = models.target.model
    net = Transfers(models.target.hidden_size, 2, 1).double()
    answer = torch.ones(1, 8, dtype=torch.bool)
    at, features = torch.tensor([[2, 4]]), torch.zeros(1, 8, 4)

    def guess(ids: list[int]) -> Tensor:
        some = next(iter(guesses(net, model, run_probes, torch.tensor([ids]), features, ProbeAnchors(at, answer))))
        return some[0][:, 0]

    plain, later, earlier = (guess([1, a, 3, b, 5, 6, 7, 8]) for a, b in ((2, 4), (2, 9), (0, 4)))
    torch.testing.assert_close(plain[0], later[0], atol=0, rtol=0)
    assert not torch.allclose(plain[1], later[1])
    assert not torch.allclose(plain[0], earlier[0])
    plain.sum().backward()
    first, second = net.parameters()
    assert first.grad is not None
    assert first.grad.abs().sum() > 0
    assert second.grad is None or not second.grad.any(), (
        "the first prediction does not depend on the second pseudo state"
    )
