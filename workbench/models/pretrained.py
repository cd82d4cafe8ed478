"""Load one model, its tokenizer and its processor from a folder or the Hub, with checks around `from_pretrained`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoProcessor, AutoTokenizer, PreTrainedModel

from workbench.core.errors import (
    CapacityError,
    ModelError,
    PromptError,
    TokenizerMismatchError,
    WorkbenchError,
    is_out_of_memory,
)
from workbench.core.panics import convert_panics
from workbench.kernels import devices
from workbench.kernels.compilation import may_compile
from workbench.kernels.fused import has_compiled_sizes
from workbench.kernels.layers import encoder_decoder_error
from workbench.kernels.lean import has_lean_version
from workbench.kernels.packed import pack
from workbench.kernels.quantised import compute_dtype, quantise, refuse_int8
from workbench.kernels.reduced_vocabulary import trim
from workbench.models.bundle import DEFAULT_TARGET, config_of
from workbench.models.checksums import check_weights
from workbench.models.int8_checkpoint import is_int8, load_int8_model
from workbench.models.model_index import MODEL_INDEX
from workbench.models.names import folder_of, locate
from workbench.models.shared_embeddings import load_with_shared_embeddings, shares_embeddings
from workbench.models.tokenizer_source import tokenizer_source_of

TRAIN = "Download the target again, or train the draft model again: workbench train chat-drafter."


def resolve_device(device: str) -> torch.device:
    """Return the PyTorch device with a given name; "auto" is a GPU if there is one.

    Raises:
        ModelError: the device does not exist on this machine.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch_device = torch.device(device)
        torch.empty(0, device=torch_device)
    except (RuntimeError, AssertionError, ValueError) as error:
        raise ModelError(f"Device {device!r} is not available here.", devices.remedy()) from error
    return torch_device


def resolve_dtype(dtype: str, device: torch.device, target: str = "") -> torch.dtype:
    """Return the PyTorch dtype with a given name; "auto" is bfloat16 on a GPU, and usually float32 on a CPU.

    On a CPU, "auto" is also bfloat16 for a published target if compiled kernels are available. Their forward passes
    over few tokens take as long as reading the weights, so half the bytes take half the time
    (`workbench.kernels.fused`), with or without bfloat16 instructions.

    "int8" rounds only the weights. The result is a different model from the unrounded one
    (`workbench.kernels.quantised`).

    Args:
        dtype: one of `devices.DTYPES` or "auto".
        device: device that the model runs on.
        target: name of the model, if it is a target.

    Raises:
        ModelError: the dtype is unknown, or this device does not support it.
    """
    devices.check_dtype(dtype, device.type)
    if dtype != "auto":
        return getattr(torch, dtype)
    use_bfloat16 = device.type != "cpu" or (target in MODEL_INDEX and may_compile())
    return torch.bfloat16 if use_bfloat16 else torch.float32


def resolve_drafter_dtype(
    dtype: str, device: torch.device, target: torch.dtype, name: str | None = None
) -> torch.dtype:
    """Return the PyTorch dtype of a draft model by name; "auto" depends on the device and on the target's dtype.

    "auto" is float64 for a float64 target. On a CPU it is bfloat16 only if the target is published and computes in
    bfloat16, and if the compiled kernels support the draft model's sizes: other draft models would be slower in
    bfloat16. Otherwise "auto" is the default of `resolve_dtype`.

    Args:
        dtype: one of `devices.DTYPES` or "auto".
        device: device that the draft model runs on.
        target: dtype of the target's computation (for int8 weights: bfloat16).
        name: name of the draft model; its sizes are only checked if it is in a local folder.

    Raises:
        ModelError: the dtype is unknown.
    """
    if dtype == "auto" and target == torch.float64:
        return target
    folder = folder_of(name) if name and compute_dtype(target) == torch.bfloat16 else None
    source = None if folder is None else tokenizer_source_of(folder)
    is_compilable = folder is not None and source is not None and has_compiled_sizes(config_of(folder))
    return resolve_dtype(dtype, device, source.target if source is not None and is_compilable else "")


def load_model(name: str, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    """Load an unmodified Hugging Face model in eval mode: safetensors only, no remote code.

    Args:
        name: bundled or published name, folder, GGUF file or Hub id.
        device: device to load the model on.
        dtype: dtype of the weights; for `torch.int8`, they are loaded in bfloat16 and then quantised.

    Raises:
        ModelError: the model is missing, unreadable or not supported, or there is no network.
        CapacityError: the model does not fit into memory.
    """
    location = locate(name)
    if Path(location).is_dir():
        check_weights(Path(location))
    options: dict[str, Any] = {"dtype": compute_dtype(dtype), "use_safetensors": True, "trust_remote_code": False}
    try:
        config = AutoConfig.from_pretrained(location, trust_remote_code=False)
        if getattr(config, "is_encoder_decoder", False):
            raise encoder_decoder_error(name, config)
        if dtype == torch.float64 and hasattr(config, "num_experts_per_tok"):
            config._experts_implementation = "eager"  # grouped matrix products do not support float64
        options["config"] = config
        if hasattr(config, "vision_config"):
            from transformers import AutoModelForImageTextToText as Auto
        else:
            Auto = AutoModelForCausalLM
        with convert_panics():
            if shares_embeddings(config):
                model = load_with_shared_embeddings(Path(location), config, options["dtype"])
            elif is_int8(config):
                model = load_int8_model(Auto, Path(location), config, options["dtype"])
            else:
                model = Auto.from_pretrained(location, **options)
    except WorkbenchError:
        raise
    except Exception as error:  # transformers and safetensors raise many types
        if is_out_of_memory(error):
            raise CapacityError(
                f"The model {name} does not fit into memory in {dtype}.",
                "Choose a smaller model, or the dtype bfloat16.",
            ) from error
        raise ModelError(f"{name} cannot be loaded: {_first_line(error)}", _remedy(name, location)) from error
    if any(p.is_meta for p in model.parameters()):
        raise ModelError(f"{name} is incomplete: some weights are missing.", "Download the folder again.")
    model.to(device=device)  # pyright: ignore[reportCallIssue]
    trim(model, name)
    pack(model.eval().requires_grad_(False))
    if dtype == torch.int8:
        quantise(model) if has_lean_version(model) else refuse_int8(model)
    return model


def load_tokenizer(name: str) -> Any:
    """Load the tokenizer of a model: its own, or its target's for a draft model without one.

    Raises:
        TokenizerMismatchError: the draft model was trained with a tokenizer that differs from its target's.
        ModelError: the tokenizer is missing or unreadable, or the target with the tokenizer is not on this machine.
    """
    location = locate(name)
    if (source := tokenizer_source_of(Path(location))) is not None:
        try:
            tokenizer = load_tokenizer(source.target)
        except ModelError as error:
            message = f"{name} uses the tokenizer of {source.target}. {error.message}"
            raise ModelError(message, error.remedy) from error
        if not source.matches(tokenizer):
            raise TokenizerMismatchError(
                f"{name} was trained with a tokenizer that differs from the tokenizer of {source.target} on "
                f"this machine.",
                TRAIN,
            )
        return tokenizer
    try:
        with convert_panics():
            return AutoTokenizer.from_pretrained(location, trust_remote_code=False)
    except Exception as error:
        raise ModelError(
            f"The tokenizer of {name} cannot be loaded: {_first_line(error)}", _remedy(name, location)
        ) from error


def encode(tokenizer: Any, text: str) -> list[int]:
    """Encode a prompt with a tokenizer, and return its token ids.

    Raises:
        PromptError: the tokenizer fails on the prompt.
    """
    try:
        with convert_panics():
            return tokenizer.encode(text)
    except Exception as error:  # tokenizers raise many types
        raise PromptError(
            f"The target's tokenizer cannot read this prompt: {_first_line(error)}",
            "Change the prompt, or choose another target.",
        ) from error


def load_processor(name: str, model: PreTrainedModel) -> Any:
    """Load the processor of a vision-language model; None for a text-only model or one without an image processor.

    Args:
        name: name of the model.
        model: the loaded model.

    Raises:
        ModelError: the processor's files cannot be read.
    """
    if not hasattr(model.config, "vision_config"):
        return None
    location = locate(name)
    try:
        with convert_panics():
            processor = AutoProcessor.from_pretrained(location, trust_remote_code=False)
    except Exception as error:
        raise ModelError(
            f"The processor of {name} cannot be loaded: {_first_line(error)}", _remedy(name, location)
        ) from error
    return processor if hasattr(processor, "image_processor") else None


def _first_line(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:200]


def _remedy(name: str, place: str) -> str:
    if Path(place).is_dir():
        return f"Check the files in {place} (config.json, tokenizer.json, *.safetensors)."
    return f"If {name} is a Hub id, check the spelling and the network, or use the bundled {DEFAULT_TARGET}."
