"""Falcon: attention within blocks, one forward pass per block, and the distribution that each draft token declares."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import model_helpers
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from workbench.core.sampling import SamplingParams
from workbench.engine import Engine, Models, Request
from workbench.engine.request import Sequence
from workbench.methods import registry
from workbench.methods.common.attention_net import DraftKVCache
from workbench.methods.common.feature_net import FeatureNet
from workbench.methods.falcon import train as falcon
from workbench.methods.falcon.drafter import LONGEST, BlockGrowth, FalconNet
from workbench.methods.falcon.train import sample_glanced
from workbench.training.family.head_training import TrainingSetup
from workbench.training.family.unrolled import Batch

D, HEADS, FFN, N = 12, 2, 20, 8
PROMPT = model_helpers.random_prompt(9)


def net_of(block: int) -> FalconNet:
    """Return a network in which every part has an effect."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = FalconNet(D, HEADS, FFN, block=block).double()
        for weight in net.parameters():
            torch.nn.init.normal_(weight, mean=float(weight.dim() == 1), std=0.4)
    return net


def random_tensor(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def make_models(tmp_path: Path, block: int) -> Models:
    """Return a target of flat distributions, which accepts some untrained drafts, with a drafter of this block size."""
    models = model_helpers.make_models("llama", noise=None, heads=tmp_path / "heads")
    models.target.lm_head.get_parameter("weight").data.mul_(0.2)
    with torch.random.fork_rng(devices=[]), torch.inference_mode(False):
        torch.manual_seed(1)
        net = FalconNet(models.target.hidden_size, 2, 16, block=block).to(models.target.dtype)
        for weight in net.parameters():
            torch.nn.init.normal_(weight, mean=float(weight.dim() == 1), std=0.3)
    models.shared[FalconNet.kind, models.heads[FalconNet.kind].name] = net.prepare_for_drafting()
    return models


# -- the net ----------------------------------------------------------------------------------------------------------


def test_block_size_one_equals_eagles_layer_before_training() -> None:
    eagle, net, following, features = (
        FeatureNet(D, HEADS, FFN),
        FalconNet(D, HEADS, FFN, block=1),
        random_tensor(1, N, D),
        None,
    )
    missing, more = net.load_state_dict(eagle.state_dict(), strict=False)
    assert (set(more), {name.partition(".")[0] for name in missing}) == (
        set(),
        {"enter_1", "enter_2", "carry_1", "carry_2", "recall"},
    )
    eagle, net, features = eagle.double(), net.double(), random_tensor(1, N, D, seed=1)
    with torch.inference_mode():
        for place in (torch.arange(N), torch.arange(3, 3 + N)):
            wanted = eagle(eagle.make_pairs(following, features), place)
            torch.testing.assert_close(net(net.make_pairs(following, features), place), wanted, rtol=0, atol=1e-12)
        net.block = 2
        assert not torch.allclose(net(net.make_pairs(following, features), torch.arange(N)), wanted)


@pytest.mark.parametrize("block", [1, 2, 3])
def test_positions_attend_up_to_the_end_of_their_block(block: int) -> None:
    """Blocks are counted from the last position: for eight positions and block size 3 they are 0–1, 2–4 and 5–7."""
    net = net_of(block)
    for i in range(N):
        x = random_tensor(1, N, 2 * D).requires_grad_()
        net(x, torch.arange(N))[0, i].sum().backward()
        assert x.grad is not None
        end = N - 1 - (N - 1 - i) // block * block
        assert (x.grad.abs().sum(-1)[0] > 0).tolist() == [j <= end for j in range(N)], i
    weights = net.attention(random_tensor(1, N, 2 * D), torch.arange(N))[0]
    assert torch.equal(weights > 0, net.block_mask(N, weights.device))


def torch_lstm(net: FalconNet, batch_first: bool) -> torch.nn.LSTM:
    """Return torch's own LSTM with the weights of a network."""
    found = torch.nn.LSTM(2 * D, net.cond, num_layers=2, bias=False, batch_first=batch_first).double()
    weights = net.state_dict()
    names = {"ih": "enter", "hh": "carry"}
    found.load_state_dict(
        {f"weight_{part}_l{n}": weights[f"{name}_{n + 1}.weight"] for n in (0, 1) for part, name in names.items()}
    )
    return found


def test_lstm_reads_the_positions_of_a_block_in_order() -> None:
    """The result equals torch's LSTM; a first block that is cut short starts with an empty state, too."""
    net, x = net_of(3), random_tensor(2, N, 2 * D)
    with torch.inference_mode():
        mine, theirs = net.lstm_states(x), torch_lstm(net, batch_first=True)
        wanted = torch.cat([theirs(x[:, begin:end])[0] for begin, end in ((0, 2), (2, 5), (5, 8))], 1)
        torch.testing.assert_close(mine, wanted, rtol=0, atol=1e-12)
        torch.testing.assert_close(net.eval().prepare_for_drafting().lstm_states(x), wanted, rtol=0, atol=1e-12)


def test_lstm_carries_state_unlike_the_released_one() -> None:
    """The released LSTM lacks `batch_first` and gets [batch, position, D]: at batch 1, each position is a text."""
    net, x = net_of(2), random_tensor(1, N, 2 * D).requires_grad_()
    stored = torch_lstm(net, batch_first=False)
    for lstm, has_state in ((net.lstm_states, True), (lambda x: stored(x)[0], False)):
        x.grad = None
        lstm(x)[0, N - 1].sum().backward()
        assert x.grad is not None
        assert bool(x.grad[0, N - 2].any()) == has_state
        assert not x.grad[0, N - 3].any(), "this position is in the previous block"


def test_network_is_rebuilt_from_its_configuration() -> None:
    net = FalconNet(D, HEADS, FFN, block=3, cond=5, head_size=4).double()
    again = FalconNet.of(net.config()).double()
    again.load_state_dict(net.state_dict())
    x = random_tensor(1, N, 2 * D)
    assert torch.equal(net(x, torch.arange(N)), again(x, torch.arange(N)))
    built = registry.heads()["falcon"].build(D, {"heads": 3, "ffn": 8, "block": 2, "cond": 0, "rows": 32})
    assert (built.heads, built.block, built.cond) == (3, 2, D // 3)


@pytest.mark.parametrize("block", [0, LONGEST + 1, True])
def test_invalid_block_size_is_refused(block: int) -> None:
    with pytest.raises(ValueError, match=f"block={block}"):
        FalconNet(D, HEADS, FFN, block=block)


# -- drafts -----------------------------------------------------------------------------------------------------------


def last_block_guesses(net: FalconNet, blocks: list[Tensor]) -> Tensor:
    """Predict the features of the last block, [k, D]: pairs per block, then one plain attention over all blocks."""
    streams, read = zip(*(net.attention_inputs(block) for block in blocks), strict=True)
    queries, keys, values = net.project_qkv(torch.cat(read, 1), torch.arange(sum(block.shape[1] for block in blocks)))
    last = blocks[-1].shape[1]
    return net.output_state(
        net.add_attention(F.scaled_dot_product_attention(queries[:, :, -last:], keys, values), streams[-1])
    )[0]


def pairs_of(row: Sequence, net: FalconNet) -> Tensor:
    """Return all pairs of a sequence's committed text."""
    model, ids = row.models.target.model, torch.tensor([row.committed])
    features = model.get_decoder()(ids[:, :-1], use_cache=False).last_hidden_state
    return net.make_pairs(row.models.target.embed(ids[:, 1:]), features)


class BlockSizes:
    """Sizes of the blocks in which a text was read; the last block ends at its end, earlier ones keep their start."""

    def __init__(self, block: int, n: int) -> None:
        self.block, self.sizes = block, list[int]()
        self.more(n)

    def more(self, n: int) -> None:
        """Add n pairs, and read again as many earlier ones as fill the first new block."""
        again = min(-n % self.block, sum(self.sizes))
        n, left = n + again, again
        while left:
            taken = min(left, self.sizes[-1])
            self.sizes[-1] -= taken
            left -= taken
            self.sizes = [size for size in self.sizes if size]
        first = n % self.block
        self.sizes += [first] * bool(first) + [self.block] * (n // self.block)


def rounds_of(models: Models, seed: int = 2, **params: object) -> Iterator[tuple[Sequence, int]]:
    """Run a request; yield its sequence after each round, and the number of tokens that the round committed."""
    engine, method = Engine(models), registry.get("falcon").with_params(**params)
    row = engine.submit(Request(PROMPT, method, SamplingParams(2.0), 40, seed=seed, stop_at_eos=False))
    for committed in model_helpers.run_rounds(engine, row):
        yield row, committed
    assert row.error is None


@pytest.mark.parametrize("block", [1, 2, 3])
def test_predictions_equal_a_plain_pass_over_the_blocks_read(block: int, tmp_path: Path) -> None:
    models, lengths, read = make_models(tmp_path, block), set[int](), BlockSizes(block, len(PROMPT) - 1)
    for row, committed in rounds_of(models, depth=4, grower="template", nodes=32):
        net, state = row.state.drafter.net, row.state.drafter
        lengths.add(committed)
        read.more(committed)
        with torch.inference_mode():
            guess, blocks = state.catch_up(), list(pairs_of(row, net).split(read.sizes, 1))
            torch.testing.assert_close(guess, last_block_guesses(net, blocks), rtol=0, atol=1e-10)
        assert state.kv_cache.n_used == state.kv_cache.n_stable == state.position == len(row.committed) - 1
    assert {1, 2} <= lengths, "drafts were rejected and accepted"


@pytest.mark.parametrize(("block", "depth"), [(1, 3), (2, 5), (3, 5)])
def test_tree_scores_equal_plain_passes_over_the_blocks_of_each_path(block: int, depth: int, tmp_path: Path) -> None:
    """Each node's score equals a plain pass over its path's blocks, the newest of which ends just before the node."""
    models, read = make_models(tmp_path, block), BlockSizes(block, len(PROMPT) - 1)
    deepest = 0
    for i, (row, committed) in enumerate(rounds_of(models, depth=depth, width=2, nodes=24)):
        read.more(committed)
        if i % 3 or len(row.committed) > 30:
            continue
        net, drafter, head = row.state.drafter.net, row.drafter, models.target.lm_head
        with torch.inference_mode():
            growth = drafter.begin(row)
            assert row.state.plan.tree_builder is not None
            tree = row.state.plan.tree_builder.build(growth, row.state.plan)
            assert tree.score is not None
            text = list(pairs_of(row, net).split(read.sizes, 1))
            tokens, parents = tree.tokens.tolist(), tree.parents.tolist()
            for node, token in enumerate(tokens):
                path, above = list[int](), parents[node]
                while above >= 0:
                    path, above = [tokens[above], *path], parents[above]
                blocks, guess = list(text), last_block_guesses(net, text)
                while len(path) >= block:
                    entered, path = torch.tensor(path[:block]), path[block:]
                    blocks.append(net.make_pairs(models.target.embed(entered), guess).unsqueeze(0))
                    guess = last_block_guesses(net, blocks)
                wanted = float(head(guess[len(path)]).softmax(-1)[token])
                assert float(tree.score[node]) == pytest.approx(wanted, rel=1e-5), (node, path)
            deepest = max(deepest, tree.depth)
    assert deepest == depth


def test_distributions_within_a_block_do_not_depend_on_its_tokens(tmp_path: Path) -> None:
    """Level 2 has one distribution for all nodes of level 1, level 3 another for each path; both are sampled from."""
    models = make_models(tmp_path, 2)
    row, _ = next(rounds_of(models, depth=3))
    with torch.inference_mode():
        growth = row.drafter.begin(row)
        assert isinstance(growth, BlockGrowth)
        growth.add(torch.tensor([3, 5]))
        second = growth.expand().full_probs()
        growth.add(torch.tensor([4, 4]), torch.tensor([0, 1]))
        third = growth.expand().full_probs()
        growth.close()
        assert torch.equal(second[0], second[1])
        assert not torch.allclose(third[0], third[1])
        guess = row.state.drafter.catch_up()
        expected = (models.target.lm_head(guess[1]) / 2.0).softmax(-1)
    torch.testing.assert_close(second[0].to(expected), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("depth", "forwards"), [(1, 1), (2, 1), (3, 2), (6, 3)])
def test_draft_takes_one_forward_pass_per_two_levels(depth: int, forwards: int, tmp_path: Path) -> None:
    """EAGLE takes one per level."""
    models = model_helpers.make_models("llama", noise=None, heads=tmp_path / "heads")
    for name, wanted in (("falcon", forwards), ("eagle", depth)):
        method = registry.get(name).with_params(depth=depth, grower="chain")
        trace = Engine(models).generate(Request(PROMPT, method, max_new_tokens=24, stop_at_eos=False))
        full = [r for r in list(trace.rounds)[1:] if len(r.nodes) == depth]  # the first block is read with the prompt
        assert len(full) > 3
        assert {r.draft_forwards for r in full} == {wanted}, name


@pytest.mark.parametrize(("nodes", "depth"), [(5, 4), (12, 6), (20, 3)])
def test_tree_has_the_planned_number_of_nodes(nodes: int, depth: int, tmp_path: Path) -> None:
    models = model_helpers.make_models("llama", noise=None, heads=tmp_path / "heads")
    method = registry.get("falcon").with_params(nodes=nodes, depth=depth)
    trace = Engine(models).generate(Request(PROMPT, method, max_new_tokens=24, stop_at_eos=False))
    rounds = list(trace.rounds)[:-depth]  # near the end of a text there is room for fewer levels
    assert {len(r.nodes) for r in rounds} == {nodes}


@pytest.mark.parametrize("prompt", [[3], [3, 1], [3, 1, 4]])
def test_drafting_begins_once_the_text_fills_a_block(prompt: list[int], tmp_path: Path) -> None:
    models = model_helpers.make_small_models(6, noise=None, heads=tmp_path / "heads")
    request = Request(prompt, registry.get("falcon"), max_new_tokens=6, stop_at_eos=False)
    trace = Engine(models).generate(request)
    assert trace.token_ids == model_helpers.hf_greedy(models.target.model, prompt, 6)
    drafted = [bool(len(r.nodes)) for r in trace.rounds]
    assert drafted.index(True) == max(0, 3 - len(prompt)), "two pairs are a block"


# -- training ---------------------------------------------------------------------------------------------------------


def test_training_blocks_equal_drafting_blocks() -> None:
    """Each block of a whole text predicts the same as when it is the newest block."""
    net, x = net_of(2), random_tensor(1, N, 2 * D)
    whole = net(x, torch.arange(N))
    for end in range(2, N + 1, 2):
        entries = DraftKVCache(HEADS, net.head_size, 4, x)
        for begin in range(0, end, 2):
            guess = net(x[:, begin : begin + 2], torch.arange(begin, begin + 2), None, entries)
        torch.testing.assert_close(guess, whole[:, end - 2 : end], rtol=0, atol=1e-12)


def test_number_of_revealed_blocks_is_a_share_of_each_texts_errors() -> None:
    """The released code samples positions of the whole batch, and reveals all of them in its first text."""
    wrong = torch.zeros(3, 40, dtype=torch.bool)
    wrong[0, :10] = wrong[1, 8:38] = True
    starts = (torch.arange(40) % 2 == 0).expand(3, -1) & (torch.arange(40) >= 4)
    found = sample_glanced(wrong, starts, 0.45, torch.Generator().manual_seed(3))
    assert found.sum(1).tolist() == [4, 8, 0]
    assert not (found & ~starts).any()
    assert sample_glanced(wrong, starts, 1.0, torch.Generator()).sum(1).tolist() == [10, 18, 0], (
        "no more than there are"
    )
    others = sample_glanced(wrong, starts, 0.45, torch.Generator().manual_seed(4))
    assert not torch.equal(others, found), "by chance"
    assert found[1].sum() <= 0.45 * starts[1].sum(), "most of its blocks still predict their first token"
    assert not sample_glanced(wrong, starts, 0.0, torch.Generator()).any()


class TrainingStub:
    """The training recipe's drafts for a batch of random texts, without the training loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, block: int = 2, **options: Any) -> None:
        def taken(
            course: Any, net: FalconNet, drafts: Any, logits: Any, shares: Any, on_progress: Any, **_: Any
        ) -> None:
            self.net, self.drafts, self.shares, self.on_progress = net, drafts, shares, on_progress

        monkeypatch.setattr(falcon, "train_drafts", taken)
        chosen = {"method": "falcon", "seed": 0, "heads": HEADS, "ffn": FFN, "block": block, "cond": 5, "noise": 0.0}
        teacher = SimpleNamespace(lm_head=random_tensor(30, D).float(), last_norm=None)
        asked = SimpleNamespace(**chosen, **{"glance": 0.45} | options)
        run = inspect.unwrap(falcon.train)  # without the type check: the stub trains nothing and returns nothing
        run(TrainingSetup(asked, cast(Any, teacher), cast(Any, None), torch.arange(30), [], print))
        answer = torch.zeros(3, 24, dtype=torch.bool)
        answer[0, 6:23] = answer[1, 3:20] = answer[2, 9:12] = True
        ids = torch.randint(30, (3, 24), generator=torch.Generator().manual_seed(1))
        self.batch = Batch(
            [0, 1, 2], ids, random_tensor(3, 24, D).float(), random_tensor(3, 24, D, seed=1).float(), answer, ids
        )

    def asked(self, generator: torch.Generator | None) -> list[tuple[Tensor, Tensor]]:
        """Return for each position of a block the text and position of its labels, [N, 2], and its states, [N, D]."""
        drafts = list(self.drafts(self.batch, generator))
        return [(torch.stack([at // 24, at % 24], 1), states) for states, at in drafts]


@pytest.mark.parametrize("block", [1, 2, 3])
def test_each_answer_position_predicts_the_feature_one_block_ahead(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All positions of an answer except the first, whose token the target decides before anything is drafted."""
    lesson = TrainingStub(monkeypatch, block)
    answer = lesson.batch.answer
    wanted = [[b, s] for b, s in answer.nonzero().tolist() if s >= block and answer[b, s - 1]]
    found = lesson.asked(None)
    assert sorted(torch.cat([at for at, _ in found]).tolist()) == wanted
    assert lesson.shares == [1 / block] * block
    pairs = lesson.net.make_pairs(lesson.batch.embeds[:, 1:], lesson.batch.features[:, :-1])
    whole = lesson.net(pairs, torch.arange(23))
    for place, (at, states) in enumerate(found):
        assert ((23 - 1 - (at[:, 1] - block)) % block == block - 1 - place).all(), "blocks end with the text"
        torch.testing.assert_close(states, whole[at[:, 0], at[:, 1] - block], rtol=0, atol=1e-5)


def test_revealed_blocks_contain_true_pairs_and_are_not_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The true pair one block ahead is the input where a block begins; the position itself has no loss."""
    lesson, read, revealed = TrainingStub(monkeypatch), list[Tensor](), list[Tensor]()
    pairs, some = lesson.net.make_pairs, sample_glanced
    monkeypatch.setattr(lesson.net, "make_pairs", lambda *x: read.append(torch.cat(x, -1)) or pairs(*x))
    monkeypatch.setattr(falcon, "sample_glanced", lambda *x: revealed.append(some(*x)) or revealed[-1])
    found = lesson.asked(torch.Generator().manual_seed(0))
    (before, behind), (is_shown,), n = read, revealed, read[0].shape[1]
    assert is_shown.sum(1).tolist() == [4, 4, 0], (
        "0.45 of the block beginnings: untrained, nearly all predictions are wrong"
    )
    changed = (before != behind).any(-1)
    assert torch.equal(changed, is_shown)
    ahead = torch.cat([lesson.batch.embeds[:, 3:], lesson.batch.features[:, 2:-1]], -1)[:, :n]
    for b, s in is_shown.nonzero().tolist():
        assert torch.equal(behind[b, s], ahead[b, s])
        assert [b, s + 2] not in found[0][0].tolist()


def test_revealed_share_falls_during_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """λ falls linearly from 0.45 to 0.10; with 0, a text is read once only."""
    lesson, shares = TrainingStub(monkeypatch), list[float]()
    monkeypatch.setattr(falcon, "sample_glanced", lambda *x: shares.append(x[2]) or sample_glanced(*x))
    for progress in (0.0, 0.5, 1.0):
        lesson.on_progress(progress)
        lesson.asked(torch.Generator().manual_seed(0))
    assert shares == pytest.approx([0.45, 0.275, 0.10])
    lesson.asked(None)
    blind = TrainingStub(monkeypatch, glance=0.0)
    blind.asked(torch.Generator().manual_seed(0))
    assert len(shares) == 3, "nothing is revealed in evaluation, or with glance=0"
