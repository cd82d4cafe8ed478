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
# # 14 · The target drafts for itself
#
# **You will be able to**
#
# - compute the likeliest token after every layer of a model, and choose the layer at which a draft exits (exit);
# - leave out attention and MLP blocks, and find the ones that a draft does not need (skip);
# - let a run search for them during decoding, and explain the cost of that search (search);
# - decide from two numbers when drafting with a part of the target cannot pay.
#
# **You need**: the loop of [04](04_without_a_model.ipynb), and acceptance rate and cost from
# [05](05_draft_model.ipynb). No second model is loaded here.

# %% tags=["parameters"]
import os

FAST = os.environ.get("WORKBENCH_FAST", "1") == "1"
TARGET = None  # a Hub id or a folder of a Llama-like model; None: the bundled model
DEVICE = "cpu"
SERVER = None  # "http://localhost:7860" shares the app's backend

# %%
import contextlib
import math

import numpy as np
import plotly.graph_objects as go
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from workbench import Workbench
from workbench import widgets as w
from workbench.bench.prompts import load_prompts
from workbench.methods.common.layer_skipping import evenly_skipped
from workbench.methods.dynamic_exit.drafter import tokens_per_layer
from workbench.models.names import locate
from workbench.trace.metrics import acceptance_rate, tau

disable_progress_bar()
BUNDLED = TARGET is None  # statements about figures below hold for it
TARGET = TARGET or "text-target"
wb = Workbench(SERVER) if SERVER else Workbench(target=TARGET, drafter=None, device=DEVICE)
tokenizer = AutoTokenizer.from_pretrained(locate(TARGET))
target = AutoModelForCausalLM.from_pretrained(locate(TARGET), dtype=torch.float32).to(DEVICE).eval()
torch.set_grad_enabled(False)
L = target.config.num_hidden_layers
length = 48 if FAST else 160
prompt = {p.name: p.encode(tokenizer) for p in load_prompts()}["story-bear"]
plain = wb.generate(prompt, method="autoregressive", max_new_tokens=length)
text = torch.tensor([[*prompt, *plain.token_ids]], device=DEVICE)
positions = slice(len(prompt) - 1, text.shape[1] - 1)  # positions before the tokens that the target wrote
wanted = text[0, len(prompt) :]
print(f"{L} layers; {len(wanted)} tokens written")

# %% [markdown]
# ## 1 · Exit: what would each layer predict?
#
# Each layer adds its output to the residual stream. The final norm and the LM head can be applied after *any* layer;
# the likeliest token there is the layer's prediction. One pass gives the predictions of all layers at all positions.
#
# **Predict.** In which quarter of the layers is the first layer whose prediction is right at half of the positions: the
# first, the second, the third or the last?

# %%
streams = target(text, output_hidden_states=True).hidden_states  # [1, n, D] before each layer, and the last one normed
guesses = [target.lm_head(target.model.norm(streams[layer][0, positions])).argmax(-1) for layer in range(1, L)]
right = np.array([float((guess == wanted).float().mean()) for guess in guesses] + [1.0])
for layer, share in enumerate(right, 1):
    print(f"after layer {layer:2}: right at {share:4.0%} of the positions {'█' * round(30 * share)}")
half = 1 + int((right >= 0.5).argmax())
quarter = ("first", "second", "third", "last")[4 * (half - 1) // L]
print(f"Answer: layer {half} of {L}, in the {quarter} quarter, is the first that is right at half of the positions")
if BUNDLED:
    assert quarter == "first"

# %% [markdown]
# **Answer: in the first quarter**, for the bundled target. It was trained with early exits (as in LayerSkip); in a
# model without such training, predictions before the last layers are poor. Set `TARGET` to try another model.
#
# An exit after layer E costs E layers per drafted token. The draft's hidden states after layer E are the target's own,
# so verification can continue from them: the layers up to E read none of the K + 1 tokens twice. **Count**: how many
# layers run in a round of K = 3 and E = 2, with and without this reuse?

# %%
K, E = 3, min(2, L - 1)
again = K * E + (K + 1) * L  # in layers times tokens
once = (K + 1) * E + (K + 1) * (L - E)
print(f"a round of K = {K}, E = {E}: {again} layer evaluations without it, {once} with it")
assert once == (K + 1) * L

# %% [markdown]
# Now choose exit and draft length together. If the prediction of layer E is right with probability α, a round of d
# drafts gives 1 + α + … + α^d tokens; count its cost as d · E + L layers. DEL computes that table before each round,
# from the acceptance so far, and takes the best cell; d = 0, plain decoding, is one of the cells.
#
# **Predict.** For the shares above: which exit is best, and which draft length?

# %%
exits = np.arange(1, L)
table = tokens_per_layer(right[:-1], exits, 6, L)
best = np.unravel_index(table.argmax(), table.shape)
print(f"Answer: exit after layer {exits[best[0]]}, {best[1]} drafts, {table.max() * L:.2f} × plain decoding, in layers")
layout = go.Layout(
    title="Expected tokens per layer, times L", xaxis_title="drafts", yaxis_title="exit after layer", height=340
)
w.figure(go.Figure(go.Heatmap(z=table * L, x=list(range(7)), y=exits.tolist(), colorscale="Blues"), layout))

# %%
run = wb.generate(prompt, method="del", params={"depth": 4}, max_new_tokens=length)
assert run.token_ids == plain.token_ids, "drafts are verified, so the text is the target's"
for r in run.rounds[:: max(1, len(run.rounds) // 6)]:
    left = f"exit after layer {r.signals['exit layer']:.0f}" if r.nodes.tokens else "nothing drafted"
    print(f"round {r.index + 1:2}: planned {r.signals['planned depth']:.0f}, {left}, {len(r.path)} accepted")
print(f"τ = {tau(run.rounds):.2f}")
w.tree(run, round=max(range(len(run.rounds)), key=lambda i: len(run.rounds[i].nodes)))  # the longest draft


# %% [markdown]
# ## 2 · Skip: which parts does a draft not need?
#
# A draft need not leave out the *last* layers. A layer has two halves, an attention and an MLP ("feed-forward"), and
# each adds its output to the residual stream. We set the output of some halves to zero and count how often the
# likeliest token is still that of the text. This share is the **matchness** of the set of halves.

# %%
@contextlib.contextmanager
def without(halves):
    """Within the context, these halves add nothing: 2 i is the attention of layer i, 2 i + 1 its MLP."""

    def nothing(module, args, out):
        return (torch.zeros_like(out[0]), *out[1:]) if isinstance(out, tuple) else torch.zeros_like(out)

    layers = target.model.layers
    parts = [layers[h // 2].mlp if h % 2 else layers[h // 2].self_attn for h in halves]
    hooks = [part.register_forward_hook(nothing) for part in parts]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def matchness(halves):
    """Return the share of positions where the target without `halves` predicts the text's token."""
    with without(halves):
        return float((target(text).logits[0, positions].argmax(-1) == wanted).float().mean())


assert matchness([]) == 1.0
single = np.array([[matchness([2 * layer + half]) for layer in range(L)] for half in (0, 1)])
for name, row in zip(("attention", "feed-forward"), single, strict=True):
    print(f"{name:13}" + " ".join(f"{share:4.0%}" for share in row))

# %% [markdown]
# **Predict.** Leave out a third of the layers: the last third, the middle third, or layers spread evenly, while the
# first and the last stay (Unified Layer Skipping). Which choice is best, and which is worst?

# %%
third = max(1, L // 3)
ways = {
    "the last third": range(L - third, L),
    "the middle third": range((L - third) // 2, (L - third) // 2 + third),
    "spread evenly": sorted({h // 2 for h in evenly_skipped(L, L - third)}),
}
shares = {name: matchness([h for layer in layers for h in (2 * layer, 2 * layer + 1)]) for name, layers in ways.items()}
for name, share in shares.items():
    print(f"{name:17} without layers {[layer + 1 for layer in ways[name]]}: matchness {share:.0%}")
assert all(0 <= share <= 1 for share in shares.values())
ranking = sorted(shares, key=shares.get, reverse=True)
print(f"Answer: {ranking[0]} can be left out at the least cost, {ranking[-1]} at the highest")
if BUNDLED:
    assert ranking[-1] == "spread evenly"

# %% [markdown]
# **Answer: the middle third is best by a little, even spacing is worst by far**, for the bundled target. The paper
# finds even spacing best, on models that were trained as usual: they need their last layers, and one of two
# neighbouring middle layers can be left out. The bundled target was trained with early exits, so it needs its last
# third as little as its middle third, and even spacing leaves out layer 2, which it needs. Which layers can be left out
# is a property of the model.

# %% [markdown]
# ## 3 · Search: find the set during decoding
#
# The best set of halves depends on the model and on the text, and there are too many sets to try them all, as the next
# cell counts. SWIFT tries **one set per round** on tokens already written: random sets, and every few rounds the set
# that a Gaussian process, fitted to the sets tried so far, rates highest. The best set so far drafts from then on.
#
# **Predict.** The search begins with layers spread evenly. Which matchness does the best set for this text reach: the
# same as the first set's, halfway from there to 100 %, or more than 90 %?

# %%
found = wb.generate(prompt, method="swift", params={"window": 16, "enough": 1.0}, max_new_tokens=2 * length)
assert found.token_ids[: len(plain.token_ids)] == plain.token_ids
runs_half = [value for name, value in found.rounds[0].signals.items() if name.startswith("layers that draft [")]
choices, left_out = 2 * (L - 2), runs_half.count(0)  # the first and the last layer always run
print(f"{left_out} of {choices} halves are left out: {math.comb(choices, left_out):,} sets")
last = None
for r in found.rounds:
    strips = ["".join("█" if r.signals.get(f"layers that draft [{row}, {i + 1}]") else "·" for i in range(L))
              for row in ("attention", "feed-forward")]  # fmt: skip
    if r.nodes.tokens and strips != last:
        score = r.signals.get("matchness")
        score_text = (
            "no window yet" if score is None else f"matchness {score:.0%} after {r.signals['sets tried']:.0f} sets"
        )
        print(f"round {r.index + 1:2}  {strips[0]}  {strips[1]}  {score_text}")
        last = strips
scores = [r.signals["matchness"] for r in found.rounds if r.signals.get("matchness") is not None]
print(f"Answer: from {scores[0]:.0%} to {max(scores):.0%} on its window, {scores[-1]:.0%} when scored on the last one")
print(f"accepted {acceptance_rate(found.rounds) or 0:.0%} of the tested drafts, τ = {tau(found.rounds):.2f}")
if BUNDLED:
    assert max(scores) > 0.9

# %% [markdown]
# **Answer: more than 90 %**, within a few rounds. Each line is a set that drafted: on the left the attention blocks of
# layers 1 to L, on the right the MLPs; a dot marks a block that is left out. A matchness is exact for its window of 16
# tokens. For the text after the window it is biased upwards, because the search keeps the largest of many noisy scores
# (exercise 3). So the best set is scored again whenever the window moves.
#
# The acceptance rate is a different figure and may be above the matchness: matchness counts *all* positions of the
# window, while a draft stops where the drafter's confidence is low (`policy=confidence`), so only easy positions are
# tested.

# %%
w.app_link(found)

# %% [markdown]
# ## 4 · When it cannot pay
#
# A draft that runs a share s of the target costs a share s of its time, for any choice of blocks. With acceptance rate
# α and K drafts, the speed-up is at most (1 + α + … + α^K) / (1 + K s); other costs of a round reduce it further.
#
# **Predict.** SWIFT leaves out 45 % of the halves that it may leave out: the cell computes the share s that remains.
# From which α on is there a speed-up?

# %%
kept_share = 1 - left_out / (2 * L)
print(f"SWIFT runs {2 * L - left_out} of {2 * L} halves here: s = {kept_share:.3f}")
for s in (0.25, round(kept_share, 3), 0.75):
    gains = {
        a: max(sum(a**i for i in range(K + 1)) / (1 + K * s) for K in range(1, 9)) for a in (0.5, 0.7, 0.8, 0.9, 1.0)
    }
    print(f"s = {s}: " + "   ".join(f"α = {a}: {value:.2f}×" for a, value in gains.items()))


# %% [markdown]
# **Answer: from α > s on.** The case of one draft shows it: (1 + α) / (1 + s) > 1 means α > s. A separate draft model
# has an s of a few per cent; a part of the target has about one half. So a target is its own best drafter only if it is
# large and has redundant layers. By this project's measurements, SmolLM2 with 30 layers is not: without a tenth of its
# halves it predicts only half of the tokens.
#
# ## Exercises
#
# **1.** Choose exit and draft length yourself: given acceptance rates `alpha[i]` at exits `layers[i]` of `whole`
# layers, return the pair (exit, d ≤ 6) with the most tokens per layer. For d = 0, the exit is 0.

# %% tags=["answer"]
def my_plan(alpha, layers, whole):
    """Return (exit, drafts) with the largest (1 + α + … + α^d) / (d · exit + whole)."""
    raise NotImplementedError


# %% tags=["check"]
@w.check
def plans(plan):
    """Compare with the method's own table."""
    for alpha in ([0.2, 0.5, 0.9], [0.0, 0.1, 0.1], [0.9, 0.95, 0.97]):
        cells = tokens_per_layer(np.array(alpha), np.array([1, 3, 6]), 6, 12)
        at, d = np.unravel_index(cells.argmax(), cells.shape)
        wanted_plan = ((1, 3, 6)[at] if d else 0, int(d))
        assert tuple(plan(alpha, [1, 3, 6], 12)) == wanted_plan, f"for α = {alpha} it is {wanted_plan}"


plans(my_plan)


# %% tags=["solution"] jupyter={"source_hidden": true}
def best_plan(alpha, layers, whole):
    """Compute all cells and take the best."""
    cells = {(0, 0): 1 / whole}
    for a, layer in zip(alpha, layers, strict=True):
        for d in range(1, 7):
            cells[layer, d] = sum(a**i for i in range(d + 1)) / (d * layer + whole)
    return max(cells, key=cells.get)


assert plans(best_plan).right
assert not plans(lambda alpha, layers, whole: (layers[int(np.argmax(alpha))], 6)).right  # the most accurate exit


# %% [markdown]
# **2.** Which layers run if k of L layers are kept, evenly spread, including the first and the last? Count from 0. If
# an even position is not a whole number, either neighbour is right.

# %% tags=["answer"]
def my_layers(n, k):
    """Return the indices of the layers that run."""
    raise NotImplementedError


# %% tags=["check"]
@w.check
def kept(layers):
    """Check that each layer is next to its even position; the method's own choice is one right answer."""
    for n, k in ((12, 4), (12, 6), (30, 20), (9, 9), (6, 3)):
        found_layers, even = list(layers(n, k)), np.linspace(0, n - 1, k)
        assert len(found_layers) == len(set(found_layers)) == k, f"of {n} layers keep {k} different ones"
        assert found_layers == sorted(found_layers), "in order"
        assert (found_layers[0], found_layers[-1]) == (0, n - 1), f"of {n} layers keep the first, 0, and the last"
        for at, layer in zip(even, found_layers, strict=True):
            assert layer in (math.floor(at + 1e-9), math.ceil(at - 1e-9)), (
                f"of {n} layers {k}: an even position is {at:.2f}"
            )


kept(my_layers)


# %% tags=["solution"] jupyter={"source_hidden": true}
def even_layers(n, k):
    """Round i (n − 1) / (k − 1) to the nearest layer."""
    return [round(i * (n - 1) / (k - 1)) for i in range(k)]


assert kept(even_layers).right
# the method's own:
assert kept(lambda n, k: [layer for layer in range(n) if 2 * layer not in evenly_skipped(n, k)]).right
assert not kept(lambda n, k: list(range(0, n, n // k))[:k]).right  # the last layer is missing

# %% [markdown]
# **3.** A search tries 40 sets on a window of 16 tokens. All sets are equally good: at each position a set is right
# with probability 0.5. What is the best of the 40 scores on average? Simulate it.

# %% tags=["answer"]
my_luck = None  # a number between 0 and 1


# %% tags=["check"]
@w.check
def luck(value):
    """Check the mean of the largest of 40 shares."""
    assert value is not None, "a number"
    assert value > 0.6, "the best of many noisy scores lies above the probability, 0.5, that all of them share"
    assert abs(value - 0.764) < 0.02, "binomial with 16 positions and 0.5, the largest of 40, mean over many draws"


luck(my_luck)

# %% tags=["solution"] jupyter={"source_hidden": true}
draws = np.random.default_rng(0).binomial(16, 0.5, (4000, 40)).max(1) / 16
print(f"the best of 40 equal sets scores {draws.mean():.3f} on average")
assert luck(draws.mean()).right
assert not luck(0.5).right

# %% [markdown]
# ## Close this page and answer
#
# 1. Why may verification continue from the hidden states of an early-exit draft, but not from those of a draft that
#    skips layers?
# 2. A draft runs half of the target. How high must its acceptance rate be before one drafted token pays?
# 3. Why are positions after a rejection not counted when an exit's acceptance rate is estimated?
# 4. The best set of a search scores 90 % on its window. Why is it accepted less often on the text after the window?
#
# ## Where to read on
#
# - Elhoushi et al. 2024, *LayerSkip*, arXiv:2404.16710: early exit, and training for it.
# - Zarch et al. 2025, *DEL*, arXiv:2504.05598: exit and draft length from each layer's predictions.
# - Liu et al. 2024, *Unified Layer Skipping*, arXiv:2404.06954: layers spread evenly.
# - Xia et al. 2024, *SWIFT*, arXiv:2410.06916: the set is searched during decoding.
# - Zhang et al. 2023, *Draft & Verify*, arXiv:2309.08168: the same drafter, with a single search beforehand.

# %%
wb.close()
