"""Tests of single settings' promises: one verifier, tree builder or policy of a method, or two of them, on a target.

`check` tests a method: its defaults, and all other settings in one line. Here each setting has a line of its own, so
that the board shows the evidence for every name. They are ordered by how informative they are: each name with the first
method that offers it, each verifier on a tree that it is exact for, other methods, and pairs.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from workbench.bench.check import check_greedy, one_thread
from workbench.bench.finding import FAIL, MEASURED, NEVER_DRAFTED, PASS, Finding, Prompt
from workbench.bench.goodness import chi_square, places
from workbench.bench.sampling_tests import ALPHA, SAMPLING_TESTS, TINY_PROMPT, check_distribution
from workbench.core.promise import Promise
from workbench.core.sampling import SamplingParams, to_probs
from workbench.core.tree import Sampling
from workbench.decoders.draft_verify.parts import Verifier, siblings_of
from workbench.decoders.method import Configured, Method
from workbench.engine import Engine
from workbench.models.loading import Models
from workbench.trace.metrics import PAID, PAID_AT_MOST, drafted

KINDS = ("verifier", "grower", "policy")
WARM = SamplingParams(temperature=1.0)
TEXTS, TOKENS, CELLS = 6, 48, 16
"""Size of the test on a target that cannot be enumerated: sampled texts, tokens per text, and equal cells for their
positions in the cumulative distribution."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A setting: non-default values of `verifier`, `grower` and `policy`; empty values are the defaults.

    Attributes:
        method: method of the setting.
        values: values by the name of the parameter.
        rank: lower is more informative; see `every`.
    """

    method: Method
    values: Mapping[str, str]
    rank: int

    @property
    def is_telling(self) -> bool:
        """Whether it is one of the settings that provide the evidence for a name."""
        return self.rank < 2

    @property
    def configured(self) -> Configured:
        """Configured method that a row tests."""
        return self.method.with_params(**self.values)


def every(methods: Iterable[Method]) -> list[Choice]:
    """Return all settings with a row of their own, the most informative first.

    Rank 0 has every name once, with the first method that offers it; 1 each verifier on trees that it is exact for, one
    per kind of sibling sampling; 2 the other methods; 3 verifiers with policies; 4 verifiers on the other trees.

    Args:
        methods: methods of the registry, in its order; those whose rounds do not draft have no settings.
    """
    found: list[Choice] = []
    seen: set[tuple[str, str]] = set()
    trees: set[str] = set()
    for method in methods:
        if method.rounds is not None and not method.rounds.drafts:
            continue
        offered = {kind: method.params[kind].choices for kind in KINDS if kind in method.params}
        usual = {(kind, names[0]) for kind, names in offered.items()}
        found.append(Choice(method, {}, 0 if usual - seen else 2))
        seen |= usual
        for kind, names in offered.items():
            for name in names[1:]:
                found.append(Choice(method, {kind: name}, 2 if (kind, name) in seen else 0))
                seen.add((kind, name))
        others = offered.get("verifier", ())[1:]
        judging = [v for v in method.verifiers if v.name in others]
        for verifier in judging:
            tried: set[object] = set()
            for grower in method.tree_builders[1:]:
                siblings = siblings_of(method.drafter, grower)
                if siblings == {Sampling.CHAIN} or method.unsound(verifier, grower=grower):
                    continue
                is_first = verifier.name not in trees and siblings not in ({Sampling.DETERMINISTIC}, *tried)
                tried.add(siblings)
                rank = 1 if is_first else 4
                found.append(Choice(method, {"verifier": verifier.name, "grower": grower.name}, rank))
        trees |= {verifier.name for verifier in judging}
        pairs = itertools.product(others, offered.get("policy", ())[1:])
        found += [Choice(method, {"verifier": verifier, "policy": policy}, 3) for verifier, policy in pairs]
    return sorted(found, key=lambda choice: choice.rank)


def check_choice(
    choice: Choice, models: Models, prompts: Sequence[Sequence[int] | Prompt], max_new_tokens: int, runs: int
) -> Iterator[Finding]:
    """Test one setting: greedy text on the target, and a distribution.

    On a target in float64 the distribution is that of tiny models, enumerated. In another format, or if the setting
    needs a part that tiny models lack, long texts are tested by the positions of their tokens in the target's own
    distributions (`check_places`).

    Args:
        choice: a setting that can run on these models.
        models: target with its drafter and heads.
        prompts: token ids.
        max_new_tokens: length of greedy texts.
        runs: samples of each test on tiny models.
    """
    one = choice.configured
    if one.verifier.keeps_greedy:
        yield check_greedy(choice.method, models, prompts, max_new_tokens, others=(), usual=one)
    of_words = (
        type(one.verifier).probes is not Verifier.probes
    )  # it adds a question as probe tokens, which tiny models' vocabularies lack
    if of_words or models.target.dtype != torch.float64 or not set(one.needs) <= {"drafter", "trees"}:
        yield check_places(one, models, prompts)
        return
    with one_thread():
        for which in SAMPLING_TESTS:
            tiny = which.world(models.tokenizer)
            yield check_distribution(choice.method, tiny, which, runs, TINY_PROMPT, one)


def check_places(
    one: Configured, models: Models, prompts: Sequence[Sequence[int] | Prompt], texts: int = TEXTS, tokens: int = TOKENS
) -> Finding:
    """Test whether sampled tokens are uniformly placed in plain decoding's distributions after their own text.

    The distributions come from one pass of Hugging Face's model over each text. For an approximate verifier the result
    is instead its reported total variation per token, and the spread of the positions.

    Args:
        one: the setting.
        models: target with its drafter and heads.
        prompts: token ids; taken in turn.
        texts: number of sampled texts.
        tokens: tokens per text.
    """
    start, rng, seen = time.perf_counter(), np.random.default_rng(0), dict.fromkeys(range(CELLS), 0)
    engine, n_drafted = Engine(models, max_rows=1), 0
    paid, at_most = list[float](), False  # by round; some verifiers report none, or only a bound
    for seed in range(texts):
        prompt = Prompt.of(prompts[seed % len(prompts)])
        row = engine.submit(prompt.request(one, WARM, max_new_tokens=tokens, seed=seed, stop_at_eos=False))
        while not engine.idle:
            engine.step()
        if row.error is not None:
            raise row.error
        assert row.trace is not None
        n_drafted += drafted(row.trace.rounds)
        for told in (r.signals for r in row.trace.rounds):
            paid += [float(told[name]) for name in (PAID, PAID_AT_MOST) if name in told]
            at_most = at_most or PAID_AT_MOST in told
        new = torch.tensor(row.trace.token_ids)
        given: Any = models.target.model
        with torch.inference_mode():
            out = given(torch.tensor([[*prompt.ids, *new.tolist()]]), use_cache=False, logits_to_keep=len(new) + 1)
        laws = to_probs(out.logits[0, :-1].double(), WARM)
        for at in places(laws, new, torch.from_numpy(rng.random(len(new)))).tolist():
            seen[min(int(at * CELLS), CELLS - 1)] += 1
    n = sum(seen.values())
    fit = chi_square(seen, dict.fromkeys(seen, 1 / CELLS))
    figures = {"statistic": fit.statistic, "freedom": fit.freedom, "p_value": fit.p_value, "runs": n, "tests": 1}
    detail = f"{n} tokens of {texts} texts at temperature 1, each at its place in the target's own law: {fit}"
    verdict = PASS if fit.fits(ALPHA) else FAIL
    if one.promise is Promise.APPROXIMATE:
        verdict = MEASURED
        if paid:
            figures["total_variation"] = sum(paid) / n
        said = f"paid {'at most ' * at_most}{sum(paid) / n:.3f} of total variation a token"
        detail += f"; {said}" if paid else "; it does not say what it pays"
    elif not n_drafted:
        verdict, detail = FAIL, f"{NEVER_DRAFTED}, so that this was plain decoding: {detail}"
    claim, seconds = "sampling law (places of tokens, given target)", time.perf_counter() - start
    return Finding(one.name, one.promise.value, claim, verdict, detail, seconds, "law", figures)
