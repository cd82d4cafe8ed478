"""M2R2: predictions of the fast stream, equality with early exit before training, and a clean cache after rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import model_helpers
import pytest
import torch
from methods.test_drafts import RecordedDraft, drafts
from torch import Tensor
from torch.nn import functional as F
from transformers import DynamicCache
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from workbench.core.errors import WorkbenchError
from workbench.core.sampling import SamplingParams, to_probs
from workbench.engine import Engine, Models, Request, Runner
from workbench.kernels.lean import LeanLayer
from workbench.methods import registry
from workbench.methods.m2r2.drafter import Accelerators, load_fitting
from workbench.methods.m2r2.train import streams
from workbench.models.bundle import bundled
from workbench.models.chat_markers import ASSISTANT, USER
from workbench.models.loading import HeadInfo, load_models
from workbench.models.truncated_target import with_weights
from workbench.training.answers import EDITING
from workbench.training.generators import TASKS
from workbench.training.heads.artefact import save_net

PROMPT = [3, 1, 4, 1, 5]
LAYERS, EXIT = 3, 2
WARM = SamplingParams(temperature=1.5)


def make_models(folder: Path, spread: float = 0.5, kind: str = "llama", exit_layer: int = EXIT, **more: Any) -> Models:
    """Return models with six tokens, three layers and random adapters; float64."""
    models = model_helpers.make_models(kind, 3, None, vocab_size=6, num_hidden_layers=LAYERS, **more)
    models.heads[Accelerators.kind] = head(models, folder, spread, exit_layer)
    return models


def head(models: Models, folder: Path, spread: float, exit_layer: int = EXIT) -> HeadInfo:
    """Write adapters to disk; with a spread of 0 they have no effect."""
    net = Accelerators(models.target.hidden_size, exit_layer, rank=3)
    generator = torch.Generator().manual_seed(0)
    for weight in net.parameters():
        torch.nn.init.normal_(weight, std=spread, generator=generator)
    return HeadInfo("tiny", folder, save_net(net, folder, models.target_name, torch.float32))


def net_of(models: Models) -> Accelerators:
    """Return the adapters as loaded by the drafter."""
    return load_fitting(Accelerators, models, "adapters", "")


@torch.inference_mode()
def by_hand(model: Any, net: Accelerators, text: list[int]) -> tuple[Tensor, Tensor]:
    """Return logits of a Llama's slow and fast stream at each position of a text, written out; [n, V] each."""
    slow = fast = model.model.embed_tokens(torch.tensor([text]))
    n, rope = len(text), model.model.rotary_emb(slow, torch.arange(len(text))[None])
    unseen = torch.ones(n, n, dtype=torch.bool).triu(1)

    def adapted(x: Tensor, i: int, place: str) -> Tensor:
        weight = {name: w.double() for name, w in net.layers[i].get_submodule(place).state_dict().items()}
        return x + x @ weight["down.weight"].T @ weight["up.weight"].T

    for i, layer in enumerate(model.model.layers[: net.exit_layer]):
        attention, mlp = layer.self_attn, layer.mlp

        def heads(x: Tensor, size: int = attention.head_dim) -> Tensor:
            return x.view(1, n, -1, size).transpose(1, 2)

        def mixed(
            q: Tensor, k: Tensor, v: Tensor, scale: float = attention.scaling, own: int = attention.num_key_value_groups
        ) -> Tensor:
            q, k = apply_rotary_pos_emb(heads(q), heads(k), *rope)
            k, v = (x.repeat_interleave(own, 1) for x in (k, heads(v)))
            found = (scale * q @ k.mT).masked_fill(unseen, -torch.inf).softmax(-1) @ v
            return found.transpose(1, 2).reshape(1, n, -1)

        read, asks = layer.input_layernorm(slow), adapted(layer.input_layernorm(fast), i, "asks")
        k, v = attention.k_proj(read), attention.v_proj(read)
        slow = slow + attention.o_proj(mixed(attention.q_proj(read), k, v))
        fast = fast + adapted(attention.o_proj(mixed(attention.q_proj(asks), k, v)), i, "read")
        slow = slow + mlp(layer.post_attention_layernorm(slow))
        fast = fast + adapted(mlp(adapted(layer.post_attention_layernorm(fast), i, "feeds")), i, "fed")
    logits = [model.lm_head(model.model.norm(x))[0] for x in (slow, fast)]
    return logits[0], logits[1]


@pytest.mark.parametrize("texts", [1, 3], ids=["alone", "together"])
@pytest.mark.parametrize("lean", [True, False], ids=["lean", "transformers"])
def test_each_token_is_sampled_from_the_fast_stream_after_its_path(lean: bool, texts: int, tmp_path: Path) -> None:
    models = make_models(tmp_path, attention_bias=True, mlp_bias=True)
    for name, bias in models.target.model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(bias, generator=torch.Generator().manual_seed(1))
    if not lean:
        models.target._lean = None
    net, seen = net_of(models), 0
    for draft in drafts(models, "m2r2", WARM, texts=texts, depth=4, policy="fixed"):
        assert draft.tree.q is not None
        for node, _, path in draft.nodes():
            slow, fast = by_hand(models.target.model, net, [*draft.committed, *path])
            torch.testing.assert_close(draft.tree.q[node], to_probs(fast[-1:], WARM)[0], atol=1e-9, rtol=1e-9)
            assert not torch.allclose(fast[-1], slow[-1], atol=1e-2)
            seen += 1
    assert seen > 20


def draft_records(found: list[RecordedDraft]) -> list[tuple[list[int], list[int], Any]]:
    """Return text, draft and distributions of each round, for bitwise comparison."""
    return [(d.committed, d.tree.tokens.tolist(), None if d.tree.q is None else d.tree.q.tolist()) for d in found]


GREEDY = SamplingParams()
FORMS = {
    f"{code}-{dtype}-{drawing}": (code == "lean", getattr(torch, dtype), WARM if drawing == "sampled" else GREEDY)
    for code in ("lean", "transformers")
    for dtype in ("float64", "float32", "bfloat16")
    for drawing in ("greedy", "sampled")
}
OFTEN = ("lean-float64-sampled", "lean-bfloat16-greedy", "transformers-float32-greedy", "transformers-bfloat16-sampled")
"""Cases that CI runs: each value of each kind at least once."""


@pytest.mark.parametrize("form", model_helpers.mark_on_demand_unless(OFTEN, FORMS))
def test_adapters_without_effect_equal_early_exit_bit_for_bit(form: str, tmp_path: Path) -> None:
    lean, dtype, sampling = FORMS[form]
    models = make_models(tmp_path / "none", spread=0.0)
    model: Any = models.target.model
    models.target = Runner(model.to(dtype))
    if not lean:
        models.target._lean = None
    early: dict[str, Any] = {"depth": 4, "policy": "fixed", "exit_layer": EXIT}
    drafts(models, "early-exit", sampling, **early)  # which also tests whether verification may continue from there
    plain = draft_records(drafts(models, "early-exit", sampling, **early))
    assert len(plain) > 5
    assert draft_records(drafts(models, "m2r2", sampling, depth=4, policy="fixed")) == plain
    models.shared.clear()
    models.heads[Accelerators.kind] = head(models, tmp_path / "some", 0.5)
    assert draft_records(drafts(models, "m2r2", sampling, depth=4, policy="fixed")) != plain


@pytest.mark.parametrize("lean", [True, False], ids=["lean", "transformers"])
@pytest.mark.parametrize("temperature", [0.0, 2.0], ids=["greedy", "sampled"])
def test_after_each_round_the_cache_is_as_without_drafting(temperature: float, lean: bool, tmp_path: Path) -> None:
    models = make_models(tmp_path)
    if not lean:
        models.target._lean = None
    method = registry.get("m2r2").with_params(policy="fixed", depth=3)
    engine = Engine(models)
    row = engine.submit(Request(PROMPT, method, SamplingParams(temperature), 30, seed=2, stop_at_eos=False))
    lengths = set[int]()
    for committed in model_helpers.run_rounds(engine, row):
        lengths.add(committed)
        if row.slot is not None:
            model_helpers.assert_cache_equals_prefill(row)
    assert row.error is None
    assert {1, 2} <= lengths, "drafts were rejected and accepted"


@pytest.mark.parametrize("policy", ["fixed", "confidence"])
def test_upper_layers_read_a_round_once_and_lower_ones_twice(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slow stream reads root and draft, the fast one each token with a prediction, upper layers each token once."""
    models = make_models(tmp_path)
    engine = Engine(models)
    method = registry.get("m2r2").with_params(policy=policy, depth=3)
    row = engine.submit(Request(PROMPT, method, max_new_tokens=24, stop_at_eos=False))
    engine.step()  # which also tests whether verification may continue from there
    read, plain = dict.fromkeys(range(LAYERS), 0), LeanLayer.__call__

    def counted(self: LeanLayer, x: Tensor, rope: Any, mask: Any, store: Any, number: int) -> Tensor:
        read[number] += x.shape[0]
        return plain(self, x, rope, mask, store, number)

    monkeypatch.setattr(LeanLayer, "__call__", counted)
    seen = 0
    for _ in model_helpers.run_rounds(engine, row):
        if row.trace is not None and not engine.is_idle and models.target._enters:
            n = len(row.trace.rounds[-1].nodes)
            stopped = n < row.state.plan.depth
            if read[LAYERS - 1] == n + 1:
                assert [read[i] for i in range(LAYERS)] == [2 * n + 1 + stopped, 2 * n + 1 + stopped, n + 1]
                seen += 1
        read.update(dict.fromkeys(read, 0))
    assert seen > 3


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "mistral", "gpt2", "gemma3_text", "qwen3_moe", "gpt_oss"])
def test_targets_of_other_families_emit_their_own_text(kind: str, tmp_path: Path) -> None:
    models = make_models(tmp_path, kind=kind)
    method = registry.get("m2r2").with_params(policy="fixed", depth=3)
    trace = Engine(models).generate(Request(PROMPT, method, max_new_tokens=24, stop_at_eos=False))
    assert trace.footer.error == ""
    assert trace.token_ids == model_helpers.hf_greedy(models.target.model, PROMPT, 24)
    assert sum(len(r.nodes) for r in trace.rounds) > 10


@pytest.mark.parametrize("kind", ["llama", "qwen2", "gpt2", "gemma3_text"])
def test_trained_states_are_those_that_draft(kind: str, tmp_path: Path) -> None:
    """In each model family, a draft's distributions are those of the states that the training loss compares."""
    models = make_models(tmp_path, kind=kind)
    net = net_of(models)
    for draft in drafts(models, "m2r2", WARM, n=12, depth=3, policy="fixed"):
        text = [*draft.committed, *draft.tree.tokens.tolist()]
        with torch.inference_mode():
            fast = streams(net, models.target.model, torch.tensor([text]))[1][0, len(draft.committed) - 1 : -1]
            distributions = to_probs(models.target.lm_head(fast), WARM)
        assert draft.tree.q is not None
        torch.testing.assert_close(draft.tree.q, distributions, atol=1e-9, rtol=1e-9)


def test_other_sequences_in_the_batch_read_their_own_tokens(tmp_path: Path) -> None:
    models = model_helpers.make_small_models(6, heads=tmp_path / "heads", num_hidden_layers=LAYERS)
    models.heads |= make_models(tmp_path / "adapters", hidden_size=16).heads
    names = ("m2r2", "autoregressive", "early-exit", "m2r2", "draft-model", "m2r2")
    requests = [
        Request(PROMPT[: 5 - i % 4], registry.get(name), SamplingParams(1.0), 16, seed=i, stop_at_eos=False)
        for i, name in enumerate(names)
    ]
    assert model_helpers.generate_batched(models, requests) == model_helpers.generate_separately(models, requests)


def test_gradients_reach_only_the_adapters_and_no_later_token() -> None:
    models = model_helpers.make_small_models(10, noise=None, num_hidden_layers=LAYERS)
    net = Accelerators(models.target.hidden_size, EXIT, 3).double()
    for weight in net.parameters():
        torch.nn.init.normal_(weight, std=0.5, generator=torch.Generator().manual_seed(1))
    model: Any = models.target.model
    plain, later, earlier = (
        streams(net, model, torch.tensor([ids]))[1][0, 2] for ids in ([1, 2, 3, 4], [1, 2, 3, 9], [0, 2, 3, 4])
    )
    torch.testing.assert_close(plain, later, atol=0, rtol=0)
    assert not torch.allclose(plain, earlier)
    plain.sum().backward()
    assert all(weight.grad is not None and weight.grad.any() for weight in net.parameters())
    assert all(weight.grad is None for weight in model.parameters())


def test_fast_stream_reads_the_slow_streams_kv_cache(tmp_path: Path) -> None:
    """Adapters before a layer's attention change its queries, and no cached keys or values."""
    models = make_models(tmp_path)
    net, model, text = net_of(models), models.target.model, torch.tensor([[3, 1, 4, 1, 5]])
    cache: Any = DynamicCache()
    with torch.inference_mode():
        model.model(text, past_key_values=cache, use_cache=True)  # type: ignore[attr-defined]
        slow, fast = by_hand(model, net, text[0].tolist())
        for found, wanted in zip(streams(net, model, text), (slow, fast), strict=True):
            torch.testing.assert_close(models.target.lm_head(found)[0], wanted, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize(
    "wrong", [{"exit_layer": 0}, {"exit_layer": "1"}, {"exit_layer": 1.5}, {"rank": 0}, {"rank": None}]
)
def test_error_for_a_folder_with_wrong_shapes_has_a_remedy(wrong: dict[str, Any], tmp_path: Path) -> None:
    models = make_models(tmp_path)
    models.heads[Accelerators.kind].config["net"] |= wrong
    with pytest.raises(WorkbenchError, match=r"(?s)cannot be read.*Train or fetch the heads again"):
        Engine(models).generate(Request(PROMPT, registry.get("m2r2"), max_new_tokens=4))


def test_error_for_unsupported_targets_has_a_remedy(tmp_path: Path) -> None:
    models = make_models(tmp_path / "deep", exit_layer=5)
    with pytest.raises(WorkbenchError, match=r"the first 5 layers of a target, but this target has 3 .*train m2r2"):
        Engine(models).generate(Request(PROMPT, registry.get("m2r2"), max_new_tokens=4))
    models = make_models(tmp_path / "opt", kind="opt")  # its MLP is not a separate module
    with pytest.raises(WorkbenchError, match=r"OPTDecoderLayer has no separate MLP.*early-exit"):
        Engine(models).generate(Request(PROMPT, registry.get("m2r2"), max_new_tokens=4))


def test_layer_copy_shares_all_weights_except_the_replaced_ones(tmp_path: Path) -> None:
    own = make_models(tmp_path).target.layers[0]
    before = {name: weight.clone() for name, weight in own.named_parameters()}
    name = "mlp.up_proj.weight"
    shared_copy = with_weights(own, {name: torch.zeros_like(before[name])})
    assert all(torch.equal(weight, before[key]) for key, weight in own.named_parameters()), "the layer is as it was"
    for key, weight in shared_copy.named_parameters():
        assert (weight.data_ptr() == own.get_parameter(key).data_ptr()) == (key != name)
    assert not shared_copy.get_parameter(name).any()


@pytest.mark.skipif("text-target-m2r2" not in bundled(), reason="the adapters are not there")
def test_bundled_fast_stream_is_closer_to_the_final_state_than_the_slow_one() -> None:
    """On average over a prompt of each kind in the training data; on other texts it may be farther."""
    models = load_models("text-target", None, "cpu", "float32")
    net, plain = net_of(models), registry.get("autoregressive")
    model: Any = models.target.model
    near = list[list[float]]()
    for kind in EDITING:
        prompt = next(TASKS[kind].stream(0, held_out=True)).prompt
        text = models.tokenizer(f"{USER}{prompt}{ASSISTANT}", add_special_tokens=False)["input_ids"]
        text += Engine(models).generate(Request(text, plain, max_new_tokens=24)).token_ids
        with torch.inference_mode():
            read = [*streams(net, model, torch.tensor([text])), model.model(torch.tensor([text]), use_cache=False)[0]]
        slow, fast, last = (x / model.model.norm.weight for x in read)
        near.append([float(F.cosine_similarity(x, last, dim=-1).mean()) for x in (slow, fast)])
    slow, fast = torch.tensor(near).mean(0).tolist()
    assert fast > slow + 0.01, near
