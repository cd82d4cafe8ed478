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
# # 03 · Acceptance, length, speed-up
#
# **You will be able to**
#
# - distinguish five "acceptance rates", compute each from one trace, and say which one a formula means;
# - derive the expected number of tokens per round, (1 − aᴷ⁺¹)/(1 − a), and check it against measurements;
# - find, from measured costs, the best draft length and the acceptance rate below which drafting is a loss.
#
# **You need**: [00](00_first_run.ipynb), [01](01_memory_bound.ipynb) for the cost of a pass, and the acceptance
# probability of [02](02_rejection_sampling.ipynb).

# %% tags=["parameters"]
import os

FAST = os.environ.get("WORKBENCH_FAST", "1") == "1"
TARGET = None  # a Hub id or a folder; None: the bundled model
DRAFTER = None  # the same for the draft model
DEVICE = "cpu"
SERVER = None  # "http://localhost:7860" shares the app's backend

# %%
import math
import statistics

import ipywidgets as ui
import numpy as np
import plotly.graph_objects as go
from scipy.optimize import brentq
from transformers.utils import logging

from workbench import Workbench
from workbench import widgets as w
from workbench.models.truncated_drafter import drafter_for
from workbench.trace import speedup
from workbench.trace.acceptance import definitions
from workbench.trace.metrics import acceptance_by_depth, summary
from workbench.trace.theory import best_depth, expected_tau, tau_by_position

logging.disable_progress_bar()
if not SERVER:  # no drafter for the target: use its first layers
    DRAFTER = drafter_for(TARGET, DRAFTER)
wb = Workbench(SERVER, target=TARGET or "text-target", drafter=DRAFTER, device=DEVICE)
STORY = "<|user|>Write a story about Mia and Tom. Put a red kite in it.<|assistant|>"
COPY = "<|user|>Repeat this text three times:\nThe little fox found a red kite and a blue boat<|assistant|>"
if TARGET is not None:
    STORY, COPY = "Once upon a time, Mia and Tom found a red kite.", "A red kite and a blue boat. A red kite and a blue"

# %% [markdown]
# ## One run, five rates
#
# Prompt lookup copies the words that followed an earlier occurrence of the last words. Sometimes it finds nothing, and
# sometimes it copies beyond the position where the target continues differently. That makes it a good example. The
# table shows the counts of every round of a run:

# %%
trace = wb.generate(COPY, method="prompt-lookup", params={"depth": 8}, max_new_tokens=80)
print(trace.text.strip())
print("\nround  drafted  tested  accepted  emitted")
for r in trace.rounds:
    tested_here = sum(status != "discarded" for status in r.nodes.status)
    print(f"{r.index:>5} {len(r.nodes):>8} {tested_here:>7} {len(r.path):>9} {len(r.emitted):>8}")
w.ribbon(trace)

# %% [markdown]
# "What is the acceptance rate?" Accepted drafts, of course, **divided by what?** Write down at least three candidates
# and their values for this table, before you run the next cell.

# %%
rounds = trace.rounds
accepted = sum(status == "accepted" for r in rounds for status in r.nodes.status)
wholes = {
    "tested": sum(status != "discarded" for r in rounds for status in r.nodes.status),
    "drafted": sum(len(r.nodes) for r in rounds),
    "configured": len(rounds) * max(len(r.nodes) for r in rounds),  # as if every round had drafted its full length
    "drafts": sum(len(r.nodes) > 0 for r in rounds),  # rounds that drafted anything
    "passes": len(rounds),
}
for name, whole in wholes.items():
    print(f"{accepted} accepted / {whole:>3} {name:<11} = {accepted / max(whole, 1):.3f}")
assert accepted <= wholes["tested"] <= wholes["drafted"] <= wholes["configured"]
assert wholes["drafts"] <= wholes["passes"]
if TARGET is None:  # with the bundled models, one run gives five different figures
    assert len(set(wholes.values())) == 5
    assert accepted / wholes["tested"] > 0.9
    assert accepted / wholes["configured"] < 0.7

# %% [markdown]
# For one run of one drafter, the first figure is above 90 %, the third below 70 %, and two are not even percentages.
# None of the five is wrong. Each answers a different question:
#
# | divided by | answers | used by |
# |---|---|---|
# | **tested** | how often is a tested draft accepted? | this workbench; the a of the formulas below |
# | **drafted** | which share of the drafted tokens was useful? | vLLM, llama.cpp |
# | **configured** | which share of the reserved positions was used? Short drafts count as failures | SGLang |
# | **drafts** | how many drafts are accepted in a round *that drafts*? | vLLM and llama.cpp, plus 1 |
# | **passes** | how many drafts are accepted per target pass? Plus 1: τ | this workbench, SGLang, Spec-Bench, plus 1 |
#
# The workbench has all definitions in one module, each with its source. Its counts must equal ours:

# %%
found = definitions(rounds, trace.header.rules)
print(f"{'used by':<17}{'name':<36}{'part':>4}{'whole':>6}{'value':>6}")
for d in found:
    value = "by i" if d.value is None else f"{d.value:.3f}"
    print(f"{d.user:<17}{d.name:<36}{d.part:>4}{d.whole:>6}{value:>6}  {d.formula}")
value_of = {(d.user, d.name): d.value for d in found}
if wholes["drafted"]:
    assert math.isclose(value_of["workbench", "acceptance rate"], accepted / wholes["tested"])
    assert math.isclose(value_of["vLLM", "draft acceptance rate"], accepted / wholes["drafted"])
    assert math.isclose(value_of["SGLang", "spec_accept_rate"], accepted / wholes["configured"])
    assert math.isclose(value_of["vLLM", "mean acceptance length"], 1 + accepted / wholes["drafts"])
assert math.isclose(value_of["workbench", "accepted per round"], accepted / wholes["passes"])

# %% [markdown]
# **Never compare two papers' "acceptance rates" before you know their denominators.**
#
# ## Tokens per round
#
# Suppose a drafter proposes K tokens, and each is accepted with the same probability a, given that all drafts before it
# were accepted. **Derive on paper** the expected number N of tokens that a round adds, before you open the answer.
# Hint: what is the probability that a round adds *more than* i tokens?
#
# <details><summary>Derivation</summary>
#
# A round always adds one token, the target's own. It adds more than i tokens exactly if the first i drafts were all
# accepted: probability aⁱ, for i = 0 … K. The mean of a count is the sum of these tail probabilities:
#
# **E[N] = Σ Pr[N > i] = 1 + a + a² + … + aᴷ = (1 − aᴷ⁺¹)/(1 − a)**
#
# </details>
#
# Is the exponent K + 1 or K? A check is useful only if it would reject wrong values. So first simulate with coins,
# which are cheap: half a million rounds for each a, compared with the formula for K − 1, K and K + 1. **Predict** E[N]
# for a = 0.5, 0.7, 0.9 and K = 4, and which of the nine values the coins will confirm.

# %%
K, DIALS = 4, (0.5, 0.7, 0.9)
rng = np.random.default_rng(0)
print("   a     coins ± standard error      K − 1        K    K + 1")
for a in DIALS:
    heads = rng.random((500_000, K)) < a  # [rounds, K]: would this draft be accepted?
    n = 1 + heads.cumprod(1).sum(1)  # accepted from the left, and the target's own token
    mean, error = n.mean(), n.std() / math.sqrt(len(n))
    values = {k: expected_tau(a, k) for k in (K - 1, K, K + 1)}
    fits = {k: abs(mean - value) < 5 * error for k, value in values.items()}
    print(
        f"{a:>4} {mean:>9.4f} ± {error:.4f}      ", *(f"{v:8.4f}{'' if fits[k] else ' ✕'}" for k, v in values.items())
    )
    assert fits == {K - 1: False, K: True, K + 1: False}  # the right one fails by chance once in two million times
    assert math.isclose(expected_tau(a, K), sum(a**i for i in range(K + 1)))

# %% [markdown]
# Now test the engine. We need a drafter with a known acceptance probability. The **oracle** is one: it computes the
# target's choice and replaces it with a wrong token with probability 1 − a. (It runs the target to draft, so its speed
# means nothing: it is a simulation.) It has few rounds here, so the interval is wide. Only the first rounds of each run
# count, as many as every run has. Later rounds happen only in runs with few accepted tokens, so including them would
# bias the mean.

# %%
SEEDS = range(5 if FAST else 30)
ROUNDS = 72 // (K + 1)
runs = {
    (a, seed): wb.start(
        STORY, "oracle", params={"depth": K, "acceptance": a}, max_new_tokens=72, seed=60 + int(100 * a) + seed
    )
    for a in DIALS
    for seed in SEEDS
}  # all at once, in one batch
oracle = {key: [r for r in run.wait().rounds[:ROUNDS] if len(r.nodes) == K] for key, run in runs.items()}
lengths = {a: [len(r.emitted) for seed in SEEDS for r in oracle[a, seed]] for a in DIALS}

print("   a   closed form   measured   ± 4 standard errors   rounds")
intervals = {}
for a, n in lengths.items():
    mean, error = statistics.fmean(n), statistics.stdev(n) / math.sqrt(len(n))
    intervals[a] = (mean, 1.96 * error)
    print(
        f"{a:>4} {expected_tau(a, K):>13.2f} {mean:>10.2f}      "
        f"{mean - 4 * error:.2f} … {mean + 4 * error:.2f} {len(n):>14}"
    )
    assert abs(mean - expected_tau(a, K)) <= 4 * error  # fails by chance about once in five thousand times
assert max(max(n) for n in lengths.values()) == K + 1  # not K: the best round gives all drafts and the bonus token

# %%
grid = [i / 100 for i in range(100)]
fig = go.Figure(layout={"title": "Tokens per round by acceptance a: closed form, and the oracle", "height": 400})
for depth, dash in ((1, "dot"), (2, "dash"), (4, "solid"), (8, "dashdot")):
    fig.add_scatter(x=grid, y=[expected_tau(a, depth) for a in grid], name=f"K = {depth}", line={"dash": dash})
fig.add_scatter(
    x=list(intervals), y=[mean for mean, _ in intervals.values()], mode="markers", name="oracle, K = 4, 95 %",
    error_y={"type": "data", "array": [half for _, half in intervals.values()]}, marker={"size": 9, "color": "#1F2328"},
)  # fmt: skip
fig.update_xaxes(title="acceptance a of a tested draft")
fig.update_yaxes(title="tokens per round, E[N]")
w.figure(fig)

# %% [markdown]
# Look at the right edge: a long draft pays only if a is close to 1. At a = 0.5 no draft length gives more than two
# tokens per round.
#
# ### Which of the five rates is the a of the formula?
#
# **Predict**, then check with the oracle of a = 0.7: only one denominator reproduces the value that was set.

# %%
a = 0.7
sample = [r for seed in SEEDS for r in oracle[a, seed]]
kept = sum(len(r.path) for r in sample)
tested = sum(status != "discarded" for r in sample for status in r.nodes.status)
drafted = sum(len(r.nodes) for r in sample)
sigma = math.sqrt(a * (1 - a) / tested)
print(f"accepted / tested  {kept / tested:.3f}   (dial {a}, standard error {sigma:.3f})")
print(f"accepted / drafted {kept / drafted:.3f}")
assert abs(kept / tested - a) < 4 * sigma
assert kept / drafted < kept / tested
assert abs(kept / drafted - a) > 4 * sigma  # the wrong denominator would be noticed

# %% [markdown]
# It is accepted / tested. A discarded draft was never tested, so it gives no information about the drafter. Counting it
# as a failure makes a longer draft look worse even if the drafter is the same. With the *drafted* rate, the formula
# predicts too few tokens.
#
# ## Averages hide differences
#
# The formula assumes the *same* a everywhere. Take an easy text and a hard one (the bundled drafter cannot copy unusual
# words), and pool their rounds, as a benchmark does. **Predict two things:** (1) does the formula with the pooled a
# give the pooled τ, or too much, or too little? (2) given that all drafts before it were accepted, is the second draft
# right *more* or *less* often than the first?

# %%
DEPTH = 6
HARD = "<|user|>Copy this text: zx 84 qv 19 lk 73<|assistant|>" if TARGET is None else "7f3a 91 zq 0x5e 7f3b 92"
full = {}
for name, prompt in (("easy", STORY), ("hard", HARD)):
    t = wb.generate(prompt, method="draft-model", params={"depth": DEPTH}, max_new_tokens=64)
    full[name] = [r for r in t.rounds if len(r.nodes) == DEPTH]
full["pooled"] = full["easy"] + full["hard"]

print(f"{'':<8}{'a':>6}{'formula':>9}{'measured':>10}   accepted at position 1, 2, … given all before")
for name, chosen in full.items():
    by_depth = acceptance_by_depth(chosen)  # (position, tested, accepted)
    a = sum(ok for *_, ok in by_depth) / sum(tried for _, tried, _ in by_depth)
    by_position = [ok / tried for _, tried, ok in by_depth]
    measured = statistics.fmean(len(r.path) + 1 for r in chosen)
    print(f"{name:<8}{a:>6.2f}{expected_tau(a, DEPTH):>9.2f}{measured:>10.2f}   {[round(x, 2) for x in by_position]}")
    assert math.isclose(tau_by_position(by_position), measured)  # 1 + a₁ + a₁a₂ + … is an identity
if TARGET is None:  # the last line is the pooled one
    assert by_position[1] > by_position[0]
    assert measured < expected_tau(a, DEPTH) - 0.1

# %% [markdown]
# (1) Too much. An easy round tests up to six drafts, a hard round only one. So the pooled a is dominated by the easy
# text, while the pooled τ weights both kinds of rounds equally.
#
# (2) **More** often, but the drafter is not better there: rounds that reach position 2 are mostly in the easy text.
# This is a selection effect. With a separate rate for each position, 1 + a₁ + a₁a₂ + a₁a₂a₃ + … gives τ exactly,
# because nothing is assumed.
#
# So report rates by group and by position, and use a single a only if you have a reason to.
#
# ## From tokens to time
#
# Measure all times in plain steps: one step of plain decoding costs 1. A round with K drafts costs
#
# > cost(K) = K·c + v(K + 1) + h
#
# with c for one drafted token, v(n) for the target's pass over n tokens (01: little more than v(1), left of the knee),
# and h for the *host overhead*, the wall time outside model forwards: sampling, verifying, bookkeeping. A plain step
# has host overhead too: v(1) + h₁ = 1. Then
#
# > **speed-up = E[N] / cost(K)**, and drafting pays if E[N] > cost(K).
#
# **Predict:** which K is fastest for these two models on this machine? And below which a is drafting a loss?
#
# The cell runs several interleaved repetitions. Each repetition divides its times by those of its own plain run. The
# costs are the *median* over the repetitions; the speed-up is the geometric mean with its 95 % confidence interval, as
# everywhere in the workbench (10 explains why).

# %%
DEPTHS, REPEATS = (0, 1, 2, 4, 8), 4 if FAST else 20
repeats = {depth: [] for depth in DEPTHS}
for i in range(REPEATS + 1):
    for depth in DEPTHS if i % 2 else DEPTHS[::-1]:  # in turn, so that other load affects all alike
        how = {"method": "draft-model", "params": {"depth": depth}} if depth else {"method": "autoregressive"}
        trace = wb.generate(STORY, max_new_tokens=64, **how)
        if i:  # the first time warms up
            repeats[depth].append(trace)


def in_plain_steps(part, depth):
    """Return one part of a round's time in plain steps: the median over the repetitions."""
    each = []
    for run, plain_run in zip(repeats[depth], repeats[0], strict=True):
        step = statistics.fmean(r.seconds for r in plain_run.rounds)
        each.append(statistics.fmean(getattr(r, part) for r in run.rounds) / step)
    return statistics.median(each)


def speedups(depth):
    """Return tokens per second divided by plain decoding's, for each repetition."""
    pairs = zip(repeats[depth], repeats[0], strict=True)
    return [summary(t)["tokens_per_second"] / summary(plain_run)["tokens_per_second"] for t, plain_run in pairs]


print("  K     K·c    v(K+1)       h    cost       τ   τ/cost   speed-up over plain decoding")
cost = {}
for depth in DEPTHS[1:]:
    draft, verify, overhead = (in_plain_steps(part, depth) for part in ("draft_s", "verify_s", "overhead_s"))
    cost[depth] = in_plain_steps("seconds", depth)
    tau, gains = summary(repeats[depth][0])["tau"], speedups(depth)
    print(f"{depth:>3} {draft:>7.2f} {verify:>9.2f} {overhead:>7.2f} {cost[depth]:>7.2f} {tau:>7.2f} "
          f"{tau / cost[depth]:>7.2f}   {speedup.estimate({'story': gains}).sentence}")  # fmt: skip
    assert repeats[depth][0].token_ids == repeats[0][0].token_ids

# %% [markdown]
# τ/cost and the speed-up are two ways to the same figure: the first sums the parts of the time, the second divides
# total times. All of this, including the interval, is for *one* prompt and says nothing about other texts.
# [10](10_measuring.ipynb) shows how much single runs vary and how to handle that.
#
# ### Break-even
#
# For each K, the table shows the acceptance rate a at which E[N] equals the cost. Below it, plain decoding is faster at
# the costs measured just now. With the costs of a busier or a different machine, break-even is elsewhere.

# %%
print("  K   cost in plain steps   break-even a   acceptance of this pair")
for depth, steps in cost.items():
    rate = summary(repeats[depth][0])["acceptance_rate"] or 0.0
    if steps >= depth + 1:
        even = "never"  # not even with every draft accepted
    elif steps <= 1:
        even = "always"  # a round took no longer than a plain step
    else:
        root = brentq(lambda a, d=depth, goal=steps: expected_tau(a, d) - goal, 0, 1 - 1e-9)
        assert math.isclose(expected_tau(root, depth), steps, rel_tol=1e-6)
        even = f"{root:.2f}"
    print(f"{depth:>3} {steps:>21.2f} {even:>14} {rate:>25.2f}")

# %% [markdown]
# ### A calculator
#
# The chart shows the speed-up by draft length, for any a, c and slope of v: v(n) = 1 + slope·(n − 1). A slope of 0 is a
# GPU left of its knee; a slope of 1 is a machine right of it. **Find out:** (1) with a = 0.8 and slope 0, how small
# must c be to reach 3×? (2) with slope 1, can any drafter give a speed-up?

# %% tags=["drawing"] jupyter={"source_hidden": true}
INK, BLUE, BROWN = "#1F2328", "#1189EC", "#761706"


def chart(a: float, c: float, slope: float, longest: int = 16) -> str:
    """Draw the speed-up for K = 1 … longest as bars, brown where it is a loss. Return SVG."""
    gains = [expected_tau(a, k) / (k * c + 1 + slope * k) for k in range(1, longest + 1)]
    best, top, parts = max(range(longest), key=gains.__getitem__), max(*gains, 1.2) * 1.15, []

    def y(gain: float) -> float:
        return 190 - 170 * gain / top

    def text(left: float, low: float, words: str, size: int = 12) -> str:
        return f'<text x="{left}" y="{low:.1f}" font-size="{size}" fill="{INK}" text-anchor="middle">{words}</text>'

    for i, gain in enumerate(gains):
        colour, left = (BLUE if gain > 1 else BROWN), 40 + 31 * i
        parts.append(f'<rect x="{left}" y="{y(gain):.1f}" width="22" height="{190 - y(gain):.1f}" fill="{colour}" '
                     f'fill-opacity="{0.8 if i == best else 0.35}" stroke="{colour}"/>')  # fmt: skip
        parts += [text(left + 11, 205, str(i + 1)), text(left + 11, y(gain) - 5, f"{gain:.2f}", 10)]
    parts.append(f'<path d="M30 {y(1):.1f}H540" stroke="{INK}" stroke-dasharray="5 4"/>')
    verdict = "best:" if gains[best] > 1 else "do not draft; the least loss:"
    verdict = f"{verdict} K = {best + 1}, τ = {expected_tau(a, best + 1):.2f}, {gains[best]:.2f} × plain decoding"
    parts += [text(285, 224, "draft length K; dashed: plain decoding"), text(285, 246, verdict, 14)]
    return (
        '<svg viewBox="0 0 560 254" width="660" role="img" aria-label="speed-up by draft length" '
        f'style="background:white;max-width:100%">{"".join(parts)}</svg>'
    )


# %%
sliders = {
    "a": ui.FloatSlider(0.8, min=0, max=1, step=0.01, description="a"),
    "c": ui.FloatSlider(0.1, min=0, max=1, step=0.01, description="draft cost c"),
    "slope": ui.FloatSlider(0.05, min=0, max=1, step=0.01, description="slope of v"),
}
board = ui.HTML()


def redraw(*_):
    board.value = chart(**{name: slider.value for name, slider in sliders.items()})


for slider in sliders.values():
    slider.observe(redraw, "value")
redraw()
board.snapshot = lambda: board.value  # shown to a reader without a kernel
w.show(*sliders.values(), board)

# %%
best = best_depth(0.8, 0.05)  # the same by the workbench's own search: a = 0.8, c = 0.05, v = 1
print(f"a = 0.8, c = 0.05, flat v: K = {best.depth}, τ = {best.tau:.2f}, {best.speedup:.2f} × plain decoding")
by_hand = max(range(1, 65), key=lambda k: expected_tau(0.8, k) / (k * 0.05 + 1))
assert best.depth == by_hand
c3 = brentq(lambda c: best_depth(0.8, c).speedup - 3, 0.001, 0.5)
print(f"3 × at a = 0.8: a drafted token may cost {c3:.3f} of a plain step, and K = {best_depth(0.8, c3).depth}")
assert 0.04 < c3 < 0.06
assert best_depth(0.99, 0.0, verify_cost=lambda n: float(n)).depth == 0  # every token costs a full step: never draft
w.app_link(repeats[4][0], base=SERVER)

# %% [markdown]
# (1) The last line gives the answer: about a twentieth of a plain step. (2) No: with slope 1 a round of K + 1 tokens
# costs K + 1 plain steps even if drafting is free, and it cannot give more than K + 1 tokens.
#
# ## Exercises
#
# **1. How long is long enough?** For a = 0.6, 0.8 and 0.95: which τ does an infinitely long draft give, and which is
# the smallest K that reaches 95 % of it?

# %% tags=["answer"]
my_lengths = None  # {0.6: (τ of an endless draft, K), 0.8: …, 0.95: …}


# %% tags=["check"]
@w.check
def long_enough(lengths):
    """Check the limit, and the smallest K for 95 % of it."""
    for a in (0.6, 0.8, 0.95):
        limit, k = lengths[a]
        assert k > 0, f"a = {a}: a draft cannot have {k} tokens"
        assert k == int(k), f"a = {a}: a draft has a whole number of tokens, not {k}"
        assert math.isclose(limit, sum(a**i for i in range(10_000)), rel_tol=1e-3), f"a = {a}: sum the series"
        assert expected_tau(a, k) >= 0.95 * limit, f"a = {a}: K = {k} is too short"
        assert expected_tau(a, k - 1) < 0.95 * limit, f"a = {a}: K = {k - 1} is enough"


long_enough(my_lengths)

# %% tags=["solution"] jupyter={"source_hidden": true}
# The series is geometric: 1/(1 − a). And 1 − a^(K+1) ≥ 0.95 needs K + 1 ≥ log 0.05 / log a.
for a in (0.6, 0.8, 0.95):
    enough = math.ceil(math.log(0.05) / math.log(a)) - 1
    print(f"a = {a}: limit {1 / (1 - a):.1f}, K = {enough} gives {expected_tau(a, enough):.2f}")
    assert expected_tau(a, enough) >= 0.95 / (1 - a) > expected_tau(a, enough - 1)
solved = {a: (1 / (1 - a), math.ceil(math.log(0.05) / math.log(a)) - 1) for a in (0.6, 0.8, 0.95)}
assert long_enough(solved).right
assert not long_enough({a: (limit, k + 1) for a, (limit, k) in solved.items()}).right  # K + 1 for K

# %% [markdown]
# **2. A better rate, a worse run.** The policy `confidence` stops a draft where the drafter's probability is low.
# Compare it with the fixed length on the same prompt: how do the acceptance rate and τ change? What follows for
# rankings by acceptance rate? (Depth 4, `STORY`, 64 tokens.)

# %% tags=["answer"]
my_rates, my_taus = None, None  # (fixed, confidence) each, to two digits


# %% tags=["check"]
@w.check
def two_policies(rates, taus):
    """Compare accepted / tested and τ with new runs of both policies."""
    for i, policy in enumerate(("fixed", "confidence")):
        f = summary(wb.generate(STORY, method="draft-model", params={"depth": 4, "policy": policy}, max_new_tokens=64))
        assert abs(rates[i] - (f["acceptance_rate"] or 0)) < 0.006, f"{policy}: accepted / tested differs"
        assert abs(taus[i] - f["tau"]) < 0.006, f"{policy}: τ differs"


two_policies(my_rates, my_taus)

# %% tags=["solution"] jupyter={"source_hidden": true}
careful = wb.generate(STORY, method="draft-model", params={"depth": 4, "policy": "confidence"}, max_new_tokens=64)
for name, t in (("fixed", repeats[4][0]), ("confidence", careful)):
    f = summary(t)
    print(f"{name:<11} accepted/tested {f['acceptance_rate']:.2f}   accepted/drafted {f['draft_utilisation']:.2f}   "
          f"τ {f['tau']:.2f}   {f['target_forwards']} target passes")  # fmt: skip
if TARGET is None:
    assert summary(careful)["acceptance_rate"] > summary(repeats[4][0])["acceptance_rate"]
    assert summary(careful)["tau"] < summary(repeats[4][0])["tau"]
both = [summary(t) for t in (repeats[4][0], careful)]
found_taus = [f["tau"] for f in both]
assert two_policies([f["acceptance_rate"] or 0 for f in both], found_taus).right
if TARGET is None:
    assert not two_policies([f["draft_utilisation"] for f in both], found_taus).right  # the wrong denominator
# It drafts only tokens that are likely to be accepted: the rate is better, and there are more passes. Whether that is
# faster depends on the cost of the drafts that it saves.

# %% [markdown]
# **3. The noise of a rate.** The oracle's a is fixed, and yet accepted / tested differs between seeds. Compare the
# spread with the binomial formula √(a(1 − a)/tested). To distinguish 0.71 from 0.73, each run should measure its rate
# with a standard error of 0.005: how many tested drafts does that take?

# %% tags=["answer"]
my_tested = None  # drafts, of each run


# %% tags=["check"]
@w.check
def noise(tested):
    """Check that the standard error at a rate of 0.72 is 0.005, within 2 %."""
    error = math.sqrt(0.72 * 0.28 / tested)
    assert 0.0049 < error < 0.0051, f"with so many drafts the standard error is {error:.4f}"


noise(my_tested)

# %% tags=["solution"] jupyter={"source_hidden": true}
for a in DIALS:
    tested = [sum(status != "discarded" for r in oracle[a, seed] for status in r.nodes.status) for seed in SEEDS]
    rates = [sum(len(r.path) for r in oracle[a, seed]) / n for seed, n in zip(SEEDS, tested, strict=True)]
    binomial = math.sqrt(a * (1 - a) / statistics.fmean(tested))
    print(
        f"dial {a}: {[round(rate, 2) for rate in rates]}  spread {statistics.stdev(rates):.3f}, binomial {binomial:.3f}"
    )
# √(0.72·0.28/n) = 0.005
print(f"about {0.72 * 0.28 / 0.005**2:,.0f} tested drafts, in each of the two runs")
assert noise(0.72 * 0.28 / 0.005**2).right
assert not noise(math.sqrt(0.72 * 0.28) / 0.005).right  # the square root is missing on one side

# %% [markdown]
# ## Close this page and answer
#
# 1. A report says "acceptance rate 0.5, K = 8". Which denominators could it mean, and what is τ for each?
# 2. Why does accepted / drafted fall when K grows, with the same drafter?
# 3. Derive E[N] in one line from Pr[N > i].
# 4. Which property must a machine have for speculative decoding to pay with *some* drafter? And which property must the
#    drafter have?
#
# ## References
#
# - Leviathan, Kalman, Matias 2023, arXiv:2211.17192: equation 1 (expected tokens), theorem 3.8 (speed-up), corollary
#   3.9 (when it pays).
# - `workbench/trace/acceptance.py`: the definitions in use, each with file and line.
# - Xia et al. 2024, *Unlocking efficiency in large language model inference: a comprehensive survey of speculative
#   decoding* (Spec-Bench), arXiv:2401.07851.

# %%
wb.close()
