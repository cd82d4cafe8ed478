"""Superposed decoding: the card's figures, a naive version on tables, and drafters with and without support."""

from __future__ import annotations

import math
from collections import abc

import model_helpers
import pytest
import torch
from methods.test_round_enumeration import GREEDY, WARM, Text
from methods.test_shapes import make_growth
from methods.test_tree_builders import DEPTH, TableGrowth, V, chance, table, texts_of
from torch import Tensor

from workbench.core.errors import MethodUnavailableError
from workbench.core.sampling import SamplingParams
from workbench.core.tree import Sampling
from workbench.decoders import Promise
from workbench.decoders.draft_verify.parts import Plan
from workbench.decoders.draft_verify.tree_building import PartialTree
from workbench.engine import Engine, Models, Request, Sequence
from workbench.methods import registry
from workbench.methods.common.draft_model_tree import ModelGrowth
from workbench.methods.tree_builders import superposed
from workbench.methods.tree_builders.chain import Chain
from workbench.methods.tree_builders.superposed import NGrams, Superposed

pytestmark = pytest.mark.unchecked
COMMITTED = [0, 1, 2, 0, 1, 3, 2, 0, 1, 2, 4, 0, 1]


def mean_distribution(
    distributions: dict[Text, Tensor], texts: abc.Sequence[Text], weights: abc.Sequence[float]
) -> Tensor:
    """Return the mean distribution after several texts, as in `TableGrowth`."""
    return sum(
        (weight * distributions[text] for text, weight in zip(texts, weights, strict=True)), torch.zeros(V).double()
    )


def naive_drafts(
    distributions: dict[Text, Tensor], k: int, alpha: float, committed: abc.Sequence[int]
) -> list[list[Text]]:
    """Return the drafts of each level, best first: all k · V continuations are scored one by one, n-grams by search."""

    def p_ng(token: int, text: Text) -> float:
        found, before = 0.0, [*committed, *text]
        for n, weight in enumerate((0.01, 0.04, 0.15, 0.18, 0.12), 1):
            came = [committed[i + n] for i in range(len(committed) - n) if list(committed[i : i + n]) == before[-n:]]
            found += weight * came.count(token) / len(came) if came else 0.0
        return found

    drafts, levels = {(): 0.0}, []
    for _ in range(DEPTH):
        whole = sum(map(math.exp, drafts.values()))
        p = mean_distribution(distributions, list(drafts), [math.exp(score) / whole for score in drafts.values()])
        own = (p.log() / 0.06).log_softmax(0).tolist()
        found = dict[Text, float]()
        for text, score in drafts.items():
            grams = [p_ng(token, text) for token in range(V)]
            for token in range(V):
                gain = (1 - alpha) * own[token]
                if alpha and not any(grams):
                    gain -= 200
                elif alpha:
                    gain += alpha * math.log(grams[token]) if grams[token] else -math.inf
                found[(*text, token)] = score + gain
        best = [text for text in sorted(found, key=lambda text: -found[text])[:k] if found[text] > -math.inf]
        drafts = {text: found[text] for text in best}
        levels.append(best)
    return levels


@pytest.mark.parametrize("alpha", [0.0, 0.54, 1.0])
@pytest.mark.parametrize("k", [1, 3, 5])
def test_tree_equals_the_papers_beam(k: int, alpha: float) -> None:
    for seed in range(6):
        distributions = table(seed)
        growing = make_growth(distributions)
        growing.sequence.committed = list(COMMITTED)
        tree = Superposed(k, alpha).build(growing, Plan(DEPTH))
        wanted = [text for level in naive_drafts(distributions, k, alpha, COMMITTED) for text in level]
        assert texts_of(tree) == wanted
        assert tree.sampling is Sampling.DETERMINISTIC
        assert not tree.logq.any()
        assert max(tree.parents.tolist().count(parent) for parent in tree.parents.tolist()) <= tree.fanout


def test_one_draft_without_n_grams_is_the_greedy_chain() -> None:
    for seed in range(6):
        distributions = table(seed)
        alone = Superposed(1, 0.0).build(make_growth(distributions, sampling=GREEDY), Plan(DEPTH))
        chain = Chain().build(make_growth(distributions, sampling=GREEDY), Plan(DEPTH))
        assert alone.tokens.tolist() == chain.tokens.tolist()
        assert alone.parents.tolist() == chain.parents.tolist()
        assert torch.equal(alone.score, chain.score)  # type: ignore[arg-type]


def test_weights_of_a_level_sum_to_one_and_are_ordered_by_score(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[float]] = []
    really = PartialTree.superpose

    def watched(self: PartialTree, weights: Tensor) -> object:
        seen.append(weights.tolist())
        return really(self, weights)

    monkeypatch.setattr(PartialTree, "superpose", watched)
    Superposed(3, 0.0).build(make_growth(table(1)), Plan(DEPTH))
    assert len(seen) == DEPTH - 1
    for weights in seen:
        assert sum(weights) == pytest.approx(1)
        assert weights == sorted(weights, reverse=True)
        assert len(weights) == 3


# -- n-grams ----------------------------------------------------------------------------------------------------------


def test_n_grams_count_earlier_continuations() -> None:
    """After 0 1: 2 twice and 3 once; after 1: the same; after 2 0 1: only 3 and 2; after 4 0 1: nothing yet."""
    counts = NGrams()
    counts.read(COMMITTED)
    shares = counts.ngram_probs(COMMITTED, [2, 3, 4])
    assert shares == pytest.approx([2 / 3 * 0.05, 1 / 3 * 0.05, 0.0])
    two_zero_one = counts.ngram_probs([2, 0, 1], [2, 3, 4])
    assert two_zero_one == pytest.approx([2 / 3 * 0.05 + 0.15 / 2, 1 / 3 * 0.05 + 0.15 / 2, 0.0])
    assert counts.ngram_probs([9], [2, 3]) == [0.0, 0.0]


def test_n_grams_of_an_extended_text_equal_those_of_the_whole() -> None:
    counts, whole = NGrams(), NGrams()
    for end in (0, 1, 2, 7, 7, 13):
        counts.read(COMMITTED[:end])
    whole.read(COMMITTED)
    assert counts.following == whole.following


def test_known_n_grams_exclude_other_tokens_and_unknown_ones_cost_200() -> None:
    """The distribution prefers 3 everywhere; the text contains only 0 → 1 → 0."""
    distributions = {text: torch.tensor([0.2, 0.2, 0.2, 0.3, 0.1]).double() for text in table(0)}
    growing = make_growth(distributions)
    growing.sequence.committed = [0, 1, 0, 1, 0]
    tree = Superposed(3, 0.54).build(growing, Plan(2))
    assert texts_of(tree) == [(1,), (1, 0)], "on each level one candidate is known and the others are excluded"
    growing = make_growth(distributions)
    growing.sequence.committed = [4, 0]  # nothing came after 0
    first = texts_of(Superposed(3, 0.54).build(growing, Plan(2)))
    assert first[:1] == [(3,)]
    assert len(first) == 6
    growing = make_growth(distributions)
    growing.sequence.committed = [4, 2, 0]  # after 4 came 2, after 2 came 0, after 0 nothing
    found = texts_of(Superposed(5, 0.54).build(growing, Plan(2)))
    assert found[5:7] == [(2, 0), (4, 2)], "drafts with a known continuation outrank more likely ones by 200"


# -- over a draft model -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return model_helpers.make_small_models(12, heads=tmp_path_factory.mktemp("heads") / "medusa")


def run_three_rounds(models: Models, sampling: SamplingParams) -> tuple[Engine, Sequence]:
    """Run three rounds; return the engine and the sequence."""
    engine = Engine(models)
    row = engine.submit(Request([3, 1, 4, 1, 5], registry.get("draft-tree"), sampling, 100, stop_at_eos=False))
    for _ in range(3):
        engine.step()
    return engine, row


def growth_of(row: Sequence, models: Models) -> ModelGrowth:
    """Return a tree to be grown from the sequence's draft model, which has yet to read the last token."""
    assert models.drafter is not None
    models.drafter.rewind(row.state.drafter.slot, len(row.committed) - 1)
    return ModelGrowth(row, "test")


@pytest.mark.parametrize("sampling", [GREEDY, WARM, SamplingParams(1.0, repetition_penalty=1.7)], ids=str)
def test_equal_drafts_or_a_weight_of_one_equal_the_token_itself(models: Models, sampling: SamplingParams) -> None:
    """ẽ = E[y], if all drafts are y or one has all of the weight; with equal weights the distribution differs."""
    engine, row = run_three_rounds(models, sampling)
    with torch.inference_mode():
        first = growth_of(row, models)
        first.add(torch.tensor([7, 2]))
        wanted = first.expand().full_probs()
        for tokens, weights, same in [
            ([7, 7, 7], [0.2, 0.5, 0.3], True),
            ([2, 7], [0.0, 1.0], True),
            ([2, 7], [0.5, 0.5], False),
        ]:
            again = growth_of(row, models)
            again.add(torch.tensor(tokens))
            found = again.superpose(torch.tensor(weights, dtype=torch.float64)).full_probs()
            alike = torch.allclose(found[-1], wanted[0], atol=1e-9)
            assert alike is same
    row.cancel()
    engine.step()


@pytest.mark.parametrize("width", [1, 3, 8])
def test_a_level_costs_one_position_whatever_the_width(width: int, models: Models) -> None:
    drafter = models.drafter
    assert drafter is not None
    sizes, really = list[int](), drafter.forward

    def counted(batch: abc.Sequence, *args: object, **named: object) -> object:
        sizes.extend(len(segment.tokens) for segment in batch)
        return really(batch, *args, **named)  # type: ignore[arg-type]

    method = registry.get("draft-model").with_params(
        grower="superposed", policy="fixed", depth=4, width=width, ngrams=0.0
    )
    engine = Engine(models)
    row = engine.submit(Request([3, 1, 4, 1, 5], method, max_new_tokens=30, stop_at_eos=False))
    engine.step()
    drafter.forward = counted  # type: ignore[method-assign]
    try:
        engine.step()
    finally:
        drafter.forward = really  # type: ignore[method-assign]
    assert row.trace is not None
    last, before = row.trace.rounds[-1], row.trace.rounds[-2]
    assert sizes == [len(before.emitted), 1, 1, 1], "newly committed tokens, and one position per level"
    assert last.draft_forwards == 4
    assert len(last.nodes.tokens) > 4 or width == 1
    row.cancel()
    engine.step()


@pytest.mark.parametrize("ngrams", [0.0, 0.54])
@pytest.mark.parametrize("name", ["draft-model", "draft-tree", "draft-tree-sampled"])
def test_greedy_text_is_the_targets_when_tree_builders_alternate(name: str, ngrams: float, models: Models) -> None:
    """Entries that superposing leaves in the draft model's cache are never read."""
    plain = Request([3, 1, 4, 1, 5], registry.get("autoregressive"), max_new_tokens=40, stop_at_eos=False)
    engine = Engine(models)
    row = engine.submit(
        Request(plain.prompt, registry.get(name).with_params(ngrams=ngrams), max_new_tokens=40, stop_at_eos=False)
    )
    for grower in ("superposed", "eagle-2", "superposed", "chain", "superposed"):
        row.change(params={"grower": grower})
        engine.step()
        engine.step()
    while not engine.is_idle:
        engine.step()
    assert row.trace is not None
    assert not row.error
    assert {r.params["grower"] for r in row.trace.rounds} == {"superposed", "eagle-2", "chain"}
    assert row.trace.token_ids == Engine(models).generate(plain).token_ids


def test_after_superposing_the_draft_models_cache_is_unchanged(models: Models) -> None:
    """The distribution after the text equals that of a fresh prefill."""
    engine, row = run_three_rounds(models, WARM)
    row.change(params={"grower": "superposed"})
    longest = 0
    for _ in range(12):  # entries could only remain where a draft was accepted
        before = len(row.committed)
        engine.step()
        longest = max(longest, len(row.committed) - before - 1)
    assert longest >= 2
    with torch.inference_mode():
        found = growth_of(row, models).root.full_probs()[0]
    assert models.drafter is not None
    logits = model_helpers.next_logits_function(models.drafter.model)(row.committed)
    assert torch.allclose(found, logits.softmax(0), atol=1e-9)
    row.cancel()
    engine.step()


# -- where it is offered -----------------------------------------------------------------------------------------------


def test_it_is_offered_for_draft_models_and_exact_for_deterministic_drafts() -> None:
    for method in registry.methods():
        if "grower" in method.params:
            superposes = getattr(method.drafter, "superposes", False)
            assert ("superposed" in method.params["grower"].choices) is superposes, method.name
    method = registry.get("draft-model")
    assert method.with_params(grower="superposed").promise is Promise.EXACT
    assert method.with_params(grower="superposed", verifier="deterministic").promise is Promise.EXACT
    assert method.with_params(grower="superposed", verifier="typical").promise is Promise.APPROXIMATE
    for name in ("medusa", "eagle-2"):
        assert "superposed" not in registry.get(name).params["grower"].choices


def test_drafter_without_embedding_inputs_raises_an_error() -> None:
    class OnlyTokens(TableGrowth):
        distributions_as_one = PartialTree.distributions_as_one  # type: ignore[assignment]

    growing = OnlyTokens(table(0))
    growing.sequence = make_growth(table(0)).sequence
    with pytest.raises(MethodUnavailableError, match="cannot process a superposition of several tokens"):
        Superposed().build(growing, Plan(2))


def test_nan_distribution_drafts_nothing() -> None:
    distributions = {text: torch.full((V,), math.nan, dtype=torch.float64) for text in table(0)}
    assert len(Superposed(3, 0.0).build(make_growth(distributions), Plan(2))) == 0


def test_constants_equal_the_cards() -> None:
    assert (superposed.CANDIDATES, superposed.TEMPERATURE, superposed.UNKNOWN) == (9, 0.06, 200)
    assert superposed.WEIGHTS == (0.01, 0.04, 0.15, 0.18, 0.12)
    assert (Superposed().width, Superposed().ngrams) == (3, 0.0), "n-grams are off by default"
    assert chance(table(0), ()) == 1
