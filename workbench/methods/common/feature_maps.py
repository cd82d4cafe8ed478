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
    """Return the attribution maps of a feature drafter over the target's patches, for `Trace.attribution`, or None.

    The result is None if the drafter reads no image. Each token is treated as drafted right after the true text before
    it, with the image as the drafter read it then. *Attention* is the mean over heads of the weights from that position
    to the image's entries; an entry computed from several patches distributes its weight over these patches. *Gradient*
    is |Σ (∂ log q(token) / ∂x) · (x − x̄)|, where the sum includes the embedding x and the feature x at a patch, and x̄
    is their mean over the patches of that image. It is the first-order change of log q if the patch looked like the
    image's mean. (Gradient × input is not used, because these drafters normalise their inputs: a patch's length
    cancels, and ∂/∂x · x would be the remainder of the norms' ε, 1e-13 and rounding.) Both maps cover the image
    positions only. Information about the image in the target's features of the *text* also reaches the drafter, and is
    not counted.

    Args:
        net: the drafter.
        options: the method's parameters for images.
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
    """Return the vector at each patch minus the mean over the patches of its image; 0 at text positions.

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
    """Distribute the attention weights of an image's entries over the patches from which they were computed.

    Args:
        weights: weights of T tokens over the m entries.
        entered: inputs of the drafter's layer.
        spans: positions [start, end) of each image.
        n_prompt: number of positions of the prompt.
    """
    patch_weights = weights.new_zeros(len(weights), n_prompt)
    for view, (start, end) in zip(entered.images, spans, strict=True):
        at, m = int((entered.positions < start).sum()), view.inputs.shape[1]
        patch_weights[:, start:end] += weights[:, at : at + m] @ _patch_shares(view, end - start).to(weights)
    return patch_weights


def _patch_shares(image: CompressedImage, size: int) -> Float[Tensor, "M N"]:
    """Return the share of each of N patches (column) in each of M entries (row) of an image."""
    if image.weights is not None:
        return image.weights
    parts = image.blocks or [[i] for i in (range(size) if image.kept_indices is None else image.kept_indices)]
    shares = torch.zeros(image.inputs.shape[1], size)
    for row, part in zip(shares, parts, strict=False):
        row[part] = 1 / len(part)
    return shares
