"""Right and wrong answers to test the checkers of this lesson; they run in its kernel and use its names."""

from __future__ import annotations


def try_four_bits(right, wrong):
    right(0.25 * h100.peak / h100.bandwidth)
    right(round(0.5 * h100.peak / (2 * h100.bandwidth)))
    wrong(h100.peak / h100.bandwidth)  # 16 bits
    wrong(4 * h100.peak / h100.bandwidth)
    wrong(0)


def try_how_many_texts(right, wrong):
    right(solved)
    right({name: first_batch(gpu, 1000) for name, gpu in GPUS.items()})
    wrong({name: batch + 1 for name, batch in solved.items()})
    wrong({name: batch - 1 for name, batch in solved.items()})
    wrong(dict.fromkeys(GPUS, 64))


def try_cache_counts(right, wrong):
    at = 2 * llama.weights / (llama.layers * 2 * llama.kv_width * 2)
    right(at, False)
    right(round(at), False)
    wrong(at, True)
    wrong(at / llama.layers, False)
    wrong(2 * at, False)
