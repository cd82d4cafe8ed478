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
# # 02 · Rejection sampling from scratch
#
# **You will be able to**
#
# - derive the acceptance rule min(1, p/q) and the residual distribution;
# - write the rule in ten lines, and test that its output follows the target's distribution;
# - recognise the usual ways of getting it wrong, and say how many samples it takes to notice.
#
# **You need**: the terms of [00](00_first_run.ipynb) (draft, accepted, rejected, corrected, bonus), discrete
# probabilities, NumPy. No model is needed until the last section.

# %% tags=["parameters"]
import os

FAST = os.environ.get("WORKBENCH_FAST", "1") == "1"
TARGET = None  # a Hub id or a folder; None: the bundled model
DRAFTER = None  # the same for the draft model
DEVICE = "cpu"
SERVER = None  # "http://localhost:7860" shares the app's backend

# %%
import itertools
from collections import Counter

import ipywidgets as ui
import numpy as np
import torch
from scipy import stats
from transformers.utils import logging

from workbench import Workbench
from workbench import widgets as w
from workbench.bench.goodness import chi_square
from workbench.core.rejection import recursive_rejection, walk
from workbench.core.rejection import residual as engine_residual
from workbench.core.sampling import pick
from workbench.core.tree import DraftTree, Sampling
from workbench.models.truncated_drafter import drafter_for
from workbench.trace.theory import optimal_acceptance_lp

logging.disable_progress_bar()
if not SERVER:  # no drafter for the target: use its first layers
    DRAFTER = drafter_for(TARGET, DRAFTER)
wb = Workbench(SERVER, target=TARGET or "text-target", drafter=DRAFTER, device=DEVICE)

# %% [markdown]
# ## The problem
#
# A greedy target has one right token, so in notebook 00 a draft was right or wrong. A target that **samples** has no
# right token: it has a distribution **p**, and any token with p > 0 may come next. The drafter has its own distribution
# **q** and has already drawn a token x from it. After the verification pass we know both distributions at that position
# completely.
#
# We want a token that
#
# 1. follows **p exactly**: the output must not show that a drafter was used;
# 2. is **x as often as possible**: each accepted draft saves a target pass.
#
# Three tokens are enough to see everything.

# %%
TOKENS = ["cat", "dog", "owl"]
p = np.array([0.6, 0.3, 0.1])  # the target's distribution
q = np.array([0.3, 0.2, 0.5])  # the drafter's distribution: too high for the owl
assert np.isclose(p.sum(), 1)
assert np.isclose(q.sum(), 1)
for token, p_x, q_x in zip(TOKENS, p, q, strict=True):
    print(f"{token}   target p = {p_x:.1f}   drafter q = {q_x:.1f}")

# %% [markdown]
# ## Derive it: three questions, on paper
#
# Suppose a drafted x is accepted with some probability a(x), which we may choose. **Answer each question before you
# read on.**
#
# **Question 1.** Over many trials, how often is the output x *because x was drafted and accepted*? And how large may
# a(x) be at most, if the output is to follow p?
#
# <details><summary>Answer 1</summary>
#
# Token x is drafted with probability q(x) and then accepted with probability a(x): together q(x)·a(x). This must not
# exceed p(x). Otherwise x is emitted too often, and no later step can correct that. So **a(x) ≤ p(x)/q(x)**, and as a
# probability a(x) ≤ 1. We want to accept as often as possible:
#
# **a(x) = min(1, p(x)/q(x))**, and x is emitted as an accepted draft with probability q(x)·a(x) = **min(p(x), q(x))**.
#
# </details>
#
# **Question 2.** How much of p(x) is still missing, for each token x?
#
# <details><summary>Answer 2</summary>
#
# p(x) − min(p(x), q(x)): that is p(x) − q(x) where q(x) is smaller than p(x), and 0 elsewhere. We write **(p − q)₊**.
#
# </details>
#
# **Question 3.** How often is a draft rejected, and from which distribution must we draw then?
#
# <details><summary>Answer 3</summary>
#
# The probability of accepting sums to **β = Σ min(p, q)**, so a rejection has probability 1 − β. The missing
# probability sums to Σ (p − min(p, q)) = 1 − β as well. The two are equal, so the rejections can supply exactly the
# missing probability. So draw from the missing part, scaled to sum to 1: the **residual distribution (p − q)₊ / (1 −
# β)**.
#
# </details>
#
# **Check.** Token x is emitted, accepted or drawn after a rejection, with probability min(p, q) + (1 − β)·(p − q)₊/(1 −
# β) = p(x). ∎
#
# The proof assumes nothing about q. A bad drafter makes β small, but it cannot make the output wrong.

# %%
kept = np.minimum(p, q)
missing = np.clip(p - q, 0, None)
beta = kept.sum()
print("accepted  ", kept, " sum β =", beta.round(2))
print("missing   ", missing.round(2), " sum 1 − β =", missing.sum().round(2))
print("residual  ", (missing / missing.sum()).round(2))
assert np.isclose(missing.sum(), 1 - beta)
assert np.allclose(beta * (kept / beta) + (1 - beta) * (missing / missing.sum()), p)

# %% [markdown]
# ## The same as a picture
#
# Blue is the part that both distributions share: Σ min(p, q). On the left, brown is the part of q above p: drafts that
# must be rejected. On the right, yellow is the part of p above q: corrections must supply it. **Brown and yellow have
# the same area**, and that is the whole proof.
#
# The dart (white circle) shows the rule: it is thrown at height u·q(x) into the bar of the drafted token, with u
# uniform in [0, 1). The draft is accepted if the dart lands in the blue part, because u·q(x) < p(x) is equivalent to u
# < p(x)/q(x).

# %% tags=["drawing"] jupyter={"source_hidden": true}
BLUE, BROWN, YELLOW, INK = "#1189EC", "#761706", "#A0871F", "#1F2328"


def picture(p: np.ndarray, q: np.ndarray, x: int, u: float) -> str:
    """Draw both distributions as bars, split at min(p, q), and the dart at height u·q(x). Return SVG."""
    shared, top, parts = np.minimum(p, q), max(p.max(), q.max(), 0.01), []

    def box(left: float, low: float, high: float, colour: str, opacity: float) -> None:
        y, height = 190 - 150 * high / top, 150 * (high - low) / top
        parts.append(f'<rect x="{left}" y="{y:.1f}" width="44" height="{height:.1f}" fill="{colour}" '
                     f'fill-opacity="{opacity}" stroke="{colour}"/>')  # fmt: skip

    def text(left: float, y: float, words: str, size: int = 12) -> None:
        parts.append(f'<text x="{left}" y="{y}" font-size="{size}" fill="{INK}" text-anchor="middle">{words}</text>')

    for start, probs, colour, title in (
        (20, q, BROWN, "drafter q: accepted, rejected"),
        (300, p, YELLOW, "target p: accepted, corrected"),
    ):
        text(start + 102, 18, title, 13)
        for i, token in enumerate(TOKENS):
            left = start + 10 + 70 * i
            box(left, 0, shared[i], BLUE, 0.35)
            box(left, shared[i], probs[i], colour, 0.55)
            text(left + 22, 206, token)
            text(left + 22, 184 - 150 * probs[i] / top, f"{probs[i]:.2f}")
    y = 190 - 150 * u * q[x] / top
    parts.append(f'<circle cx="{52 + 70 * x}" cy="{y:.1f}" r="6" fill="white" stroke="{INK}" stroke-width="3"/>')
    ratio = min(1.0, p[x] / q[x]) if q[x] > 0 else 1.0
    verdict = "accepted ✓" if u < ratio else "rejected ✕"
    text(260, 232, f"draft {TOKENS[x]}: u = {u:.2f}, min(1, p/q) = {ratio:.2f} → {verdict}", 14)
    text(260, 254, f"β = Σ min(p, q) = {shared.sum():.2f}", 14)
    return (
        '<svg viewBox="0 0 520 264" width="620" role="img" aria-label="two distributions as bars" '
        f'style="background:white;max-width:100%">{"".join(parts)}</svg>'
    )


# %%
weights = {
    name: [
        ui.FloatSlider(v, min=0.01, max=1, step=0.01, description=t, orientation="vertical", layout={"height": "165px"})
        for t, v in zip(TOKENS, probs, strict=True)
    ]
    for name, probs in (("q", q), ("p", p))
}
drafted = ui.ToggleButtons(options=[(t, i) for i, t in enumerate(TOKENS)], value=2, description="draft x")
dart = ui.FloatSlider(0.5, min=0, max=0.999, step=0.001, description="u")
board = ui.HTML()


def redraw(*_: object) -> None:
    distributions = {name: np.array([s.value for s in sliders]) for name, sliders in weights.items()}
    board.value = picture(
        distributions["p"] / distributions["p"].sum(),
        distributions["q"] / distributions["q"].sum(),
        drafted.value,
        dart.value,
    )


for control in (*weights["p"], *weights["q"], drafted, dart):
    control.observe(redraw, "value")
redraw()
board.snapshot = lambda: board.value  # shown to a reader without a kernel
w.show(ui.HBox([ui.Label("q"), *weights["q"], ui.Label("p"), *weights["p"]]), drafted, dart, board)


# %% [markdown]
# **Try**, and predict each time: (1) make q equal to p: which drafts can still be rejected? (2) lower the owl's p and
# draft it: how small must u be? (3) can a draft of *every* token be rejected by some u, for any p and q?
#
# **Answers.** (1) None: β = 1. (2) Below p/q of the owl, which falls with its p. (3) No: a token with p ≥ q is accepted
# for every u, since u < 1 ≤ p/q.
#
# ## Ten lines

# %%
def verify_token(p, q, x, rng):
    """Verify one drafted token x ~ q against the target's distribution p: return (token, status)."""
    if rng.random() < min(1, p[x] / q[x]):
        return x, "accepted"
    residual = np.clip(p - q, 0, None)
    return rng.choice(len(p), p=residual / residual.sum()), "corrected"


def speculative_sample(p, q, rng):
    """Draft a token from q, then verify it."""
    return verify_token(p, q, rng.choice(len(q), p=q), rng)


# %% [markdown]
# ## Does the output follow p? Test it
#
# Draw many tokens and count. If the output follows p, token x is expected n·p(x) times. **Predict:** with n = 20,000,
# how far from 12,000 may the number of cats be before you suspect an error? 10? 70? 500?

# %%
N = 20_000 if FAST else 200_000
rng = np.random.default_rng(0)
drawn = [speculative_sample(p, q, rng) for _ in range(N)]
counts = Counter(token for token, _ in drawn)
statuses = Counter(status for _, status in drawn)
for i, token in enumerate(TOKENS):
    sigma = np.sqrt(N * p[i] * (1 - p[i]))
    print(f"{token}  seen {counts[i]:>6}   expected {N * p[i]:>8.0f} ± {sigma:.0f}")
print(f"accepted {statuses['accepted'] / N:.3f}   predicted β = {beta:.3f}")
assert abs(statuses["accepted"] / N - beta) < 5 * np.sqrt(beta * (1 - beta) / N)

# %% [markdown]
# **Answer: 500.** One standard deviation of the cats is about 69, so a difference of 70 is common and one of 500, more
# than seven standard deviations, shows an error. **Pearson's χ²** combines all cells into one number: the sum of (seen
# − expected)²/expected. If the output follows p, this sum follows the χ² distribution with one degree of freedom fewer
# than there are cells. The *p-value* is the probability of a sum at least as large. (The p of "p-value" is a different
# p.)

# %%
expected = N * p
by_hand = sum((counts[i] - expected[i]) ** 2 / expected[i] for i in range(3))
scipys = stats.chisquare([counts[i] for i in range(3)], expected)
fit = chi_square(counts, dict(enumerate(p)))  # the workbench's own, which also pools rare cells
print(f"by hand    χ² = {by_hand:.3f}")
print(f"scipy      χ² = {scipys.statistic:.3f}, p-value {scipys.pvalue:.3f}")
print("workbench ", fit)
assert np.isclose(by_hand, scipys.statistic)
assert np.isclose(by_hand, fit.statistic)
assert fit.fits(alpha=1e-4)


# %% [markdown]
# We call a sampler wrong if the p-value is below α = 0.0001: a *correct* sampler fails this test once in ten thousand
# times. Does a wrong sampler fail it too? A test that never fails proves nothing, so:
#
# ## Break it on purpose
#
# Each variant below changes one thing. **Predict** for each: does the output still follow p? If not, which token comes
# too often?
#
# | variant | what is changed |
# |---|---|
# | redraw | after a rejection, draw from **p** instead of the residual |
# | threshold | accept x exactly if p(x) ≥ q(x), without a random number |
# | no quotient | accept x with probability p(x), without dividing by q(x) |
# | absolute | the residual is taken as \|p − q\| instead of (p − q)₊ |

# %%
def keep(p, q):  # acceptance probability of each token
    return np.minimum(1, p / q)


def rest(p, q):
    return np.clip(p - q, 0, None)


VARIANTS = {
    "right": (keep, rest),
    "redraw": (keep, lambda p, q: p),
    "threshold": (lambda p, q: (p >= q).astype(float), rest),
    "no quotient": (lambda p, q: p, rest),
    "absolute": (keep, lambda p, q: np.abs(p - q)),
}


def output_distribution(p, q, accept, repair):
    """Return a variant's exact output distribution: accepted drafts plus draws after a rejection, as derived above."""
    a, r = accept(p, q), repair(p, q)
    return q * a + (1 - (q * a).sum()) * r / r.sum()


def sample_many(p, q, accept, repair, n, rng):
    """Draw n tokens from a variant, all at once."""
    x = rng.choice(len(q), p=q, size=n)
    r = repair(p, q)
    corrected = rng.choice(len(p), p=r / r.sum(), size=n)
    return np.where(rng.random(n) < accept(p, q)[x], x, corrected)


rng = np.random.default_rng(1)
for name, (accept, repair) in VARIANTS.items():
    probs = output_distribution(p, q, accept, repair)
    tokens = sample_many(p, q, accept, repair, N, rng)
    fit = chi_square(Counter(tokens.tolist()), dict(enumerate(p)))
    print(f"{name:<12} emits {probs.round(3)}   χ² = {fit.statistic:9.1f}   {'fits' if fit.fits() else 'CAUGHT'}")
    assert chi_square(Counter(tokens.tolist()), dict(enumerate(probs))).fits()  # `output_distribution` is right
    assert fit.fits() == (name == "right")
print(f"{'wanted':<12}          {p}")


# %% [markdown]
# **Answers.** Only the right rule gives p. The **owl** comes too often with "redraw" (0.14) and "absolute" (0.30). The
# **cat** comes too often with "threshold" (0.675; the owl never comes) and "no quotient" (0.713).
#
# The most tempting mistake is "redraw", because it sounds plausible: "the draft was rejected, so sample from the
# target". But tokens that are likely under q already had a chance to be emitted as accepted drafts, and drawing from p
# gives them a second one. The residual distribution accounts for the first.
#
# ### How small a bug can the test detect?
#
# The next mistake is easily made: the drafter samples at one temperature, and the rule gets the probabilities of
# another. Nothing crashes, and the text looks fine. **Predict:** how many samples does the test need to detect it? 100?
# 10,000? A million?

# %%
def heated(probs, temperature):
    scaled = probs ** (1 / temperature)
    return scaled / scaled.sum()


q_used = heated(q, 0.97)  # the drafter drew from this, but the rule still uses q
a, r = keep(p, q), rest(p, q)
probs = q_used * a + (1 - (q_used * a).sum()) * r / r.sum()
print("wanted", p, " emitted", probs.round(4), f" total variation {np.abs(probs - p).sum() / 2:.4f}")
verdicts = {}
for n in (100, 10_000, 1_000_000):
    x = np.random.default_rng(2).choice(3, p=probs, size=n)
    fit = chi_square(Counter(x.tolist()), dict(enumerate(p)))
    verdicts[n] = fit.fits()
    print(f"n = {n:>9,}: p-value {fit.p_value:.2g}   {'not noticed' if fit.fits() else 'caught'}")
assert verdicts[100]
assert not verdicts[1_000_000]

# %% [markdown]
# **Answer: between 10,000 and a million.** A deviation of size δ needs about 1/δ² samples. "The test passed" therefore
# always means "any deviation is smaller than about 1/√n", never "there is no deviation". The proof above shows that the
# rule has none; the test shows that the *code* implements the rule.
#
# ## Several drafts in a row
#
# A drafter writes K tokens, each from its distribution *given the tokens before*. One target pass gives the target's
# distribution at each of those positions, and one more after the last. Verify the drafts in order:
#
# - at the first rejection, emit the corrected token and **stop**: all later drafts continue a token that was rejected;
# - if all K are accepted, draw one **bonus** token from the target's last distribution.
#
# Test this with toy models: the next token depends only on the last one, so each model is a table.

# %%
P = np.array([[0.6, 0.3, 0.1], [0.2, 0.2, 0.6], [0.3, 0.5, 0.2]])  # [3, 3] target: row = last token
Q = np.array([[0.3, 0.2, 0.5], [0.4, 0.4, 0.2], [0.1, 0.6, 0.3]])  # [3, 3] drafter


def one_round(last, K, rng, stop_at_rejection=True):
    """Return the tokens that one round emits after token `last`."""
    drafts = [last]
    for _ in range(K):
        drafts.append(rng.choice(3, p=Q[drafts[-1]]))
    out = []
    for before, x in itertools.pairwise(drafts):
        token, status = verify_token(P[before], Q[before], x, rng)
        out.append(token)
        if status == "corrected" and stop_at_rejection:
            return out
    return [*out, rng.choice(3, p=P[drafts[-1]])]  # the bonus


def first_three(rng, **options):
    """Run rounds until there are three tokens, starting after a cat."""
    text = [0]
    while len(text) < 4:
        text += one_round(text[-1], 2, rng, **options)
    return tuple(int(t) for t in text[1:4])


rng = np.random.default_rng(3)
print("five rounds:", [[TOKENS[t] for t in one_round(0, 2, rng)] for _ in range(5)])

# %% [markdown]
# The joint distribution of three tokens has 27 cells, each a product of three entries of P. **Predict:** a variant that
# does *not* stop at a rejection emits three tokens in every round, so it is faster. Is its output wrong? By how much,
# and do single tokens already show it?

# %%
joint = {(a, b, c): P[0, a] * P[a, b] * P[b, c] for a, b, c in itertools.product(range(3), repeat=3)}
N_CHAINS = 8_000 if FAST else 80_000
rng = np.random.default_rng(4)
samples = [first_three(rng) for _ in range(N_CHAINS)]
hasty = [first_three(rng, stop_at_rejection=False) for _ in range(N_CHAINS)]
right, rushed = chi_square(Counter(samples), joint), chi_square(Counter(hasty), joint)
print("stops at a rejection:", right)
print("does not stop:       ", rushed)
assert right.fits()
assert not rushed.fits()
first = chi_square(Counter(s[0] for s in hasty), dict(enumerate(P[0])))
print("its first token alone:", first)
assert first.fits()

# %% [markdown]
# **Answer: the output is wrong, and the first token alone does not show it**: both variants verify it correctly. The
# error is in the tokens that *follow* it. A draft that was written after "owl" is verified with the target's
# distribution after "owl", while the text now has "cat" there. So test joint distributions, not first tokens. Stopping
# discards drafts, so long drafts from a weak drafter are mostly wasted; notebook 03 counts how many.
#
# ## It is the engine's rule
#
# The workbench verifies whole trees of drafts at once, in `workbench/core/rejection.py`. A chain is the simplest tree.
# Give it random distributions over 50 tokens and the same uniform numbers as our rule: the acceptance probabilities,
# the accepted path, and the corrected or bonus token must be equal.

# %%
V, K = 50, 4
for seed in range(200):
    rng = np.random.default_rng(seed)
    ps = rng.dirichlet(np.ones(V) * 0.3, size=K + 1)  # [K+1, V] the target's distributions, and one after the drafts
    qs = rng.dirichlet(np.ones(V) * 0.3, size=K)  # [K, V]
    xs = np.array([rng.choice(V, p=probs) for probs in qs])  # [K] the drafts
    u, u_bonus = rng.random(K), rng.random(K + 1)

    tree = DraftTree(
        torch.tensor(xs), torch.arange(-1, K - 1), torch.zeros(K), Sampling.SAMPLED, depth=K,
        q=torch.tensor(qs), child_q_rows=torch.tensor([*range(K), -1]),
    )  # fmt: skip
    ruling = recursive_rejection(tree, torch.tensor(ps), torch.tensor(u_bonus))
    result = walk(tree.parents.tolist(), ruling.accept.tolist(), ruling.bonus.tolist(), u.tolist())

    ours = np.minimum(1, ps[np.arange(K), xs] / qs[np.arange(K), xs])
    n = next((i for i in range(K) if u[i] >= ours[i]), K)  # drafts accepted before the first rejection
    probs = np.clip(ps[n] - qs[n], 0, None) if n < K else ps[K]
    token = np.searchsorted(probs.cumsum(), u_bonus[n] * probs.sum(), side="right")
    assert np.allclose(ruling.accept, ours)
    assert len(result.path) == n
    assert result.bonus == token
    assert result.corrected == (n < K)
print("p", ps.shape, " q", qs.shape, " → accept", tuple(ruling.accept.shape), " bonus", tuple(ruling.bonus.shape))
print("200 rounds: the same results as our rule")
assert torch.allclose(engine_residual(torch.tensor(p), torch.tensor(q)), torch.tensor(missing / missing.sum()))
assert (
    pick(torch.tensor(p)[None], torch.tensor([0.65], dtype=torch.float64)).item() == 1
)  # u = 0.65 is above the cat's 0.6: a dog

# %% [markdown]
# ## And it is what happens in a real run
#
# At temperature 1 the bundled models sample. The trace records p, q, the acceptance probability and the uniform number
# of every tested draft. Check each against the rule that you have derived.

# %%
trace = wb.generate(
    "Once upon a time there was a small", method="draft-model", params={"depth": 4, "temperature": 1.0},
    max_new_tokens=60, seed=7,
)  # fmt: skip
tested = 0
for r in trace.rounds:
    n = r.nodes
    for i, status in enumerate(n.status):
        if status != "discarded":
            tested += 1
            assert np.isclose(n.accept[i], min(1, n.p[i] / n.q[i]), rtol=1e-3, atol=1e-6)
            assert (n.u[i] < n.accept[i]) == (status == "accepted")
print(f"{tested} tested drafts, every one as derived")
w.ribbon(trace)

# %% [markdown]
# Select a token in the ribbon (or in the app): its card shows p, q, u and the quotient.

# %%
w.app_link(trace, base=SERVER)


# %% [markdown]
# ## Exercises
#
# **1. Overlap.** Show numerically, for a thousand random pairs of distributions, that β = Σ min(p, q) equals 1 − ½ Σ|p
# − q|, which is one minus the total variation distance. When is β = 1, and when 0?

# %% tags=["answer"]
def my_distance(p, q):
    """Return the total variation distance of two distributions [V]."""
    raise NotImplementedError  # yours


# %% tags=["check"]
@w.check
def overlap_is(distance):
    """Check that β = 1 − distance, for a thousand pairs."""
    for a, b in np.random.default_rng(5).dirichlet(np.ones(6), size=(1000, 2)):
        beta_ab, found = np.minimum(a, b).sum(), distance(a, b)
        assert np.isclose(beta_ab, 1 - found), f"for one pair β = {beta_ab:.3f} and 1 − yours = {1 - found:.3f}"


overlap_is(my_distance)

# %% tags=["solution"] jupyter={"source_hidden": true}
rng = np.random.default_rng(5)
pairs = rng.dirichlet(np.ones(6), size=(1000, 2))  # [1000, 2, 6]
overlap = np.minimum(pairs[:, 0], pairs[:, 1]).sum(1)
distance = np.abs(pairs[:, 0] - pairs[:, 1]).sum(1) / 2
assert np.allclose(overlap, 1 - distance)
assert overlap_is(lambda a, b: np.abs(a - b).sum() / 2).right
assert not overlap_is(lambda a, b: np.abs(a - b).sum()).right  # without the ½, each difference counts twice
print("equal for all 1,000; β = 1 only if p = q, β = 0 only if no token has probability in both distributions")


# %% [markdown]
# **2. A drafter without a distribution.** Prompt lookup copies from the context: its draft is deterministic, with q(x)
# = 1 for one token. Which acceptance probability and which residual distribution follow? Check your answer on a
# recorded run.

# %% tags=["answer"]
def my_rule(p, x):
    """Return (acceptance probability, residual distribution [V]) for the deterministic draft x."""
    raise NotImplementedError  # yours


# %% tags=["check"]
@w.check
def certain_draft(rule):
    """Check that accepted and corrected tokens together follow p, and that acceptance is as high as possible."""
    for p5 in np.random.default_rng(6).dirichlet(np.ones(5), size=100):
        accept, after = rule(p5.copy(), 2)
        assert 0 <= accept <= 1, "the first value is a probability"
        assert np.min(after) >= 0, "the second value is a distribution: nothing in it is negative"
        assert np.isclose(np.sum(after), 1), "the residual is a distribution: it sums to 1"
        kept = np.zeros(5)
        kept[2] = accept
        assert np.allclose(kept + (1 - accept) * np.asarray(after), p5), (
            "accepted and corrected tokens together do not follow p"
        )
        assert accept > p5[2] - 1e-9, f"exact, but with q(x) = 1 it may be accepted with {p5[2]:.3f}"


certain_draft(my_rule)

# %% tags=["solution"] jupyter={"source_hidden": true}
# min(1, p(x)/1) = p(x); the residual (p − q)₊ is p without x. So this is the same as drawing from p and accepting x if
# x is drawn.
copied = wb.generate(
    "the red kite and the blue boat and the red kite and the", method="prompt-lookup",
    params={"temperature": 1.0, "depth": 4}, max_new_tokens=60, seed=1,
)  # fmt: skip
nodes = [(r.nodes.p[i], a) for r in copied.rounds for i, a in enumerate(r.nodes.accept) if a is not None]
assert nodes
assert np.allclose([p_x for p_x, _ in nodes], [a for _, a in nodes], atol=1e-6)


def rule_of_certain(p, x):
    left = p.copy()
    left[x] = 0
    return p[x], left / left.sum()


assert certain_draft(rule_of_certain).right
assert not certain_draft(lambda p, x: (p[x], p)).right  # "redraw" again
assert not certain_draft(lambda p, x: (0.0, p)).right  # exact but useless: it never accepts
certain = np.array([0.0, 1.0, 0.0])
assert np.allclose(output_distribution(p, certain, lambda p, q: np.minimum(1, p), rest), p)
print(f"{len(nodes)} tested drafts were accepted with probability p(x)")


# %% [markdown]
# **3. Is there a better rule?** Any exact rule couples two random tokens: X with distribution q (the draft) and Y with
# distribution p (the output). Find the largest possible Pr[X = Y] over *all* joint distributions by linear programming,
# and compare it with β.

# %% tags=["answer"]
def my_best(p, q):
    """Return the largest Pr[X = Y] over all joint distributions with marginals q and p."""
    raise NotImplementedError  # yours, with scipy.optimize.linprog


# %% tags=["check"]
@w.check
def best_coupling(best):
    """Compare with the workbench's own linear program on ten random pairs."""
    for a, b in np.random.default_rng(7).dirichlet(np.ones(4), size=(10, 2)):
        wanted, found = optimal_acceptance_lp(a, b, 1), best(a, b)
        assert np.isclose(found, wanted, atol=1e-6), f"{found:.3f} for one pair, where {wanted:.3f} can be had"


best_coupling(my_best)

# %% tags=["solution"] jupyter={"source_hidden": true}
from scipy.optimize import linprog


def best_of_all(p, q):
    n = len(p)
    rows = np.kron(np.eye(n), np.ones(n))  # sums over y: the draft's distribution
    columns = np.kron(np.ones(n), np.eye(n))  # sums over x: the output's distribution
    found = linprog(-np.eye(n).ravel(), A_eq=np.vstack([rows, columns]), b_eq=np.concatenate([q, p]), bounds=(0, None))
    return -found.fun


print(f"best of all joint distributions {best_of_all(p, q):.4f}, our rule {beta:.4f}, the workbench's program "
      f"{optimal_acceptance_lp(p, q, 1):.4f}")  # fmt: skip
assert best_coupling(best_of_all).right
assert not best_coupling(lambda p, q: float((p * q).sum())).right  # as if draft and output were drawn independently
assert np.isclose(
    best_of_all(p, q), beta
)  # no exact rule accepts a single draft more often; for several drafts see notebook 08

# %% [markdown]
# ## Close this page and answer
#
# 1. Why may x not be accepted with a probability above p(x)/q(x)?
# 2. Why is the rejected probability mass equal to the missing probability mass?
# 3. Why is drawing from p after a rejection wrong?
# 4. Why does a round stop at its first rejection?
# 5. Your χ² test passes with 1,000 samples. What does that show, and what does it not show?
#
# If you can answer all five, you can derive speculative sampling. [03](03_acceptance_and_speedup.ipynb) computes the
# gain.
#
# ## References
#
# - Leviathan, Kalman, Matias 2023, *Fast inference from transformers via speculative decoding*, arXiv:2211.17192: §2.3
#   for the rule, appendix A.1 for the proof, §3.2 for β = 1 − total variation.
# - Chen et al. 2023, *Accelerating large language model decoding with speculative sampling*, arXiv:2302.01318:
#   Algorithm 2 and Theorem 1.
# - von Neumann 1951, *Various techniques used in connection with random digits*: rejection sampling itself, where a
#   rejection means "try again". Here there is one try, and the residual takes the place of trying again.
# - Pearson 1900, Philosophical Magazine 50: the χ² test.

# %%
wb.close()
