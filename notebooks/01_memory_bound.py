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
# # 01 · Why decoding waits for memory
#
# **You will be able to**
#
# - predict what a pass over k tokens costs, compared with a pass over one, from two numbers of a machine;
# - find the *knee*: the number of tokens up to which more tokens are nearly free;
# - say on which machine, and at which batch size, drafts can pay at all.
#
# **You need**: [00](00_first_run.ipynb), PyTorch, and the idea of a KV cache (cached keys and values).

# %% tags=["parameters"]
import os

FAST = os.environ.get("WORKBENCH_FAST", "1") == "1"
TARGET = None  # a Hub id or a folder; None: the bundled model
DRAFTER = None  # the same for the draft model
DEVICE = "cpu"
SERVER = None  # "http://localhost:7860" shares the app's backend

# %%
import time
from dataclasses import dataclass
from itertools import pairwise

import ipywidgets as ui
import plotly.graph_objects as go
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from workbench import Workbench
from workbench import widgets as w
from workbench.kernels.packed import Matrix
from workbench.models.names import locate
from workbench.models.truncated_drafter import drafter_for

logging.disable_progress_bar()
place = locate(TARGET or "text-target")
model = AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32).to(DEVICE).eval()
tokenizer = AutoTokenizer.from_pretrained(place)
n_weights = sum(weight.numel() for weight in model.parameters())
print(f"{n_weights / 1e6:.1f} million weights, {4 * n_weights / 1e6:.0f} MB in float32")

# %% [markdown]
# ## Writing is one at a time, reading is not
#
# To *write* 8 tokens a model needs 8 passes: token 2 goes into the pass that makes token 3. To *read* 8 tokens that
# already exist it needs one pass, because attention at each position uses only positions to the left. Reading gives the
# same logits as writing:

# %%
text = "Once upon a time there was a little girl called Mia. She had a red kite, and every day she went to the park"
ids = tokenizer(text, return_tensors="pt").input_ids.to(DEVICE)  # [1, L]
head, tail = ids[:, :-8], ids[:, -8:]

with torch.inference_mode():
    cache = model(head, use_cache=True).past_key_values
    one_by_one = []
    for i in range(8):  # eight passes over one token
        out = model(tail[:, i : i + 1], past_key_values=cache, use_cache=True)
        one_by_one.append(out.logits[:, -1])
    written = torch.stack(one_by_one, dim=1)  # [1, 8, V]

    cache = model(head, use_cache=True).past_key_values
    read = model(tail, past_key_values=cache, use_cache=True).logits  # [1, 8, V], one pass over eight tokens

print("written", tuple(written.shape), " read", tuple(read.shape))
print(f"largest difference of a logit: {(written - read).abs().max():.1e}")
assert torch.allclose(written, read, atol=1e-3, rtol=1e-3)

# %% [markdown]
# So a target can *verify* eight drafts in one pass. Whether speculative decoding pays depends on one question:
#
# **What does a pass over 8 tokens cost, if a pass over 1 costs 1? Predict, and write it down:**
#
# (a) about 1 · (b) about 2 · (c) about 8, since eight times as much is computed.

# %%
SIZES = (1, 2, 4, 8, 16, 32, 64)
REPEATS = 8 if FAST else 30


def measure(run, sizes=SIZES, repeats=REPEATS):
    """Return the least seconds of run(k) for each k. Sizes take turns, so that other load affects all of them alike."""
    seconds = {k: [] for k in sizes}
    for _ in range(repeats):
        for k in sizes:
            start = time.perf_counter()
            run(k)
            if DEVICE.startswith("cuda"):
                torch.cuda.synchronize()
            seconds[k].append(time.perf_counter() - start)
    return {k: min(times) for k, times in seconds.items()}


def pass_over(k):
    """Run one pass over k tokens after a context of 64."""
    with torch.inference_mode():
        model(more[:, :k], past_key_values=cache, use_cache=True)
        cache.crop(-k)  # remove them from the KV cache again


more = ids.repeat(1, 8)[:, :64]
with torch.inference_mode():
    cache = model(ids.repeat(1, 4)[:, :64], use_cache=True).past_key_values
cost = measure(pass_over)
print("tokens   ms per pass   against 1 token   ms per token")
for k, seconds in cost.items():
    print(f"{k:>6} {seconds * 1e3:>13.1f} {seconds / cost[1]:>17.1f} {seconds * 1e3 / k:>14.2f}")
if cost[8] >= 8 * cost[1]:
    print("No gain here: the machine is too busy, or computing one token takes as long as reading the weights.")

# %% [markdown]
# On a quiet machine it costs far less than 8. But why? Two costs occur once per *pass*, not once per token: starting
# each of some hundred operations, which dominates in a model this small, and **reading the weights**, which dominates
# in a large one. This table cannot separate them. To see the second alone, take a single matrix: there is one operation
# to start, and only weights to read.
#
# ## One matrix: bytes and operations
#
# y = x Wᵀ with W [d, d] and k rows in x:
#
# | | once | grows with k |
# |---|---|---|
# | bytes to read | 4·d² (W, in float32) | 4·k·d (x), small |
# | operations | – | 2·k·d² (a multiplication and an addition for each weight and token) |
#
# A machine has two speeds: a memory **bandwidth** (bytes/s) and an arithmetic **peak** (operations/s). It reads and
# computes at the same time, so the slower of the two sets the time. This model is called the *roofline*:
#
# > seconds(k) = max( 4·d² / bandwidth , 2·k·d² / peak )
#
# The time is flat at first and then rises linearly. The two parts meet at the **knee**, k\* = 2 · peak / bandwidth for
# float32: k\* tokens cost as much as one. W is larger than the caches of most processors, so that it is read from
# memory each time. **Predict:** while a single row is multiplied, for which share of the time does this processor do
# arithmetic? 100 %, 50 %, 20 %, less?

# %%
d = 4096
W = torch.randn(d, d, generator=torch.Generator().manual_seed(0)).to(DEVICE)  # 64 MiB
rows = torch.randn(128, d, generator=torch.Generator().manual_seed(1)).to(DEVICE)
SIZES_W = (1, 2, 4, 8, 16, 32, 64, 128)
multiply = Matrix(W) if DEVICE == "cpu" else lambda x: x @ W.T  # on a CPU: as the workbench's engine multiplies
matrix = measure(lambda k: multiply(rows[:k]), SIZES_W, 4 if FAST else 20)

bandwidth = 4 * d * d / min(matrix.values())  # the most that any size reaches, mostly with one row
peak = max(2 * k * d * d / seconds for k, seconds in matrix.items())  # the same for operations
knee = 2 * peak / bandwidth
print(f"W: {4 * d * d / 2**20:.0f} MiB")
print(f"bandwidth {bandwidth / 1e9:.1f} GB/s, peak {peak / 1e9:.0f} GFLOP/s → knee at k* = {knee:.1f} tokens\n")
print("rows     measured ms   roofline ms   share of the peak")
for k, seconds in matrix.items():
    roof = max(4 * d * d / bandwidth, 2 * k * d * d / peak)
    print(f"{k:>4} {seconds * 1e3:>15.2f} {roof * 1e3:>13.2f} {2 * k * d * d / seconds / peak:>19.0%}")
    assert seconds >= roof * (1 - 1e-9)  # always true: both speeds are maxima of these points

# %%
line = [2 ** (i / 8) for i in range(57)]  # 1 … 128
fig = go.Figure(layout={"title": "One matrix, k rows: measured, and the roofline", "height": 380})
fig.add_scatter(x=list(matrix), y=[s * 1e3 for s in matrix.values()], mode="markers", name="measured")
fig.add_scatter(
    x=line, y=[1e3 * max(4 * d * d / bandwidth, 2 * k * d * d / peak) for k in line], mode="lines", name="roofline"
)
fig.add_scatter(x=line, y=[matrix[1] * k * 1e3 for k in line], mode="lines", name="k × one row", line={"dash": "dot"})
fig.add_scatter(
    x=[knee, knee], y=[matrix[1] * 1e3, max(matrix.values()) * 1e3], mode="lines", name="knee", line={"dash": "dash"}
)
fig.update_xaxes(type="log", title="rows k (tokens in the pass)", dtick="D2")
fig.update_yaxes(type="log", title="ms")
w.figure(fig)

# %% [markdown]
# Read the figure with care. The roofline was computed from two of the points: the quickest (bandwidth) and the one with
# the most operations per second (peak). So these two lie on it and all others above it *by construction*: that is no
# evidence. The figure does show how close the other points come to the roofline, and how far they stay below the dotted
# line. The dotted line is the cost of k tokens if nothing were shared.
#
# With a single row, the processor's arithmetic units mostly wait for W to arrive. They are busy for a share of 1/k\* of
# the time (less, if the single row was not the quickest). At the knee, and only there, memory and arithmetic are both
# busy all the time. **Speculative decoding uses this idle arithmetic.**

# %%
busy = 2 * d * d / matrix[1] / peak
print(f"one row keeps the arithmetic busy for {busy:.0%} of the time; 1/k* = {1 / knee:.0%}")
assert busy <= 1 / knee * (1 + 1e-9)
if busy > 0.5:
    print("That is a lot: other load disturbed the larger sizes. Measure again on a quiet machine.")


# %% [markdown]
# ## Limits of this measurement
#
# The roofline predicts a flat part: k\* tokens cost as much as one. **Predict:** do the points above show one? What
# does the second row cost, if the first costs 1? And which share of the whole model's time for one token was spent on
# reading its weights?

# %%
def slope(seconds):
    """Return the cost of each further token, up to eight, if the first costs 1."""
    return (seconds[8] / seconds[1] - 1) / 7


def for_twice(seconds):
    """Return how many tokens cost twice as much as one, interpolated linearly between the measured sizes."""
    known = list(seconds.items())
    for (k, t), (k_next, t_next) in pairwise(known):
        if t_next > 2 * seconds[1]:
            return k + (k_next - k) * max(0.0, 2 * seconds[1] - t) / (t_next - t)
    return float(known[-1][0])


print(f"the second row of the matrix: {matrix[2] / matrix[1] - 1:.2f} of the first\n")
ideal = {k: max(1.0, k / knee) for k in SIZES_W}
print("                    slope: each further token   tokens for twice the price of one")
for name, seconds in (("the roofline", ideal), ("the matrix", matrix), ("the whole model", cost)):
    print(f"{name:<18} {slope(seconds):>26.2f} {for_twice(seconds):>35.1f}")

reading = 4 * n_weights / bandwidth
print(f"\nreading {4 * n_weights / 1e6:.0f} MB at {bandwidth / 1e9:.1f} GB/s: {reading * 1e3:.1f} ms, "
      f"{reading / cost[1]:.0%} of the model's {cost[1] * 1e3:.1f} ms for one token")  # fmt: skip
if not 0 <= max(slope(matrix), slope(cost)) < 1:
    print("A slope of 1 or more, or below 0: something else ran at the same time. Measure again.")


# %% [markdown]
# So state exactly what such a table shows. (No cell here asserts a time, because other load on the machine changes the
# figures; [10](10_measuring.ipynb) shows how to detect that.)
#
# - **Shown,** where the slopes above are well below 1: further tokens cost a fraction of the first. That fraction, the
#   *slope*, is all that speculative decoding needs. [03](03_acceptance_and_speedup.ipynb) computes with it: v(n) = 1 +
#   slope · (n − 1).
# - **Not shown:** a flat part. The second row already costs something: one row and several rows run different routines,
#   each routine uses the processor's caches and arithmetic units differently, and reading and computing overlap only in
#   part. On a processor, read the knee as *the point where the measurements take the slope of the dotted line*, and do
#   not expect everything left of it to be free. "Tokens for twice the price of one" needs no theory and can be compared
#   between machines; an ideal roofline gives 2 k\*.
# - **Not shown by the whole model:** that it waits for memory. If the last line above says far less than 100 %, most of
#   its time for one token went elsewhere: to starting operations, and to all the small work between them. Its table
#   could look much the same if memory were infinitely fast. A model of eight billion weights has some three times as
#   many layers to start, and three hundred times as many bytes to read (16 GB in bfloat16): there, reading the weights
#   dominates. The next section computes that case.

# %% [markdown]
# ## A GPU, from its data sheet
#
# Here are the same two numbers for GPUs, as their makers state them (dense bfloat16 with tensor cores, and memory
# bandwidth), and the shapes of two well-known models. Nothing is measured in this section: **the roofline is
# computed**. It is a bound that real kernels approach and never beat.

# %%
@dataclass(frozen=True)
class GPU:
    peak: float  # operations per second, dense bfloat16
    bandwidth: float  # bytes per second
    source: str


@dataclass(frozen=True)
class LLM:
    weights: float
    layers: int
    width: int  # of the residual stream: query heads × head size
    kv_width: int  # key–value heads × head size
    source: str


GPUS = {
    "RTX 4090": GPU(165.2e12, 1008e9, "NVIDIA Ada GPU Architecture whitepaper, appendix A, FP32 accumulate"),
    "A100 80GB SXM": GPU(312e12, 2039e9, "NVIDIA A100 Tensor Core GPU data sheet"),
    "H100 SXM": GPU(989.4e12, 3350e9, "NVIDIA H100 Tensor Core GPU data sheet, half of the figure with sparsity"),
}
LLMS = {
    "Llama 3.1 8B": LLM(8.03e9, 32, 4096, 1024, "its config.json on the Hugging Face Hub"),
    "Llama 3.1 70B": LLM(70.6e9, 80, 8192, 1024, "its config.json on the Hugging Face Hub"),
}


def forward_s(k, gpu, llm, batch=1, context=1000):
    """Return the roofline of a pass over k tokens of each of `batch` texts: seconds for memory, for arithmetic."""
    cache = batch * context * llm.layers * 2 * llm.kv_width * 2  # keys and values, 2 bytes each
    read = 2 * llm.weights + cache
    operations = batch * k * (2 * llm.weights + 4 * context * llm.layers * llm.width)  # weights, then attention
    return read / gpu.bandwidth, operations / gpu.peak


print("a pass over one token of Llama 3.1 8B, batch 1")
for name, gpu in GPUS.items():
    memory, arithmetic = forward_s(1, gpu, LLMS["Llama 3.1 8B"])
    print(
        f"  {name:<14} memory {memory * 1e3:5.2f} ms, arithmetic {arithmetic * 1e3:.3f} ms ({arithmetic / memory:.1%})"
    )
    print(
        f"  {'':<14} 2 bytes a weight, so the knee is at k* = peak / bandwidth = {gpu.peak / gpu.bandwidth:.0f} tokens"
    )
    assert arithmetic < 0.02 * memory
    assert 150 < gpu.peak / gpu.bandwidth < 300

# %% [markdown]
# When such a GPU writes one text, its arithmetic is busy for less than two per cent of a pass. Up to its knee, at some
# 150 to 300 tokens, drafts are verified nearly for free. (The processor above has its knee at a few tokens: the effect
# is the same, but smaller.)
#
# **Predict, before you move a slider:** a server on an H100 runs 64 sequences at once, each of 100 tokens. Are 4 drafts
# for each sequence still nearly free? And for 256 sequences? And when those sequences have grown to 30,000 tokens?

# %% tags=["drawing"] jupyter={"source_hidden": true}
INK, BLUE, BROWN, GREY = "#1F2328", "#1189EC", "#761706", "#8E9093"


def chart(gpu_name: str, llm_name: str, batch: int, context: int, k: int) -> str:
    """Plot the ms of a pass over 1 … 16 tokens per text: memory, arithmetic, the larger of both. Return SVG."""
    gpu, llm = GPUS[gpu_name], LLMS[llm_name]
    at = {n: forward_s(n, gpu, llm, batch, context) for n in range(1, 17)}
    top = max(max(pair) for pair in at.values()) * 1.08

    def x(n: float) -> float:
        return 60 + 500 * (n - 1) / 15

    def y(seconds: float) -> float:
        return 220 - 190 * seconds / top

    def path(pick, colour: str, width: int, dash: str = "") -> str:
        points = " ".join(f"{x(n):.1f},{y(pick(pair)):.1f}" for n, pair in at.items())
        return (f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{width}" '
                f'stroke-dasharray="{dash}"/>')  # fmt: skip

    def text(left: float, low: float, words: str, anchor: str = "middle", size: int = 12) -> str:
        return f'<text x="{left}" y="{low}" font-size="{size}" fill="{INK}" text-anchor="{anchor}">{words}</text>'

    here, one, knee_at = max(at[k]), max(at[1]), at[1][0] / at[1][1]
    bound = "memory" if at[k][0] >= at[k][1] else "arithmetic"
    parts = [path(lambda pair: pair[0], BLUE, 2, "7 4"), path(lambda pair: pair[1], BROWN, 2, "2 4"), path(max, INK, 3)]
    parts += [text(x(n), 238, str(n)) for n in range(1, 17)]
    parts += [text(54, y(top * f) + 4, f"{top * f * 1e3:.3g} ms", "end", 11) for f in (0, 0.5, 0.92)]
    legend = ((70, INK, "", "the pass"), (170, BLUE, "7 4", "memory"), (270, BROWN, "2 4", "arithmetic"))
    for left, colour, dash, words in legend:
        parts.append(f'<path d="M{left} 16h24" stroke="{colour}" stroke-width="3" stroke-dasharray="{dash}"/>')
        parts.append(text(left + 30, 20, words, "start"))
    parts.append(f'<circle cx="{x(k):.1f}" cy="{y(here):.1f}" r="6" fill="white" stroke="{INK}" stroke-width="3"/>')
    setting = f"{gpu_name}, {llm_name}, {batch} texts of {context:,} tokens"
    cost = f"{k} tokens each cost {here / one:.2f} × one token each ({here * 1e3:.1f} ms, bound by {bound})"
    parts.append(text(310, 256, "tokens in the pass, for each text"))
    parts.append(text(310, 276, f"{setting}: knee at {knee_at:.1f} tokens each") + text(310, 294, cost, size=14))
    return (
        '<svg viewBox="0 0 580 300" width="680" role="img" aria-label="milliseconds of a pass by its tokens" '
        f'style="background:white;max-width:100%">{"".join(parts)}</svg>'
    )


# %%
controls = {
    "gpu_name": ui.Dropdown(options=list(GPUS), value="H100 SXM", description="GPU"),
    "llm_name": ui.Dropdown(options=list(LLMS), description="model"),
    "batch": ui.SelectionSlider(options=[1, 2, 4, 8, 16, 32, 64, 128, 256], value=64, description="texts"),
    "context": ui.SelectionSlider(options=[100, 1000, 3000, 10_000, 30_000, 100_000], value=100, description="context"),
    "k": ui.IntSlider(5, min=1, max=16, description="tokens k"),
}
board = ui.HTML()


def redraw(*_):
    board.value = chart(**{name: control.value for name, control in controls.items()})


for control in controls.values():
    control.observe(redraw, "value")
redraw()
board.snapshot = lambda: board.value  # shown to a reader without a kernel
w.show(*controls.values(), board)

# %%
h100, llama = GPUS["H100 SXM"], LLMS["Llama 3.1 8B"]
print("4 drafts for each text on an H100, against plain decoding (roofline)")
for batch, context in ((1, 1000), (64, 100), (256, 100), (256, 1000), (256, 30_000)):
    plain, checked = max(forward_s(1, h100, llama, batch, context)), max(forward_s(5, h100, llama, batch, context))
    print(f"  {batch:>3} texts of {context:>6,} tokens: {checked / plain:.2f} × the time of one token each")
assert max(forward_s(5, h100, llama)) == max(forward_s(1, h100, llama))  # one text: free
assert max(forward_s(5, h100, llama, 256, 100)) > 3 * max(forward_s(1, h100, llama, 256, 100))  # drafts cost time
assert max(forward_s(5, h100, llama, 256, 30_000)) == max(forward_s(1, h100, llama, 256, 30_000))  # free again

# %% [markdown]
# A batch fills the idle arithmetic with other sequences. With 256 short texts the pass is beyond its knee, and drafts
# cost time. Long texts move the pass back below the knee: each text has its own KV cache, which is read once per pass
# for all k tokens, so that memory is the bottleneck again. (Exercise 3 asks whether 256 KV caches of 30,000 tokens
# *fit* into memory.)
#
# ## The cost of verification in the engine
#
# Now return to a machine that we can measure. Every round of a run records its verification time. A draft of K tokens
# is verified in a pass over K + 1 tokens: the last token of the text, which the target has not read yet, and the
# drafts. **Predict:** the engine starts fewer operations than the Hugging Face model above and multiplies by the same
# weights. How much does its pass over *eight* tokens cost, if the Hugging Face model's pass over *one* costs 1?

# %%
if not SERVER:  # no drafter for the target: use its first layers
    DRAFTER = drafter_for(TARGET, DRAFTER)
wb = Workbench(SERVER, target=TARGET or "text-target", drafter=DRAFTER, device=DEVICE)
PROMPT = "<|user|>Write a story about Mia and Tom. Put a red kite in it.<|assistant|>" if TARGET is None else text
verify = {}
for depth in (0, 1, 3, 7, 15):
    method = {"method": "draft-model", "params": {"depth": depth}} if depth else {"method": "autoregressive"}
    trace = wb.generate(PROMPT, max_new_tokens=48, **method)
    full = [r.verify_s for r in trace.rounds[1:] if len(r.nodes) == depth]
    if full:  # a text that ends at once has no such round
        verify[depth + 1] = min(full)
print("tokens in the pass   least ms of verification   against 1 token")
for k, seconds in verify.items():
    print(f"{k:>12} {seconds * 1e3:>23.2f} {seconds / verify.get(1, seconds):>23.1f}")
if {1, 8} <= set(verify):
    print(f"\none token: {verify[1] * 1e3:.1f} ms here, {cost[1] * 1e3:.1f} ms for the Hugging Face model above")
    here, there = verify[8] / verify[1], verify[8] / cost[1]
    print(f"eight tokens here: {here:.2f} × one token here, {there:.2f} × one token there")
    print(f"slope of the engine: {slope(verify):.2f}")
w.app_link(trace, base=SERVER)

# %% [markdown]
# The second figure in the line about eight tokens is not a gain from speculative decoding. A slope is relative to the
# first token: if the first token is slower, every further one looks cheaper. Measured against a slow plain step, eight
# tokens may even seem to cost as much as one. So a reported speed-up must name the plain decoding that it compares
# with; here that is always the engine's own.

# %% [markdown]
# ## Exercises
#
# **1. Four-bit weights.** With half a byte per weight (and arithmetic still in bfloat16), where is the knee of an H100?
# Do drafts pay more or less with a quantised model?

# %% tags=["answer"]
my_knee = None  # tokens


# %% tags=["check"]
@w.check
def four_bits(knee_at):
    """Compare with the knee of an H100 for half a byte per weight."""
    reading_s, computing_s = 0.5 / h100.bandwidth, 2 / h100.peak  # for one weight: read once, used for each token
    assert abs(knee_at - reading_s / computing_s) < 1, (
        "at the knee, reading a weight takes as long as computing with it"
    )


four_bits(my_knee)

# %% tags=["solution"] jupyter={"source_hidden": true}
# Bytes per weight b: b·N/bandwidth = 2·k·N/peak, so k* = b · peak / (2 · bandwidth).
for bits in (16, 8, 4):
    print(f"{bits:>2} bits: k* = {bits / 8 * h100.peak / (2 * h100.bandwidth):.0f} tokens")
# There is less room (a quarter of the tokens), but at batch 1 still far more than any draft needs.
assert 0.5 * h100.peak / (2 * h100.bandwidth) > 50
assert four_bits(0.5 * h100.peak / (2 * h100.bandwidth)).right
assert not four_bits(
    4 * h100.peak / h100.bandwidth
).right  # the wrong direction: smaller weights move the knee to the left

# %% [markdown]
# **2. How many texts?** From which batch size on does verifying 4 drafts cost at least 1.5 times as much as a plain
# pass? Answer for each GPU, with the 8B model and texts of 1,000 tokens.

# %% tags=["answer"]
my_batches = None  # {"RTX 4090": …, "A100 80GB SXM": …, "H100 SXM": …}


# %% tags=["check"]
@w.check
def how_many_texts(batches):
    """Check that 4 drafts cost at least 1.5 times a plain pass at this batch size, and less with one text fewer."""
    for name, gpu in GPUS.items():
        ratio = [
            max(forward_s(5, gpu, llama, b)) / max(forward_s(1, gpu, llama, b))
            for b in (batches[name] - 1, batches[name])
        ]
        assert ratio[0] < 1.5 <= ratio[1], f"{name}: {ratio[0]:.2f} × with one text fewer, {ratio[1]:.2f} × with these"


how_many_texts(my_batches)


# %% tags=["solution"] jupyter={"source_hidden": true}
def first_batch(gpu, context=1000):
    """Return the smallest batch size at which five tokens cost 1.5 times as much as one."""
    return next(
        b
        for b in range(2, 2000)
        if max(forward_s(5, gpu, llama, b, context)) >= 1.5 * max(forward_s(1, gpu, llama, b, context))
    )


solved = {name: first_batch(gpu) for name, gpu in GPUS.items()}
print(solved)
assert how_many_texts(solved).right
assert not how_many_texts({name: first_batch(gpu, context=0) for name, gpu in GPUS.items()}).right  # without caches

# %% [markdown]
# **3. The cache counts, too.** At which context length is one text's KV cache as large as the weights of the 8B model
# (two bytes per number)? Do 256 texts of 30,000 tokens fit into 80 GB?

# %% tags=["answer"]
my_context, my_fits = None, None  # tokens; True or False


# %% tags=["check"]
@w.check
def cache_counts(context, fits):
    """Check the context length in tokens, and whether 256 long texts fit."""
    numbers = 2 * llama.layers * llama.kv_width  # a key and a value, in each layer, for each token
    assert 0.99 < context * numbers / llama.weights < 1.01, "keys *and* values, in every layer"
    assert fits == (256 * 30_000 * 2 * numbers < 80e9)


cache_counts(my_context, my_fits)

# %% tags=["solution"] jupyter={"source_hidden": true}
per_token = llama.layers * 2 * llama.kv_width * 2
print(f"{per_token / 1024:.0f} KiB per token: as large as the weights at {2 * llama.weights / per_token:,.0f} tokens")
print(f"256 texts of 30,000 tokens: {256 * 30_000 * per_token / 1e9:,.0f} GB of cache")
assert 256 * 30_000 * per_token > 80e9  # far too large: servers reach this limit before the knee
assert cache_counts(2 * llama.weights / per_token, False).right
assert not cache_counts(4 * llama.weights / per_token, False).right  # keys without values

# %% [markdown]
# ## Close this page and answer
#
# 1. Why can a target read eight tokens in one pass, though it cannot write them in one?
# 2. Which two speeds of a machine give the knee? How does it move when weights take half the bytes?
# 3. Why do drafts cost almost nothing for one text on an H100, and much for 256?
# 4. A pass over 8 tokens takes 1.5 times as long as one over 1. Why does that alone not prove that decoding waits for
#    memory? What would you measure to find out?
#
# So there is room for drafts. [02](02_rejection_sampling.ipynb) derives which drafts may be accepted without changing
# the distribution of the text, and [03](03_acceptance_and_speedup.ipynb) how many are accepted.
#
# ## References
#
# - Williams, Waterman, Patterson 2009, *Roofline: an insightful visual performance model for multicore architectures*,
#   Communications of the ACM 52(4).
# - Pope et al. 2022, *Efficiently scaling transformer inference*, arXiv:2211.05102, §2: the cost of a decoding step.
# - Leviathan, Kalman, Matias 2023, arXiv:2211.17192, §1 and §3.4: idle arithmetic, and operations against memory.
# - NVIDIA: A100 and H100 data sheets; Ada GPU Architecture whitepaper, appendix A.

# %%
wb.close()
