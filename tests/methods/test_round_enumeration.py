"""Exact output distribution of a whole round: all drafts and all verification outcomes are enumerated, none is sampled.

A world is a table of p and q after every text of a few tokens. For each way of drafting, the distribution of the first
depth + 1 output tokens (accepted ones, the corrected or bonus token, the rest from p) is summed over all drafts and
compared with the target's. A single position is tested in tests/core/test_rejection.py, the engine in
test_exact_sampling.py; test_drafts.py tests that the stochastic beam draws what `beams` enumerates.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
from capped_verifiers import FirstFew, WrongFirstFew
from torch import Tensor

from workbench.core.probes import ProbeOutput
from workbench.core.rejection import AcceptanceDecision, VerificationResult
from workbench.core.sampling import SamplingParams, pick
from workbench.core.soundness import why_unsound
from workbench.core.tree import DraftTree, Sampling
from workbench.decoders.draft_verify.parts import Verification, Verifier
from workbench.methods import registry
from workbench.methods.tree_builders.best_first import most_promising, subtree
from workbench.methods.tree_builders.chain import _chain_tree
from workbench.methods.verifiers.as_drafted import AsDrafted
from workbench.methods.verifiers.entropy_adaptive import EntropyAdaptive, EntropyState, GeneratorState
from workbench.methods.verifiers.exact import Exact
from workbench.methods.verifiers.judge import Judge, JudgeHead
from workbench.methods.verifiers.lenient import Lenient
from workbench.methods.verifiers.lossless import Lossless
from workbench.methods.verifiers.nearest import Nearest, Neighbours
from workbench.methods.verifiers.reflective import Reflective, second_reading

pytestmark = pytest.mark.unchecked
Text = tuple[int, ...]
Drafts = Iterator[tuple[DraftTree, float]]
"""All trees that can be drafted, each with its probability."""
WARM, GREEDY = SamplingParams(temperature=1.0), SamplingParams()
EXACTLY = 1e-12
"""Tolerance for rounding errors of some hundred float64 sums; a wrong rule differs by more than 1e-3."""


# -- worlds -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DistributionTables:
    """The target's and the drafter's next-token distribution after every text.

    Attributes:
        size: vocabulary size V.
        depth: number of levels of a draft.
        p: the target's distribution [V] after each text of up to `depth` tokens.
        q: the drafter's distribution [V] after each text of up to `depth` tokens.
    """

    size: int
    depth: int
    p: Mapping[Text, Tensor]
    q: Mapping[Text, Tensor]

    def joint(self) -> dict[Text, Tensor]:
        """Return the joint distribution of the tokens after each text, up to depth + 1 in total: float64 [V, …, V]."""
        found: dict[Text, Tensor] = {}
        for text in sorted(self.p, key=len, reverse=True):
            if len(text) == self.depth:
                found[text] = self.p[text]
            else:
                then = torch.stack([found[(*text, token)] for token in range(self.size)])
                found[text] = self.p[text].view(-1, *[1] * (then.dim() - 1)) * then
        return found

    def text_probability(self, distributions: Mapping[Text, Tensor], text: Text) -> float:
        """Return the probability of a text."""
        return math.prod(float(distributions[text[:i]][token]) for i, token in enumerate(text))


KINDS = ("any", "other", "zeros", "equal", "disjoint")


def random_tables(kind: str, size: int, depth: int) -> DistributionTables:
    """Return random distributions: without zeros ("any", "other"), with some zeros, q = p, or p and q disjoint."""
    generator = torch.Generator().manual_seed(10 * size + depth + 100 * KINDS.index(kind))
    p, q = dict[Text, Tensor](), dict[Text, Tensor]()
    for length in range(depth + 1):
        for text in itertools.product(range(size), repeat=length):
            a, b = torch.rand(2, size, dtype=torch.float64, generator=generator) ** 2 + 0.01
            if kind == "zeros":  # each distribution lacks one token, a different one each time
                lacks = torch.randint(size, (2,), generator=generator)
                a[lacks[0]], b[lacks[1]] = 0, 0
            if kind == "disjoint":
                mine = torch.arange(size) % 2 == sum(text) % 2
                a, b = a * mine, b * ~mine
            p[text], q[text] = a / a.sum(), b / b.sum()
    return DistributionTables(size, depth, p, p if kind == "equal" else q)


# -- ways of drafting -------------------------------------------------------------------------------------------------


def texts_of(tree: DraftTree) -> list[Text]:
    """Return the drafted text at the root (empty), and then up to and including each node of a tree."""
    texts: list[Text] = [()]
    for token, parent in zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True):
        texts.append((*texts[parent + 1], token))
    return texts


def sampled(w: DistributionTables, tokens: Sequence[int], parents: Sequence[int], how: Sampling) -> DraftTree:
    """Return a tree that was sampled from q, with the distributions that it was sampled from."""
    tree = replace(DraftTree.from_parents(tokens, parents), sampling=how)
    inner = [i for i in range(len(tokens) + 1) if i - 1 in parents]
    q_of = torch.full((len(tokens) + 1,), -1)
    q_of[inner] = torch.arange(len(inner))
    texts = texts_of(tree)
    logq = torch.stack([w.q[texts[parent + 1]][token].log() for token, parent in zip(tokens, parents, strict=True)])
    return replace(tree, q=torch.stack([w.q[texts[i]] for i in inner]), child_q_rows=q_of, logq=logq)


def chains(w: DistributionTables) -> Drafts:
    """Yield chains whose tokens are sampled from q one after the other."""
    for text in itertools.product(range(w.size), repeat=w.depth):
        if (chance := w.text_probability(w.q, text)) > 0:
            distributions = torch.stack([w.q[text[:i]] for i in range(w.depth)])
            yield replace(_chain_tree(torch.tensor(text), distributions, True, ""), sampling=Sampling.CHAIN), chance


def independent(w: DistributionTables, parents: Sequence[int] = (-1, -1, 0, 0, 1)) -> Drafts:
    """Yield trees of independent samples: two at the first position, two after the first of them, one after the second.

    Siblings may be equal.
    """
    for tokens in itertools.product(range(w.size), repeat=len(parents)):
        tree = DraftTree.from_parents(tokens, parents)
        texts = texts_of(tree)
        chance = math.prod(float(w.q[text[:-1]][text[-1]]) for text in texts[1:])
        if chance > 0:
            yield sampled(w, tokens, parents, Sampling.SAMPLED), chance


def fixed_number(w: DistributionTables, parents: Sequence[int] = (-1, -1, 1)) -> Drafts:
    """Yield trees sampled without replacement: two nodes at the first position, one after the second of them."""
    for tokens in itertools.product(range(w.size), repeat=len(parents)):
        texts, chance = texts_of(DraftTree.from_parents(tokens, parents)), 1.0
        for i, token in enumerate(tokens):
            elder = [tokens[j] for j in range(i) if parents[j] == parents[i]]
            probs = w.q[texts[i + 1][:-1]].tolist()
            others = math.fsum(x for t, x in enumerate(probs) if t not in elder)
            chance *= probs[token] / others if token not in elder and others > 0 else 0.0
        if chance > 0:
            yield sampled(w, tokens, parents, Sampling.FIXED_NUMBER), chance


def in_order(weights: Mapping[Text, float], n: int) -> Iterator[tuple[tuple[Text, ...], float]]:
    """Yield all ordered draws of n texts without replacement, each with its probability."""
    if n == 0:
        yield (), 1.0
        return
    whole = math.fsum(weights.values())
    for first, weight in weights.items():
        others = {text: left for text, left in weights.items() if text != first}
        for rest, chance in in_order(others, n - 1):
            yield (first, *rest), weight / whole * chance


def beams(w: DistributionTables, width: int) -> Drafts:
    """Yield RSD-S trees: of each length the first `width` texts in the order of an exponential race with rates q(text).

    The last level is an ordered draw of whole texts without replacement. A prefix arrives with the first of its texts:
    first the prefixes of the drawn texts, in their order; then the others continue the race among themselves.
    """
    rates = [
        {t: rate for t in itertools.product(range(w.size), repeat=n) if (rate := w.text_probability(w.q, t)) > 0}
        for n in range(w.depth + 1)
    ]

    def levels(found: list[tuple[Text, ...]], chance: float) -> Iterator[tuple[list[tuple[Text, ...]], float]]:
        length = len(found[0][0]) - 1
        if length == 0:
            yield found, chance
            return
        came = tuple(dict.fromkeys(text[:-1] for text in found[0]))
        waiting = {text: rate for text, rate in rates[length].items() if text not in came}
        for later, by in in_order(waiting, min(width - len(came), len(waiting))):
            yield from levels([came + later, *found], chance * by)

    for last, chance in in_order(rates[-1], min(width, len(rates[-1]))):
        for found, by in levels([last], chance):
            texts = [text for level in found for text in level]
            parents = [texts.index(text[:-1]) if len(text) > 1 else -1 for text in texts]
            yield sampled(w, [text[-1] for text in texts], parents, Sampling.WITHOUT_REPLACEMENT), by


def head_and_sample(w: DistributionTables, said: Sampling) -> Drafts:
    """Yield trees with two nodes per level: the most likely token, and a sample from the others, which is continued."""

    def grown(
        text: Text, tokens: list[int], distributions: list[int], chance: float
    ) -> Iterator[tuple[list[int], list[int], float, Text]]:
        rest = w.q[text].clone()
        head = int(rest.argmax())
        rest[head] = 0
        if len(text) == w.depth or not float(rest.sum()):
            yield tokens, distributions, chance, text
            return
        for token in rest.nonzero()[:, 0].tolist():
            by = float(rest[token] / rest.sum())
            yield from grown((*text, token), [*tokens, head, token], [*distributions, -1, len(text)], chance * by)

    for tokens, distributions, chance, text in grown((), [], [], 1.0):
        tree = DraftTree.from_parents(tokens, [2 * (i // 2) - 1 for i in range(len(tokens))])
        yield replace(
            tree, sampling=said, q=torch.stack([w.q[text[:n]] for n in range(len(text) + 1)]),
            node_q_rows=torch.tensor(distributions, dtype=torch.long),
            without_replacement=torch.tensor([probs >= 0 for probs in distributions]),
        ), chance  # fmt: skip


def best(w: DistributionTables) -> Drafts:
    """Yield EAGLE-2's tree: the two most likely tokens at each node, reduced to the four nodes with the best scores."""
    texts, parents, score = list[Text]([()]), list[int](), list[float]()
    for at, text in enumerate(texts):  # the list grows in the loop
        if len(text) < w.depth:
            for token in w.q[text].topk(2).indices.tolist():
                texts.append((*text, token))
                parents.append(at - 1)
                score.append(w.text_probability(w.q, texts[-1]))
    scores, tokens = torch.tensor(score), torch.tensor([text[-1] for text in texts[1:]])
    keep = most_promising(scores, 4)
    yield subtree(keep, tokens, torch.tensor(parents), scores, w.depth, 2, ""), 1.0


def points(text: Text) -> Callable[[DistributionTables], Drafts]:
    """Return a drafter of one deterministic chain that does not depend on the distributions, as n-gram drafts."""
    return lambda w: iter([(DraftTree.chain(text), 1.0)])


DRAFT_SCHEMES: dict[str, tuple[Callable[[DistributionTables], Drafts], int, int]] = {
    "chain of 3": (chains, 3, 3),
    "chain of 2": (chains, 4, 2),
    "independent siblings": (independent, 3, 2),
    "beam of 3": (lambda w: beams(w, 3), 3, 2),
    "beam of 2": (lambda w: beams(w, 2), 4, 2),
    "deep beam of 2": (lambda w: beams(w, 2), 3, 3),
    "top-k tree": (best, 4, 3),
    "a fixed number": (fixed_number, 3, 2),
    "head and one sample": (lambda w: head_and_sample(w, Sampling.HEAD_AND_ONE), 3, 2),
    "of both kinds": (lambda w: head_and_sample(w, Sampling.MIXED), 3, 2),
    "no draft": (lambda w: iter([(DraftTree.empty(), 1.0)]), 3, 2),
} | {f"n-gram {text}": (points(text), 3, 2) for text in itertools.product(range(3), repeat=2)}
"""For each way of drafting: its function, the vocabulary size and the depth."""


# -- rounds -----------------------------------------------------------------------------------------------------------


def verification_results(
    verifier: Verifier, tree: DraftTree, ruling: AcceptanceDecision, sampling: SamplingParams
) -> Iterator[tuple[VerificationResult, float]]:
    """Yield all verification results with their probabilities; `bonus` is the position of the last token, not a token.

    The walk that most verifiers share only compares numbers, so that its results depend on the tree's shape alone.
    """
    parents, accept = tuple(tree.parents.tolist()), ruling.accept.tolist()
    score = None if ruling.score is None else ruling.score.tolist()
    if not verifier.needs_uniform(sampling):
        yield verifier.walk(parents, accept, range(len(tree) + 1), None, score), 1.0
    elif type(verifier).walk is not Verifier.walk:
        yield from walk_results(verifier, parents, accept, score)
    else:
        assert all(0 <= a <= 1 for a in accept)
        for verdict in shared_walk_results(parents):
            chance = math.prod(accept[node] if kept else 1 - accept[node] for node, kept in verdict.tested)
            if chance > 0:
                yield verdict, chance


@cache
def shared_walk_results(parents: tuple[int, ...]) -> list[VerificationResult]:
    """Return all results of the shared walk in a tree of this shape."""
    return [verdict for verdict, _ in walk_results(Lossless(), parents, [0.5] * len(parents), None)]


def walk_results(
    verifier: Verifier, parents: Sequence[int], accept: Sequence[float], score: Sequence[float] | None
) -> Iterator[tuple[VerificationResult, float]]:
    """Yield all results of a verifier's own walk with their probabilities.

    The walk is called with random numbers just below and at each threshold; its list of tested nodes shows the next.
    """
    places = range(len(parents) + 1)
    waiting: list[tuple[dict[int, float], float]] = [({}, 1.0)]
    while waiting:
        uniform, chance = waiting.pop()
        verdict = verifier.walk(parents, accept, places, [uniform.get(i, 1.0) for i in places[:-1]], score)
        node = next((node for node, _ in verdict.tested if node not in uniform), None)
        if node is None:
            yield verdict, chance
            continue
        a = accept[node]
        assert 0 <= a <= 1
        if a > 0:
            waiting.append((uniform | {node: math.nextafter(a, 0)}, chance * a))
        if a < 1:
            waiting.append((uniform | {node: a}, chance * (1 - a)))


def test_shared_walk_equals_the_walk_of_the_verifier() -> None:
    """For random acceptance probabilities, including 0 and 1."""
    generator = torch.Generator().manual_seed(0)
    for parents in ([-1], [-1, 0, 1], [-1, -1, -1], [-1, -1, 0, 0, 1], [-1, 0, -1, 1, 1, 2, 0, -1]):
        for _ in range(20):
            accept = (2 * torch.rand(len(parents), generator=generator) - 0.5).clamp(0, 1)
            tree = DraftTree.from_parents([0] * len(parents), parents)
            ruling = AcceptanceDecision(accept, torch.zeros(len(parents) + 1, dtype=torch.long))
            found = {v.bonus: (v, by) for v, by in verification_results(Lossless(), tree, ruling, WARM)}
            wanted = {v.bonus: (v, by) for v, by in walk_results(Lossless(), parents, accept.tolist(), None)}
            assert {at: (v.path, v.tested) for at, (v, _) in found.items()} == {
                at: (v.path, v.tested) for at, (v, _) in wanted.items()
            }
            assert all(by == pytest.approx(wanted[at][1]) for at, (_, by) in found.items())


MARK = 1 << 40
"""Number above all token ids."""


class DrawRecorder:
    """Records the distributions that a verifier's rule passes to `pick`, in any number of calls.

    While a rule is traced, `pick` returns for each row a mark in place of a token. A mark in `AcceptanceDecision.bonus`
    identifies the distribution of the token emitted there. A rule may therefore only emit a drawn token and must not
    use it otherwise; this is checked by a second call with real tokens.
    """

    def __init__(self, really: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.really, self.asked, self.distributions = really, False, list[Tensor]()

    def record_pick(self, weights: Tensor, u: Tensor) -> Tensor:
        """Replacement of `pick`."""
        if not self.asked:
            return self.really(weights, u)
        first = MARK + sum(map(len, self.distributions))
        self.distributions.append(weights / weights.sum(1, keepdim=True))
        return torch.arange(first, first + len(weights), device=weights.device)

    def rule(self, verifier: Verifier, v: Verification) -> tuple[AcceptanceDecision, Tensor]:
        """Return a verifier's decision, and the distribution of its token at each position: float64 [N+1, V]."""
        self.asked, self.distributions = True, []
        try:
            ruling = verifier.rule(v)
        finally:
            self.asked = False
        size = v.logits.shape[1]
        sure = torch.nn.functional.one_hot(torch.where(ruling.bonus < MARK, ruling.bonus, 0), size).double()
        distributions = torch.cat([sure[:1], *self.distributions])[
            torch.where(ruling.bonus < MARK, 0, ruling.bonus - MARK + 1)
        ]
        message = f"{type(verifier).__name__} accepts by `pick`'s token: accept by probabilities, and emit that token."
        assert torch.equal(ruling.accept, verifier.rule(v).accept), message
        return ruling, torch.where((ruling.bonus < MARK)[:, None], sure, distributions)


@contextmanager
def record_draws(patch: pytest.MonkeyPatch) -> Iterator[DrawRecorder]:
    """Replace `pick` in all modules, to record the distributions that a rule draws from (`DrawRecorder.rule`)."""
    drawn, really = DrawRecorder(pick), pick
    with patch.context() as seeing:
        for module in [m for m in sys.modules.values() if vars(m).get("pick") is really]:
            seeing.setattr(module, "pick", drawn.record_pick)
        yield drawn


def state_of(verifier: Verifier, size: int) -> Any:
    """Return the per-sequence state of a verifier for these tests; None if it has none.

    For `Nearest`: token embeddings on a circle. For `Judge`: a judge of one-hot states that accepts every token except
    the first. For `EntropyAdaptive`: the draft model generates.
    """
    if isinstance(verifier, EntropyAdaptive):
        return EntropyState(GeneratorState(is_draft_model=True, n_tokens=0))
    if isinstance(verifier, Judge):
        net = JudgeHead(size).double()
        net.load_state_dict({"weight": 4.0 * (torch.arange(size) > 0) - 2, "bias": torch.tensor(0.0)})
        return net.prepare_for_drafting()
    angle = torch.arange(size) * (math.tau / size) ** 0.9
    return Neighbours(torch.stack([angle.cos(), angle.sin()], 1)) if isinstance(verifier, Nearest) else None


def probed_of(verifier: Verifier, tree: DraftTree, p: Tensor) -> ProbeOutput | None:
    """Return the target's results at probe positions: for `Reflective`, p with the order of the tokens reversed."""
    if not isinstance(verifier, Reflective) or not len(tree):
        return None
    second = p.log().flip(1)
    return ProbeOutput(second_reading(tree, torch.tensor([0])), second, second)


def output_distribution(
    w: DistributionTables,
    drafts: Drafts,
    verifier: Verifier,
    patch: pytest.MonkeyPatch,
    sampling: SamplingParams = WARM,
) -> Tensor:
    """Return the distribution of the first depth + 1 output tokens, float64 [V, …, V], after one speculative round.

    Args:
        w: distributions; for greedy decoding, each p is a point mass.
        drafts: all possible drafts.
        verifier: verifier under test.
        patch: for recording the distribution of the last token.
        sampling: sampling parameters for the verifier.
    """
    joint, whole = w.joint(), 0.0
    out = torch.zeros_like(joint[()])
    with record_draws(patch) as drawn:
        for tree, chance in drafts:
            p = torch.stack([w.p[text] for text in texts_of(tree)])
            u = None if sampling.greedy else torch.full((len(p),), 0.5, dtype=torch.float64)
            probed = probed_of(verifier, tree, p)
            hidden = torch.nn.functional.one_hot(torch.tensor([0, *tree.tokens]), w.size).double()
            v = Verification(
                tree, p.log(), p, sampling, u, hidden, state=state_of(verifier, w.size), probe_output=probed
            )
            out += chance * output_distribution_of_draft(v, verifier, joint, w.depth, drawn)
            whole += chance
    assert whole == pytest.approx(1, abs=EXACTLY), "the probabilities of the drafts do not add up to 1"
    return out


def output_distribution_of_draft(
    v: Verification, verifier: Verifier, joint: Mapping[Text, Tensor], depth: int, drawn: DrawRecorder
) -> Tensor:
    """Return the output distribution for one draft, summed over all verification results.

    Plain decoding follows each of them.

    Args:
        v: the draft and the target's distributions for it.
        verifier: verifier under test.
        joint: the target's joint distributions after each text (`DistributionTables.joint`).
        depth: maximum depth of the draft.
        drawn: recorder of `record_draws`.
    """
    ruling, last = drawn.rule(verifier, v)
    texts, tokens = texts_of(v.tree), v.tree.tokens.tolist()
    size, out = len(joint[()]), torch.zeros_like(joint[()])
    for verdict, by in verification_results(verifier, v.tree, ruling, v.sampling):
        text = texts[verdict.bonus]
        assert tuple(tokens[node] for node in verdict.path) == text
        left = depth - len(text)  # plain decoding follows the last token of the round
        then = torch.stack([joint[(*text, token)] for token in range(size)]) if left else torch.ones(())
        out[text] += by * last[verdict.bonus].view(-1, *[1] * left) * then
    return out


def distance(a: Tensor, b: Tensor) -> float:
    """Return the total variation distance."""
    return float((a - b).abs().sum() / 2)


VERIFIERS = {
    AsDrafted(),  # its setting that accepts everything; the catalogue has others
    *(v for m in registry.methods() for v in m.verifiers if not isinstance(v, Exact | AsDrafted)),
}
"""Verifiers under test; test_exact_verifiers.py tests those of `verifiers.offered` that differ from `Lossless`."""
EXACT = {verifier for verifier in VERIFIERS if verifier.exact_for}
APPROXIMATE = VERIFIERS - EXACT


@pytest.mark.parametrize("verifier", sorted(EXACT, key=repr), ids=lambda v: type(v).__name__)
@pytest.mark.parametrize(
    ("way", "kind"),
    [(way, kind) for way in DRAFT_SCHEMES for kind in KINDS if kind in ("zeros", "disjoint") or "deep" not in way],
)
def test_round_distribution_is_the_targets(
    way: str, kind: str, verifier: Verifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For every combination of drafts and verifier that is declared exact."""
    drafts, size, depth = DRAFT_SCHEMES[way]
    w = random_tables(kind, size, depth)
    found = next(drafts(w), None)
    if found is None:
        pytest.skip("the drafter has too few tokens for such drafts")
    tree, _ = found
    if not len(tree) or not why_unsound("", {tree.sampling}, "", verifier.exact_for):
        assert float((output_distribution(w, drafts(w), verifier, monkeypatch) - w.joint()[()]).abs().max()) < EXACTLY


@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("independent siblings", Sampling.WITHOUT_REPLACEMENT),
        ("beam of 2", Sampling.SAMPLED),
        ("top-k tree", Sampling.SAMPLED),
        ("head and one sample", Sampling.SAMPLED),
        ("chain of 2", Sampling.DETERMINISTIC),
    ],
)
def test_false_declaration_of_the_sampling_is_detected(
    way: str, said: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A false declaration makes the output distribution wrong, with one exception.

    Sampled drafts may be declared deterministic: this only lowers acceptance.
    """
    drafts, size, depth = DRAFT_SCHEMES[way]
    w = random_tables("other", size, depth)

    def recorded_drafts() -> Drafts:
        for tree, chance in drafts(w):
            texts = texts_of(tree)
            tree = sampled(w, [text[-1] for text in texts[1:]], tree.parents.tolist(), said)
            yield (replace(tree, q=None, child_q_rows=None) if said is Sampling.DETERMINISTIC else tree), chance

    apart = distance(output_distribution(w, recorded_drafts(), Lossless(), monkeypatch), w.joint()[()])
    assert apart < EXACTLY if said is Sampling.DETERMINISTIC else apart > 1e-3


@pytest.mark.parametrize("most", [1, 2])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "equal"])
def test_token_after_an_early_end_is_sampled_from_p(kind: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that calls `pick` twice is traced correctly; one that wrongly draws from the residual is detected."""
    w = random_tables(kind, 3, 3)
    wanted = w.joint()[()]
    assert distance(output_distribution(w, chains(w), FirstFew(most), monkeypatch), wanted) < EXACTLY
    apart = distance(output_distribution(w, chains(w), WrongFirstFew(most), monkeypatch), wanted)
    assert apart < EXACTLY if kind == "disjoint" else apart > 1e-3, "with disjoint distributions nothing is accepted"


@dataclass(frozen=True)
class SampledOutcomeVerifier(Lossless):
    """A rule that draws a token first and accepts a draft that equals it: its decision contains no probabilities."""

    def rule(self, v: Verification) -> AcceptanceDecision:
        assert v.u_bonus is not None
        token = pick(v.p, v.u_bonus)
        return AcceptanceDecision((token[v.tree.parents + 1] == v.tree.tokens).to(v.p), token)


def test_verifier_that_accepts_by_a_sampled_outcome_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its decisions are outcomes and not probabilities, so that they cannot be summed to a distribution."""
    w = random_tables("any", 3, 2)
    with pytest.raises(AssertionError, match="accept by probabilities, and emit that token"):
        output_distribution(w, chains(w), SampledOutcomeVerifier(), monkeypatch)


GREEDY_EXACT = {verifier for verifier in VERIFIERS if verifier.keeps_greedy}


@pytest.mark.parametrize("verifier", sorted(GREEDY_EXACT, key=repr), ids=lambda v: type(v).__name__)
@pytest.mark.parametrize("way", ["chain of 2", "beam of 2", "top-k tree", "n-gram (0, 0)", "n-gram (1, 2)"])
def test_greedy_round_emits_the_targets_tokens(way: str, verifier: Verifier, monkeypatch: pytest.MonkeyPatch) -> None:
    """For all drafts; approximate verifiers promise this, too, unless they declare otherwise."""
    drafts, size, depth = DRAFT_SCHEMES[way]
    w = random_tables("any", size, depth)
    sure = {text: torch.zeros_like(p).scatter_(0, p.argmax(0, keepdim=True), 1.0) for text, p in w.p.items()}
    w = replace(w, p=sure)
    assert distance(output_distribution(w, drafts(w), verifier, monkeypatch, GREEDY), w.joint()[()]) < EXACTLY


@pytest.mark.parametrize("verifier", sorted(APPROXIMATE, key=repr), ids=lambda v: type(v).__name__)
@pytest.mark.parametrize(  # tokens with p = 0 are never accepted, so disjoint distributions test nothing
    ("kind", "way"),
    [
        *itertools.product(("any",), ("chain of 2", "independent siblings", "top-k tree")),
        *itertools.product(("equal",), ("chain of 2", "beam of 2", "top-k tree")),
        pytest.param("any", "beam of 2", marks=pytest.mark.on_demand),
        pytest.param("equal", "independent siblings", marks=pytest.mark.on_demand),
        ("other", "chain of 2"),
        ("zeros", "chain of 2"),
    ],
)
def test_approximate_verifier_changes_the_distribution(
    way: str, kind: str, verifier: Verifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An approximate verifier changes the distribution, unless q = p and it accepts everything."""
    drafts, size, depth = DRAFT_SCHEMES[way]
    w = random_tables(kind, size, depth)
    if isinstance(verifier, Nearest):
        verifier = replace(verifier, mass=1.0)  # with three tokens, a neighbour's probability exceeds the default limit
    apart = distance(output_distribution(w, drafts(w), verifier, monkeypatch), w.joint()[()])
    keeps_all = kind == "equal" and way != "top-k tree" and isinstance(verifier, Lenient | Nearest | Judge)
    if isinstance(verifier, EntropyAdaptive | AsDrafted):  # they verify trees exactly
        keeps_all = kind == "equal" or way != "chain of 2"
    assert apart < EXACTLY if keeps_all else apart > 1e-3
