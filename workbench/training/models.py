"""Configurations of the bundled models, their optimizers, and functions that write models to disk."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    ProcessorMixin,
)

from workbench.kernels.packed import has_bfloat16
from workbench.models.chat_markers import END
from workbench.models.checksums import write_sums
from workbench.models.int8_checkpoint import MODEL_FILE, read_folder, storage_entry, write_weights
from workbench.models.shared_embeddings import ROWS
from workbench.trace.files import PART, write_atomically
from workbench.training.muon import FloatMuon
from workbench.training.tokenizer import CONTEXT, PAD, token_id

EARLY_EXIT_LAYERS = (2, 3, 4, 6)
SHARD_SIZE = "9MB"
WEIGHT_DECAY = 0.05


def target_config(tokenizer: PreTrainedTokenizerFast, hidden: int = 288, layers: int = 12) -> LlamaConfig:
    """Return the configuration of the bundled target: deep and narrow, so that early exits skip many layers."""
    return llama_config(tokenizer, hidden, layers, 6, hidden * 8 // 3)


def drafter_config(tokenizer: PreTrainedTokenizerFast, hidden: int = 128, layers: int = 1) -> LlamaConfig:
    """Return the configuration of the bundled drafter."""
    return llama_config(tokenizer, hidden, layers, 4, hidden * 3)


def llama_config(tokenizer: PreTrainedTokenizerFast, hidden: int, layers: int, heads: int, inner: int) -> LlamaConfig:
    """Return the configuration of a bundled language model, with full multi-head attention and tied embeddings."""
    end, pad = (token_id(tokenizer, token) for token in (END, PAD))
    return LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=pad,
    )


def build_model(config: LlamaConfig, seed: int) -> LlamaForCausalLM:
    """Build a float32 model with random weights that depend on `seed` alone."""
    model = LlamaForCausalLM(config)
    generator = torch.Generator().manual_seed(seed)
    residual = 0.02 / (2 * config.num_hidden_layers) ** 0.5
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() < 2:
                parameter.fill_(1.0)
            else:
                last = name.endswith(("o_proj.weight", "down_proj.weight"))
                parameter.normal_(0.0, residual if last else 0.02, generator=generator)
    return model


def build_optimizers(
    model: nn.Module, matrix_rate: float, other_rate: float, weight_decay: float = WEIGHT_DECAY
) -> list[torch.optim.Optimizer]:
    """Return Muon for the matrices inside the layers and AdamW for embeddings, norms and biases.

    Each group stores its peak learning rate as `peak`; the training loop scales it.
    """
    matrices, others = [], []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            (matrices if parameter.dim() == 2 and "embed" not in name else others).append(parameter)
    optimizers: list[torch.optim.Optimizer] = []
    if matrices:
        muon = torch.optim.Muon if matrices[0].is_cuda or has_bfloat16() else FloatMuon
        optimizers.append(muon(matrices, lr=matrix_rate, weight_decay=weight_decay, momentum=0.95))
    if others:
        optimizers.append(torch.optim.AdamW(others, lr=other_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True))
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["peak"] = group["lr"]
    return optimizers


@contextmanager
def half_precision(enabled: bool = True) -> Iterator[None]:
    """Compute matrix products inside the `with` block in bfloat16 on devices that support it, else in float32.

    Emulated bfloat16 would be slower than float32. CPU and GPU have separate autocast settings, so the device of the
    tensors decides the number format.
    """
    with ExitStack() as kinds:
        kinds.enter_context(torch.autocast("cpu", torch.bfloat16, enabled and has_bfloat16()))
        if torch.cuda.is_available():
            has_fast = torch.cuda.is_bf16_supported(including_emulation=False)
            kinds.enter_context(torch.autocast("cuda", torch.bfloat16, enabled and has_fast))
        yield


def fast_attention() -> str:
    """Return the attention implementation that trains fastest on this CPU, for sequences of a few hundred tokens.

    In bfloat16, plain products are faster than the fused kernel; in float32, the fused kernel is faster.
    """
    return "eager" if has_bfloat16() else "sdpa"


def scale_rates(optimizers: Sequence[torch.optim.Optimizer], factor: float) -> None:
    """Set every learning rate of the optimizers to its peak value times a factor."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["peak"] * factor


def save_model(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    out: Path,
    extra: dict[str, object],
    is_int8: bool = False,
) -> None:
    """Write a model in the Hugging Face layout: float16 shards of at most 9 MB, configurations and tokenizer.

    Args:
        model: The float32 model; it is not changed.
        tokenizer: Tokenizer of the model.
        out: Folder of the model.
        extra: Further entries of `config.json`.
        is_int8: Write an int8 checkpoint instead (`workbench.models.int8_checkpoint`).
    """
    half = LlamaForCausalLM(model.config)
    for name, value in extra.items():
        setattr(half.config, name, value)
    save_half(half, model, tokenizer, out, is_int8)
    save_tokenizer(tokenizer, out)


def format_json(facts: Any) -> bytes:
    r"""Return indented JSON, but with each list of numbers on one line, which halves the size of the files.

    >>> format_json({"kept": [1, 2], "name": "x"}).decode()
    '{\n  "kept": [1,2],\n  "name": "x"\n}\n'
    """
    text = json.dumps(facts, indent=2)
    text = re.sub(r"\[[-+.\deE,\s]+\]", lambda found: "".join(found[0].split()), text)
    return (text + "\n").encode()


def save_tokenizer(tokenizer: PreTrainedTokenizerFast | ProcessorMixin, out: Path) -> None:
    """Write a tokenizer, or a processor with its tokenizer, without indentation, which would double the file's size."""
    tokenizer.save_pretrained(out)
    file = out / "tokenizer.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    write_atomically(file, json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode())


def save_half(
    half: PreTrainedModel,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    out: Path,
    is_int8: bool = False,
) -> None:
    """Write a model's weights in float16 shards with its configurations; reset the tokenizer's padding for saving.

    Args:
        half: Model of the same shape, which gets the weights in float16 and whose configuration is written.
        model: The float32 model; it is not changed.
        tokenizer: Tokenizer of the model.
        out: Folder; existing shards in it are removed.
        is_int8: Write an int8 checkpoint instead (`workbench.models.int8_checkpoint`).
    """
    half.load_state_dict(model.state_dict())
    save_weights(half, None, tokenizer, out, is_int8)


def save_weights(
    half: PreTrainedModel,
    weights: dict[str, Tensor] | None,
    tokenizer: PreTrainedTokenizerFast,
    out: Path,
    is_int8: bool = False,
) -> None:
    """Write a model in float16 shards with its configuration; reset the tokenizer's padding for saving.

    Args:
        half: The model, which is converted to float16.
        weights: Weights to write instead of the model's, by their names in the files; None: the model's weights.
        tokenizer: Tokenizer of the model.
        out: Folder; existing shards in it are removed.
        is_int8: Write an int8 checkpoint instead (`workbench.models.int8_checkpoint`).
    """
    half.half()
    half_weights = None if weights is None else {name: weight.half().contiguous() for name, weight in weights.items()}
    half.config.dtype = "float16"
    half.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".", suffix=PART, dir=out) as part_folder:
        half.save_pretrained(part_folder, state_dict=half_weights, max_shard_size=SHARD_SIZE)
        if is_int8:
            convert_to_int8(Path(part_folder))
        for old in _weight_files(out):  # the old files are kept until all new ones are written
            old.unlink()
        for new in Path(part_folder).iterdir():
            new.chmod(0o644)
            new.replace(out / new.name)
    write_atomically(out / "config.json", format_json(json.loads((out / "config.json").read_text(encoding="utf-8"))))
    write_sums(out)
    tokenizer.backend_tokenizer.no_padding()  # padding set by the last generation is not part of the tokenizer


def convert_to_int8(folder: Path) -> float:
    """Replace the weights of a model or a head by an int8 checkpoint in one file, and note this in `config.json`.

    Returns:
        Norm of the weights' change / norm of the weights; 0: no matrix is large enough, and nothing was changed.
    """
    old_files, new_file, config_file = _weight_files(folder), folder / MODEL_FILE, folder / "config.json"
    error = write_weights(read_folder(folder), new_file)
    if not error:
        new_file.unlink()
        return 0.0
    for old in old_files:
        old.unlink()
    config = json.loads(config_file.read_text(encoding="utf-8"))
    if not config.get("model_type") or ROWS in config:  # `from_pretrained` reads neither heads nor shared embeddings
        new_file.replace(folder / "model.safetensors")
    write_atomically(config_file, format_json(config | storage_entry(error)))
    return error


def _weight_files(folder: Path) -> list[Path]:
    return [*folder.glob("model*.safetensors*"), *folder.glob(MODEL_FILE)]
