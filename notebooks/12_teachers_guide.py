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
# # 12 · Teacher's guide
#
# **You will be able to**
#
# - plan one lesson, half a day or a course with these notebooks, and know typical difficulties of students;
# - correct the most common misconceptions by *showing* a recorded round;
# - show recordings of every method without a model, a GPU or a network, and hand out pages that open from disk;
# - check in one run that all links, recordings and answers of the course work.
#
# **You need**: to have run at least 00, 02 and 03 yourself. No cell here generates text, so the notebook runs in
# seconds.

# %% tags=["parameters"]
import os

FAST = os.environ.get("WORKBENCH_FAST", "1") == "1"
SERVER = None  # "http://localhost:7860": the app that the links open

# %%
import html
import json
import re
import shlex
import tempfile
from itertools import pairwise
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import ipywidgets
import nbformat
from IPython.display import HTML, Markdown

import workbench
from workbench import widgets as w
from workbench.core.params import params_of
from workbench.core.sampling import SamplingParams
from workbench.methods import registry
from workbench.trace import metrics
from workbench.trace.events import Trace
from workbench.trace.theory import expected_tau, single_draft_acceptance
from workbench.views import recorded_runs
from workbench.views.replay import replay

# %%
ROOT = Path(workbench.__file__).parents[1]
BOOKS = {path.stem: nbformat.read(path, as_version=4) for path in sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))}
LESSONS = {name: book for name, book in BOOKS.items() if not name.startswith("12")}
print(len(LESSONS), "lessons:", *LESSONS)
assert list(LESSONS) == sorted(LESSONS)


# %% [markdown]
# ## 1 · Purpose of each lesson
#
# | | lesson | minutes, roughly | students believe at first … | … and should leave with |
# |---|---|--:|---|---|
# | 00 | [First run](00_first_run.ipynb) | 30 | the drafter changes the text | the same text, in fewer passes; every status by name |
# | 01 | [Memory-bound](01_memory_bound.ipynb) | 45 | scoring 8 tokens costs 8 times one | weights are read once for all of them; there is a knee |
# | 02 | [Rejection sampling](02_rejection_sampling.ipynb) | 90 | after a rejection, draw from p | draw from the *residual distribution*; a test that detects mistakes |
# | 03 | [Acceptance, speed-up](03_acceptance_and_speedup.ipynb) | 60 | "acceptance rate" is one figure | five denominators, one closed form, a break-even point |
# | 04 | [Without a model](04_without_a_model.ipynb) | 45 | drafting needs a neural network | copying costs nothing, and gains where text repeats |
# | 05 | [Draft model](05_draft_model.ipynb) | 45 | a better drafter is a faster one | higher acceptance costs drafting time |
# | 06 | [Trees](06_trees.ipynb) | 90 | nodes are numbered like a text | mask = ancestors, position = depth, one pass |
# | 07 | [Heads](07_heads.ipynb) | 60 | heads depend on each other's tokens | heads are independent; features are not |
# | 08 | [Temperature](08_temperature.ipynb) | 60 | acceptance measures quality | a relaxed rule's error equals its gain; more drafts add no error |
# | 09 | [Images](09_images.ipynb) | 60 | a drafter needs the picture's tokens | it needs the *information*, from any source |
# | 10 | [Measuring](10_measuring.ipynb) | 60 | more repetitions are more data | order, pairing, and intervals over prompts |
# | 11 | [Your drafter](11_your_drafter.ipynb) | 120 | a bad drafter breaks the output | only a wrong q does, and only a test of the distribution detects it |
# | 13 | [Several drafts](13_several_drafts.ipynb) | 60 | a bound is a bound | it holds for drafts of one kind; a set of tokens determines it |
# | 14 | [The target drafts](14_target_drafts_itself.ipynb) | 45 | the last layers are the ones to leave out | measure which layers to skip; α must exceed the relative cost |
# | 15 | [Train a drafter](15_train_a_drafter.ipynb) | 60 | a low loss is a good drafter | it is trained on true features and drafts from its own |
#
# **One lesson (90 minutes).** Do 00 together (20), then 02: everybody derives min(1, p/q) on paper before the cell is
# run (40), then break the rule on purpose (15), and discuss one recording from section 3 below (15).
#
# **Half a day.** 00, 01, 02, 03. Goal: everybody can say when speculative decoding makes given models *slower*.
#
# **A course of six meetings.** 00 + 01 · 02 · 03 + 04 · 05 + 06 · 07 + 09 *or* 08 + 10 · 11, with all groups' drafters
# on one leaderboard. Homework: the exercises; solutions are folded in each notebook.
#
# **How to use "Predict".** Everybody writes a choice down and votes *before* the cell runs. Students learn from wrong
# predictions; without a prediction, the cell is only a demonstration. If the answer is a number, let them say which
# deviation would surprise them.
#
# **If a measured figure differs on their machine.** All figures with seconds will differ (01, 03, 05, 10). Counts do
# not: tokens, rounds, τ and acceptance rate of a greedy run are the same on every machine with the same models, up to
# ties in rounding. So let them compare counts first, and times only as ratios of interleaved measurements. A time that
# contradicts the lesson, on a laptop on battery power, is a good start for 10.
#
# ## 2 · Expected answers
#
# The answers are collected from the notebooks themselves, so this sheet is always up to date. The sheet has every
# question with the explanation that follows it, and every exercise with its solution.

# %%
def tags(cell):
    """Return a cell's tags."""
    return cell.metadata.get("tags", [])


def answer_after(cells):
    """Return the paragraphs of the next explanation, up to its next heading or question."""
    words = next((cell.source for cell in cells if cell.cell_type == "markdown"), "").split("\n\n")
    end = next((i for i, part in enumerate(words) if i and (part.startswith("#") or "**Predict" in part)), len(words))
    return words[:end]


def questions(book):
    """Return (question, explanation) for each prediction."""
    found = []
    for i, cell in enumerate(book.cells):
        if cell.cell_type == "markdown" and re.search(r"\*\*[^*]*Predict", cell.source):
            asked = next(p for p in reversed(cell.source.split("\n\n")) if "Predict" in p)
            found.append((asked, "\n\n".join(answer_after(book.cells[i + 1 :]))))
    return found


def solutions(book):
    """Return (exercise, code) for each folded solution."""
    found, asked = [], ""
    for cell in book.cells:
        if cell.cell_type == "markdown":
            asked = cell.source.split("\n\n")[-1]
        elif "solution" in tags(cell):
            found.append((asked, cell.source))
    return found


def sheet(name):
    """Return one lesson's answers, as markdown."""
    parts = [f"### {name}"]
    for asked, answer in questions(BOOKS[name]):
        parts.append(f"> {asked}".replace("\n", "\n> ") + f"\n\n{answer}")
    for asked, code in solutions(BOOKS[name]):
        parts.append(f"> {asked}".replace("\n", "\n> ") + f"\n\n```python\n{code}\n```")
    return "\n\n".join(parts)


print("lesson                        predictions  exercises")
for name, book in LESSONS.items():
    print(f"{name:30} {len(questions(book)):10} {len(solutions(book)):10}")
    assert questions(book), f"{name} asks for no prediction"
    assert len(solutions(book)) >= 3, f"{name} has fewer than three solved exercises"
Markdown(sheet("02_rejection_sampling"))

# %% [markdown]
# (If the next explanation begins with a heading, the cell's own output is the answer.) Show another sheet with
# `Markdown(sheet("06_trees"))`, or write all of them into one file to print:

# %%
OUT = Path(tempfile.mkdtemp(prefix="teaching-"))
answers = OUT / "answers.md"
answers.write_text("\n\n".join(sheet(name) for name in LESSONS), encoding="utf-8")
print(f"{answers}: {answers.stat().st_size:,} bytes")

# %% [markdown]
# ## 3 · A gallery that needs no model
#
# `assets/recorded` has one recorded generation for each method. The app plays the same recordings under `/gallery` and
# `/learn`, without loading a model.

# %%
entries = recorded_runs.index()
traces = {entry["name"]: recorded_runs.trace(entry["name"]) for entry in entries}
print(f"{'recording':20} {'τ':>5} {'accepted/tested':>16}  promise      what it is about")
for entry in entries:
    figures = entry["figures"]
    share = "–" if figures["acceptance_rate"] is None else f"{figures['acceptance_rate']:.0%}"
    about = registry.get(entry["method"]).summary
    print(f"{entry['name']:20} {figures['tau']:5.2f} {share:>16}  {entry['promise']:11}  {about[:56]}")
assert set(registry.names()) >= {entry["method"] for entry in entries}
assert {trace.header.method for trace in traces.values()} >= {n for n in registry.names() if not n.startswith("my-")}
for trace in traces.values():
    again = Trace.from_wire(json.loads(json.dumps(trace.to_wire())))
    assert again.text == trace.text
    assert metrics.count_emitted(trace.rounds) == len(trace.token_ids) > 0

# %% [markdown]
# Choose one, click a token, and follow it into the tree. (Without a kernel you see only `draft-tree`.)

# %%
stage = w.stage(traces["draft-tree"])
choice = ipywidgets.Dropdown(options=list(traces), value="draft-tree", description="recording")


def show_chosen(change):
    """Show another recording in the same stage."""
    stage.trace = traces[change["new"]]


choice.observe(show_chosen, names="value")
w.show(choice, stage)

# %% [markdown]
# Three recordings are good starts for a discussion:
#
# 1. `switch`: the method is changed during the generation. *Where, and does the text change?*
# 2. `vlm-text-only`: a drafter without image input. *Which words does it get wrong, and why those?*
# 3. `medusa-typical`: lossy by design. *How would you notice?* (Not from the text: see notebook 08.)

# %%
switched = [r.index for r in traces["switch"].rounds if r.changes]
first, last = traces["switch"].rounds[0].method, traces["switch"].rounds[-1].method
print(f"changed before round {switched} from {first} to {last}")
assert switched
w.ribbon(traces["switch"])

# %%
w.ribbon(traces["vlm-text-only"])

# %% [markdown]
# ## 4 · When a student says …
#
# These are five common misconceptions, each with a recording that *shows* that it is wrong. The cell finds the round,
# checks that it is a counterexample, and makes the link; its source is folded. (A sixth, "after a rejection, draw from
# p", needs many samples: see 02.)

# %% tags=["drawing"] jupyter={"source_hidden": true}
APP = SERVER or "http://localhost:7860"


def same_text(one, two):
    """Return whether two recordings have one prompt and the same tokens, up to the end of the shorter one."""
    a, b = traces[one], traces[two]
    n = min(len(a.token_ids), len(b.token_ids))
    return a.header.prompt == b.header.prompt and a.token_ids[:n] == b.token_ids[:n]


def discarded_but_right(trace):
    """Return (round, draft) of discarded drafts whose token is in the text at the same position."""
    found, at = [], 0
    for r in trace.rounds:
        for i, status in enumerate(r.nodes.status):
            place = at + r.nodes.depth[i] - 1
            if status == "discarded" and trace.token_ids[place : place + 1] == [r.nodes.tokens[i]]:
                found.append((r.index, i))
        at += len(r.emitted)
    return found


def rate(name):
    """Return accepted / tested of a recording."""
    return metrics.acceptance_rate(traces[name].rounds)


def tau(name):
    """Return the mean accepted length of a recording."""
    return metrics.tau(traces[name].rounds)


def drafting(name):
    """Return the number of drafter forwards in a recording (a count, independent of the machine's load)."""
    return sum(r.draft_forwards for r in traces[name].rounds)


def seconds(name):
    """Return the recorded seconds of drafting and verifying."""
    return sum(r.draft_s + r.verify_s for r in traces[name].rounds)


assert same_text("token-recycling", "autoregressive")
assert same_text("draft-model", "autoregressive")
assert same_text("vlm-text-only", "vlm-draft")
lucky = discarded_but_right(traces["draft-model"])[0]
unlucky = [r.index for r in traces["token-recycling"].rounds if len(r.nodes) and not r.path]
assert all(len(traces["token-recycling"].rounds[i].emitted) == 1 for i in unlucky)
assert same_text("flash", "vlm-draft")
assert rate("flash") < rate("vlm-draft")
assert tau("flash") >= tau("vlm-draft")
assert drafting("flash") <= 2 * len(traces["flash"].rounds)  # a draft of eight levels: two blocks of four
assert drafting("flash") < drafting("vlm-draft")
assert same_text("oracle", "autoregressive")
assert tau("oracle") > 3
oracle_passes = drafting("oracle") + len(traces["oracle"].rounds)  # its drafter is the target
assert oracle_passes > len(traces["oracle"].token_ids)

token = traces["draft-model"].rounds[lucky[0]].nodes.text[lucky[1]]
beliefs = [
    ("A bad drafter writes a bad text.", "token-recycling", None,
     f"{rate('token-recycling'):.0%} of its drafts were accepted, {rate('draft-model'):.0%} of the draft model's; "
     "both texts are those of plain decoding, token for token. So are those of the drafter with "
     "eyes and of the one without."),
    ("What is discarded was wrong.", "draft-model", {"round": lucky[0], "node": lucky[1]},
     f"The draft {token!r} of round {lucky[0] + 1} was discarded, and the text has it in that very place. "
     "Nobody had looked."),
    ("A round without an accepted draft is lost.", "token-recycling", {"round": unlucky[0]},
     f"{len(unlucky)} rounds of this one had drafts and accepted none. Each added one token, as a plain step does."),
    ("The higher acceptance rate is the better drafter.", "flash", None,
     f"vlm-draft: {rate('vlm-draft'):.0%} of the tested drafts, τ = {tau('vlm-draft'):.2f}. "
     f"flash: {rate('flash'):.0%}, τ = {tau('flash'):.2f}. The same text, and no token less a pass, for "
     f"{drafting('flash')} forwards of its drafter in place of {drafting('vlm-draft')}."),
    ("τ = 3 means three times as fast.", "oracle", None,
     f"τ = {tau('oracle'):.2f}, and yet {oracle_passes} passes of a model of the target's size, drafting included, for "
     f"{len(traces['oracle'].token_ids)} tokens: this drafter is the target. (When it was recorded, drafting and "
     f"verifying took {seconds('oracle') / seconds('autoregressive'):.1f} times as long as plain decoding.)"),
]  # fmt: skip

# %%
HTML("<dl>" + "".join(
    f"<dt><b>“{html.escape(belief)}”</b></dt><dd>{html.escape(shown)} "
    f"{w.app_link(None, f'Show it: {name}', APP, recorded=name, pin=pin)._repr_html_()}</dd>"
    for belief, name, pin, shown in beliefs
) + "</dl>")  # fmt: skip

# %% [markdown]
# ## 5 · Links and hand-outs
#
# A link contains the whole state: models, method, parameters, prompt, seed and selection. `embed=1` shows only the
# views, for a frame in your own page; `recorded=` plays a recording instead of running a model.

# %%
links = {
    "the tree of round 3, recorded": w.app_link(
        None, "the tree of round 3", APP, recorded="draft-tree", view="tree", pin={"round": 2}
    ),
    "the same, to embed": w.app_link(None, "the same, to embed", APP, recorded="draft-tree", view="tree", embed=1),
    "a story with a draft model": w.app_link(traces["draft-model"], "a story with a draft model", APP),
    "the same at temperature 1": w.app_link(traces["draft-model"], "the same at temperature 1", APP, temperature=1.0),
    "a picture, blind": w.app_link(traces["vlm-text-only"], "a picture, blind", APP),
}
HTML("<ul>" + "".join(f"<li>{link._repr_html_()}</li>" for link in links.values()) + "</ul>")

# %%
frame = f'<iframe src="{html.escape(links["the same, to embed"].url)}" width="100%" height="600"></iframe>'
print("for your page:\n" + frame)


def check_link(url):
    """Check that an app link names only existing methods, parameters and recordings."""
    query = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
    if "recorded" in query:
        assert query["recorded"] in recorded_runs.names(), url
    if "method" in query:
        known = {*registry.get(query["method"]).params, *params_of(SamplingParams())}
        state = {"target", "drafter", "method", "prompt", "seed", "max_new_tokens", "tab", "view", "embed", "round"}
        assert set(query) <= known | state | {"node", "token", "ids", "recorded"}, set(query) - known - state


for link in links.values():
    check_link(link.url)

# %% [markdown]
# No server in the classroom? Save a recording as *one* HTML file. It opens from disk, on any laptop, without a network,
# and has the whole stage to step and click through.

# %%
for name in ("draft-tree", "vlm-text-only", "switch"):
    page = OUT / f"{name}.html"
    page.write_text(replay(traces[name]), encoding="utf-8")
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"""(src|href)=["']https?://""", text), "the page must not load external resources"
    print(f"{page}: {len(text) // 1024} KiB")

# %% [markdown]
# ## 6 · Before the term begins: do all links work?
#
# The cell checks that all links to other notebooks and files exist, and that references to arXiv have the right form.

# %%
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
n_local = n_papers = 0
for name, book in BOOKS.items():
    for cell in book.cells:
        if cell.cell_type != "markdown":
            continue
        for link in LINK.findall(cell.source):
            if link.startswith(("http://", "https://", "#")):
                continue
            n_local += 1
            assert (ROOT / "notebooks" / link.partition("#")[0]).exists(), (
                f"{name} links to {link}, which does not exist"
            )
        for paper in re.findall(r"arXiv:(\S+)", cell.source):
            n_papers += 1
            assert re.match(r"\d{4}\.\d{4,5}\b", paper), f"{name} has an invalid arXiv reference: {paper}"
print(f"{n_local} links between notebooks and files exist; {n_papers} references to arXiv are well formed")
assert n_local >= 12
for name, book in LESSONS.items():
    code = "\n".join(cell.source for cell in book.cells if cell.cell_type == "code")
    assert "app_link" in code, f"{name} has no link to the app"
    assert "assert " in code, f"{name} has no assertion"

# %% [markdown]
# ## 7 · An exit ticket
#
# It takes five minutes, on paper. The answers are computed below.
#
# 1. p = (0.6, 0.4) and q = (0.3, 0.7). What is the acceptance probability? After a rejection, which token is drawn?
# 2. Each draft is accepted with probability 0.8, independently; K = 4. How many tokens does a round give?
# 3. A drafter is right with probability 0 and costs nothing. How many tokens does a round give?
# 4. τ = 3, and a round costs 2.4 plain steps. How much faster than plain decoding is that?
# 5. A colleague reports "acceptance 90 %". Name two questions that you have to ask.

# %% tags=["solution"] jupyter={"source_hidden": true}
p, q = [0.6, 0.4], [0.3, 0.7]
overlap = single_draft_acceptance(p, q)
print(f"1. Σ min(p, q) = {overlap:.1f}; after a rejection always the first token: only there p is above q.")
print(f"2. (1 − 0.8⁵) / (1 − 0.8) = {expected_tau(0.8, 4):.2f}")
print(f"3. {expected_tau(0.0, 4):.0f}: the target's own token comes with every pass.")
print(f"4. 3 / 2.4 = {3 / 2.4:.2f} times")
print("5. Of what: tested or drafted? At which temperature, on which prompts? And: what does the drafter cost?")
assert abs(single_draft_acceptance(p, q) - 0.7) < 1e-12

# %% [markdown]
# ## Exercises, for teachers
#
# **1.** Find a round in the recording `draft-tree` in which a *later* sibling was accepted: a node was rejected and a
# later sibling of it accepted. Make a link that opens the app there.

# %% tags=["answer"]
my_pin = None  # {"round": …, "node": …}, counted from 0


# %% tags=["check"]
@w.check
def later_sibling(pin):
    """Check that the node was accepted, and an earlier sibling rejected."""
    nodes = traces["draft-tree"].rounds[pin["round"]].nodes
    assert nodes.status[pin["node"]] == "accepted", f"node {pin['node']} was {nodes.status[pin['node']]}"
    family = [i for i, parent in enumerate(nodes.parents) if parent == nodes.parents[pin["node"]] and i < pin["node"]]
    assert any(nodes.status[i] == "rejected" for i in family), "no earlier sibling of it was rejected"


later_sibling(my_pin)

# %% tags=["solution"] jupyter={"source_hidden": true}
saved = []
for r in traces["draft-tree"].rounds:
    for node in r.path:
        parent = r.nodes.parents[node]
        elder = [i for i in range(node) if r.nodes.parents[i] == parent]
        if any(r.nodes.status[i] == "rejected" for i in elder):
            saved.append((r.index, node, r.nodes.text[elder[0]], r.nodes.text[node]))
print(saved)
index, node, *_ = saved[0]
assert later_sibling({"round": index, "node": node}).right
assert not later_sibling({"round": index, "node": 0}).right  # the first sibling has none before it
w.app_link(
    None,
    "a second sibling saves the round",
    APP,
    recorded_runs="draft-tree",
    view="tree",
    pin={"round": index, "node": node},
)

# %% [markdown]
# **2.** Your students see only a terminal. Which command shows them a run with accepted, corrected and bonus tokens
# marked, and which one shows how the run's time was spent?

# %% tags=["answer"]
my_commands = None  # two strings


# %% tags=["check"]
@w.check
def in_a_terminal(commands):
    """Check that both commands exist and serve these two purposes."""
    marked, timed = (shlex.split(command) for command in commands)
    assert marked[:2] == ["workbench", "generate"], "which command writes a text, and marks it?"
    assert "--json" not in marked, "--json is for scripts, not for students"
    methods = [b for a, b in pairwise(marked) if a in ("--method", "-m")]
    assert not methods or methods[0] in registry.names(), f"there is no method {methods}"
    assert methods != ["autoregressive"], "plain decoding drafts nothing"
    assert timed[:2] == ["workbench", "whatif"], "which command analyses recordings?"
    assert all(word in recorded_runs.names() for word in timed[2:] if not word.startswith("-")), "no such recording"


in_a_terminal(my_commands)

# %% tags=["solution"] jupyter={"source_hidden": true}
solved = [
    'workbench generate "Once upon a time there was a small dragon" --method draft-model',
    "workbench whatif draft-tree autoregressive",  # explains the times of the recordings
]
print(*solved, sep="\n")
assert in_a_terminal(solved).right
assert not in_a_terminal(solved[::-1]).right

# %% [markdown]
# **3.** Make your own hand-out: one HTML file for each of six vision and text drafters that you want to compare, and an
# `index.html` that links them.

# %% tags=["answer"]
my_folder = None  # a folder


# %% tags=["check"]
@w.check
def hand_out(folder):
    """Check that the index links at least six pages with recordings."""
    index = (Path(folder) / "index.html").read_text(encoding="utf-8")
    pages = [Path(folder) / name for name in re.findall(r'href="([^"]+\.html)"', index)]
    assert len(set(pages)) >= 6, f"the index links {len(set(pages))} pages"
    for page in pages:
        assert page.is_file(), f"{page.name} does not exist"
        assert page.stat().st_size > 10_000, f"{page.name} contains no recording"


hand_out(my_folder)

# %% tags=["solution"] jupyter={"source_hidden": true}
chosen = ("prompt-lookup", "draft-model", "medusa", "vlm-text-only", "vlm-draft", "specvlm")
for name in chosen:
    (OUT / f"{name}.html").write_text(replay(traces[name]), encoding="utf-8")
items = "".join(f'<li><a href="{name}.html">{html.escape(registry.get(name).title)}</a></li>' for name in chosen)
(OUT / "index.html").write_text(f"<!doctype html><title>Drafters</title><ul>{items}</ul>", encoding="utf-8")
print(OUT / "index.html")
assert hand_out(OUT).right
assert not hand_out(OUT / "nowhere").right

# %% [markdown]
# ## Close this page and answer
#
# 1. Which of the five misconceptions do *your* students have, and with which recorded round would you answer?
# 2. Which figures may differ between machines, and which may not?
# 3. Which parts would you leave out to fit a lesson into 90 minutes, and which prediction would you never leave out?

# %% [markdown]
# ## Where to read on
#
# - `/learn` in the app: a tour in eight steps over the same recordings, with questions.
# - Xia et al. 2024, *Unlocking Efficiency in Large Language Model Inference: A Comprehensive Survey of Speculative
#   Decoding*, arXiv:2401.07851: a map of the field for your own preparation.
