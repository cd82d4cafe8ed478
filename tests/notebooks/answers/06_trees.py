"""Right and wrong answers to test the checkers of this lesson; they run in its kernel and use its names."""

from __future__ import annotations


def try_by_hand(right, wrong):
    rows, depths = ["100000", "110000", "101000", "000100", "000110", "110001"], [1, 2, 2, 1, 2, 3]
    right(rows, depths)
    right(tuple(rows), tuple(depths))
    wrong(rows, [0, 1, 1, 0, 1, 2])
    wrong(
        ["".join(column) for column in zip(*rows, strict=True)], depths
    )  # transposed: the nodes that attend to node i
    wrong(["1" * (i + 1) + "0" * (5 - i) for i in range(6)], depths)  # causal mask


def try_without_loop(right, wrong):
    def inverse(parents):
        one_step = (torch.tensor(parents)[:, None] == torch.arange(len(parents))).double()
        return torch.linalg.inv(torch.eye(len(parents)) - one_step).round() > 0

    def comprehension(parents):
        def path(i):
            return {i} | (path(parents[i]) if parents[i] >= 0 else set())

        return torch.tensor([[j in path(i) for j in range(len(parents))] for i in range(len(parents))])

    right(mask_by_squaring)
    right(inverse)
    wrong(mask_of_tree)  # uses the loop that the exercise forbids
    wrong(comprehension)
    wrong(mask_by_one_product)
    wrong(lambda parents: torch.ones(len(parents), len(parents)).tril())


def try_packed_row(right, wrong):
    right(two_blocks)
    right(lambda a, b: (two_blocks(a, b)[0], [*range(a), *range(b)]))
    wrong(lambda a, b: (torch.ones(a + b, a + b).tril().bool(), torch.arange(a + b)))
    wrong(lambda a, b: (torch.block_diag(torch.ones(a, a), torch.ones(b, b)).bool(), two_blocks(a, b)[1]))
    wrong(lambda a, b: (two_blocks(a, b)[0], torch.zeros(a + b, dtype=torch.long)))
