"""Alarms of quality: a drafter that cannot be wrong is accepted to the end, every round, in every tree and head.

A wrong position, a stale state, a child under another parent: exactness hides them all, since the text stays right and
only τ falls. Here it may not: τ is depth + 1. Laws are made peaked, so that every tree holds the likeliest path.
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
from workbench.methods.drafters.block_diffusion import BlockNet
from workbench.methods.drafters.falcon import FalconNet
from workbench.methods.drafters.feature_net import FeatureNet
from workbench.methods.drafters.flash import FlashNet
from workbench.methods.drafters.fspad import FSPADNet
from workbench.methods.drafters.kangaroo import ExitAdapter
from workbench.methods.drafters.medusa import MedusaState

DEPTH, TOKENS, EXIT = 3, 33, 1
PEAKED = 40.0
"""What the LM head is multiplied by: the likeliest token then has nearly all of the law."""
PROMPT = model_helpers.random_prompt(9)
CHOSEN = ("draft-tree", "rasd", "omnidraft")
"""Methods whose siblings are not drawn: at a temperature the target may draw another token."""
IMAGE_SETTINGS = {"chain": {"policy": "fixed"}, "tree": {"policy": "dynamic-tree", "path_threshold": 0.02}}
TESTED = [method for method in registry.catalogue_methods() if method.testing.perfect is not None]
COPIES = [method.name for method in TESTED if method.head is None]
"""Methods whose drafter can be the target itself. A copy's q is p, so that what is drawn from it is always kept."""
HEADS = [method.name for method in TESTED if method.head is not None]
"""Methods whose drafter guesses from the target's states."""


def test_every_method_has_its_alarm_or_a_reason() -> None:
    for method in registry.catalogue_methods():
        assert (method.testing.perfect is None) is bool(method.testing.no_perfect_reason), method.name
    assert len(COPIES) > 5
    assert len(HEADS) > 5


def perfect(name: str) -> ConfiguredMethod:
    """Return a method with a drafter that is never wrong."""
    method = registry.get(name)
    return method.with_params(depth=DEPTH, **method.testing.perfect or {})


def peaked(models: Models) -> Models:
    """The same models with surer laws."""
    for runner in {id(r): r for r in (models.target, models.drafter) if r is not None}.values():
        weight: Any = runner.lm_head.weight
        weight.data.mul_(PEAKED)
    return models


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, device: str) -> Models:
    """A target, its copy as drafter, heads."""
    return peaked(model_helpers.make_models("llama", noise=0.0, device=device, heads=tmp_path_factory.mktemp("medusa")))


def lengths(models: Models, request: Request) -> set[int]:
    """Tokens emitted by each round that the end of the text did not cut."""
    trace = Engine(models).generate(request)
    assert trace.footer.error == ""
    found = [len(r.emitted) for r in trace.rounds[:-1]]
    assert len(found) > 4
    return set(found)


@pytest.mark.parametrize(
    ("name", "temperature"), [(name, t) for name in COPIES for t in (0.0, 1.0) if t == 0 or name not in CHOSEN]
)
def test_a_copy_of_the_target_is_accepted_to_the_end(name: str, temperature: float, models: Models) -> None:
    sampling = SamplingParams(temperature)
    assert lengths(models, Request(PROMPT, perfect(name), sampling, TOKENS, stop_at_eos=False)) == {DEPTH + 1}


@pytest.mark.parametrize("form", IMAGE_SETTINGS)
def test_copy_with_image_input_is_accepted_to_the_end(form: str, device: str) -> None:
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
    """The target's greedy text and what its LM head reads at every place of it."""

    def __init__(self, models: Models) -> None:
        model: Any = models.target.model
        self.text = [*PROMPT, *model_helpers.hf_greedy(model, PROMPT, TOKENS + 8)]
        with torch.inference_mode():
            ids = torch.tensor([self.text], device=model.device)
            read = model.model(ids, use_cache=False, output_hidden_states=True)
        self.features, self.exits = read.last_hidden_state[0], read.hidden_states[EXIT][0]  # [n, D]
        self.vocabulary = models.target.vocab_size

    def places(self, states: Tensor, among: Tensor | None = None) -> Tensor:
        """Where the target had these states, [*b, D] → [*b]. A state that it never had is nowhere."""
        distance = (states.unsqueeze(-2) - (self.features if among is None else among)).norm(dim=-1)
        nearest = distance.min(-1)
        return torch.where(nearest.values < 1e-6, nearest.indices, len(self.text) - 1)

    def after(self, places: Tensor, ahead: int) -> Tensor:
        """Features `ahead` places behind others, [*b] → [*b, D]."""
        return self.features[(places + ahead).clamp_max(len(self.text) - 1)]


@pytest.mark.parametrize("name", HEADS)
def test_perfect_heads_are_accepted_to_the_end(name: str, models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    """They find out where they are by the state or the place that they are given: a wrong one shows."""
    knows = GreedyTextOracle(models)

    def medusa(self: MedusaState, hidden: Tensor) -> Tensor:
        k = len(self.net.heads)
        wanted = knows.places(hidden).unsqueeze(1) + 2 + torch.arange(k, device=hidden.device)
        ids = torch.tensor(knows.text, device=hidden.device)[wanted.clamp_max(len(knows.text) - 1)]
        return 9.0 * torch.nn.functional.one_hot(ids, knows.vocabulary).double()

    def layer(self: FeatureNet, x: Tensor, positions: Tensor, mask: Any = None, kv_cache: Any = None) -> Tensor:
        if kv_cache is not None:
            kv_cache.append(x.new_zeros(2, 1, self.heads, x.shape[1], self.head_size))
        return knows.after(positions, 1).unsqueeze(0)

    def ahead(self: FalconNet, x: Tensor, positions: Tensor, mask: Any = None, kv_cache: Any = None) -> Tensor:
        layer(self, x, positions, mask, kv_cache)
        return knows.after(positions, self.block).unsqueeze(0)

    def futures(self: FlashNet, state: Tensor) -> Tensor:
        here = knows.places(state)
        return torch.stack([knows.after(here, i) for i in range(self.ahead)], -2)

    def adapter(self: ExitAdapter, x: Tensor, positions: Tensor, kv_cache: Any = None) -> Tensor:
        if kv_cache is not None:
            kv_cache.append(x.new_zeros(2, 1, self.heads, x.shape[1], self.head_size))
        here = knows.places(x[0], knows.exits)
        return knows.features[torch.where(here == positions, here, 0)].unsqueeze(0)

    def block(self: BlockNet, x: Tensor, positions: Tensor, text_kv: Any, mask: Any = None) -> Tensor:
        return knows.after(positions, -1).unsqueeze(0)

    monkeypatch.setattr(MedusaState, "head_logits", medusa)
    monkeypatch.setattr(BlockNet, "forward", block)
    monkeypatch.setattr(ExitAdapter, "forward", adapter)
    monkeypatch.setattr(FeatureNet, "forward", layer)
    monkeypatch.setattr(FalconNet, "forward", ahead)
    monkeypatch.setattr(FSPADNet, "lm_head_input", lambda self, state: state)  # untrained, it would say something else
    monkeypatch.setattr(FlashNet, "futures", futures)
    assert lengths(models, Request(PROMPT, perfect(name), max_new_tokens=TOKENS, stop_at_eos=False)) == {DEPTH + 1}
