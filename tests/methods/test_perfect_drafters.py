"""Quality alarms: drafts of a perfect drafter are always accepted completely, for every tree and head.

An exact verifier hides a wrong position, a stale state or a child at the wrong parent: the text stays right and only τ
falls. Here every round must emit depth + 1 tokens. Distributions are peaked, so each tree has the most likely path.
"""

from __future__ import annotations

from typing import Any

import model_helpers
import pytest
import torch
from torch import Tensor
from vision_model_helpers import IMAGE, noise_image, tiny_vision_models

from workbench.core.sampling import SamplingParams
from workbench.decoders import ConfiguredMethod
from workbench.engine import Engine, Models, Request, Runner
from workbench.engine.image_inputs import process_prompt
from workbench.methods import registry
from workbench.methods.block_diffusion.drafter import BlockNet
from workbench.methods.common.feature_net import FeatureNet
from workbench.methods.falcon.drafter import FalconNet
from workbench.methods.flash.drafter import FlashNet
from workbench.methods.fspad.drafter import FSPADNet
from workbench.methods.kangaroo.drafter import ExitAdapter
from workbench.methods.medusa.drafter import MedusaState

DEPTH, TOKENS, EXIT = 3, 33, 1
PEAKED = 40.0
"""Factor of the LM head's weights: the most likely token then has nearly all of the probability."""
PROMPT = model_helpers.random_prompt(9)
CHOSEN = ("draft-tree", "rasd", "omnidraft")
"""Methods with deterministic siblings: at temperature 1 the target may sample another token."""
IMAGE_SETTINGS = {"chain": {"policy": "fixed"}, "tree": {"policy": "dynamic-tree", "path_threshold": 0.02}}
TESTED = [method for method in registry.catalogue_methods() if method.testing.perfect is not None]
COPIES = [method.name for method in TESTED if method.head is None]
"""Methods whose drafter can be the target itself. A copy has q = p, so that its samples are always accepted."""
HEADS = [method.name for method in TESTED if method.head is not None]
"""Methods whose drafter predicts from the target's hidden states."""


def test_every_method_has_an_alarm_or_a_reason() -> None:
    for method in registry.catalogue_methods():
        assert (method.testing.perfect is None) is bool(method.testing.no_perfect_reason), method.name
    assert len(COPIES) > 5
    assert len(HEADS) > 5


def perfect(name: str) -> ConfiguredMethod:
    """Return a method with a drafter that is never wrong."""
    method = registry.get(name)
    return method.with_params(depth=DEPTH, **method.testing.perfect or {})


def peaked(models: Models) -> Models:
    """Make the models' distributions more peaked, in place."""
    for runner in {id(r): r for r in (models.target, models.drafter) if r is not None}.values():
        weight: Any = runner.lm_head.weight
        weight.data.mul_(PEAKED)
    return models


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, device: str) -> Models:
    """A target, its copy as drafter, and heads."""
    return peaked(model_helpers.make_models("llama", noise=0.0, device=device, heads=tmp_path_factory.mktemp("medusa")))


def lengths(models: Models, request: Request) -> set[int]:
    """Return the numbers of tokens that the rounds emitted, without the last one, which the end of the text cuts."""
    trace = Engine(models).generate(request)
    assert trace.footer.error == ""
    found = [len(r.emitted) for r in trace.rounds[:-1]]
    assert len(found) > 4
    return set(found)


@pytest.mark.parametrize(
    ("name", "temperature"), [(name, t) for name in COPIES for t in (0.0, 1.0) if t == 0 or name not in CHOSEN]
)
def test_copy_of_the_target_is_accepted_completely(name: str, temperature: float, models: Models) -> None:
    sampling = SamplingParams(temperature)
    assert lengths(models, Request(PROMPT, perfect(name), sampling, TOKENS, stop_at_eos=False)) == {DEPTH + 1}


@pytest.mark.parametrize("form", IMAGE_SETTINGS)
def test_copy_with_image_input_is_accepted_completely(form: str, device: str) -> None:
    models, shared_copy = (peaked(tiny_vision_models(vocabulary=20, device=device)) for _ in range(2))
    models.target, models.drafter = (Runner(m.target.model, m.target.context) for m in (models, shared_copy))
    models.drafter_processor = models.processor
    picture = noise_image(3)
    text, images = process_prompt(models, f"abc{IMAGE}deab", (picture,))
    method = registry.get("vlm-draft").with_params(depth=DEPTH, **IMAGE_SETTINGS[form])
    request = Request(
        text, method, max_new_tokens=TOKENS, image_inputs=images, pil_images=(picture,), stop_at_eos=False
    )
    assert lengths(models, request) == {DEPTH + 1}


class GreedyTextOracle:
    """The target's greedy text and the LM head's inputs at each of its positions."""

    def __init__(self, models: Models) -> None:
        model: Any = models.target.model
        self.text = [*PROMPT, *model_helpers.hf_greedy(model, PROMPT, TOKENS + 8)]
        with torch.inference_mode():
            ids = torch.tensor([self.text], device=model.device)
            read = model.model(ids, use_cache=False, output_hidden_states=True)
        self.features, self.exits = read.last_hidden_state[0], read.hidden_states[EXIT][0]  # [n, D]
        self.vocabulary = models.target.vocab_size

    def places(self, states: Tensor, among: Tensor | None = None) -> Tensor:
        """Return the positions with these hidden states, [*b, D] → [*b]; the last position if there is none."""
        distance = (states.unsqueeze(-2) - (self.features if among is None else among)).norm(dim=-1)
        nearest = distance.min(-1)
        return torch.where(nearest.values < 1e-6, nearest.indices, len(self.text) - 1)

    def after(self, places: Tensor, ahead: int) -> Tensor:
        """Return the features `ahead` positions after the given ones, [*b] → [*b, D]."""
        return self.features[(places + ahead).clamp_max(len(self.text) - 1)]


@pytest.mark.parametrize("name", HEADS)
def test_perfect_heads_are_accepted_completely(name: str, models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    """The heads find their position from the state or position that they get, so that a wrong one is detected."""
    oracle = GreedyTextOracle(models)

    def medusa(self: MedusaState, hidden: Tensor) -> Tensor:
        k = len(self.net.heads)
        wanted = oracle.places(hidden).unsqueeze(1) + 2 + torch.arange(k, device=hidden.device)
        ids = torch.tensor(oracle.text, device=hidden.device)[wanted.clamp_max(len(oracle.text) - 1)]
        return 9.0 * torch.nn.functional.one_hot(ids, oracle.vocabulary).double()

    def layer(self: FeatureNet, x: Tensor, positions: Tensor, mask: Any = None, kv_cache: Any = None) -> Tensor:
        if kv_cache is not None:
            kv_cache.append(x.new_zeros(2, 1, self.heads, x.shape[1], self.head_size))
        return oracle.after(positions, 1).unsqueeze(0)

    def ahead(self: FalconNet, x: Tensor, positions: Tensor, mask: Any = None, kv_cache: Any = None) -> Tensor:
        layer(self, x, positions, mask, kv_cache)
        return oracle.after(positions, self.block).unsqueeze(0)

    def futures(self: FlashNet, state: Tensor) -> Tensor:
        here = oracle.places(state)
        return torch.stack([oracle.after(here, i) for i in range(self.ahead)], -2)

    def adapter(self: ExitAdapter, x: Tensor, positions: Tensor, kv_cache: Any = None) -> Tensor:
        if kv_cache is not None:
            kv_cache.append(x.new_zeros(2, 1, self.heads, x.shape[1], self.head_size))
        here = oracle.places(x[0], oracle.exits)
        return oracle.features[torch.where(here == positions, here, 0)].unsqueeze(0)

    def block(self: BlockNet, x: Tensor, positions: Tensor, text_kv: Any, mask: Any = None) -> Tensor:
        return oracle.after(positions, -1).unsqueeze(0)

    monkeypatch.setattr(MedusaState, "head_logits", medusa)
    monkeypatch.setattr(BlockNet, "forward", block)
    monkeypatch.setattr(ExitAdapter, "forward", adapter)
    monkeypatch.setattr(FeatureNet, "forward", layer)
    monkeypatch.setattr(FalconNet, "forward", ahead)
    monkeypatch.setattr(
        FSPADNet, "lm_head_input", lambda self, state: state
    )  # it is untrained and would change the prediction
    monkeypatch.setattr(FlashNet, "futures", futures)
    assert lengths(models, Request(PROMPT, perfect(name), max_new_tokens=TOKENS, stop_at_eos=False)) == {DEPTH + 1}
