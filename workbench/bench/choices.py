"""Tests of one setting's promise, such as exact output: a verifier, tree builder or policy, or two of them.

The module `check` tests a whole method: its defaults, and all other settings in one line. Here each setting gets a line
of the exactness board. The most informative settings are tested first: each verifier, tree builder and policy with the
first method that offers it; each verifier on a tree for which it is exact; other methods; pairs of settings.
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
from workbench.bench.goodness import cdf_positions, chi_square
from workbench.bench.sampling_tests import ALPHA, SAMPLING_TESTS, TINY_PROMPT, check_distribution
from workbench.core.promise import Promise
from workbench.core.sampling import SamplingParams, to_probs
from workbench.core.tree import Sampling
from workbench.decoders.draft_verify.parts import Verifier, siblings_of
from workbench.decoders.method import ConfiguredMethod, Method
from workbench.engine import Engine
from workbench.models.loading import Models
from workbench.trace.metrics import DISTRIBUTION_ERROR, DISTRIBUTION_ERROR_BOUND, count_drafted

KINDS = ("verifier", "grower", "policy")
TEMPERATURE_ONE = SamplingParams(temperature=1.0)
TEXTS, TOKENS, CELLS = 6, 48, 16
"""Size of a sampling test if the distribution of a text cannot be enumerated: number of sampled texts, tokens per text,
and number of equal intervals of [0, 1) in which the tokens' positions in the cumulative distribution are counted."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A setting of a method: non-default values of `verifier`, `grower` (tree builder) and `policy`.

    Attributes:
        method: method of the setting.
        values: values by the name of the parameter; empty for the defaults.
        rank: lower is more informative; see `all_choices`.
    """

    method: Method
    values: Mapping[str, str]
    rank: int

    @property
    def is_evidence(self) -> bool:
        """Return whether a test of this setting is evidence for what its verifier, tree builder or policy promises."""
        return self.rank < 2

    @property
    def configured(self) -> ConfiguredMethod:
        """Return the method of this setting, configured with the setting's parameter values."""
        return self.method.with_params(**self.values)


def all_choices(methods: Iterable[Method]) -> list[Choice]:
    """Return all settings that get a row of the exactness board (tests of guarantees), the most informative first.

    Rank 0 has every verifier, tree builder and policy once, with the first method that offers it. Rank 1 has each
    verifier on trees for which it is exact, one for each way of sampling siblings. Rank 2 has the other methods, rank 3
    verifiers with policies, and rank 4 verifiers on trees for which they are not exact.

    Args:
        methods: methods of the registry, in its order; methods without drafting rounds are skipped.
    """
    settings: list[Choice] = []
    covered: set[tuple[str, str]] = set()
    trees: set[str] = set()
    for method in methods:
        if not method.is_speculative:
            continue
        offered = {kind: method.params[kind].choices for kind in KINDS if kind in method.params}
        defaults = {(kind, names[0]) for kind, names in offered.items()}
        settings.append(Choice(method, {}, 0 if defaults - covered else 2))
        covered |= defaults
        for kind, names in offered.items():
            for name in names[1:]:
                settings.append(Choice(method, {kind: name}, 2 if (kind, name) in covered else 0))
                covered.add((kind, name))
        others = offered.get("verifier", ())[1:]
        verifiers = [v for v in method.verifiers if v.name in others]
        for verifier in verifiers:
            tested: set[object] = set()
            for tree_builder in method.tree_builders[1:]:
                siblings = siblings_of(method.drafter, tree_builder)
                if siblings == {Sampling.CHAIN} or method.unsound_reason(verifier, tree_builder=tree_builder):
                    continue
                is_first = verifier.name not in trees and siblings not in ({Sampling.DETERMINISTIC}, *tested)
                tested.add(siblings)
                rank = 1 if is_first else 4
                settings.append(Choice(method, {"verifier": verifier.name, "grower": tree_builder.name}, rank))
        trees |= {verifier.name for verifier in verifiers}
        pairs = itertools.product(others, offered.get("policy", ())[1:])
        settings += [Choice(method, {"verifier": verifier, "policy": policy}, 3) for verifier, policy in pairs]
    return sorted(settings, key=lambda choice: choice.rank)


def check_choice(
    choice: Choice, models: Models, prompts: Sequence[Sequence[int] | Prompt], max_new_tokens: int, runs: int
) -> Iterator[Finding]:
    """Test one setting: its greedy text on the target, and the distribution of its sampled tokens.

    For a target in float64, samples of tiny models are compared with their enumerated distribution. In another number
    format, or if the setting needs a part that tiny models lack, long texts are tested by the positions of their tokens
    in the target's own distributions (`check_cdf_positions`).

    Args:
        choice: a setting that can run on these models.
        models: target with its drafter and heads.
        prompts: token ids of each prompt.
        max_new_tokens: length of greedy texts.
        runs: samples of each test on tiny models.
    """
    configured = choice.configured
    if configured.keeps_greedy:
        yield check_greedy(choice.method, models, prompts, max_new_tokens, others=(), main_setting=configured)
    has_probes = (
        type(configured.verifier).probes is not Verifier.probes
    )  # the verifier appends a question as probe positions; the vocabularies of tiny models lack its tokens
    if has_probes or models.target.dtype != torch.float64 or not set(configured.needs) <= {"drafter", "trees"}:
        yield check_cdf_positions(configured, models, prompts)
        return
    with one_thread():
        for test in SAMPLING_TESTS:
            tiny = test.build_models(models.tokenizer)
            yield check_distribution(choice.method, tiny, test, runs, TINY_PROMPT, configured)


def check_cdf_positions(
    configured: ConfiguredMethod,
    models: Models,
    prompts: Sequence[Sequence[int] | Prompt],
    texts: int = TEXTS,
    tokens: int = TOKENS,
) -> Finding:
    """Test whether sampled tokens have uniform positions in the target's cumulative distributions after their own text.

    The distributions come from one forward pass of Hugging Face's model over each text. For an approximate verifier the
    result is its reported total variation per token and the statistic of the positions, without pass or fail.

    Args:
        configured: method with the parameters to test.
        models: target with its drafter and heads.
        prompts: token ids; taken in turn.
        texts: number of sampled texts.
        tokens: number of tokens per text.
    """
    start, rng, counts = time.perf_counter(), np.random.default_rng(0), dict.fromkeys(range(CELLS), 0)
    engine, n_drafted = Engine(models, max_sequences=1), 0
    paid, at_most = list[float](), False  # by round; some verifiers report no value, or only an upper bound
    for seed in range(texts):
        prompt = Prompt.of(prompts[seed % len(prompts)])
        sequence = engine.submit(
            prompt.request(configured, TEMPERATURE_ONE, max_new_tokens=tokens, seed=seed, stop_at_eos=False)
        )
        while not engine.is_idle:
            engine.step()
        if sequence.error is not None:
            raise sequence.error
        n_drafted += count_drafted(sequence.trace.rounds)
        for signals in (r.signals for r in sequence.trace.rounds):
            paid += [float(signals[name]) for name in (DISTRIBUTION_ERROR, DISTRIBUTION_ERROR_BOUND) if name in signals]
            at_most = at_most or DISTRIBUTION_ERROR_BOUND in signals
        new = torch.tensor(sequence.trace.token_ids)
        model: Any = models.target.model
        with torch.inference_mode():
            out = model(torch.tensor([[*prompt.ids, *new.tolist()]]), use_cache=False, logits_to_keep=len(new) + 1)
        distributions = to_probs(out.logits[0, :-1].double(), TEMPERATURE_ONE)
        for position in cdf_positions(distributions, new, torch.from_numpy(rng.random(len(new)))).tolist():
            counts[min(int(position * CELLS), CELLS - 1)] += 1
    n = sum(counts.values())
    fit = chi_square(counts, dict.fromkeys(counts, 1 / CELLS))
    figures = {"statistic": fit.statistic, "freedom": fit.freedom, "p_value": fit.p_value, "runs": n, "tests": 1}
    detail = f"{n} tokens of {texts} texts at temperature 1, positions in the target's cumulative distribution: {fit}"
    verdict = PASS if fit.fits(ALPHA) else FAIL
    if configured.promise is Promise.APPROXIMATE:
        verdict = MEASURED
        if paid:
            figures["total_variation"] = sum(paid) / n
        cost = f"deviation {'at most ' * at_most}{sum(paid) / n:.3f} (total variation per token)"
        detail += f"; {cost}" if paid else "; no deviation reported"
    elif not n_drafted:
        verdict, detail = FAIL, f"{NEVER_DRAFTED}, so that this was plain decoding: {detail}"
    claim, seconds = "sampling distribution (positions of tokens, given target)", time.perf_counter() - start
    return Finding(configured.name, configured.promise.value, claim, verdict, detail, seconds, "distribution", figures)
