"""S2D: nested network sizes, cache entries that are filled in later, and the size that drafts each token."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import model_helpers
import pytest
import torch
from llama_layer import TransformersLayer
from methods.test_drafts import WARM, RecordedDraft, drafts, token_probs
from torch import Tensor
from torch.nn import functional as F

from workbench.core.errors import ParameterError, WorkbenchError
from workbench.core.sampling import SamplingParams, to_probs
from workbench.core.tree import Sampling
from workbench.decoders.draft_verify.tree_building import STOPPED
from workbench.engine import Engine, Models, Request
from workbench.methods import registry
from workbench.methods.s2d import drafter as s2d
from workbench.methods.s2d.drafter import S2DState
from workbench.methods.s2d.net import S2DLayer, S2DNet
from workbench.methods.s2d.train import Options, init_from_lm_head, train
from workbench.models.bundle import bundled
from workbench.models.loading import HeadInfo
from workbench.training.family.drafter import Teacher
from workbench.training.family.head_training import TrainingSetup
from workbench.training.heads.artefact import save_net
from workbench.training.heads.features import Dialogue

D, W, HEADS, FFN, N, V = 20, 12, 2, 16, 7, 9
SMALLEST: dict[str, Any] = {"sure": 0.0, "least": 0.0}
WHOLE: dict[str, Any] = {"sure": 1.0, "sure_later": 1.0, "least": 0.0}
MIXED: dict[str, Any] = {"sure": 0.8, "sure_later": 0.75, "least": 0.0}
"""With these thresholds each size of the untrained drafter drafts some tokens."""
LAZY: dict[str, Any] = {"sure": 0.55, "sure_later": 0.55, "least": 0.0}
"""With these thresholds few tokens reach the upper layers."""
SHOWN = "layers that drafted each token [layers, {}]"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """Six tokens, untrained weights; float64."""
    return model_helpers.make_small_models(6, heads=tmp_path_factory.mktemp("heads"))


def net_of(exits: tuple[int, ...] = (1, 3)) -> S2DNet:
    """Return a network whose norms all have random weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = S2DNet(D, HEADS, FFN, W, V, exits).double()
        for weight in net.parameters():
            torch.nn.init.normal_(weight, mean=float(weight.dim() == 1), std=0.3)
    return net


def logits_of_each_size(net: S2DNet, text: list[int]) -> Tensor:
    """Return the logits [exits, V] of each size after a text, by a pass without a cache."""
    with torch.inference_mode():
        return torch.stack([F.linear(state[0, -1], net.embed.weight) for state in net(torch.tensor([text]))])


def drafting_exit(net: S2DNet, text: list[int], sure: float, sure_later: float, **_: Any) -> tuple[int, Tensor]:
    """Return the exit that drafts after a text, and its logits, as described in the method's module."""
    logits = logits_of_each_size(net, text)
    thresholds = [sure, *[sure_later] * (len(logits) - 2)]
    peaks = logits.softmax(1).amax(1).tolist()
    found = next((i for i, least in enumerate(thresholds) if least < 1 and peaks[i] >= least), len(logits) - 1)
    return found, logits[found]


# -- network -----------------------------------------------------------------------------------------------------------


def test_each_size_is_the_first_part_of_the_next_one() -> None:
    """transformers' own layers, one norm, and the embeddings as LM head; smaller networks are parts of larger ones."""
    net, tokens = net_of(), torch.tensor([[3, 1, 4, 1, 5, 8, 2]])
    small = net_of((1,))
    small.load_state_dict({k: v for k, v in net.state_dict().items() if not k.startswith(("layers.1.", "layers.2."))})
    layers: list[Any] = list(net.layers)
    for layer in layers:
        layer.width = W
    with torch.inference_mode():
        x, wanted = net.embed.weight[tokens], []
        for number, layer in enumerate(layers, 1):
            x = TransformersLayer(layer)(x)
            normed = x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * net.after.weight
            wanted += [normed] if number in net.exits else []
        for mine, theirs in zip(net(tokens), wanted, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-6)  # RoPE tables are float32
        assert torch.equal(small(tokens)[0], net(tokens)[0])


def test_network_is_rebuilt_from_its_configuration() -> None:
    net = net_of((2, 3))
    again = S2DNet.of(net.config()).double()
    again.load_state_dict(net.state_dict())
    tokens = torch.tensor([[3, 1, 4]])
    assert all(torch.equal(*pair) for pair in zip(net(tokens), again(tokens), strict=True))
    assert net.config()["hidden_size"] == D, "key that matches the network with its target"
    for wrong in ((), (0, 2), (2, 2), (3, 1)):
        with pytest.raises(ValueError, match="give layer numbers from 1"):
            S2DNet(D, HEADS, FFN, W, V, wrong)
    built = registry.heads()["s2d"].build(D, {"heads": 2, "ffn": 8, "cond": 4, "vocabulary": 5, "rows": 32})
    assert built.embed.weight.shape == (5, 4)


def test_drafter_with_another_vocabulary_size_is_refused(models: Models, tmp_path: Path) -> None:
    net = S2DNet(models.target.hidden_size, HEADS, FFN, W, V)
    info = HeadInfo("others", tmp_path, save_net(net, tmp_path, models.target_name))
    heads, models.heads = models.heads, models.heads | {"s2d": info}
    try:
        with pytest.raises(WorkbenchError, match="are for a vocabulary of 9 tokens, but the target's has 6"):
            Engine(models).generate(Request([3, 1], registry.get("s2d"), max_new_tokens=2))
    finally:
        models.heads = heads


# -- size that drafts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", [SamplingParams(), WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize("grower", ["chain", "eagle-2", "rsd-s"])
def test_each_token_is_drafted_by_the_first_confident_size(
    grower: str, sampling: SamplingParams, models: Models
) -> None:
    """The distribution equals a plain pass of that size over all tokens before: no skipped entry is missing."""
    used, deepest = set[int](), 0
    for draft in drafts(models, "s2d", sampling, n=16, texts=3, depth=4, grower=grower, **MIXED):
        net, tree = draft.state.net, draft.tree
        found = [drafting_exit(net, [*draft.committed, *path], **MIXED) for _, _, path in draft.nodes()]
        logits = torch.stack([logits for _, logits in found])
        distributions = logits.softmax(1) if sampling.greedy else to_probs(logits, sampling)
        if tree.sampling is Sampling.DETERMINISTIC:
            assert tree.score is not None
            torch.testing.assert_close(
                tree.score.double(), token_probs(distributions, tree.tokens).double(), atol=1e-5, rtol=1e-5
            )
        else:
            assert tree.q is not None
            assert tree.child_q_rows is not None
            mine = tree.q[tree.child_q_rows[tree.parents + 1]].double()
            torch.testing.assert_close(
                mine, distributions.double() if not sampling.greedy else mine, atol=1e-5, rtol=1e-5
            )
        used |= {exit_ for exit_, _ in found}
        deepest = max(deepest, max(len(path) for _, _, path in draft.nodes()) + 1)
    assert used == {0, 1, 2}
    assert deepest == 4


@pytest.mark.parametrize(("exit_", "params"), [(0, SMALLEST), (1, WHOLE | {"sure_later": 0.0}), (2, WHOLE)])
def test_thresholds_0_and_1_are_drafters_of_one_size(
    exit_: int, params: dict[str, Any], models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cost is the same, too: upper layers never run, and unused exits compute no logits."""
    ran, asked, forward, head = set[int](), list[int](), S2DLayer.forward, S2DState.exit_logits
    calls: list[int] = []

    def counted(self: S2DLayer, *args: Any) -> Tensor:
        ran.add(id(self))
        return forward(self, *args)

    def spoken(self: S2DState, w: int) -> Any:
        speak = self.head
        self.head = lambda x: calls.append(1) or speak(x)  # type: ignore[assignment]
        self.head.scatter_logits = speak.scatter_logits  # type: ignore[method-assign]
        try:
            return head(self, w)
        finally:
            self.head = speak
            asked.append(len(calls))
            calls.clear()

    monkeypatch.setattr(S2DLayer, "forward", counted)
    monkeypatch.setattr(S2DState, "exit_logits", spoken)
    found = drafts(models, "s2d", SamplingParams(), n=12, depth=4, **params)
    monkeypatch.undo()
    for draft in found:
        net, text = draft.state.net, list(draft.committed)
        for token in draft.tree.tokens.tolist():
            assert token == int(logits_of_each_size(net, text)[exit_].argmax())
            text.append(token)
        assert len(draft.tree) == draft.depth
    layers = [id(layer) for layer in net.layers]
    assert set(asked) == {1}
    assert ran & set(layers) == set(layers[: net.exits[exit_]])


def rounds_of(models: Models, **params: Any) -> Iterator[tuple[Any, Any]]:
    """Yield (sequence, round) after each round of a sampled run with accepted and rejected drafts."""
    method, engine = registry.get("s2d").with_params(**params), Engine(models)
    sampling = SamplingParams(temperature=2.0)
    row = engine.submit(Request(model_helpers.random_prompt(9, 6), method, sampling, 50, seed=2, stop_at_eos=False))
    lengths = set()
    for committed in model_helpers.run_rounds(engine, row):
        lengths.add(committed)
        assert row.trace is not None
        yield row, row.trace.rounds[-1]
    assert row.error is None
    assert {1, 2} < lengths, "drafts were rejected and accepted, one token and several"


def test_rounds_show_how_many_layers_drafted_each_token(models: Models) -> None:
    seen = set[float]()
    for row, found in rounds_of(models, depth=4, **MIXED):
        text = row.committed[: len(row.committed) - len(found.emitted)]
        for number, token in enumerate(found.nodes.tokens, 1):
            layers = found.signals[SHOWN.format(number)]
            assert layers == row.state.drafter.net.exits[drafting_exit(row.state.drafter.net, text, **MIXED)[0]]
            seen.add(layers)
            text = [*text, token]
        assert SHOWN.format(len(found.nodes.tokens) + 1) not in found.signals
    assert seen == {1.0, 2.0, 4.0}


@pytest.mark.parametrize("grower", ["chain", "eagle-2"])
def test_draft_ends_where_the_whole_drafter_is_not_confident(grower: str, models: Models) -> None:
    """A tree ends where no node of a level has a confident continuation; the rule holds for the first token, too."""
    unsure = {"sure": 0.95, "sure_later": 0.95, "least": 0.7 if grower == "chain" else 0.9}
    cut, none = 0, 0
    for row, found in rounds_of(models, depth=4, grower=grower, **unsure):
        n = len(found.emitted)
        text = row.committed[: len(row.committed) - n]
        paths = [[found.nodes.tokens[i] for i in model_helpers.path_to(found.nodes.parents, at)]
                 for at in range(len(found.nodes.tokens))]  # fmt: skip
        deepest = max(map(len, paths), default=0)

        def is_unsure(path: list[int], net: Any = row.state.drafter.net, text: list[int] = text) -> bool:
            exit_, logits = drafting_exit(net, [*text, *path], **unsure)
            return exit_ == 2 and float(logits.softmax(0).max()) < unsure["least"]

        assert is_unsure([]) == (not paths)
        none += not paths
        for level in range(1, deepest) if grower == "chain" else ():
            assert not is_unsure(paths[level - 1]), "it continued"
        if 0 < deepest < 4 and STOPPED in found.signals:
            cut += 1
            assert found.signals[STOPPED] == deepest
            assert grower != "chain" or is_unsure(paths[-1])
    assert none, "rounds without a draft"
    assert cut


# -- waiting inputs ----------------------------------------------------------------------------------------------------


def full_run(net: S2DNet, text: list[int]) -> tuple[list[list[Tensor]], list[Tensor]]:
    """Return keys and values [two, 1, H, n, d] of each layer of each block, and each block's input."""
    x, places = net.embed_tokens(torch.tensor([text])), torch.arange(len(text))
    entries, streams = [], []
    for block in net.blocks:
        streams.append(x[0])
        entries.append([])
        for layer in block:
            entries[-1].append(torch.stack(layer.project_qkv(layer.before(x), places)[1:]))
            x = layer(x, places)
    return entries, streams


@pytest.mark.parametrize("grower", ["chain", "eagle-2"])
def test_entries_filled_in_later_equal_those_of_a_full_pass(grower: str, models: Models) -> None:
    """After every round, each block's entries and waiting inputs are those of the committed text only.

    Rejected tokens leave neither entries nor waiting inputs.
    """
    waited, kept = set[tuple[int, ...]](), 0
    for row, found in rounds_of(models, depth=4, grower=grower, **LAZY):
        state: S2DState = row.state.drafter
        n = [len(block.waiting) + block.n_processed for block in state.blocks]
        assert n[0] == state.n_text <= len(row.committed) - 1
        assert n[1:] == [block.n_processed for block in state.blocks[:-1]], "each block passes on all that it reads"
        kept += state.n_text > len(row.committed) - len(found.emitted)
        with torch.inference_mode():
            entries, streams = full_run(state.net, row.committed[: state.n_text])
            for block, layers, stream in zip(state.blocks, entries, streams, strict=True):
                torch.testing.assert_close(
                    block.waiting,
                    stream[block.n_processed : block.n_processed + len(block.waiting)],
                    rtol=0,
                    atol=1e-12,
                )
                for mine, theirs in zip(block.kv_caches, layers, strict=True):
                    assert mine.n_used == mine.n_stable == block.n_processed
                    there = torch.stack(mine.append(theirs[:, :, :, :0]))
                    torch.testing.assert_close(there, theirs[:, :, :, : block.n_processed], rtol=0, atol=1e-12)
        waited.add(tuple(len(block.waiting) for block in state.blocks))
    assert kept, "accepted tokens are not read twice"
    assert all(len({waiting[number] for waiting in waited}) > 2 for number in (1, 2)), (
        "positions wait for several rounds"
    )


def test_all_waiting_inputs_pass_a_block_together(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    """Per drafter step, no layer runs twice, however many inputs are waiting."""
    ran: list[tuple[int, int]] = []
    forward, look, sizes = S2DLayer.forward, S2DState.exit_logits, set[int]()

    def counted(self: S2DLayer, x: Tensor, *args: Any) -> Tensor:
        ran.append((id(self), x.shape[1]))
        return forward(self, x, *args)

    def looked(self: S2DState, w: int) -> Any:
        ran.clear()
        waiting = [len(block.waiting) for block in self.blocks]
        found = look(self, w)
        assert len({layer for layer, _ in ran}) == len(ran)
        rows = [n for _, n in ran]
        read = waiting[0]
        for number, block in enumerate(self.blocks):
            if not rows:
                break
            here, rows = rows[: len(block.layers)], rows[len(block.layers) :]
            read += waiting[number] if number else 0
            assert set(here) == {read}
            sizes.add(read)
        return found

    monkeypatch.setattr(S2DLayer, "forward", counted)
    monkeypatch.setattr(S2DState, "exit_logits", looked)
    assert list(drafts(models, "s2d", WARM, n=30, depth=4, **MIXED))
    assert {1, 2, 3} <= sizes


@pytest.mark.parametrize("grower", ["chain", "eagle-2"])
def test_chunked_prefill_gives_the_same_drafts(grower: str, models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    def recorded_drafts() -> list[RecordedDraft]:
        return drafts(models, "s2d", SamplingParams(), n=16, depth=4, grower=grower, **MIXED)

    whole = recorded_drafts()
    monkeypatch.setattr(s2d, "CHUNK", 2)
    for mine, theirs in zip(recorded_drafts(), whole, strict=True):
        assert mine.committed == theirs.committed
        assert mine.tree.tokens.tolist() == theirs.tree.tokens.tolist()
        assert mine.tree.score is not None
        assert theirs.tree.score is not None
        torch.testing.assert_close(mine.tree.score, theirs.tree.score, rtol=0, atol=1e-6)


@pytest.mark.parametrize("prompt", [[3], [3, 1]])
def test_prompt_of_one_token_is_drafted_for(prompt: list[int], models: Models) -> None:
    """The drafter reads no hidden states of the target, which has read nothing yet."""
    method = registry.get("s2d").with_params(**WHOLE)
    trace = Engine(models).generate(Request(prompt, method, max_new_tokens=6, stop_at_eos=False))
    assert trace.token_ids == model_helpers.hf_greedy(models.target.model, prompt, 6)
    assert len(trace.rounds[0].nodes.tokens) > 0


# -- a copy -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("params", [WHOLE, WHOLE | {"grower": "eagle-2", "nodes": 48}], ids=["chain", "tree"])
def test_copy_of_the_target_is_accepted_completely(params: dict[str, Any], tmp_path: Path) -> None:
    """A wrong position or a stale entry would only reduce acceptance."""
    models = model_helpers.make_models(
        "llama", noise=None, num_key_value_heads=4, tie_word_embeddings=True, rms_norm_eps=1e-6
    )
    theirs = models.target.model.state_dict()
    net = S2DNet(32, 4, 48, 32, model_helpers.VOCABULARY, (1, 2, 3)).double()
    weights = {"embed.weight": theirs["model.embed_tokens.weight"], "after.weight": theirs["model.norm.weight"]}
    for i in range(3):
        part = {k.removeprefix(f"model.layers.{i}."): v for k, v in theirs.items() if f"layers.{i}." in k}
        weights |= {f"layers.{i}.{mine}": torch.cat([part[f"{one}.weight"] for one in ours]) for mine, ours in {
            "qkv.weight": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            "out.weight": ("self_attn.o_proj",), "gate_up.weight": ("mlp.gate_proj", "mlp.up_proj"),
            "down.weight": ("mlp.down_proj",), "before.weight": ("input_layernorm",),
            "between.weight": ("post_attention_layernorm",),
        }.items()}  # fmt: skip
    net.load_state_dict(weights)
    models.heads = {"s2d": HeadInfo("copy", tmp_path, save_net(net, tmp_path, models.target_name, torch.float64))}
    method = registry.get("s2d").with_params(depth=3, **params)
    trace = Engine(models).generate(
        Request(model_helpers.random_prompt(9), method, max_new_tokens=33, stop_at_eos=False)
    )
    assert {len(r.emitted) for r in trace.rounds[:-1]} == {4}


# -- training ----------------------------------------------------------------------------------------------------------


def test_embeddings_start_as_the_best_low_rank_approximation_of_the_lm_head() -> None:
    """Their Gram matrix is the closest one of that rank to the Gram matrix of the target's rows."""
    table = torch.randn(30, 8, generator=torch.Generator().manual_seed(0)) * torch.tensor(
        [4, 3, 2, 1, 0.5, 0.2, 0.1, 0.1]
    )
    rows = torch.empty(30, 4)
    init_from_lm_head(rows, table)
    u, s, v = torch.linalg.svd(table)
    nearest = (u[:, :4] * s[:4]) @ v[:4]
    torch.testing.assert_close(rows @ rows.T, nearest @ nearest.T, rtol=1e-4, atol=1e-4)
    wide = torch.empty(30, 11)
    init_from_lm_head(wide, table)
    torch.testing.assert_close(wide[:, :8] @ wide[:, :8].T, table @ table.T, rtol=1e-4, atol=1e-4)
    assert 0 < wide[:, 8:].abs().max() < 0.2


class TrainingStub(TrainingSetup):
    """A training setup that returns the loss functions, with two drafting_exit of different lengths."""

    def __init__(self, kept: list[int]) -> None:
        table = 3 * noise(V, D, seed=5).float()
        teacher = Teacher(table, table, torch.nn.Identity(), None, None, "tiny", "0" * 64)
        options = Options(heads=2, ffn=16, cond=12, places=64, half=False, exits=(1, 2, 3), loss="ce_soft:1")
        super().__init__(options, teacher, self, torch.tensor(kept), [0, 1], lambda line: None)  # type: ignore[arg-type]

    def dialogue(self, row: int) -> Dialogue:
        n = 8 - 3 * row
        ids = torch.randint(V, (n,), generator=torch.Generator().manual_seed(row))
        return Dialogue(ids, 3, noise(n, D, seed=row + 7).float())

    def run(self, net: Any, step_losses: Any, measure: Any, **facts: Any) -> Any:
        return net, step_losses, measure


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("kept", [list(range(V)), [0, 2, 3, 5, 6, 8]], ids=["all", "some"])
def test_all_sizes_are_trained_on_the_targets_distributions(kept: list[int]) -> None:
    """The distribution at position s is that of the token at s + 1, all sizes have equal weight, and the held-out loss
    counts positions of the answer only.
    """
    lesson: Any = TrainingStub(kept)
    net, step_losses, measure = inspect.unwrap(train)(lesson)  # without the type check: the stub returns its arguments

    def by_hand(first: int) -> tuple[Tensor, Tensor]:
        lost, right, n, both = torch.zeros(3), torch.zeros(3), 0, 0
        for row in (0, 1):
            one = lesson.dialogue(row)
            for place in range(first, len(one.ids) - 1):
                probs = lesson.teacher.lm_head @ one.features[place]
                both += 1
                is_kept = int(probs.argmax()) in kept
                n += is_kept
                for size, state in enumerate(net(one.ids[None])):
                    mine = (net.embed.weight @ state[0, place])[kept]
                    right[size] += kept[int(mine.argmax())] == int(probs.argmax())
                    if is_kept:
                        lost[size] -= (probs[kept].softmax(0) * mine.log_softmax(0)).sum()
        return lost / n, right / both

    _, named, total = step_losses([0, 1], torch.Generator().manual_seed(0))
    assert list(named) == ["after 1 layer", "after 2 layers", "after 3 layers"]
    with torch.no_grad():
        torch.testing.assert_close(torch.stack(list(named.values())), by_hand(0)[0], rtol=1e-2, atol=1e-2)
        torch.testing.assert_close(total, torch.stack(list(named.values())).mean())
        lost, right = by_hand(2)
        held_out = measure()
    assert next(iter(held_out)) == "agreement after 3 layers", "metric of the learning curve"
    for size, name in enumerate(named):
        assert held_out[f"ce_soft {name}"] == pytest.approx(float(lost[size]), rel=1e-2)
        assert held_out[f"agreement {name}"] == pytest.approx(float(right[size]), abs=1e-6)
    before = {name: float(loss.detach()) for name, loss in named.items()}
    steps = torch.optim.Adam(net.parameters(), 0.01)
    for _ in range(60):
        steps.zero_grad()
        _, named, total = step_losses([0, 1], torch.Generator().manual_seed(0))
        total.backward()
        steps.step()
    assert all(float(loss.detach()) < 0.5 * before[name] for name, loss in named.items())


def test_feature_loss_is_refused() -> None:
    lesson: Any = TrainingStub(list(range(V)))
    lesson.options.loss = "smooth_l1:1+ce_soft:1"
    with pytest.raises(ParameterError, match="smooth_l1 compares hidden states"):
        inspect.unwrap(train)(lesson)


@pytest.mark.skipif("text-target-s2d" not in bundled(), reason="needs the bundled drafter")
def test_larger_sizes_of_the_bundled_drafter_are_closer_to_the_target() -> None:
    """The losses on held-out drafting_exit were measured at the end of its training."""
    folder = bundled()["text-target-s2d"]
    held, config = (json.loads((folder / f"{name}.json").read_text()) for name in ("training", "config"))
    names = [f"after {n} layer{'s' * (n > 1)}" for n in config["net"]["exits"]]
    losses = [held["held"][f"ce_soft {name}"] for name in names]
    assert losses == sorted(losses, reverse=True)
    assert len(set(losses)) == len(losses) == 3
