"""Compute top tokens, entropy and single probabilities of distributions over large vocabularies.

Greedy decoding never needs a whole distribution. If compiled kernels are available, one of them summarises the model's
logits directly, and the full distribution is computed only on request.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from workbench.core.lazy import LazyValue
from workbench.core.sampling import WIDE, SamplingParams, entropy_of, largest, to_probs
from workbench.core.transfer import from_numpy, on_host
from workbench.kernels.compilation import load_kernels, run_in_parallel
from workbench.kernels.rejection import make_ready as make_tests_ready

log = logging.getLogger(__name__)

TOP = 8
"""Number of most probable tokens stored for each verified node: enough for the drafter token recycling and for the
details of a node in the UI."""
MAX_SINGLE_THREADED = 2
"""Maximum number of distributions that are summarised on a single thread."""
FEW = 16
"""Maximum number of top tokens that the compiled kernels find; for more, the distribution is sorted."""


@dataclass(frozen=True, slots=True)
class SoftmaxSummary:
    """Summary of the softmax of each row of logits, computed by a compiled kernel: top tokens, entropy, scale.

    Attributes:
        logits: float32 or bfloat16 [n, V].
        p_top: float32 [n, k], probabilities of the most probable tokens, in descending order.
        logs: float32 [n, k], logarithms of `p_top`.
        top: int64 [n, k], token ids of `p_top`; of equal logits, the lower id first.
        entropy: float32 [n], in nats.
        scale: float64 [n, 2]; a token's probability is exp(logit - scale[:, 0]) / scale[:, 1].
    """

    logits: Float[Tensor, "n V"]
    p_top: Float[Tensor, "n k"]
    logs: Float[Tensor, "n k"]
    top: Int[Tensor, "n k"]
    entropy: Float[Tensor, " n"]
    scale: Float64[Tensor, "n 2"]

    def token_probs(self, tokens: Int[Tensor, " m"], at: Int[Tensor, " m"] | None = None) -> Float[Tensor, " m"]:
        """Return the probability of each token `tokens[i]` in row `at[i]` of the logits; if `at` is None, in row i."""
        if at is None:
            token_logits, scale = self.logits[: len(tokens)].gather(1, tokens.unsqueeze(1)).squeeze(1), self.scale
        else:
            token_logits, scale = self.logits[at, tokens], self.scale[at]
        return (token_logits.double().sub_(scale[: len(tokens), 0]).exp_() / scale[: len(tokens), 1]).float()


def summarise_softmax(logits: Float[Tensor, "n V"], k: int) -> SoftmaxSummary | None:
    """Summarise the softmax of each row of logits with a compiled kernel; None if no kernel is available.

    Args:
        logits: the model's logits, without temperature or filters, [n, V].
        k: number of tokens, at most `FEW`.
    """
    n, size = logits.shape
    if size < WIDE or k > FEW or logits.dtype not in (torch.float32, torch.bfloat16):
        return None
    if not logits.is_contiguous():
        return None
    if not on_host(logits.device):
        summarise = gpu_summary(logits.device)
        return None if summarise is None else SoftmaxSummary(logits, *summarise(logits, k))
    if (distributions := load_kernels("distributions")) is None:
        return None
    summary, arguments = prepare_softmax_summary(logits, k)
    work = distributions.summarise_softmax_bf16 if logits.dtype == torch.bfloat16 else distributions.summarise_softmax
    if n > MAX_SINGLE_THREADED:
        run_in_parallel(lambda: work(*arguments))
    else:
        work(*arguments)
    return summary


@cache
def gpu_summary(device: torch.device) -> Callable[[Tensor, int], tuple[Tensor, ...]] | None:
    """Return the function of the Triton kernels that summarises logits; None if it cannot be used on a device.

    It cannot be used if the kernels do not run there, or if their results differ from torch's.
    """
    try:
        from workbench.kernels.gpu.summaries import summarise  # Triton is not installed everywhere

        generator = torch.Generator().manual_seed(0)
        for dtype in (torch.float32, torch.bfloat16):
            logits = torch.randn(3, 5000, generator=generator).mul(3).to(dtype).to(device)
            p = logits.double().softmax(1)
            p_top, _, top, entropy, _ = summarise(logits, TOP)
            wanted = -(p * p.log()).sum(1)
            is_same = torch.allclose(p_top.double(), p.topk(TOP).values, 1e-4) and torch.allclose(
                entropy.double(), wanted, 1e-4
            )
            if not is_same or not torch.equal(p.gather(1, top), p.topk(TOP).values):
                raise RuntimeError("the kernel's results differ from torch's")
    except Exception as error:  # Triton's compiler raises many types
        log.warning(
            "Token distributions are summarised by torch, without the Triton kernel: %s", str(error).split("\n")[0]
        )
        return None
    return summarise


def prepare_softmax_summary(logits: Float[Tensor, "n V"], k: int) -> tuple[SoftmaxSummary, tuple[np.ndarray, ...]]:
    """Allocate the arrays of a `SoftmaxSummary`; return it and the arguments of the function that fills it.

    The function is the compiled `distributions.summarise_softmax`, or `summarise_softmax_bf16` for bfloat16 logits.
    """
    n, x = logits.shape[0], logits.view(torch.int16) if logits.dtype == torch.bfloat16 else logits
    top, (p_top, logs) = np.empty((n, k), np.int64), np.empty((2, n, k), np.float32)
    entropy, scale = np.empty(n, np.float32), np.empty((n, 2), np.float64)
    summary = SoftmaxSummary(logits, *map(from_numpy, (p_top, logs, top, entropy, scale)))
    return summary, (x.numpy(), top, p_top, logs, entropy, scale, np.zeros(2, np.int64))


@dataclass(frozen=True, slots=True)
class DistributionSummary:
    """Summary of the next-token distributions at n positions; the full distributions are computed on demand.

    Attributes:
        p_top: [n, k], probabilities of the k = `TOP` most probable tokens, in descending order.
        top: int64 [n, k], token ids of `p_top`.
        entropy: [n], entropy of each distribution in nats.
        logits: [n, V], logits in float32 or wider, or a function that returns them.
        probs: [n, V], the distributions, or a function that returns them.
        token_probs: function that returns the probabilities of given tokens; arguments as in
            `SoftmaxSummary.token_probs`.
        best: int64 [n], id of the token with the largest logit (of equal logits, the lowest id); None: not known.
    """

    p_top: Float[Tensor, "n k"]
    top: Int[Tensor, "n k"]
    entropy: Float[Tensor, " n"]
    logits: Float[Tensor, "n V"] | Callable[[], Tensor]
    probs: Float[Tensor, "n V"] | Callable[[], Tensor]
    token_probs: Callable[..., Tensor]
    best: Int[Tensor, " n"] | None = None


def summarise_logits(logits: Float[Tensor, "n V"], sampling: SamplingParams) -> DistributionSummary:
    """Summarise the target's logits in a round: top tokens, entropy, and the distribution on demand.

    Args:
        logits: logits after `apply_logits_processors`, [n, V].
        sampling: current sampling parameters.
    """
    if sampling.greedy and (summary := summarise_softmax(logits, TOP)) is not None:
        wide = LazyValue(logits.float)
        probs = LazyValue(lambda: wide().softmax(1))
        return DistributionSummary(
            summary.p_top, summary.top, summary.entropy, wide, probs, summary.token_probs, summary.top[:, 0]
        )
    logits = logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits
    p = logits.softmax(1) if sampling.greedy else to_probs(logits, sampling)
    p_top, top, entropy = top_and_entropy(logits, p, sampling)

    def token_probs(tokens: Tensor, at: Tensor | None = None) -> Tensor:
        if at is None:
            return p[: len(tokens)].gather(1, tokens.unsqueeze(1)).squeeze(1)
        return p[at, tokens]

    return DistributionSummary(p_top, top, entropy, logits, p, token_probs)


def top_and_entropy(
    logits: Float[Tensor, "n V"], p: Float[Tensor, "n V"], sampling: SamplingParams
) -> tuple[Float[Tensor, "n k"], Int[Tensor, "n k"], Float[Tensor, " n"]]:
    """Return probabilities and ids of the `TOP` most probable tokens of each distribution, and its entropy in nats.

    For large vocabularies, a compiled kernel is used if available: it replaces 20 small operations, which take 0.3 ms
    when the target's weights have just evicted everything else from the CPU caches.

    Args:
        logits: logits after `apply_logits_processors`.
        p: distributions of these logits.
        sampling: sampling parameters with which `p` was computed.
    """
    compact = logits.dtype == p.dtype == torch.float32 and logits.is_contiguous() and p.is_contiguous()
    if (
        compact
        and p.shape[1] >= WIDE
        and on_host(p.device)
        and (distributions := load_kernels("distributions")) is not None
    ):
        n = p.shape[0]
        p_top, top, entropy = np.empty((n, TOP), np.float32), np.empty((n, TOP), np.int64), np.empty(n, np.float32)
        arguments = (
            logits.numpy(),
            p.numpy(),
            sampling.effective_temperature,
            top,
            p_top,
            entropy,
            np.zeros(2, np.int64),
        )
        if n > MAX_SINGLE_THREADED:
            run_in_parallel(lambda: distributions.top_and_entropy(*arguments))
        else:
            distributions.top_and_entropy(*arguments)
        return torch.from_numpy(p_top), torch.from_numpy(top), torch.from_numpy(entropy)
    p_top, top = largest(p, TOP)
    return p_top, top, entropy_of(logits, p, top[:, :1], p_top[:, 0], sampling)


def make_ready(vocabulary: int, device: torch.device) -> None:
    """Load and, if necessary, compile the kernels for large vocabularies, so that no round waits for them."""
    if vocabulary >= WIDE and on_host(device):
        logits = torch.zeros(MAX_SINGLE_THREADED + 1, vocabulary)
        top_and_entropy(logits, logits.softmax(1), SamplingParams())
        summarise_softmax(logits, 1)
        summarise_softmax(logits.bfloat16(), 1)
        make_tests_ready(vocabulary)
