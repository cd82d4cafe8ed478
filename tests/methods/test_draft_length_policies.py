"""How far to draft: policies that learn from a run's own clock, against clocks and drafters made by hand."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections import Counter, abc, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import model_helpers
import pytest
import torch

from workbench.core.errors import ModelError
from workbench.core.rejection import VerificationResult
from workbench.core.sampling import SamplingParams
from workbench.decoders import Promise
from workbench.decoders.draft_verify.draft_plan import Plan
from workbench.decoders.draft_verify.feedback import RoundFeedback
from workbench.decoders.draft_verify.parts import Policy
from workbench.decoders.draft_verify.state import DraftState
from workbench.decoders.draft_verify.tree_building import STOPPED, Step
from workbench.engine import Engine, Models, Request, Sequence
from workbench.engine.request import RoundReport
from workbench.methods import registry
from workbench.methods.drafters.ngram import NGram
from workbench.methods.drafters.trained_net import load_trained
from workbench.methods.policies import confidence, entropy
from workbench.methods.policies.bandit import Bandit
from workbench.methods.policies.buckets import Buckets, Pulls, lengths
from workbench.methods.policies.entropy import Entropy, root_entropy
from workbench.methods.policies.planned import Planned, RoundEstimates
from workbench.methods.policies.specdec_plus_plus import AcceptanceHead, acceptance_probs
from workbench.models.loading import load_models
from workbench.trace.events import Phase, Round
from workbench.trace.metrics import summary
from workbench.trace.nodes import Nodes
from workbench.training.acceptance import compute_logits_and_states

Seconds = Callable[[int], float]
Kept = Callable[[int, int], int]


def bare_row() -> Sequence:
    """A row of no request, with what policies read."""
    row: Any = Sequence.__new__(Sequence)
    row.trace, row.report, row.state, row.models = SimpleNamespace(rounds=[]), RoundReport(), DraftState(), None
    row.configured_method = SimpleNamespace(drafter=NGram(1), verifier=None, tree_builder=None)
    return row


@dataclass
class Run:
    """A row on a clock made by hand: `cost` is a round's seconds by its drafted levels, plain passes take 1."""

    policy: Policy
    cost: Seconds
    kept: Kept
    offers: Callable[[int], bool] = lambda i: True
    idle_s: float = 0.0
    depths: list[int] = field(default_factory=list)
    seconds: float = 0.0
    tokens: int = 0

    def __post_init__(self) -> None:
        self.row: Any = bare_row()
        self.state = self.policy.init_state()

    def go(self, rounds: int) -> Run:
        """So many rounds more."""
        for i in range(len(self.depths), len(self.depths) + rounds):
            depth = self.policy.plan(self.row, self.state).depth
            drafted = depth if depth and self.offers(i) else 0
            kept = min(self.kept(i, drafted), drafted)
            seconds = self.cost(drafted) + (self.idle_s if depth and not drafted else 0.0)
            path = tuple(range(kept))
            verdict = VerificationResult(
                path, 0, kept < drafted, tuple((n, n < kept) for n in range(min(kept + 1, drafted))), {}
            )
            tokens = list(range(drafted))
            parents = [n - 1 for n in range(drafted)]
            self.policy.observe(
                self.row, self.state, RoundFeedback(tokens, parents, verdict, [0] * (kept + 1), 0, [], Plan(depth))
            )
            drafting = seconds - 1.0
            phases = [Phase("draft", self.seconds, self.seconds + drafting)]
            phases.append(Phase("verify", self.seconds + drafting, self.seconds + seconds))
            self.row.trace.rounds.append(
                Round(i, "m", {}, Nodes(), list(path), None, None, [], phases=phases, seconds=seconds)
            )
            self.depths.append(depth)
            self.seconds += seconds
            self.tokens += kept + 1
        return self

    @property
    def speed_up(self) -> float:
        """Over plain decoding, of one token a second."""
        return self.tokens / self.seconds


def chains(acceptance: float | Callable[[int], float], seed: int = 0) -> Kept:
    """Every token is kept with one probability, which may depend on the round."""
    rng = random.Random(seed)

    def kept(i: int, drafted: int) -> int:
        a = acceptance(i) if callable(acceptance) else acceptance
        return next((n for n in range(drafted) if rng.random() >= a), drafted)

    return kept


# -- planned ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("draft_s", [0.02, 0.2, 0.5, 1.0])
@pytest.mark.parametrize("depth", [4, 10])
def test_a_drafter_of_no_use_costs_next_to_nothing_in_the_long_run(draft_s: float, depth: int) -> None:
    run = Run(Planned(depth=depth), lambda k: 1 + draft_s * k, lambda i, n: 0).go(2000)
    assert run.speed_up > 0.97
    assert sum(map(bool, run.depths[-1000:])) > 1, "it is tried again now and then"


@pytest.mark.parametrize("acceptance", [0.0, 0.1, 0.2, 0.3, 0.5])
@pytest.mark.parametrize("first_s", [0.1, 0.4, 0.8])
def test_no_text_of_a_hundred_tokens_loses_more_than_a_twentieth(acceptance: float, first_s: float) -> None:
    """Where a draft costs something before its first token, as an extra forward of heads or of layers does."""
    figures = []
    for seed in range(20):
        run = Run(Planned(), lambda k: 1 + (first_s + 0.15 * k) * (k > 0), chains(acceptance, seed))
        while run.tokens < 100:
            run.go(1)
        figures.append(run.speed_up)
    assert sum(figures) / len(figures) > 0.95


@pytest.mark.parametrize(
    ("acceptance", "draft_s", "best"),
    [(0.95, 0.0, 6), (0.95, 0.02, 6), (0.6, 0.02, 4), (0.6, 0.1, 2), (0.3, 0.1, 1), (0.6, 0.75, 0), (0.05, 0.1, 0)],
)
def test_the_planned_length_is_the_one_that_pays(acceptance: float, draft_s: float, best: int) -> None:
    """Against Leviathan's E[τ] summed term by term, with one second a verification and 5 % for each further token."""

    def cost(k: int) -> float:
        return k * draft_s + 1 + 0.05 * k

    rates = [sum(acceptance**i for i in range(k + 1)) / cost(k) for k in range(7)]
    assert rates.index(max(rates)) == best
    belief = RoundEstimates()
    for k in (0, 3, 6):
        belief.seconds[k] = deque([cost(k)])
    belief.accepted, belief.tested = {1: 1e4 * acceptance}, {1: 1e4}
    outlook = [tokens / seconds for tokens, seconds in belief.outlook(6)]
    assert outlook == pytest.approx(rates, rel=1e-3)
    run = Run(Planned(depth=6, forgetting=0.98), cost, chains(acceptance)).go(1500)
    assert run.speed_up > 0.94 * max(rates)


def test_drafting_begins_again_where_the_text_turns_easy_and_ends_where_it_turns_hard() -> None:
    easy = lambda i: 0.95 if 500 <= i < 800 else 0.0  # noqa: E731
    run = Run(Planned(), lambda k: 1 + 0.2 * k, chains(easy)).go(1200)
    assert sum(run.depths[300:500]) < 30
    assert sum(run.depths[600:800]) > 3.5 * 200 * 0.9
    assert sum(run.depths[900:1200]) < 45


def test_a_machine_that_grows_slow_at_long_passes_is_seen() -> None:
    """The cost of drafts changes in mid-run, as where another program takes the other core."""
    state = {"slow": 0.1}
    run = Run(Planned(), lambda k: 1 + state["slow"] * k, chains(0.6)).go(300)
    assert sum(run.depths[200:]) > 200
    state["slow"] = 1.5
    run.go(400)
    assert sum(map(bool, run.depths[400:])) < 30


def test_looking_for_what_is_not_there_costs_a_look_and_what_is_found_is_drafted() -> None:
    """A copying drafter that finds something in every tenth round: whole copies then, else a hundredth of a pass."""
    run = Run(Planned(depth=8), lambda k: 1 + 0.02 * k, lambda i, n: n, offers=lambda i: i % 10 == 0, idle_s=0.01)
    run.go(1000)
    found = [d for i, d in enumerate(run.depths) if i % 10 == 0 and i > 100]
    assert sum(found) / len(found) > 6
    assert run.speed_up > 1.5


def test_what_a_run_learnt_of_one_drafter_is_not_believed_of_the_next() -> None:
    run = Run(Planned(), lambda k: 1 + 0.3 * k, chains(0.0)).go(200)
    assert run.state[0].acceptance < 0.2
    run.row.configured_method.drafter = NGram(2)
    run.go(1)
    assert run.state[0].acceptance == pytest.approx(0.7)


def test_the_belief_follows_what_was_tested_and_forgets() -> None:
    """A draft of two of which the first is kept: 1 of 2 tests, and at weight 0.5 a round as much as four tests."""
    belief = RoundEstimates()
    for _ in range(20):
        verdict = VerificationResult((0,), 0, True, ((0, True), (1, False)), {})
        belief.count_tests(RoundFeedback([1, 2], [-1, 0], verdict, [1, 3], 4, [], Plan(2)), 0.5)
    assert belief.acceptance == pytest.approx(0.5)
    assert sum(belief.tested.values()) == pytest.approx(4.0)
    assert belief.tokens(1)[1] == pytest.approx(1 + (2 + 2 * 0.5) / (2 + 2))


# -- bandit -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("acceptance", "draft_s"), [(0.9, 0.1), (0.6, 0.3), (0.05, 0.4)])
def test_the_bandit_finds_the_length_that_pays(acceptance: float, draft_s: float) -> None:
    rates = [sum(acceptance**i for i in range(k + 1)) / (1 + draft_s * k) for k in range(5)]
    run = Run(Bandit(), lambda k: 1 + draft_s * k, chains(acceptance)).go(3000)
    assert run.speed_up > 0.93 * max(rates)
    assert set(run.depths) == set(range(5))


def test_the_bandits_reward_is_all_tokens_over_all_seconds() -> None:
    """Two rounds of 1 token in 0.01 s and of 9 in 0.19 s: 50 a second, where the mean of their rates is 74."""
    run = Run(Bandit(depth=1), lambda k: 1.0, chains(0.0))
    played = run.state[0]
    played.rounds.extend([(1, 1, 0.01), (1, 9, 0.19), (0, 2, 0.05)])
    assert played.rates() == {1: (2, pytest.approx(50.0)), 0: (1, pytest.approx(40.0))}
    assert Bandit(depth=1, exploration=0.0).choose(played.rates()) == 1
    assert Bandit(depth=1, exploration=2.0).choose(played.rates()) == 0, "what was played less is played"


def test_the_bandit_believes_nothing_of_another_drafter() -> None:
    run = Run(Bandit(), lambda k: 1 + 0.3 * k, chains(0.0)).go(60)
    assert run.depths[-20:].count(4) < 10
    run.row.configured_method.drafter = NGram(2)
    assert run.go(5).depths[-5:] == [4, 3, 2, 1, 0], "all is played anew"


def test_the_bandit_forgets_what_was_best_before_the_text_changed() -> None:
    swap = lambda i: 0.95 if i < 600 else 0.0  # noqa: E731
    run = Run(Bandit(remembered=100), lambda k: 1 + 0.3 * k, chains(swap)).go(1000)
    assert sum(run.depths[500:600]) > 250
    assert sum(run.depths[800:]) < 200


# -- buckets ----------------------------------------------------------------------------------------------------------


def test_a_reward_is_mean_tokens_times_rows_over_the_median_time() -> None:
    """The card's: 3, 5, 2 and 6 drafts kept of 4 rows in 0.05 s; a round that took a second changes nothing."""
    pulls = Pulls()
    pulls.rounds[4] = deque((3, kept + 1, 0.05) for kept in (3, 5, 2, 6))
    assert pulls.rewards(4) == {3: pytest.approx(400.0)}
    pulls.rounds[4].append((3, 5, 1.0))
    assert pulls.rewards(4) == {3: pytest.approx(400.0)}
    assert pulls.rewards(5) == {}, "nothing is believed of another batch"


@pytest.mark.parametrize(("acceptance", "draft_s"), [(0.95, 0.05), (0.6, 0.3), (0.05, 0.4)])
def test_buckets_find_the_length_that_pays(acceptance: float, draft_s: float) -> None:
    rates = [sum(acceptance**i for i in range(k + 1)) / (1 + draft_s * k) for k in lengths(8)]
    run = Run(Buckets(depth=8), lambda k: 1 + draft_s * k, chains(acceptance)).go(2000)
    assert run.speed_up > 0.9 * max(rates), "a tenth of the rounds are drawn"
    assert set(run.depths) == set(lengths(8)), "all were played"


def test_a_tenth_of_the_lengths_are_drawn() -> None:
    """Of four, so that three in forty are not the best."""
    policy, chance = Buckets(depth=8), random.Random(1)
    rewards = {8: 1.0, 4: 3.0, 2: 2.0, 1: 0.5}
    played = Counter(policy.choose(rewards, chance) for _ in range(4000))
    assert played[4] == pytest.approx(4000 * 37 / 40, rel=0.02)
    assert all(played[k] == pytest.approx(100, rel=0.35) for k in (8, 2, 1))
    assert {replace(policy, chance=0.0).choose(rewards, chance) for _ in range(50)} == {4}


def test_a_larger_batch_verifies_less_and_is_learnt_of_by_itself() -> None:
    run = Run(Buckets(depth=4), lambda k: 1 + 0.3 * k, chains(0.0)).go(60)
    assert run.depths[-20:].count(1) > 14
    policy, others = Buckets(depth=4, chance=0.0), [run.row] * 6
    first = policy.plan(run.row, run.state, others)
    assert (first.depth, first.nodes) == (4, 16), "nothing was played in a batch of six"
    assert run.row.report.signals["rows of the batch"] == 6
    alone = policy.plan(run.row, run.state, [run.row])
    assert (alone.depth, alone.nodes) == (1, 48)
    assert policy.plan(run.row, run.state, [run.row] * 33).depth == 0, "passes are full without drafts"


def test_buckets_believe_nothing_of_another_drafter_and_forget() -> None:
    run = Run(Buckets(), lambda k: 1 + 0.3 * k, chains(0.0)).go(60)
    run.row.configured_method.drafter = NGram(2)
    assert run.go(3).depths[-3:] == [4, 2, 1], "all is played anew"
    swap = lambda i: 0.95 if i < 600 else 0.0  # noqa: E731
    run = Run(Buckets(remembered=60), lambda k: 1 + 0.3 * k, chains(swap)).go(1000)
    assert sum(run.depths[500:600]) > 300
    assert sum(run.depths[800:]) < 300


# -- entropy ----------------------------------------------------------------------------------------------------------


def test_the_root_of_the_entropy_by_hand() -> None:
    """The cards' golden law has 1.1421 nats; four tokens alike have ln 4; a certain one has none."""
    distributions = torch.tensor([[0.5, 0.3, 0.15, 0.05], [0.25] * 4, [1.0, 0, 0, 0]], dtype=torch.float64)
    assert root_entropy(distributions).tolist() == pytest.approx([1.0687, 1.1774, 0.0], abs=1e-4)


@pytest.mark.parametrize(("bound", "goes_on"), [(1.06, False), (1.07, True)])
def test_a_draft_ends_where_no_law_is_peaked_enough(bound: float, goes_on: bool) -> None:
    golden, flat = [0.5, 0.3, 0.15, 0.05], [0.25] * 4
    assert (
        bool(Entropy(root_entropy=bound).should_continue(bare_row(), None, Step(1, torch.tensor([flat, golden]))))
        is goes_on
    )


# -- on the engine ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return model_helpers.make_small_models(6, heads=tmp_path_factory.mktemp("heads") / "medusa")


@pytest.mark.parametrize(
    ("values", "asked"),
    [
        ({"policy": "entropy", "root_entropy": 0.0}, entropy.SIGNAL),
        ({"policy": "confidence", "threshold": 1.0}, confidence.SIGNAL),
    ],
    ids=["entropy", "confidence"],
)
def test_a_round_says_where_its_draft_was_stopped_and_what_was_asked(
    values: dict[str, Any], asked: str, models: Models
) -> None:
    method = registry.get("draft-model").with_params(**values, depth=4)
    trace = Engine(models).generate(Request([1, 2, 3], method, max_new_tokens=12, stop_at_eos=False))
    stopped = [r for r in trace.rounds if STOPPED in r.signals]
    assert stopped
    for r in stopped:
        assert max(r.nodes.depth) == r.signals[STOPPED] == 1
        assert r.signals[asked] > 0 if asked == entropy.SIGNAL else r.signals[asked] < 1
    free = {"root_entropy": 4.0} if asked == entropy.SIGNAL else {"threshold": 0.01}
    unstopped = registry.get("draft-model").with_params(**values | free)
    whole = Engine(models).generate(Request([1, 2, 3], unstopped, max_new_tokens=12, stop_at_eos=False))
    assert not [r for r in whole.rounds if STOPPED in r.signals]


NAMES = (
    "draft-model",
    "draft-tree",
    "eagle-2",
    "tlt",
    "medusa",
    "prompt-lookup",
    "token-recycling",
    "early-exit",
    "kangaroo",
)


def offered() -> abc.Sequence[tuple[str, str]]:
    """Each method's policies of this file."""
    own = {"planned", "entropy", "bandit", "buckets", "optimal-oracle", "specdec++"}
    return [(name, p.name) for name in NAMES for p in registry.get(name).policies if p.name in own]


@pytest.mark.parametrize(("name", "policy"), offered())
def test_greedy_text_is_the_targets_however_long_the_drafts(name: str, policy: str, models: Models) -> None:
    prompt = [3, 1, 4, 1, 5, 3, 1, 4]
    plain = Request(prompt, registry.get("autoregressive"), max_new_tokens=24, stop_at_eos=False)
    values = {"exit_layer": 1} if name == "early-exit" else {}
    method = registry.get(name).with_params(policy=policy, **values)
    if models.unsupported_reason(method.needs):
        pytest.skip("no such head in this world")
    trace = Engine(models).generate(Request(prompt, method, max_new_tokens=24, stop_at_eos=False))
    assert trace.token_ids == Engine(models).generate(plain).token_ids
    assert trace.header.simulation is (policy == "optimal-oracle")


def test_a_run_that_looks_ahead_is_a_simulation_from_when_it_does_and_under_any_verifier(models: Models) -> None:
    prompt, method = [3, 1, 4, 1, 5, 3, 1, 4], registry.get("draft-model")
    engine = Engine(models)
    row = engine.submit(Request(prompt, method, max_new_tokens=24, stop_at_eos=False))
    engine.step()
    assert row.trace is not None
    assert (row.trace.header.simulation, row.trace.header.promise) == (False, "exact")
    row.change(params={"policy": "optimal-oracle"})
    while not engine.is_idle:
        engine.step()
    assert (row.trace.header.simulation, row.trace.header.promise) == (True, "simulation")
    both = method.with_params(policy="optimal-oracle", verifier="lenient")
    header = Engine(models).generate(Request(prompt, both, max_new_tokens=8, stop_at_eos=False)).header
    assert (header.simulation, header.promise) == (True, "approximate")


@pytest.mark.parametrize("name", ["draft-model", "prompt-lookup"])
def test_the_oracle_drafts_what_is_kept_and_no_more(name: str, models: Models) -> None:
    """As many tokens a round as the whole draft would give, and nothing refused but a first token."""
    prompt = [3, 1, 4, 1, 5, 3, 1, 4, 1]
    traces = [
        Engine(models).generate(
            Request(prompt, registry.get(name).with_params(policy=p, depth=5), max_new_tokens=80, stop_at_eos=False)
        )
        for p in ("fixed", "optimal-oracle")
    ]
    fixed, roof = traces
    assert roof.token_ids == fixed.token_ids
    assert summary(roof)["tau"] == summary(fixed)["tau"]
    for a, b in itertools.zip_longest(fixed.rounds, roof.rounds):
        assert a.path == b.path
        if a.path:
            assert len(b.nodes) == len(a.path)
    assert sum(len(r.nodes) for r in fixed.rounds) > sum(len(r.nodes) for r in roof.rounds)


def test_the_oracle_says_that_it_knows_nothing_of_sampled_text(models: Models) -> None:
    method = registry.get("draft-model").with_params(policy="optimal-oracle")
    assert method.promise is Promise.SIMULATION
    assert registry.get("draft-model").with_params().promise is Promise.EXACT
    trace = Engine(models).generate(Request([3, 1, 4], method, SamplingParams(1.0), 12, seed=1, stop_at_eos=False))
    assert any("greedy text alone" in warning for warning in trace.footer.warnings)
    assert not trace.footer.error


# -- specdec++ ---------------------------------------------------------------------------------------------------------


def test_specdec_stops_when_a_rejection_is_likely(models: Models) -> None:
    """Against the rule by hand: the product of the head's chances, from the draft model's states behind each draft."""
    assert models.drafter is not None
    prompt, sampling = [3, 1, 4, 1, 5, 3, 1, 4], SamplingParams(temperature=0.9)
    net = load_trained(AcceptanceHead, models, "head", "")
    net.last.weight.data.mul_(0.5)
    net.last.bias.data.fill_(2.0)  # near 0.9 and not the same everywhere
    values = {"risk": 0.6, "shortest": 2, "longest": 12}
    method = registry.get("draft-model").with_params(policy="specdec++", **values)
    trace = Engine(models).generate(Request(prompt, method, sampling, 60, seed=2, stop_at_eos=False))
    text, lengths = list(prompt), []
    for r in trace.rounds:
        drafted = r.nodes.tokens
        left = 60 - (len(text) - len(prompt)) - 1
        states = compute_logits_and_states(models.drafter, [*text, *drafted])[1][len(text) :]
        kept = acceptance_probs(models, states).cumprod(0).tolist()
        stop = next((k for k in range(2, 13) if k <= len(kept) and 1 - kept[k - 1] > 0.6), 12)
        assert len(drafted) == min(stop, left, 12)
        if stop < min(left, 12):
            assert r.signals["chance of a rejection (1 − ∏ p̂)"] == pytest.approx(1 - kept[stop - 1], abs=1e-5)
        lengths.append(len(drafted))
        text += [token.token for token in r.emitted]
    assert len(set(lengths[:-2])) > 1, "it is no fixed length"


def test_a_head_for_another_draft_model_is_refused(models: Models) -> None:
    own = models.heads["acceptance"]
    other = dataclasses.replace(own, config=own.config | {"drafter": "somebody-else"})
    shared_copy = dataclasses.replace(models, heads=models.heads | {"acceptance": other})
    needs = registry.get("draft-model").with_params(policy="specdec++").needs
    assert models.unsupported_reason(needs) == ""
    assert "reads the draft model somebody-else, not tiny-llama-noisy" in shared_copy.unsupported_reason(needs)
    bare = dataclasses.replace(models, heads={})
    assert "no acceptance heads trained for" in bare.unsupported_reason(needs)
    assert registry.get("draft-model").with_params().needs == ("drafter",), "other policies need none"


def test_states_of_another_width_are_an_error(models: Models) -> None:
    with pytest.raises(ModelError, match="workbench train acceptance"):
        acceptance_probs(models, torch.zeros(2, 3))
    with pytest.raises(ModelError, match="the drafter provides no"):
        acceptance_probs(models, None)


def test_the_bundled_head_drafts_as_much_as_the_text_allows() -> None:
    """The first one was degenerate: 93 of 97 drafts had the two tokens that are the least."""
    models = load_models("text-target", "auto", "cpu", "float32")
    method = registry.get("draft-model").with_params(policy="specdec++")
    texts = ("Once upon a time, there was a little", "Lily and Tom went to")
    prompts = [models.tokenizer.encode(text) for text in texts]
    requests = [Request(ids, method, SamplingParams(temperature=1.0), 32, seed) for seed, ids in enumerate(prompts)]
    traces = Engine(models, record=False).generate_all(requests)
    lengths = [len(r.nodes) for trace in traces for r in trace.rounds if len(r.nodes)]
    assert lengths.count(2) < 0.7 * len(lengths), lengths
    assert len(set(lengths)) >= 4, lengths
