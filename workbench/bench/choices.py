"""Promises of single choices put to the test: one verifier, grower or policy of a method, or two of them, on a target.

`check` tests a method: its defaults, and every choice among many others in one line. Here each has a line of its own,
so that the board says of every name what was seen of it. They come in the order of what they tell: each name with the
first method that offers it, each verifier on a tree that it is exact for, other methods, and pairs.
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
from workbench.bench.laws import ALPHA, LAWS, TINY_PROMPT, check_law
from workbench.core.sampling import SamplingParams, law
from workbench.core.tree import Sampling
from workbench.engine import Engine
from workbench.engine.method import Configured, Method, Promise
from workbench.engine.parts import Verifier, siblings_of
from workbench.models.loading import Models
from workbench.trace.metrics import PAID, PAID_AT_MOST, drafted

KINDS = ("verifier", "grower", "policy")
WARM = SamplingParams(temperature=1.0)
TEXTS, TOKENS, CELLS = 6, 48, 16
"""Of the law on a target that nobody can enumerate: sampled texts, tokens of each, and equal cells for their places."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Values of `verifier`, `grower` and `policy` that are not a method's defaults; none are the defaults.

    Attributes:
        method: whose.
        values: by the name of the parameter.
        rank: the less, the more its evidence tells; see `every`.
    """

    method: Method
    values: Mapping[str, str]
    rank: int

    @property
    def is_telling(self) -> bool:
        """Whether it is among those that give a name its evidence."""
        return self.rank < 2

    @property
    def configured(self) -> Configured:
        """What a row runs."""
        return self.method.with_params(**self.values)


def every(methods: Iterable[Method]) -> list[Choice]:
    """All choices that have a row of their own, the most telling first.

    Rank 0 has every name once, with the first method that offers it; 1 each verifier on trees that it is exact for, one
    of every kind of drawn siblings; 2 the other methods; 3 verifiers with policies; 4 verifiers on the other trees.

    Args:
        methods: of the registry, in its order; those whose rounds do not draft have none.
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
            for grower in method.growers[1:]:
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
    """Test one choice: greedy text on the target, and a law.

    The law is that of tiny models, enumerated, on a target in float64; on one in another format, or with a part that
    tiny models do not serve, the places of long texts' tokens in the target's own laws (`check_places`).

    Args:
        choice: what; it can run on these models.
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
    )  # it says something, which tiny models have no words for
    if of_words or models.target.dtype != torch.float64 or not set(one.needs) <= {"drafter", "trees"}:
        yield check_places(one, models, prompts)
        return
    with one_thread():
        for which in LAWS:
            tiny = which.world(models.tokenizer)
            yield check_law(choice.method, tiny, which, runs, TINY_PROMPT, one)


def check_places(
    one: Configured, models: Models, prompts: Sequence[Sequence[int] | Prompt], texts: int = TEXTS, tokens: int = TOKENS
) -> Finding:
    """Where sampled tokens stand in the laws that plain decoding gives them behind their own text: evenly spread.

    The laws are those of one pass of Hugging Face's model over each text. Of an approximate rule it is told instead
    what it paid a token (total variation, as each run shows it), and how its places are spread.

    Args:
        one: the setting.
        models: target with its drafter and heads.
        prompts: token ids; taken in turn.
        texts: how many are sampled.
        tokens: of each.
    """
    start, rng, seen = time.perf_counter(), np.random.default_rng(0), dict.fromkeys(range(CELLS), 0)
    engine, n_drafted = Engine(models, max_rows=1), 0
    paid, at_most = list[float](), False  # by round; some rules do not say, or say a bound
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
        laws = law(out.logits[0, :-1].double(), WARM)
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
