"""Attribution maps of a feature drafter over image patches, computed after a run."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from workbench.decoders.draft_verify.image_attribution import (
    embeddings_and_features,
    scale_rows,
    slopes,
    stretches,
    weight_sharing_copy_of,
)
from workbench.engine.image_inputs import image_token_counts
from workbench.engine.request import Request
from workbench.kernels.image_layout import layout
from workbench.methods.common.feature_net import CompressedImage, FeatureNet, PromptFeatures, PromptInputs
from workbench.models.loading import Models


def explain_feature_drafter(
    net: FeatureNet,
    options: Any,
    models: Models,
    request: Request,
    tokens: Sequence[int],
    on_progress: Callable[[float], None] = lambda _: None,
) -> dict[str, Any] | None:
    """Return two attribution maps of each token over the image patches, for `Trace.attribution`.

    The result is None if the drafter reads no image. A map shows how much each patch contributes to the drafter's
    prediction of an emitted token. Each token is treated as the first token of a draft: the drafter reads the emitted
    text before it, with the image as it was at that time.

    *Attention* is the attention weight from the newest position to the KV cache entries of the image, averaged over
    heads. If an entry was computed from several patches, its weight is distributed over these patches.

    *Gradient* is |Σ (∂ log q(token) / ∂x) · (x − x̄)|. The sum has two terms per patch: x is first the patch's
    embedding, then its feature. x̄ is the mean of x over all patches of the image. The result estimates, to first
    order, the change of log q if the patch were replaced by the image's mean. The usual product of gradient and input,
    (∂ log q / ∂x) · x, is not used: these drafters normalise x, so log q does not depend on the length of x, and the
    product is 0 except for rounding.

    Both maps cover image positions only. The target's features of the *text* also contain information about the image;
    the maps do not include it.

    Args:
        net: the drafter.
        options: the method's parameters for image compression.
        models: models of the run.
        request: request of the run, with its images and their changes during the run.
        tokens: all emitted tokens.
        on_progress: progress callback, called with the completed share, 0 to 1.
    """
    shared_copy = weight_sharing_copy_of(models.target.model)
    lm_head = cast("Callable[[Tensor], Tensor]", shared_copy.get_output_embeddings())
    net = copy.copy(net).unpack()
    attention: list[Tensor] = []
    gradient: list[Tensor] = []
    for first, last, inputs in stretches(request, len(tokens), drafter=True):
        is_vision, grids, spans = layout(
            shared_copy.config, inputs, image_token_counts(models, inputs, request.pil_images)
        )
        with torch.inference_mode(False):
            embeds, features = (
                x.clone().requires_grad_() for x in embeddings_and_features(shared_copy, inputs, tokens[:last])
            )
            n_prompt = len(is_vision)
            question = torch.zeros(1, n_prompt + last - 1, dtype=torch.bool, device=embeds.device)
            question[0, : n_prompt - 1] = ~is_vision[:-1]
            prompt = PromptFeatures(embeds, features[:, :-1], spans, grids, question)
            with torch.enable_grad(), nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
                entered = net.build_inputs(prompt, options)
                if not sum(view.inputs.shape[1] for view in entered.images):
                    attention.append(features.new_zeros(last - first, int(is_vision.sum())))
                    gradient.append(attention[-1])
                    continue
                pairs = torch.arange(n_prompt - 2 + first, n_prompt - 2 + last, device=embeds.device)
                indices = (
                    torch.searchsorted(entered.positions, pairs, right=True) - 1
                )  # the newest pair before each token
                state = net(entered.inputs, entered.positions)[0, indices]
                logits = lm_head(net.lm_head_input(state))
                logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
                token_ids = torch.tensor(list(tokens[first:last]), device=logits.device).unsqueeze(1)
                log_probs = logits.log_softmax(1).gather(1, token_ids).squeeze(1)
                contrasts = [contrast(x, spans) for x in (embeds, features)]
                progress: Callable[[int], None] = lambda n, before=first: on_progress((before + n) / len(tokens))  # noqa: E731
                gradients = slopes(log_probs, (embeds, features), contrasts, progress)
                gradient.append(gradients[:, :n_prompt][:, is_vision.to(embeds.device)])
            with torch.no_grad():
                weights = net.attention(entered.inputs, entered.positions)[0, indices]
                attention.append(_on_patches(weights, entered, spans, n_prompt)[:, is_vision.to(embeds.device)])
    maps = {"attention": torch.cat(attention), "gradient": torch.cat(gradient)}
    return {name: scale_rows(weights) for name, weights in maps.items()} if bool(maps["attention"].any()) else None


def contrast(x: Float[Tensor, "1 n D"], spans: Sequence[tuple[int, int]]) -> Float[Tensor, "1 n D"]:
    """Return each patch's vector minus the mean vector of all patches of the same image; 0 at text positions.

    Args:
        x: embeddings or features.
        spans: positions [start, end) of each image.
    """
    contrasts = torch.zeros_like(x)
    for start, end in spans:
        contrasts[:, start:end] = x[:, start:end] - x[:, start:end].mean(1, keepdim=True)
    return contrasts.detach()


def _on_patches(
    weights: Float[Tensor, "T m"], entered: PromptInputs, spans: Sequence[tuple[int, int]], n_prompt: int
) -> Float[Tensor, "T n_prompt"]:
    """Distribute the attention weights of the images' KV cache entries over the patches of which each was computed.

    Args:
        weights: attention weights from T tokens (rows) to all m entries of the drafter's KV cache (columns).
        entered: inputs of the drafter's layer, one per entry.
        spans: positions [start, end) of each image in the prompt.
        n_prompt: number of positions of the prompt.

    Returns:
        Weight of each prompt position for each token; 0 at text positions.
    """
    patch_weights = weights.new_zeros(len(weights), n_prompt)
    for view, (start, end) in zip(entered.images, spans, strict=True):
        at, m = int((entered.positions < start).sum()), view.inputs.shape[1]
        patch_weights[:, start:end] += weights[:, at : at + m] @ _patch_shares(view, end - start).to(weights)
    return patch_weights


def _patch_shares(image: CompressedImage, size: int) -> Float[Tensor, "M N"]:
    """Return the weight of each of an image's N patches (columns) in each of its M compressed inputs (rows)."""
    if image.weights is not None:
        return image.weights
    parts = image.blocks or [[i] for i in (range(size) if image.kept_indices is None else image.kept_indices)]
    shares = torch.zeros(image.inputs.shape[1], size)
    for row, part in zip(shares, parts, strict=False):
        row[part] = 1 / len(part)
    return shares
