"""Inputs of a verifier, and its per-sequence state."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar

import model_helpers
import pytest
import torch
from torch import Tensor

from workbench.core.errors import MethodUnavailableError
from workbench.core.params import param
from workbench.core.rejection import AcceptanceDecision
from workbench.core.sampling import SamplingParams
from workbench.core.soundness import why_unsound
from workbench.core.tree import Sampling
from workbench.decoders import Promise
from workbench.decoders.draft_verify.parts import RoundFeedback, Verification
from workbench.engine import Engine, Models, Request, Sequence
from workbench.kernels.segment import Segment
from workbench.methods import registry
from workbench.methods.draft_tree.drafter import TopKTree
from workbench.methods.policies.fixed import Fixed
from workbench.methods.prompt_lookup.drafter import NGram
from workbench.methods.verifiers.lossless import Lossless
from workbench.methods.verifiers.typical import TypicalAcceptance
from workbench.trace.metrics import DISTRIBUTION_ERROR, DISTRIBUTION_ERROR_BOUND

FIRST = 0
PROMPTS = [model_helpers.random_prompt(7, seed=1), model_helpers.random_prompt(12, seed=2)]


@pytest.fixture(scope="module")
def models(device: str) -> Models:
    return model_helpers.make_models("llama", noise=0.15, device=device)


@dataclass
class VerifierHistory:
    """Inputs of a verifier for one sequence: committed and drafted tokens of each round, and its result."""

    primed_at: int
    rulings: list[Verification]
    outcomes: list[RoundFeedback]


@dataclass(frozen=True)
class RecordingVerifier(Lossless):
    """Verifies exactly, and records its inputs."""

    strict: bool = param(True, doc="no effect; a change of this parameter makes it another verifier")

    def captured_layers(self, models: Models) -> Collection[int]:
        return {FIRST, models.target.n_layers - 1}

    def init_state(self, row: Sequence, models: Models) -> VerifierHistory:
        return VerifierHistory(len(row.committed), [], [])

    def rule(self, v: Verification) -> AcceptanceDecision:
        v.state.rulings.append(dataclasses.replace(v, committed=[*v.committed]))
        return super().rule(v)

    def observe(self, row: Sequence, outcome: RoundFeedback) -> None:
        row.state.verifier.outcomes.append(outcome)


@dataclass(frozen=True)
class Needy(Lossless):
    needs = ("medusa",)


@dataclass(frozen=True)
class Named(Needy):
    name = "named"


def method(**parts: Any) -> Any:
    return dataclasses.replace(registry.get("draft-tree"), **parts)


def fresh(models: Models, tokens: list[int]) -> tuple[Tensor, Tensor, dict[int, Tensor]]:
    """Return logits, hidden state and captured states after a text, from a new prefill."""
    target = models.target
    slot = target.open()
    target.prefill(slot, tokens[:-1])
    out = target.forward([Segment(slot, torch.tensor(tokens[-1:], device=target.device))], capture_layers={FIRST})
    target.close(slot)
    return out.logits[0, -1], out.hidden[0, -1], {layer: stream[0, -1] for layer, stream in out.layer_states.items()}


def test_verifier_gets_hidden_states_and_taps_of_its_own_sequences_nodes(models: Models) -> None:
    engine = Engine(models, record=False)
    rows = [engine.submit(Request(p, method(verifier=RecordingVerifier()), max_new_tokens=9)) for p in PROMPTS]
    plain = engine.submit(Request(PROMPTS[0], registry.get("draft-model"), max_new_tokens=9))
    for _ in range(5):
        engine.step()
    assert all(len(row.state.verifier.rulings) > 1 for row in rows)
    assert plain.state.verifier is None
    checked = 0
    for row, prompt in zip(rows, PROMPTS, strict=True):
        assert row.state.verifier.primed_at == len(prompt)
        for v in row.state.verifier.rulings:
            assert v.committed == row.committed[: len(v.committed)]
            assert set(v.layer_states) == {FIRST, models.target.n_layers - 1}
            assert v.hidden is not None
            parents, tokens = v.tree.parents.tolist(), v.tree.tokens.tolist()
            path: dict[int, list[int]] = {-1: []}
            for node, parent in enumerate(parents):
                path[node] = [*path[parent], tokens[node]]
            for node in (-1, len(parents) - 1):
                logits, hidden, taps = fresh(models, [*v.committed, *path[node]])
                torch.testing.assert_close(v.logits[node + 1], logits.to(v.logits))
                torch.testing.assert_close(v.hidden[node + 1], hidden)
                torch.testing.assert_close(v.layer_states[FIRST][node + 1], taps[FIRST])
                checked += 1
    assert checked > 6
    for row in (*rows, plain):
        row.cancel()
    engine.step()


def test_verifier_observes_every_round_and_is_primed_again_after_a_switch(models: Models) -> None:
    engine = Engine(models, record=False)
    row = engine.submit(Request(PROMPTS[0], method(verifier=RecordingVerifier()), max_new_tokens=40, stop_at_eos=False))
    while row.trace is None or len(row.trace.rounds) < 3:
        engine.step()
    first = row.state.verifier
    assert [t for o in first.outcomes for t in o.emitted] == row.committed[len(PROMPTS[0]) :]
    assert [len(o.layer_states[FIRST]) for o in first.outcomes] == [len(v.tree) + 1 for v in first.rulings]
    row.change(params={"depth": 2})  # a change of the drafter: the verifier's state stays
    engine.step()
    assert row.state.verifier is first
    at = len(row.committed)
    row.change(params={"strict": False})
    engine.step()
    assert row.state.verifier is not first
    assert row.state.verifier.primed_at == at
    row.cancel()
    engine.step()


def test_drafter_observes_the_hidden_states_it_requested(models: Models) -> None:
    found: list[tuple[list[int], Tensor]] = []

    @dataclass(frozen=True)
    class Curious(TopKTree):
        def captured_layers(self, models: Models) -> Collection[int]:
            return (FIRST,)

        def observe(self, row: Sequence, outcome: RoundFeedback) -> None:
            end = len(row.committed) - len(outcome.emitted)
            found.append((row.committed[:end], outcome.layer_states[FIRST][0]))
            super().observe(row, outcome)

    Engine(models, record=False).generate(Request(PROMPTS[1], method(drafter=Curious()), max_new_tokens=8))
    assert found
    for committed, stream in found:
        torch.testing.assert_close(stream, fresh(models, committed)[2][FIRST])


def test_request_for_a_missing_layer_ends_only_its_own_run(models: Models) -> None:
    @dataclass(frozen=True)
    class Beyond(Lossless):
        def captured_layers(self, models: Models) -> Collection[int]:
            return (models.target.n_layers,)

    engine = Engine(models, record=False)
    wrong = engine.submit(Request(PROMPTS[0], method(verifier=Beyond()), max_new_tokens=6))
    right = engine.submit(Request(PROMPTS[1], registry.get("draft-model"), max_new_tokens=6))
    while not engine.is_idle:
        engine.step()
    assert (wrong.status, right.status) == ("error", "finished")
    assert "reads layer" in str(wrong.error)


def test_unselected_policy_adds_no_requirements(models: Models) -> None:
    @dataclass(frozen=True)
    class Costly(Fixed):
        name = "costly"
        needs = ("medusa",)

    asked = method(policies=(Fixed(), Costly()))
    assert "medusa" not in asked.needs
    assert "medusa" in asked.with_params(policy="costly").needs
    with pytest.raises(MethodUnavailableError, match="medusa"):
        Engine(models).submit(Request(PROMPTS[0], asked.with_params(policy="costly"), max_new_tokens=2))


def test_requirements_of_a_verifier_are_those_of_the_method(models: Models) -> None:
    asked = method(verifier=Needy())
    assert set(asked.needs) >= {"drafter", "medusa"}
    with pytest.raises(MethodUnavailableError, match="medusa"):
        Engine(models).submit(Request(PROMPTS[0], asked, max_new_tokens=2))


# -- choice of verifiers ----------------------------------------------------------------------------------------------


def test_verifier_can_be_selected_and_changed_during_a_run(models: Models) -> None:
    """The promise, parameters and rule in the trace follow from the selected verifier."""
    either = method(other_verifiers=(TypicalAcceptance(),))
    names = list(either.params)
    assert names[names.index("verifier") :] == ["verifier", "epsilon", "delta"]
    assert {either.params[name].when for name in ("epsilon", "delta")} == {"verifier = typical"}
    assert either.promises == {"lossless": Promise.EXACT, "typical": Promise.APPROXIMATE}
    engine = Engine(models)
    row = engine.submit(
        Request(PROMPTS[0], either, SamplingParams(temperature=1.0), max_new_tokens=60, stop_at_eos=False)
    )
    while row.trace is None or len(row.trace.rounds) < 2:
        engine.step()
    assert row.configured_method.promise is Promise.EXACT
    row.change(params={"verifier": "typical", "epsilon": 0.3})
    while not engine.is_idle:
        engine.step()
    assert row.trace is not None
    assert row.verifier == TypicalAcceptance(epsilon=0.3)
    assert row.configured_method.promise is Promise.APPROXIMATE
    first, then = row.trace.rounds[:2], row.trace.rounds[2:]
    assert {rule for r in first for rule in r.nodes.rule if rule} <= {"point", "point-residual"}
    assert {rule for r in then for rule in r.nodes.rule if rule} == {"typical"}
    assert next((c.name, c.before, c.after) for c in then[0].changes) == ("verifier", "lossless", "typical")
    assert any("no longer follows the target's distribution" in warning for warning in row.trace.footer.warnings)


def test_approximate_start_is_not_reported_as_exact_until_a_change(models: Models) -> None:
    either = method(other_verifiers=(TypicalAcceptance(),)).with_params(verifier="typical")
    engine = Engine(models)
    row = engine.submit(
        Request(PROMPTS[0], either, SamplingParams(temperature=1.0), max_new_tokens=60, stop_at_eos=False)
    )
    for n, verifier in enumerate(("lossless", "typical"), start=1):
        while row.trace is None or len(row.trace.rounds) < 2 * n:
            engine.step()
        row.change(params={"verifier": verifier})
    while not engine.is_idle:
        engine.step()
    assert row.trace is not None
    warnings = [words for words in row.trace.footer.warnings if words.startswith("From here on")]
    assert len(warnings) == 1
    assert warnings[0].startswith("From here on sampled text again does not follow the target's distribution")
    assert row.trace.header.promise == "approximate"


@pytest.mark.parametrize(
    ("grower", "heat", "said"),
    [("rsd-c", 1.0, DISTRIBUTION_ERROR_BOUND), ("chain", 1.0, DISTRIBUTION_ERROR), ("rsd-c", 0.0, DISTRIBUTION_ERROR)],
)
def test_round_records_an_exact_error_or_an_upper_bound(grower: str, heat: float, said: str, models: Models) -> None:
    chosen = registry.get("draft-tree-sampled").with_params(grower=grower, verifier="typical", epsilon=0.3)
    asked = Request(PROMPTS[0], chosen, SamplingParams(temperature=heat), max_new_tokens=24, stop_at_eos=False)
    drafted = [r.signals for r in Engine(models).generate(asked).rounds if r.nodes.tokens]
    assert len(drafted) > 3
    assert all(
        [name for name in (DISTRIBUTION_ERROR, DISTRIBUTION_ERROR_BOUND) if name in signals] == [said]
        for signals in drafted
    )
    assert (sum(float(signals[said]) for signals in drafted) > 0) is (heat > 0), "greedy text is the target's"


def test_approximate_verifier_is_not_carried_over_to_another_method(models: Models) -> None:
    either, other = (method(name=name, other_verifiers=(TypicalAcceptance(),)) for name in ("either", "other"))
    row = model_helpers.make_sequence(
        Request(PROMPTS[0], either.with_params(verifier="typical", epsilon=0.3)), PROMPTS[0], models
    )
    row.change(method=other)
    assert row.requested_settings().active.configured_method.promise is Promise.EXACT
    row.change(params={"verifier": "typical"})
    assert row.requested_settings().active.configured_method.promise is Promise.APPROXIMATE


def test_unselected_verifier_adds_no_requirements(models: Models) -> None:
    asked = method(other_verifiers=(Needy(),))
    with pytest.raises(ValueError, match="with equal names"):
        _ = asked.params
    asked = method(other_verifiers=(Named(),))
    assert "medusa" not in asked.needs
    assert "medusa" in asked.with_params(verifier="named").needs
    assert asked.promises["named"] is Promise.EXACT


def test_false_declaration_of_siblings_ends_the_run(models: Models) -> None:
    @dataclass(frozen=True)
    class Liar(NGram):
        def siblings(self) -> frozenset[Sampling]:
            return frozenset({Sampling.SAMPLED})

    asked = dataclasses.replace(registry.get("prompt-lookup"), drafter=Liar())
    prompt, engine = [3, 1, 3, 1, 3, 1], Engine(models, record=False)
    for sampling, status in ((SamplingParams(temperature=1.0), "error"), (SamplingParams(), "finished")):
        row = engine.submit(Request(prompt, asked, sampling, max_new_tokens=6))
        while not engine.is_idle:
            engine.step()
        assert (row.status, "Liar drafted sibling tokens with the sampling method deterministic" in str(row.error)) == (
            status, status == "error"
        )  # fmt: skip


@pytest.mark.parametrize("kind", Sampling)
def test_soundness_follows_from_both_declarations(kind: Sampling) -> None:
    """An unsound pair has a reason in a sentence, and is refused if the method promises exactness."""

    @dataclass(frozen=True)
    class Some(Lossless):
        name = "some"
        exact_for = frozenset(Sampling) - {kind}

    @dataclass(frozen=True)
    class One(TopKTree):
        def siblings(self) -> frozenset[Sampling]:
            return frozenset({kind})

    reasons = {why_unsound("D", {other}, "V", Some.exact_for) for other in Sampling}
    assert len(reasons) == 2
    assert "" in reasons
    made = method(name="unsound", drafter=One(), other_verifiers=(Some(),))
    assert made.promises == {"lossless": Promise.EXACT, "some": Promise.APPROXIMATE}
    with pytest.raises(
        ValueError, match=r"which its parts do not keep\. The verifier some is not exact with the drafter unsound: "
    ):
        registry.register(dataclasses.replace(made, verifier=Some(), other_verifiers=()))
    approximate = dataclasses.replace(made, verifier=Some(), other_verifiers=(Lossless(),), promise=Promise.APPROXIMATE)
    assert approximate.promises == {"some": Promise.APPROXIMATE, "lossless": Promise.EXACT}


def test_promise_that_the_parts_do_not_keep_is_refused_with_the_reason() -> None:
    for promise in (Promise.EXACT, Promise.SIMULATION):
        with pytest.raises(ValueError, match="typical is approximate: it preserves the target's distribution with no"):
            registry.register(method(name="unsound", verifier=TypicalAcceptance(), promise=promise))
    assert "unsound" not in registry.names()


def test_promise_follows_from_the_drafters_sampling_parameter() -> None:
    @dataclasses.dataclass(frozen=True)
    class Either(NGram):
        drawn: bool = param(False, doc="sample siblings without replacement")

        def siblings(self) -> frozenset[Sampling]:
            return frozenset({Sampling.WITHOUT_REPLACEMENT if self.drawn else Sampling.DETERMINISTIC})

    class ForChosen(Lossless):
        exact_for: ClassVar[frozenset[Sampling]] = frozenset({Sampling.DETERMINISTIC})

    method = dataclasses.replace(registry.get("prompt-lookup"), name="either", drafter=Either(), verifier=ForChosen())
    assert method.with_params().promise is Promise.EXACT
    assert method.with_params(drawn=True).promise is Promise.APPROXIMATE
