"""Does a model give in this engine the logits of its own full forward? Asked once, before anything is decoded.

The engine calls an unmodified model with explicit masks, explicit positions and a cache of its own. Most decoders take
all three at their word. Some do not: one counts positions by its cache's length, another takes them from where a key
lies in it, a third refuses the mask. Such a model would write other text, and that text would be called exact. So each
is asked, a long row beside a short one, for chains, what follows an accepted part of them, trees, and what follows an
accepted branch; every place is compared with the model's own forward of the whole text up to it, without a cache.

Equal means equal but for rounding, and rounding leaves the leading half of a number's digits alone: two results are the
same up to √ε of the largest logit. In float32 a position that is off by one errs by far more than that (3·10⁻⁴). In
half precision it could hide (9·10⁻² in bfloat16); there the comparison is made in float32 as well, module by module, so
that the weights are never there twice, and a path in the model's own dtype may be as far from float32 as that or as
`SLACK` times the model's own forward is: real models round the token after an attention sink badly by themselves.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from workbench.core.tree import ancestors
from workbench.kernels.attention_span import attention_spans
from workbench.kernels.device_clock import Meter
from workbench.kernels.kv_cache import TreeCache
from workbench.kernels.layers import longest_context
from workbench.kernels.masks import MaskMaker
from workbench.kernels.packed import unpacked
from workbench.kernels.positions import Geometry
from workbench.kernels.segment import Segment, Slot
from workbench.models.runner import Runner

SLACK = 4
"""How many times the model's own rounding error, in half precision, a path through our cache may err."""
LONG, SHORT = 5, 2
"""Tokens of the two prompts; the last of them is read together with the draft."""
CHAIN = (-1, 0, 1)
"""Parents of the long row's chain, of which one token is accepted: what follows is written over the others."""
TREE, BRANCH = (-1, 0, 1, -1, 3, 3), (3, 5)
"""Parents of the long row's tree, and the branch that is accepted. It lies three places further back in the cache than
in the text, which tells a model that looks at places from one that looks at positions."""
ROOM = 16
"""Positions that the comparison takes."""
THRESHOLDS = {"sliding_window": 4, "attention_chunk_size": 4, "floor_scale": 3, "original_max_position_embeddings": 3}
"""Lengths in tokens at which layers of some families begin to behave otherwise, by their names in configurations and
modules, and what they are during the comparison: its texts are shorter than any of a real model. A model with smaller
ones keeps them."""
UNSCALED = ("longrope", "dynamic")
"""Kinds of rotary embedding whose threshold ends the context instead (see `layers.longest_context`)."""
Text = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Standing:
    """What was found of a model; both are empty where everything holds.

    Attributes:
        why_not: why not even chains can be verified.
        why_no_trees: why only chains can be.
    """

    why_not: str = ""
    why_no_trees: str = ""


def standing(runner: Runner) -> Standing:
    """Compare an idle runner with its model's own forward. A difference has to show with two texts."""
    if longest_context(runner.config)[0] < ROOM:
        return Standing()  # nobody decodes with a model as short as this
    if getattr(runner.config, "use_bidirectional_attention", None) is True:
        return Standing()  # PaliGemma reads its prompt both ways, pictures and all: `vision.prefill` asks it
    found = Standing()
    for text in range(2):
        try:
            with torch.inference_mode(), scaled_down(runner):
                found = _compare(runner, text)
        except Exception as error:  # models raise many kinds when they are called otherwise than they expect
            if TreeCache.__name__ in str(error):  # as MiniMax's, which names the class that it was given
                return Standing("it takes a KV cache of its own class only, which cannot drop a rejected draft")
            said = f"{type(error).__name__}: {error}".splitlines()[0][:160]
            return Standing(f"its forward fails with explicit positions and masks ({said})")
        if found == Standing():
            return found
    return found


@contextmanager
def scaled_down(runner: Runner) -> Iterator[None]:
    """Set the model's thresholds to a few tokens for as long as this lasts, and measure its attention spans anew.

    Both the engine and the model's own forward then cross every window that the model has, within a few tokens.
    """
    objects: dict[int, Any] = {}
    for module in runner.model.modules():
        objects |= {id(item): item for item in (module, getattr(module, "config", None)) if item is not None}
    before = [
        (vars(item), name, vars(item)[name]) for item in objects.values() for name in THRESHOLDS.keys() & vars(item)
    ]
    ropes = [rope for item in objects.values() for rope in _ropes(vars(item).get("rope_parameters"))]
    before += [(rope, name, rope[name]) for rope in ropes for name in THRESHOLDS.keys() & rope]
    geometry = runner.geometry
    try:
        for values, name, value in before:
            if isinstance(value, int) and value > THRESHOLDS[name]:
                values[name] = THRESHOLDS[name]
        masks = MaskMaker(attention_spans(runner.model, ROOM), runner.dtype, runner.device, ROOM)
        runner.geometry = Geometry(masks, ROOM, geometry.multi_rope)
        yield
    finally:
        runner.geometry = geometry
        for values, name, value in before:
            values[name] = value


def _ropes(found: object) -> Iterator[dict[str, Any]]:
    """Return the parameters of each rotary embedding: there may be one for each type of layer."""
    if isinstance(found, dict):
        kinds = [found, *(part for part in found.values() if isinstance(part, dict))]
        yield from (kind for kind in kinds if kind.get("rope_type") not in UNSCALED)


# -- the comparison ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Place:
    """One place that is compared.

    Attributes:
        text: all tokens up to it, its own the last.
        logits: [V], what the engine says comes next.
        branched: whether it, or what it follows, lay in a tree.
    """

    text: Text
    logits: Float[Tensor, " V"]
    branched: bool


def _compare(runner: Runner, which: int) -> Standing:
    """One comparison, with one of two sets of tokens."""
    ours = _through_cache(runner, which)
    own, ahead = _by_itself(runner.model, ours)
    digits = _digits(runner.dtype)
    if runner.dtype.itemsize > 2:
        times = [_distance(place.logits, own[place.text]) / digits for place in ours]
    else:
        times = _times_in_half(runner, which, ours, own, digits)
    paired = list(zip(ours, times, strict=True))
    chains = max((t for place, t in paired if not place.branched), key=_nan_last)
    trees = max((t for place, t in paired if place.branched), key=_nan_last)
    if not chains <= 1 and not ahead <= digits:
        return Standing("its logits at a token depend on later tokens, so it cannot verify drafts")
    if not chains <= 1:
        return Standing(f"a token read after cached tokens gets other logits than in its whole text, {_far(chains)}")
    if not trees <= 1:
        return Standing("", f"a token on a second branch gets other logits than in its own text, {_far(trees)}")
    return Standing()


def _times_in_half(
    runner: Runner, which: int, ours: Sequence[_Place], own: Mapping[Text, Tensor], digits: float
) -> list[float]:
    """By place, how many times as far off it is as rounding explains: in float32, and in half precision against it."""
    with _in_float32(runner):
        ours_wide, (wide, _) = _through_cache(runner, which), _by_itself(runner.model, ours)
    found = []
    for place, place_wide in zip(ours, ours_wide, strict=True):
        right = wide[place.text]
        allowed = max(digits, SLACK * _distance(own[place.text], right))
        in_wide = _distance(place_wide.logits, right) / _digits(torch.float32)
        found.append(max(_distance(place.logits, right) / allowed, in_wide, key=_nan_last))
    return found


def _through_cache(runner: Runner, which: int) -> list[_Place]:
    """What the engine says, in an order that depends on nothing but the tokens."""
    tokens = _ordinary_tokens(runner, which)
    long, short, chain, tree = (list(itertools.islice(tokens, n)) for n in (LONG, SHORT, len(CHAIN), len(TREE)))
    ids = partial(torch.tensor, device=runner.device)
    found: list[_Place] = []
    with _small_cache(runner):
        rows = [runner.open(), runner.open()]
        runner.prefill(rows[0], long[:-1], chunk=3)
        runner.prefill(rows[1], short[:-1])

        def verify(drafts: Sequence[tuple[Sequence[int], Sequence[int], Sequence[int]]], branched: bool) -> None:
            """Verify one draft a row, given as the text before it, its tokens and their parents."""
            segments = [
                _segment(row, ids([text[-1], *draft]), parents if branched else None)
                for row, (text, draft, parents) in zip(rows, drafts, strict=False)
            ]
            logits = runner.forward(segments).logits
            for b, (text, draft, parents) in enumerate(drafts):
                paths = [tuple(text)]
                for node, parent in zip(draft, parents, strict=True):
                    paths.append((*paths[parent + 1], node))
                found.extend(_Place(path, logits[b, i].clone(), branched and i > 0) for i, path in enumerate(paths))

        verify([(long, chain, CHAIN), (short, chain[:1], CHAIN[:1])], branched=False)
        runner.commit(rows[0], [0, 1])
        runner.commit(rows[1], [0])
        long, short = [*long, chain[0], next(tokens)], [*short, next(tokens)]
        verify([(long, tree, TREE), (short, tree[4:], (-1, -1))], branched=True)
        runner.commit(rows[0], [0, *(node + 1 for node in BRANCH)])
        long = [*long, *(tree[node] for node in BRANCH), next(tokens)]
        out = runner.forward([_segment(rows[0], ids(long[-1:]))])
        return [*found, _Place(tuple(long), out.logits[0, 0].clone(), True)]


def _segment(slot: Slot, tokens: Int[Tensor, " n"], parents: Sequence[int] | None = None) -> Segment:
    """The newest token of a text and a draft behind it, as the engine hands them to its target."""
    if parents is None:
        return Segment(slot, tokens)
    sees = ancestors(torch.tensor([-1, *(p + 1 for p in parents)], device=tokens.device), len(tokens))
    return Segment(slot, tokens, sees, sees.sum(1) - 1)


def _by_itself(model: PreTrainedModel, places: Sequence[_Place]) -> tuple[dict[Text, Float[Tensor, " V"]], float]:
    """What a model says behind each text without our cache, masks and positions.

    Returns:
        Logits by text, read off whole forwards of the texts that no other goes on from; and how far those of one text
        are from each other in several of them, which is next to nothing where no token looks ahead.
    """
    texts = sorted({place.text for place in places}, key=lambda text: (len(text), text))
    whole = [text for text in texts if not any(len(t) > len(text) and t[: len(text)] == text for t in texts)]
    found: dict[Text, Tensor] = {}
    ahead = 0.0
    with unpacked(model):
        for _, group in itertools.groupby(whole, key=len):
            same = list(group)
            logits = model(input_ids=torch.tensor(same, device=model.device), use_cache=False).logits
            for text, b in itertools.product(texts, range(len(same))):
                if same[b][: len(text)] == text:
                    here = logits[b, len(text) - 1]
                    ahead = max(ahead, _distance(here, found.setdefault(text, here)), key=_nan_last)
    return found, ahead


def _distance(a: Float[Tensor, " V"], b: Float[Tensor, " V"]) -> float:
    """Largest difference of logits, as a share of the largest of `b` counted from their mean."""
    a, b = a.double(), b.double()
    open_ = b > b.max() - 1e4  # some models shut entries with an enormous negative number
    a, b = a[open_], b[open_]
    return float((a - b).abs().max() / (b - b.mean()).abs().max())


def _digits(dtype: torch.dtype) -> float:
    """√ε, and no less than float32's: models compute norms and routers in float32 whatever their dtype."""
    return max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps) ** 0.5


def _nan_last(x: float) -> tuple[bool, float]:
    return math.isnan(x), x


def _far(times: float) -> str:
    return "NaN" if math.isnan(times) else f"{times:,.0f} times the difference that rounding explains"


def _ordinary_tokens(runner: Runner, which: int) -> Iterator[int]:
    """Token ids spread over the vocabulary, none of which means something special (padding, a picture)."""
    named = {**runner.model.config.to_dict(), **runner.config.to_dict()}
    special = {value for name, value in named.items() if "token" in name and isinstance(value, int)}
    step = runner.vocab_size // 29 or 1
    ids = ((which + 1 + i * step) % runner.vocab_size for i in itertools.count(1))
    return (token for token in ids if token not in special)


@contextmanager
def _small_cache(runner: Runner) -> Iterator[None]:
    """Meanwhile the runner has no rows, a cache for two short ones, a meter of its own, and records nothing."""
    before = runner.cache, runner.slots, runner.meter, runner.replays
    runner.cache, runner.slots, runner.meter = TreeCache(runner.n_layers, 2, ROOM), [], Meter()
    runner.replays = None  # they are of its own cache
    try:
        yield
    finally:
        runner.cache, runner.slots, runner.meter, runner.replays = before


@contextmanager
def _in_float32(runner: Runner) -> Iterator[None]:
    """Meanwhile the model computes in float32: a module's own weights are wide for as long as it runs."""
    before = runner.geometry, runner._lean
    kept: dict[nn.Module, list[tuple[Tensor, Tensor]]] = {}

    def widen(module: nn.Module, *_: object) -> None:
        own = itertools.chain(module.parameters(recurse=False), module.buffers(recurse=False))
        kept[module] = [(tensor, tensor.data) for tensor in own if tensor.dtype.itemsize == 2]
        for tensor, data in kept[module]:
            tensor.data = data.float()

    def narrow(module: nn.Module, *_: object) -> None:
        for tensor, data in kept.pop(module, []):
            tensor.data = data

    hooks = [
        hook
        for module in runner.model.modules()
        for hook in (
            module.register_forward_pre_hook(widen, prepend=True),
            module.register_forward_hook(narrow, always_call=True),
        )
    ]
    masks = MaskMaker(before[0].masks.spans, torch.float32, runner.device, ROOM)
    runner.geometry = Geometry(masks, ROOM, before[0].multi_rope)
    runner._lean = None
    try:
        with unpacked(runner.model):
            yield
    finally:
        runner.geometry, runner._lean = before
        for hook in hooks:
            hook.remove()
        for module in list(kept):
            narrow(module)
