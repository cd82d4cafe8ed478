"""Images as model inputs: placeholders in the prompt, and the tensors of the image processor.

A prompt contains one placeholder per image (the processor's `image_token`), as text or as a token id. The model's own
processor expands each into the image's vision tokens. All functions here start from the processor's tensors, so that
all Hugging Face image–text-to-text models are handled in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from workbench.core.errors import ParameterError, PromptError
from workbench.core.panics import convert_panics
from workbench.engine.request import Request
from workbench.engine.settings import BOTH, DRAFTER, ImageChange
from workbench.kernels.image_layout import Inputs, image_token_id, marker_ids, why_no_images

if TYPE_CHECKING:
    from PIL.Image import Image

    from workbench.models.loading import Models


def insert_placeholders(processor: Any, prompt: str | Sequence[int], n: int) -> str | list[int]:
    """Return the prompt with exactly one placeholder for each of `n` images.

    If a prompt has no placeholders, they are inserted at the start, after opening special tokens (`<|user|>` of a chat
    format). A wrong number of placeholders is refused, never corrected. So a placeholder that a user quotes in the text
    cannot receive an image by accident, or move an image to another position.

    Raises:
        PromptError: the numbers of placeholders and images differ.
    """
    token, tokenizer = processor.image_token, processor.tokenizer
    special = {i: t.content for i, t in tokenizer.added_tokens_decoder.items() if t.special}
    if isinstance(prompt, str):
        count, opening = prompt.count(token), 0
        while prefix := next((t for t in special.values() if prompt.startswith(t, opening)), ""):
            opening += len(prefix)
        with_placeholders: str | list[int] = prompt[:opening] + token * n + prompt[opening:]
    else:
        prompt, token_id = list(prompt), tokenizer.convert_tokens_to_ids(token)
        count = prompt.count(token_id)
        opening = next((i for i, t in enumerate(prompt) if t not in special), len(prompt))
        with_placeholders = prompt[:opening] + [token_id] * n + prompt[opening:]
    if count == n:
        return prompt
    if count == 0:
        return with_placeholders
    raise PromptError(
        f"The prompt has {_count(count, 'image placeholder')} ({token}), but {_count(n, 'image')} "
        f"{'was' if n == 1 else 'were'} given.",
        f"Write {token} once per image, or leave it out: the images then precede the text.",
    )


def check_text(models: Models, ids: Sequence[int]) -> None:
    """Refuse a prompt without images if it contains image placeholders, or if the target needs an image.

    Raises:
        PromptError: the prompt is refused.
    """
    config = models.target.model.config
    if getattr(models.target.config, "use_bidirectional_attention", None) is True:  # PaliGemma
        raise PromptError(
            f"{models.target_name or type(models.target.model).__name__} reads the prompt with bidirectional "
            f"attention, which works only together with an image.",
            "Give an image, or choose another target.",
        )
    marker = image_token_id(config)
    if models.processor is not None and marker is not None and marker in ids:
        token = models.tokenizer.convert_ids_to_tokens(marker)
        raise PromptError(
            f"The prompt has {_count(list(ids).count(marker), 'image placeholder')} ({token}), but no image was given.",
            "Give the image, or remove the placeholder from the text.",
        )


def check_end(models: Models, ids: Sequence[int]) -> None:
    """Refuse a prompt whose last token is a vision token, because that token cannot be verified without its image.

    Raises:
        PromptError: the prompt ends with a vision token.
    """
    if ids[-1] == image_token_id(models.target.model.config):
        raise PromptError(
            "The prompt ends with an image.", "Write text after the image, such as a question or a newline."
        )


def _count(n: int, what: str) -> str:
    return f"{n or 'no'} {what}{'' if n == 1 else 's'}"


def process_prompt(
    models: Models, prompt: str | Sequence[int], images: Sequence[Image]
) -> tuple[str | list[int], Inputs]:
    """Process a prompt with images for the target.

    Args:
        models: models with the target and the processor.
        prompt: text or token ids, with or without placeholders; ids may already contain an image's vision tokens, like
            the `prompt_tokens` of a trace.
        images: RGB images.

    Returns:
        The prompt with one placeholder per image, and the tensors for `Request.image_inputs`.

    Raises:
        PromptError: the target does not read images, the numbers of images and placeholders differ, or the
            prompt ends with an image.
    """
    name, config = models.target_name or "This target", models.target.model.config
    reason = why_no_images(config, name)
    if reason or models.processor is None:
        raise PromptError(
            reason or f"{name} has no processor for images.",
            "Remove the images, or choose a target that reads images.",
        )
    if not isinstance(prompt, str):
        prompt = collapse_image_tokens(models.processor, list(prompt), images)
    prompt = insert_placeholders(models.processor, prompt, len(images))
    inputs = process(models.processor, prompt, images)
    check_end(models, inputs["input_ids"][0].tolist())
    return prompt, inputs


def create_image_change(models: Models, request: Request, images: Sequence[Image], receiver: str) -> ImageChange:
    """Return a change of a run's images, with each new image resized to the size of the one that it replaces.

    Args:
        models: models of the run.
        request: request of the run, whose `prompt` is the prompt that `process_prompt` returned.
        images: RGB images, as many as the prompt has.
        receiver: models that get the new images: "both" (target and drafter) or "drafter".

    Raises:
        PromptError: the run has no images, the number of images differs, or the new images need another number of
            tokens.
        ParameterError: `receiver` is neither "both" nor "drafter".
    """
    if receiver not in (BOTH, DRAFTER):
        raise ParameterError(
            f"sees={receiver!r:.40} is not a model that can get the changed images.",
            f"Use sees={BOTH} or sees={DRAFTER}.",
        )
    if request.image_inputs is None or not request.pil_images:
        raise PromptError("This run has no images that could be changed.", "Start a run with images.")
    if len(images) != len(request.pil_images):
        raise PromptError(
            f"The prompt has {_count(len(request.pil_images), 'image')}, but {len(images)} were given.",
            "Give one image for each image in the prompt, including unchanged ones.",
        )
    pairs = zip(images, request.pil_images, strict=True)
    fitted = tuple(new if new.size == old.size else new.resize(old.size) for new, old in pairs)
    inputs = process(models.processor, request.prompt, fitted)
    if not torch.equal(inputs["input_ids"], request.image_inputs["input_ids"].cpu()):
        raise PromptError(
            "The changed images would have another number of vision tokens than the original images.",
            "Start a new run with the changed images.",
        )
    return ImageChange(fitted, inputs, receiver)


def process(processor: Any, prompt: str | Sequence[int], images: Sequence[Image]) -> Inputs:
    """Return the image processor's tensors for a prompt that has one placeholder per image.

    Raises:
        PromptError: the processor raises an error, e.g. for an image of one pixel in a model that crops.
    """
    try:
        with convert_panics():
            if isinstance(prompt, str):
                return dict(processor(text=[prompt], images=[list(images)], return_tensors="pt"))
            return _expand_placeholders(processor, list(prompt), images)
    except Exception as error:  # processors raise many types
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise PromptError(f"The model's processor rejects the images: {reason}", "Use another image.") from error


def _expand_placeholders(processor: Any, ids: list[int], pictures: Sequence[Image]) -> Inputs:
    """Return the model inputs for a prompt of token ids, with each placeholder replaced by its image's tokens."""
    placeholder = processor.tokenizer.convert_tokens_to_ids(processor.image_token)
    batch = processor(text=[processor.image_token * len(pictures)], images=[list(pictures)], return_tensors="pt")
    n_tokens = batch["input_ids"].shape[1]
    parallel = [k for k, v in batch.items() if isinstance(v, Tensor) and v.shape == (1, n_tokens)]
    cores = iter([_image_inputs_of(processor, picture) for picture in pictures])
    columns: dict[str, list[int]] = {name: [] for name in parallel}
    for token in ids:
        core = next(cores) if token == placeholder else {"input_ids": [token], "attention_mask": [1]}
        for name, column in columns.items():
            column += core.get(name, [0] * len(core["input_ids"]))
    return {**batch, **{name: torch.tensor([column]) for name, column in columns.items()}}


def _image_inputs_of(processor: Any, picture: Image) -> dict[str, list[int]]:
    """Return the per-token inputs (`input_ids`, …) that a processor makes of one image, with its delimiters."""
    inputs = processor(text=[processor.image_token], images=[[picture]], return_tensors="pt")
    ids = inputs["input_ids"][0].tolist()
    tokenizer = processor.tokenizer
    bos_eos = {tokenizer.bos_token_id, tokenizer.eos_token_id}
    special_ids = {i for i in tokenizer.added_tokens_decoder if i not in bos_eos}
    indices = [i for i, token in enumerate(ids) if token in special_ids]
    span = slice(indices[0], indices[-1] + 1)
    return {
        name: value[0].tolist()[span]
        for name, value in inputs.items()
        if isinstance(value, Tensor) and value.shape == (1, len(ids))
    }


def collapse_image_tokens(processor: Any, ids: list[int], images: Sequence[Image]) -> list[int]:
    """Return the token ids with the vision tokens of each image, if present, replaced by one placeholder."""
    place = processor.tokenizer.convert_tokens_to_ids(processor.image_token)
    if ids.count(place) == len(images):
        return ids
    result, at = list[int](), 0
    for picture in images:
        core = _image_inputs_of(processor, picture)["input_ids"]
        start = next((i for i in range(at, len(ids)) if ids[i : i + len(core)] == core), None)
        if start is None:
            return ids
        result += [*ids[at:start], place]
        at = start + len(core)
    return result + ids[at:]


def translate_placeholders(source: Any, target: Any, prompt: str | Sequence[int]) -> str | list[int]:
    """Return a prompt with the image placeholders of the processor `source` replaced by those of `target`."""
    if isinstance(prompt, str):
        return prompt.replace(source.image_token, target.image_token)
    source_id, target_id = (p.tokenizer.convert_tokens_to_ids(p.image_token) for p in (source, target))
    return [target_id if token == source_id else token for token in prompt]


def text_only(models: Models, prompt: str | Sequence[int]) -> list[int]:
    """Return the token ids of a prompt without its images: image placeholders and delimiters removed."""
    config, tokenizer = models.target.model.config, models.tokenizer
    if isinstance(prompt, str):
        token = getattr(models.processor, "image_token", None) or ""
        return tokenizer.encode(prompt.replace(token, "") if token else prompt)
    image_ids = marker_ids(config)
    return [token for token in prompt if token not in image_ids]


def image_token_counts(models: Models, inputs: Inputs, images: Sequence[Image]) -> list[int] | None:
    """Return the number of vision tokens of each image of a prompt.

    None if the shapes of `inputs` already determine these numbers.
    """
    pixels = inputs.get("pixel_values")
    if len(images) < 2 or inputs.get("image_grid_thw") is not None or (pixels is not None and pixels.dim() == 4):
        return None
    token = image_token_id(models.target.model.config)
    return [_image_inputs_of(models.processor, picture)["input_ids"].count(token) for picture in images]  # type: ignore[arg-type]
