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
# # 11 · Capstone: write your own drafter
#
# **You will be able to**
#
# - implement the `Drafter` protocol: propose drafts, keep a state, and update it from the result of each round;
# - check that your method is exact, and know which mistake a greedy test cannot detect;
# - use it in the app, on the command line and in a fair comparison with every other method.
#
# **You need**: the acceptance rule (02) and drafters without a model (04). Trees (06) help in the exercises.

# %% tags=["parameters"]
import os

FAST = os.environ.get("WORKBENCH_FAST", "1") == "1"
TARGET = None  # a Hub id or a folder; None: the bundled model
DRAFTER = None
DEVICE = "cpu"
SERVER = None  # your drafter runs in this process, so this notebook uses its own backend

# %%
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers.utils.logging import disable_progress_bar

from workbench import Workbench
from workbench import widgets as w
from workbench.core.tree import DraftTree, Sampling
from workbench.decoders import Method, Promise, Source
from workbench.decoders.draft_verify.parts import Drafter
from workbench.methods import registry
from workbench.methods.policies.fixed import Fixed
from workbench.methods.registry import register
from workbench.methods.verifiers.lossless import Lossless
from workbench.models.truncated_drafter import drafter_for
from workbench.trace.metrics import summary

disable_progress_bar()

# %%
DRAFTER = drafter_for(TARGET, DRAFTER)  # no drafter for the target: use its first layers
wb = Workbench(target=TARGET or "text-target", drafter=DRAFTER, device=DEVICE)
FOLDER = Path(tempfile.mkdtemp(prefix="my-drafter-"))  # to keep your work, use your own folder
STORY = "<|user|>Write a story about Mia and Tom. Put a red kite in it.<|assistant|>"
COPY = "<|user|>Repeat this text three times:\nThe little fox found a red kite<|assistant|>"


# %% [markdown]
# ## 1 · The smallest drafter
#
# A *method* is a drafter, a verifier and a policy under one name. You write the drafter; the verifier `Lossless`
# verifies its drafts; the policy `Fixed` sets how many levels to draft (`plan.depth`). A drafter must do one thing:
# read the committed tokens of a sequence and return a draft tree. This one drafts that the last
# token repeats.

# %%
@dataclass(frozen=True)
class Echo(Drafter):
    """Propose that the last token repeats."""

    def propose_one(self, sequence, plan):
        """Return a chain of plan.depth drafts. sequence.committed: token ids so far, prompt included."""
        return DraftTree.chain(
            sequence.committed[-1:] * plan.depth, source="my-echo", device=sequence.models.target.device
        )


register(
    Method("my-echo", title="Echo", promise=Promise.EXACT, summary="Any drafter is exact; few are good.",
           source=Source("Notebook 11", "me", 2026, ""), drafter=Echo(), verifier=Lossless(), policies=(Fixed(),)),
    replace=True,  # so that this cell can be run again
)  # fmt: skip
print(f"{len(registry.names())} methods, my-echo among them; its parameters: {list(registry.get('my-echo').params)}")

# %% [markdown]
# **Predict.** A story hardly ever repeats a token. With `my-echo`, compared with plain decoding, the story is
# (a) worse, (b) the same, (c) the same at first, then different. And τ is about (a) 0, (b) 1, (c) 5.

# %%
plain = wb.generate(STORY, "autoregressive", max_new_tokens=64)
echo = wb.generate(STORY, "my-echo", max_new_tokens=64)
figures = summary(echo)
print(f"τ {figures['tau']:.2f}, {figures['accepted']} of {figures['tested']} tested drafts accepted")
assert echo.text == plain.text
assert figures["tau"] >= 1
w.ribbon(echo)

# %% [markdown]
# The story is the same, and τ is about 1 (or slightly more, for a target that often repeats itself). For any drafts,
# the verifier keeps the text right: **bad drafts cannot break the output, they only make decoding slow.** So you can
# experiment freely with a drafter. (There is one way to break the output, in section 3.)
#
# ## 2 · A drafter with a state
#
# | the engine calls | when | task of your drafter |
# |---|---|---|
# | `init_state(sequence, models)` | at the start, and after a switch during a run | return its state, computed from `sequence.committed` |
# | `propose_one(sequence, plan)` | every round | return a `DraftTree` of at most `plan.depth` levels, from `sequence.state.drafter` |
# | `observe(sequence, feedback)` | after every round | update its state: `feedback.emitted` are the new tokens |
#
# Parameters are fields of the frozen dataclass, declared with `param(...)`: the app's form shows their range and
# description. Return all state from `init_state`, and never store it on `self`: many sequences share one drafter.
#
# Our idea: *draft the token that most often followed the last two tokens so far.* This time the code goes into a file,
# which you could send to somebody else. Edit it as you like, here or in an editor, and load it again.

# %%
CODE = '''"""My drafter: propose the token that most often followed the last tokens so far."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

from workbench.core.params import param
from workbench.core.tree import DraftTree
from workbench.decoders import Method, Promise, Source
from workbench.decoders.draft_verify.parts import Drafter
from workbench.methods.policies.fixed import Fixed
from workbench.methods.registry import register
from workbench.methods.verifiers.lossless import Lossless

SCHOOL = Path(__file__).with_name("school.json")
TEXTS = json.loads(SCHOOL.read_text()) if SCHOOL.is_file() else []  # lists of token ids to learn from beforehand


class Memory:
    """Counts of the tokens that followed each context of 1 … order tokens."""

    def __init__(self, order: int) -> None:
        self.order = order
        self.text: list[int] = []
        self.after: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)

    def learn(self, tokens: list[int]) -> None:
        for token in tokens:
            for n in range(1, min(self.order, len(self.text)) + 1):
                self.after[tuple(self.text[-n:])][token] += 1
            self.text.append(token)

    def guess(self, context: list[int]) -> int | None:
        """Return the most common successor of the longest known context, or None."""
        for n in range(min(self.order, len(context)), 0, -1):
            if found := self.after.get(tuple(context[-n:])):
                return found.most_common(1)[0][0]
        return None


@dataclass(frozen=True)
class Successor(Drafter):
    """Draft the most common successor, token by token."""

    order: int = param(2, ge=1, le=4, doc="longest context that is looked up, in tokens")

    def init_state(self, sequence, models):
        memory = Memory(self.order)
        for text in TEXTS:
            memory.text = []
            memory.learn(text)
        memory.text = []
        memory.learn(sequence.committed)
        return memory

    def propose_one(self, sequence, plan):
        memory, draft = sequence.state.drafter, []
        while len(draft) < plan.depth and (token := memory.guess(memory.text[-4:] + draft)) is not None:
            draft.append(token)
        sequence.report.signals["known contexts"] = len(memory.after)  # shown in the app next to the curves
        return DraftTree.chain(draft, source="my-successor", device=sequence.models.target.device)

    def observe(self, sequence, feedback):
        sequence.state.drafter.learn(feedback.emitted)


register(Method(
    "my-successor", title="Successor", promise=Promise.EXACT,
    summary="A look-up in a table of successors is nearly free; its drafts depend on the text in the table.",
    idea="Draft the most common successor of the newest tokens, then its successor, and so on.",
    source=Source("Notebook 11", "me", 2026, ""), drafter=Successor(), verifier=Lossless(), policies=(Fixed(),),
))
'''
file = FOLDER / "my_drafter.py"
file.write_text(CODE, encoding="utf-8")
print(registry.load(file), "from", file)

# %% [markdown]
# **Predict.** On which of the two prompts is τ larger, the story or "repeat this text three times"? Which τ do you
# expect on the story: near 1, or near 2?

# %%
references = {STORY: plain, COPY: wb.generate(COPY, "autoregressive", max_new_tokens=64)}


def taus(method, prompts=(STORY, COPY), **params):
    """Return τ of a method on each prompt, and check that the text is the target's."""
    found = []
    for prompt in prompts:
        trace = wb.generate(prompt, method, params=params, max_new_tokens=64)
        assert trace.token_ids == references[prompt].token_ids, "greedy: token for token the target's"
        found.append(summary(trace)["tau"])
    return found


untaught = taus("my-successor")
print(f"my-successor: story {untaught[0]:.2f}, copy {untaught[1]:.2f}")
assert untaught[0] >= 1
assert untaught[1] >= 1
if TARGET is None:
    assert untaught[1] > untaught[0], "the table has only this text's tokens, and a copy repeats them"
lesson = wb.generate(COPY, "my-successor", max_new_tokens=64)
w.show(w.ribbon(lesson))

# %% [markdown]
# **Answer: on the copy.** The table only has tokens of this text, and a story hardly ever repeats a pair of tokens: its τ
# is near 1.
#
# ## 3 · Does it keep its promise?
#
# The method is registered with `Promise.EXACT`. The workbench's checks test this promise for every method, in float64:
# greedy text must equal that of Hugging Face's own `generate` at both ends of every parameter's range, and sampled
# tokens must follow the target's exact distribution (notebook 02's χ²). The checks find your method by its name; you
# write no test.

# %%
from workbench.bench.check import FAIL, check_method
from workbench.cli.check import PROMPTS
from workbench.models.loading import load_models

exact_models = load_models(TARGET or "text-target", DRAFTER, DEVICE, "float64")
prompts = [exact_models.tokenizer.encode(text) for text in PROMPTS[: 2 if FAST else None]]
RUNS = 150 if FAST else 1000


def checked(name):
    """Return all findings about a method."""
    findings = list(check_method(registry.get(name), exact_models, prompts, max_new_tokens=12, runs=RUNS))
    for finding in findings:
        print(f"{finding.verdict:8} {finding.claim}: {finding.detail[:110]}")
    return findings


assert not any(finding.verdict == FAIL for finding in checked("my-successor"))


# %% [markdown]
# ### The one way to break the output
#
# The rule min(1, p/q) uses the q that your drafter declares. `DraftTree.chain` declares deterministic drafts, which the
# rule accepts with probability p(x): that is always safe. A drafter that *samples* must declare the distribution that
# it really drew from. The next one declares a wrong one: it repeats the last token, and declares that it was drawn from
# the uniform distribution.
#
# **Predict.** Which checks fail: the greedy one, the one of the distribution, both, or neither?

# %%
@dataclass(frozen=True)
class Liar(Drafter):
    """Repeat the last token, but declare that it was drawn from the uniform distribution."""

    def propose_one(self, sequence, plan):
        """Return a chain of one node with a wrong draft distribution."""
        size, device = sequence.models.target.vocab_size, sequence.models.target.device
        q = torch.full((1, size), 1 / size, dtype=torch.float64, device=device)
        token = torch.tensor(sequence.committed[-1:], device=device)
        root, q_of = torch.tensor([-1], device=device), torch.tensor([0, -1], device=device)
        return DraftTree(token, root, q[0, token].log(), Sampling.SAMPLED, 1, q=q, child_q_rows=q_of, source="my-liar")


register(
    Method("my-liar", title="Liar", promise=Promise.EXACT, summary="The rule uses the declared distribution.",
           source=Source("Notebook 11", "me", 2026, ""), drafter=Liar(), verifier=Lossless(), policies=(Fixed(),)),
    replace=True,
)  # fmt: skip
broken = [finding.kind for finding in checked("my-liar") if finding.verdict == FAIL]
assert "distribution" in broken
assert "greedy" not in broken

# %% [markdown]
# Greedy decoding never uses q, so even a long greedy test says nothing about it. **Test the distribution.**
#
# ## 4 · Use it in the app and on the command line
#
# In this kernel your method is already available everywhere: `wb.methods()`, `w.panel(wb)`, `wb.compare`. Other
# processes load it from an environment variable that names your file. In a terminal:

# %%
print(f"""export WORKBENCH_METHODS={file}
python app.py                            # choose "Successor" among the methods
workbench check my-successor             # the full check, 1,000 samples for each distribution
workbench bench --method my-successor --method prompt-lookup --group copy --repeats 3
workbench generate "Once upon a time" --method my-successor""")

# %% [markdown]
# To check this, print the list of methods of a second process:

# %%
environment = os.environ | {"WORKBENCH_METHODS": str(file)}
command = [sys.executable, "-m", "workbench", "methods"]
listed = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
print(*[line for line in listed.stdout.splitlines() if "uccessor" in line][:6], sep="\n")
assert "my-successor" in listed.stdout, listed.stderr

# %% [markdown]
# To publish it as a package, name the module in your `pyproject.toml`; after `pip install` it is available without a
# variable:
#
# ```toml
# [project.entry-points."workbench.methods"]
# my-drafter = "my_drafter"
# ```
#
# The next cells show its form, built from your `param`, and a link that opens it in an app that was started with the
# variable:

# %%
form = w.panel(wb, method="my-successor")
print(form.values)
form

# %%
w.app_link(lesson)

# %% [markdown]
# ## 5 · The leaderboard
#
# **Predict** the order by speed-up on the copy, and on the story: `my-successor`, `prompt-lookup`, `draft-model`.

# %%
LANES = ["my-successor", "prompt-lookup", "draft-model"]


def leaderboard(prompt, lanes=tuple(LANES)):
    """Print lanes by speed-up: alone on the device, interleaved, paired with plain decoding (notebook 10)."""
    found = wb.compare(prompt, list(lanes), max_new_tokens=48, repeats=2 if FAST else 5)
    for name, row in sorted(found.figures.items(), key=lambda item: -item[1]["speedup"]["value"]):
        rate = "–" if row["acceptance_rate"] is None else f"{row['acceptance_rate']:.0%}"
        print(f"  {name:16} {row['speedup']['value']:5.2f} × plain   τ {row['tau']:.2f}   accepted / tested {rate}")
    return found


for name, prompt in (("copy", COPY), ("story", STORY)):
    print(name)
    found = leaderboard(prompt)
w.lane([lane.traces[0] for lane in found.lanes], names=[lane.name for lane in found.lanes])

# %% [markdown]
# The speeds are for this machine at this moment, and for one prompt measured twice; τ and acceptance rate are exact and
# reproducible. On stories the table gives few good drafts: it was filled from a single prompt. (Is the comparison on
# the copy fair? Compare the default `depth` of the two table drafters in their forms, and run the lane
# `my-successor:depth=10`.)
#
# ## 6 · Train it on the target's text
#
# The best training text for a drafter comes from the target itself. Let the target write a few stories, store the token
# ids (`school.json`) next to the file, and load the file again.

# %%
import json

TOPICS = ("Ben and Lucy. Put a big dog", "Sam and Anna. Put a blue boat", "Tim and Sue. Put a little bird")
school = []
for topic in TOPICS:
    text = wb.generate(f"<|user|>Write a story about {topic} in it.<|assistant|>", "draft-model", max_new_tokens=96)
    school.append([*text.header.prompt_tokens, *text.token_ids])
(FOLDER / "school.json").write_text(json.dumps(school))
registry.load(file)
taught = taus("my-successor")
print(f"after {sum(map(len, school))} tokens of training text:")
for what, before, after in zip(("story", "copy"), untaught, taught, strict=True):
    print(f"  {what}: τ {before:.2f} before, {after:.2f} after")
if TARGET is None:
    assert taught[0] > untaught[0]

# %% [markdown]
# The story that we measure on was not in the training text. This is a very simple form of distillation, and it works: a
# drafter must predict the typical text of *this target*. Notebook 05's draft models use the same idea with a better
# model.
#
# Look at the copy, too: counts from the training text may outweigh those from the prompt. How would you weight the two?
#
# ## Exercises
#
# **1.** Draft two tokens for the first position: the most common successor with its chain, and the second most common
# as its sibling. Build the tree with `DraftTree.from_parents(tokens, parents)`; siblings are tested in their order in the list.

# %% tags=["answer"]
own = sys.modules[type(registry.get("my-successor").drafter).__module__]  # the file you saved
MyTwo = None  # a subclass of own.Successor


# %% tags=["check"]
@w.check
def two_guesses(drafter_class):
    """Check that the text is exact and that the root has a second child in some round."""
    register(
        Method("my-checked", title="Checked", promise=Promise.EXACT, summary="", drafter=drafter_class(),
               source=Source("Notebook 11", "me", 2026, ""), verifier=Lossless(), policies=(Fixed(),)),
        replace=True,
    )  # fmt: skip
    run = wb.generate(STORY, "my-checked", max_new_tokens=64)
    assert run.token_ids == plain.token_ids
    roots = [r.nodes.parents.count(-1) for r in run.rounds]
    assert max(roots) == 2, f"the root has at most {max(roots)} children in a round"
    for r in run.rounds:
        first = [token for token, parent in zip(r.nodes.tokens, r.nodes.parents, strict=True) if parent == -1]
        assert len(set(first)) == len(first), "two children of the root are the same token"


two_guesses(MyTwo)


# %% tags=["solution"] jupyter={"source_hidden": true}
@dataclass(frozen=True)
class TwoSuccessors(own.Successor):
    """Draft the chain of Successor, and a second child of the root."""

    def propose_one(self, sequence, plan):
        """Parents come before children: the chain is 0, 1, 2 …; the sibling of node 0 has the root, −1, as parent."""
        chain = own.Successor.propose_one(self, sequence, plan).tokens.tolist()
        memory = sequence.state.drafter
        known = next((memory.after[c] for n in (2, 1) if (c := tuple(memory.text[-n:])) in memory.after), {})
        others = [token for token, _ in getattr(known, "most_common", list)()][1:2]
        parents = [*range(-1, len(chain) - 1), *[-1] * len(others)]
        device = sequence.models.target.device
        return DraftTree.from_parents([*chain, *others], parents, source="my-two", device=device)


register(
    Method("my-two", title="Two successors", promise=Promise.EXACT, summary="", drafter=TwoSuccessors(),
           source=Source("Notebook 11", "me", 2026, ""), verifier=Lossless(), policies=(Fixed(),)),
    replace=True,
)  # fmt: skip
two = taus("my-two")
print(f"story τ {taught[0]:.2f} → {two[0]:.2f}, copy τ {taught[1]:.2f} → {two[1]:.2f}")
assert two_guesses(TwoSuccessors).right
assert not two_guesses(own.Successor).right  # one draft only
# Within its round a second sibling can only help. Over a whole text it nearly always does, but not always (notebook
# 04).

# %% [markdown]
# **2.** `my-echo` drafts in every round, even if the draft is hopeless. How much does a wrong draft cost, if the text
# stays right? Compare drafted tokens and draft utilisation of `my-echo` and `my-successor` on the story, and say when
# an empty tree is best.

# %% tags=["answer"]
my_counts = None  # {"my-echo": (drafted, accepted), "my-successor": (drafted, accepted)}, on STORY, 64 tokens


# %% tags=["check"]
@w.check
def for_nothing(counts):
    """Compare the numbers of drafted (including discarded) and accepted tokens."""
    for name in ("my-echo", "my-successor"):
        figures_ = summary(wb.generate(STORY, name, max_new_tokens=64))
        wanted = figures_["drafted"], figures_["accepted"]
        assert tuple(counts[name]) == wanted, f"{name}: count all drafted tokens, tested or not"


for_nothing(my_counts)

# %% tags=["solution"] jupyter={"source_hidden": true}
solved, tested_only = {}, {}
for name in ("my-echo", "my-successor"):
    figures = summary(wb.generate(STORY, name, max_new_tokens=64))
    solved[name] = figures["drafted"], figures["accepted"]
    tested_only[name] = figures["tested"], figures["accepted"]
    print(f"{name:14} drafted {figures['drafted']:3}, of which accepted {figures['draft_utilisation'] or 0:.0%}")
assert for_nothing(solved).right
assert not for_nothing(tested_only).right  # discarded drafts were drafted and verified, too
# The target's pass over 5 positions costs more than over 1 (notebook 01 measures it), so a hopeless draft is slower
# than plain decoding. `DraftTree.empty(...)`, or an empty chain, makes the round a plain step: the best choice when no
# draft is likely to be accepted.

# %% [markdown]
# **3.** Let the policy set the draft length: register your drafter once more with `policies=(Heuristic(), Fixed())`
# from `workbench.methods.policies.heuristic`. How does the draft length change during the copy?

# %% tags=["answer"]
my_lengths = None  # drafted tokens, round by round, on COPY, 64 tokens


# %% tags=["check"]
@w.check
def adapts(lengths):
    """Compare with the same method, registered here."""
    from workbench.methods.policies.heuristic import Heuristic

    drafter = sys.modules[type(registry.get("my-successor").drafter).__module__].Successor()
    register(
        Method("my-checked", title="Checked", promise=Promise.EXACT, summary="", drafter=drafter,
               source=Source("Notebook 11", "me", 2026, ""), verifier=Lossless(), policies=(Heuristic(), Fixed())),
        replace=True,
    )  # fmt: skip
    wanted = [len(r.nodes) for r in wb.generate(COPY, "my-checked", max_new_tokens=64).rounds]
    assert list(lengths) == wanted, f"{len(wanted)} rounds with other lengths"


adapts(my_lengths)

# %% tags=["solution"] jupyter={"source_hidden": true}
from workbench.methods.policies.heuristic import Heuristic

register(
    Method("my-adaptive", title="Successor, adaptive", promise=Promise.EXACT, summary="", drafter=own.Successor(),
           source=Source("Notebook 11", "me", 2026, ""), verifier=Lossless(), policies=(Heuristic(), Fixed())),
    replace=True,
)  # fmt: skip
adaptive = wb.generate(COPY, "my-adaptive", max_new_tokens=64)
print("drafted, accepted by round:", [(len(r.nodes), len(r.path)) for r in adaptive.rounds])
assert adapts([len(r.nodes) for r in adaptive.rounds]).right
assert not adapts([len(r.nodes) for r in wb.generate(COPY, "my-successor", max_new_tokens=64).rounds]).right  # fixed
# The draft length grows after fully accepted rounds and shrinks after rejections; no line of the drafter had to change.

# %% [markdown]
# ## Close this page and answer
#
# 1. Which one thing must a drafter do, and which three more may it do?
# 2. How can a drafter break the output? Which test detects it, and which cannot?
# 3. Why must a drafter store nothing on `self`?
# 4. When is the empty tree the best draft?
#
# ## Where to read on
#
# - The protocol: `workbench/decoders/draft_verify/parts.py`. Drafters to learn from, one folder per method: `workbench/methods/`.
# - Saxena 2023, *Prompt Lookup Decoding*; Luo et al. 2024, *Token Recycling*, arXiv:2408.08696: tables that are updated
#   during decoding. Zhou et al. 2024, *DistillSpec*, arXiv:2310.08461: training on the target's own text.

# %%
wb.close()
