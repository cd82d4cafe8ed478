"""What a round and a draft want of wide laws: their likeliest tokens, their entropy, and the chances of a few tokens.

Greedy decoding needs no law whole. Where passes are compiled, one of them reads logits as the model gave them, and the
law is made for who asks for it alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from workbench.core.late import Once
from workbench.core.sampling import WIDE, SamplingParams, entropy_of, largest, law
from workbench.core.transfer import of_numpy, on_host
from workbench.kernels.compilation import compiled, together
from workbench.kernels.rejection import make_ready as make_tests_ready

TOP = 8
"""Likeliest tokens kept at each verified node: enough for token recycling, and for most of the law in the card."""
ALONE = 2
"""Laws up to which other threads are not asked to help."""
FEW = 16
"""Likeliest tokens that a compiled pass finds at most: more of them are sorted."""


@dataclass(frozen=True, slots=True)
class Weighed:
    """What one pass found of the softmax of logits, row by row.

    Attributes:
        logits: float32 or bfloat16 [n, V].
        p_top: float32 [n, k], probabilities of the likeliest tokens, falling.
        logs: float32 [n, k], logarithms of these.
        top: int64 [n, k], their ids; of equal logits the first.
        entropy: float32 [n], in nats.
        scale: a token's probability is exp(its logit less the first) over the second.
    """

    logits: Float[Tensor, "n V"]
    p_top: Float[Tensor, "n k"]
    logs: Float[Tensor, "n k"]
    top: Int[Tensor, "n k"]
    entropy: Float[Tensor, " n"]
    scale: Float64[Tensor, "n 2"]

    def chances(self, tokens: Int[Tensor, " m"], at: Int[Tensor, " m"] | None = None) -> Float[Tensor, " m"]:
        """Probabilities of tokens, of one each in rows `at`; None: in the first m rows."""
        if at is None:
            found, scale = self.logits[: len(tokens)].gather(1, tokens.unsqueeze(1)).squeeze(1), self.scale
        else:
            found, scale = self.logits[at, tokens], self.scale[at]
        return (found.double().sub_(scale[: len(tokens), 0]).exp_() / scale[: len(tokens), 1]).float()


def weigh(logits: Float[Tensor, "n V"], k: int) -> Weighed | None:
    """Find the k likeliest tokens, and how all of them are scaled, in one compiled pass; None where there is none.

    Args:
        logits: as a model gave them: no temperature, no filters.
        k: at most `FEW`.
    """
    n, size = logits.shape
    if size < WIDE or k > FEW or logits.dtype not in (torch.float32, torch.bfloat16):
        return None
    if not on_host(logits.device) or not logits.is_contiguous() or (laws := compiled("distributions")) is None:
        return None
    found, given = weighing(logits, k)
    work = laws.weigh_halves if logits.dtype == torch.bfloat16 else laws.weigh
    if n > ALONE:
        together(lambda: work(*given))
    else:
        work(*given)
    return found


def weighing(logits: Float[Tensor, "n V"], k: int) -> tuple[Weighed, tuple[np.ndarray, ...]]:
    """What is found of logits, and what `laws.weigh` (of bfloat16 `laws.weigh_halves`) takes to find it."""
    n, x = logits.shape[0], logits.view(torch.int16) if logits.dtype == torch.bfloat16 else logits
    top, (p_top, logs) = np.empty((n, k), np.int64), np.empty((2, n, k), np.float32)
    entropy, scale = np.empty(n, np.float32), np.empty((n, 2), np.float64)
    found = Weighed(logits, *map(of_numpy, (p_top, logs, top, entropy, scale)))
    return found, (x.numpy(), top, p_top, logs, entropy, scale, np.zeros(2, np.int64))


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known of the laws at n places.

    Attributes:
        p_top: probabilities of the `TOP` likeliest tokens, falling.
        top: their ids.
        entropy: in nats.
        logits: in float32 or wider, or what makes them.
        law: the same of the laws.
        chances: as `Weighed.chances`.
        best: the first largest logit of each place, where that is known.
    """

    p_top: Float[Tensor, "n k"]
    top: Int[Tensor, "n k"]
    entropy: Float[Tensor, " n"]
    logits: Float[Tensor, "n V"] | Callable[[], Tensor]
    law: Float[Tensor, "n V"] | Callable[[], Tensor]
    chances: Callable[..., Tensor]
    best: Int[Tensor, " n"] | None = None


def see(logits: Float[Tensor, "n V"], sampling: SamplingParams) -> Seen:
    """What a round wants of the target's logits.

    Args:
        logits: after `with_history`.
        sampling: in force.
    """
    if sampling.greedy and (found := weigh(logits, TOP)) is not None:
        wide = Once(logits.float)
        made = Once(lambda: wide().softmax(1))
        return Seen(found.p_top, found.top, found.entropy, wide, made, found.chances, found.top[:, 0])
    logits = logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits
    p = logits.softmax(1) if sampling.greedy else law(logits, sampling)
    p_top, top, entropy = look(logits, p, sampling)

    def chances(tokens: Tensor, at: Tensor | None = None) -> Tensor:
        if at is None:
            return p[: len(tokens)].gather(1, tokens.unsqueeze(1)).squeeze(1)
        return p[at, tokens]

    return Seen(p_top, top, entropy, logits, p, chances)


def look(
    logits: Float[Tensor, "n V"], p: Float[Tensor, "n V"], sampling: SamplingParams
) -> tuple[Float[Tensor, "n k"], Int[Tensor, "n k"], Float[Tensor, " n"]]:
    """The `TOP` likeliest tokens of each law, falling: probabilities and ids; and its entropy in nats.

    Wide ones in one compiled pass where passes are compiled: 20 small operations are 0.3 ms when the target's weights
    have just gone through the caches.

    Args:
        logits: after `with_history`.
        p: their law.
        sampling: that made the law.
    """
    compact = logits.dtype == p.dtype == torch.float32 and logits.is_contiguous() and p.is_contiguous()
    if compact and p.shape[1] >= WIDE and on_host(p.device) and (laws := compiled("distributions")) is not None:
        n = p.shape[0]
        p_top, top, entropy = np.empty((n, TOP), np.float32), np.empty((n, TOP), np.int64), np.empty(n, np.float32)
        given = (logits.numpy(), p.numpy(), sampling.heat, top, p_top, entropy, np.zeros(2, np.int64))
        if n > ALONE:
            together(lambda: laws.look(*given))
        else:
            laws.look(*given)
        return torch.from_numpy(p_top), torch.from_numpy(top), torch.from_numpy(entropy)
    p_top, top = largest(p, TOP)
    return p_top, top, entropy_of(logits, p, top[:, :1], p_top[:, 0], sampling)


def make_ready(vocabulary: int, device: torch.device) -> None:
    """Have what looks at wide laws loaded, and compiled where it never was: no round shall stand still for it."""
    if vocabulary >= WIDE and on_host(device):
        logits = torch.zeros(ALONE + 1, vocabulary)
        look(logits, logits.softmax(1), SamplingParams())
        weigh(logits, 1)
        weigh(logits.bfloat16(), 1)
        make_tests_ready(vocabulary)
