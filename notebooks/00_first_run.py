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
# # 00 · First run
#
# **You will be able to**
#
# - run a target with a drafter, and read in the ribbon which model wrote which token;
# - name every status a token can have: accepted, rejected, corrected, bonus, discarded;
# - do one round by hand, and show that the text is the target's own, token for token.
#
# **You need**: to know that a language model turns a text into probabilities for the next token, and that *greedy*
# decoding takes the likeliest one. Nothing about speculative decoding.

# %% tags=["parameters"]
import os

FAST = os.environ.get("WORKBENCH_FAST", "1") == "1"
TARGET = None  # a Hub id or a folder; None: the bundled model
DRAFTER = None  # the same for the draft model
DEVICE = "cpu"
SERVER = None  # "http://localhost:7860" shares the app's backend

# %%
from collections import Counter

from transformers.utils import logging

from workbench import Workbench
from workbench import widgets as w
from workbench.models.truncated_drafter import drafter_for
from workbench.trace.metrics import summary

logging.disable_progress_bar()
if not SERVER:  # no drafter for the target: use its first layers
    DRAFTER = drafter_for(TARGET, DRAFTER)
wb = Workbench(SERVER, target=TARGET or "text-target", drafter=DRAFTER, device=DEVICE)
wb.load()
for model in wb.loaded_models():
    print(f"{model['role']:<8} {model['name']:<14} {model['bytes'] / 1e6:>6.1f} MB")

# %% [markdown]
# There are two models with one vocabulary. The large one is the **target**: its text is the text that we want. The
# small one is the **drafter** (or *draft model*): it is fast and often wrong. (The printed sizes include the weights,
# copies of the weights in a layout that a CPU reads faster, and a KV cache for several sequences; [01](01_memory_bound.ipynb)
# looks at the weights alone.)
#
# ## One token at a time
#
# Plain decoding runs the target once for every token. (One such run is called a *pass*, or a *forward*.)

# %%
PROMPT = "<|user|>Write a story about Mia and Tom. Put a red kite in it.<|assistant|>"
if TARGET is not None:
    PROMPT = "Once upon a time, Mia and Tom found a red kite."
plain = wb.generate(PROMPT, method="autoregressive", max_new_tokens=64)
print(plain.text.strip())
print(f"\n{len(plain.token_ids)} tokens, {len(plain.rounds)} target passes")

# %% [markdown]
# ## Draft several tokens ahead
#
# Speculative decoding works in **rounds**:
#
# 1. the drafter writes K tokens ahead, one after the other (here K = 4);
# 2. the target reads all K **in one pass**, which gives the token that it would have written at each position;
# 3. drafts are accepted from left to right, as long as each equals the token that the target would have written;
# 4. the target adds **one token of its own**: the right token in place of the first wrong draft or, if all drafts were
#    right, the next token.
#
# **Predict, and write it down.** The drafter is many times smaller than the target. How does it change the text?
#
# - (a) the text gets a little worse, in exchange for speed;
# - (b) the text is the same, token for token;
# - (c) the text is the same for easy words and different for hard ones.

# %%
spec = wb.generate(PROMPT, method="draft-model", params={"depth": 4}, max_new_tokens=64)
print(spec.text.strip())
print(f"\n{len(spec.token_ids)} tokens, {len(spec.rounds)} target passes")
assert spec.token_ids == plain.token_ids
assert len(spec.rounds) <= len(plain.rounds)

# %% [markdown]
# The answer is (b): step 3 accepts no token that the target would not have written itself. The drafter changes how
# *fast* the text is generated, never which text. This property is called **lossless**, and the assertion above checks
# it.
#
# ## Read the ribbon
#
# The ribbon shows the same text and marks which model wrote each token. A bar ends a round; a rejected draft stands in
# brackets.

# %%
w.ribbon(spec)

# %% [markdown]
# | status | what happened | in the text? |
# |---|---|---|
# | **accepted** ✓ | a draft that the target agrees with | yes |
# | **rejected** ✕ | the first draft of the round that the target does not agree with | no |
# | **corrected** ↻ | the target's own token, in place of the rejected draft | yes |
# | **bonus** + | the target's own token after a draft that was accepted completely | yes |
# | **discarded** ⌀ | a draft after a rejection: it is not tested | no |
#
# During a run, drafts that wait for the target's pass are *pending*. A token of plain decoding is *plain*: nothing was
# drafted in its round. The last token of a text can be plain too, because it needs no draft.
#
# **Predict** before you run the next cell: which of these can happen? (a) A round with two rejected drafts. (b) A round
# with neither a corrected nor a bonus token. (c) A round that adds five tokens to the text.

# %%
drafts = Counter(status for r in spec.rounds for status in r.nodes.status)
text = Counter(token.kind for r in spec.rounds for token in r.emitted)
print("drafted tokens:", dict(drafts))
print("tokens in text:", dict(text))
print("tokens added by each round:", [len(r.emitted) for r in spec.rounds])

assert drafts["accepted"] + drafts["rejected"] + drafts["discarded"] == sum(len(r.nodes) for r in spec.rounds)
assert text["accepted"] + text["corrected"] + text["bonus"] + text["plain"] == len(spec.token_ids)
assert text["accepted"] == drafts["accepted"]
for r in spec.rounds:
    assert r.nodes.status.count("rejected") <= 1
    assert 1 <= len(r.emitted) <= 5
for r in spec.rounds[:-1]:
    assert r.bonus_kind in ("corrected", "bonus")

# %% [markdown]
# (a) cannot happen: no draft is tested after the first rejection. (b) can happen only in the last round, if the text
# ends within the accepted drafts. (c) is the best case: K accepted drafts and a bonus token. **A round adds at least
# one token** for one target pass, as plain decoding does. So even the worst drafter costs only its own time and the
# longer target pass.
#
# ## One round by hand
#
# Here is a round in which the target accepted some drafts and then rejected one. `nodes` are the drafts. `top_p[i]`
# holds the target's likeliest tokens at the position of draft i, and the last entry is for the position after all
# drafts: one pass gives K + 1 positions.
#
# **Before you run the second cell:** name the status of each draft, and the tokens that the round adds to the text.

# %%
refused = [r for r in spec.rounds if "rejected" in r.nodes.status] or spec.rounds
r = next((r for r in refused if "accepted" in r.nodes.status), refused[0])
drafted = r.nodes.tokens  # [K] token ids
wanted = [top.tokens[0] for top in r.top_p]  # [K+1] the target's likeliest token at each position
print(f"round {r.index}: {len(drafted)} drafts, {len(wanted)} positions\n")
print(f"{'position':<9}{'drafted':<14}{'likeliest for the target'}")
for i, top in enumerate(r.top_p):
    print(f"{i:<9}{r.nodes.text[i] if i < len(drafted) else '':<14}{top.text[0]:<14}")


# %%
def greedy_round(drafted, wanted):
    """Return the tokens that a round adds: the drafts that match, then the target's own token."""
    n = 0
    while n < len(drafted) and drafted[n] == wanted[n]:
        n += 1
    return [*drafted[:n], wanted[n]]


print("status: ", list(zip(r.nodes.text, r.nodes.status, strict=True)))
print("text:   ", [(token.text, token.kind) for token in r.emitted])
assert greedy_round(drafted, wanted) == [token.token for token in r.emitted]

# %% [markdown]
# Look at a discarded draft: it may even equal the target's likeliest token at its position. Why is it discarded? The
# target predicted that token as the continuation of *these drafts*, and one of them was rejected. So the prediction is
# for a text that does not exist.
#
# The function above is the whole rule for greedy decoding. It must reproduce *every* round of the run:

# %%
for r in spec.rounds:
    added = greedy_round(r.nodes.tokens, [top.tokens[0] for top in r.top_p])
    emitted = [token.token for token in r.emitted]
    assert added[: len(emitted)] == emitted  # the last round may be cut at the end of the text
print(f"all {len(spec.rounds)} rounds give the tokens computed by hand")

# %% [markdown]
# ## What was saved
#
# The **mean accepted length τ** is the number of tokens per target pass. (It counts the target's own token, so plain
# decoding has τ = 1.) **Predict:** does τ = 4 make decoding four times as fast?

# %%
for name, trace in (("plain", plain), ("draft model", spec)):
    f = summary(trace)
    print(
        f"{name:<12} τ = {f['tau']:.2f}   {f['tokens']} tokens in {f['seconds'] * 1e3:.0f} ms, of which "
        f"{f['draft_seconds'] * 1e3:.0f} ms drafting, {f['verify_seconds'] * 1e3:.0f} ms in the target"
    )
assert summary(plain)["tau"] == 1
if TARGET is None:
    assert summary(spec)["tau"] > 1.5
w.lane([plain, spec], names=["plain", "draft model"])

# %% [markdown]
# Not quite: drafting takes time, and a pass over K + 1 tokens takes longer than a pass over one.
# [01](01_memory_bound.ipynb) measures how much longer, and [03](03_acceptance_and_speedup.ipynb) shows when drafting
# pays. One run on a busy machine is no reliable measurement: see [10](10_measuring.ipynb).
#
# ## Watch it happen
#
# This view is updated during the run. Pause it, step round by round, and change the depth (the draft length K) in the
# middle: the change takes effect at the next round and is marked on the curves. (The stored output of this cell shows
# the start of the run; the stored output of the next cell shows its end.)

# %%
run = wb.start(PROMPT, method="draft-model", params={"depth": 4}, max_new_tokens=64)
view = w.live(run)
view

# %%
live = run.wait(timeout=120)
print(live.footer.reason, "after", len(live.rounds), "rounds")
view  # the same view, at the end

# %%
w.app_link(live, base=SERVER)

# %% [markdown]
# ## Exercises
#
# **1. Longer drafts.** Run depths 1, 2, 4 and 8 on `PROMPT`, 64 tokens each. How many target passes does each take, and
# how many drafts are discarded? Why does the number of passes not fall in proportion?

# %% tags=["answer"]
my_counts = None  # {1: (passes, discarded), 2: …, 4: …, 8: …}


# %% tags=["check"]
@w.check
def longer_drafts(counts):
    """Compare the counts with those of new runs."""
    for depth in (1, 2, 4, 8):
        t = wb.generate(PROMPT, method="draft-model", params={"depth": depth}, max_new_tokens=64)
        discarded = sum(status == "discarded" for r in t.rounds for status in r.nodes.status)
        assert tuple(counts[depth]) == (len(t.rounds), discarded), f"depth {depth}: count `rounds`, and `nodes.status`"


longer_drafts(my_counts)

# %% tags=["solution"] jupyter={"source_hidden": true}
solved = {}
for depth in (1, 2, 4, 8):
    t = wb.generate(PROMPT, method="draft-model", params={"depth": depth}, max_new_tokens=64)
    found = Counter(status for r in t.rounds for status in r.nodes.status)
    solved[depth] = len(t.rounds), found["discarded"]
    print(
        f"depth {depth}: {len(t.rounds):>2} passes, {found['discarded']:>2} discarded of {sum(found.values())} drafted"
    )
    assert t.token_ids == plain.token_ids
assert longer_drafts(solved).right
assert not longer_drafts({depth: (64 // (depth + 1), 0) for depth in solved}).right  # as if all were accepted
# A rejection ends a round wherever it occurs. All drafts after it were computed for nothing, and a longer draft has
# more of them.

# %% [markdown]
# **2. A hopeless drafter.** Find a prompt for which the drafter is nearly always wrong, so that τ is below 1.5 over at
# least 12 tokens. Is the text still the target's? How many tokens does each round add at least?

# %% tags=["answer"]
my_prompt = None  # a text


# %% tags=["check"]
@w.check
def hopeless(prompt):
    """Check that drafts are mostly rejected on this prompt and that the text is still the target's."""
    alone = wb.generate(prompt, method="autoregressive", max_new_tokens=40)
    helped = wb.generate(prompt, method="draft-model", params={"depth": 4}, max_new_tokens=40)
    assert helped.token_ids == alone.token_ids
    assert len(helped.token_ids) >= 12, "the text is too short"
    assert summary(helped)["tau"] < 1.5, f"τ = {summary(helped)['tau']:.2f}: the drafter still helps"


hopeless(my_prompt)

# %% tags=["solution"] jupyter={"source_hidden": true}
HARD = "<|user|>Copy this text: zx 84 qv 19 lk 73<|assistant|>"  # the drafter's single layer cannot copy
alone = wb.generate(HARD, method="autoregressive", max_new_tokens=40)
helped = wb.generate(HARD, method="draft-model", params={"depth": 4}, max_new_tokens=40)
print(
    repr(helped.text), f"τ = {summary(helped)['tau']:.2f}"
)  # the target makes mistakes too, and drafting does not change them
assert helped.token_ids == alone.token_ids
assert all(r.emitted for r in helped.rounds)
if TARGET is None:
    assert hopeless(HARD).right
    assert not hopeless(PROMPT).right
w.ribbon(helped)

# %% [markdown]
# **3. No drafter at all.** The method `prompt-lookup` finds the last earlier place where the current last words
# occurred, and copies the words that followed there. Show that it is lossless too: on a prompt where it works well (τ
# of at least 2) and on one where most rounds find nothing to copy.

# %% tags=["answer"]
my_copying, my_fresh = None, None  # two texts


# %% tags=["check"]
@w.check
def copying(shines, fresh):
    """Check that both are lossless, that the first has τ ≥ 2, and that most rounds of the second draft nothing."""
    traces = []
    for prompt in (shines, fresh):
        traces.append(wb.generate(prompt, method="prompt-lookup", max_new_tokens=40))
        assert traces[-1].token_ids == wb.generate(prompt, method="autoregressive", max_new_tokens=40).token_ids
    empty = sum(len(r.nodes) == 0 for r in traces[1].rounds)
    assert summary(traces[0])["tau"] >= 2, f"the first has τ = {summary(traces[0])['tau']:.2f}"
    assert empty > len(traces[1].rounds) / 2, f"the second drafted in {len(traces[1].rounds) - empty} rounds"


copying(my_copying, my_fresh)

# %% tags=["solution"] jupyter={"source_hidden": true}
COPY = "<|user|>Repeat this text three times:\nThe little fox found a red kite<|assistant|>"
for prompt in (COPY, PROMPT):
    alone = wb.generate(prompt, method="autoregressive", max_new_tokens=40)
    copied = wb.generate(prompt, method="prompt-lookup", max_new_tokens=40)
    empty = sum(len(r.nodes) == 0 for r in copied.rounds)
    print(f"τ = {summary(copied)['tau']:.2f}, {empty} of {len(copied.rounds)} rounds had nothing to draft")
    assert copied.token_ids == alone.token_ids
if TARGET is None:
    assert copying(COPY, PROMPT).right
assert not copying(PROMPT, COPY).right

# %% [markdown]
# ## Close this page and answer
#
# 1. Which status is never in the text, though it was tested? Which was not even tested?
# 2. Which model wrote a *corrected* token, and which a *bonus* token? When does each appear?
# 3. How many tokens does a round with K drafts add at least, and at most?
# 4. Why must a draft after a rejection be discarded, even if the target would agree?
#
# This was greedy decoding, where a draft is simply right or wrong. [02](02_rejection_sampling.ipynb) derives the
# meaning of "agree" for a target that *samples*.
#
# ## References
#
# - Stern, Shazeer, Uszkoreit 2018, *Blockwise parallel decoding for deep autoregressive models*, arXiv:1811.03115, §3:
#   predict, verify, accept the longest matching prefix.
# - Leviathan, Kalman, Matias 2023, *Fast inference from transformers via speculative decoding*, arXiv:2211.17192.
# - Chen et al. 2023, *Accelerating large language model decoding with speculative sampling*, arXiv:2302.01318.

# %%
wb.close()
