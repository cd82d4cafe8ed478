"""Compute a short fingerprint of a target's weights, which is stored with the heads that are trained on the target.

Trained heads are found by their target's name, but the weights under a name may change: the target is trained again, or
its folder gets another model. All drafts of the heads would then be rejected without an explanation. A checksum does
not help: a target from the Hub, its copy from a GGUF file and both in bfloat16 differ in every byte, but the same heads
fit all of them. A fingerprint hardly changes with quantisation. It compares 256 pairs of weights, spread over the
embedding; each bit records which weight of a pair is larger.
"""

from __future__ import annotations

from typing import Any

import torch

WEIGHTS = "target_weights"
"""Key in the configuration of trained heads for the fingerprint of the target on which they were trained."""
N_BITS = 256
TOLERATED = 32
"""Number of bits in which fingerprints of the same weights may differ. Rounding to four bits changes a weight by a
tenth of the weights' standard deviation, which flips a few per cent of the bits; the weights of two training runs agree
in half of the bits, 128 ± 8."""
_SCATTER = 2_654_435_761  # Knuth's multiplier: maps consecutive numbers far from each other


def fingerprint(model: Any) -> str:
    """Return the fingerprint of a Hugging Face model's weights, 64 hexadecimal digits."""
    weight = model.get_input_embeddings().weight.detach()
    rows = 1 << (weight.shape[0].bit_length() - 1)  # so that added or padding tokens do not change the positions
    weights = weight[:rows].flatten()
    indices = [i * _SCATTER % weights.numel() for i in range(2 * N_BITS)]
    first, second = weights[torch.tensor(indices, device=weights.device)].float().cpu().view(2, N_BITS)
    bits = "".join("01"[larger] for larger in (first > second).tolist())
    return f"{int(bits, 2):0{N_BITS // 4}x}"


def fingerprints_differ(one: str, other: str) -> bool:
    """Return whether two fingerprints belong to different weights; an invalid fingerprint differs from all others."""
    try:
        return (int(one, 16) ^ int(other, 16)).bit_count() > TOLERATED
    except ValueError:
        return True
