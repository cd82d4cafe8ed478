"""Pictures on their way into a language model: placeholders in the prompt, the processor's tensors, what they became.

A prompt holds one placeholder for each picture (the processor's `image_token`), as text or as a token id. The model's
own processor turns each into as many vision tokens as the picture takes; everything here starts from its tensors, so
that every Hugging Face image–text-to-text model is read in the same way.
"""

from __future__ import annotations

import base64
import dataclasses
import io
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from transformers import PretrainedConfig

from workbench.core.errors import ModelError, ParameterError, PromptError
from workbench.core.panics import no_panic
from workbench.trace.events import PNG_URL, Picture

if TYPE_CHECKING:
    from PIL.Image import Image

    from workbench.engine.models import Models
    from workbench.engine.request import Request, Row, Swap
    from workbench.engine.runner import Runner

Inputs = dict[str, Tensor]
"""What a processor returns for one prompt: `input_ids` [1, n], `pixel_values`, and what else the model wants."""
SHOWN = 512
"""Longest side in pixels of a picture kept in a trace, where the target does not see it as one grid of patches."""
_MARKERS = (
    "image_token_id", "image_token_index", "video_token_id", "vision_start_token_id", "vision_end_token_id",
    "boi_token_id", "boi_token_index", "eoi_token_id", "eoi_token_index", "begin_image_token_id", "end_image_token_id",
)  # fmt: skip
"""Names under which configurations keep the ids of tokens that stand for pictures or frame them."""
_CROSSING = {
    "mllama": "its layers look at the picture through cross-attention, whose states no accepted path can carry over",
    "idefics": "its layers look at the picture through cross-attention, whose states no accepted path can carry over",
}


@dataclass(slots=True)
class Pictured:
    """What a prompt with pictures became in a model. `Slot.pictured` holds it after a prefill with pixels.

    Attributes:
        embeds: [n, d] what entered the first layer, at every position of the prompt.
        features: [n, d] last hidden states, which the LM head reads, at every position.
        is_vision: bool [n], positions of vision tokens.
        grids: (rows, columns) of patches of each picture; (1, m) where its m tokens are no grid.
        spans: (start, end) of each picture's vision tokens in the prompt.
        seconds: how long the prefill took.
    """

    embeds: Float[Tensor, "n d"]
    features: Float[Tensor, "n d"]
    is_vision: Bool[Tensor, " n"]
    grids: list[tuple[int, int]]
    spans: list[tuple[int, int]]
    seconds: float = 0.0

    @property
    def n_vision(self) -> int:
        """Number of vision tokens."""
        return int(self.is_vision.sum())


# -- placeholders -----------------------------------------------------------------------------------------------------


def image_token_id(config: PretrainedConfig) -> int | None:
    """Id of the token that stands for one vision token in `input_ids`; None where a model has none."""
    found = getattr(config, "image_token_id", None)
    return found if found is not None else getattr(config, "image_token_index", None)


def marker_ids(config: PretrainedConfig) -> frozenset[int]:
    """Ids of all tokens that stand for pictures or frame them, which a text-only reader has to leave out."""
    ids = (getattr(config, name, None) for name in _MARKERS)
    return frozenset(i for i in ids if isinstance(i, int))


def why_no_pictures(config: PretrainedConfig, name: str) -> str:
    """Why a model cannot be shown pictures; empty when it can."""
    if not hasattr(config, "vision_config") and image_token_id(config) is None:
        return f"{name} reads text only."
    kind = getattr(config, "model_type", "")
    if kind in _CROSSING:
        return f"{name} ({kind}) cannot be shown pictures: {_CROSSING[kind]}."
    if image_token_id(config) is None:
        return f"{name} ({kind}) cannot be shown pictures: its prompt has no placeholder token for them."
    return ""


def placed(processor: Any, prompt: str | Sequence[int], n: int) -> str | list[int]:
    """The prompt with exactly one placeholder for each of `n` pictures.

    A prompt without any gets them in front, behind the special tokens that open it (a chat format's `<|user|>`). Any
    other number is refused, never repaired: so text that a user wrote (or quoted) cannot become a picture's place
    unless the caller meant it, and cannot move a picture to another place either.

    Raises:
        PromptError: there are more or fewer placeholders than pictures.
    """
    token, tokenizer = processor.image_token, processor.tokenizer
    special = {i: t.content for i, t in tokenizer.added_tokens_decoder.items() if t.special}
    if isinstance(prompt, str):
        places, opening = prompt.count(token), 0
        while opened := next((t for t in special.values() if prompt.startswith(t, opening)), ""):
            opening += len(opened)
        front: str | list[int] = prompt[:opening] + token * n + prompt[opening:]
    else:
        prompt, place = list(prompt), tokenizer.convert_tokens_to_ids(token)
        places = prompt.count(place)
        opening = next((i for i, t in enumerate(prompt) if t not in special), len(prompt))
        front = prompt[:opening] + [place] * n + prompt[opening:]
    if places == n:
        return prompt
    if places == 0:
        return front
    raise PromptError(
        f"The prompt has {_count(places, 'place')} for pictures ({token}), and {_count(n, 'picture')} came with it.",
        f"Write {token} once for each picture, or nowhere: pictures then come first.",
    )


def check_text(models: Models, ids: Sequence[int]) -> None:
    """Refuse a prompt without pictures that holds tokens which stand for some, or whose model needs one.

    Raises:
        PromptError: so it is.
    """
    config = models.target.model.config
    if getattr(models.target.config, "use_bidirectional_attention", None) is True:  # PaliGemma
        raise PromptError(
            f"{models.target_name or type(models.target.model).__name__} reads its prompt in both directions, and only "
            "together with a picture.",
            "Give a picture, or choose another target.",
        )
    wrong = image_token_id(config)
    if models.processor is not None and wrong is not None and wrong in ids:
        token = models.tokenizer.convert_ids_to_tokens(wrong)
        raise PromptError(
            f"The prompt has {_count(list(ids).count(wrong), 'place')} for pictures ({token}), and no picture came "
            "with it.",
            "Give the picture, or take the placeholder out of the text.",
        )


def check_end(models: Models, ids: Sequence[int]) -> None:
    """Refuse a prompt whose last token is a vision token: it could not be verified without its picture.

    Raises:
        PromptError: it is one.
    """
    if ids[-1] == image_token_id(models.target.model.config):
        raise PromptError("The prompt ends with a picture.", "Write something behind it, a question or a line's end.")


def _count(n: int, what: str) -> str:
    return f"{n or 'no'} {what}{'' if n == 1 else 's'}"


# -- reading ----------------------------------------------------------------------------------------------------------


def read(models: Models, prompt: str | Sequence[int], pictures: Sequence[Image]) -> tuple[str | list[int], Inputs]:
    """What the target's processor makes of a prompt with pictures.

    Args:
        models: the target, with its processor.
        prompt: text or token ids, with or without placeholders; ids may hold a picture's vision tokens already, as the
            `prompt_tokens` of a trace do.
        pictures: RGB.

    Returns:
        The prompt with one placeholder a picture, and the tensors of `Request.images`.

    Raises:
        PromptError: the target takes no pictures, their number is not that of the placeholders, or nothing follows
            the last of them.
    """
    name, config = models.target_name or "This target", models.target.model.config
    reason = why_no_pictures(config, name)
    if reason or models.processor is None:
        raise PromptError(
            reason or f"{name} has no processor that could read pictures.",
            "Leave the pictures out, or choose a target that reads them.",
        )
    if not isinstance(prompt, str):
        prompt = unexpanded(models.processor, list(prompt), pictures)
    prompt = placed(models.processor, prompt, len(pictures))
    inputs = process(models.processor, prompt, pictures)
    check_end(models, inputs["input_ids"][0].tolist())
    return prompt, inputs


def swapped(models: Models, request: Request, pictures: Sequence[Image], sees: str) -> Swap:
    """Other pictures for a run, each brought to the size of the one it replaces.

    Args:
        models: the run's.
        request: the run's; its `prompt` is what `read` returned.
        pictures: RGB, as many as the prompt has.
        sees: "both" or "drafter".

    Raises:
        PromptError: the run has none, or another number of pictures; or they take another number of tokens.
        ParameterError: `sees` is neither.
    """
    from workbench.engine.request import BOTH, DRAFTER, Swap  # which knows the runner, which knows this module

    if sees not in (BOTH, DRAFTER):
        raise ParameterError(f"sees={sees!r:.40} is not understood.", f"Use {BOTH} or {DRAFTER}.")
    if request.images is None or not request.pictures:
        raise PromptError("The run has no pictures that could be changed.", "Start a run with pictures.")
    if len(pictures) != len(request.pictures):
        raise PromptError(
            f"The prompt has {_count(len(request.pictures), 'picture')}, and {len(pictures)} came.",
            "Give one for each, the unchanged ones as well.",
        )
    pairs = zip(pictures, request.pictures, strict=True)
    fitted = tuple(new if new.size == old.size else new.resize(old.size) for new, old in pairs)
    inputs = process(models.processor, request.prompt, fitted)
    if not torch.equal(inputs["input_ids"], request.images["input_ids"].cpu()):
        raise PromptError("The changed pictures take another number of tokens.", "Start a new run with them.")
    return Swap(fitted, inputs, sees)


def process(processor: Any, prompt: str | Sequence[int], pictures: Sequence[Image]) -> Inputs:
    """What a processor makes of a prompt with one placeholder a picture.

    Raises:
        PromptError: the processor refuses, a picture of one pixel for a model that crops, say.
    """
    try:
        with no_panic():
            if isinstance(prompt, str):
                return dict(processor(text=[prompt], images=[list(pictures)], return_tensors="pt"))
            return _spliced(processor, list(prompt), pictures)
    except Exception as error:  # processors raise many kinds
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise PromptError(f"The model's processor refuses the pictures: {reason}", "Try another picture.") from error


def _spliced(processor: Any, ids: list[int], pictures: Sequence[Image]) -> Inputs:
    """The same for token ids: what the processor writes for each picture alone, put into its place."""
    place = processor.tokenizer.convert_tokens_to_ids(processor.image_token)
    together = processor(text=[processor.image_token * len(pictures)], images=[list(pictures)], return_tensors="pt")
    n_tokens = together["input_ids"].shape[1]
    along = [k for k, v in together.items() if isinstance(v, Tensor) and v.shape == (1, n_tokens)]
    cores = iter([_core(processor, picture) for picture in pictures])
    columns: dict[str, list[int]] = {name: [] for name in along}
    for token in ids:
        core = next(cores) if token == place else {"input_ids": [token], "attention_mask": [1]}
        for name, column in columns.items():
            column += core.get(name, [0] * len(core["input_ids"]))
    return {**together, **{name: torch.tensor([column]) for name, column in columns.items()}}


def _core(processor: Any, picture: Image) -> dict[str, list[int]]:
    """What stands in `input_ids`, and beside them, for one picture: from its first special token to its last."""
    alone = processor(text=[processor.image_token], images=[[picture]], return_tensors="pt")
    ids = alone["input_ids"][0].tolist()
    tokenizer = processor.tokenizer
    frame = {tokenizer.bos_token_id, tokenizer.eos_token_id}
    added = {i for i in tokenizer.added_tokens_decoder if i not in frame}
    inside = [i for i, token in enumerate(ids) if token in added]
    cut = slice(inside[0], inside[-1] + 1)
    return {
        name: value[0].tolist()[cut]
        for name, value in alone.items()
        if isinstance(value, Tensor) and value.shape == (1, len(ids))
    }


def unexpanded(processor: Any, ids: list[int], pictures: Sequence[Image]) -> list[int]:
    """Token ids with each picture's vision tokens, where they stand there already, put back to one placeholder."""
    place = processor.tokenizer.convert_tokens_to_ids(processor.image_token)
    if ids.count(place) == len(pictures):
        return ids
    found, at = list[int](), 0
    for picture in pictures:
        core = _core(processor, picture)["input_ids"]
        start = next((i for i in range(at, len(ids)) if ids[i : i + len(core)] == core), None)
        if start is None:
            return ids
        found += [*ids[at:start], place]
        at = start + len(core)
    return found + ids[at:]


def translated(source: Any, target: Any, prompt: str | Sequence[int]) -> str | list[int]:
    """A prompt whose placeholders are those of another processor."""
    if isinstance(prompt, str):
        return prompt.replace(source.image_token, target.image_token)
    theirs, ours = (p.tokenizer.convert_tokens_to_ids(p.image_token) for p in (source, target))
    return [ours if token == theirs else token for token in prompt]


def text_only(models: Models, prompt: str | Sequence[int]) -> list[int]:
    """The token ids of a prompt without its pictures: placeholders and what frames them left out."""
    config, tokenizer = models.target.model.config, models.tokenizer
    if isinstance(prompt, str):
        token = getattr(models.processor, "image_token", None) or ""
        return tokenizer.encode(prompt.replace(token, "") if token else prompt)
    gone = marker_ids(config)
    return [token for token in prompt if token not in gone]


# -- where the vision tokens are --------------------------------------------------------------------------------------


def layout(
    config: PretrainedConfig, inputs: Inputs, counts: Sequence[int] | None = None
) -> tuple[Bool[Tensor, " n"], list[tuple[int, int]], list[tuple[int, int]]]:
    """Which positions of a prompt are vision tokens, and for each picture its grid and its span.

    Args:
        config: of the model.
        inputs: of the prompt.
        counts: vision tokens of each picture, where the tensors do not say it (pictures cut into tiles).
    """
    is_vision = inputs["input_ids"][0] == image_token_id(config)
    places = is_vision.nonzero().flatten().tolist()
    sizes = _sizes(config, inputs, is_vision.tolist()) if counts is None else list(counts)
    grids, spans, at = [], [], 0
    for i, size in enumerate(sizes):
        mine = places[at : at + size]
        at += size
        if mine:
            spans.append((mine[0], mine[-1] + 1))
            grids.append(_grid(config, inputs, i, size))
    return is_vision, grids, spans


def _sizes(config: PretrainedConfig, inputs: Inputs, is_vision: list[bool]) -> list[int]:
    """Vision tokens of each picture."""
    total, grid = sum(is_vision), inputs.get("image_grid_thw")
    if grid is not None:
        return (grid.prod(1) // _merge(config) ** 2).tolist()
    pixels = inputs.get("pixel_values")
    n = len(pixels) if pixels is not None and pixels.dim() in (4, 5) else 1
    if n > 1 and total % n == 0 and (pixels is None or pixels.dim() == 4):
        return [total // n] * n
    runs = [sum(1 for _ in group) for seen, group in groupby(is_vision) if seen]
    return runs if len(runs) == n else [total]


def _grid(config: PretrainedConfig, inputs: Inputs, i: int, size: int) -> tuple[int, int]:
    grid, pixels = inputs.get("image_grid_thw"), inputs.get("pixel_values")
    if grid is not None:
        rows, cols = (int(x) // _merge(config) for x in grid[i, 1:])
        return (rows, cols) if rows * cols == size else (1, size)
    patch = getattr(getattr(config, "vision_config", None), "patch_size", None)
    if pixels is not None and pixels.dim() == 4 and isinstance(patch, int):
        rows, cols = pixels.shape[2] // patch, pixels.shape[3] // patch
        if rows * cols == size:
            return rows, cols
    side = math.isqrt(size)
    is_one_tile = pixels is None or pixels.dim() == 4
    return (side, side) if side * side == size and is_one_tile else (1, size)


def _merge(config: PretrainedConfig) -> int:
    return getattr(config.vision_config, "spatial_merge_size", 1)


# -- for the trace ----------------------------------------------------------------------------------------------------


def shown(models: Models, inputs: Inputs, pictures: Sequence[Image]) -> list[Picture]:
    """The pictures of a prompt as the target sees them; none where only the processor's tensors are known."""
    if not pictures:
        return []
    config = models.target.model.config
    is_vision, grids, spans = layout(config, inputs, tokens_of(models, inputs, pictures))
    assert is_vision.shape[0]
    found = []
    for i, (picture, (rows, cols), (start, end)) in enumerate(zip(pictures, grids, spans, strict=False)):
        image = _as_seen(models.processor, inputs, i, picture, len(pictures))
        found.append(Picture(png_url(image), image.width, image.height, rows, cols, start, end))
    return found


def tokens_of(models: Models, inputs: Inputs, pictures: Sequence[Image]) -> list[int] | None:
    """Vision tokens of each picture where only the processor knows; None where the tensors say it."""
    pixels = inputs.get("pixel_values")
    if len(pictures) < 2 or inputs.get("image_grid_thw") is not None or (pixels is not None and pixels.dim() == 4):
        return None
    token = image_token_id(models.target.model.config)
    return [_core(models.processor, picture)["input_ids"].count(token) for picture in pictures]  # type: ignore[arg-type]


def _as_seen(processor: Any, inputs: Inputs, i: int, picture: Image, n: int) -> Image:
    """The picture that the processor's tensor holds, where that is one picture; else the original, made smaller."""
    from PIL import Image as images

    pixels, grid = inputs.get("pixel_values"), inputs.get("image_grid_thw")
    part = processor.image_processor
    mean, std = getattr(part, "image_mean", None), getattr(part, "image_std", None)
    if pixels is not None and pixels.dim() == 4 and pixels.shape[:2] == (n, 3):
        values = pixels[i].float().cpu()
        if getattr(part, "do_normalize", True) and mean and std:
            values = values * torch.tensor(std).view(3, 1, 1) + torch.tensor(mean).view(3, 1, 1)
        return images.fromarray((values.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).numpy())
    if grid is not None and isinstance(patch := getattr(part, "patch_size", None), int):
        return picture.resize((int(grid[i, 2]) * patch, int(grid[i, 1]) * patch))
    small = picture.copy()
    small.thumbnail((SHOWN, SHOWN))
    return small


def png_url(image: Image) -> str:
    """A picture as a data-URL."""
    out = io.BytesIO()
    image.save(out, "PNG", optimize=True)
    return PNG_URL + base64.b64encode(out.getvalue()).decode("ascii")


def see(row: Row, **fields: Any) -> None:
    """For drafters: say what this row's drafter sees, from `prime` or `propose`; see `Round.vision` for the fields.

    The engine records it with the round that follows, and again only when it has changed.
    """
    row.vision.update(fields)


def vision_news(row: Row) -> dict[str, Any]:
    """What a row's target and drafter see, for `Round.vision`: {} where nothing has changed since it was said."""
    target, pictured = row.models.target, row.place.pictured
    if pictured is None:
        return {}
    n, swaps = pictured.n_vision, row.swapped
    sees_all = n if row.drafter.reads_target else 0
    now = {
        "drafter": _drafter_name(row), "compressor": None, "n_target": n, "n_drafter": sees_all,
        "target_bytes": n * position_bytes(target), "drafter_bytes": 0, "target_prefill_s": pictured.seconds,
        "drafter_prefill_s": 0.0, "kept": None, "blocks": None, "weights": None, "gate": None,
    } | row.vision  # fmt: skip
    if now == row.vision_said and not swaps:
        return {}
    row.vision_said, row.swapped = now, []
    if not swaps:
        return dict(now)
    *targets, last = ([dataclasses.asdict(p) for p in shown(row.models, s.images, s.pictures)] for s in swaps)
    return now | {"pictures": last, "sees": swaps[-1].sees} | ({"target_pictures": targets[0]} if targets else {})


def _drafter_name(row: Row) -> str | None:
    heads = [row.models.heads[need].name for need in row.drafter.needs if need in row.models.heads]
    return heads[0] if heads else row.models.drafter_name if any("drafter" in n for n in row.drafter.needs) else None


def position_bytes(runner: Runner) -> int:
    """Bytes of keys and values that one token takes in a model's cache."""
    cache = runner.cache
    return cache.n_bytes // (cache.n_rows * cache.capacity)


# -- watching a prefill -----------------------------------------------------------------------------------------------


@contextmanager
def watched(runner: Runner, first_layer: torch.nn.Module) -> Iterator[dict[str, Tensor]]:
    """Keep, while the model reads a whole prompt, what enters its first layer, where, and what leaves its last norm."""
    found: dict[str, Tensor] = {}
    trunk = runner.model.base_model
    if trunk is runner.model:
        raise ModelError(f"{type(trunk).__name__} has no part that gives the states its LM head reads.")

    def before(_: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        found["embeds"] = args[0] if args else named["hidden_states"]
        if isinstance(places := named.get("position_ids"), Tensor):
            found["places"] = places

    def after(_: Any, args: Any, output: Any) -> None:
        found["features"] = output[0]

    hooks = [
        first_layer.register_forward_pre_hook(before, with_kwargs=True),
        trunk.register_forward_hook(after),
    ]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()
