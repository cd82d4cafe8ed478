"""Test a model in this engine before decoding: its logits must equal those of its own full forward pass (self-test).

The engine calls an unmodified model with explicit masks, explicit positions and its own KV cache. Most decoders use all
three as given. Some do not: one counts positions by the cache's length, another derives them from a key's index in the
cache, a third ignores the mask. Such a model would generate wrong text that the workbench calls exact. So each model is
tested with a long sequence next to a short one: a chain, continuation after a part of the chain was accepted, a tree,
and continuation after a branch was accepted. The logits at every position are compared with those of the model's own
forward pass over the whole text up to this position, without a cache.

Equal means equal up to rounding: two results are equal if they differ by at most √ε of the largest logit, that is, if
the leading half of the digits agrees. In float32 a position that is off by one causes a far larger error than √ε
(3·10⁻⁴). In half precision its error could be smaller than √ε (9·10⁻² in bfloat16). Models in half precision are
therefore also compared in float32, module by module, so that the weights are never in memory twice. In the model's own
dtype, the error relative to float32 may be √ε or `SLACK` times the error of the model's own forward pass, whichever is
larger: in real models, the token after an attention sink has large rounding errors in any forward pass.
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

from workbench.core.tree import tree_attention_mask
from workbench.kernels.attention_span import attention_spans
from workbench.kernels.device_clock import Meter
from workbench.kernels.kv_cache import TreeCache
from workbench.kernels.layers import longest_context
from workbench.kernels.masks import MaskMaker
from workbench.kernels.packed import unpack_temporarily
from workbench.kernels.positions import ForwardInputBuilder
from workbench.kernels.segment import Segment, Slot
from workbench.models.runner import Runner

SLACK = 4
"""Maximum error of the engine's logits in half precision in a model's self-test, as a multiple of the rounding error of
the model's own forward pass."""
LONG, SHORT = 5, 2
"""Numbers of tokens of the two prompts in a model's self-test. The last token of each prompt is processed together with
the draft."""
CHAIN = (-1, 0, 1)
"""Parent of each token of the drafted chain in a model's self-test. Only its first token is accepted, so that later KV
cache entries overwrite those of the rejected tokens."""
TREE, BRANCH = (-1, 0, 1, -1, 3, 3), (3, 5)
"""Parent of each node of the drafted tree in a model's self-test, and the nodes of the accepted branch. The branch's
cache indices are larger than its text positions, which exposes models that use cache indices instead of positions."""
ROOM = 16
"""Number of KV-cache positions per sequence that a model's self-test needs."""
THRESHOLDS = {"sliding_window": 4, "attention_chunk_size": 4, "floor_scale": 3, "original_max_position_embeddings": 3}
"""Name of a threshold in configurations and modules → its value, in tokens, during a model's self-test. At such a
threshold, for example the size of a sliding window, layers change their behaviour. The texts of the self-test are
shorter than the thresholds of real models, so thresholds are lowered; smaller ones are left unchanged."""
UNSCALED = ("longrope", "dynamic")
"""RoPE types whose original context is not lowered in a model's self-test, because the workbench never exceeds it (see
`layers.longest_context`)."""
Text = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SelfTestResult:
    """Result of a model's self-test.

    Attributes:
        why_not: reason why no drafts can be verified, not even chains; "" if chains can be verified.
        why_no_trees: reason why trees cannot be verified although chains can; "" if trees can be verified.
    """

    why_not: str = ""
    why_no_trees: str = ""


def run_self_test(runner: Runner) -> SelfTestResult:
    """Test a model: compare the logits of an idle runner with those of the model's own forward pass.

    A difference counts only if it occurs with two different texts.
    """
    if longest_context(runner.config)[0] < ROOM:
        return SelfTestResult()  # a context this short is of no practical use
    if getattr(runner.config, "use_bidirectional_attention", None) is True:
        return SelfTestResult()  # PaliGemma's prompt attention is bidirectional; `image_prefill` tests it instead
    result = SelfTestResult()
    for text in range(2):
        try:
            with torch.inference_mode(), scaled_down(runner):
                result = _compare(runner, text)
        except Exception as error:  # models raise many types when called in an unexpected way
            if TreeCache.__name__ in str(error):  # e.g. MiniMax: its error names the cache class that was passed
                return SelfTestResult(
                    "the model supports only its own class of KV cache, which cannot drop rejected drafts"
                )
            message = f"{type(error).__name__}: {error}".splitlines()[0][:160]
            return SelfTestResult(f"its forward pass fails with explicit position ids and attention masks ({message})")
        if result == SelfTestResult():
            return result
    return result


@contextmanager
def scaled_down(runner: Runner) -> Iterator[None]:
    """Temporarily reduce the lengths at which a model's layers change their behaviour to a few tokens (`THRESHOLDS`).

    Examples of such lengths are the sliding window and the original context of a RoPE scaling. Attention spans are
    measured again. Both the engine and the model's own forward pass then exceed every such length within a few tokens.
    """
    objects: dict[int, Any] = {}
    for module in runner.model.modules():
        objects |= {id(item): item for item in (module, getattr(module, "config", None)) if item is not None}
    thresholds = [
        (vars(item), name, vars(item)[name]) for item in objects.values() for name in THRESHOLDS.keys() & vars(item)
    ]
    ropes = [rope for item in objects.values() for rope in _ropes(vars(item).get("rope_parameters"))]
    thresholds += [(rope, name, rope[name]) for rope in ropes for name in THRESHOLDS.keys() & rope]
    geometry = runner.geometry
    try:
        for values, name, value in thresholds:
            if isinstance(value, int) and value > THRESHOLDS[name]:
                values[name] = THRESHOLDS[name]
        masks = MaskMaker(attention_spans(runner.model, ROOM), runner.dtype, runner.device, ROOM)
        runner.geometry = ForwardInputBuilder(masks, ROOM, geometry.multi_rope)
        yield
    finally:
        runner.geometry = geometry
        for values, name, value in thresholds:
            values[name] = value


def _ropes(found: object) -> Iterator[dict[str, Any]]:
    """Yield the parameters of each rotary embedding in a model's configuration, which may have one per layer type."""
    if isinstance(found, dict):
        kinds = [found, *(part for part in found.values() if isinstance(part, dict))]
        yield from (kind for kind in kinds if kind.get("rope_type") not in UNSCALED)


# -- the comparison ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Place:
    """Position of a text at which a self-test compares logits.

    Attributes:
        text: all tokens up to and including this position.
        logits: [V], the engine's logits of the next token.
        branched: whether this position or an earlier one was verified in a draft tree.
    """

    text: Text
    logits: Float[Tensor, " V"]
    branched: bool


def _compare(runner: Runner, which: int) -> SelfTestResult:
    """Compare the engine's logits with those of the model's own forward pass, with one of two sets of tokens.

    `which` (0 or 1) selects the tokens.
    """
    results = _logits_of_engine(runner, which)
    reference, leak = _logits_of_model(runner.model, results)
    digits = _allowed_error(runner.dtype)
    if runner.dtype.itemsize > 2:
        times = [_distance(position.logits, reference[position.text]) / digits for position in results]
    else:
        times = _errors_in_half_precision(runner, which, results, reference, digits)
    pairs = list(zip(results, times, strict=True))
    chains = max((t for position, t in pairs if not position.branched), key=_nan_last)
    trees = max((t for position, t in pairs if position.branched), key=_nan_last)
    if not chains <= 1 and not leak <= digits:
        return SelfTestResult("its logits at a token depend on later tokens, so the model cannot verify drafts")
    if not chains <= 1:
        return SelfTestResult(
            f"a token after cached tokens has other logits than in its whole text, {_describe_error(chains)}"
        )
    if not trees <= 1:
        return SelfTestResult(
            "", f"a token on a second branch has other logits than in its own text, {_describe_error(trees)}"
        )
    return SelfTestResult()


def _errors_in_half_precision(
    runner: Runner, which: int, ours: Sequence[_Place], own: Mapping[Text, Tensor], digits: float
) -> list[float]:
    """Return the error of the engine's logits for a half-precision model at each position / the allowed error.

    Each result is the larger of two such quotients: of the engine in float32, and of the engine in half precision.
    """
    with _in_float32(runner):
        ours_wide, (wide_logits, _) = _logits_of_engine(runner, which), _logits_of_model(runner.model, ours)
    multiples = []
    for position, position_wide in zip(ours, ours_wide, strict=True):
        reference = wide_logits[position.text]
        allowed = max(digits, SLACK * _distance(own[position.text], reference))
        float32_multiple = _distance(position_wide.logits, reference) / _allowed_error(torch.float32)
        multiples.append(max(_distance(position.logits, reference) / allowed, float32_multiple, key=_nan_last))
    return multiples


def _logits_of_engine(runner: Runner, which: int) -> list[_Place]:
    """Return the logits computed with the engine's KV cache at each position that the self-test compares.

    Args:
        runner: runner of the model.
        which: 0 or 1, which selects one of two sets of tokens.
    """
    tokens = _ordinary_tokens(runner, which)
    long, short, chain, tree = (list(itertools.islice(tokens, n)) for n in (LONG, SHORT, len(CHAIN), len(TREE)))
    ids = partial(torch.tensor, device=runner.device)
    results: list[_Place] = []
    with _small_cache(runner):
        rows = [runner.open(), runner.open()]
        runner.prefill(rows[0], long[:-1], chunk=3)
        runner.prefill(rows[1], short[:-1])

        def verify(drafts: Sequence[tuple[Sequence[int], Sequence[int], Sequence[int]]], branched: bool) -> None:
            """Run one draft per sequence, given as (text before the draft, tokens, parents), through the model."""
            segments = [
                _segment(row, ids([text[-1], *draft]), parents if branched else None)
                for row, (text, draft, parents) in zip(rows, drafts, strict=False)
            ]
            logits = runner.forward(segments).logits
            for b, (text, draft, parents) in enumerate(drafts):
                paths = [tuple(text)]
                for node, parent in zip(draft, parents, strict=True):
                    paths.append((*paths[parent + 1], node))
                results.extend(_Place(path, logits[b, i].clone(), branched and i > 0) for i, path in enumerate(paths))

        verify([(long, chain, CHAIN), (short, chain[:1], CHAIN[:1])], branched=False)
        runner.commit(rows[0], [0, 1])
        runner.commit(rows[1], [0])
        long, short = [*long, chain[0], next(tokens)], [*short, next(tokens)]
        verify([(long, tree, TREE), (short, tree[4:], (-1, -1))], branched=True)
        runner.commit(rows[0], [0, *(node + 1 for node in BRANCH)])
        long = [*long, *(tree[node] for node in BRANCH), next(tokens)]
        out = runner.forward([_segment(rows[0], ids(long[-1:]))])
        return [*results, _Place(tuple(long), out.logits[0, 0].clone(), True)]


def _segment(slot: Slot, tokens: Int[Tensor, " n"], parents: Sequence[int] | None = None) -> Segment:
    """Return the segment of new tokens (a text's last token, then a draft) as the engine passes it to its target.

    Args:
        slot: slot with the text before these tokens.
        tokens: the text's last token and the drafted tokens.
        parents: parent of each drafted token; None: a chain.
    """
    if parents is None:
        return Segment(slot, tokens)
    sees = tree_attention_mask(torch.tensor([-1, *(p + 1 for p in parents)], device=tokens.device), len(tokens))
    return Segment(slot, tokens, sees, sees.sum(1) - 1)


def _logits_of_model(model: PreTrainedModel, places: Sequence[_Place]) -> tuple[dict[Text, Float[Tensor, " V"]], float]:
    """Return the logits after each text from a model's own forward pass, without the engine's cache and masks.

    Returns:
        Logits by text, from forward passes over the longest texts; and the largest difference between logits of the
        same text in different forward passes, which is close to 0 if no token depends on later tokens.
    """
    texts = sorted({position.text for position in places}, key=lambda text: (len(text), text))
    longest = [text for text in texts if not any(len(t) > len(text) and t[: len(text)] == text for t in texts)]
    logits_by_text: dict[Text, Tensor] = {}
    leak = 0.0
    with unpack_temporarily(model):
        for _, group in itertools.groupby(longest, key=len):
            same = list(group)
            logits = model(input_ids=torch.tensor(same, device=model.device), use_cache=False).logits
            for text, b in itertools.product(texts, range(len(same))):
                if same[b][: len(text)] == text:
                    token_logits = logits[b, len(text) - 1]
                    leak = max(
                        leak, _distance(token_logits, logits_by_text.setdefault(text, token_logits)), key=_nan_last
                    )
    return logits_by_text, leak


def _distance(a: Float[Tensor, " V"], b: Float[Tensor, " V"]) -> float:
    """Return the largest difference between two rows of logits, relative to the largest deviation of `b` from its mean.

    Args:
        a: logits to compare.
        b: reference logits.
    """
    a, b = a.double(), b.double()
    is_unmasked = b > b.max() - 1e4  # some models mask entries with a huge negative number
    a, b = a[is_unmasked], b[is_unmasked]
    return float((a - b).abs().max() / (b - b.mean()).abs().max())


def _allowed_error(dtype: torch.dtype) -> float:
    """Return the allowed relative error √ε of logits in a self-test; ε is the dtype's epsilon, at least float32's.

    Even float64 models compute norms and routers in float32.
    """
    return max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps) ** 0.5


def _nan_last(x: float) -> tuple[bool, float]:
    return math.isnan(x), x


def _describe_error(times: float) -> str:
    return "NaN" if math.isnan(times) else f"{times:,.0f} times the difference that rounding can explain"


def _ordinary_tokens(runner: Runner, which: int) -> Iterator[int]:
    """Yield token ids spread over the vocabulary, without special tokens (padding, image).

    Args:
        runner: runner of the model.
        which: 0 or 1, which selects one of two sets of tokens.
    """
    values = {**runner.model.config.to_dict(), **runner.config.to_dict()}
    special = {value for name, value in values.items() if "token" in name and isinstance(value, int)}
    step = runner.vocab_size // 29 or 1
    ids = ((which + 1 + i * step) % runner.vocab_size for i in itertools.count(1))
    return (token for token in ids if token not in special)


@contextmanager
def _small_cache(runner: Runner) -> Iterator[None]:
    """Temporarily give a runner an empty KV cache for two short sequences and a new meter; record no forward passes."""
    saved = runner.cache, runner.slots, runner.meter, runner.replays
    runner.cache, runner.slots, runner.meter = TreeCache(runner.n_layers, 2, ROOM), [], Meter()
    runner.replays = None  # records belong to the runner's own cache
    try:
        yield
    finally:
        runner.cache, runner.slots, runner.meter, runner.replays = saved


@contextmanager
def _in_float32(runner: Runner) -> Iterator[None]:
    """Temporarily make a half-precision model compute in float32; a module's weights are float32 only while it runs."""
    saved = runner.geometry, runner._lean
    originals: dict[nn.Module, list[tuple[Tensor, Tensor]]] = {}

    def widen(module: nn.Module, *_: object) -> None:
        tensors = itertools.chain(module.parameters(recurse=False), module.buffers(recurse=False))
        originals[module] = [(tensor, tensor.data) for tensor in tensors if tensor.dtype.itemsize == 2]
        for tensor, data in originals[module]:
            tensor.data = data.float()

    def narrow(module: nn.Module, *_: object) -> None:
        for tensor, data in originals.pop(module, []):
            tensor.data = data

    hooks = [
        hook
        for module in runner.model.modules()
        for hook in (
            module.register_forward_pre_hook(widen, prepend=True),
            module.register_forward_hook(narrow, always_call=True),
        )
    ]
    masks = MaskMaker(saved[0].masks.spans, torch.float32, runner.device, ROOM)
    runner.geometry = ForwardInputBuilder(masks, ROOM, saved[0].multi_rope)
    runner._lean = None
    try:
        with unpack_temporarily(runner.model):
            yield
    finally:
        runner.geometry, runner._lean = saved
        for hook in hooks:
            hook.remove()
        for module in list(originals):
            narrow(module)
