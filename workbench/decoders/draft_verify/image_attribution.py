"""Attribution of emitted tokens to vision tokens, and probabilities without the image.

Attention: mean over all layers and heads of the attention weights from the position that predicts a token to each
vision token.
Gradient × input: |Σ (∂ log p(token) / ∂e) · e| for each vision token's embedding e, the first layer's input. Both are
computed after the run, on a weight-sharing copy of the model, so that no round becomes slower.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from workbench.core.errors import CapacityError, PromptError
from workbench.core.sampling import SamplingParams, to_probs
from workbench.decoders.draft_verify.parts import Drafter
from workbench.engine.image_inputs import process, translate_placeholders
from workbench.engine.request import Request
from workbench.engine.settings import BOTH, SAMPLING_NAMES
from workbench.kernels.image_layout import Inputs, image_token_id
from workbench.kernels.layers import decoder_layers
from workbench.kernels.packed import PackedLinear
from workbench.models.loading import Models
from workbench.trace.events import Round, Trace

LONGEST = 1536
"""Maximum number of tokens of prompt and text for an attribution.

The memory for attention weights grows with the square of this number.
"""
AT_ONCE = 16
"""Number of emitted tokens whose gradients are computed together."""


def explain(
    models: Models,
    request: Request,
    trace: Trace,
    drafter: Drafter,
    on_progress: Callable[[float], None] = lambda _: None,
) -> dict[str, Any]:
    """Return the attribution of a run's tokens to its vision tokens, for `Trace.attribution`.

    Args:
        models: target and draft model of the run.
        request: request of the run, with its images and their changes.
        trace: trace recorded so far.
        drafter: drafter whose use of the image is also attributed.
        on_progress: progress callback, called with the completed fraction; target and drafter count one half each.

    Raises:
        PromptError: the run has no images, or no tokens yet.
        CapacityError: the text is too long.
    """
    rounds = list(trace.rounds)
    tokens = [e.token for r in rounds for e in r.emitted]
    if request.image_inputs is None or not tokens:
        raise PromptError(
            "Attribution maps explain image input, and this run has no images."
            if request.image_inputs is None
            else "The run has no generated token yet for which an attribution map could be computed.",
            "Start a run with an image." if request.image_inputs is None else "Try again in a moment.",
        )
    if request.image_inputs["input_ids"].shape[1] + len(tokens) > LONGEST:
        raise CapacityError(
            f"The text is too long for attribution maps, which cover at most {LONGEST} positions.", "Use a shorter run."
        )
    image_token = image_token_id(models.target.model.config)
    if image_token in tokens:
        raise PromptError("The text contains an image placeholder, so attribution maps cannot be computed.", "")
    target = _maps(models.target.model, stretches(request, len(tokens)), tokens, lambda done: on_progress(0.5 * done))
    blind, index = [], 0
    for first, last, inputs in stretches(request, len(tokens)):
        logits = _blind_logits(models.target.model, inputs, tokens[:last])[first:]
        for token, logit in zip(tokens[first:last], logits, strict=True):
            blind.append(float(_distribution(rounds, index, logit[None])[0, token]))
            index += 1
    drafter_maps = drafter.explain(models, request, tokens, lambda done: on_progress(0.5 + 0.5 * done))
    on_progress(1.0)
    return {"target": target, "drafter": drafter_maps, "p_blind": blind}


def explain_draft_model(
    models: Models, request: Request, tokens: Sequence[int], on_progress: Callable[[float], None] = lambda _: None
) -> dict[str, Any] | None:
    """Return the attribution maps of a draft model that reads images itself; None for other draft models."""
    processor = models.drafter_processor
    if models.drafter is None or processor is None or not request.pil_images:
        return None
    prompt = translate_placeholders(models.processor, processor, request.prompt)
    first = process(processor, prompt, request.pil_images)
    changes = [(n, process(processor, prompt, change.pil_images)) for n, change in request.image_changes]
    return _maps(models.drafter.model, _stretches(first, changes, len(tokens)), tokens, on_progress)


def _distribution(rounds: Sequence[Round], index: int, logits: Float[Tensor, "1 V"]) -> Float[Tensor, "1 V"]:
    """Return the distribution from which emitted token `index` was drawn, from target logits without penalties."""
    for r in rounds:
        if index < len(r.emitted):
            sampling = SamplingParams(**{n: r.params[n] for n in SAMPLING_NAMES if n in r.params})
            return logits.softmax(1) if sampling.greedy else to_probs(logits, sampling)
        index -= len(r.emitted)
    raise IndexError


def stretches(request: Request, n: int, drafter: bool = False) -> Iterator[tuple[int, int, Inputs]]:
    """Yield the ranges of a run's tokens during which its images did not change.

    Each range is (first token, token after the last, image tensors of the model).

    Args:
        request: request of a run with images.
        n: number of tokens that the run has emitted.
        drafter: whether to use the drafter's images, which may differ from the target's.
    """
    assert request.image_inputs is not None
    changed = [(at, change.image_inputs) for at, change in request.image_changes if drafter or change.receiver == BOTH]
    return _stretches(request.image_inputs, changed, n)


def _stretches(first: Inputs, changed: list[tuple[int, Inputs]], n: int) -> Iterator[tuple[int, int, Inputs]]:
    """Yield (first token, token after the last, image tensors) of each range of tokens with unchanged images."""
    starts = [(0, first), *changed]
    for (begin, inputs), (end, _) in zip(starts, [*starts[1:], (n, first)], strict=True):
        if begin < end:
            yield begin, end, inputs


def _maps(
    model: PreTrainedModel,
    stretches: Iterator[tuple[int, int, Inputs]],
    tokens: Sequence[int],
    told: Callable[[float], None],
) -> dict[str, list[list[int]]]:
    attention, gradient = [], []
    shared_copy = weight_sharing_copy_of(model)
    for first, last, inputs in stretches:
        a, g = _weights(shared_copy, inputs, tokens[:last], first, lambda n, done=first: told((done + n) / len(tokens)))
        attention += scale_rows(a)
        gradient += scale_rows(g)
    return {"attention": attention, "gradient": gradient}


def _weights(
    model: PreTrainedModel, inputs: Inputs, tokens: Sequence[int], first: int, told: Callable[[int], None]
) -> tuple[Float[Tensor, "T m"], Float[Tensor, "T m"]]:
    """Return attention weight and gradient × input of each token after `first` for each of the m vision tokens."""
    full_inputs = _extended(model, inputs, tokens)
    n_prompt = inputs["input_ids"].shape[1]
    is_vision = full_inputs["input_ids"][0] == image_token_id(model.config)
    span = slice(n_prompt - 1 + first, n_prompt - 1 + len(tokens))
    leaves: list[Tensor] = []

    def cut(_: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        leaf = (args[0] if args else named["hidden_states"]).detach().requires_grad_()
        leaves.append(leaf)
        return ((leaf, *args[1:]), named) if args else (args, named | {"hidden_states": leaf})

    hook = decoder_layers(model)[1][0].register_forward_pre_hook(cut, with_kwargs=True)
    try:
        with torch.inference_mode(False), torch.enable_grad():
            out = model(**full_inputs, use_cache=False, output_attentions=True)
            targets = torch.tensor(list(tokens[first:]), device=model.device).unsqueeze(1)
            logits = out.logits[0, span].to(torch.promote_types(model.dtype, torch.float32))
            log_probs = logits.log_softmax(1).gather(1, targets).squeeze(1)
            gradient = slopes(log_probs, leaves[:1], on_progress=told)[:, is_vision]
    finally:
        hook.remove()
    attention = torch.stack([layer[0].mean(0) for layer in out.attentions]).mean(0)
    return attention[span][:, is_vision].detach(), gradient


def slopes(
    values: Float[Tensor, " T"],
    leaves: Sequence[Float[Tensor, "1 n D"]],
    towards: Sequence[Float[Tensor, "1 n D"]] | None = None,
    on_progress: Callable[[int], None] = lambda _: None,
) -> Float[Tensor, "T n"]:
    """Return |Σ gradient · direction| of each value at each position, summed over all leaf tensors.

    Args:
        values: values to differentiate, [T].
        leaves: tensors with respect to which the values are differentiated.
        towards: direction for each leaf tensor; by default the leaf itself, which gives gradient × input.
        on_progress: progress callback, called with the number of completed values.
    """
    results, towards = [], leaves if towards is None else towards
    for one_hot in torch.eye(len(values), device=values.device, dtype=values.dtype).split(AT_ONCE):
        gradients = torch.autograd.grad(
            values, leaves, one_hot, retain_graph=True, is_grads_batched=True, allow_unused=True, materialize_grads=True
        )
        parts = [
            (gradient[:, 0] * direction[0]).sum(-1) for gradient, direction in zip(gradients, towards, strict=True)
        ]
        results.append(torch.stack(parts).sum(0).abs())
        on_progress(sum(map(len, results)))
    return torch.cat(results).detach()


@torch.no_grad()
def embeddings_and_features(
    model: PreTrainedModel, inputs: Inputs, tokens: Sequence[int]
) -> tuple[Float[Tensor, "1 n D"], Float[Tensor, "1 n D"]]:
    """Return the first layer's input and the LM head's input at all positions of a prompt and the text after it.

    Args:
        model: weight-sharing copy from `weight_sharing_copy_of`.
        inputs: processor output for the prompt.
        tokens: tokens of the text.
    """
    captured: dict[str, Tensor] = {}

    def catch(name: str) -> Callable[..., None]:
        def hook(_: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
            captured[name] = (args[0] if args else named["hidden_states"]).detach()

        return hook

    modules = {"embeds": decoder_layers(model)[1][0], "features": model.get_output_embeddings()}
    hooks = [part.register_forward_pre_hook(catch(name), with_kwargs=True) for name, part in modules.items()]
    try:
        model(**_extended(model, inputs, tokens), use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return captured["embeds"], captured["features"]


@torch.inference_mode()
def _blind_logits(model: PreTrainedModel, inputs: Inputs, tokens: Sequence[int]) -> Float[Tensor, "T V"]:
    """Return the logits for each token of the text if the image is blank (all normalised pixels are 0).

    Zeros stand for the mean colour that the image processor subtracts.
    """
    full_inputs = _extended(model, inputs, tokens)
    full_inputs["pixel_values"] = torch.zeros_like(full_inputs["pixel_values"])
    n_prompt = inputs["input_ids"].shape[1]
    return (
        weight_sharing_copy_of(model)(**full_inputs, use_cache=False)
        .logits[0, n_prompt - 1 : n_prompt - 1 + len(tokens)]
        .float()
    )


def _extended(model: PreTrainedModel, inputs: Inputs, tokens: Sequence[int]) -> Inputs:
    """Return the processor's tensors of a prompt, extended by the tokens of the generated text."""
    n_prompt = inputs["input_ids"].shape[1]
    continuation = {
        "input_ids": torch.tensor([list(tokens)]),
        "attention_mask": torch.ones(1, len(tokens), dtype=torch.long),
    }
    # PaliGemma's attention is bidirectional in the prompt and causal after it.
    if getattr(model.config, "model_type", "") == "paligemma":
        continuation["token_type_ids"] = continuation["attention_mask"]
    extended = {}
    for name, value in inputs.items():
        if value.shape == (1, n_prompt):
            value = torch.cat([value.cpu(), continuation.get(name, torch.zeros(1, len(tokens), dtype=value.dtype))], 1)
        extended[name] = value.to(model.device, model.dtype if value.is_floating_point() else None)
    return extended


def weight_sharing_copy_of(model: PreTrainedModel) -> PreTrainedModel:
    """Return a weight-sharing copy of a model, without hooks, with plain linear layers and eager attention."""
    shared: dict[int, Any] = {id(t): t for t in (*model.parameters(), *model.buffers())}
    for module in model.modules():
        for name in ("_forward_hooks", "_forward_pre_hooks"):
            hooks = module.__dict__[name]  # a runner's hooks refer to its caches, which must not be copied
            library_hooks = {k: hook for k, hook in hooks.items() if hook.__module__.startswith("transformers")}
            shared[id(hooks)] = type(hooks)(library_hooks)
    shared_copy: Any = copy.deepcopy(model, shared)
    for module in shared_copy.modules():
        if type(module) is PackedLinear:
            module.__class__ = nn.Linear  # pyright: ignore[reportAttributeAccessIssue]
    shared_copy.set_attn_implementation("eager")
    return shared_copy


def scale_rows(weights: Float[Tensor, "T m"]) -> list[list[int]]:
    """Return each row of an attribution map as integers, scaled so that its largest weight is 255."""
    largest = weights.amax(1, keepdim=True).clamp_min(1e-30)
    return (weights / largest * 255).round().int().tolist()
