"""Whose weights a head was trained on: a short fingerprint of a target, which rounding leaves nearly as it was.

A head is found by its target's name, and a name can stand for other weights: a target trained anew, another model in
its folder. Its drafts would be rejected one and all, and nobody would know why. A sum of the bytes would not do: a
target of the Hub, its copy out of a GGUF file and either in bfloat16 differ in every byte, and a head serves them all.
So 256 pairs of weights are compared, scattered over the embedding, and each bit says which of the two is larger.
"""

from __future__ import annotations

from typing import Any

import torch

WEIGHTS = "target_weights"
"""In a head's configuration: the fingerprint of the target that it was trained on."""
N_BITS = 256
TOLERATED = 32
"""Bits that may differ. Rounding to four bits changes a weight by a tenth of their spread, which swaps a few per cent
of the pairs; the weights of two trainings agree in half of them, 128 ± 8."""
_SCATTER = 2_654_435_761  # Knuth's multiplier: consecutive numbers land far from each other


def fingerprint(model: Any) -> str:
    """64 hexadecimal digits for a Hugging Face model's weights."""
    weight = model.get_input_embeddings().weight.detach()
    rows = 1 << (weight.shape[0].bit_length() - 1)  # added or padding tokens move none of the places
    weights = weight[:rows].flatten()
    at = [i * _SCATTER % weights.numel() for i in range(2 * N_BITS)]
    first, second = weights[torch.tensor(at, device=weights.device)].float().cpu().view(2, N_BITS)
    bits = "".join("01"[larger] for larger in (first > second).tolist())
    return f"{int(bits, 2):0{N_BITS // 4}x}"


def differ(one: str, other: str) -> bool:
    """Whether two fingerprints are of different weights; what is no fingerprint belongs to none."""
    try:
        return (int(one, 16) ^ int(other, 16)).bit_count() > TOLERATED
    except ValueError:
        return True
