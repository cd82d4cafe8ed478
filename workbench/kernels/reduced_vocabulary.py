"""Draft models that never say the rare words: an LM head over a part of the vocabulary.

A small drafter of a model with a large vocabulary spends most of a pass on columns that it almost never picks. Which
tokens it keeps stands in its `config.json` as `draft_vocabulary`; all others get the logit −∞, hence q = 0, which any
exact rule allows: what the drafter cannot propose the target still says. The model stays an ordinary Hugging Face
model with all embeddings, and for whoever does not know the entry a drafter with a whole head.

Source: Goel et al. 2025, VocabTrim, arXiv:2506.22694, §3.
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
from workbench.core.transfer import listed
from workbench.kernels.distributions import weigh
from workbench.kernels.layers import text_config
from workbench.kernels.packed import Matrix, is_small_on_cpu
from workbench.kernels.single_thread import filled_alone

KEY = "draft_vocabulary"
"""In `config.json`: ids of the tokens that the model can propose, increasing."""


class TrimmedLinear(nn.Linear):
    """An LM head of which only some rows are computed; the other logits are −∞. Made by `trim`."""

    kept: Tensor

    def forward(self, x: Float[Tensor, "*b D"]) -> Float[Tensor, "*b V"]:
        """Logits of all tokens."""
        seen = (self.weight._version, self.weight.data_ptr(), self.kept.device)
        if self.__dict__.get("_seen") != seen:
            self._rows, self._seen = product_with(self, self.kept), seen
        said = self._rows(x.reshape(-1, self.in_features))
        return spread(said, self.kept, self.out_features).view(*x.shape[:-1], self.out_features)

    def __getstate__(self) -> dict[str, Any]:
        """Copies are not copied: a deep copy or a pickle makes its own."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_rows", "_seen")}


def rows_of(head: nn.Module, kept: Int[Tensor, " K"]) -> Float[Tensor, "K D"]:
    """Some rows of an LM head, copied."""
    weight = head.get_parameter("weight").detach()
    return weight[kept.to(weight.device)]


def product_with(head: nn.Module, kept: Int[Tensor, " K"]) -> Callable[[Tensor], Tensor]:
    """The product with some rows of an LM head, [T, D] → [T, K], laid out for few rows at a time."""
    rows = rows_of(head, kept)
    return Matrix(rows) if is_small_on_cpu(head) else partial(nn.functional.linear, weight=rows)


def spread(said: Float[Tensor, "T K"], kept: Int[Tensor, " K"], size: int) -> Float[Tensor, "T V"]:
    """Logits of all tokens from those of the kept ones: the others' are −∞."""
    return filled_alone(said.new_empty(said.shape[0], size), -torch.inf).index_copy_(1, kept, said)


class SharedHead:
    """A target's LM head as trained heads draft with it: of all its tokens, or of those alone that they keep.

    Args:
        head: the target's.
        config: of the trained heads; its `draft_vocabulary` says which, and where it has none all are.

    Raises:
        ModelError: what they keep is no increasing list of the target's tokens.
    """

    def __init__(self, head: nn.Module, config: Mapping[str, Any]) -> None:
        ids, size = config.get(KEY), head.get_parameter("weight").shape[0]
        if ids is not None and not _are_tokens(ids, size):
            raise ModelError(
                f"`{KEY}` of these heads is not an increasing list of the target's {size:,} token ids.",
                "Train them again for this target, or fetch them again.",
            )
        self._head, self._size = head, size
        self.kept = None if ids is None else torch.tensor(ids, device=head.get_parameter("weight").device)
        self._product = None if self.kept is None else product_with(head, self.kept)

    @cached_property
    def vocabulary(self) -> frozenset[int] | None:
        """The tokens kept; None: all are."""
        return None if self.kept is None else frozenset(listed(self.kept))

    @property
    def rows(self) -> Float[Tensor, "K D"] | None:
        """A copy of the weights of the tokens kept; None where all are, or the head has a bias."""
        if self.kept is None or getattr(self._head, "bias", None) is not None:
            return None
        return rows_of(self._head, self.kept)

    def __call__(self, x: Float[Tensor, "*b D"]) -> Float[Tensor, "*b K"]:
        """Logits, one for each token kept."""
        if self._product is None:
            return self._head.forward(x)  # without the hooks that watch the target
        return self._product(x.reshape(-1, x.shape[-1])).view(*x.shape[:-1], -1)

    def whole(self, x: Float[Tensor, "*b D"]) -> Float[Tensor, "*b V"]:
        """Logits of all of the target's tokens; −∞ for those not kept."""
        return self.spread(self(x))

    def spread(self, said: Float[Tensor, "*b K"]) -> Float[Tensor, "*b V"]:
        """Logits of all of the target's tokens from those of the tokens kept; −∞ for the others."""
        if self.kept is None:
            return said
        return spread(said.flatten(0, -2), self.kept, self._size).view(*said.shape[:-1], self._size)

    def ranked(self, logits: Float[Tensor, "w K"], k: int) -> tuple[Float[Tensor, "w k"], Int[Tensor, "w k"]]:
        """Log-probabilities, plain, and ids of the k likeliest tokens of logits that it gave, in any type."""
        k = min(k, logits.shape[1])
        if (found := weigh(logits, k)) is not None:
            return found.logs, self.tokens(found.top)
        logits = logits.float()
        top = logits.topk(k, dim=1)
        return (top.values - logits.logsumexp(1, keepdim=True)).clamp_max_(0), self.tokens(top.indices)

    def tokens(self, places: Int[Tensor, "*b"]) -> Int[Tensor, "*b"]:
        """Token ids of places among the logits."""
        return places if self.kept is None else self.kept[places]


def trim(model: PreTrainedModel, name: str) -> None:
    """Let a model whose configuration keeps a part of the vocabulary compute no more than that, in place.

    Args:
        model: any model; one that keeps everything is left alone.
        name: for the message.

    Raises:
        ModelError: what it keeps is no increasing list of its tokens.
    """
    ids = getattr(text_config(model.config), KEY, None)
    if ids is None:
        return
    head = model.get_output_embeddings()
    if not isinstance(head, nn.Linear) or head.bias is not None or not _are_tokens(ids, head.out_features):
        raise ModelError(
            f"{name} cannot be loaded: `{KEY}` in its config.json is not an increasing list of token ids, or its LM "
            "head is not a plain linear layer.",
            f"Remove the entry (it then drafts from its whole vocabulary), or make {name} again.",
        )
    head.__class__ = TrimmedLinear  # pyright: ignore[reportAttributeAccessIssue]
    head.register_buffer("kept", torch.tensor(ids, device=head.weight.device), persistent=False)


def _are_tokens(ids: Any, size: int) -> bool:
    """Whether it is an increasing list of numbers from 0 to below `size`, and not empty."""
    if not isinstance(ids, list) or not ids or any(type(i) is not int for i in ids):
        return False
    return ids[0] >= 0 and all(a < b for a, b in itertools.pairwise([*ids, size]))


def n_kept(model: PreTrainedModel) -> int | None:
    """How many tokens a trimmed model can propose; None for one with a whole head."""
    head = model.get_output_embeddings()
    return len(head.kept) if isinstance(head, TrimmedLinear) else None
