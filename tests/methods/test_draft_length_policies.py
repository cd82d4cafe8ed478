"""Draft length policies that learn from measured times, with simulated clocks and drafters."""

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
from workbench.decoders.draft_verify.parts import Plan, Policy, RoundFeedback
from workbench.decoders.draft_verify.state import DraftState
from workbench.decoders.draft_verify.tree_building import STOPPED, Step
from workbench.engine import Engine, Models, Request, Sequence
from workbench.engine.request import RoundReport
from workbench.methods import registry
from workbench.methods.common.trained_net import load_trained
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
    """Return a sequence without a request, with the fields that policies read."""
    row: Any = Sequence.__new__(Sequence)
    row.trace, row.report, row.state = SimpleNamespace(rounds=[]), RoundReport(), DraftState()
    row.settings = SimpleNamespace(configured_method=registry.get("prompt-lookup").with_params(ngram=1), models=None)
    return row


@dataclass
class Run:
    """A sequence with a simulated clock: `cost` is a round's seconds by drafted levels; plain passes take 1 s."""

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
        """Simulate this many more rounds."""
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
        """Return the speedup over plain decoding at one token per second."""
        return self.tokens / self.seconds


def chains(acceptance: float | Callable[[int], float], seed: int = 0) -> Kept:
    """Return a function that accepts every token with one probability, which may depend on the round."""
    rng = random.Random(seed)

    def kept(i: int, drafted: int) -> int:
        a = acceptance(i) if callable(acceptance) else acceptance
        return next((n for n in range(drafted) if rng.random() >= a), drafted)

    return kept


# -- planned ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("draft_s", [0.02, 0.2, 0.5, 1.0])
@pytest.mark.parametrize("depth", [4, 10])
def test_useless_drafter_costs_little_in_the_long_run(draft_s: float, depth: int) -> None:
    run = Run(Planned(depth=depth), lambda k: 1 + draft_s * k, lambda i, n: 0).go(2000)
    assert run.speed_up > 0.97
    assert sum(map(bool, run.depths[-1000:])) > 1, "it is still tried now and then"


@pytest.mark.parametrize("acceptance", [0.0, 0.1, 0.2, 0.3, 0.5])
@pytest.mark.parametrize("first_s", [0.1, 0.4, 0.8])
def test_text_of_a_hundred_tokens_loses_at_most_five_percent(acceptance: float, first_s: float) -> None:
    """Drafts have a cost before their first token, such as an extra forward pass of heads or layers."""
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
def test_planned_length_is_the_best_one(acceptance: float, draft_s: float, best: int) -> None:
    """Compared with Leviathan's E[τ] summed term by term; verification takes 1 s, each further token 5 % more."""

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


def test_drafting_follows_changes_in_difficulty_of_the_text() -> None:
    easy = lambda i: 0.95 if 500 <= i < 800 else 0.0  # noqa: E731
    run = Run(Planned(), lambda k: 1 + 0.2 * k, chains(easy)).go(1200)
    assert sum(run.depths[300:500]) < 30
    assert sum(run.depths[600:800]) > 3.5 * 200 * 0.9
    assert sum(run.depths[900:1200]) < 45


def test_a_change_of_the_cost_of_drafts_is_noticed() -> None:
    """The cost changes during a run, for example because another program uses the other core."""
    state = {"slow": 0.1}
    run = Run(Planned(), lambda k: 1 + state["slow"] * k, chains(0.6)).go(300)
    assert sum(run.depths[200:]) > 200
    state["slow"] = 1.5
    run.go(400)
    assert sum(map(bool, run.depths[400:])) < 30


def test_failed_lookups_cost_little_and_long_matches_are_drafted_whole() -> None:
    """A copying drafter finds a draft in every tenth round; a failed lookup costs a hundredth of a pass."""
    run = Run(Planned(depth=8), lambda k: 1 + 0.02 * k, lambda i, n: n, offers=lambda i: i % 10 == 0, idle_s=0.01)
    run.go(1000)
    found = [d for i, d in enumerate(run.depths) if i % 10 == 0 and i > 100]
    assert sum(found) / len(found) > 6
    assert run.speed_up > 1.5


def test_estimates_are_not_used_for_another_drafter() -> None:
    run = Run(Planned(), lambda k: 1 + 0.3 * k, chains(0.0)).go(200)
    assert run.state[0].acceptance < 0.2
    run.row.settings.configured_method = registry.get("prompt-lookup").with_params(ngram=2)
    run.go(1)
    assert run.state[0].acceptance == pytest.approx(0.7)


def test_acceptance_estimate_counts_tests_with_decay() -> None:
    """First token of two accepted: 1 of 2 tests; with weight 0.5 per round, at most as much as four tests."""
    belief = RoundEstimates()
    for _ in range(20):
        verdict = VerificationResult((0,), 0, True, ((0, True), (1, False)), {})
        belief.count_tests(RoundFeedback([1, 2], [-1, 0], verdict, [1, 3], 4, [], Plan(2)), 0.5)
    assert belief.acceptance == pytest.approx(0.5)
    assert sum(belief.tested.values()) == pytest.approx(4.0)
    assert belief.tokens(1)[1] == pytest.approx(1 + (2 + 2 * 0.5) / (2 + 2))


# -- bandit -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("acceptance", "draft_s"), [(0.9, 0.1), (0.6, 0.3), (0.05, 0.4)])
def test_bandit_finds_the_best_length(acceptance: float, draft_s: float) -> None:
    rates = [sum(acceptance**i for i in range(k + 1)) / (1 + draft_s * k) for k in range(5)]
    run = Run(Bandit(), lambda k: 1 + draft_s * k, chains(acceptance)).go(3000)
    assert run.speed_up > 0.93 * max(rates)
    assert set(run.depths) == set(range(5))


def test_bandit_reward_is_total_tokens_per_total_seconds() -> None:
    """Two rounds, 1 token in 0.01 s and 9 in 0.19 s: 50 tokens per second, while the mean of the rates is 74."""
    run = Run(Bandit(depth=1), lambda k: 1.0, chains(0.0))
    played = run.state[0]
    played.rounds.extend([(1, 1, 0.01), (1, 9, 0.19), (0, 2, 0.05)])
    assert played.rates() == {1: (2, pytest.approx(50.0)), 0: (1, pytest.approx(40.0))}
    assert Bandit(depth=1, exploration=0.0).choose(played.rates()) == 1
    assert Bandit(depth=1, exploration=2.0).choose(played.rates()) == 0, "the arm that was played less is played"


def test_bandit_starts_anew_with_another_drafter() -> None:
    run = Run(Bandit(), lambda k: 1 + 0.3 * k, chains(0.0)).go(60)
    assert run.depths[-20:].count(4) < 10
    run.row.settings.configured_method = registry.get("prompt-lookup").with_params(ngram=2)
    assert run.go(5).depths[-5:] == [4, 3, 2, 1, 0], "all arms are played again"


def test_bandit_adapts_after_the_text_changes() -> None:
    swap = lambda i: 0.95 if i < 600 else 0.0  # noqa: E731
    run = Run(Bandit(remembered=100), lambda k: 1 + 0.3 * k, chains(swap)).go(1000)
    assert sum(run.depths[500:600]) > 250
    assert sum(run.depths[800:]) < 200


# -- buckets ----------------------------------------------------------------------------------------------------------


def test_reward_is_mean_tokens_times_batch_size_over_the_median_time() -> None:
    """The card's example: 3, 5, 2 and 6 accepted drafts of 4 sequences in 0.05 s; one round of 1 s has no effect."""
    pulls = Pulls()
    pulls.rounds[4] = deque((3, kept + 1, 0.05) for kept in (3, 5, 2, 6))
    assert pulls.rewards(4) == {3: pytest.approx(400.0)}
    pulls.rounds[4].append((3, 5, 1.0))
    assert pulls.rewards(4) == {3: pytest.approx(400.0)}
    assert pulls.rewards(5) == {}, "nothing is known for another batch size"


@pytest.mark.parametrize(("acceptance", "draft_s"), [(0.95, 0.05), (0.6, 0.3), (0.05, 0.4)])
def test_buckets_find_the_best_length(acceptance: float, draft_s: float) -> None:
    rates = [sum(acceptance**i for i in range(k + 1)) / (1 + draft_s * k) for k in lengths(8)]
    run = Run(Buckets(depth=8), lambda k: 1 + draft_s * k, chains(acceptance)).go(2000)
    assert run.speed_up > 0.9 * max(rates), "a tenth of the rounds explore"
    assert set(run.depths) == set(lengths(8)), "all lengths were played"


def test_a_tenth_of_the_rounds_explore() -> None:
    """Exploration is uniform over four lengths, so that three rounds in forty do not use the best one."""
    policy, chance = Buckets(depth=8), random.Random(1)
    rewards = {8: 1.0, 4: 3.0, 2: 2.0, 1: 0.5}
    played = Counter(policy.choose(rewards, chance) for _ in range(4000))
    assert played[4] == pytest.approx(4000 * 37 / 40, rel=0.02)
    assert all(played[k] == pytest.approx(100, rel=0.35) for k in (8, 2, 1))
    assert {replace(policy, chance=0.0).choose(rewards, chance) for _ in range(50)} == {4}


def test_larger_batches_have_their_own_rewards_and_shorter_drafts() -> None:
    run = Run(Buckets(depth=4), lambda k: 1 + 0.3 * k, chains(0.0)).go(60)
    assert run.depths[-20:].count(1) > 14
    policy, others = Buckets(depth=4, chance=0.0), [run.row] * 6
    first = policy.plan(run.row, run.state, others)
    assert (first.depth, first.nodes) == (4, 16), "nothing was played in a batch of six"
    assert run.row.report.signals["sequences in the batch"] == 6
    alone = policy.plan(run.row, run.state, [run.row])
    assert (alone.depth, alone.nodes) == (1, 48)
    assert policy.plan(run.row, run.state, [run.row] * 33).depth == 0, "passes are full without drafts"


def test_buckets_start_anew_with_another_drafter_and_decay() -> None:
    run = Run(Buckets(), lambda k: 1 + 0.3 * k, chains(0.0)).go(60)
    run.row.settings.configured_method = registry.get("prompt-lookup").with_params(ngram=2)
    assert run.go(3).depths[-3:] == [4, 2, 1], "all arms are played again"
    swap = lambda i: 0.95 if i < 600 else 0.0  # noqa: E731
    run = Run(Buckets(remembered=60), lambda k: 1 + 0.3 * k, chains(swap)).go(1000)
    assert sum(run.depths[500:600]) > 300
    assert sum(run.depths[800:]) < 300


# -- entropy ----------------------------------------------------------------------------------------------------------


def test_square_root_of_the_entropy_by_hand() -> None:
    """The cards' example has 1.1421 nats; four equal tokens have ln 4; a certain token has 0."""
    distributions = torch.tensor([[0.5, 0.3, 0.15, 0.05], [0.25] * 4, [1.0, 0, 0, 0]], dtype=torch.float64)
    assert root_entropy(distributions).tolist() == pytest.approx([1.0687, 1.1774, 0.0], abs=1e-4)


@pytest.mark.parametrize(("bound", "goes_on"), [(1.06, False), (1.07, True)])
def test_draft_ends_where_the_distribution_is_not_peaked_enough(bound: float, goes_on: bool) -> None:
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
def test_round_records_where_and_why_its_draft_stopped(values: dict[str, Any], asked: str, models: Models) -> None:
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
    """Return each method's policies that this file tests."""
    own = {"planned", "entropy", "bandit", "buckets", "optimal-oracle", "specdec++"}
    return [(name, p.name) for name in NAMES for p in registry.get(name).policies if p.name in own]


@pytest.mark.parametrize(("name", "policy"), offered())
def test_greedy_text_is_the_targets_however_long_the_drafts(name: str, policy: str, models: Models) -> None:
    prompt = [3, 1, 4, 1, 5, 3, 1, 4]
    plain = Request(prompt, registry.get("autoregressive"), max_new_tokens=24, stop_at_eos=False)
    values = {"exit_layer": 1} if name == "early-exit" else {}
    method = registry.get(name).with_params(policy=policy, **values)
    if models.unsupported_reason(method.needs):
        pytest.skip("no such head for this model")
    trace = Engine(models).generate(Request(prompt, method, max_new_tokens=24, stop_at_eos=False))
    assert trace.token_ids == Engine(models).generate(plain).token_ids
    assert trace.header.simulation is (policy == "optimal-oracle")


def test_run_with_the_oracle_is_marked_as_a_simulation_from_then_on(models: Models) -> None:
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
def test_oracle_drafts_only_accepted_tokens(name: str, models: Models) -> None:
    """As many tokens per round as with the whole draft, and no rejection except of a first token."""
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


def test_oracle_warns_that_it_needs_greedy_decoding(models: Models) -> None:
    method = registry.get("draft-model").with_params(policy="optimal-oracle")
    assert method.promise is Promise.SIMULATION
    assert registry.get("draft-model").with_params().promise is Promise.EXACT
    trace = Engine(models).generate(Request([3, 1, 4], method, SamplingParams(1.0), 12, seed=1, stop_at_eos=False))
    assert any("for greedy text only" in warning for warning in trace.footer.warnings)
    assert not trace.footer.error


# -- specdec++ ---------------------------------------------------------------------------------------------------------


def test_specdec_stops_where_a_rejection_is_likely(models: Models) -> None:
    """Compare with the rule by hand: the product of the head's probabilities at the draft model's states."""
    assert models.drafter is not None
    prompt, sampling = [3, 1, 4, 1, 5, 3, 1, 4], SamplingParams(temperature=0.9)
    net = load_trained(AcceptanceHead, models, "head", "")
    net.last.weight.data.mul_(0.5)
    net.last.bias.data.fill_(2.0)  # probabilities near 0.9 that vary
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
            assert r.signals["probability of a rejection (1 − ∏ p̂)"] == pytest.approx(1 - kept[stop - 1], abs=1e-5)
        lengths.append(len(drafted))
        text += [token.token for token in r.emitted]
    assert len(set(lengths[:-2])) > 1, "the length varies"


def test_a_head_for_another_draft_model_is_refused(models: Models) -> None:
    own = models.heads["acceptance"]
    other = dataclasses.replace(own, config=own.config | {"drafter": "somebody-else"})
    shared_copy = dataclasses.replace(models, heads=models.heads | {"acceptance": other})
    needs = registry.get("draft-model").with_params(policy="specdec++").needs
    assert models.unsupported_reason(needs) == ""
    assert (
        "needs the draft model somebody-else, but the chosen one is tiny-llama-noisy"
        in shared_copy.unsupported_reason(needs)
    )
    bare = dataclasses.replace(models, heads={})
    assert "no acceptance heads trained for" in bare.unsupported_reason(needs)
    assert registry.get("draft-model").with_params().needs == ("drafter",), "other policies need none"


def test_states_of_another_width_are_an_error(models: Models) -> None:
    with pytest.raises(ModelError, match="workbench train acceptance"):
        acceptance_probs(models, torch.zeros(2, 3))
    with pytest.raises(ModelError, match="the drafter provides no"):
        acceptance_probs(models, None)


def test_bundled_head_drafts_varying_lengths() -> None:
    """An earlier head was degenerate: 93 of 97 drafts had the minimum of two tokens."""
    models = load_models("text-target", "auto", "cpu", "float32")
    method = registry.get("draft-model").with_params(policy="specdec++")
    texts = ("Once upon a time, there was a little", "Lily and Tom went to")
    prompts = [models.tokenizer.encode(text) for text in texts]
    requests = [Request(ids, method, SamplingParams(temperature=1.0), 32, seed) for seed, ids in enumerate(prompts)]
    traces = Engine(models, record=False).generate_all(requests)
    lengths = [len(r.nodes) for trace in traces for r in trace.rounds if len(r.nodes)]
    assert lengths.count(2) < 0.7 * len(lengths), lengths
    assert len(set(lengths)) >= 4, lengths
