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
# # 10 · Measuring honestly
#
# **You will be able to**
#
# - distinguish exact figures from timed ones, and warm up before you time anything;
# - show how the *order* of measurements can produce false speed-ups, and interleave to prevent that;
# - give a paired ratio with an interval that really covers the truth in 95 % of experiments, and measure the cost of
#   watching a run.
#
# **You need**: rounds (notebook 00) and speed-up (03). No statistics beyond mean and median.
#
# This notebook has one rule: **where we need the true value, we set it ourselves.** Two lanes that run the *same*
# method have a true speed-up of 1, and a simulated machine slows down exactly as we define. Then a wrong procedure
# shows.

# %% tags=["parameters"]
import os

FAST = os.environ.get("WORKBENCH_FAST", "1") == "1"
TARGET = None  # a Hub id or a folder; None: the bundled model
DRAFTER = None
DEVICE = "cpu"
SERVER = None  # "http://localhost:7860" shares the app's backend

# %%
import json
import statistics
import subprocess
import sys
import threading
import time

import numpy as np
import plotly.graph_objects as go
from transformers.utils.logging import disable_progress_bar

from workbench import Workbench
from workbench import widgets as w
from workbench.bench.statistics import mean, speedup_of, speedups
from workbench.models.truncated_drafter import drafter_for
from workbench.trace import speedup
from workbench.trace.metrics import summary

disable_progress_bar()

# %%
began = time.perf_counter()
if SERVER:
    wb = Workbench(SERVER)
else:  # no drafter for the target: use its first layers
    DRAFTER = drafter_for(TARGET, DRAFTER)
    wb = Workbench(target=TARGET or "text-target", drafter=DRAFTER, device=DEVICE)
PROMPT = "<|user|>Write a story about Mia and Tom. Put a red kite in it.<|assistant|>"
TOKENS = 32 if FAST else 96


def timed(method="draft-model", prompt=PROMPT, tokens=TOKENS):
    """Return (seconds of the whole call, trace)."""
    start = time.perf_counter()
    trace = wb.generate(prompt, method, max_new_tokens=tokens)
    return time.perf_counter() - start, trace


# %% [markdown]
# ## 1 · Counts do not need a stopwatch
#
# **Predict.** The same greedy run is repeated eight times. Which figures differ from run to run: the text, τ, the
# acceptance rate, seconds? And which of the eight runs is slowest?

# %%
runs = [timed() for _ in range(8)]
for number, (seconds, trace) in enumerate(runs):
    figures = summary(trace)
    print(f"run {number}: {1e3 * seconds:7.1f} ms   τ {figures['tau']:.3f}   {figures['accepted']}/{figures['tested']}")
assert len({trace.text for _, trace in runs}) == 1
assert len({summary(trace)["tau"] for _, trace in runs}) == 1
rest = statistics.median(seconds for seconds, _ in runs[2:])
print(f"the first run took {runs[0][0] / rest:.1f} times the median of the last six")

# %% [markdown]
# Text, τ and acceptance rate are **exact**: they follow from models, prompt and seed, under any load and on any
# machine, except where rounding breaks ties differently. Report them first: they can be reproduced. Seconds are a
# *sample* of this machine's behaviour at that moment. The first run also read the models from disk and filled caches:
# discard two or three runs before you time anything.
#
# ## 2 · The order of runs can produce false speed-ups
#
# Many benchmarks run all of A, then all of B. Meanwhile the machine warms up, throttles or gets busy. Here a simulated
# machine becomes 50 % slower while we measure. A and B are *the same program*, so their true ratio is 1.
#
# **Predict.** Which speed-up of A over B does "20 × A, then 20 × B" report? And "A, B, A, B, …"?

# %%
rng = np.random.default_rng(0)
N = 20


def machine(order):
    """Return the seconds of each run: each is 1 s of work on a machine that slows down, with 3 % noise."""
    drift = 1 + 0.5 * np.arange(len(order)) / len(order)
    return drift * rng.lognormal(0, 0.03, len(order))


def ratio_of(order, seconds):
    """Return the apparent speed-up of A: seconds of the n-th B over the n-th A, median over n."""
    order = np.array(list(order))
    return np.median(seconds[order == "B"] / seconds[order == "A"])


blocked, interleaved = "A" * N + "B" * N, "AB" * N
t_blocked, t_interleaved = machine(blocked), machine(interleaved)
print(f"all A, then all B: A seems {ratio_of(blocked, t_blocked):.2f} times as fast as B")
print(f"interleaved:       A seems {ratio_of(interleaved, t_interleaved):.2f} times as fast as B")
assert ratio_of(blocked, t_blocked) > 1.12
assert abs(ratio_of(interleaved, t_interleaved) - 1) < 0.06

# %%
figure = go.Figure(layout={
    "title": "The same program twice, on a machine that slows down", "xaxis_title": "number of the run",
    "yaxis": {"title": "seconds", "rangemode": "tozero"}, "height": 340,
})  # fmt: skip
for name, order, seconds in (("blocked", blocked, t_blocked), ("interleaved", interleaved, t_interleaved)):
    for lane, symbol in (("A", "circle"), ("B", "x")):
        x = [i for i, which in enumerate(order) if which == lane]
        figure.add_scatter(
            x=x, y=(seconds if name == "blocked" else seconds + 2)[x], mode="markers", marker={"symbol": symbol},
            name=f"{lane}, {name}" + ("" if name == "blocked" else " (2 s higher)"),
        )  # fmt: skip
w.figure(figure)

# %% [markdown]
# Now do the same on the real machine: A and B are both `draft-model`. Half way through, other programs start to use the
# processor, as often happens. (The result depends on your machine and is printed, not asserted: with many idle cores
# the load may have no effect.)

# %%
HALF = 4 if FAST else 12
BURN = "import time; end = time.time() + 60\nwhile time.time() < end: sum(range(10000))"


def under_rising_load(order):
    """Return the seconds of runs in this order; a load on all cores starts in the middle."""
    seconds, load = [], []
    try:
        for i, _ in enumerate(order):
            if i == len(order) // 2:
                count = min(os.cpu_count() or 1, 8)
                load = [subprocess.Popen([sys.executable, "-c", BURN]) for _ in range(count)]
            seconds.append(timed()[0])
    finally:
        for process in load:
            process.kill()
            process.wait()
    return np.array(seconds)


for name, order in (("all A, then all B", "A" * HALF + "B" * HALF), ("interleaved", ("ABBA" * HALF)[: 2 * HALF])):
    seconds = under_rising_load(order)
    print(f"{name:18}: A seems {ratio_of(order, seconds):.2f} times as fast as B")
    print("  ms:", " ".join(f"{which} {1e3 * s:.0f}" for which, s in zip(order, seconds, strict=True)))

# %% [markdown]
# `wb.compare` and `workbench bench` interleave prompt by prompt, rotate the order, discard the first runs, and run only
# one method at a time on the device. Note that we divided *neighbours*: the n-th B by the n-th A. If we divided the
# median of all B by the median of all A instead, each lane would have fast and slow runs, and chance would decide which
# of them is the median.
#
# ## 3 · Pair runs on the same prompt
#
# Some prompts are faster than others. If both methods run on the same prompts, divide *within* each prompt, and that
# variation cancels. Here B is exactly 10 % faster than A; prompts differ by far more than that.
#
# **Predict.** With 12 prompts: how much narrower is the 95 % interval of the *paired* ratio: a little, twice, or five
# times?

# %%
TRUE = 1.10
speeds = rng.lognormal(5, 0.4, 12)  # tokens/s of A on 12 prompts
a, b = speeds * rng.lognormal(0, 0.02, 12), TRUE * speeds * rng.lognormal(0, 0.02, 12)


def unpaired(a, b, n=2000):
    """Return the 95 % bootstrap interval of mean(b) / mean(a), with independently drawn prompts."""
    picks = rng.integers(0, len(a), (2, n, len(a)))
    return np.percentile(b[picks[1]].mean(1) / a[picks[0]].mean(1), [2.5, 97.5])


paired = mean((b / a).tolist())
wide, narrow = np.diff(unpaired(a, b))[0], paired["high"] - paired["low"]
print(f"unpaired: {np.round(unpaired(a, b), 2)}, width {wide:.2f}")
print(f"paired:   [{paired['low']:.2f} {paired['high']:.2f}], width {narrow:.2f}: {wide / narrow:.0f} times narrower")
assert wide > 4 * narrow
assert unpaired(a, b)[0] < 1 < paired["low"], "only the paired interval shows that B is faster"

# %% [markdown]
# It is far more than five times narrower when prompts differ so much. Now a real comparison: three prompts, two methods
# and plain decoding, interleaved and paired by the workbench.

# %%
PROMPTS = [
    PROMPT,
    "<|user|>Repeat this text three times:\nThe little fox found a red kite<|assistant|>",
    "<|user|>Write a story about Ben and Lucy. Put a big dog in it.<|assistant|>",
]
made = wb.compare(PROMPTS, ["draft-model", "prompt-lookup"], max_new_tokens=TOKENS, repeats=2 if FAST else 5)
for lane in made.lanes:
    if lane is not made.reference:
        ratios = speedups(lane, made.reference)
        listed = [round(ratio, 2) for ratio in ratios]
        print(f"{lane.name:14} by prompt and repetition: {listed}  {speedup_of(lane, made.reference).sentence}")
w.lane([lane.traces[0] for lane in made.lanes], names=[lane.name for lane in made.lanes])

# %% [markdown]
# Read the list before the figure after it: on a quiet machine repetitions of a prompt agree, and different prompts do
# not. "The speed-up" of a method is a statement about a *set of prompts*; report it with the set, and with an interval.
# The figure is a geometric mean: ratios of 2 and ½ cancel, and the ratio of A to B is the reciprocal of the ratio of B
# to A. Arithmetic means and medians do not have these properties.
#
# ## 4 · An interval that covers the truth in 95 %
#
# A 95 % interval should cover the truth in 95 of 100 experiments. We can count this, because we set the truth.
#
# **Predict** the coverage of the bootstrap interval for (1) 3 prompts, (2) 40 prompts, (3) 4 prompts measured 10 times
# each and pooled as "n = 40".

# %%
trials = 150 if FAST else 1000


def ratios_of(prompts, repeats):
    """Draw speed-ups with a true mean of 2; prompts differ by 0.5, repetitions by 0.05. Return one list."""
    return (2 + rng.normal(0, 0.5, (prompts, 1)) + rng.normal(0, 0.05, (prompts, repeats))).ravel().tolist()


def covers(found):
    """Return whether an interval contains the truth."""
    return found["low"] <= 2 <= found["high"]


coverage = {
    name: np.mean([covers(mean(ratios_of(prompts, repeats))) for _ in range(trials)])
    for name, (prompts, repeats) in {"3 prompts": (3, 1), "40 prompts": (40, 1), "4 prompts × 10": (4, 10)}.items()
}
for name, value in coverage.items():
    print(f"{name:15} the “95 %” interval covers the truth in {value:.0%} of {trials} experiments")
assert coverage["40 prompts"] > 0.85
assert coverage["3 prompts"] < coverage["40 prompts"]
assert coverage["4 prompts × 10"] < 0.75, "repetitions are not prompts"


# %% [markdown]
# With few prompts the bootstrap interval is too narrow, without any warning. Repeating a prompt makes *its* time more
# certain but gives no information about other prompts. So count each prompt once, and use an interval that accounts for
# their small number. The workbench uses Student's t interval on the logarithms of the ratios everywhere
# (`workbench.trace.speedup`):

# %%
def by_prompt(prompts, repeats):
    """Draw the same experiments, with the repetitions of each prompt as one group."""
    return dict(enumerate(np.reshape(ratios_of(prompts, repeats), (prompts, repeats)).clip(0.1).tolist()))


kept = {
    name: np.mean([(found := speedup.estimate(by_prompt(*size))).low <= 2 <= found.high for _ in range(trials)])
    for name, size in {"3 prompts": (3, 1), "4 prompts × 10": (4, 10)}.items()
}
for name, value in kept.items():
    print(f"{name:15} Student's interval over prompts covers the truth in {value:.0%}")
assert min(kept.values()) > 0.85

# %% [markdown]
# ## 5 · On a GPU, wait for the answer
#
# A GPU works asynchronously: the call returns when the work is *queued*. If you stop the clock then, everything looks
# fast. Here is the same mistake, with a thread instead of the GPU:

# %%
from concurrent.futures import ThreadPoolExecutor

with ThreadPoolExecutor(1) as device:
    start = time.perf_counter()
    work = device.submit(time.sleep, 0.05)  # "launch a kernel"
    launched = time.perf_counter() - start
    work.result()  # torch.cuda.synchronize()
    finished = time.perf_counter() - start
print(f"clock stopped at the launch: {1e3 * launched:.2f} ms; after waiting: {1e3 * finished:.2f} ms")
assert launched < finished
assert finished >= 0.049

# %% [markdown]
# The workbench's traces contain times from the device's own clock, and a round's time ends when its tokens have
# arrived. The parts must sum to the whole, which you can check on any trace:

# %%
for _, trace in runs[2:]:
    for r in trace.rounds:
        assert abs(r.seconds - (r.draft_s + r.verify_s + r.overhead_s)) < 1e-3 + 0.05 * r.seconds
figures = summary(runs[-1][1])
parts = figures["draft_seconds"], figures["verify_seconds"], figures["overhead_share"] * figures["seconds"]
print("one run, ms: draft {:.1f} + verify {:.1f} + everything else {:.1f}".format(*(1e3 * x for x in parts)))
print(f"          of {1e3 * figures['seconds']:.1f} in rounds")


# %% [markdown]
# ## 6 · What does watching cost?
#
# A page or a notebook that follows a run asks for new rounds some 15 times a second, and that takes time from the run.
# How much? Measure it with the methods above: the same run, watched and unwatched, interleaved in ABBA order, paired,
# with an interval.
#
# **Predict.** Is it below 3 %, or above?

# %%
def decode_seconds(watched):
    """Return the seconds in rounds of one run; if watched, a thread polls it 15 times a second and makes JSON."""
    run = wb.start(PROMPT, "draft-model", max_new_tokens=TOKENS * 2)
    stop = threading.Event()

    def watch():
        known = 0
        while not stop.wait(1 / 15):
            news = run.since(known)
            known += len(news.get("rounds", []))
            json.dumps(news, default=str)

    watcher = threading.Thread(target=watch, daemon=True)
    if watched:
        watcher.start()
    trace = run.wait()
    stop.set()
    return sum(r.seconds for r in trace.rounds)


pairs = []
for i in range(8 if FAST else 40):
    order = (False, True) if i % 2 else (True, False)
    seconds = {watched: decode_seconds(watched) for watched in order}
    pairs.append(seconds[True] / seconds[False])
found = mean(pairs)
low, high = found["low"], found["high"]
print(f"watched / unwatched: {found['value'] - 1:+.1%} [{low - 1:+.1%}, {high - 1:+.1%}], {found['n']} pairs")
if high < 1.03:
    print("Below 3 %, within the precision of this sample.")
elif low <= 1.03:
    print("Undecided: the machine's noise is larger than the effect. Use more pairs, or a quiet machine.")
else:
    print("Above 3 % in this sample. First check whether other load on the machine is the cause.")

# %% [markdown]
# Note that the code does *not* assert that the cost is small. A test on wall time fails on a busy machine, and people
# learn to ignore failing tests. Counts are asserted; times are reported with their interval.

# %% [markdown]
# ## 7 · The same on a real model
#
# All these runs were short runs of a very small model. SmolLM2 (135 million parameters) answers questions; the README
# has the command that installs it. The cell runs three lanes in turn on each model: A and A′ are both plain decoding,
# so their true ratio is 1; B is prompt lookup. Each ratio divides neighbouring runs.
#
# **Predict.** On which model are the times of A and A′ more similar? And B's gain in *passes* is exact: on which model
# is the gain in time nearer to it?

# %%
from workbench.core.errors import WorkbenchError

LANES = {"A": "autoregressive", "A′": "autoregressive", "B": "prompt-lookup"}
COPY = ("red kite, blue boat, " * 4).strip()  # text that is easy to continue and to copy


def in_turn(bench, target):
    """Return the seconds in rounds of each lane, in turn and in rotated order, and the last trace of each."""
    again = {"target": target, "max_new_tokens": 8 if FAST else 64}
    seconds, last = {lane: [] for lane in LANES}, {}
    bench.generate(COPY, LANES["B"], **again)  # discarded: reads the weights
    for i in range(3 if FAST else 12):
        for lane in [*LANES][i % 3 :] + [*LANES][: i % 3]:
            last[lane] = bench.generate(COPY, LANES[lane], **again)
            seconds[lane].append(sum(r.seconds for r in last[lane].rounds))
    return seconds, last


def tell(bench, target):
    """Measure the three lanes on one target and print the results."""
    seconds, last = in_turn(bench, target)
    busy = sum(r.verify_s for r in last["A"].rounds) / sum(r.seconds for r in last["A"].rounds)
    print(f"{target}: A takes {1e3 * statistics.median(seconds['A']):.0f} ms, {busy:.0%} of it in the target's passes")
    for lane in ("A′", "B"):
        ratios = [a / other for a, other in zip(seconds["A"], seconds[lane], strict=True)]
        found = mean(ratios)
        passes = len(last["A"].rounds) / len(last[lane].rounds)
        print(f"  A / {lane:2}: {found['value']:.2f} [{found['low']:.2f}, {found['high']:.2f}] by the clock, "
              f"{passes:.2f} in passes   {[round(ratio, 2) for ratio in ratios]}")  # fmt: skip


if TARGET is None and "smollm2" in {entry["name"] for entry in wb.targets()}:
    tell(wb, "text-target")
    real = Workbench(SERVER) if SERVER else Workbench(target="smollm2", device=DEVICE, dtype="bfloat16")
    try:
        tell(real, "smollm2")
    except WorkbenchError as problem:  # it is unpacked at first use, which takes disk space
        print(problem)
    real.close()
else:
    print("SmolLM2 is not installed or not requested: `workbench models` shows how to get it.")

# %% [markdown]
# The models differ in the length of a run and in its parts. An interruption of a given length is a larger share of a
# short run, so the small model's ratios vary more under the same disturbance. And a larger share of the real model's
# time is passes, so saving passes saves time. If A and A′ differ as much as A and B, these few runs say nothing about
# B: that is why a lane is compared with itself.
#
# The app's Compare page does the same as `wb.compare`. This link opens the last run there, for comparison with others:

# %%
w.app_link(runs[-1][1])

# %% [markdown]
# ## Exercises
#
# **1.** "A, B, A, B" is better than blocks, but on a machine that slows down steadily B always runs a little later.
# Compute, without noise, the ratio of mean times (B over A) of eight runs in the order ABABABAB, and in ABBAABBA, when
# the n-th run (n = 0 … 7) takes 1 + n/8 seconds.

# %% tags=["answer"]
my_orders = None  # (for ABABABAB, for ABBAABBA)


# %% tags=["check"]
@w.check
def drift(ratios):
    """Compare with the ratio of the mean times."""
    for found, order in zip(ratios, ("ABABABAB", "ABBAABBA"), strict=True):
        b, a = (sum(1 + n / 8 for n in range(8) if order[n] == lane) / 4 for lane in "BA")
        assert abs(found - b / a) < 0.005, f"{order}: B takes {b:.3f} s on average, A {a:.3f} s"


drift(my_orders)

# %% tags=["solution"] jupyter={"source_hidden": true}
for order in ("AB" * 4, "ABBA" * 2):
    clock = 1 + np.arange(len(order)) / len(order)  # linear, no noise
    which = np.array(list(order))
    print(order, f"mean of B / mean of A = {clock[which == 'B'].mean() / clock[which == 'A'].mean():.4f}")
assert drift((1.5 / 1.375, 1.0)).right
assert not drift((1.0, 1.0)).right  # as if interleaving were enough
abba = np.array(list("ABBA" * 2))
assert np.isclose(clock[abba == "A"].mean(), clock[abba == "B"].mean()), "ABBA cancels a linear drift exactly"


# %% [markdown]
# **2.** One of ten runs was interrupted and took ten times as long. How do the mean and the median of the ten differ?
# Which would you report, and what else must you report?

# %% tags=["answer"]
def my_typical(seconds):
    """Return one figure for the usual time of a run, from a list of seconds."""
    raise NotImplementedError  # yours


# %% tags=["check"]
@w.check
def typical_run(figure_of):
    """Check that a pause in any one of ten runs changes the figure little."""
    for hit in range(10):
        ten = [1.0, 1.02, 0.98, 1.01, 0.99, 1.0, 1.03, 0.97, 1.0, 1.01]
        ten[hit] = 10.0
        assert abs(figure_of(list(ten)) - 1) < 0.02, f"{figure_of(list(ten)):.2f} s, where nine of ten took about 1 s"


typical_run(my_typical)

# %% tags=["solution"] jupyter={"source_hidden": true}
times = [1.0, 1.02, 0.98, 1.01, 0.99, 1.0, 1.03, 0.97, 1.0, 10.0]
print(f"mean {statistics.mean(times):.2f}, median {statistics.median(times):.2f}, worst {max(times):.1f}")
assert statistics.median(times) < 1.05 < statistics.mean(times)
assert typical_run(statistics.median).right
assert not typical_run(statistics.mean).right
# The median is the usual time. Report quartiles, n and the worst case with it, since users experience pauses too.

# %% [markdown]
# **3.** How many prompts do you need to detect a speed-up of 5 %, if paired ratios vary from prompt to prompt with a
# standard deviation of 0.3? Guess first, then compute: the interval's half width is about 2 · sd / √n.

# %% tags=["answer"]
my_prompts = None  # how many


# %% tags=["check"]
@w.check
def how_many(prompts):
    """Check that the half width is 0.05 or just below."""
    assert 2 * 0.3 / prompts**0.5 <= 0.0501, f"with {prompts} the half width is {2 * 0.3 / prompts**0.5:.3f}"
    assert prompts <= 160, "fewer are enough"


how_many(my_prompts)

# %% tags=["solution"] jupyter={"source_hidden": true}
needed = int(np.ceil((2 * 0.3 / 0.05) ** 2))
print(f"about {needed} prompts; for 20 % it would be {int(np.ceil((2 * 0.3 / 0.20) ** 2))}")
assert needed == 144
assert how_many(144).right
assert not how_many(36).right  # one standard error instead of two
# Most published differences of a few per cent use fewer prompts than that.

# %% [markdown]
# ## Close this page and answer
#
# 1. Which figures of a run need no stopwatch? Why are they reported first?
# 2. All of A, then all of B: what can produce a false speed-up, and which order cancels a steady drift?
# 3. Why are ratios computed within a prompt before averaging, and why is the mean of ratios geometric?
# 4. Forty measurements of four prompts. How many independent ones are there for "the speed-up of this method"?
#
# ## Where to read on
#
# - `workbench bench --compare OLD NEW` lists the differences between two saved reports that exceed noise.
# - Xia et al. 2024, *Spec-Bench*, arXiv:2401.07851: one harness, one machine, many methods.
# - Efron and Tibshirani 1993, *An Introduction to the Bootstrap*, chapter 13: percentile intervals, and when they fail.

# %%
print(f"this notebook ran for {time.perf_counter() - began:.0f} s")
wb.close()
