"""Run draft models with a reduced output vocabulary: an LM head over a subset of the tokens (VocabTrim).

A small drafter with a large vocabulary spends most of a forward pass on logits of tokens that it almost never proposes.
A trimmed drafter lists the tokens that it can propose as `draft_vocabulary` in its `config.json`. All other tokens get
the logit −∞, hence q = 0, which any exact acceptance rule allows: the target can still sample them. The model stays an
ordinary Hugging Face model with all embeddings; software that ignores the entry uses the whole LM head. Source: Goel et
al. 2025, VocabTrim, arXiv:2506.22694, §3.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from workbench.core.errors import ModelError
from workbench.core.transfer import to_list
from workbench.kernels.distributions import summarise_softmax
from workbench.kernels.layers import text_config
from workbench.kernels.packed import Matrix, is_small_on_cpu
from workbench.kernels.single_thread import fill_single_threaded

KEY = "draft_vocabulary"
"""Key in `config.json` for the ids of the tokens that the model can propose, in increasing order."""


class TrimmedLinear(nn.Linear):
    """LM head that computes only the logits of a draft vocabulary; all other logits are −∞. Created by `trim`."""

    token_ids: Tensor

    def forward(self, x: Float[Tensor, "*b D"]) -> Float[Tensor, "*b V"]:
        """Return the logits of all tokens; −∞ for tokens outside the draft vocabulary."""
        state = (self.weight._version, self.weight.data_ptr(), self.token_ids.device)
        if self.__dict__.get("_seen") != state:
            self._rows, self._seen = make_head_product(self, self.token_ids), state
        logits = self._rows(x.reshape(-1, self.in_features))
        return scatter_logits(logits, self.token_ids, self.out_features).view(*x.shape[:-1], self.out_features)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of the LM head for copying and pickling, without the copied weight rows.

        A deep copy or an unpickled head creates new ones.
        """
        return {name: value for name, value in self.__dict__.items() if name not in ("_rows", "_seen")}


def select_head_rows(head: nn.Module, kept: Int[Tensor, " K"]) -> Float[Tensor, "K D"]:
    """Return a copy of the rows of an LM head's weight for the K tokens of a draft vocabulary."""
    weight = head.get_parameter("weight").detach()
    return weight[kept.to(weight.device)]


def make_head_product(head: nn.Module, kept: Int[Tensor, " K"]) -> Callable[[Tensor], Tensor]:
    """Return a function that computes the logits of K tokens of a draft vocabulary, [T, D] → [T, K], fast for few T."""
    rows = select_head_rows(head, kept)
    return Matrix(rows) if is_small_on_cpu(head) else partial(nn.functional.linear, weight=rows)


def scatter_logits(logits: Float[Tensor, "T K"], token_ids: Int[Tensor, " K"], size: int) -> Float[Tensor, "T V"]:
    """Return logits of the whole vocabulary from the logits of some tokens; all other tokens get −∞.

    Args:
        logits: logits of some tokens.
        token_ids: ids of these tokens.
        size: size V of the whole vocabulary.
    """
    return fill_single_threaded(logits.new_empty(logits.shape[0], size), -torch.inf).index_copy_(1, token_ids, logits)


class SharedHead:
    """The target's LM head as trained heads use it for drafting: for all tokens, or for a draft vocabulary.

    Args:
        head: the target's LM head.
        config: configuration of the trained heads; `draft_vocabulary` lists the tokens that they can propose. Without
            it, they can propose all tokens.

    Raises:
        ModelError: `draft_vocabulary` is not an increasing list of the target's token ids.
    """

    def __init__(self, head: nn.Module, config: Mapping[str, Any]) -> None:
        ids, size = config.get(KEY), head.get_parameter("weight").shape[0]
        if ids is not None and not _are_tokens(ids, size):
            raise ModelError(
                f"The heads' entry `{KEY}` is not an increasing list of token ids of the target ({size:,} tokens).",
                "Train the heads again for this target, or download them again.",
            )
        self._head, self._size = head, size
        self.token_ids = None if ids is None else torch.tensor(ids, device=head.get_parameter("weight").device)
        self._product = None if self.token_ids is None else make_head_product(head, self.token_ids)

    @cached_property
    def vocabulary(self) -> frozenset[int] | None:
        """Return the ids of the tokens in the draft vocabulary; None if it has all tokens."""
        return None if self.token_ids is None else frozenset(to_list(self.token_ids))

    @property
    def rows(self) -> Float[Tensor, "K D"] | None:
        """Return a copy of the LM head's rows for the draft vocabulary; None for all tokens or a head with a bias."""
        if self.token_ids is None or getattr(self._head, "bias", None) is not None:
            return None
        return select_head_rows(self._head, self.token_ids)

    def __call__(self, x: Float[Tensor, "*b D"]) -> Float[Tensor, "*b K"]:
        """Return the logits of hidden states over the draft vocabulary."""
        if self._product is None:
            return self._head.forward(x)  # without the hooks that capture the target's hidden states
        return self._product(x.reshape(-1, x.shape[-1])).view(*x.shape[:-1], -1)

    def full_logits(self, x: Float[Tensor, "*b D"]) -> Float[Tensor, "*b V"]:
        """Return logits of all of the target's tokens; −∞ outside the draft vocabulary."""
        return self.scatter_logits(self(x))

    def scatter_logits(self, logits: Float[Tensor, "*b K"]) -> Float[Tensor, "*b V"]:
        """Return logits of all of the target's tokens from the draft vocabulary's logits; −∞ for other tokens."""
        if self.token_ids is None:
            return logits
        return scatter_logits(logits.flatten(0, -2), self.token_ids, self._size).view(*logits.shape[:-1], self._size)

    def top_tokens(self, logits: Float[Tensor, "w K"], k: int) -> tuple[Float[Tensor, "w k"], Int[Tensor, "w k"]]:
        """Return log-probabilities and ids of the k most probable tokens of each row.

        Args:
            logits: logits over the draft vocabulary, in any dtype.
            k: number of tokens.
        """
        k = min(k, logits.shape[1])
        if (summary := summarise_softmax(logits, k)) is not None:
            return summary.logs, self.to_token_ids(summary.top)
        logits = logits.float()
        top = logits.topk(k, dim=1)
        return (top.values - logits.logsumexp(1, keepdim=True)).clamp_max_(0), self.to_token_ids(top.indices)

    def to_token_ids(self, indices: Int[Tensor, "*b"]) -> Int[Tensor, "*b"]:
        """Convert indices into logits over the draft vocabulary to token ids."""
        return indices if self.token_ids is None else self.token_ids[indices]


def trim(model: PreTrainedModel, name: str) -> None:
    """Restrict a model's LM head to the draft vocabulary in its configuration, in place.

    Args:
        model: any model; a model without a draft vocabulary is left unchanged.
        name: name of the model, for the message.

    Raises:
        ModelError: the draft vocabulary is not an increasing list of token ids, or the head is not a plain linear
            layer.
    """
    ids = getattr(text_config(model.config), KEY, None)
    if ids is None:
        return
    head = model.get_output_embeddings()
    if not isinstance(head, nn.Linear) or head.bias is not None or not _are_tokens(ids, head.out_features):
        raise ModelError(
            f"{name} cannot be loaded: `{KEY}` in its config.json is not an increasing list of token ids, or its LM "
            "head is not a plain linear layer.",
            f"Remove the entry, so that the model drafts from its whole vocabulary, or create {name} again.",
        )
    head.__class__ = TrimmedLinear  # pyright: ignore[reportAttributeAccessIssue]
    head.register_buffer("token_ids", torch.tensor(ids, device=head.weight.device), persistent=False)


def _are_tokens(ids: Any, size: int) -> bool:
    """Return whether `ids` is a valid draft vocabulary: a non-empty increasing list of token ids below `size`."""
    if not isinstance(ids, list) or not ids or any(type(i) is not int for i in ids):
        return False
    return ids[0] >= 0 and all(a < b for a, b in itertools.pairwise([*ids, size]))


def draft_vocabulary_size(model: PreTrainedModel) -> int | None:
    """Return how many tokens a model with a trimmed LM head can propose; None for a model with a whole LM head."""
    head = model.get_output_embeddings()
    return len(head.token_ids) if isinstance(head, TrimmedLinear) else None
