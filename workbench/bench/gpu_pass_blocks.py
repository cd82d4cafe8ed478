"""Measurements of whole forward passes and of engine rounds on random targets, on a GPU.

A pass is one forward pass of the target alone, on fixed inputs. A round is one step of the engine: it drafts, verifies
and commits tokens.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from workbench.bench.damped_targets import Shape, damp_to, random_ids, random_pair, random_target
from workbench.bench.gpu_kernel_blocks import numbers, require_kernels, share_of_copy
from workbench.bench.rows import BASELINE
from workbench.bench.timed_blocks import BlockRun, SkippedBlockError, quartiles, time_calls
from workbench.core.sampling import SamplingParams
from workbench.decoders import ConfiguredMethod
from workbench.engine import Engine, Models, Request
from workbench.kernels.bandwidth import bytes_read
from workbench.kernels.cuda_graphs import CudaGraphRecorder
from workbench.kernels.device_clock import empty_cache, synchronise
from workbench.kernels.kv_cache import TreeCache, Window
from workbench.kernels.layers import decoder_layers
from workbench.kernels.model_forward import ModelForward
from workbench.kernels.segment import Output
from workbench.kernels.self_test import logits_error
from workbench.methods import registry

OWN, TRITON = "model's own layers", "Triton kernels"
KERNELS = {OWN: (45, 10), TRITON: (7, 3)}
"""Number of kernel launches in a forward pass: (per decoder layer, outside the layers), by implementation.

The numbers for the model's own PyTorch layers are estimates; the others are for Triton kernels.
"""
GRAPH_KERNEL_S, READ_SHARE = 2.8e-6, 0.95
"""Constants of the predicted time of a forward pass in a CUDA graph.

The prediction is bytes / (`READ_SHARE` · copy rate) + kernels · `GRAPH_KERNEL_S`.
"""
BUCKET = 64
"""Block size of the KV cache: a forward pass reads a multiple of this number of positions."""
DRAFT = 5
"""Draft length of chains and depth of draft trees in the GPU measurements."""
LEVEL = 0.9
"""Share of the target's greedy tokens that the drafter should predict."""
METHODS = (("draft-model", 0.0), ("draft-tree", 0.0), ("draft-tree-sampled", 1.0))
"""Methods whose rounds are measured on a GPU in addition to plain decoding, with their temperatures."""
WARM_UP_STEPS = 8
"""Number of first engine steps that are not measured, since CUDA graphs are recorded at the second use of a shape."""
PREFILL_CHUNK = 256
"""Lower bound of the number of prompt tokens that the engine reads in a step."""
PASSES = 20


# -- forward passes ---------------------------------------------------------------------------------------------------


def measure_passes(shape: Shape, dtype: torch.dtype, sizes: Sequence[tuple[int, int, int]], run: BlockRun) -> None:
    """Measure forward passes by the model's own layers and by Triton kernels, launched one by one and replayed.

    Args:
        shape: shape of the random target.
        dtype: dtype of the target's weights.
        sizes: numbers of sequences, of tokens per sequence and of committed tokens of each pass.
        run: benchmark run that receives the results.
    """
    model: Any = random_target(shape, run.device, dtype)
    capacity = max(_rounded(context + n) for _, n, context in sizes)
    layers = decoder_layers(model)[1]
    own = ModelForward(model.get_output_embeddings(), layers)
    triton: Any = None
    try:
        require_kernels(run.device)
        from workbench.kernels.gpu.decoder import GpuDecoder

        triton = GpuDecoder(model, capacity)
    except SkippedBlockError as reason:
        run.skip(f"{run.block}: {TRITON}", str(reason))
    for n_sequences, n, context in sizes:
        with torch.inference_mode():  # not while the model is made: `GpuDecoder` watches versions of its weights
            cache, (ids, mask, positions) = _inputs(shape, model, len(layers), n_sequences, n, context)
            works: dict[str, Callable[[], Output]] = {OWN: lambda: own(model, cache, ids, mask, positions)}  # noqa: B023
            if triton is not None and triton.supports((n_sequences, n)):
                works[TRITON] = lambda: Output(*triton(ids, mask, positions, cache))  # noqa: B023
            reference = works[OWN]().logits.clone()
            for name, work in works.items():
                entry = {"model": shape.name, "layers": name, "batch": n_sequences, "tokens": n, "context": context}
                with run.part(f"{name}, {n_sequences} × {n} tokens after {context}"):
                    _measure_pass(run, shape, model, entry, work, reference)
        del cache, ids, mask, positions, reference, works, work
        _tidy()


def _measure_pass(
    run: BlockRun, shape: Shape, model: Any, entry: dict[str, Any], work: Callable[[], Output], reference: Tensor
) -> None:
    """Measure one forward pass, launched kernel by kernel and replayed as a CUDA graph."""
    n_sequences, n, context = entry["batch"], entry["tokens"], entry["context"]
    position_bytes = 2 * shape.layers * shape.kv_heads * (shape.hidden // shape.heads) * reference.element_size()
    n_bytes = bytes_read(model) + n_sequences * (context + n) * position_bytes
    per_layer, others = KERNELS[entry["layers"]]
    rate = run.report.get("rates", {}).get("copy_bytes_per_s")
    predicted_s = rate and n_bytes / (READ_SHARE * rate) + (per_layer * shape.layers + others) * GRAPH_KERNEL_S
    is_cuda = run.device.type == "cuda"
    for is_replayed in (False, True):
        play: Callable[[], object] = work
        if is_replayed and not is_cuda:
            run.skip(f"{run.block}: replayed", "CUDA graphs need a GPU")
            continue
        if is_replayed:
            output, play = CudaGraphRecorder(run.device)(work)
            play()
        else:
            output = work()
        errors = logits_error(output.logits, reference), float((output.logits - reference).abs().max())
        del output
        seconds, host = time_calls(play, run, PASSES if is_cuda else 2)
        predicted_ms = round(1e3 * predicted_s, 4) if predicted_s and is_replayed else None
        run.add(
            "passes",
            {
                **entry,
                "replayed": is_replayed,
                **quartiles([1e3 * s for s in seconds], "ms"),
                "host_ms": quartiles([1e3 * s for s in host], "ms")["ms"],
                "bytes": n_bytes,
                "share_copy": share_of_copy(run, n_bytes, statistics.median(seconds)),
                "predicted_ms": predicted_ms,
                "logits_error": float(f"{errors[0]:.3g}"),
                "logits_difference": float(f"{errors[1]:.3g}"),
            },
        )


def _inputs(
    shape: Shape, model: Any, n_layers: int, n_sequences: int, n: int, context: int
) -> tuple[TreeCache, tuple[Tensor, Tensor, Tensor]]:
    """Return random inputs of a forward pass: filled KV cache; ids, mask and positions of n tokens per sequence."""
    table: Tensor = model.get_input_embeddings().weight
    used = _rounded(context + n)
    cache = TreeCache(n_layers, n_sequences, used)
    generator = torch.Generator(table.device).manual_seed(1)
    cache.buffer(shape.kv_heads, shape.hidden // shape.heads, table).normal_(generator=generator)
    index = torch.arange(context, context + n, device=table.device).expand(n_sequences, n)
    cache.window = Window(slice(0, n_sequences), None, index, used)
    mask = torch.full((n_sequences, 1, n, used), torch.finfo(table.dtype).min, dtype=table.dtype, device=table.device)
    mask[..., : context + n].triu_(context + 1)
    ids = (numbers((n_sequences, n), table.device, torch.float32, 2).abs() * 1e4).long() % shape.vocabulary
    return cache, (ids, mask, index)


def _rounded(n: int) -> int:
    return -(-n // BUCKET) * BUCKET


# -- rounds of the engine ---------------------------------------------------------------------------------------------


def measure_rounds(shape: Shape, dtype: torch.dtype, level: float, context: int, tokens: int, run: BlockRun) -> None:
    """Measure rounds of plain decoding, a draft chain, a draft tree and a sampled tree on a random target.

    Args:
        shape: shape of the target; its first layers are the draft model.
        dtype: dtype of the weights.
        level: share of the target's tokens that the draft model should predict.
        context: tokens of the prompt.
        tokens: maximum number of new tokens.
        run: benchmark run that receives the results.
    """
    models = random_pair(shape, run.device, dtype, context + 2 * tokens)
    reached = damp_to(models, shape.draft_layers, level)
    run.check()
    assert models.drafter is not None
    c = bytes_read(models.drafter.model) / bytes_read(models.target.model)
    prompts = [random_ids(shape.vocabulary, context, 1)]
    plain = dict[float, dict[str, Any]]()
    for temperature in sorted({0.0, *(temperature for _, temperature in METHODS)}):
        method = registry.get(BASELINE).with_params()
        for entry in _measure_loops(models, method, prompts, temperature, tokens, run):
            plain[temperature] = entry  # the device's loop comes last
            _add_round(run, shape, context, entry)
    for name, temperature in METHODS:
        with run.part(f"{name}, temperature {temperature:g}"):
            params = {"depth": DRAFT} if "depth" in registry.get(name).params else {}
            method = registry.get(name).with_params(**params)
            for entry in _measure_loops(models, method, prompts, temperature, tokens, run):
                speedup = entry["tokens_per_s"] / plain[temperature]["tokens_per_s"]
                s_over_tau, closed_form = speedup / entry["tau"], 1 / (1 + DRAFT * c)
                entry |= {
                    "drafter": f"the target's first {shape.draft_layers} of {shape.layers} layers",
                    "agreement": round(reached, 3),
                    "draft_length": DRAFT,
                    "c": round(c, 4),
                    "speedup": round(speedup, 4),
                    "s_over_tau": round(s_over_tau, 4),
                    "closed_form": round(closed_form, 4),
                    "of_closed_form": round(s_over_tau / closed_form, 4),
                }
                _add_round(run, shape, context, entry)


def measure_batches(
    shape: Shape, dtype: torch.dtype, batches: Sequence[int], contexts: Sequence[int], tokens: int, run: BlockRun
) -> None:
    """Measure plain decoding of several sequences at once.

    Args:
        shape: shape of the random target.
        dtype: dtype of the weights.
        batches: numbers of sequences; the first is 1, with which the others are compared.
        contexts: tokens of the prompts.
        tokens: maximum number of new tokens.
        run: benchmark run that receives the results.
    """
    most = steps_before_all_run([[0] * max(contexts)] * max(batches))
    models = random_pair(shape, run.device, dtype, max(contexts) + tokens + most)
    for context in contexts:
        alone: float | None = None
        for batch in batches:
            prompts = [random_ids(shape.vocabulary, context, seed) for seed in range(1, batch + 1)]
            for entry in _measure_loops(models, registry.get(BASELINE).with_params(), prompts, 0.0, tokens, run):
                alone = entry["tokens_per_s"] if batch == 1 else alone
                entry["of_batch_1"] = None if alone is None else round(entry["tokens_per_s"] / (batch * alone), 4)
                _add_round(run, shape, context, entry)


def _add_round(run: BlockRun, shape: Shape, context: int, entry: dict[str, Any]) -> None:
    run.add("rounds", {"model": shape.name, "context": context, **entry})


def _measure_loops(
    models: Models,
    configured: ConfiguredMethod,
    prompts: Sequence[list[int]],
    temperature: float,
    tokens: int,
    run: BlockRun,
) -> list[dict[str, Any]]:
    """Measure a method twice: the host waits for each round's result, or reads it one round later.

    The second measurement is left out for methods whose rounds the host must read at once. `same_tokens` says whether
    its texts equal those of the first.
    """
    host, texts = _measure_method(models, configured, prompts, temperature, tokens, run, rounds_late=0)
    device, late_texts = _measure_method(models, configured, prompts, temperature, tokens, run, rounds_late=1)
    if not device["launched"]:
        return [host]
    pairs = zip(texts, late_texts, strict=True)
    device["same_tokens"] = all(a == b for ours, theirs in pairs for a, b in zip(ours, theirs, strict=False))
    return [host, device]


def _measure_method(
    models: Models,
    configured: ConfiguredMethod,
    prompts: Sequence[list[int]],
    temperature: float,
    tokens: int,
    run: BlockRun,
    rounds_late: int,
) -> tuple[dict[str, Any], list[list[int]]]:
    """Measure engine steps of some sequences until the first of them ends; prefill and first steps are left out.

    Returns:
        Metrics of the measured steps, and the tokens that each sequence generated.
    """
    engine = Engine(models, max_sequences=len(prompts), rounds_late=rounds_late)
    sampling = SamplingParams(temperature=temperature)
    tokens += steps_before_all_run(prompts)
    sequences = [engine.submit(Request(ids, configured, sampling, tokens, seed)) for seed, ids in enumerate(prompts)]

    def rounds() -> list[list[Any]]:
        return [sequence.trace.rounds for sequence in sequences]

    def step() -> None:
        engine.step()
        run.check()

    try:
        while not all(rounds()) and not engine.is_idle:
            step()
        for _ in range(WARM_UP_STEPS):
            step()
        first, seconds, outside = [len(r) for r in rounds()], list[float](), list[float]()
        n_running = len(engine.running)
        while len(engine.running) == n_running == len(prompts):
            if not rounds_late:  # otherwise a step waits for the round before
                synchronise(run.device)
            start = time.perf_counter()
            engine.step()
            seconds.append(time.perf_counter() - start)
            last = rounds()[0][-1]
            outside.append(seconds[-1] - last.draft_s - last.verify_s)
            run.check()
    finally:
        for sequence in sequences:
            sequence.cancel()
        while not engine.is_idle:
            engine.step()
    measured = [r for begin, own in zip(first, rounds(), strict=True) for r in own[begin : begin + len(seconds)]]
    n_tokens = sum(len(r.emitted) for r in measured)
    if not seconds or not n_tokens:
        errors = [s.trace.footer.error for s in sequences if s.trace.footer.error]
        raise RuntimeError(f"{configured.name} ended before its first measured round: {errors[:1]}")
    middle = statistics.median(seconds)
    figures = {
        "method": configured.name,
        "temperature": temperature,
        "batch": len(prompts),
        "loop": "device" if rounds_late else "host",
        "launched": engine.n_queued_rounds,
        "not_recorded": engine.why_not_recorded,
        "layers": TRITON if models.target.runs_kernels else OWN,
        **quartiles([1e3 * s for s in seconds], "ms"),
        "host_ms": round(1e3 * statistics.median(outside), 4) if len(prompts) == 1 else None,
        "tau": round(n_tokens / len(measured), 4),
        "tokens_per_s": round(n_tokens / len(seconds) / middle, 3),
        "share_copy": share_of_copy(run, bytes_read(models.target.model), middle)
        if configured.name == BASELINE
        else None,
    }
    return figures, [[token.token for r in own for token in r.emitted] for own in rounds()]


def steps_before_all_run(prompts: Sequence[list[int]]) -> int:
    """Return the number of engine steps until the prefill of all prompts is complete.

    The engine reads one chunk of one prompt in each step. Sequences whose prefill ended earlier generate tokens
    meanwhile.
    """
    return sum(-(-len(ids) // PREFILL_CHUNK) for ids in prompts)


def _tidy() -> None:
    gc.collect()
    empty_cache()
