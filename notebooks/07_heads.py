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
# # 07 · Heads and features
#
# **You will be able to**
#
# - draft from the target's own hidden state: with Medusa's heads, written by hand and equal to the engine's,
# - say what EAGLE changes (it extrapolates features, and it knows which token was drawn), and see the difference,
# - spend a budget of nodes well: a static tree from average accuracies, a dynamic one from this moment's probabilities.
#
# **You need**: trees ([06](06_trees.ipynb)). Heads fit one target only: this lesson runs on the bundled models, which have
# some, and takes no other.
#
# A draft model (05) is a second network that reads the whole text again, though the target has just read it. This lesson
# asks what can be had from the target's own work instead, by three drafters: **heads** that look k tokens ahead all at
# once, **features** that are guessed one after the other, and **blocks** of features guessed at once.

# %% tags=["parameters"]
import os

FAST = os.environ.get("WORKBENCH_FAST", "1") == "1"
DEVICE = "cpu"
SERVER = None  # "http://localhost:7860" shares the app's backend

# %%
import heapq
import json
from pathlib import Path

import plotly.graph_objects as go
import torch
from PIL import Image
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from workbench import Workbench
from workbench import widgets as w
from workbench.bench.prompts import load_prompts
from workbench.core.templates import best_paths, parents_of
from workbench.engine import load_models
from workbench.engine.image_inputs import read
from workbench.methods.drafters.eagle_vlm import EagleVLMNet
from workbench.methods.drafters.feature import load_net
from workbench.models.bundle import bundled_folder
from workbench.models.names import locate
from workbench.trace.metrics import acceptance_by_depth, tau

disable_progress_bar()
DTYPE = torch.float64  # so that equal tokens are no accident of rounding
wb = Workbench(SERVER) if SERVER else Workbench(target="text-target", drafter=None, device=DEVICE, dtype="float64")
tokenizer = AutoTokenizer.from_pretrained(locate("text-target"))
target = AutoModelForCausalLM.from_pretrained(locate("text-target"), dtype=DTYPE).to(DEVICE).eval()
torch.set_grad_enabled(False)
length = 40 if FAST else 96

# %% [markdown]
# ## What the target already knows
#
# To write one token, the target computes a vector of a few hundred numbers, the *hidden state*, and its LM head turns that
# into a law over the vocabulary. All that the target has understood of the text is in that vector: something about the
# token after next, too. A *Medusa head* is one small layer that asks it. It adds a correction to the vector and hands it to
# the target's own LM head, so that only W and b have to be learnt (in the paper each head has an LM head of its own, which
# begins as the target's; sharing that one is this project's doing, to keep heads small):
#
# $$\text{head}_k(h) = \text{LM head}\,\big(h + \text{SiLU}(W_k h + b_k)\big)$$

# %%
folder = Path(locate("text-target-medusa"))
weights = load_file(folder / "model.safetensors")
config = json.loads((folder / "config.json").read_text())
K = config["n_heads"]
W = torch.stack([weights[f"heads.{i}.weight"] for i in range(K)]).to(DEVICE, DTYPE)  # [K, D, D]
b = torch.stack([weights[f"heads.{i}.bias"] for i in range(K)]).to(DEVICE, DTYPE)  # [K, D]


def hidden(text):
    """What the LM head reads at each position: [T, D]."""
    return target.model(torch.tensor([text], device=DEVICE)).last_hidden_state[0]


def heads(h):
    """The laws of all heads, [T, K, V], from hidden states [T, D]."""
    x = h[:, None] + torch.nn.functional.silu(torch.einsum("kij,tj->tki", W, h) + b)
    return target.lm_head(x).softmax(-1)


start = tokenizer("Once upon a time, there was a")["input_ids"]
h = hidden(start)
distributions = heads(h)
n_target, n_heads = sum(p.numel() for p in target.parameters()), W.numel() + b.numel()
print("hidden", tuple(h.shape), "→ laws of the heads", tuple(distributions.shape))
print(f"the heads have {n_heads / n_target:.1%} of the target's parameters")

# %% [markdown]
# Mind the places. The newest committed token, the *root*, was drawn from the hidden state before it, and has not been
# through the target yet. So in a round we have the state *before* the root, and head k guesses the k-th token after it.
#
# **Predict.** The text is *Once upon a time, there was a*. The target goes on *little girl called …*. What might head 1,
# which stands before *a* and guesses what follows it, find likeliest? What will heads 2 to 4 say, farther and farther off?

# %%
best = distributions[-2].topk(4)  # the state before the root; [K, 4]
for k in range(K):
    words = [tokenizer.decode([t]) for t in best.indices[k].tolist()]
    print(f"head {k + 1}:", *(f"{word!r} {p:.2f}  " for word, p in zip(words, best.values[k].tolist(), strict=True)))
assert best.values[2, 0] > best.values[0, 0]

# %% [markdown]
# Farther is not simply vaguer. Head 1 has many adjectives to choose from, head 2 is between a boy and a girl, head 3 expects
# that whoever it is will be *called* something, or be *there*, and head 4 cannot know what comes of that. But on average over
# all texts, farther is harder. Their configuration says how often each rank was right on held-out text (`head_accuracy`;
# right is the token that was written there, which of half of these texts was drawn and not the likeliest):

# %%
accuracy = config["head_accuracy"]  # [K][10]: of head k, how often its r-th best token is right
for k, row in enumerate(accuracy):
    print(f"head {k + 1}: first {row[0]:.0%}, second {row[1]:.0%}, third {row[2]:.0%}, any of ten {sum(row):.0%}")


# %% [markdown]
# ## From guesses to a tree
#
# A path of ranks (i₁, i₂, …) means: the i₁-th best token of head 1, then the i₂-th best of head 2, … There are 10⁴ paths of
# four levels; we can afford a dozen nodes. Medusa takes those whose product of accuracies is largest. Products fall along
# a path, so a best-first search finds them:

# %%
def best_tree(chance, n):
    """The n paths of ranks with the largest products of chances, parents first. chance[d][r]: rank r at level d + 1."""
    heap, chosen = [(-c, (r,)) for r, c in enumerate(chance[0])], []
    heapq.heapify(heap)
    while heap and len(chosen) < n:
        value, path = heapq.heappop(heap)
        chosen.append(path)
        if len(path) < len(chance):
            for r, c in enumerate(chance[len(path)]):
                heapq.heappush(heap, (value * c, (*path, r)))
    return chosen


static = best_tree(accuracy, 12)
assert static == best_paths(accuracy, 12, K)  # the engine's
print("ranks:  ", *static)
print("parents:", parents_of(static))

# %% [markdown]
# That tree is made once, before any text. Only its tokens change from round to round. Is it the engine's? Rebuild every
# tree of a run of `medusa` from the target's states:

# %%
run = wb.generate(start, method="medusa", params={"nodes": 12, "depth": 4}, max_new_tokens=length)
text = list(run.header.prompt_tokens)
for r in run.rounds:
    depth = min(4, length - (len(text) - len(start)) - 1)  # the last rounds need no deeper tree
    paths = best_tree(accuracy[:depth], 12) if depth else []
    ranked = heads(hidden(text[:-1])[-1:])[0].topk(10).indices  # [K, 10]
    assert r.nodes.tokens == [int(ranked[len(path) - 1, path[-1]]) for path in paths]
    assert r.nodes.parents == parents_of(paths)
    text += [e.token for e in r.emitted]
print(f"{len(run.rounds)} trees rebuilt, all equal to the engine's. τ = {tau(run.rounds):.2f}")
w.tree(run, round=0)

# %%
w.app_link(run)

# %% [markdown]
# ## Blind to each other
#
# **Predict.** Look at the tree above. What do the children of the first node have in common with those of the second?

# %%
r = run.rounds[0]
by_level = {}
for i, d in enumerate(r.nodes.depth):
    by_level.setdefault(d, {}).setdefault(r.nodes.text[i], []).append(r.nodes.p[i])
for d, words in by_level.items():
    print(f"level {d}:", "   ".join(f"{word!r}: p = {', '.join(f'{p:.2f}' for p in ps)}" for word, ps in words.items()))

first_level = [i for i, parent in enumerate(r.nodes.parents) if parent == -1]
below = {i: [t for t, parent in zip(r.nodes.tokens, r.nodes.parents, strict=True) if parent == i] for i in first_level}
one, two = [tokens_ for tokens_ in below.values() if tokens_][:2]
assert one[: len(two)] == two  # the second node has fewer children here, and they are the same ones

# %% [markdown]
# They are the same words, in the same order, whatever the parent is: head 2 was never told what head 1's guess was. Several
# probabilities behind a word are the *target's* for the same word behind different parents, and they differ. Where the second
# word depends on the first, a head can only offer an average.
#
# ## Static or dynamic: where to put the nodes
#
# The static tree believes that head 1 is right as often here as on average. But the heads have just computed their
# probabilities for *this* place. Use these instead of the average accuracies, and the same search gives another tree in
# every round, for nothing: same heads, same number of nodes, same cost to verify.
#
# To compare them fairly, fix the text. Take stories as the target writes them; at *every* place of each story, build both
# trees and count how many levels the target would accept. (This is not a run, in which a longer acceptance would skip
# places; every place counts once, for both alike.)

# %%
names = ["story-dragon", "story-lighthouse", "story-key", "story-kite", "story-bear"]
prompts = {p.name: p.encode(tokenizer) for p in load_prompts()}
spots = []  # (ranks of the true tokens, or None; the heads' probabilities by rank) for every place
for name in names:
    plain = wb.generate(prompts[name], method="autoregressive", max_new_tokens=length + 24)
    text, n_prompt = plain.header.prompt_tokens + plain.token_ids, len(plain.header.prompt_tokens)
    found = heads(hidden(text)).topk(10)  # [T, K, 10]
    tokens_, chances = found.indices.tolist(), found.values.tolist()
    for t in range(n_prompt - 1, len(text) - K - 1):  # the root is at t + 1
        truth = text[t + 2 : t + 2 + K]
        ranks = [row.index(x) if x in row else None for row, x in zip(tokens_[t], truth, strict=True)]
        spots.append((ranks, chances[t]))
print(len(spots), "places;", f"head 1 was right at {sum(ranks[0] == 0 for ranks, _ in spots) / len(spots):.0%} of them")


def accepted(paths, ranks):
    """Levels accepted: the longest beginning of the true ranks that is a path of the tree."""
    tree, n = set(paths), 0
    while n < len(ranks) and tuple(ranks[: n + 1]) in tree:
        n += 1
    return n


assert accepted([(0,), (0, 1), (1,)], [0, 1, 3, 0]) == 2
assert accepted([(0,), (0, 1), (1,)], [2, 0, 0, 0]) == 0

# %% [markdown]
# **Predict.** With 4 nodes, and with 32: which tree is accepted deeper on average, and where is the difference larger,
# relative to what is accepted? (With 11,110 nodes, all that four heads with ten ranks can say, they are the same tree.)

# %%
budgets = (2, 4, 8, 12, 16, 24, 32, 48)
mean = {}
for n in budgets:
    fixed = best_tree(accuracy, n)
    mean[n] = (
        sum(accepted(fixed, ranks) for ranks, _ in spots) / len(spots),
        sum(accepted(best_tree(chance, n), ranks) for ranks, chance in spots) / len(spots),
    )
    print(f"{n:2d} nodes: static {mean[n][0]:.2f}, dynamic {mean[n][1]:.2f} levels, {mean[n][1] / mean[n][0] - 1:+.0%}")
ceiling = sum([*r, None].index(None) for r, _ in spots) / len(spots)
print(f"all ten ranks of all heads: {ceiling:.2f}")

gain = {n: dynamic / fixed - 1 for n, (fixed, dynamic) in mean.items()}
assert all(dynamic >= fixed for fixed, dynamic in mean.values())
assert max(gain[4], gain[8]) > gain[32]

# %%
figure = go.Figure(
    [
        go.Scatter(name=name, x=list(budgets), y=[mean[n][i] for n in budgets], mode="lines+markers", line_dash=dash)
        for i, (name, dash) in enumerate((("static", "dot"), ("dynamic", "solid")))
    ],
    go.Layout(title="Levels accepted by size of the tree, at every place of five stories", height=360),
)
figure.update_xaxes(title="nodes verified a round").update_yaxes(title="mean levels accepted")
w.figure(figure)

# %% [markdown]
# The dynamic tree is better at every budget here. The difference is largest, relative to what is accepted, where a budget
# is small but leaves a choice: with few nodes it matters most which; with many, both trees hold nearly everything that
# has a chance. What does "better" look like? Take the place at which the four heads are surest together, and the one at
# which head 1 is least sure, and spend eight nodes at each. **Predict** the number of nodes on levels 1 to 4.

# %%
together = [torch.tensor([row[0] for row in chance]).prod().item() for _, chance in spots]
first = [chance[0][0] for _, chance in spots]
examples = {
    "static, everywhere": best_tree(accuracy, 8),
    "dynamic, all heads sure": best_tree(spots[together.index(max(together))][1], 8),
    "dynamic, head 1 unsure": best_tree(spots[first.index(min(first))][1], 8),
}
levels = {title: [sum(len(path) == d for path in paths) for d in range(1, K + 1)] for title, paths in examples.items()}
print(f"{'nodes on level':24}", *range(1, K + 1))
for title, counts in levels.items():
    print(f"{title:24}", *counts)
print(f"\nfirst choices: {max(together):.2f} that all four are right at the sure place (the product of the heads'\n"
      f"probabilities), {min(first):.2f} that head 1 is right at the unsure one")  # fmt: skip
assert levels["dynamic, all heads sure"][3] > levels["dynamic, head 1 unsure"][3]
assert levels["dynamic, all heads sure"][0] < levels["dynamic, head 1 unsure"][0]

# %% [markdown]
# Where the heads are sure, the tree goes deep; where they are not, wide. What was measured above: two *shapes*, for one set
# of heads, at all places of five stories of one small model, and the static tree was fitted to other kinds of text than
# these (exercise 2 takes that advantage away).
#
# ## Features: guess the vector, not the token
#
# EAGLE asks another question. Not *which token comes in k steps?* of one state, but *which hidden state comes next?*, and
# again, step by step. Two things enter each step: the newest feature, and the **embedding of the token that was drawn from
# it**. That token is a throw of the dice which no feature can know in advance; telling the drafter how it fell is what
# heads lack.
#
# $$\hat f_{t+1} = \text{layer}\big(W\,[\,e(x_{t+1})\,;\,f_t\,]\big), \qquad q(x_{t+2}) = \text{softmax LM head}(\hat f_{t+1})$$
#
# The bundled drafter of this kind, `eagle-vlm`, belongs to the target that reads pictures. One scene, one question:

# %%
scene = Image.open(bundled_folder().parent / "scenes" / "four-shapes.png").convert("RGB")
question = [{"type": "image"}, {"type": "text", "text": "Describe every object, left to right."}]
ask = wb.chat_prompt([{"role": "user", "content": question}], "vision-target")
seen = {"target": "vision-target", "images": [scene], "max_new_tokens": length}
chain = wb.generate(ask, method="eagle-vlm", params={"depth": 4, "width": 1, "nodes": 4}, **seen)
print(chain.text)

models = load_models("vision-target", None, device=DEVICE, dtype="float64")
net = load_net(EagleVLMNet, models)  # fuses the pair, then one decoder layer
_, inputs = read(models, ask, [scene])  # what the target gets: ids with 64 places for the picture, and its pixels
print(
    {name: tuple(x.shape) for name, x in inputs.items()},
    "· drafter:",
    sum(p.numel() for p in net.parameters()),
    "parameters",
)


# %%
def look(answer):
    """Embeddings and features [n, D] of picture, question and the answer so far, from one pass of the target."""
    ids = torch.cat([inputs["input_ids"], torch.tensor([answer], dtype=torch.long)], 1).to(DEVICE)
    out = models.target.model(
        input_ids=ids, pixel_values=inputs["pixel_values"].to(DEVICE, DTYPE), output_hidden_states=True
    )
    return out.hidden_states[0][0], out.hidden_states[-1][0]  # what entered the first layer, what the LM head read


def extrapolate(e, f, choose, steps):
    """Draft `steps` tokens. e [n, D], f [n − 1, D]: the newest token has no feature yet. Returns tokens and laws."""
    pairs, drafts, distributions = net.pairs(e[1:], f), [], []  # f(s) with the token behind it, s = 0 … n − 2
    for step in range(steps):
        guess = net(pairs[None], torch.arange(len(pairs), device=DEVICE))[0, -1:]  # [1, D]: the feature after the pair
        distributions.append(models.target.lm_head.forward(guess)[0].softmax(0))
        drafts.append(choose(distributions[-1], step))
        drawn = models.target.embed(torch.tensor([drafts[-1]], device=DEVICE))
        pairs = torch.cat([pairs, net.pairs(drawn, guess)])  # its own guess now stands where a true feature should
    return drafts, distributions


answer = []
for r in chain.rounds:
    depth = min(4, length - len(answer) - 1)
    e, f = look(answer)
    assert extrapolate(e, f[:-1], lambda probs, step: int(probs.argmax()), depth)[0] == r.nodes.tokens
    answer += [token.token for token in r.emitted]
print(f"{len(chain.rounds)} chains of the engine rebuilt by hand, τ = {tau(chain.rounds):.2f}")
w.vision(chain)

# %% [markdown]
# **Predict.** The answer so far is *… From left to right: a small*. Force the drafter's first token: once *pink*, once
# *red*, once *large*. Does its law for the token after that change? Would that of a Medusa head?

# %%
told = tokenizer("There are four shapes. From left to right: a small")["input_ids"]
e, f = look(told)
after = {}
for word in (" pink", " red", " large"):
    (forced,) = tokenizer(word)["input_ids"]
    probs = extrapolate(e, f[:-1], lambda probs, step, forced=forced: forced, 2)[1][1]
    after[word] = probs
    top = probs.topk(3)
    shown = [(tokenizer.decode([t]), p) for t, p in zip(top.indices.tolist(), top.values.tolist(), strict=True)]
    print(f"a small{word} →", *(f"{name!r} {p:.2f}  " for name, p in shown))

assert (after[" pink"] - after[" large"]).abs().max() > 0.01

# %% [markdown]
# It does: the drafter has read the word. A head's second law is the same behind all three, as we saw. That is the whole
# difference, and its price: EAGLE runs its layer once a level, Medusa all heads once a round.
#
# ## What is it worth to be told?
#
# Take the drafter's *second* choice at a place, as the second branch of a tree does, or the dice of a target that samples.
# What does the target write after it? And what does the drafter guess: once told that second choice, once going by its
# first, which is all that a blind drafter could go by? **Predict** how often each is right.

# %%
scenes = ["six-shapes", "sketch-overlap", "crowd"]
if not FAST:
    scenes = [path.stem for path in sorted((bundled_folder().parent / "scenes").glob("*.png"))]
pictures = {name: Image.open(bundled_folder().parent / "scenes" / f"{name}.png").convert("RGB") for name in scenes}
right_if, n_places, first_right = {"told the branch": 0, "not told": 0}, 0, 0
for picture in pictures.values():
    plain = wb.generate(ask, method="autoregressive", **seen | {"images": [picture], "max_new_tokens": 96})
    text = plain.token_ids
    _, inputs = read(models, ask, [picture])
    e, f = look(text)
    n_prompt = len(e) - len(text)
    guess = net(net.pairs(e[1:], f[:-1])[None], torch.arange(len(e) - 1, device=DEVICE))[0]
    best_two = models.target.lm_head.forward(guess).topk(2).indices.tolist()  # behind the token at place s + 1
    for i in range(1, len(text) - 1, 6 if FAST else 1):
        s = n_prompt + i - 1  # the place of the newest token, which has no feature yet
        first, second = best_two[s - 1]
        _, branch = look([*text[:i], second])
        wanted = int(models.target.lm_head.forward(branch[-1:]).argmax())  # what the target writes in that branch
        for told, token in zip(right_if, (second, first), strict=True):
            probs = extrapolate(e[: s + 1], f[:s], lambda probs, step, token=token: token, 2)[1][1]
            right_if[told] += int(probs.argmax()) == wanted
        n_places, first_right = n_places + 1, first_right + (first == text[i])
_, inputs = read(models, ask, [scene])  # back to the first picture
print(f"{n_places} places; the drafter's first choice was the target's token at {first_right} of them")
for told, n in right_if.items():
    print(f"the token after the second choice: {told:16} right at {n:3d} ({n / n_places:.0%})")
assert right_if["told the branch"] > right_if["not told"]

# %% [markdown]
# To be told is worth much **in a branch other than the first**. In the first branch it is worth little here: the first choice
# is nearly always the target's token, so that there is nothing to be told. A chain has no other branch: where its first
# choice is wrong, it ends. Trees have them.
#
# ## Blocks against steps, chains against trees
#
# Heads for text and features for pictures cannot be compared with each other: two targets, two kinds of text. But there is a
# fair pair for this target. `flash` guesses *four* features from one state at once, blind to the tokens in between, like
# heads; `eagle-vlm` goes step by step. Same target, same scenes, eight levels deep (so that τ has room: it is 9 at most): as
# a chain of eight, and as a tree of at most 24 nodes.
#
# **Predict** the order of the four by τ. Then: which of the two drafters should gain more by the tree?

# %%
quick = Workbench(SERVER) if SERVER else Workbench(target="vision-target", drafter=None, device=DEVICE)  # float32
shapes = {"chain of 8": (1, 8), "tree of 24": (3, 24)}
blocks = {}
for method in ("flash", "eagle-vlm"):
    for shape, (width, n_nodes) in shapes.items():
        traces = [
            quick.generate(ask, method=method, params={"depth": 8, "width": width, "nodes": n_nodes},
                        **seen | {"images": [picture], "max_new_tokens": 96})
            for picture in pictures.values()
        ]  # fmt: skip
        rounds_ = [r for t in traces for r in t.rounds]
        calls = sum(r.draft_forwards for r in rounds_) / len(rounds_)
        blocks[method, shape] = tau(rounds_), calls
        passes = " ".join(f"{len(t.rounds):2d}" for t in traces)
        print(f"{method:10} {shape}: τ = {tau(rounds_):.2f} (passes by scene: {passes}), {calls:4.1f} calls a round")
        if shape == "chain of 8":
            print(f"{'':10} by place:", *(f"{kept}/{tried}" for _, tried, kept in acceptance_by_depth(rounds_)))
for method in ("flash", "eagle-vlm"):
    gained = blocks[method, "tree of 24"][0] - blocks[method, "chain of 8"][0]
    print(f"{method:10} gains {gained:.2f} tokens a pass by the tree")
    assert gained > 0
assert blocks["eagle-vlm", "chain of 8"][1] > 2 * blocks["flash", "chain of 8"][1]  # steps are paid for in calls
assert blocks["eagle-vlm", "chain of 8"][1] <= 8  # one for each level
assert blocks["flash", "chain of 8"][1] <= 2  # one for each block of four

# %% [markdown]
# **Trees gain**, for both; more for the drafter that goes step by step, whose children know their parent. (Greedy runs on
# three scenes: the counts are exact, and three scenes are three scenes. `FAST = False` takes all of them.)
#
# **Steps do not gain over blocks here**, and it would be wrong to hide it. As chains `flash` is even ahead, for a quarter
# of the calls; as trees they meet. Read the line "by place" (accepted / tested, given that all before were accepted): what
# EAGLE fears, an acceptance that falls from place to place because the drafter does not know what it drafted, does not
# happen to `flash`. The facts of these scenes were in the target's state already, and the sentences follow a form: there is
# little to be told, as the section above counted. What remains is how well each of the two was trained, and how much of the
# picture it reads.
#
# That is a property of these texts, no law. On the target's answers of many kinds the accuracies of above say what is left of
# a blind guess four tokens ahead: 34 % for the first choice. And there trees, too, gain more:

# %%
by_nodes = {}
for n in (4, 24):
    rounds_ = []
    for name in names[:3]:
        rounds_ += wb.generate(
            prompts[name], method="medusa", params={"nodes": n, "depth": 4}, max_new_tokens=32 if FAST else 48
        ).rounds
    by_nodes[n] = tau(rounds_)
    print(f"medusa on three stories, {n:2d} nodes: τ = {by_nodes[n]:.2f}")
assert by_nodes[4] < by_nodes[24]

# %% [markdown]
# The more choices a text leaves between here and there, the more it is worth to know which was made, and to have a second
# guess at hand.
#
# ## A tree that changes
#
# `eagle-vlm` with a width of 3 grows EAGLE-2's dynamic tree: at each level the three most promising nodes are expanded, and of
# all nodes offered the best are verified. Compare two budgets on one picture: pin a round in either tree, and the other
# follows. (By number: the run with the larger trees gets ahead, so the same number may be another place of the text.)
# **Predict** which of the two budgets has more different shapes of trees, and which the larger τ.

# %%
six = seen | {"images": [pictures["six-shapes"]], "max_new_tokens": 96}
trees = [wb.generate(ask, method="eagle-vlm", params={"depth": 8, "width": 3, "nodes": n}, **six) for n in (8, 24)]
for name, trace in (("medusa, 12 nodes", run), ("eagle-vlm, 8 nodes", trees[0]), ("eagle-vlm, 24 nodes", trees[1])):
    full = trace.rounds[:-2]  # the last rounds are cut to what is left of the text
    shapes = {tuple(r.nodes.parents) for r in full}
    print(f"{name:20} {len(shapes):2d} different shapes in {len(full)} rounds, τ = {tau(trace.rounds):.2f}")

telling = next((r.index for r in trees[0].rounds if "rejected" in r.nodes.status), 1)
views = [w.tree(trace, round=telling) for trace in trees]
w.link(*views)
w.show(*views)

# %% [markdown]
# A drafter that is nearly always sure spends a small budget on a chain, at most places; with more nodes it has some left to
# hedge where it is less sure, and that saves passes. (p is the target's probability, q the drafter's.)

# %%
assert trees[0].token_ids == trees[1].token_ids  # whatever is drafted, the text is the target's
assert len({tuple(r.nodes.parents) for r in run.rounds[:-2]}) == 1  # static
assert len({tuple(r.nodes.parents) for r in trees[1].rounds[:-2]}) > 1  # dynamic
assert len(trees[1].rounds) < len(trees[0].rounds)  # the larger budget saves passes
w.app_link(trees[1])

# %% [markdown]
# ## The same layer, asked in four ways
#
# For text, too, the bundled target has EAGLE's layer. EAGLE-1 and EAGLE-2 (`eagle`, `eagle-2`) are one layer under two
# trees, a fixed one and the dynamic one of above. Three methods change what the layer is asked. *Multi-token prediction*
# (`mtp`, DeepSeek-V3) does not ask that its state be a guess at a feature: only the laws are held against the target's.
# *EAGLE-3* (`eagle-3`) does not ask that either; it reads a low, a middle and a high layer of the target, fused, where the
# others read the last one, and like `mtp` it learns in drafts of its own, where it reads its own states (exercise 3 is
# about the difference). *PARD* (`pard`) does not wait for its own tokens: where the next one is not known yet it reads a learned
# *mask*, so one call writes the whole draft. **Predict**, for chains of five: who calls how often? And from which place on
# does `pard` lose, and to whom is it a cousin there?

# %%
calls, chained = {}, {"grower": "chain"}
for method, params in (("eagle-2", chained), ("mtp", chained), ("eagle-3", chained), ("pard", {})):
    rounds_ = [
        r
        for name in names
        for r in wb.generate(prompts[name], method=method, params={"depth": 5, **params}, max_new_tokens=length).rounds
    ]
    calls[method] = sum(r.draft_forwards for r in rounds_) / len(rounds_)
    print(f"{method:8} τ = {tau(rounds_):.2f}, {calls[method]:.1f} calls a round; by place:",
          *(f"{kept}/{tried}" for _, tried, kept in acceptance_by_depth(rounds_)))  # fmt: skip
assert calls["pard"] <= 1
assert min(calls["eagle-2"], calls["mtp"], calls["eagle-3"]) > 3

for method in ("eagle", "eagle-2", "eagle-3"):
    taus = [tau(wb.generate(prompts[name], method=method, params={"nodes": 12}, max_new_tokens=length).rounds)
            for name in names]  # fmt: skip
    print(f"{method:8} in a tree of 12: τ =", *(f"{one:.2f}" for one in taus))

# %% [markdown]
# The first place is the same question for all four. What the cards of these heads say (`workbench models` names their
# folders) is the rest of the comparison: how much each has read, and how long it learnt. EAGLE-3's paper found that *its*
# way goes on gaining from more text where imitating features does not; a few minutes of training cannot show that. From the
# second place on `pard` has not been told which tokens it drafted: it is as blind as Medusa's heads, and pays for one call
# with acceptance. What a call costs beside a pass of the target decides which of them is faster; here, with drafters of a
# third of a million to a million parameters, calls are cheap. And mind the last three lines: on these texts neither the fixed
# tree nor the dynamic one wins everywhere, so what was seen of them above, on pictures, is no law. A cousin
# of `pard`, `block-diffusion` (in the manner of DFlash), fills a whole block of masks in, which see one another and, in every
# layer, streams of three of the target's: put it into the cell above, with `{"depth": 5}`, and look at the second place.

# %% [markdown]
# ## The same on a real model
#
# Stories for children and descriptions of shapes leave few choices. SmolLM2 (135 million parameters) answers questions; the
# README's command brings it. Heads fit one target only, so the cell asks the backend which drafters there are
# for it: all that were trained for it, and its draft model, or, where there is none, `token-recycling`, which grows a
# tree without having learnt anything. **Predict**: will their first guess be right more often here than above, or less
# often? And behind a right one: does a head's next guess hold up as well as that of a drafter that goes step by step?

# %%
from workbench.core.errors import WorkbenchError

UNTRAINED = {"drafter", "any-drafter", "trees", "pictures", "sight"}  # what a method may need besides heads
if "smollm2" in {entry["name"] for entry in wb.targets()}:
    chat = Workbench(SERVER) if SERVER else Workbench(target="smollm2", device=DEVICE, dtype="bfloat16")
    try:
        asked = chat.chat_prompt([{"role": "user", "content": "What is the sea? Answer in two sentences."}], "smollm2")
        there = {"target": "smollm2", "max_new_tokens": 12 if FAST else 96}
        plain = chat.generate(asked, method="autoregressive", **there)
        print(f"plain decoding: {len(plain.rounds)} passes, {plain.text!r}")
        exact = [m for m in chat.methods("smollm2") if m["available"] and m["promise"] == "exact"]
        trained = [m["name"] for m in exact if set(m["needs"]) - UNTRAINED]
        if not trained:
            print("No heads were trained for it here: `workbench train` lists the recipes.")
        own = [m["name"] for m in exact if m["name"] == "draft-model"]
        for method in [*trained, *own] or ["token-recycling"]:
            said = chat.generate(asked, method=method, **there)
            same = "the same text" if said.token_ids == plain.token_ids else "another text: rounding decided a tie"
            print(f"{method:16} τ = {tau(said.rounds):.2f} in {len(said.rounds)} passes, {same}; by place:",
                  *(f"{kept}/{tried}" for _, tried, kept in acceptance_by_depth(said.rounds)))  # fmt: skip
    except WorkbenchError as problem:  # its copy is made of the package at first use, which takes room on the disk
        print(problem)
    chat.close()
else:
    print("Not here: `workbench models` says how SmolLM2 comes to this machine.")

# %% [markdown]
# What the cell printed is one answer: compare the first place with the next, and each with what was measured above. Two
# things differ from the toy. The text: its stories and forms can be foreseen from a single state; an answer to a question
# can go on in several ways at many places, where it is worth more to be told which one was taken. And the training: how
# long each head was trained, and on how much text, its card says (`workbench models` lists them). `FAST = False` takes more
# of the answer, and `workbench bench` many.

# %% [markdown]
# ## Exercises
#
# **1. What should the static tree yield?** If head k's rank r is right with probability `accuracy[k][r]`, independently of
# the other heads, how many levels does a tree accept on average? Compute it for 12 nodes, and compare with what was
# measured above. Which assumption is wrong?

# %% tags=["answer"]
my_levels = None  # a number, to two digits


# %% tags=["check"]
@w.check
def static_yield(levels):
    """A node's whole path has to be right; every accepted node is one level."""
    wanted = sum(torch.tensor([accuracy[d][r] for d, r in enumerate(path)]).prod().item() for path in static)
    assert abs(levels - wanted) < 0.006, "multiply along each path, then add up the nodes"


static_yield(my_levels)

# %% tags=["solution"] jupyter={"source_hidden": true}
expected = 0.0
for node in static:  # a node is accepted if its whole path is right; each accepted node is one level
    product = 1.0
    for d, r in enumerate(node):
        product *= accuracy[d][r]
    expected += product
print(f"expected {expected:.2f} levels, measured {mean[12][0]:.2f}")
assert expected < mean[12][0]
assert static_yield(expected).right
assert not static_yield(sum(accuracy[len(node) - 1][node[-1]] for node in static)).right  # each node by itself
# Independence: in easy stretches all heads are right together. That the accuracies are those of all kinds of text, and
# these five are stories, is another assumption; exercise 2 asks what it matters.

# %% [markdown]
# **2. A fair objection.** Perhaps the dynamic tree wins only because the static one was fitted to other texts. Measure the
# heads' accuracies on these very stories, build the static tree from them, and compare again. (It may now even look at its
# own exam.)

# %% tags=["answer"]
my_accuracy = None  # [K][10]: of head k on these stories, how often its r-th best token is right


# %% tags=["check"]
@w.check
def objection(found):
    """Shares of all places, `spots`."""
    for k in range(K):
        assert len(found[k]) == 10, "ten ranks for each head"
        for r in range(10):
            wanted = sum(ranks[k] == r for ranks, _ in spots) / len(spots)
            assert abs(found[k][r] - wanted) < 1e-6, f"head {k + 1}, rank {r}: {wanted:.3f} of the places"


objection(my_accuracy)

# %% tags=["solution"] jupyter={"source_hidden": true}
own = [[sum(ranks[k] == r for ranks, _ in spots) / len(spots) for r in range(10)] for k in range(K)]
for n in (4, 8, 16, 32):
    fitted = best_tree(own, n)
    level = sum(accepted(fitted, ranks) for ranks, _ in spots) / len(spots)
    print(
        f"{n:2d} nodes: static {mean[n][0]:.2f}, static fitted to these stories {level:.2f}, dynamic {mean[n][1]:.2f}"
    )
    assert level >= mean[n][0] - 0.1
assert objection(own).right
assert not objection(accuracy).right
# Fitting hardly closes the gap, and at some budgets the averages of all texts do better than those of these: a product
# of averages is no chance of a path. So what the dynamic tree knows is not what kind of text this is, but the moment.

# %% [markdown]
# **3. How much is lost by extrapolating?** In `extrapolate`, the drafter reads its own guesses from the second step on. Go
# through the answer of the scene above and compare, for the second, third and fourth step, how often the drafter's first
# choice is the target's token, (a) with its own features, (b) with the true ones. Force the true tokens in both. (Begin
# at each place of the answer that has four tokens behind it.)

# %% tags=["answer"]
my_shares = None  # {"own features": [four shares], "true features": [four shares]}


# %% tags=["check"]
@w.check
def extrapolated(shares):
    """At each place of the answer, four steps."""
    for name in ("own features", "true features"):
        for step, found in enumerate(shares[name], 1):
            assert 0 <= found <= 1, f"{name}, step {step}: {found} is no share"
    text_, (e_, f_) = chain.token_ids, look(chain.token_ids)
    first_place, counts, true_counts = len(e_) - len(text_), [0] * 4, [0] * 4
    ends = range(first_place, len(e_) - 4)
    one_step_ = net(net.pairs(e_[1:], f_[:-1])[None], torch.arange(len(e_) - 1, device=DEVICE))[
        0
    ]  # true features everywhere
    named = models.target.lm_head.forward(one_step_).argmax(-1).tolist()
    for end in ends:
        true = text_[end + 1 - first_place : end + 5 - first_place]
        drafted_laws = extrapolate(e_[: end + 1], f_[:end], lambda probs, step, true=true: true[step], 4)[1]
        counts = [n + (int(probs.argmax()) == token) for n, probs, token in zip(counts, drafted_laws, true, strict=True)]
        true_counts = [
            n + (named[end + i - 1] == token) for i, (n, token) in enumerate(zip(true_counts, true, strict=True))
        ]
    for name, wanted in (("own features", counts), ("true features", true_counts)):
        for step, (found, n) in enumerate(zip(shares[name], wanted, strict=True), 1):
            assert abs(found - n / len(ends)) < 0.006, f"{name}, step {step}: another share"


extrapolated(my_shares)

# %% tags=["solution"] jupyter={"source_hidden": true}
written = chain.token_ids
e, f = look(written)
n_prompt = len(e) - len(written)
right = {"own features": [0] * 4, "true features": [0] * 4}
starts = range(n_prompt, len(e) - 4)  # the newest token is at place `start`
one_step = net(net.pairs(e[1:], f[:-1])[None], torch.arange(len(e) - 1, device=DEVICE))[0]  # true features everywhere
choices = models.target.lm_head.forward(one_step).argmax(-1).tolist()  # behind the pair that ends at place s + 1
for start_ in starts:
    truth = written[start_ + 1 - n_prompt : start_ + 5 - n_prompt]
    distributions = extrapolate(e[: start_ + 1], f[:start_], lambda probs, step, truth=truth: truth[step], 4)[1]
    for step in range(4):
        right["own features"][step] += int(distributions[step].argmax()) == truth[step]
        right["true features"][step] += choices[start_ + step - 1] == truth[step]
for name, counts in right.items():
    print(f"{name:14}", *(f"step {i + 1}: {n / len(starts):4.0%} " for i, n in enumerate(counts)))
assert right["own features"][0] == right["true features"][0]
solved = {name: [n / len(starts) for n in counts] for name, counts in right.items()}
assert extrapolated(solved).right
assert not extrapolated({"own features": solved["true features"], "true features": solved["true features"]}).right
# With true features there would be nothing to draft: they exist only once the target has run. The difference is what
# EAGLE-3 works on, by training the drafter on its own guesses.

# %% [markdown]
# ## Close this page and answer
#
# | | heads (`medusa`) | a block (`flash`) | steps (`eagle-vlm`) |
# |---|---|---|---|
# | reads | one hidden state | the states, one layer | the states, **and each token drafted so far** |
# | guesses | tokens, each head its own distance | several features at once | one feature after the other |
# | calls a round | one | one for each block | one for each level |
#
# 1. Why has the newest token, the root, no hidden state yet when the heads are asked?
# 2. Two nodes on level 1 have the same children in Medusa's tree. Why, and why is that not so in EAGLE's?
# 3. Where does a dynamic tree put its nodes when the drafter is sure, and why does that cost nothing?
# 4. A blind drafter and one that sees its own drafts reach the same τ on some text. What does that say about the text?
# 5. At which places is it worth something to know the drafted token, and why does a chain never profit from it there?
#
# ## References
#
# - Cai et al. 2024, *Medusa*, arXiv:2401.10774, §2.1 (heads and tree), §2.3.3 (choosing the tree).
# - Li et al. 2024, *EAGLE*, arXiv:2401.15077, §3 (why features, and why the drawn token), §4.1. · Li et al. 2024, *EAGLE-2*,
#   arXiv:2406.16858, §4 (dynamic trees). · Li et al. 2025, *EAGLE-3*, arXiv:2503.01840.
# - DeepSeek-AI 2024, *DeepSeek-V3*, arXiv:2412.19437, §2.2 (multi-token prediction). · An et al. 2025, *PARD*,
#   arXiv:2504.18583, §3 (masks in place of drafted tokens).
# - Huang et al. 2025, *SpecVLM*, arXiv:2509.11815, §3.1: EagleVLM. · Wang et al. 2025, *FLASH*, arXiv:2505.12728, §3.2:
#   several features from one state.
#
# Next: [08](08_temperature.ipynb): what happens to all this when tokens are drawn.

# %%
quick.close()
wb.close()
