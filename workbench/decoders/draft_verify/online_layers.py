"""Online training of a draft model's layers, in a copy that is separate from the layers of other runs.

`TrainableLayers` are a weight-sharing copy of a loaded model: the layers are copied, while the embedding, the LM head
and the KV cache are shared. So the copy needs memory only for its layers, and training affects another run only if that
run drafts with the same copy.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from workbench.core.transfer import to_device
from workbench.decoders.draft_verify.online_weights import OnlineTrainer
from workbench.kernels.layers import decoder_layers, with_layers
from workbench.kernels.lean import LeanDecoder, LeanLayer
from workbench.kernels.packed import PackedLinear, unpack_temporarily
from workbench.kernels.reduced_vocabulary import TrimmedLinear
from workbench.kernels.weight_sharing import WeightSharingCopy
from workbench.models.fingerprint import fingerprint, fingerprints_differ
from workbench.models.runner import Runner

CLIP = 1.0
"""Maximum gradient norm of a training step.

Without clipping, the first step on a new kind of text would destroy the weights.
"""


class TrainableLayers(OnlineTrainer):
    """Trainable copy of a draft model's layers, with an optimiser and the original weights.

    Args:
        runner: runner of the draft model, which is not changed.

    Attributes:
        shared_copy: weight-sharing copy that drafts; replaced after each training step.
        loss: loss of the last training step, in nats per position.
    """

    label = "draft model"

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        with torch.inference_mode(False), torch.no_grad():
            layers = [_plain(copy.deepcopy(layer)) for layer in runner.layers]
            for layer in layers:
                layer.requires_grad_(True)
            self._layers = nn.ModuleList(layers)
            self._model = with_layers(runner.model, layers)
        self._steps = self._create_optimiser()
        self.shared_copy = self._create_copy()

    def distil_step(
        self,
        tokens: Sequence[int],
        start: int,
        at: Sequence[int],
        distributions: Float[Tensor, "n V"],
        rate: float,
    ) -> float:
        """Take one optimiser step towards the target's distributions p, and return the mean of D(p ‖ q), in nats.

        q is the distribution of the trained copy at the same position.

        Args:
            tokens: tokens of the text.
            start: position of the first token.
            at: indices of the tokens after which the target's distribution is known.
            distributions: the target's distributions after the tokens at `at`, as plain softmax; tokens outside the
                draft vocabulary are ignored.
            rate: learning rate of AdamW.
        """

        def divergence(said: Float[Tensor, "m V"]) -> Tensor:
            q = said.index_select(0, to_device(list(at), self.runner.device, torch.long))
            # Drop padding entries of the model's vocabulary, which are never drafted.
            if q.shape[1] > distributions.shape[1]:
                q = q[:, : distributions.shape[1]]
                q = q - q.logsumexp(1, keepdim=True)
            p = distributions.clone().to(q.dtype)[:, : q.shape[1]]
            p = p.masked_fill(q == -torch.inf, 0.0)
            p = p / p.sum(1, keepdim=True).clamp_min(torch.finfo(q.dtype).tiny)
            return (torch.special.xlogy(p, p) - p * q.masked_fill(q == -torch.inf, 0.0)).sum(1).mean()

        return self.step(tokens, start, divergence, rate)

    def step(
        self, tokens: Sequence[int], start: int, loss_of: Callable[[Float[Tensor, "m V"]], Tensor], rate: float
    ) -> float:
        """Take one optimiser step on a loss of the log-probabilities after each token of a text, and return the loss.

        Args:
            tokens: tokens of the text.
            start: position of the first token.
            loss_of: function that returns the loss of these log-probabilities. It runs with gradients enabled, and must
                clone other tensors that it reads.
            rate: learning rate of AdamW.
        """
        with torch.inference_mode(False), torch.enable_grad():
            loss = loss_of(self.log_probs(tokens, start))
            self._steps.param_groups[0]["lr"] = rate
            loss.backward()
            nn.utils.clip_grad_norm_(self._layers.parameters(), CLIP)
            self._steps.step()
            self._steps.zero_grad()
        self.n_steps += 1
        self.loss = float(loss.item())
        self.use_weights()
        return self.loss

    def log_probs(self, tokens: Sequence[int], start: int = 0) -> Float[Tensor, "n V"]:
        """Return log-probabilities after each token of a text, without a KV cache; −∞ outside the draft vocabulary."""
        ids = self.runner.replace_unknown(to_device(list(tokens), self.runner.device, torch.long)).unsqueeze(0)
        positions = torch.arange(start, start + len(tokens), device=ids.device).unsqueeze(0)
        head = self.runner.lm_head
        if not isinstance(head, TrimmedLinear):
            with unpack_temporarily(self._model):
                out = self._model(input_ids=ids, position_ids=positions, use_cache=False)
            return out.logits[0].float().log_softmax(1)
        decoder = self._model.get_decoder()
        assert isinstance(decoder, nn.Module)
        hidden = decoder(input_ids=ids, position_ids=positions, use_cache=False).last_hidden_state[0]
        log_probs = F.linear(hidden, head.weight[head.token_ids]).float().log_softmax(1)
        return log_probs.new_full((len(log_probs), head.out_features), -torch.inf).index_copy(
            1, head.token_ids, log_probs
        )

    def reset(self) -> None:
        """Reset the trained layers to the draft model's original weights."""
        self.reset_weights()
        self._steps = self._create_optimiser()
        self.use_weights()

    @property
    def n_bytes(self) -> int:
        """Return the bytes of the trained layers, the optimiser's moments, and copies in a lean (faster) decoder."""
        layer_bytes = sum(p.numel() * p.element_size() for p in self._layers.parameters())
        return layer_bytes * (3 if self.shared_copy.lean is None else 4)

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint of the draft model's original weights."""
        return fingerprint(self.runner.model)

    def matches(self, whose: str) -> bool:
        """Return whether a fingerprint is that of the original weights, quantised or not."""
        return not fingerprints_differ(whose, self.fingerprint)

    def pairs(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Yield the name, the trained value and the original value of each weight of the layers."""
        origins = (p for layer in self.runner.layers for p in layer.parameters())
        for (name, weight), origin in zip(self._layers.named_parameters(), origins, strict=True):
            yield name, weight.detach(), origin.detach()

    def use_weights(self) -> None:
        """Build the weight-sharing copy that drafts with the current weights of the trained layers."""
        self.shared_copy = self._create_copy()

    def _create_optimiser(self) -> torch.optim.AdamW:
        return torch.optim.AdamW(self._layers.parameters(), weight_decay=0.0, betas=(0.9, 0.99), fused=True)

    def _create_copy(self) -> WeightSharingCopy:
        """Return a weight-sharing copy of the draft model with the current layers.

        If the draft model has a lean decoder (a faster forward pass), the copy has one, too.
        """
        runner_lean = self.runner.lean
        if runner_lean is None:
            return WeightSharingCopy(self._model)
        lean: LeanDecoder = copy.copy(runner_lean)
        lean.layers, lean.fused = [LeanLayer(layer) for layer in decoder_layers(self._model)[1]], None
        return WeightSharingCopy(self._model, lean)


def _plain(layer: nn.Module) -> nn.Module:
    """Return a decoder layer with plain linear layers: packed ones (fast on CPUs) do not support gradients."""
    for module in layer.modules():
        if type(module) is PackedLinear:
            module.__class__ = nn.Linear  # pyright: ignore[reportAttributeAccessIssue]
    return layer
