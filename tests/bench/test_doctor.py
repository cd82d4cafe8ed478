"""The doctor distinguishes rounding from bugs: bundled models in bfloat16, and deliberately broken rules."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from workbench.bench import doctor
from workbench.bench.doctor import BUG, IDENTICAL, NUMERICS, STEPWISE, diagnose, examine
from workbench.bench.prompts import load_prompts
from workbench.bench.tiny_models import tiny_models
from workbench.core.errors import ParameterError, WorkbenchError
from workbench.core.rejection import AcceptanceDecision
from workbench.core.sampling import SamplingParams
from workbench.decoders.draft_verify.parts import Verification, Verifier
from workbench.engine import Engine, Models, Request, load_models
from workbench.methods import registry
from workbench.models.pretrained import load_tokenizer

PROMPT = [3, 1, 4, 1, 5, 3, 1, 4]
PARTING = "Tell me a story about a brave little bear who was afraid of the dark."
"""A prompt after which, on some CPUs, two tokens are equally likely to one step of bfloat16."""


@dataclasses.dataclass(frozen=True)
class AcceptsAll(Verifier):
    """Accepts every draft, independent of the target's distribution."""

    def rule(self, v: Verification) -> AcceptanceDecision:
        ruling = registry.get("draft-model").verifier.rule(v)
        return dataclasses.replace(ruling, accept=ruling.accept * 0 + 1)


def broken():
    return dataclasses.replace(registry.get("draft-model"), verifier=AcceptsAll(), other_verifiers=()).with_params()


@pytest.fixture(scope="module")
def tiny() -> Models:
    return tiny_models(load_tokenizer("text-target"), vocabulary=32, layers=2)


@pytest.fixture(scope="module")
def half() -> Models:
    return load_models("text-target", "text-drafter", "cpu", "bfloat16")


def test_an_exact_run_is_identical(tiny: Models) -> None:
    found = diagnose(tiny, registry.get("draft-model").with_params(), PROMPT, 16)
    assert (found.verdict, found.differences) == (IDENTICAL, ())
    assert found.sentences() == ["All 16 tokens equal those of plain decoding."]


def test_a_broken_rule_is_a_bug_at_every_wrong_position(tiny: Models) -> None:
    found = diagnose(tiny, broken(), PROMPT, 16)
    assert found.verdict == BUG
    for place in found.differences:
        assert place.verdict == BUG
        assert [r.token for r in place.readings] == [
            place.plain
        ] * 3  # every way of computing the logits agrees with plain decoding
        assert place.gap > 1e-6 > place.rounding
        assert "a bug" in place.describe()


@pytest.mark.slow
@pytest.mark.on_demand
def test_real_models_in_bfloat16_diverge_by_rounding(half: Models) -> None:
    """The position depends on the CPU's kernels; somewhere in these texts two tokens are almost equally likely."""
    prompts = [PARTING, *(prompt.encode(half.tokenizer) for prompt in load_prompts())]
    ways = [registry.get("draft-model").with_params(depth=10), registry.get("draft-tree").with_params()]
    looked = (diagnose(half, way, prompt, 96) for prompt in prompts for way in ways)
    found = next((one for one in looked if one.verdict != IDENTICAL), None)
    if found is None:
        pytest.skip(f"{len(prompts)} texts of 96 tokens are the same to the last one on this CPU")
    assert found.verdict == NUMERICS
    assert found.differences[0].gap <= 0.125
    assert "rounding effect" in found.sentences()[0]


@pytest.mark.slow
def test_a_broken_rule_on_real_models_in_bfloat16_is_a_bug(half: Models) -> None:
    found = diagnose(half, broken(), PARTING, 24)
    assert found.verdict == BUG
    worst = max(found.differences, key=lambda place: place.gap)
    assert worst.gap > 10 * worst.rounding


def test_all_ways_of_computing_the_logits_agree_in_float64(tiny: Models) -> None:
    trace = Engine(tiny).generate(Request(PROMPT, registry.get("draft-model").with_params(), max_new_tokens=12))
    tokens = trace.token_ids
    sizes = [(len(r.nodes) + 1, len(r.emitted)) for r in trace.rounds]
    one, other = (doctor._plain_logits(tiny, PROMPT, tokens, f, None) for f in ([(1, 1)] * 12, sizes))
    assert len(one) == len(other) == 12
    assert max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True)) < 1e-6
    assert [int(row.argmax()) for row in one] == tokens


def test_runs_that_cannot_be_compared_are_refused(tiny: Models) -> None:
    engine = Engine(tiny)
    sampled = engine.generate(Request(PROMPT, registry.get("prompt-lookup"), SamplingParams(temperature=1.0), 4))
    with pytest.raises(ParameterError, match="temperature"):
        examine(tiny, sampled)
    trace = engine.generate(Request(PROMPT, registry.get("prompt-lookup"), max_new_tokens=4))
    assert examine(tiny, trace).verdict == IDENTICAL
    trace.header.dtype = "float16"
    with pytest.raises(WorkbenchError, match="Load the target of the run"):
        examine(tiny, trace)


def test_a_difference_names_its_round_and_both_tokens(tiny: Models) -> None:
    trace = Engine(tiny).generate(Request(PROMPT, registry.get("draft-model"), max_new_tokens=12))
    wrong = trace.rounds[2].emitted[0]
    before, wrong.token = wrong.token, (wrong.token + 1) % 32
    place = examine(tiny, trace).differences[0]
    assert (place.round, place.run, place.plain) == (2, wrong.token, before)
    assert place.readings[0].how == STEPWISE
    assert torch.finfo(torch.float64).eps < place.rounding < 1e-5
