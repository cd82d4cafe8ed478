"""Probe positions: computed in the verification pass, returned to the part that requested them, never committed."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import model_helpers
import pytest
import torch
from torch import Tensor

from workbench.core.probes import ProbeOutput, Probes
from workbench.core.rejection import AcceptanceDecision
from workbench.core.sampling import SamplingParams
from workbench.core.tree import DraftTree
from workbench.decoders import Method
from workbench.decoders.draft_verify.parts import RoundFeedback, Verification
from workbench.engine import Engine, Models, Request, Runner, Sequence
from workbench.engine.request import ERROR
from workbench.kernels import compilation
from workbench.methods import registry
from workbench.methods.draft_model.drafter import DraftModel
from workbench.methods.verifiers.lossless import Lossless
from workbench.trace import export, metrics
from workbench.trace.events import Trace
from workbench.trace.nodes import ACCEPTED, DISCARDED, REJECTED

PROBE_TOKENS = [5, 9, 2]
N = 24
ProbeRecord = tuple[list[int], list[int], list[int], ProbeOutput]
"""(committed tokens, drafted tokens, their parents, result)."""


@dataclass(frozen=True)
class ProbingVerifier(Lossless):
    """The exact rule; it requests the target's predictions at three tokens after the last draft, and records them."""

    records: Any = None
    tokens: tuple[int, ...] = tuple(PROBE_TOKENS)

    def probes(self, row: Sequence, tree: DraftTree) -> Probes | None:
        return Probes.chain(tree, torch.tensor(self.tokens, device=tree.tokens.device), len(tree) - 1, "curious")

    def rule(self, v: Verification) -> AcceptanceDecision:
        if v.probe_output is not None and self.records is not None:
            self.records.append((list(v.committed), v.tree.tokens.tolist(), v.tree.parents.tolist(), v.probe_output))
        return super().rule(v)


@dataclass(frozen=True)
class ProbingDrafter(DraftModel):
    """A draft model that requests the target's prediction after the last committed token and one more."""

    records: Any = None

    def probes(self, row: Sequence, tree: DraftTree) -> Probes | None:
        return Probes.chain(tree, torch.tensor([7], device=tree.tokens.device), -1, "asking")

    def observe(self, row: Sequence, outcome: RoundFeedback) -> None:
        assert outcome.probe_output is not None
        self.records.append((row.committed[: -len(outcome.emitted)], [], [], outcome.probe_output))
        super().observe(row, outcome)


@pytest.fixture(scope="module")
def models(device: str) -> Models:
    return model_helpers.make_models("llama", noise=0.15, device=device)


def probing_method(name: str = "draft-model", prefill_states: list[ProbeRecord] | None = None, **more: Any) -> Method:
    method = dataclasses.replace(registry.get(name), verifier=ProbingVerifier(prefill_states), other_verifiers=())
    return dataclasses.replace(method, **more)


def make_request(method: Any, seed: int = 0, temperature: float = 1.0, **more: Any) -> Request:
    prompt = model_helpers.repeating_prompt(11 + seed, period=5, seed=seed)
    return Request(prompt, method, SamplingParams(temperature), **{"max_new_tokens": N, "stop_at_eos": False, **more})


def plain(models: Models, text: list[int]) -> Tensor:
    """Return the target's own logits after each token of a text, without a cache."""
    with torch.inference_mode():
        return models.target.model(torch.tensor([text], device=models.target.device), use_cache=False).logits[0]


def path_to(node: int, parents: list[int]) -> list[int]:
    return [] if node < 0 else [*path_to(parents[node], parents), node]


@pytest.mark.parametrize("name", ["draft-model", "draft-tree-sampled", "autoregressive", "early-exit"])
def test_probe_logits_equal_a_plain_forward(name: str, models: Models) -> None:
    """Probes follow a chain, a branch of a tree, or no draft; a partly processed draft is read from its first layer."""
    prefill_states: list[ProbeRecord] = []
    trace = Engine(models).generate(make_request(probing_method(name, prefill_states), max_new_tokens=10))
    assert len(prefill_states) == len(trace.rounds)
    for committed, tokens, parents, probed in prefill_states:
        text = [*committed, *(tokens[i] for i in path_to(len(tokens) - 1, parents)), *PROBE_TOKENS]
        assert torch.allclose(probed.logits, plain(models, text)[-len(PROBE_TOKENS) :], atol=1e-9)
        assert probed.hidden.shape == (len(PROBE_TOKENS), models.target.hidden_size)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", ["draft-model", "draft-tree-sampled", "prompt-lookup", "autoregressive", "early-exit"])
def test_probes_do_not_change_the_text(name: str, temperature: float, models: Models) -> None:
    """No draft token attends to a probe, and no probe stays in the cache, so that later rounds are unchanged."""
    request = make_request(registry.get(name), temperature=temperature)
    without = Engine(models).generate(request)
    probed = Engine(models).generate(dataclasses.replace(request, method=probing_method(name)))
    assert probed.token_ids == without.token_ids
    assert metrics.count_drafted(probed.rounds) == metrics.count_drafted(without.rounds)
    assert metrics.acceptance_rate(probed.rounds) == metrics.acceptance_rate(without.rounds)
    assert metrics.count_verified(probed.rounds) == metrics.count_verified(without.rounds) + 3 * len(without.rounds)
    for r in probed.rounds:
        assert [p.token for p in r.probes] == PROBE_TOKENS
        assert {p.source for p in r.probes} == {"curious"}
        assert set(r.nodes.status) <= {ACCEPTED, REJECTED, DISCARDED}
        base = r.emitted[0].position - 1
        below = r.nodes.depth[-1] if len(r.nodes) else 0
        assert [p.position for p in r.probes] == [base + below + i for i in (1, 2, 3)]
        assert [p.parent for p in r.probes] == [len(r.nodes) - 1 + i for i in range(3)]
    assert export.read_json_lines(export.to_json_lines(probed)) == probed
    assert export.read_parquet(export.to_parquet(probed)) == probed


def test_batch_of_sequences_with_and_without_probes(models: Models) -> None:
    """Their segments differ in length; the text equals that of separate runs."""
    methods = [
        probing_method(),
        registry.get("draft-model"),
        probing_method("draft-tree-sampled"),
        registry.get("autoregressive"),
    ]
    requests = [make_request(method, seed) for seed, method in enumerate(methods)]
    assert model_helpers.generate_batched(models, requests) == model_helpers.generate_separately(models, requests)


def test_probes_do_not_prevent_verification_from_exit_states(device: str) -> None:
    """Rounds with probes read the draft from the first layer; rounds without probes may still start after the exit."""
    models = model_helpers.make_models("llama", noise=None, device=device)
    for method in (probing_method("early-exit"), registry.get("early-exit")):
        Engine(models).generate(make_request(method, temperature=0.0))
    assert models.target._enters
    assert all(models.target._enters.values())


def test_drafter_and_verifier_may_both_use_probes(models: Models) -> None:
    prefill_states: list[ProbeRecord] = []
    asking: list[ProbeRecord] = []
    method = probing_method(prefill_states=prefill_states, drafter=ProbingDrafter(records=asking))
    trace = Engine(models).generate(make_request(method))
    assert {tuple(p.source for p in r.probes) for r in trace.rounds} == {("asking", *["curious"] * 3)}
    assert all(r.probes[0].parent == -1 for r in trace.rounds)
    for committed, tokens, parents, probed in [*prefill_states[:3], *asking[:3]]:
        path = [tokens[i] for i in path_to(len(tokens) - 1, parents)]
        text = [*committed, *path, *probed.probes.tokens.tolist()]
        assert torch.allclose(probed.logits, plain(models, text)[-len(probed.probes) :], atol=1e-9)
    assert trace.token_ids == Engine(models).generate(make_request(registry.get("draft-model"))).token_ids


@pytest.mark.parametrize("tokens", [(1,) * 200, (1,) * 40], ids=["scratch", "context"])
def test_run_without_room_for_probes_continues_with_a_warning(tokens: tuple[int, ...]) -> None:
    """200 tokens exceed the cache's scratch space; 40 exceed the last position of a model of 64."""
    models = model_helpers.make_models("llama", noise=0.15, context=64)
    method = probing_method(verifier=ProbingVerifier(None, tokens))
    trace = Engine(models).generate(make_request(method))
    assert trace.token_ids == Engine(models).generate(make_request(registry.get("draft-model"))).token_ids
    assert any(
        f"no room for the {len(tokens)} probe positions of curious" in warning for warning in trace.footer.warnings
    )
    assert not trace.rounds[-1].probes


def test_probe_mask_of_wrong_shape_ends_its_sequence_with_a_reason(models: Models) -> None:
    class Wrong(ProbingVerifier):
        def probes(self, row: Sequence, tree: DraftTree) -> Probes | None:
            return Probes.chain(DraftTree.empty(), torch.tensor(PROBE_TOKENS), source="wrong")

    engine = Engine(models)
    bad, good = (
        engine.submit(make_request(m)) for m in (probing_method(verifier=Wrong()), registry.get("draft-model"))
    )
    while not engine.is_idle:
        engine.step()
    assert bad.status == ERROR
    assert "wrong gave a probe mask of shape [3, 3]" in str(bad.error)
    assert good.trace is not None
    assert len(good.trace.token_ids) == N


@pytest.mark.skipif(not compilation.may_compile(), reason="passes are compiled on Linux on x86-64")
def test_probes_in_compiled_passes_keep_the_draft_bit_for_bit() -> None:
    model = model_helpers.family("llama", hidden_size=128, intermediate_size=96).to(torch.bfloat16)
    models = model_helpers.make_models("llama", noise=0.3)
    models = dataclasses.replace(models, target=Runner(model))
    assert models.target._lean is not None
    assert models.target._lean.fused is not None
    for temperature in (0.0, 1.0):
        texts = [
            Engine(models).generate(make_request(m, temperature=temperature))
            for m in (registry.get("draft-model"), probing_method())
        ]
        assert texts[0].token_ids == texts[1].token_ids
        assert texts[0].rounds[3].nodes.p == texts[1].rounds[3].nodes.p, "to the last bit"


def test_older_traces_have_no_probes_and_a_broken_one_is_refused(models: Models) -> None:
    trace = Engine(models).generate(make_request(probing_method(), max_new_tokens=4))
    wire = trace.to_wire()
    for r in wire["rounds"]:
        r["probes"] = [{**dataclasses.asdict(trace.rounds[0].probes[0]), "parent": 99}]
    with pytest.raises(Exception, match="a probe position is listed before its parent"):
        export.read_wire(wire)
    for r in wire["rounds"]:
        del r["probes"]
    wire["header"]["schema"] = 4
    back = export.read_wire(wire)
    assert isinstance(back, Trace)
    assert all(r.probes == [] for r in back.rounds)
