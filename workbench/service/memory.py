"""Compute the memory of models and their KV caches, and the memory that a device has."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from transformers import AutoConfig

from workbench.engine import Runner
from workbench.kernels.layers import longest_context, text_config
from workbench.kernels.packed import LARGEST_MODEL
from workbench.kernels.quantised import compute_dtype
from workbench.models.runner import SCRATCH
from workbench.models.shared_embeddings import shares_embeddings
from workbench.models.weight_files import count_model_weights

SHARE = {"cpu": 0.7, "cuda": 0.85}
"""Fraction of a device's memory for models and KV caches. The rest is for activations and all other data."""
RESERVE = 0.05
"""Fraction of a device's memory that always stays free."""
LONGEST = 4096
"""Default maximum sequence length of a model's KV cache, in tokens."""


def capacity(device: torch.device) -> int:
    """Return the total memory of a device in bytes; for a CPU at most the memory limit of the container."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    total = psutil.virtual_memory().total
    try:
        return min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # no limit file, or "max"
        return total


def free(device: torch.device) -> int:
    """Return the free memory of a device in bytes."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    return min(psutil.virtual_memory().available, capacity(device) - psutil.Process().memory_info().rss)


def budget(device: torch.device) -> int:
    """Return the default memory limit for models and KV caches, in bytes."""
    return int(capacity(device) * SHARE.get(device.type, SHARE["cpu"]))


@dataclass(frozen=True, slots=True)
class Need:
    """Memory that a model needs, computed from its files before the model is loaded.

    Attributes:
        weights: memory of the weights in bytes, including the packed copies (for fast products) of small models on a
            CPU.
        position: memory of one token of one sequence in the KV cache, in all layers, in bytes.
        context: maximum sequence length, in tokens.
    """

    weights: int
    position: int
    context: int

    @classmethod
    def of(cls, folder: str, dtype: torch.dtype, device: torch.device) -> Need:
        """Compute the memory of the model in a folder from its configuration and the headers of its weight files.

        Errors of transformers and safetensors are not caught.
        """
        config = text_config(AutoConfig.from_pretrained(folder, trust_remote_code=False))
        n_weights = count_model_weights(folder)
        if shares_embeddings(config):  # its embedding and LM head are computed from the target's
            n_weights += 2 * config.vocab_size * config.hidden_size
        maximum, _ = longest_context(config)
        return cls(_with_copies(n_weights, dtype, device), position_bytes(config, dtype), min(maximum, LONGEST))

    def sequence_bytes(self, context: int) -> int:
        """Return the KV cache memory of one sequence in bytes, including room for the largest draft tree."""
        return self.position * (context + SCRATCH)


def position_bytes(config: Any, dtype: torch.dtype) -> int:
    """Return the memory of one token in the KV cache (its keys and values in all layers), in bytes."""
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * config.num_hidden_layers * heads * size * compute_dtype(dtype).itemsize


_UNEVEN_KEYS = ("kv_lora_rank", "v_head_dim", "num_kv_shared_layers", "global_head_dim", "num_global_key_value_heads",
           "swa_head_dim", "swa_num_key_value_heads")  # fmt: skip
"""Configuration keys that occur only in models whose KV cache entries have another shape, as with latent attention."""
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8)


def kv_cache_layout(config: Any) -> dict[str, Any] | None:
    """Return the size of a decoder's KV cache as plain data; None if the layers' cache entries differ in size.

    Keys: `layers`, `kv_heads`, `head_dim`; `bytes_per_position`: memory of one token in all layers in bytes, for each
    dtype of the weights; `sliding`: number of `layers` with sliding-window attention and their `window` in tokens, None
    if there are none.

    Args:
        config: configuration of the decoder (`text_config`).
    """
    heads = getattr(config, "num_key_value_heads", None) or getattr(config, "num_attention_heads", None)
    if not isinstance(heads, int) or any(getattr(config, name, None) for name in _UNEVEN_KEYS):
        return None
    try:
        sizes = {str(dtype).removeprefix("torch."): position_bytes(config, dtype) for dtype in _DTYPES}
    except (AttributeError, TypeError):  # the configuration has other names, or one value per layer
        return None
    n_layers, itemsize = config.num_hidden_layers, torch.float32.itemsize
    n_sliding = list[Any](getattr(config, "layer_types", None) or ()).count("sliding_attention")
    window = getattr(config, "sliding_window", None)
    return {
        "layers": n_layers,
        "kv_heads": heads,
        "head_dim": sizes["float32"] // (2 * n_layers * heads * itemsize),
        "bytes_per_position": sizes,
        "sliding": {"layers": n_sliding, "window": window} if n_sliding and window else None,
    }


def weight_bytes(runner: Runner) -> int:
    """Return the memory of a loaded model's weights and their packed copies (for fast products on a CPU), in bytes."""
    return _with_copies(sum(p.numel() for p in runner.model.parameters()), runner.weight_dtype, runner.device)


def sequence_bytes(runner: Runner) -> int:
    """Return the KV cache memory of one sequence of a runner, in bytes."""
    if runner.cache.n_bytes:
        return runner.cache.n_bytes // runner.cache.n_rows
    return position_bytes(runner.config, runner.dtype) * runner.cache.capacity


def cache_bytes(runner: Runner) -> int:
    """Return the memory of a runner's KV cache, including unallocated parts, and of its CUDA graphs, in bytes."""
    graphs = 0 if runner.replays is None else runner.replays.n_bytes
    return sequence_bytes(runner) * runner.cache.n_rows + graphs


def growth_bytes(runner: Runner, n_sequences: int) -> int:
    """Return the bytes of the larger buffer to which a full KV cache must be copied; 0 if it need not grow.

    The number of sequences that fit into the buffer is doubled until all fit.

    Args:
        runner: runner of the model.
        n_sequences: number of sequences that the cache has to hold.
    """
    n_rows = n_needed = runner.cache.n_rows
    while n_needed < n_sequences:
        n_needed *= 2
    return n_needed * sequence_bytes(runner) if n_needed > n_rows else 0


def _with_copies(n_weights: int, dtype: torch.dtype, device: torch.device) -> int:
    """Return the memory in bytes of weights and their packed copies for fast products on a CPU (`kernels.packed`).

    Args:
        n_weights: number of weights.
        dtype: dtype of the weights, which determines the number of copies.
        device: device of the model; only models on a CPU are packed.
    """
    copies = {torch.float32: 3, torch.bfloat16: 2, torch.int8: 5}.get(dtype, 1)
    return n_weights * dtype.itemsize * (copies if device.type == "cpu" and n_weights <= LARGEST_MODEL else 1)
