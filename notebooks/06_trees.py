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
# # 06 · Draft trees and tree attention
#
# **You will be able to**
#
# - write the attention mask and the positions of any draft tree by hand, and verify the tree in one pass of a model,
# - check that the pass is right, and say which nodes are wrong when the mask or the positions are wrong,
# - follow the target's choices through the tree, and keep exactly the accepted tokens in its KV cache.
#
# **You need** PyTorch, attention masks, and a round as in 00. Any drafter will do; 05 is enough.

# %% tags=["parameters"]
import os

FAST = os.environ.get("WORKBENCH_FAST", "1") == "1"
TARGET = None  # a Hub id or a folder; None: the bundled model
DRAFTER = None
DEVICE = "cpu"
SERVER = None  # "http://localhost:7860" shares the app's backend

# %%
import html

import ipywidgets
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache
from transformers.utils.logging import disable_progress_bar

from workbench import Workbench
from workbench import widgets as w
from workbench.bench.prompts import load_prompts
from workbench.core.tree import tree_attention_mask
from workbench.engine import load_models
from workbench.kernels.segment import Segment
from workbench.models.names import locate
from workbench.models.truncated_drafter import drafter_for
from workbench.trace.metrics import tau

disable_progress_bar()
BUNDLED = TARGET is None and DRAFTER is None  # statements about words and figures below hold for these
DRAFTER = drafter_for(TARGET, DRAFTER)  # no drafter for the target: use its first layers
DTYPE = torch.float64  # so that "equal" means ten digits; nothing else depends on it
wb = (
    Workbench(SERVER)
    if SERVER
    else Workbench(target=TARGET or "text-target", drafter=DRAFTER, device=DEVICE, dtype="float64")
)
places = [locate(TARGET or "text-target"), locate(DRAFTER)]
tokenizer = AutoTokenizer.from_pretrained(places[0])
target, drafter = (AutoModelForCausalLM.from_pretrained(place, dtype=DTYPE).to(DEVICE).eval() for place in places)
torch.set_grad_enabled(False)
print(wb.device_label(), "·", target.config.num_hidden_layers, "layers, vocabulary", target.config.vocab_size)

# %% [markdown]
# ## One draft per position is not enough
#
# A chain has one draft for each position. If one is rejected, all drafts after it are discarded. But what was the
# drafter's *second* choice? Let the drafter read a text that the target wrote, and look at the rank that it gives to
# each of the target's tokens. **Predict** the shares of rank 1, 2 and 3 before you run the cell.

# %%
story = wb.generate("Once upon a time, there was a", method="autoregressive", max_new_tokens=64)
ids, written = story.header.prompt_tokens, story.token_ids
logits = drafter(torch.tensor([ids + written], device=DEVICE)).logits[0, len(ids) - 1 : -1]  # [64, V], one per token
truth = torch.tensor(written, device=DEVICE)
rank = (logits > logits.gather(1, truth[:, None])).sum(1)  # 0: the drafter's first choice
shares = [float((rank == r).double().mean()) for r in range(3)]
print("the target's token was the drafter's choice", *(f"{r + 1}: {share:.0%} " for r, share in enumerate(shares)))
if BUNDLED:
    assert shares[1] + shares[2] > 0

# %% [markdown]
# The target's token is often the second or third choice when it is not the first. These can be tested in the same pass,
# if one pass can read several continuations in parallel. A draft tree and its attention mask make that possible.
#
# ## A tree is two lists
#
# `tokens[i]` is the token of node `i`; `parents[i]` is the node before it, and −1 stands for the last committed token,
# the *root*. Parents come before their children. Here is a tree, drawn by hand; the drafter's choices fill it:
#
# ```
#                    ┌─ 0 ─┬─ 2 ── 5
#   … there was a ───┤     └─ 3
#       (root)       └─ 1 ─── 4 ── 6
# ```

# %%
parents = [-1, -1, 0, 0, 1, 2, 4]


def path(parents, i):
    """Return the nodes from the first level down to node i."""
    return [] if i < 0 else [*path(parents, parents[i]), i]


def choices(text, k):
    """Return the drafter's k likeliest next tokens."""
    return drafter(torch.tensor([text], device=DEVICE)).logits[0, -1].topk(k).indices.tolist()


tokens = []
for i, parent in enumerate(parents):
    elder = parents[:i].count(parent)  # number of earlier siblings: the first child is the first choice, …
    tokens.append(choices(ids + [tokens[j] for j in path(parents, parent)], elder + 1)[elder])

for i in range(len(parents)):
    print(f"node {i}, below {parents[i]:2d}: …{tokenizer.decode(ids[-2:] + [tokens[j] for j in path(parents, i)])!r}")


# %% [markdown]
# ## The mask
#
# The input sequence has the text first and then the seven nodes. Causal attention would let node 4 attend to nodes 0 to
# 3 as well, but these are not part of node 4's text. A node may attend only to the committed text, its ancestors and
# itself.
#
# **Predict.** Which nodes does node 5 attend to? Node 6? How many ones does the whole 7 × 7 mask have, and how can you
# compute that number without drawing it?

# %%
def mask_of_tree(parents):
    """Return the mask, bool [N, N]: row i is the row of i's parent plus i itself, i.e. all nodes that i attends to."""
    mask = torch.eye(len(parents), dtype=torch.bool)
    for i, parent in enumerate(parents):
        if parent >= 0:
            mask[i] |= mask[parent]
    return mask


mask = mask_of_tree(parents)
print(mask.int(), "\nones:", int(mask.sum()), " depths:", mask.sum(1).tolist())
assert mask[5].nonzero().flatten().tolist() == path(parents, 5) == [0, 2, 5]
assert mask.sum(1).tolist() == [len(path(parents, i)) for i in range(7)]

# %% [markdown]
# Row `i` is the path to node `i`. So the number of ones in a row is the depth of its node, and the mask has as many
# ones as the sum of all depths. The depths also give the positions:
#
# ## The positions
#
# The model also gets the position of each token. **Predict** the positions of nodes 0 … 6 if the root is at position L
# − 1. (Their indices in the input sequence are L, L + 1, … L + 6. That is not the answer.)

# %%
depth = mask.sum(1)  # 1 for the children of the root
L = len(ids)
positions = L - 1 + depth
print("root at", L - 1, "· nodes at", positions.tolist())
assert positions.tolist() == [L, L, L + 1, L + 1, L + 1, L + 2, L + 2]


# %% [markdown]
# Siblings share a position: each is a candidate for the same next token. A later index in the list does not mean a
# later position in the text.
#
# ## One pass
#
# Hugging Face models take a 4-D mask that is *added* to the attention scores: 0 where a token may attend, the smallest
# number of the dtype where it may not. Shape: [batch, heads (1: the same for all), query, key].

# %%
def verify(ids, tokens, parents, mask=None, positions=None):
    """Run one pass, no cache. Return the target's logits [N + 1, V]: row 0 after the text, row i + 1 after node i."""
    L, N = len(ids), len(tokens)
    own = mask_of_tree(parents) if mask is None else mask
    allowed = torch.ones(L + N, L + N, dtype=torch.bool).tril()  # the text: causal
    allowed[L:, L:] = own  # the tree: ancestors only, and all of the text
    added = torch.zeros(1, 1, L + N, L + N, dtype=DTYPE).masked_fill(~allowed, torch.finfo(DTYPE).min)
    where = torch.cat([torch.arange(L), L - 1 + own.sum(1) if positions is None else positions])
    out = target(
        input_ids=torch.tensor([ids + tokens], device=DEVICE),  # [1, L + N]
        attention_mask=added.to(DEVICE),  # [1, 1, L + N, L + N]
        position_ids=where[None].to(DEVICE),  # [1, L + N]
    )
    return out.logits[0, L - 1 :]


tree_logits = verify(ids, tokens, parents)
print("logits:", tuple(tree_logits.shape), "= root and 7 nodes, each with its own distribution")


# %% [markdown]
# **Is it right?** A slow way is certainly right: for each node, append its path to the text and run the model on that
# sequence alone. That is eight runs instead of one. How close will the logits be?

# %%
def alone(ids, path_tokens):
    """Return the target's logits [V] after the text and one path."""
    return target(torch.tensor([ids + path_tokens], device=DEVICE)).logits[0, -1]


paths = [[tokens[j] for j in path(parents, i)] for i in range(-1, len(parents))]
path_logits = torch.stack([alone(ids, p) for p in paths])  # [N + 1, V]
difference = (tree_logits - path_logits).abs().amax(1)
print("largest difference, root and nodes:", *(f"{d:.0e}" for d in difference.tolist()))
assert difference.max() < 1e-8

# %% [markdown]
# One pass gives eight distributions, equal to the precision of float64. This method is called *tree attention*; the
# rest of the notebook uses it.
#
# ## Break it
#
# **Predict.** (a) Keep the positions, but use a plain causal mask. (b) Keep the mask, but number the positions L, L +
# 1, … in the order of the list. Which of the nodes 0 … 6 have correct logits in (a)? Which in (b)?

# %%
causal = torch.ones(7, 7, dtype=torch.bool).tril()
in_list_order = L + torch.arange(7)
broken = {
    "causal mask": verify(ids, tokens, parents, mask=causal, positions=positions),
    "positions in list order": verify(ids, tokens, parents, positions=in_list_order),
}
print(f"{'largest error':25}", *(f"{name:>8}" for name in ["root", *(f"node {i}" for i in range(7))]))
wrong = {}
for name, found in broken.items():
    error = (found - path_logits).abs().amax(1)
    wrong[name] = (error > 1e-6).tolist()
    print(f"{name:25}", *(f"{e:8.1g}" for e in error.tolist()))

assert wrong["causal mask"][:2] == wrong["positions in list order"][:2] == [False, False]
if BUNDLED:
    assert wrong["causal mask"] == wrong["positions in list order"] == [False, False, *[True] * 6]

# %% [markdown]
# Only node 0 is right in both: only the text comes before it in the list. Neither mistake crashes, and neither gives
# nonsense. Would a reader of the output notice anything?

# %%
for name, found in broken.items():
    for i in range(7):
        mine, right = (tokenizer.decode([int(x[i + 1].argmax())]) for x in (found, path_logits))
        if mine != right:
            read = tokenizer.decode([tokens[j] for j in path(parents, i)])
            print(f"{name:24} node {i}: after {read!r} {mine!r} instead of {right!r}")


# %% [markdown]
# Some nodes still give the right token; others give a different, plausible one. **A wrong mask gives no visible error,
# only inexact output.** So this project always tests masks against single paths, in float64.
#
# ## Not every mask is a tree
#
# We computed the mask of a tree. Now the reverse: which tree has a given mask? **Predict** it for these three masks of
# three nodes: `100 110 101`, `100 110 111`, `100 010 111`.

# %%
def tree_of(mask):
    """Return the parents of the tree that has this mask.

    Raises:
        ValueError: no tree has it.
    """
    parents = []
    for i, row in enumerate(mask.tolist()):
        seen = [j for j in range(len(row)) if row[j] and j != i]
        if not row[i] or any(j > i for j in seen):
            raise ValueError(f"node {i} must attend to itself, and to no later node")
        parent = seen[-1] if seen else -1  # the deepest ancestor comes last
        if seen != (path(parents, parent) if parent >= 0 else []):
            raise ValueError(f"node {i} attends to {seen}: not node {parent} and its ancestors")
        parents.append(parent)
    return parents


for rows in (["100", "110", "101"], ["100", "110", "111"], ["100", "010", "111"]):
    given = torch.tensor([[cell == "1" for cell in row] for row in rows])
    try:
        print(*rows, "→ parents", tree_of(given))
    except ValueError as error:
        print(*rows, "→ no tree:", error)


# %% [markdown]
# Now experiment. Change a parent on the left, and watch the mask and the text that each node attends to. Or click in
# the mask: if some tree has that mask, the parents change; otherwise a message explains why none has. Try to make node
# 3 attend to node 1. (The cell that builds the editor is folded; it has no new content.)

# %% jupyter={"source_hidden": true}
def grid(mask, names):
    """Return the mask as an HTML table, with the text that each node attends to. Token text is escaped."""
    head = "".join(f"<th>{j}</th>" for j in range(len(names)))
    rows = ""
    for i, row in enumerate(mask.tolist()):
        cells = "".join(f"<td align='center'>{'■' if seen else '·'}</td>" for seen in row)
        read = "".join(names[j] for j in range(len(names)) if row[j])
        rows += f"<tr><th>{i}</th>{cells}<td align='left'><code>…{html.escape(read)}</code></td></tr>"
    return f"<table><tr><th></th>{head}<th>attends to, after the text</th></tr>{rows}</table>"


class Editor(ipywidgets.VBox):
    """Editor of a tree (`parents`) and its mask (`mask`): a change of one updates the other."""

    def __init__(self, parents, names):
        self.parents, self.names, self.mask, self.busy = list(parents), names, mask_of_tree(parents), False
        small, n = ipywidgets.Layout(width="34px", padding="0"), len(parents)
        self.boxes = [
            ipywidgets.Dropdown(options=[("root", -1), *((str(j), j) for j in range(i))], value=parents[i],
                                description=f"{i} below", layout=ipywidgets.Layout(width="170px"))
            for i in range(n)
        ]  # fmt: skip
        self.cells = [
            [ipywidgets.ToggleButton(value=bool(self.mask[i, j]), description=str(j), tooltip=f"node {i} to node {j}",
                                     layout=small) for j in range(n)]
            for i in range(n)
        ]  # fmt: skip
        for i in range(n):
            self.boxes[i].observe(lambda change, i=i: self.changed(i, None, change["new"]), "value")
            for j in range(n):
                self.cells[i][j].observe(lambda change, i=i, j=j: self.changed(i, j, change["new"]), "value")
        self.says = ipywidgets.HTML(grid(self.mask, names))
        lines = [ipywidgets.HBox([self.boxes[i], *self.cells[i]]) for i in range(n)]
        super().__init__([*lines, self.says])

    def changed(self, i, j, value):
        """Handle a change of node i's parent (j is None) or of one cell of the mask."""
        if self.busy:
            return
        message = ""
        if j is None:
            self.parents[i] = value
            self.mask = mask_of_tree(self.parents)
        else:
            self.mask[i, j] = value
            try:
                self.parents = tree_of(self.mask)
            except ValueError as error:
                message = f"<p>No tree has this mask: {html.escape(str(error))}.</p>"
        self.busy = True  # ignore the events that these updates cause
        for a, box in enumerate(self.boxes):
            box.value = self.parents[a]
            for b, cell in enumerate(self.cells[a]):
                cell.value = bool(self.mask[a, b])
        self.busy = False
        self.says.value = grid(self.mask, self.names) + message

    def snapshot(self):
        """Return the HTML that the notebook stores."""
        return grid(self.mask, self.names)


editor = Editor(parents, [tokenizer.decode([t]) for t in tokens])
w.show(editor)

# %%
editor.boxes[3].value = 1  # same as a click: node 3 moves below node 1 …
assert editor.mask[3].nonzero().flatten().tolist() == [1, 3]
editor.cells[6][0].value = True  # … and node 6 attends to node 0, which is on another branch
assert "No tree has this mask" in editor.says.value
editor.cells[6][0].value = False
editor.boxes[3].value = 0
assert editor.parents == parents
assert tree_of(mask_of_tree(parents)) == parents


# %% [markdown]
# ## With a cache, and against the engine
#
# An engine does not read the text again in every round. It keeps the keys and values of the text in the KV cache. A
# round feeds only the root and the nodes, and the mask shrinks to N + 1 rows: each may attend to the whole cache and to
# its ancestors.
#
# **Predict.** The root is the last committed token, yet it is fed *together with* the tree, and the KV cache holds only
# L − 1 tokens. What would be missing otherwise?

# %%
def rooted(parents):
    """Return the same tree with the root as node 0: all indices move up by one."""
    return [-1, *(parent + 1 for parent in parents)]


cache = DynamicCache()
target(torch.tensor([ids[:-1]], device=DEVICE), past_key_values=cache)
own = mask_of_tree(rooted(parents))  # [N + 1, N + 1]
allowed = torch.cat([torch.ones(len(own), L - 1, dtype=torch.bool), own], 1)  # [N + 1, L + N]
added = torch.zeros(1, 1, *allowed.shape, dtype=DTYPE).masked_fill(~allowed, torch.finfo(DTYPE).min)
cached_logits = target(
    input_ids=torch.tensor([ids[-1:] + tokens], device=DEVICE),
    attention_mask=added.to(DEVICE),
    position_ids=(L - 2 + own.sum(1))[None].to(DEVICE),
    past_key_values=cache,
).logits[0]
print("fed", len(own), "tokens, mask", tuple(added.shape), "· logits", tuple(cached_logits.shape))
assert (cached_logits - tree_logits).abs().max() < 1e-8

# %% [markdown]
# Without the root in the pass there would be no logits *after* it, and the first level could not be verified. Now
# compare with the engine. Its `ancestors` builds the mask without a loop, and its `Runner` holds the KV cache:

# %%
models = load_models(places[0], None, device=DEVICE, dtype="float64")
slot = models.target.open()
models.target.prefill(slot, ids[:-1])
engine_mask = tree_attention_mask(torch.tensor(rooted(parents)), depth=4)
assert bool((engine_mask == own).all())
out = models.target.forward(
    [Segment(slot, torch.tensor(ids[-1:] + tokens, device=DEVICE), own.to(DEVICE), (own.sum(1) - 1).to(DEVICE))]
)
by_engine = (out.logits[0] - tree_logits).abs().max()
print(f"largest difference to the engine's logits: {by_engine:.0e}")
assert by_engine < 1e-8


# %% [markdown]
# ## Verify and commit
#
# Start at the root and take the target's own token there. If a child has that token, accept the child, go there and
# repeat; otherwise stop. The token at the stop is the target's own, so a round always gives at least one token.
#
# **Predict.** The first choices of the bundled drafter are *little boy*. The target's story began differently: it is
# printed first below. Which nodes are accepted, and which token does the target add?

# %%
def walk(tokens, parents, own):
    """Return the accepted nodes and the target's token after them. `own[i + 1]`: its token after node i (−1: root)."""
    accepted, at = [], -1
    while True:
        matching = [i for i, parent in enumerate(parents) if parent == at and tokens[i] == own[at + 1]]
        if not matching:
            return accepted, own[at + 1]
        at = matching[0]
        accepted.append(at)


print("the target wrote:", repr(tokenizer.decode(written[:6])))
accepted, extra = walk(tokens, parents, cached_logits.argmax(1).tolist())
print(
    "accepted nodes:",
    accepted,
    "→",
    repr(tokenizer.decode([tokens[i] for i in accepted])),
    "+",
    repr(tokenizer.decode([extra])),
)
assert [*(tokens[i] for i in accepted), extra] == written[: len(accepted) + 1]

# %% [markdown]
# The KV cache now holds the text, the root and all seven nodes, in the order of the list. Keep the text, the root and
# the accepted nodes, in order, and remove the others. Then the next round starts as if there had been no tree:

# %%
keep = torch.tensor([*range(L - 1), L - 1, *(L + i for i in accepted)], device=DEVICE)
for layer in cache.layers:
    layer.keys, layer.values = layer.keys[:, :, keep], layer.values[:, :, keep]  # [1, H, L + accepted, head size]

after = ids + [tokens[i] for i in accepted] + [extra]
at = torch.tensor([[len(after) - 1]], device=DEVICE)
next_logits = target(torch.tensor([[extra]], device=DEVICE), past_key_values=cache, position_ids=at).logits[0, -1]
print(f"difference to reading everything again: {(next_logits - alone(after, [])).abs().max():.0e}")
assert (next_logits - alone(after, [])).abs().max() < 1e-8

# %% [markdown]
# That is a whole round of tree decoding. Keys contain their position (RoPE rotated them by it). So an accepted node may
# move in memory, as long as its *position* was computed from its depth: this is why the positions had to be right.
#
# ## A run of the engine, node by node
#
# `draft-tree` builds its tree with a draft model. Take its trace, rebuild each round's mask from `parents`, verify the
# tree by hand, and compare every recorded probability:

# %%
length = 24 if FAST else 96
trace = wb.generate("Once upon a time, there was a", method="draft-tree", max_new_tokens=length)
text, worst, n_nodes = list(trace.header.prompt_tokens), 0.0, 0
for r in trace.rounds:
    nodes = r.nodes
    distributions = verify(text, nodes.tokens, nodes.parents) if len(nodes) else alone(text, [])[None]
    p = distributions.softmax(1)[
        torch.tensor(nodes.parents, dtype=torch.long) + 1, torch.tensor(nodes.tokens, dtype=torch.long)
    ]
    worst = max(worst, float((p.cpu() - torch.tensor(nodes.p, dtype=DTYPE)).abs().max())) if len(nodes) else worst
    assert nodes.depth == [len(path(nodes.parents, i)) for i in range(len(nodes))]
    assert walk(nodes.tokens, nodes.parents, distributions.argmax(1).tolist())[0] == r.path
    text += [e.token for e in r.emitted]
    n_nodes += len(nodes)
print(f"{len(trace.rounds)} rounds, {n_nodes} nodes: largest difference of a probability {worst:.0e}")
assert worst < 1e-6

# %%
second = [r.index for r in trace.rounds if r.path and r.path[0] != r.nodes.parents.index(-1)]  # a sibling accepted
branched = second[0] if second else 0
w.tree(trace, round=branched)

# %%
w.app_link(trace, pin={"round": branched})

# %% [markdown]
# ## When is a tree better than a chain?
#
# Compare fairly: *for the same number of nodes to verify*, is a chain or a tree better? Both have twelve nodes: a chain
# of 12, and a tree of at most 6 levels. **Predict** for two texts: a story (the drafter is good at those) and a record
# to be written as JSON (the drafter is often wrong there). On which text does the tree give the larger τ, and on which
# the chain?

# %%
prompts = {p.name: p for p in load_prompts()}
shapes = {
    "chain of 12": ("draft-model", {"depth": 12}),
    "tree of 12, 6 levels": ("draft-tree", {"depth": 6, "width": 3, "nodes": 12}),
}
found = {}
for name in ("story-bear", "json-book"):
    for shape, (method, params) in shapes.items():
        run = wb.generate(prompts[name].encode(tokenizer), method=method, params=params, max_new_tokens=2 * length)
        steps = sum(r.draft_forwards for r in run.rounds) / len(run.rounds)
        found[name, shape] = tau(run.rounds)
        print(f"{name:10} {shape:21} τ = {found[name, shape]:.2f}   {steps:4.1f} passes of the drafter per round")

if BUNDLED:
    assert found["json-book", "tree of 12, 6 levels"] > found["json-book", "chain of 12"]
    assert found["story-bear", "tree of 12, 6 levels"] < found["story-bear", "chain of 12"]

# %% [markdown]
# The tree is better for the record, the chain for the story. The more often the first choice is wrong, the more a
# second one helps. If the drafter is nearly always right, depth helps more than width. But a chain of 12 takes 12
# sequential passes of the drafter, and the tree 6. Lesson 07 shows how to choose the nodes for a given budget.
#
# ## Exercises
#
# **1. By hand.** No code: write the mask of `parents = [-1, 0, 0, -1, 3, 1]` as six strings of `1` and `0`, and its
# depths. Then run the check.

# %% tags=["answer"]
my_rows = None  # ["100000", …]: six strings
my_depths = None  # six numbers


# %% tags=["check"]
@w.check
def by_hand(rows, depths):
    """Check each row and each depth."""
    assert [len(row) for row in rows] == [6] * 6, "six strings of six"
    for i, row in enumerate(mask_of_tree([-1, 0, 0, -1, 3, 1]).tolist()):
        assert [c == "1" for c in rows[i]] == row, f"row {i}: which nodes are ancestors of node {i}?"
        assert depths[i] == sum(row), f"node {i} is not at depth {depths[i]}"


by_hand(my_rows, my_depths)

# %% tags=["solution"] jupyter={"source_hidden": true}
right_rows = ["100000", "110000", "101000", "000100", "000110", "110001"]
assert by_hand(right_rows, [1, 2, 2, 1, 2, 3]).right
assert not by_hand([*right_rows[:5], "010001"], [1, 2, 2, 1, 2, 3]).right  # without the parent's parent
assert not by_hand(right_rows, [1, 2, 3, 4, 5, 6]).right  # indices in the list are not depths
print("Each row is the row of the parent with one more 1 on the diagonal:", *right_rows)


# %% [markdown]
# **2. Without a loop over nodes.** On a GPU a loop over nodes is slow. Let `A` be the N × N matrix with `A[i, j] = 1` if `j`
# is `i` or its parent. What do the non-zero entries of `A @ A` mean? Of `A` to the power of 4? Build the mask from that in
# ⌈log₂ depth⌉ products, and compare with `mask_of_tree` on random trees.

# %% tags=["answer"]
def my_sees(parents):
    """Return the same bool [N, N] as `mask_of_tree`, without a loop over nodes."""
    raise NotImplementedError  # yours


# %% tags=["check"]
@w.check
def without_loop(mask_of):
    """Check fifty random trees and a chain; a large tree may take hardly more instructions than a small one."""
    for found in (*random_trees(50), list(range(-1, 19))):
        assert mask_of(found).bool().equal(mask_of_tree(found)), f"the mask is wrong for parents = {found}"
    small, large = (instructions(mask_of, *random_trees(1, n)) for n in (16, 256))
    assert large < 4 * small, f"a loop: {small} Python instructions for 16 nodes, {large} for 256"


def instructions(function, *args):
    """Return how many Python instructions a call executes, in all functions that it calls."""
    count = 0

    def trace(frame, event, arg):
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function(*args)
    finally:
        sys.settrace(before)
    return count


def random_trees(n, nodes=20):
    """Return the parents of n random trees."""
    coin = torch.Generator().manual_seed(0)
    return [[int(torch.randint(-1, i, (1,), generator=coin)) if i else -1 for i in range(nodes)] for _ in range(n)]


without_loop(my_sees)


# %% tags=["solution"] jupyter={"source_hidden": true}
def mask_by_squaring(parents):
    n, up = len(parents), torch.tensor(parents)
    reach, steps = (torch.eye(n) + (up[:, None] == torch.arange(n)).float()), 1  # at most one step up
    while steps < n:
        reach, steps = ((reach @ reach) > 0).float(), 2 * steps  # twice as many steps
    return reach > 0


def mask_by_one_product(parents):
    reach = torch.eye(len(parents)) + (torch.tensor(parents)[:, None] == torch.arange(len(parents))).float()
    return (reach @ reach) > 0


assert without_loop(mask_by_squaring).right
assert not without_loop(mask_by_one_product).right  # one product reaches only two steps up
assert not without_loop(mask_of_tree).right  # it loops over nodes
print("(A^k)[i, j] > 0: j is at most k steps above i. Squaring doubles k.")


# %% [markdown]
# **3. Two texts in one row.** A mask can separate any two texts, not only branches. Put two prompts of different
# lengths into *one* row of the batch, so that neither attends to the other, and compute for both the same logits as for
# each alone. (Servers pack short requests like this.) Which positions must you use?

# %% tags=["answer"]
def my_packing(a, b):
    """Return, for texts of a and b tokens, the mask (bool [a + b, a + b]) and the positions (int [a + b])."""
    raise NotImplementedError  # yours


# %% tags=["check"]
@w.check
def packed_row(packing):
    """Compare the logits after both texts with those of each text alone."""
    first, second = (tokenizer(words)["input_ids"] for words in ("Once upon a time", "Lily had a red kite and a dog."))
    mask_, where = packing(len(first), len(second))
    both = target(
        input_ids=torch.tensor([first + second], device=DEVICE),
        attention_mask=torch.zeros(1, 1, *mask_.shape, dtype=DTYPE)
        .masked_fill(~mask_, torch.finfo(DTYPE).min)
        .to(DEVICE),
        position_ids=torch.as_tensor(where)[None].to(DEVICE),
    ).logits[0]
    assert (both[len(first) - 1] - alone(first, [])).abs().max() < 1e-8, (
        "the logits of the first text differ from those alone"
    )
    assert (both[-1] - alone(second, [])).abs().max() < 1e-8, "the logits of the second text differ from those alone"


packed_row(my_packing)

# %% tags=["solution"] jupyter={"source_hidden": true}
one, two = (
    tokenizer("Once upon a time")["input_ids"],
    tokenizer("Lily lived in a tall lighthouse by the sea.")["input_ids"],
)
a, b = len(one), len(two)
packed = torch.zeros(a + b, a + b, dtype=torch.bool)
packed[:a, :a], packed[a:, a:] = torch.ones(a, a).tril().bool(), torch.ones(b, b).tril().bool()
both = target(
    input_ids=torch.tensor([one + two], device=DEVICE),
    attention_mask=torch.zeros(1, 1, a + b, a + b, dtype=DTYPE).masked_fill(~packed, torch.finfo(DTYPE).min).to(DEVICE),
    position_ids=torch.tensor([[*range(a), *range(b)]], device=DEVICE),  # each text starts at 0
).logits[0]
assert (both[a - 1] - alone(one, [])).abs().max() < 1e-8
assert (both[-1] - alone(two, [])).abs().max() < 1e-8


def two_blocks(a, b):
    return torch.block_diag(torch.ones(a, a).tril(), torch.ones(b, b).tril()).bool(), torch.tensor(
        [*range(a), *range(b)]
    )


assert packed_row(two_blocks).right
assert not packed_row(lambda a, b: (torch.ones(a + b, a + b).tril().bool(), torch.arange(a + b))).right  # causal mask
print("Two blocks on the diagonal, and positions that begin again at 0. (Where positions are rotations, as here, only")
print("their differences count: any start would do for the second text, as long as it goes up by one.)")

# %% [markdown]
# ## Close this page and answer
#
# 1. How do you get the depth of a node from its row of the mask, and its position from its depth?
# 2. Why is the root fed together with the tree?
# 3. A mask is wrong in one cell. Would a reader of the output notice, and which test detects it?
# 4. With a budget of twelve nodes, when is a chain better than a tree?
#
# ## References
#
# - Miao et al. 2023, *SpecInfer*, arXiv:2305.09781, §4: trees of tokens and their verification in one pass.
# - Cai et al. 2024, *Medusa*, arXiv:2401.10774, §2.1.2: tree attention. · Li et al. 2024, *EAGLE-2*, arXiv:2406.16858,
#   §4: trees that are expanded and then reranked, as `draft-tree` does.
#
# Next: [07](07_heads.ipynb) drafts trees without a second model, from the target's own hidden states.

# %%
wb.close()
