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
# # 05 · A separate draft model
#
# **You will be able to**
#
# - draft with a small model in five lines, and check that the engine does the same,
# - choose a draft model and its draft length from two numbers that you can measure: acceptance rate and cost,
# - explain the effect of two models with different token ids, and why that must raise an error.
#
# **You need** the loop of 04. The formulas are derived in 03.

# %% tags=["parameters"]
import os

FAST = os.environ.get("WORKBENCH_FAST", "1") == "1"
TARGET = None  # a Hub id or a folder; None: the bundled model
DRAFTER = None
DEVICE = "cpu"
SERVER = None  # "http://localhost:7860" shares the app's backend

# %%
import json
import shutil
import tempfile
from pathlib import Path

import plotly.graph_objects as go
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from workbench import Workbench
from workbench import widgets as w
from workbench.bench.prompts import load_prompts
from workbench.core.errors import WorkbenchError
from workbench.models.names import locate
from workbench.models.truncated_drafter import drafter_for
from workbench.trace.metrics import acceptance_by_depth, acceptance_rate, count_drafted, draft_utilisation, tau
from workbench.trace.theory import best_depth, tau_by_position

disable_progress_bar()
BUNDLED = TARGET is None and DRAFTER is None  # statements about figures below hold for these
TARGET, DRAFTER = TARGET or "text-target", drafter_for(TARGET, DRAFTER)  # or the target's first layers
wb = Workbench(SERVER) if SERVER else Workbench(target=TARGET, drafter=DRAFTER, device=DEVICE)
tokenizer = AutoTokenizer.from_pretrained(locate(TARGET))
target, drafter = (
    AutoModelForCausalLM.from_pretrained(locate(name), dtype=torch.float32).to(DEVICE).eval()
    for name in (TARGET, DRAFTER)
)
torch.set_grad_enabled(False)
prompts = {p.name: p.encode(tokenizer) for p in load_prompts()}
length = 40 if FAST else 128
sizes = [sum(p.numel() for p in model.parameters()) / 1e6 for model in (target, drafter)]
print(f"{wb.device_label()} · target {sizes[0]:.1f} M parameters, drafter {sizes[1]:.1f} M")


# %% [markdown]
# ## The same loop, another drafter
#
# In 04 a drafter was a function from a text to a draft. A second model can be such a function too: it writes K tokens,
# greedily.

# %%
def draft(text, K=4, model=drafter):
    """Return the next K tokens of the small model. (There is no KV cache: each step reads the whole text again.)"""
    guess = []
    for _ in range(K):
        guess.append(int(model(torch.tensor([text + guess], device=DEVICE)).logits[0, -1].argmax()))
    return guess


def generate(prompt, draft, max_new_tokens):
    """Decode greedily with drafts, as in 04: return the new tokens and, per round, (draft, number accepted)."""
    text, rounds = list(prompt), []
    while (room := max_new_tokens - (len(text) - len(prompt))) > 0:
        guess = draft(text)[: room - 1]
        logits = target(torch.tensor([text + guess], device=DEVICE)).logits[0, len(text) - 1 :]  # [len(guess) + 1, V]
        own = logits.argmax(-1).tolist()
        n = 0
        while n < len(guess) and guess[n] == own[n]:
            n += 1
        new = own[: n + 1]
        rounds.append((guess, n))
        text += new
        if tokenizer.eos_token_id in new:
            break
    return text[len(prompt) :], rounds


story = prompts["story-dragon"]
answer, rounds = generate(story, draft, length)
for guess, n in rounds[:6]:
    print(f"{n} of {len(guess)} accepted │ {tokenizer.decode(guess[:n])!r} ✕ {tokenizer.decode(guess[n:])!r}")
print(f"… {len(answer)} tokens in {len(rounds)} passes of the target")

# %%
trace = wb.generate(story, method="draft-model", params={"depth": 4}, max_new_tokens=length)

assert trace.token_ids == answer
assert [r.nodes.tokens for r in trace.rounds] == [guess for guess, _ in rounds]
w.ribbon(trace)

# %% [markdown]
# The engine adds a KV cache for each of the two models and keeps them in step: it removes rejected tokens from both.

# %%
w.app_link(trace)

# %% [markdown]
# ## How long should the draft be?
#
# **Predict.** We draft K = 8 tokens each round. The first is accepted at some rate. Given that it was accepted, is the
# second accepted more often, less often, or as often? And the eighth?

# %%
kinds = {
    "stories": ["story-kite", "story-bear", "story-lighthouse"],
    "JSON": ["json-person", "json-book"],
    "copy": ["copy-words", "copy-passage"],
}
long_runs = {
    kind: [wb.generate(prompts[n], method="draft-model", params={"depth": 8}, max_new_tokens=length) for n in names]
    for kind, names in kinds.items()
}
by_place = {kind: acceptance_by_depth([r for t in runs for r in t.rounds]) for kind, runs in long_runs.items()}
for kind, places in by_place.items():
    print(f"{kind:8}", *(f"{kept / tried:4.0%} of {tried:<3d}" for _, tried, kept in places))

# %% [markdown]
# Conditional rates need not fall with the position. The main reason that a token late in the draft is rarely accepted
# is that all tokens before it must be accepted too. The rates may even rise, because a draft whose first tokens were
# accepted is in an easy part of the text. After the first few positions there are few rounds to count ("of …"), so read
# the right end with care.
#
# These rates give the mean accepted length for every K without another run: a round gives one token, plus one for each
# position that is accepted. **Predict**: does τ computed from the K = 8 run agree with a run that really uses K = 2?

# %%
rates = {kind: [kept / tried for _, tried, kept in places] for kind, places in by_place.items()}
for kind, names in kinds.items():
    for K in (1, 2, 4):
        runs = [
            wb.generate(prompts[n], method="draft-model", params={"depth": K}, max_new_tokens=length) for n in names
        ]
        measured, computed = tau([r for t in runs for r in t.rounds]), tau_by_position(rates[kind][:K])
        print(f"{kind:8} K = {K}: τ = {measured:.2f} measured, {computed:.2f} computed from the run with K = 8")
        if BUNDLED:  # counts of greedy runs are the same on every machine
            assert abs(measured - computed) < 0.25 * measured


# %% [markdown]
# **Answer: closely, not exactly.** Rounds of a run with K = 2 begin at other positions of the text than rounds with
# K = 8, and the rates of late positions come from few rounds.
#
# ## The cost of a draft
#
# A longer draft gives a larger τ, but not always more speed: each drafted token is a pass of the small model. Count all
# times in *plain steps*, the time of one target pass over one token:
#
# $$\text{speed-up}(K) = \frac{\tau(K)}{K\,c + v(K+1)}$$
#
# with c the cost of one drafted token and v(n) the cost of verifying n tokens (1 as long as decoding is memory-bound,
# see 01).

# %%
def undisturbed(seconds):
    """Return the 10th percentile: the time without other load on the machine."""
    return sorted(seconds)[len(seconds) // 10]


def plain_step():
    """Measure the seconds of one target pass over one token now."""
    run = wb.generate(story, method="autoregressive", max_new_tokens=20)
    return undisturbed([r.verify_s for r in run.rounds])


step = plain_step()
some = [r for runs in long_runs.values() for t in runs for r in t.rounds if r.draft_forwards == 8]
v = undisturbed([r.verify_s for r in some] or [step]) / step
c = undisturbed([r.draft_s / 8 for r in some] or [step]) / step
print(
    f"on this machine, now: plain step {1e3 * step:.1f} ms, one draft c = {c:.2f}, verifying nine tokens v(9) = {v:.2f}"
)
print("(on a busy machine these figures, and all that follow from them, are different: see 10)")


def verify_cost(n):
    """Return v(n) on a straight line through v(1) = 1 and the measured v(9)."""
    return 1 + max(0.0, v - 1) * (n - 1) / 8


# %% [markdown]
# **Predict.** For which kind of text is the best K largest? For which would you not draft at all?

# %%
Ks = list(range(1, 9))
lines, best = [], {}
for kind in kinds:
    reachable = [*rates[kind], *(rates[kind][-1:] or [0.0]) * 8][:8]
    gain = [tau_by_position(reachable[:K]) / (K * c + verify_cost(K + 1)) for K in Ks]
    best[kind] = best_depth(reachable, c, verify_cost, most=8)
    lines.append(go.Scatter(name=kind, x=Ks, y=gain, mode="lines+markers"))
    print(f"{kind:8} best K = {best[kind].depth}, speed-up {best[kind].speedup:.2f} with these costs")

if BUNDLED:  # asserted for fixed costs, because the costs measured above vary
    for cost in (0.01, 0.05, 0.2, 0.5):
        dear = {k: best_depth(rates[k], cost, lambda n: 1 + 0.05 * (n - 1), most=8).depth for k in ("stories", "copy")}
        assert dear["stories"] >= dear["copy"]
figure = go.Figure(lines, go.Layout(title="Speed-up by draft length, from measured rates and costs", height=360))
figure.update_xaxes(title="K, drafts per round").update_yaxes(title="speed-up over plain decoding")
figure.add_hline(y=1, line_dash="dot", annotation_text="plain decoding")
w.figure(figure)

# %% [markdown]
# The better the drafter predicts a text, the longer its drafts should be. A single K for all texts is a compromise, so
# there are policies (below). Below the dotted line, plain decoding is faster. (This drafter cannot copy; the methods of
# 04 copy at no cost.)
#
# ## Which model?
#
# A larger drafter is right more often and costs more. To compare sizes, take the target's own first layers
# (`early-exit`), and as the largest drafter the target itself. Add one small drafter that was trained on descriptions
# of pictures and has the same vocabulary. **Predict** the order by acceptance rate, then by speed-up.

# %%
layers = target.config.num_hidden_layers
few, half = max(1, layers // 6), max(1, layers // 2)
candidates = {
    DRAFTER: ("draft-model", {}, None),
    f"first {few} of {layers} layers": ("early-exit", {"exit_layer": few}, None),
    f"first {half} of {layers} layers": ("early-exit", {"exit_layer": half}, None),
    "the target itself": ("draft-model", {}, TARGET),
}
if BUNDLED:
    candidates = {"vision-text-drafter": ("draft-model", {}, "vision-text-drafter")} | candidates
found = {}
for title, (method, params, model) in candidates.items():
    runs = [
        wb.generate(prompts[n], method=method, params={"depth": 4} | params, drafter=model, max_new_tokens=length)
        for n in ("story-bear", "story-lighthouse", "json-person")
    ]
    rounds_ = [r for t in runs for r in t.rounds]
    ratios = sorted(r.draft_s / r.draft_forwards / r.verify_s for r in rounds_ if r.draft_forwards == 4) or [1.0]
    cost = ratios[len(ratios) // 2] * verify_cost(5)  # both times are from one round, so other load slows both
    found[title] = acceptance_rate(rounds_) or 0.0, cost
    choice = best_depth(found[title][0], cost, verify_cost, most=8)
    print(
        f"{Path(title).name:21} accepted {found[title][0]:4.0%}   c = {cost:4.2f}   "
        f"best K = {choice.depth}, {choice.speedup:.2f}×"
    )

if BUNDLED:
    assert found["the target itself"][0] == 1
    assert found["vision-text-drafter"][0] < found[DRAFTER][0]
assert best_depth(1.0, 1.0).depth == 0  # always right, but as slow as the target: never pays

# %% [markdown]
# This shows two things. First, the acceptance rate alone decides nothing: the target always accepts its own drafts and,
# at c = 1, gains nothing. (If your measured c of the target as its own drafter is far from 1, there was other
# load on the machine; notebook 10 measures properly.) Second, a shared vocabulary is necessary but not
# sufficient: the drafter must be trained on the target's kind of text.

# %% [markdown]
# ## The same computation on a real model
#
# All costs so far are those of a very small model: its weights stay in the processor's cache, and its passes are so
# short that the *host overhead* of a round counts (verifying, bookkeeping: wall time outside model forwards). SmolLM2
# (135 million parameters) answers questions; the README has the command that installs it. **Predict**, for each of the
# two models: how much does a pass over nine tokens cost, in plain passes? How large is the host overhead? And which of
# the two gains more from the *same* acceptance rate?

# %%
from workbench.engine import Engine, Request, load_models
from workbench.methods import registry
from workbench.models.pass_costs import measure


def gain_at(alpha, K, costs, host):
    """Return the speed-up at acceptance rate `alpha` with K drafts and `host` seconds of host overhead per round."""
    spent = K * costs.draft_s + costs.verify_s(K + 1) + host
    return tau_by_position([alpha] * K) * (costs.verify_s(1) + host) / spent


def weigh(models):
    """Measure a model's costs on this machine and print the speed-ups at three acceptance rates."""
    costs = measure(models, repeats=2 if FAST else 15)  # medians of T(n), n = 1 … 64, and of one draft
    copy = Request(next(p for p in load_prompts() if p.name == "copy-words").encode(models.tokenizer),
                   registry.get("prompt-lookup"), max_new_tokens=12 if FAST else 64)  # fmt: skip
    copied = Engine(models).generate(copy).rounds
    host = sorted(r.overhead_s for r in copied)[len(copied) // 2]
    one = costs.verify_s(1)
    kind = str(models.target.dtype).removeprefix("torch.")
    print(
        f"{models.target_name}, {kind}: a pass over one token {1e3 * one:.1f} ms, over nine "
        f"{costs.verify_s(9) / one:.2f} of that, the host's work of a round {host / one:.2f}"
    )
    drafts = "copied drafts cost nothing" if models.drafter is None else f"one draft c = {costs.draft_s / one:.2f}"
    for alpha in (0.3, 0.6, 0.9):
        K = max(Ks, key=lambda K: gain_at(alpha, K, costs, host))
        gain = gain_at(alpha, K, costs, host)
        said = f"best K = {K}, {gain:.2f}×" if gain > 1 else "no K pays"
        print(f"    {alpha:.0%} accepted everywhere, {drafts}: {said}")


if SERVER is None and BUNDLED and "smollm2" in {entry["name"] for entry in wb.targets()}:
    weigh(load_models(TARGET, DRAFTER, device=DEVICE))
    weigh(load_models(TARGET, None, device=DEVICE))
    try:
        weigh(load_models("smollm2", device=DEVICE, dtype="bfloat16"))  # with its own draft model, if there is one
    except WorkbenchError as problem:  # it is unpacked at first use, which takes disk space
        print(problem)
else:
    print("SmolLM2 is not installed or not requested: `workbench models` shows how to get it.")

# %% [markdown]
# The composition of a pass decides. If a model is too large for the processor's cache, a pass over one token reads all
# weights from memory, and the further tokens of a draft share that one reading, as long as the processor has idle
# arithmetic (01): compare the costs of nine tokens and of one. A very small model has little to share, and its host
# overhead, which is larger relative to a short pass, falls only with the number of rounds. If a longer pass costs much
# more than a plain one, as on processors without bfloat16 arithmetic, a draft must be right more often to pay, for
# models of any size.
#
# ## Policies: a draft length for each round
#
# `fixed` drafts K each time. `heuristic` drafts two more after a full success and one fewer after a rejection.
# `confidence` stops when the drafter's own largest probability falls below a threshold. `planned` chooses K from
# measured costs and the acceptance rate so far. **Predict** which policy wastes the fewest drafts, and how that changes
# τ.

# %%
lanes = []
for policy in ("fixed", "heuristic", "confidence", "planned"):
    run = wb.generate(
        prompts["story-lighthouse"], method="draft-model", params={"policy": policy, "depth": 8}, max_new_tokens=length
    )
    lanes.append((policy, run))
    used = draft_utilisation(run.rounds) or 0.0
    n = count_drafted(run.rounds)
    print(f"{policy:11} τ = {tau(run.rounds):.2f}   drafted {n:3d}, of which accepted {used:4.0%}")

used = {policy: draft_utilisation(run.rounds) or 0.0 for policy, run in lanes}
if BUNDLED:
    assert used["confidence"] > used["fixed"]
assert len({tuple(run.token_ids) for _, run in lanes}) == 1  # for any drafts, the text is the target's
w.lane([run for _, run in lanes], names=[policy for policy, _ in lanes])

# %% [markdown]
# No policy reaches a higher τ than the one that always drafts most (for greedy decoding with a draft model: 04 shows a
# drafter for which even that is false). Policies gain by avoiding the cost of drafts that will be discarded. The gain
# depends on c and v: if both are small, `fixed` with a large K is hard to beat.
#
# ## Two models with different token ids
#
# Drafter and target exchange *token ids*. What if the small model has different ids for its tokens? We build the case
# that is hardest to detect: the same words, the same size of vocabulary, the same network, but with permuted token ids,
# both in the tokenizer and in the weights. On its own it is exactly as good as before. (The code calls this drafter
# with a different vocabulary `renumbered_model`.)

# %%
temporary = tempfile.TemporaryDirectory()
renumbered_folder = Path(temporary.name) / "renumbered-drafter"
shutil.copytree(locate(DRAFTER), renumbered_folder)
file = renumbered_folder / "tokenizer.json"
description = json.loads(file.read_text())
vocabulary = description["model"]["vocab"]  # word → number
special = {token["id"] for token in description["added_tokens"]}
ordinary = [word for word in vocabulary if vocabulary[word] not in special]
numbers = [vocabulary[word] for word in ordinary]
renumbered = vocabulary | dict(zip(ordinary, numbers[1:] + numbers[:1], strict=True))  # every word gets the next id
description["model"]["vocab"] = renumbered
file.write_text(json.dumps(description))

renumbered_model = AutoModelForCausalLM.from_pretrained(locate(DRAFTER), dtype=torch.float32).to(DEVICE).eval()
old_rows = torch.tensor([vocabulary[word] for word in renumbered], device=DEVICE)
new_rows = torch.tensor([renumbered[word] for word in renumbered], device=DEVICE)
for layer in (
    renumbered_model.get_input_embeddings(),
    renumbered_model.get_output_embeddings(),
):  # one, if tied
    if layer is renumbered_model.get_input_embeddings() or not renumbered_model.config.tie_word_embeddings:
        layer.weight.data[new_rows] = layer.weight.data[old_rows].clone()
renumbered_model.save_pretrained(renumbered_folder)
renumbered_tokenizer = AutoTokenizer.from_pretrained(renumbered_folder)

words = "Once upon a time, there was a"
for name, tok, model in (("drafter", tokenizer, drafter), ("renumbered", renumbered_tokenizer, renumbered_model)):
    ids = tok(words)["input_ids"]
    print(f"{name:10} reads {ids[:5]} …, goes on: {tok.decode(draft(ids, 6, model))!r}")
assert tokenizer.decode(draft(tokenizer(words)["input_ids"], 6)) == renumbered_tokenizer.decode(
    draft(renumbered_tokenizer(words)["input_ids"], 6, renumbered_model)
)

# %% [markdown]
# Both write the same text. **Predict.** Now the renumbered drafter drafts for the target without a check, exchanging
# token ids. Does the program crash? Is the text wrong? What else happens?

# %%
unchecked, bad_rounds = generate(story, lambda text: draft(text, 4, renumbered_model), length)
accepted_good, accepted_bad = sum(n for _, n in rounds), sum(n for _, n in bad_rounds)
print(f"accepted with the drafter: {accepted_good}, with the renumbered one: {accepted_bad}")
print(f"passes of the target: {len(rounds)} and {len(bad_rounds)}; the same text: {unchecked == answer}")
print(
    "a draft of the renumbered drafter, read by the target:",
    repr(tokenizer.decode(bad_rounds[len(bad_rounds) // 2][0])),
)

assert unchecked == answer
if BUNDLED:
    assert accepted_bad < 0.2 * accepted_good

# %% [markdown]
# There is no crash and no wrong word: exactness does not depend on the drafter. Decoding is only slow, slower than
# without a drafter. **A mistake that changes only the speed is easily overlooked.** A comparison of vocabulary *sizes*
# would not have found it either. So the workbench compares the whole vocabulary, and refuses to exchange token ids:

# %%
here = Workbench(target=TARGET, device=DEVICE) if SERVER else wb
try:
    here.generate(story, method="draft-model", drafter=str(renumbered_folder), max_new_tokens=length)
except WorkbenchError as error:
    refusal = str(error)
    print(type(error).__name__)
    print(refusal.replace(str(renumbered_folder), "renumbered-drafter"))
else:
    raise AssertionError("the mismatch was not detected")

# %% [markdown]
# The message names methods that still work: some that need no second model, and `omnidraft`, which translates.
# With `omnidraft`, the drafter reads and writes *text* with its own tokenizer, and the target's tokenizer splits that
# text into the target's tokens. So the two vocabularies may even have different words. Test the message:

# %%
for method in ("prompt-lookup", "suffix", "omnidraft"):
    assert method in refusal
    still = here.generate(story, method=method, drafter=str(renumbered_folder), max_new_tokens=length)
    print(f"{method:14} τ = {tau(still.rounds):.2f}, the same text: {still.token_ids == answer}")
    assert still.token_ids == answer
if BUNDLED:
    assert tau(still.rounds) > 1.5  # the drafter's good text was accepted


# %% [markdown]
# ## Exercises
#
# **1. The best K on paper.** With the same acceptance rate α at every position and v = 1, compute the best K for α =
# 0.8 and c = 0.02, 0.1, 0.3. How does K change when α goes from 0.8 to 0.9 at c = 0.1?

# %% tags=["answer"]
def my_best_K(alpha, cost):
    """Return the draft length with the largest speed-up, with v(n) = 1."""
    raise NotImplementedError  # yours


# %% tags=["check"]
@w.check
def on_paper(best_K):
    """Compare with the workbench's own search, over a grid."""
    for alpha in (0.5, 0.8, 0.9):
        for cost in (0.02, 0.1, 0.3):
            wanted = best_depth(alpha, cost).depth
            assert best_K(alpha, cost) == wanted, f"α = {alpha}, c = {cost}: {best_K(alpha, cost)} is not the best K"


on_paper(my_best_K)


# %% tags=["solution"] jupyter={"source_hidden": true}
def best_on_paper(alpha, cost):
    return max(range(65), key=lambda K: sum(alpha**i for i in range(K + 1)) / (K * cost + 1))


for alpha, cost in ((0.8, 0.02), (0.8, 0.1), (0.8, 0.3), (0.9, 0.1)):
    K = best_on_paper(alpha, cost)
    print(f"α = {alpha}, c = {cost}: K = {K}, speed-up {sum(alpha**i for i in range(K + 1)) / (K * cost + 1):.2f}")
    assert best_depth(alpha, cost).depth == K
assert on_paper(best_on_paper).right
# wrong: without the target's own token
assert not on_paper(
    lambda a, c: max(range(1, 65), key=lambda K: sum(a**i for i in range(1, K + 1)) / (K * c + 1))
).right
# A cheap drafter may draft many tokens even at a moderate acceptance rate; an expensive one must be right.

# %% [markdown]
# **2. Does it pay at all?** Show that with v = 1 a drafter pays for some K exactly if α > c. (Hint: K = 1.) Then find
# the smallest acceptance rate at which the drafter of this notebook pays, with the costs measured above, v included.

# %% tags=["answer"]
def my_pays(alpha, cost):
    """Return whether a drafter pays for some K, with v = 1. In one line."""
    raise NotImplementedError  # yours


# %% tags=["check"]
@w.check
def worth_it(pays):
    """Compare with the search over all K."""
    for alpha in (0.05, 0.1, 0.2, 0.5, 0.9):
        for cost in (0.06, 0.15, 0.4, 0.8):
            assert bool(pays(alpha, cost)) == (best_depth(alpha, cost).depth > 0), f"wrong for α = {alpha}, c = {cost}"


worth_it(my_pays)

# %% tags=["solution"] jupyter={"source_hidden": true}
# K = 1: (1 + α) / (1 + c) > 1 exactly if α > c. If α ≤ c, no K pays: each further draft adds α^K ≤ c to the numerator
# and c to the denominator, and a fraction that is at most 1 stays so.
for alpha in (0.05, 0.1, 0.2, 0.5):
    for cost in (0.06, 0.15, 0.4):
        assert (best_depth(alpha, cost).depth > 0) == (alpha > cost)
assert worth_it(lambda alpha, cost: alpha > cost).right
assert not worth_it(lambda alpha, cost: alpha > 0.5).right
least = next((a / 100 for a in range(100) if best_depth(a / 100, c, verify_cost, most=8).depth > 0), None)
print(f"with c = {c:.2f} and v(9) = {v:.2f}, it pays from an acceptance of", least)


# %% [markdown]
# **3. An interpreter.** The renumbered drafter writes good text with other token ids. Translate from the target's ids
# to the drafter's before drafting, and back afterwards. The two dictionaries are `vocabulary` and `renumbered`. How
# many drafts are accepted now? (For tokenizers that also *split* text differently, there are separate methods:
# `omnidraft`, and Timor et al. 2025.)

# %% tags=["answer"]
def my_interpreted(text, K=4):
    """Return K drafts of the renumbered drafter, as the target's token ids."""
    raise NotImplementedError  # yours


# %% tags=["check"]
@w.check
def interpreter(drafts):
    """Compare with the original drafter's drafts at three positions of the story."""
    for end in (0, 5, 11):
        text = story + answer[:end]
        assert list(drafts(text)) == draft(text), f"not the drafter's draft after {tokenizer.decode(text[-4:])!r}"


interpreter(my_interpreted)

# %% tags=["solution"] jupyter={"source_hidden": true}
to_renumbered = {vocabulary[word]: renumbered[word] for word in vocabulary}
back = {there: own for own, there in to_renumbered.items()}


def interpreted(text, K=4):
    return [back.get(t, t) for t in draft([to_renumbered.get(t, t) for t in text], K, renumbered_model)]


translated, good_rounds = generate(story, interpreted, length)
assert translated == answer
assert good_rounds == rounds
print("same rounds as with the original drafter:", good_rounds == rounds)
assert interpreter(interpreted).right
assert not interpreter(
    lambda text: draft([to_renumbered.get(t, t) for t in text], 4, renumbered_model)
).right  # one way only

# %% [markdown]
# ## Close this page and answer
#
# 1. Why does τ always rise with K, but speed not always?
# 2. Which two numbers decide whether a drafter pays, and for which tokens of a draft does each count?
# 3. A drafter is right every time. When is it useless?
# 4. Two tokenizers have vocabularies of equal size. What goes wrong if only the sizes are compared, and how is it
#    noticed?
#
# ## References
#
# - Leviathan et al. 2023, arXiv:2211.17192, §3.1 (expected tokens per round), theorem 3.8 (speed-up), §3.5 (choosing
#   the length). · Chen et al. 2023, arXiv:2302.01318, algorithm 2.
# - Mamou et al. 2024, *Dynamic speculation lookahead*, arXiv:2405.04304: draft lengths that adapt.
# - Timor et al. 2025, *Accelerating LLM inference with lossless speculative decoding for heterogeneous vocabularies*,
#   arXiv:2502.05202: drafters with another tokenizer (exercise 3).
#
# Next: [06](06_trees.ipynb) offers the target more than one draft for each position.

# %%
temporary.cleanup()
wb.close()
