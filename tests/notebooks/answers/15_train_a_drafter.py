"""Right and wrong answers to test the checkers of this lesson; they run in its kernel and use its names."""

from __future__ import annotations


def try_rejected(right, wrong):
    right(total_variation)
    right(lambda p, q: 1 - torch.minimum(p, q).sum(-1).mean())
    wrong(lambda p, q: (p - q).abs().mean())
    wrong(lambda p, q: (p - q).abs().sum(-1).mean())
    wrong(lambda p, q: torch.minimum(p, q).sum(-1).mean())


def try_of_a_chain(right, wrong):
    right(tokens_a_pass)
    right(lambda shares: 1 + sum(float(np.prod(shares[: i + 1])) for i in range(len(shares))))
    wrong(lambda shares: 1 + sum(shares))
    wrong(lambda shares: sum(itertools.accumulate(shares, lambda a, b: a * b)))
    wrong(lambda shares: len(shares) + 1)


def try_decide(right, wrong):
    right(one_before)
    right(lambda n_prompt, n_all: [n_prompt - 1, n_all - 1])
    wrong(lambda n_prompt, n_all: (n_prompt, n_all))
    wrong(lambda n_prompt, n_all: (n_prompt - 1, n_all))
    wrong(lambda n_prompt, n_all: (0, n_all - 1))
