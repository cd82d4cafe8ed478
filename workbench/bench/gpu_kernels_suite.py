"""Measure kernels, forward passes and rounds on a GPU in one run of eight minutes (`bench --suite gpu-kernels`).

The report is one JSON object; after each block its file is written again. All times are medians with quartiles
(`_q25`, `_q75`) over `n` values; inputs and weights are random, never zeros. Keys, units in their names:

- `block` of an entry: the block that measured it. `complete`: whether the run reached its end. `settings`: `toy`,
  `dtype`, `shapes`, device.
- `blocks[]`: `block`, `status` (done, cut by the time limit, failed, skipped), `s` (duration), `box_s` (time limit),
  `date`. `skipped[]`: `block`, `why`; also failed blocks, with their error, and measurements that do not exist yet.
- `machine`: facts of `machine_facts`, versions, clocks; `interpreted`: the kernels ran in Triton's interpreter, whose
  times say nothing about speed. `rates`: `copy_bytes_per_s` (reads and writes of a large copy), `read_bytes_per_s` (a
  sum), `matmul_flops_per_s` and its `matmul_dtype`. All shares `share_copy` are of the copy rate.
- `compile`: `kernels`, `processes`, `compiled`, `wall_s`, `slowest_s`.
- `exact[]`: `kernel`, `dtype`, `tokens`, `rel_err` (largest error against float64, as a share of the largest value;
  null: not finite), `has_nan` (the kernel left an output unwritten), `bits_equal` (token 0 as in a pass of its own),
  `same_again` (a second launch gives the same bits).
- `gaps`: µs of an empty kernel: `in_graph`, `launched_one_by_one`, `host` (time of the host), and `graph_launch_host`
  for the whole graph; `launches` in each measurement.
- `gemv[]`: one weight kernel: `model`, `kernel`, `shape` [rows, inputs], `tokens`, `tile`, `is_default`, `copies` of
  the weights in turn (beyond the L2 cache), `us` per launch in a CUDA graph, gaps included, `share_copy`.
- `passes[]`: one forward pass of the target, LM head included: `model`, `layers` (own or Triton), `batch`, `tokens`
  per sequence, `context`, `replayed` (as a CUDA graph), `ms` on the device, `host_ms`, `bytes` (weights and KV
  cache), `share_copy`, `predicted_ms` (see `gpu_pass_blocks.GRAPH_KERNEL_S`), `logits_error` and `logits_difference`
  (largest difference from the model's own layers, as a share of the largest logit and as it is).
- `rounds[]`: steps of the engine, trace on: `model`, `method`, `temperature`, `batch`, `context` (tokens of the
  prompt), `loop` (host: the host waits for each round), `layers`, `ms` per step by wall time, `host_ms` (outside all
  forward passes), `tau`, `tokens_per_s` (mean tokens of a step over its median time, all sequences), `share_copy`
  (plain decoding: weights alone), `of_batch_1` (tokens/s over batch × those of one sequence); for methods also
  `drafter`, `agreement`, `draft_length`, `c` (bytes of a draft step over bytes of a target pass), `speedup` over
  plain decoding at the same temperature, `s_over_tau`, `closed_form` 1 / (1 + draft_length · c), `of_closed_form`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from workbench.bench import gpu_kernel_blocks, gpu_pass_blocks
from workbench.bench.damped_targets import SHAPES, Shape
from workbench.bench.markdown import markdown_table
from workbench.bench.timed_blocks import Block, BlockRun, keep_finished, run_blocks
from workbench.models.machine import machine_facts

SUITE = "gpu-kernels"
TIME_LIMIT_S = 480.0
TOY = Shape("toy", hidden=64, inner=96, layers=2, heads=2, kv_heads=1, vocabulary=96, draft_layers=1)
PASS_SIZES = (
    (1, 1, 256), (1, 6, 256), (1, 60, 256), (1, 1, 1000), (8, 1, 256), (8, 1, 1000), (64, 1, 256), (64, 1, 1000),
)  # fmt: skip
"""Sizes of the measured forward passes: (number of sequences, new tokens per sequence, tokens in the KV cache)."""
TOY_PASS_SIZES = ((1, 1, 20), (2, 3, 20))
BATCHES, CONTEXTS = (1, 8, 64), (256, 1000)
NOT_BUILT = {
    "device-resident rounds of other methods": "implemented for plain decoding, draft models and Medusa's heads only",
    "programmatic dependent launch": "not implemented yet: no kernel lets the next kernel start early",
    "five kernels a layer": "not implemented yet: RoPE with the cache write, and the merge of attention splits, "
    "are separate kernels",
    "profile of a round by kernels": "not implemented yet",
    "transformers' assisted generation": "not part of this suite: `workbench bench --suite gpu` measures it, "
    "which takes longer than a few minutes",
}
"""GPU measurements that the suite `gpu-kernels` does not contain, with the reason."""


def blocks(toy: bool) -> list[Block]:
    """Return the blocks (timed parts) of the GPU kernel suite, in the order of measurement.

    Args:
        toy: whether to measure a model of two layers of width 64 instead of those of 1B and 8B parameters.
    """
    shapes = (TOY,) if toy else SHAPES
    dtype = torch.float32 if toy else torch.bfloat16
    level, context, tokens = (1.0, 12, 72) if toy else (gpu_pass_blocks.LEVEL, 200, 250)
    batches, contexts = ((1, 2), (8,)) if toy else (BATCHES, CONTEXTS)
    kernels, passes = gpu_kernel_blocks, gpu_pass_blocks
    listed = [
        Block("machine and rates", 20, kernels.measure_machine),
        Block("compilation", 50, partial(kernels.compile_all, shapes, dtype)),
        Block("exactness", 50, partial(kernels.check_exactness, shapes[0], torch.bfloat16)),
        Block("launches", 10, kernels.measure_gaps),
        Block("weight kernels", 50, partial(kernels.measure_weight_kernels, shapes, dtype)),
    ]
    for shape in shapes:
        sizes = TOY_PASS_SIZES if toy else PASS_SIZES
        listed += [
            Block(f"passes {shape.name}", 50, partial(passes.measure_passes, shape, dtype, sizes)),
            Block(f"rounds {shape.name}", 70, partial(passes.measure_rounds, shape, dtype, level, context, tokens)),
        ]
    batch = partial(passes.measure_batches, shapes[0], dtype, batches, contexts, 16 if toy else 64)
    listed.insert(7, Block(f"batches {shapes[0].name}", 60, batch))
    return listed


def run_suite(
    device: torch.device,
    toy: bool = False,
    time_limit_s: float = TIME_LIMIT_S,
    path: Path | None = None,
    progress: Callable[[str], None] = lambda words: None,
    earlier: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Run all blocks of the GPU kernel suite; return the report, which the docstring of this module describes.

    Args:
        device: device of the measurements: a GPU, or with `toy` also a CPU.
        toy: whether to measure a tiny model, with two layers of width 64, instead of models of 1B and 8B parameters.
        time_limit_s: time limit of the whole run in seconds.
        path: file of the report, written again after each block.
        progress: function that is called with a line of text before each block.
        earlier: report of an earlier run; with the same settings, device and versions, its finished blocks are kept.
    """
    run = BlockRun(device)
    listed = blocks(toy)
    facts = machine_facts()
    settings = {
        "suite": SUITE,
        "toy": toy,
        "dtype": "float32" if toy else "bfloat16",
        "shapes": [TOY.name] if toy else [shape.name for shape in SHAPES],
        "device": str(device),
        **{name: facts.get(name) for name in ("gpu", "torch", "transformers")},
    }
    if earlier is not None and earlier.get("settings") == settings:
        run.report = keep_finished(earlier)
    run.report["settings"] = settings
    for what, why in NOT_BUILT.items():
        run.skip(what, why)
    return run_blocks(listed, run, time_limit_s, path, progress)


def page(report: dict[str, Any]) -> str:
    """Return the main metrics of the GPU kernel suite's report as Markdown."""
    parts = [
        _table("Blocks", report, "blocks", ("block", "status", "s", "box_s")),
        _table(
            "Forward passes", report, "passes",
            ("model", "layers", "batch", "tokens", "context", "replayed", "ms", "share_copy", "predicted_ms",
             "logits_error"),
        ),
        _table(
            "Rounds", report, "rounds",
            ("model", "method", "temperature", "batch", "context", "loop", "ms", "host_ms", "tokens_per_s", "tau", "c",
             "s_over_tau", "of_closed_form", "of_batch_1", "same_tokens", "not_recorded"),
        ),
        _table("Not measured", report, "skipped", ("block", "why")),
    ]  # fmt: skip
    if report.get("machine", {}).get("interpreted"):
        parts.insert(0, "Measured on a CPU: kernel times are those of Triton's interpreter, not of a GPU.")
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(title: str, report: dict[str, Any], key: str, columns: tuple[str, ...]) -> str:
    if not report.get(key):
        return ""
    cells = {name: partial(_value, name) for name in columns}
    left = ("layers", "method", "status", "why")
    return f"## {title}\n\n{markdown_table(cells, report[key], left)}"


def _value(name: str, entry: dict[str, Any]) -> Any:
    return "–" if entry.get(name) is None else entry[name]
