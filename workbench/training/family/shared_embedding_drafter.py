"""A draft model without token embeddings of its own: it projects the rows of the target's embedding and LM head.

In a small model with a large vocabulary, nine tenths of the weights are token embeddings, and a million answer tokens
train few of them. The target's rows already encode the tokens' meaning. So only projections are trained: the input x =
A e(t), and logit(t) = u(t)ᵀ Bᵀ s. e(t) and u(t) are the rows of token t in the target's embedding and LM head, of size
D. s is a hidden state of the drafter, of size H; A and B are [H, D]. The products of these matrices are the embedding
and the LM head of an ordinary decoder (`workbench.models.shared_embeddings`).
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import LlamaConfig

from workbench.models.shared_embeddings import ENTER, LEAVE
from workbench.training.models import build_model


class DrafterInTraining(nn.Module):
    """A draft model in training: a decoder with projections to and from the target's token embeddings.

    Args:
        config: configuration of the decoder; its embedding and LM head are not created.
        embedding: the target's embedding, float32 [V, D].
        head: weights of the target's LM head, float32 [V, D].
        seed: seed of the initial weights.
    """

    def __init__(
        self, config: LlamaConfig, embedding: Float[Tensor, "V D"], head: Float[Tensor, "V D"], seed: int
    ) -> None:
        super().__init__()
        full_model = build_model(config, seed)
        self.config, self.model = config, full_model.model
        self.model.embed_tokens = nn.Embedding(1, 1)  # never used
        self.model.embed_tokens.requires_grad_(False)
        self._target_rows = (embedding, head)  # in a tuple, so that `state_dict` does not include them
        self.enter = nn.Linear(embedding.shape[1], config.hidden_size, bias=False)
        self.leave = nn.Linear(head.shape[1], config.hidden_size, bias=False)
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            nn.init.orthogonal_(self.enter.weight)
            self.enter.weight.div_(float(embedding.square().mean().sqrt()))  # so that inputs have size 1
            nn.init.orthogonal_(self.leave.weight)

    def states(self, ids: Int[Tensor, "B n"], **more: Any) -> Float[Tensor, "B n H"]:
        """Return the hidden states before the LM head; `more` are further arguments of the decoder, such as a cache."""
        embeds = self.enter(nn.functional.embedding(ids, self._target_rows[0]))
        return self.model(inputs_embeds=embeds, **{"use_cache": False} | more)[0]

    def lm_head_rows(self, draft_vocabulary: Int[Tensor, " K"]) -> Float[Tensor, "K H"]:
        """Return the rows of the drafter's LM head for the tokens of `draft_vocabulary`."""
        return self.leave(self._target_rows[1][draft_vocabulary])

    def weights(self) -> dict[str, Tensor]:
        """Return the drafter's weights by their names in the saved files."""
        inner = {f"model.{name}": weight for name, weight in self.model.state_dict().items() if "embed" not in name}
        return inner | {ENTER: self.enter.weight.detach(), LEAVE: self.leave.weight.detach()}

    def load_weights(self, weights: dict[str, Tensor]) -> None:
        """Set all weights of the drafter, by the names that `weights` returns.

        Raises:
            ValueError: a weight is missing or has another shape.
        """
        current = self.weights()
        if current.keys() != weights.keys() or any(current[name].shape != weights[name].shape for name in current):
            raise ValueError("the weights have other names or shapes than a drafter with a shared embedding")
        with torch.no_grad():
            for name, weight in current.items():
                weight.copy_(weights[name])
