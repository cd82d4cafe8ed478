"""Output distribution of a round of every method, in the engine: drafts are sampled, verification results summed.

For each draft that the verifier gets, the exact output distribution is computed as in test_round_enumeration.py, so
that one draft is worth thousands of runs. All seeds are fixed; a test of a correct method fails with probability below
1e-5. Whole runs are tested in test_exact_sampling.py.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Hashable
from typing import Any

import model_helpers
import pytest
import torch
from capped_verifiers import FirstFew, WrongFirstFew
from methods.test_exact_sampling import (
    FILTERED,
    PLAIN,
    PROMPT,
    START,
    VOCABULARY,
    Wrong,
    draw,
    primed,
    setting,
)
from methods.test_round_enumeration import DistributionTables, output_distribution_of_draft, record_draws, texts_of

from workbench.bench.sampling_tests import low_ends
from workbench.core.rejection import AcceptanceDecision
from workbench.core.sampling import SamplingParams, apply_logits_processors, to_probs
from workbench.core.tree import DraftTree, Sampling
from workbench.decoders import ConfiguredMethod, Method, Promise
from workbench.decoders.draft_verify.parts import Part, Plan, Verification, Verifier
from workbench.engine import Models, Sequence
from workbench.methods import registry
from workbench.methods.draft_tree.drafter import SampledTree
from workbench.methods.tree_builders.chain import Chain
from workbench.methods.verifiers.exact import Exact

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("temporary_disk_cache")]
PENALISED = SamplingParams(temperature=1.0, repetition_penalty=1.8)
DEPTH = 2
FEW, DRAFTS = 10, 300
MAX_STANDARD_ERRORS = 5.5
"""Limit in standard errors; for an exact method, one of about twenty figures exceeds it in one test of a million."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, device: str) -> Models:
    """Return models with six tokens, a drafter of medium quality and untrained heads."""
    return model_helpers.make_small_models(VOCABULARY, device=device, heads=tmp_path_factory.mktemp("medusa"))


def target_distributions(models: Models, prompt: list[int], sampling: SamplingParams) -> DistributionTables:
    """Return the target's distributions after the prompt and up to `DEPTH` further tokens, by plain forward passes."""
    found: dict[tuple[int, ...], torch.Tensor] = {}
    for length in range(DEPTH + 1):
        texts = list(itertools.product(range(VOCABULARY), repeat=length))
        ids = torch.tensor([[*prompt, *text] for text in texts], device=models.target.device)
        with torch.inference_mode():
            logits = models.target.model(ids, use_cache=False).logits[:, -1]
        found |= zip(texts, to_probs(apply_logits_processors(logits, sampling, list(ids)), sampling), strict=True)
    return DistributionTables(VOCABULARY, DEPTH, found, {})


def prompt_of(method: ConfiguredMethod) -> list[int]:
    """Return the prompt of a method: a longer one, with repetitions to copy, for methods without a draft model."""
    return START if "drafter" in method.needs else PROMPT


class EnoughError(Exception):
    """Ends a sequence whose draft has been recorded."""


@dataclasses.dataclass
class CachedResults:
    """Cached results for some models and one kind of sampling.

    Attributes:
        drafts: sampled first drafts, by the parts that they may depend on (not by the verifier).
        worlds: the target's distributions, by prompt.
    """

    drafts: dict[Hashable, list[tuple[Verification, int]]] = dataclasses.field(default_factory=dict)
    worlds: dict[tuple[int, ...], tuple[DistributionTables, dict[tuple[int, ...], torch.Tensor]]] = dataclasses.field(
        default_factory=dict
    )

    def world(self, models: Models, prompt: list[int], sampling: SamplingParams) -> tuple[DistributionTables, Any]:
        """Return the distributions after a prompt: for each position, and joint."""
        if tuple(prompt) not in self.worlds:
            w = target_distributions(models, prompt, sampling)
            self.worlds[tuple(prompt)] = w, w.joint()
        return self.worlds[tuple(prompt)]


def draft_key(method: ConfiguredMethod) -> Hashable:
    """Return the parts that first drafts depend on; among them verifiers with a state or probe positions."""
    verifier = method.verifier
    is_rule = type(verifier).init_state is Verifier.init_state and type(verifier).probes is Part.probes
    return method.drafter, method.policy, method.tree_builder, None if is_rule else verifier


def first_drafts(
    models: Models,
    method: ConfiguredMethod,
    sampling: SamplingParams,
    patch: pytest.MonkeyPatch,
    known: CachedResults,
    w: DistributionTables,
) -> list[tuple[Verification, int]]:
    """Return the different first drafts of `DRAFTS` runs, as the verifier gets them, and their counts.

    Also check that each node is verified with the target's distribution on its own path.

    The first `FEW` runs go on to their end. For a deterministic drafter they suffice. Otherwise many more runs follow,
    and each of these ends as soon as its draft is recorded. Other verifiers with the same drafter reuse these drafts:
    the drafts of their own few runs must be among them.
    """
    prompt, rule, enough = prompt_of(method), type(method.verifier).rule, False
    found: dict[tuple[tuple[int, ...], ...], list[Verification]] = {}

    def see(verifier: Verifier, v: Verification) -> AcceptanceDecision:
        if len(v.committed) == len(prompt):
            key = tuple(v.tree.tokens.tolist()), tuple(v.tree.parents.tolist())
            found.setdefault(key, []).append(dataclasses.replace(v, committed=tuple(prompt)))
        if enough:
            raise EnoughError
        return rule(verifier, v)

    with patch.context() as seeing:
        seeing.setattr(type(method.verifier), "rule", see)
        draw(models, method, sampling, DEPTH, FEW, prompt=prompt)
        if (same := known.drafts.get(draft_key(method))) is not None:
            drawn = {(tuple(v.tree.tokens.tolist()), tuple(v.tree.parents.tolist())) for v, _ in same}
            assert set(found) <= drawn, "the verifier has changed the drafts"
            return same
        if len(found) > 1 or any(v.tree.sampling is not Sampling.DETERMINISTIC for (v, *_) in found.values()):
            enough = True
            for engine, rows in primed(models, method, sampling, DEPTH, range(FEW, DRAFTS), prompt):
                while not engine.is_idle:
                    engine.step()
                assert {type(row.error) for row in rows} == {EnoughError}, next(row.error for row in rows)
    drafts = [(same[0], len(same)) for same in found.values()]
    for v, _ in drafts:
        wanted = torch.stack([w.p[text] for text in texts_of(v.tree)])
        assert float((v.p - wanted).abs().max()) < 1e-9, (
            "a node is verified with another distribution than its own path's"
        )
    known.drafts[draft_key(method)] = drafts
    return drafts


def error(
    models: Models,
    method: ConfiguredMethod,
    sampling: SamplingParams,
    patch: pytest.MonkeyPatch,
    known: CachedResults | None = None,
) -> float:
    """Return the largest deviation of a round's distribution from the target's, in standard errors over the drafts.

    The test compares the probability of each first token, and sixteen sums with random signs over all outputs of
    `DEPTH` + 1 tokens. If all runs have the same draft, the standard error is 0 and any difference is far too large.
    """
    known = CachedResults() if known is None else known
    w, joint = known.world(models, prompt_of(method), sampling)
    drafts = first_drafts(models, method, sampling, patch, known, w)
    with torch.inference_mode(), record_draws(patch) as drawn:
        found = torch.stack([output_distribution_of_draft(v, method.verifier, joint, DEPTH, drawn) for v, _ in drafts])
    off = (found - joint[()]).flatten(1)  # [T, V**3]
    signs = torch.randint(2, (off.shape[1], 16), generator=torch.Generator().manual_seed(0)).to(off) * 2 - 1
    firsts = off.view(len(drafts), VOCABULARY, -1).sum(2)
    figures = torch.cat([firsts, off @ signs], 1)  # [T, V + 16]
    n = torch.tensor([times for _, times in drafts]).to(off)[:, None]
    mean = (n * figures).sum(0) / n.sum()
    spread = ((n * (figures - mean) ** 2).sum(0) / n.sum() ** 2).sqrt()
    return float((mean.abs() / (spread + 1e-10)).max())


FAR_ENOUGH: dict[str, dict[str, float]] = {
    "reflective": {"reflection": 1.0},
    "entropy-adaptive": {"mean_entropy": 3.0},
    "judge": {"judge_threshold": 0.3},
    "as-drafted": {"sure": 0.0},
}
"""Parameters for verifiers whose deviation in a first round would be too small to detect by default."""
WHOLE = ("unified-skip", "as-drafted")
"""Exact here: with two layers, the first and the last, the drafter is the target itself; see test_as_drafted.py."""


DRAWING = ("draft-tree-sampled",)
"""Method with which all exact verifiers are tested; a chain is a tree with one child each.

These verifiers do not depend on the source of the siblings and are enumerated in test_round_enumeration.py. Untrained
heads can be so confident, or so different from the target, that a few hundred samples lack the relevant drafts (hydra:
2 different drafts in 300)."""


def choices(method: Method) -> list[ConfiguredMethod]:
    """Return settings with short drafts, one per policy and verifier; tree builders with `draft-tree` only.

    test_shapes.py tests tree builders. Numbers of exact verifiers are also set to their lower limits, since two levels
    do not reach a cap of two draft tokens. A verifier for other drafts than those of the default tree builder is also
    tested with the first suitable one.
    """
    chosen = method.testing.short
    choice_params = [spec for name, spec in method.params.items() if name != "grower" or method.name == "draft-tree"]
    choice_params = [
        spec for spec in choice_params if spec.kind == "choice" and spec.name not in ("shape", "branching", "form")
    ]
    named = [{spec.name: c, **FAR_ENOUGH.get(c, {})} for spec in choice_params for c in spec.choices[1:]]
    for verifier in (v for v in method.other_verifiers if isinstance(v, Exact)):
        suited = [grower.name for grower in method.tree_builders if grower.siblings in verifier.useful_for]
        if method.tree_builders and method.tree_builders[0].name not in suited:
            named += [{"verifier": verifier.name, "grower": grower} for grower in suited[:1]]
    named += low_ends(method)
    if method.name not in DRAWING:
        others = {v.name for v in method.other_verifiers if isinstance(v, Exact)}
        named = [values for values in named if values.get("verifier") not in others and is_tried(method, values)]
    return [method.with_params(**{**chosen, **values}) for values in [{}, *named]]


def is_tried(method: Method, values: dict[str, Any]) -> bool:
    """Return whether the method is the first or last one of the catalogue with this policy or verifier."""
    name, value = next(iter(values.items()))
    if name not in ("policy", "verifier"):
        return True
    same = [m.name for m in model_helpers.text_methods() if name in m.params and value in m.params[name].choices]
    return method.name in (same[0], same[-1])


NAMES = [m.name for m in model_helpers.text_methods() if m.promise is not Promise.GREEDY_EXACT]
SHAPED = dict(zip(NAMES, itertools.cycle((FILTERED, PENALISED)), strict=False))
"""Filters or a penalty: one function applies them for all methods, so that one method of each kind is tested."""


@pytest.mark.parametrize(
    ("name", "sampling"),
    [
        *(pytest.param(name, PLAIN, id=f"{name}-plain") for name in NAMES),
        *(
            pytest.param(*one.values, SHAPED[one.values[0]], id=f"{one.id}-shaped", marks=one.marks)
            for one in model_helpers.mark_non_representatives(NAMES, map(setting, NAMES))
        ),
    ],
)
def test_round_distribution_is_the_targets_unless_approximate(
    name: str, sampling: SamplingParams, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without filters, each policy and verifier is tested in the first and last method that has it.

    A verifier that is exact for other drafts than these may deviate too little to detect: see test_exact_verifiers.py.
    """
    method, known, learnt = registry.get(name), CachedResults(), dict[str, Any]()
    if method.testing.short.get("warm"):
        draw(models, setting(name), sampling, DEPTH, FEW, prompt=prompt_of(setting(name)))
        learnt = {name: models.shared[name]}
    for configured in choices(method) if sampling is PLAIN else [setting(name)]:
        models.shared |= copy.deepcopy(learnt)  # state that all runs share is the same for every setting
        far = error(models, configured, sampling, monkeypatch, known)
        # policies that start without drafts, such as `planned`, cannot deviate in a first round
        drafts = not method.policies or configured.policy.name == method.policies[0].name
        drafts &= (name, configured.verifier.name) != WHOLE
        if configured.promise is not Promise.APPROXIMATE or (drafts and not configured.verifier.exact_for):
            assert (far < MAX_STANDARD_ERRORS) is (configured.promise is not Promise.APPROXIMATE), (
                configured.values,
                far,
            )


# -- broken methods are caught --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "mistake"),
    [
        ("draft-model", "p instead of the residual"),
        ("draft-tree", "p instead of the residual"),
        ("draft-model", "always accept"),
    ],
)
def test_wrong_rule_is_detected(name: str, mistake: str, models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = dataclasses.replace(setting(name), verifier=Wrong(mistake))
    assert error(models, broken, PLAIN, monkeypatch) > MAX_STANDARD_ERRORS, f"{mistake} went unnoticed"


def test_residual_without_a_rejection_is_detected(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the cap at its lower limit, one of the settings of `choices`."""
    for right, rule in ((True, FirstFew()), (False, WrongFirstFew())):
        method = dataclasses.replace(
            registry.get("draft-model"), verifier=rule, other_verifiers=(), tree_builders=(Chain(),)
        )
        far = {c.values["most"]: error(models, c, PLAIN, monkeypatch) for c in choices(method)}
        assert far[2] < MAX_STANDARD_ERRORS
        assert (far[1] < MAX_STANDARD_ERRORS) is right, far


@dataclasses.dataclass(frozen=True)
class KeepsLikeliest(SampledTree):
    """Draws three siblings without replacement and verifies the two most likely; this choice depends on the tokens."""

    def propose_one(self, row: Sequence, plan: Plan) -> DraftTree:
        tree = super().propose_one(row, Plan(1, tree_builder=plan.tree_builder))
        keep = tree.logq.topk(min(2, len(tree))).indices.sort().values
        assert tree.child_q_rows is not None
        return dataclasses.replace(
            tree, tokens=tree.tokens[keep], parents=tree.parents[keep], logq=tree.logq[keep],
            child_q_rows=tree.child_q_rows[: len(keep) + 1],
        )  # fmt: skip


def test_selecting_the_two_most_likely_of_three_samples_is_detected(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = dataclasses.replace(setting("draft-tree-sampled"), drafter=KeepsLikeliest())
    assert error(models, broken, PLAIN, monkeypatch) > MAX_STANDARD_ERRORS
