# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     notebook_metadata_filter: kernelspec,jupytext,-jupytext.text_representation.jupytext_version
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% tags=["colab"]
# Google Colab: installs the workbench from its repository. Everywhere else this cell does nothing.
import importlib.util
import subprocess
import sys

if "google.colab" in sys.modules and importlib.util.find_spec("workbench") is None:
    clone = "/content/workbench-repository"
    address = input("Address of the workbench's git repository: ")
    subprocess.run(["git", "clone", "--depth", "1", address, clone], check=True)
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--editable", f"{clone}[notebooks]"], check=True)
    sys.path.insert(0, clone)

# %% [markdown]
# # 13 · Several drafts at once
#
# **You will be able to**
#
# - solve the transport problem of multi-draft verification by hand, for two tokens and two drafts;
# - compute the bound, find the set of tokens that determines it, and name a rule that reaches it;
# - choose between drafts drawn independently, without replacement, and fixed ones, and explain why one kind can exceed
#   the bound of another.
#
# **You need**: min(1, p/q) and the residual distribution ([02](02_rejection_sampling.ipynb)); the last part of
# [08](08_temperature.ipynb) helps. p is the target's distribution, q the drafter's. No cell here generates text, so the
# notebook runs in seconds.

# %% tags=["parameters"]
import os

FAST = os.environ.get("WORKBENCH_FAST", "1") == "1"
SERVER = None  # "http://localhost:7860": the app that the links open

# %%
import itertools

import numpy as np

from workbench import widgets as w
from workbench.trace import theory
from workbench.views import recorded_runs

ROUNDS = 20_000 if FAST else 500_000

# %% [markdown]
# ## 1 · Two tokens, two drafts
#
# The target has p = (0.7, 0.3). The drafter has q = (0.4, 0.6), and draws **two** drafts for the same position,
# independently. One target pass verifies both. We must emit one token that follows p exactly, and it should be one of
# the drafts as often as possible.
#
# **Predict.** A single draft is accepted with probability Σ min(p, q) = 0.7. How often can an exact rule emit one of
# *two* drafts? (a) 0.70, (b) 0.82, (c) 0.91, (d) 0.94, (e) always.

# %%
p, q = np.array([0.7, 0.3]), np.array([0.4, 0.6])
SETS = {}  # sets of drafted tokens, with their probabilities
for x, y in itertools.product(range(2), repeat=2):
    SETS[frozenset({x, y})] = SETS.get(frozenset({x, y}), 0.0) + q[x] * q[y]
for tokens, chance in SETS.items():
    print(f"the drafts are {sorted(t + 1 for t in tokens)} with probability {chance:.2f}")
assert np.isclose(sum(SETS.values()), 1)

# %% [markdown]
# Write it as a **transport plan**. On the left are the sets of drafts with their probabilities: {1} with 0.16, {1, 2}
# with 0.48, {2} with 0.36. On the right is the required output: token 1 with 0.7, token 2 with 0.3. All probability
# mass on the left is sent to tokens. If the token is among the drafts, this is an acceptance; otherwise it is a
# rejection.
#
# Do it on paper before you read on:
#
# 1. {2} has 0.36, and token 2 takes only 0.3. So **0.06 must go to token 1, although it was not drafted**.
# 2. Then token 2 is full: all of {1, 2} goes to token 1, and so does {1}: 0.06 + 0.48 + 0.16 = 0.7. It fits.
#
# Accepted: 1 − 0.06 = **0.94**, answer (d). No rule can do better, since step 1 left no choice: under every rule, both
# drafts are token 2 with probability 0.36.

# %%
plan = {(frozenset({1}), 1): 0.30, (frozenset({1}), 0): 0.06, (frozenset({0, 1}), 0): 0.48, (frozenset({0}), 0): 0.16}
for tokens, chance in SETS.items():
    assert np.isclose(sum(mass for (given, _), mass in plan.items() if given == tokens), chance), (
        "all probability mass of these drafts is sent"
    )
for token in range(2):
    assert np.isclose(sum(mass for (_, to), mass in plan.items() if to == token), p[token]), (
        "each token gets its target probability"
    )
accepted = sum(mass for (given, to), mass in plan.items() if to in given)
print(f"accepted by hand: {accepted:.2f}; by linear programming: {theory.optimal_acceptance_lp(p, q, 2):.2f}")
assert np.isclose(accepted, theory.optimal_acceptance_lp(p, q, 2))

# %% [markdown]
# ## 2 · The bound, for any number of tokens
#
# Why must 0.06 be rejected? Because of a **set H** of tokens, here {2}: all drafts are in H with probability 0.6² =
# 0.36, and p has only 0.3 there. For every set, at least Pr[all drafts in H] − P(H) must be rejected, and the worst set
# gives exactly the optimum (it is the minimum cut of a flow; Hu et al. 2025):
#
# > α* = 1 + min over H of ( P(H) − Pr[all k drafts in H] ).
#
# The following rule reaches it. Of the two drafts, **choose** token 1 whenever it is among them. The chosen token has
# its own distribution: r = (1 − 0.36, 0.36) = (0.64, 0.36). Test the chosen token as if it were a single draft from r.
#
# **Predict.** How often is it accepted? Compute Σ min(p, r) before you run the cell.

# %%
r = np.array([1 - q[1] ** 2, q[1] ** 2])
print(f"r = {r}, accepted Σ min(p, r) = {np.minimum(p, r).sum():.2f}")
assert np.isclose(np.minimum(p, r).sum(), 0.94)
one_by_one, k_seq = theory.recursive_acceptance(p, q, 2), theory.kseq_acceptance(p, q, 2)[0]
print(f"SpecInfer's rule, one draft after the other: {one_by_one:.2f};  K-SEQ: {k_seq:.4f}")
assert one_by_one < k_seq < 0.94

# %% [markdown]
# **Answer: 0.94**, the bound itself. The rule "choose by weights, then test the choice with its distribution r" is
# exact for *all* weights, because the test is speculative sampling with r instead of q; and the best weights reach α*
# for two drafts. Testing one draft after the other (SpecInfer's rule) gives 0.82, answer (b).
#
# ## 3 · The bench
#
# Drag a bar, or focus it and use the arrow keys. The page computes the curves, the bound and the set that determines
# it. "What comes out" is sampled, so you can watch the output approach p. The app has the same page at `/verifiers`.

# %%
bench = w.bench(p, q, ["one", "two"], k=2, way="independent", rule="optimal-two")
bench

# %% [markdown]
# **Predict**, then try each of these on the bench; the next cell has the answers.
#
# - Raise k. Where does the bound reach 1, and which rules never do?
# - Press "without replacement". With two tokens and two drafts, acceptance is 1: why?
# - Press a rule that is crossed out, and draw 10,000 rounds. It is not exact for these drafts: look at the output.

# %%
for k in range(1, 6):
    table = theory.acceptance_table(p, q, k)
    names = ("optimum, with replacement", "K-SEQ", "recursive, with replacement", "optimum, without replacement")
    print(f"k = {k}: " + " · ".join(f"{name} {table[name]:.3f}" for name in names))
    assert np.isclose(table["optimum, with replacement"], 1) == (k >= 3)
    assert max(table["K-SEQ"], table["recursive, with replacement"]) < 1

# %% [markdown]
# **Answers.** The bound reaches 1 at **k = 3**, where Pr[all drafts are token 2] = 0.6³ = 0.216 falls below p = 0.3;
# SpecInfer's rule and K-SEQ come nearer with each draft and never reach it. Without replacement, two drafts of two
# tokens are **both tokens**, so every output was drafted. With a rule that is crossed out, the output **does not
# converge to p**, even with many draws.
#
# ## 4 · Four tokens, and three ways to draft
#
# Drafts **without replacement** never contain a token twice. A third way (Hu et al. 2025) *fixes* the k − 1 likeliest
# tokens of q and draws only the last draft from the rest, q̃. Only that draft is tested, with min(1, p/q̃). If it is
# rejected, y ~ (p − q̃)₊ is often one of the fixed tokens, which counts as an acceptance.
#
# **Predict.** p = (0.5, 0.3, 0.15, 0.05), q = (0.1, 0.4, 0.3, 0.2), three drafts. Can the third way exceed the bound of
# independent drafts? Can it exceed that of drafts without replacement?

# %%
p4, q4 = [0.5, 0.3, 0.15, 0.05], [0.1, 0.4, 0.3, 0.2]
for k in (1, 2, 3):
    table = theory.acceptance_table(p4, q4, k)
    print(f"k = {k}: " + " · ".join(f"{rule} {x:.3f}" for rule, x in sorted(table.items(), key=lambda row: row[1])))
table = theory.acceptance_table(p4, q4, 3)
assert table["optimum, with replacement"] < table["greedy scheme"] < table["optimum, without replacement"]

# %% [markdown]
# **Answer: yes, and no (here).** 0.833 is above 0.771, the optimum of independent drafts. This is no contradiction: a
# bound holds for **one kind of drafts**. Independent drafts are all in H = {2, 3, 4} with probability 0.9³ = 0.729, and
# p has 0.5 there; fixed drafts always contain the likely tokens of q. Here the third way stays below 0.949, the optimum
# without replacement. With other distributions the third way can exceed that optimum:

# %%
p3, q3 = [0.9, 0.05, 0.05], [0.4, 0.3, 0.3]
crossed = theory.acceptance_table(p3, q3, 2)
for rule in ("optimum, with replacement", "optimum, without replacement", "greedy scheme"):
    print(f"{rule:30} {crossed[rule]:.3f}")
assert crossed["greedy scheme"] > crossed["optimum, without replacement"] > crossed["optimum, with replacement"]
w.bench(p3, q3, k=2, way="head", rule="greedy-draft")

# %% [markdown]
# ## 5 · A position of a real run
#
# `draft-tree-sampled` draws siblings without replacement. The next cell takes one position of a recording, with the
# tokens that the trace lists for both p and q, and one token for all others:

# %%
trace = recorded_runs.trace("draft-tree-sampled")
index, place = next(
    (i, at)
    for i, r in enumerate(trace.rounds)
    for at, (top_p, top_q) in enumerate(zip(r.top_p, r.top_q, strict=False))
    if top_q is not None
    and r.nodes.parents.count(at - 1) > 1
    and max(top_p.prob) < 0.9
    and len(set(top_p.tokens) & set(top_q.tokens)) > 1
)
found = trace.rounds[index]
top_p, top_q = found.top_p[place], found.top_q[place]
listed = [token for token in top_p.tokens if token in top_q.tokens][:5]
texts = dict(zip([*top_q.tokens, *top_p.tokens], [*top_q.text, *top_p.text], strict=True))


def probs(top):
    """Return the probabilities of the listed tokens, and of all others together."""
    known = dict(zip(top.tokens, top.prob, strict=True))
    values = [known[token] for token in listed]
    return [*values, max(0.0, 1 - sum(values))]


drafts = found.nodes.parents.count(place - 1)
print(f"round {index + 1}: {drafts} drafts for one position")
assert drafts > 1
w.bench(probs(top_p), probs(top_q), [*(texts[token] for token in listed), "all others"], k=min(8, drafts))

# %% [markdown]
# In the app, "open in the verifier bench" on a node's card does the same for a position of a run, if the drafter's
# distribution was recorded:

# %%
w.app_link(method="draft-tree-sampled", temperature=0.8, base=SERVER, text="Run it, and open a node in the bench")


# %% [markdown]
# ## Exercises
#
# **1.** Compute α* for k independent drafts: go through all sets H.

# %% tags=["answer"]
def my_bound(p, q, k):
    """Return 1 + min over sets H of P(H) − q(H)ᵏ."""
    raise NotImplementedError


# %% tags=["check"]
@w.check
def bounds(bound):
    """Compare with the workbench's function, which needs no sets."""
    for distributions in ((p, q), (p4, q4), (p3, q3)):
        for k in (1, 2, 3):
            found, right = bound(*distributions, k), theory.optimal_acceptance(*distributions, k)
            assert abs(found - right) < 1e-9, f"{k} drafts of {list(distributions[1])}: {found:.3f} is not {right:.3f}"


bounds(my_bound)


# %% tags=["solution"] jupyter={"source_hidden": true}
def bound_by_sets(p, q, k):
    """Go through all sets, including the empty one, which gives 1."""
    tokens = range(len(p))
    sets = [H for size in range(len(p) + 1) for H in itertools.combinations(tokens, size)]
    return 1 + min(sum(p[i] for i in H) - (sum(q[i] for i in H) ** k if H else 0) for H in sets)


assert bounds(bound_by_sets).right
assert not bounds(lambda p, q, k: 1 - (1 - np.minimum(p, q).sum()) ** k).right  # k tries at one draft's acceptance


# %% [markdown]
# **2.** Two independent drafts; the one with the larger weight w is chosen (with equal tokens there is no choice).
# Which distribution r does the chosen token have? All weights are different.

# %% tags=["answer"]
def my_choice(q, w):
    """Return the distribution of the token with the larger weight among two draws from q."""
    raise NotImplementedError


# %% tags=["check"]
@w.check
def choices(probs):
    """Compare with counts."""
    rng = np.random.default_rng(0)
    weights = [3.0, 1.0, 4.0, 2.0]
    pairs = rng.choice(4, size=(ROUNDS, 2), p=q4)
    heavier = np.where(np.take(weights, pairs[:, 0]) >= np.take(weights, pairs[:, 1]), pairs[:, 0], pairs[:, 1])
    counted = np.bincount(heavier, minlength=4) / ROUNDS
    found = np.asarray(probs(q4, weights))
    assert abs(found.sum() - 1) < 1e-9, f"it sums to {found.sum():.3f}"
    assert abs(found - counted).max() < 0.02, f"{found.round(3)} is not what is counted, {counted.round(3)}"


choices(my_choice)


# %% tags=["solution"] jupyter={"source_hidden": true}
def choice_distribution(q, w):
    """Both drafts are the token, or the other has a smaller weight: q² + 2·q·(sum of q over smaller weights)."""
    q, w = np.array(q), np.array(w)
    lighter = np.array([q[w < mine].sum() for mine in w])
    return q**2 + 2 * q * lighter


assert choices(choice_distribution).right
assert not choices(lambda q, w: np.multiply(q, w) / np.dot(q, w)).right  # one reweighted draw, no choice of two

# %% [markdown]
# **3.** For p = (0.5, 0.3, 0.15, 0.05) and q = (0.1, 0.4, 0.3, 0.2): what is the acceptance of the third way (k − 1
# fixed, one drawn) with two drafts? Compute it by hand, to three digits.

# %% tags=["answer"]
my_greedy = None


# %% tags=["check"]
@w.check
def greedy(value):
    """Check p of the fixed token plus the overlap of the drawn one with p."""
    assert abs(value - 0.3) > 5e-4, "this is the fixed token alone: the drawn token counts, too"
    assert abs(value - theory.greedy_scheme_acceptance(p4, q4, 2)) < 1e-3, "q̃ = q without token 2, divided by 0.6"


greedy(my_greedy)

# %% tags=["solution"] jupyter={"source_hidden": true}
rest = np.array([0.1, 0.0, 0.3, 0.2]) / 0.6
by_hand = 0.3 + np.minimum([0.5, 0.0, 0.15, 0.05], rest).sum()
print(f"0.3 + min(.5, 1/6) + min(.15, .5) + min(.05, 1/3) = {by_hand:.3f}")
assert greedy(by_hand).right
assert not greedy(0.3).right

# %% [markdown]
# ## Close this page and answer
#
# 1. Two drafts are both token 2 with probability 0.36, and p has 0.3 there. What follows for every exact rule?
# 2. Why is "choose by weights, test with the distribution of the choice" exact for all weights?
# 3. What does drawing without replacement avoid, and what does it not change?
# 4. The greedy scheme is accepted more often than the optimum of independent drafts. Why is that no contradiction?
#
# ## Where to read on
#
# - Sun et al. 2023, *SpecTr: Fast Speculative Decoding via Optimal Transport*, arXiv:2310.15141: the transport problem, K-SEQ.
# - Hu et al. 2025, *Towards Optimal Multi-draft Speculative Decoding*, arXiv:2502.18779: the bound by subsets, greedy drafts.
# - Khisti et al. 2024, arXiv:2410.18234: choose first, then test.
# - Miao et al. 2024, *SpecInfer*, arXiv:2305.09781; Jeon et al. 2024, *Recursive Speculative Decoding*, arXiv:2402.14160:
#   one draft after the other, independent and without replacement.
