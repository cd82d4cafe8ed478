"""Early exit: verification continues from the exit states and gives the same logits as a full forward pass."""

from __future__ import annotations

from collections import Counter
from typing import Any

import model_helpers
import pytest
import torch

from workbench.core.sampling import SamplingParams
from workbench.decoders import ConfiguredMethod
from workbench.engine import Engine, Models, Request, Sequence
from workbench.engine.request import ENDED
from workbench.kernels.layers import decoder_layers
from workbench.kernels.lean import LeanLayer
from workbench.kernels.segment import Segment
from workbench.methods import registry
from workbench.models.runner import Runner

EARLY = registry.get("early-exit")
KINDS = ["llama", "gpt2", "gemma3_text"]
"""A lean decoder; positions added to embeddings; scaled embeddings and sliding windows."""


def run_to_end(models: Models, request: Request) -> Sequence:
    """Run a request to its end in its own engine; return its sequence."""
    engine = Engine(models)
    row = engine.submit(request)
    while row.status not in ENDED:
        engine.step()
    return row


def count_layer_reads(monkeypatch: pytest.MonkeyPatch, runner: Runner) -> Counter[int]:
    """Count, while the run goes on, how many tokens each layer has read, by layer number."""
    read: Counter[int] = Counter()
    plain = LeanLayer.__call__

    def lean(self: LeanLayer, x: Any, rope: Any, mask: Any, store: Any, number: int) -> Any:
        read[number] += x.shape[0]
        return plain(self, x, rope, mask, store, number)

    monkeypatch.setattr(LeanLayer, "__call__", lean)
    for i, layer in enumerate(decoder_layers(runner.model)[1]):
        layer.register_forward_hook(lambda _, args, out, i=i: read.update({i: args[0].shape[0] * args[0].shape[1]}))
    return read


@pytest.mark.parametrize(
    "method",
    [*(EARLY.with_params(exit_layer=2, depth=4, policy=policy) for policy in ("fixed", "confidence")),
     registry.get("del").with_params(policy="fixed", depth=3)],
    ids=["fixed", "confidence", "del"],
)  # fmt: skip
@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_no_layer_reads_a_token_twice_in_a_round(
    kind: str, elsewhere: bool, method: ConfiguredMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `elsewhere`, as on a GPU, draft tokens are looked up later."""
    if elsewhere:
        monkeypatch.setattr("workbench.decoders.draft_verify.round_state.on_host", lambda device: False)
    models = model_helpers.make_models(kind, noise=None)
    engine = Engine(models)
    row = engine.submit(Request(model_helpers.random_prompt(9), method, max_new_tokens=24))
    engine.step()  # the first round also tests whether verification may continue from there
    read, seen = count_layer_reads(monkeypatch, models.target), 0
    n = 2 if method.name == "del" else 3  # DEL runs the LM head through an emptied last layer, which is counted, too
    while row.status not in ENDED:
        before = len(row.trace.rounds) if row.trace else 0
        read.clear()
        tried = dict(models.target._enters)
        engine.step()
        assert row.trace is not None
        for made in row.trace.rounds[before:] if tried == models.target._enters else []:
            seen += 1
            assert [read[i] for i in range(n)] == [len(made.nodes) + 1] * n
    assert seen > 3


@pytest.mark.parametrize("kind", KINDS)
def test_logits_from_exit_states_equal_those_of_the_whole_model(kind: str) -> None:
    target = model_helpers.make_models(kind, noise=None).target
    slots = [target.open() for _ in range(3)]
    for slot, length in zip(slots, (7, 5, 9), strict=True):
        target.prefill(slot, model_helpers.random_prompt(length, seed=length))
    asked = [slots[0], slots[2]]  # the other sequence runs at the same time
    tokens = [torch.tensor([3, 1, 4, 1]), torch.tensor([5, 9])]
    whole = target.forward([Segment(s, t) for s, t in zip(asked, tokens, strict=True)], capture_layers={2})
    for layer in (1, 2):
        for _ in range(2):  # tested at the first call, trusted at the second
            for slot in asked:
                slot.scratch = 0
            given = [Segment(s, t) for s, t in zip(asked, tokens, strict=True)]
            exits = target.exit_states(given, layer)
            for slot in asked:
                slot.scratch = 0
            behind = [
                Segment(s, t, states=exits[b, : len(t)]) for b, (s, t) in enumerate(zip(asked, tokens, strict=True))
            ]
            out = target.forward_from(behind, layer, capture_layers={2})
        assert target._enters == dict.fromkeys(range(1, layer + 1), True)
        for b, t in enumerate(tokens):
            n = len(t)
            assert float((out.logits[b, :n] - whole.logits[b, :n]).abs().max()) <= 1e-12
            assert float((out.layer_states[2][b, :n] - whole.layer_states[2][b, :n]).abs().max()) <= 1e-12


def test_model_that_cannot_continue_from_exit_states_runs_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    models = model_helpers.make_models("gpt2", noise=None)
    prompt = model_helpers.random_prompt(9)
    wanted = model_helpers.hf_greedy(models.target.model, prompt, 16)
    plain = Runner.forward

    def spoiled(self: Runner, batch: Any, *args: Any, **named: Any) -> Any:
        given = [s for s in batch if s.states is not None]
        for segment in given:
            segment.states = segment.states.flip(-1)
        assert not (given and self._enters.get(2) is False), "it used exit states again after the self-test had failed"
        return plain(self, batch, *args, **named)

    monkeypatch.setattr(Runner, "forward", spoiled)
    row = run_to_end(models, Request(prompt, EARLY.with_params(exit_layer=2), max_new_tokens=16, stop_at_eos=False))
    assert models.target._enters == {2: False}
    assert row.committed[len(prompt) :] == wanted


@pytest.mark.parametrize("kind", KINDS)
def test_sequences_with_different_exit_layers_share_a_round(kind: str) -> None:
    models = model_helpers.make_models(kind, noise=None)
    engine = Engine(models)
    methods = [
        EARLY.with_params(exit_layer=1, depth=3),
        registry.get("prompt-lookup").with_params(),
        EARLY.with_params(exit_layer=2, depth=5, policy="confidence"),
        EARLY.with_params(exit_layer=3, depth=2),
        registry.get("autoregressive").with_params(),
        EARLY.with_params(exit_layer=1, depth=2),
    ]
    prompts = [model_helpers.repeating_prompt(8 + i, seed=i) for i in range(len(methods))]
    rows = [
        engine.submit(Request(p, m, max_new_tokens=16, stop_at_eos=False))
        for p, m in zip(prompts, methods, strict=True)
    ]
    sampled = engine.submit(
        Request(prompts[0], EARLY.with_params(exit_layer=2), SamplingParams(temperature=0.8), max_new_tokens=16, seed=3)
    )
    while any(row.status not in ENDED for row in [*rows, sampled]):
        engine.step()
    for row, prompt in zip(rows, prompts, strict=True):
        assert row.committed[len(prompt) :] == model_helpers.hf_greedy(models.target.model, prompt, 16)
    assert sampled.committed == run_to_end(models, sampled.request).committed
