"""Roofline of a run: arithmetic and memory traffic of each target pass, compared with the rates of this machine.

Williams, Waterman and Patterson 2009, "Roofline: an insightful visual performance model for multicore architectures",
Communications of the ACM 52 (4): a computation with I floating-point operations per byte reaches at most
min(peak, I · bandwidth). Here the bandwidth is that of a large copy and the peak that of a large matrix product, both
measured. The bandwidth is a reference and no bound: weights that stay in a processor's caches are not read from memory.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import torch
from safetensors import SafetensorError

from workbench.core.errors import WorkbenchError
from workbench.kernels.bandwidth import copy_bandwidth, matmul_rate
from workbench.methods import method_info
from workbench.models.bundle import config_of
from workbench.models.names import folder_of
from workbench.models.weight_files import count_model_weights
from workbench.trace.events import Round, Trace
from workbench.trace.stalls import exclude_stalled

ITEM_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of a number by dtype. Formats such as int8 are missing: their passes also read numbers of other dtypes."""
DEVICES = ("cpu", "cuda")
COPY_BYTES = 2**26
"""Bytes of the block that is copied to measure the copy rate: more than the processor's caches hold."""
PLAIN = "autoregressive"
MEMORY, ARITHMETIC = "memory", "arithmetic"
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


@dataclass(frozen=True, slots=True)
class TargetSize:
    """Sizes of a dense decoder that determine the work of a forward pass.

    Attributes:
        weights: number of weights that a pass reads: all except an input embedding that is not also the LM head.
        item_bytes: bytes of a weight, and of a number in the KV cache.
        layers: number of decoder layers.
        heads: number of attention heads.
        kv_heads: number of heads of the KV cache.
        head_dim: size of a head.
    """

    weights: int
    item_bytes: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int

    def flops(self, tokens: int, context: int) -> int:
        """Return the number of floating-point operations of a forward pass.

        There are 2 operations per weight and token. Attention adds 4 · layers · heads · head_dim operations for each
        pair of a token and a position: half of them for QKᵀ, half for the product with V.

        Args:
            tokens: tokens of the pass.
            context: positions in the KV cache before the pass.
        """
        pairs = tokens * (context + tokens)
        return 2 * self.weights * tokens + 4 * self.layers * self.heads * self.head_dim * pairs

    def n_bytes(self, tokens: int, context: int) -> int:
        """Return the bytes that a forward pass moves: all weights, and the keys and values of all positions, each once.

        Args:
            tokens: tokens of the pass.
            context: positions in the KV cache before the pass.
        """
        cached = 2 * self.layers * self.kv_heads * self.head_dim * (context + tokens)
        return self.item_bytes * (self.weights + cached)


@dataclass(frozen=True, slots=True)
class MachineRates:
    """Measured rates of a device.

    Attributes:
        device: type of the device, "cpu" or "cuda".
        dtype: number format of the matrix product.
        bytes_per_second: bytes read and written per second by a large copy.
        flops_per_second: floating-point operations per second of a large matrix product.
    """

    device: str
    dtype: str
    bytes_per_second: float
    flops_per_second: float

    @property
    def ridge(self) -> float:
        """Return the intensity (FLOP per byte) below which memory and above which arithmetic limits a forward pass."""
        return self.flops_per_second / self.bytes_per_second


@dataclass(frozen=True, slots=True)
class PassWork:
    """Forward passes of a target with the same number of tokens.

    Attributes:
        tokens: tokens in the pass: the last committed token, all drafted tokens, and probe positions (never accepted).
        rounds: number of such passes in the run; 0 for a pass that was not run.
        context: mean number of positions in the KV cache before these passes, rounded.
        flops: floating-point operations of a pass with this context.
        n_bytes: bytes of weights and KV cache that a pass moves.
        seconds: median time of the passes; None for a pass that was not run.
    """

    tokens: int
    rounds: int
    context: int
    flops: int
    n_bytes: int
    seconds: float | None

    @property
    def intensity(self) -> float:
        """Return the arithmetic intensity of a forward pass: floating-point operations per byte moved."""
        return self.flops / self.n_bytes

    def limit(self, rates: MachineRates) -> str:
        """Return the limit of this forward pass on a machine with these rates: `MEMORY` or `ARITHMETIC`."""
        return MEMORY if self.intensity < rates.ridge else ARITHMETIC

    def to_wire(self, rates: MachineRates, is_timed_here: bool) -> dict[str, Any]:
        """Return the forward pass as JSON data, with the FLOP/s it reached and the FLOP/s that the roofline allows."""
        reached = self.flops / self.seconds if self.seconds and is_timed_here else None
        roof = min(rates.flops_per_second, self.intensity * rates.bytes_per_second)
        derived = {"intensity": self.intensity, "limit": self.limit(rates), "reached": reached, "roof": roof}
        return asdict(self) | derived


def target_size(name: str, dtype: str) -> TargetSize:
    """Return the sizes of a target from its configuration and weight files, without loading it.

    Args:
        name: bundled or published model on this machine, or a folder.
        dtype: dtype of the run, from its header.

    Raises:
        WorkbenchError: the model's files are not on this machine, or the model is not a dense decoder in one
            floating-point format.
    """
    folder = folder_of(name)
    config = config_of(folder) if folder else {}
    if folder is None or not config:
        raise WorkbenchError(f"The files of {name} are not on this machine.", "Use a bundled or downloaded target.")
    if dtype not in ITEM_BYTES:
        raise WorkbenchError(
            f"A forward pass in {dtype} mixes number formats, so its limits cannot be computed.",
            f"Use a target in one of {', '.join(ITEM_BYTES)}.",
        )
    sizes = [config.get(key) for key in ("num_hidden_layers", "num_attention_heads", "hidden_size", "vocab_size")]
    if not all(isinstance(size, int) and size > 0 for size in sizes) or any(config.get(key) for key in _EXPERTS):
        raise WorkbenchError(
            f"{name} is not a dense text decoder.", "Use a model without image input and without mixture of experts."
        )
    layers, heads, hidden, vocabulary = (int(size or 0) for size in sizes)
    try:
        weights = count_model_weights(folder)
    except (SafetensorError, OSError) as error:
        raise WorkbenchError(f"The weight files of {name} cannot be read.", "Download the model again.") from error
    if not config.get("tie_word_embeddings", False):
        weights -= vocabulary * hidden
    return TargetSize(
        weights, ITEM_BYTES[dtype], layers, heads, config.get("num_key_value_heads") or heads,
        config.get("head_dim") or hidden // heads,
    )  # fmt: skip


@lru_cache(maxsize=8)
def machine_rates(device: str, dtype: str) -> MachineRates:
    """Measure copy rate and matrix-product rate of a device once per process, in about half a second.

    Each rate is the best of a few attempts.

    Args:
        device: device type, "cpu" or "cuda".
        dtype: number format of the matrix product, one of `ITEM_BYTES`.

    Raises:
        WorkbenchError: the device is not available here, or has no memory for the measurement.
    """
    if device not in DEVICES:
        raise WorkbenchError(
            f"Memory and compute rates of the device {device} cannot be measured.", f"Use one of {', '.join(DEVICES)}."
        )
    try:
        rate = _copy_rate(device)
        product = matmul_rate(device, getattr(torch, dtype))
    except (RuntimeError, AssertionError) as error:  # AssertionError: torch was built without CUDA
        raise WorkbenchError(
            f"Memory and compute rates of the device {device} cannot be measured here.",
            "Open the run on the machine where it was made.",
        ) from error
    return MachineRates(device, dtype, rate, product)


@lru_cache(maxsize=4)
def _copy_rate(device: str) -> float:
    return copy_bandwidth(device, COPY_BYTES, fastest=True)


def target_passes(trace: Trace, size: TargetSize) -> list[PassWork]:
    """Return the target's forward passes in a run, grouped by their number of tokens, the smallest first.

    Every pass counts as a full forward pass of the target. Left out are stalled rounds, rounds with several passes,
    with passes shared with other runs, or with tentative tokens, and methods that do not draft, except plain decoding.

    Args:
        trace: trace of a run.
        size: sizes of the run's target.
    """
    contexts, context = dict[int, int](), len(trace.header.prompt_tokens) - 1
    for r in trace.rounds:
        contexts[r.index] = context
        context += len(r.emitted)
    groups: dict[int, list[Round]] = {}
    for r in exclude_stalled(trace.rounds):
        if _is_single_pass(r):
            groups.setdefault(1 + len(r.nodes) + len(r.probes), []).append(r)
    return [
        _work(size, tokens, [contexts[r.index] for r in rounds], [r.verify_s for r in rounds])
        for tokens, rounds in sorted(groups.items())
    ]


def roofline(trace: Trace, plain: Trace | None = None, is_timed_here: bool = True) -> dict[str, Any]:
    """Return the roofline of a run as JSON data: this machine's rates, the run's passes, and a pass of plain decoding.

    Args:
        trace: trace of a run.
        plain: plain decoding of the same prompt by the same target; else a plain pass is taken from the run's rounds
            without a draft, or computed at the run's mean context, without a time.
        is_timed_here: whether the run's times were measured on this machine; else only the intensities are compared.

    Raises:
        WorkbenchError: the sizes of the target or the rates of the machine are unknown, or the run has no pass that
            counts.

    Example:
        >>> from workbench.views import recorded_runs
        >>> found = roofline(recorded_runs.trace("draft-model"), is_timed_here=False)
        >>> found["plain"]["limit"]
        'memory'
    """
    header = trace.header
    size = target_size(header.target, header.dtype)
    passes = target_passes(trace, size)
    if not passes:
        raise WorkbenchError(
            "The run has no forward pass of the target that can be analysed.",
            "Use a run of plain decoding, or of a method that verifies each draft in one forward pass.",
        )
    same = plain is not None and (plain.header.target, plain.header.dtype) == (header.target, header.dtype)
    single = [one for one in (target_passes(plain, size) if plain and same else passes) if one.tokens == 1]
    mean_context = round(statistics.fmean(one.context for one in passes))
    plain_pass = single[0] if single else _work(size, 1, [mean_context], [])
    rates = machine_rates(header.device.partition(":")[0], header.dtype)
    return {
        "rates": asdict(rates) | {"ridge": rates.ridge},
        "target": asdict(size),
        "is_timed_here": is_timed_here,
        "plain": plain_pass.to_wire(rates, is_timed_here),
        "passes": [one.to_wire(rates, is_timed_here) for one in passes],
    }


def _is_single_pass(r: Round) -> bool:
    shared, is_tentative = r.shared.get("rows", 1) > 1, bool(r.placed or r.revoked)
    if shared or is_tentative or r.target_forwards != 1 or r.verify_s <= 0:
        return False
    return r.method == PLAIN or not _drafts_nothing(r.method)


def _drafts_nothing(method: str) -> bool:
    try:
        return method_info.get(method).group == "No draft"
    except WorkbenchError:
        return False


def _work(size: TargetSize, tokens: int, contexts: Sequence[int], seconds: Sequence[float]) -> PassWork:
    context = round(statistics.fmean(contexts))
    return PassWork(
        tokens, len(seconds), context, size.flops(tokens, context), size.n_bytes(tokens, context),
        statistics.median(seconds) if seconds else None,
    )  # fmt: skip
