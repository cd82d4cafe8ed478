"""The streaming KV cache: compared with an attention of our own over unrotated keys; memory; changes of the method."""

from __future__ import annotations

from typing import Any

import model_helpers
import pytest
import torch
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from workbench.core.errors import MethodUnavailableError
from workbench.core.sampling import SamplingParams
from workbench.engine import Engine, Models, Request
from workbench.engine.request import ENDED
from workbench.kernels.kv_cache import KVCache, TreeCache
from workbench.kernels.segment import Slot
from workbench.kernels.streaming import SinkWindow
from workbench.methods import registry
from workbench.models.backbone import Backbone
from workbench.models.key_rotation import key_rotation
from workbench.trace import export

PROMPT = model_helpers.repeating_prompt(21, period=5)
N, SINKS, WINDOW = 40, 3, 9


@pytest.fixture(scope="module")
def models(device: str) -> Models:
    return model_helpers.make_models("llama", noise=0.15, device=device)


def streaming(sinks: int = SINKS, window: int = WINDOW) -> Any:
    return registry.get("streaming-llm").with_params(sinks=sinks, window=window)


def make_request(method: Any, n: int = N, prompt: list[int] = PROMPT, **more: Any) -> Request:
    return Request(prompt, method, max_new_tokens=n, stop_at_eos=False, **more)


class Reference:
    """StreamingLLM as the paper describes it: keys are cached without positions; positions are those in the cache."""

    def __init__(self, model: Any, sinks: int, window: int) -> None:
        self.model, self.sinks, self.window = model.model, sinks, window
        self.head = model.lm_head
        self.entries: list[list[tuple[torch.Tensor, torch.Tensor]]] = [[] for _ in model.model.layers]

    def read(self, tokens: list[int]) -> torch.Tensor:
        """Append tokens, causal among themselves; return the logits after the last one; then drop old entries."""
        x = self.model.embed_tokens(torch.tensor(tokens, device=self.head.weight.device))[None]
        n = len(tokens)
        for layer, entries in zip(self.model.layers, self.entries, strict=True):
            attention, h = layer.self_attn, layer.input_layernorm(x)
            q, k, v = (
                project(h).view(1, n, -1, attention.head_dim).transpose(1, 2)
                for project in (attention.q_proj, attention.k_proj, attention.v_proj)
            )
            entries += [(k[:, :, i : i + 1], v[:, :, i : i + 1]) for i in range(n)]
            keys, values = (torch.cat([entry[part] for entry in entries], 2) for part in (0, 1))
            places = torch.arange(keys.shape[2], device=x.device)[None]
            cos, sin = self.model.rotary_emb(x, places)
            rotated = apply_rotary_pos_emb(keys, keys, cos, sin)[1]
            queries = apply_rotary_pos_emb(q, q, cos[:, -n:], sin[:, -n:])[0]
            groups = attention.num_key_value_groups
            scores = queries @ rotated.repeat_interleave(groups, 1).transpose(2, 3) * attention.scaling
            later = torch.ones(n, keys.shape[2], dtype=torch.bool, device=x.device).triu(keys.shape[2] - n + 1)
            weights = scores.masked_fill(later, -torch.inf).softmax(-1)
            mixed = (weights @ values.repeat_interleave(groups, 1)).transpose(1, 2).reshape(1, n, -1)
            x = x + attention.o_proj(mixed)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
            if (extra := len(entries) - self.sinks - self.window) >= max(1, self.window // 4):
                del entries[self.sinks : self.sinks + extra]
        return self.head(self.model.norm(x))[0, -1]

    @torch.inference_mode()
    def generate(self, prompt: list[int], n: int) -> list[int]:
        for start in range(0, len(prompt) - 1, self.window):
            self.read(prompt[start : min(start + self.window, len(prompt) - 1)])
        text = [*prompt]
        for _ in range(n):
            text.append(int(self.read(text[-1:]).argmax()))
        return text[len(prompt) :]


def test_its_text_is_that_of_the_papers_cache(models: Models) -> None:
    texts = list[list[int]]()
    for sinks, window in ((SINKS, WINDOW), (0, 8), (1, 16)):
        trace = Engine(models).generate(make_request(streaming(sinks, window)))
        assert trace.token_ids == Reference(models.target.model, sinks, window).generate(PROMPT, N), (sinks, window)
        texts.append(trace.token_ids)
    plain = model_helpers.hf_greedy(models.target.model, PROMPT, N)
    assert any(text != plain for text in texts), "a short window changes the text here"


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_until_the_window_is_full_the_text_is_the_targets(models: Models, temperature: float) -> None:
    sampling = SamplingParams(temperature)
    plain, streamed = (
        Engine(models).generate(make_request(method, 12, sampling=sampling, seed=4))
        for method in (registry.get("autoregressive"), streaming(window=32))
    )
    assert streamed.token_ids == plain.token_ids


def test_the_cache_stays_small_beyond_the_context(models: Models) -> None:
    context = models.target.context
    long = (PROMPT * context)[: context + 30]
    trace = Engine(models).generate(make_request(streaming(), n=context, prompt=long))
    assert len(trace.token_ids) == context
    assert not trace.footer.warnings
    entries = {r.signals["KV cache entries"] for r in trace.rounds}
    assert entries == {SINKS + WINDOW, SINKS + WINDOW + 1}, "blocks of two are dropped"
    assert export.read_json_lines(export.to_json_lines(trace)) == trace


def test_changes_to_other_methods_restore_the_cache(models: Models) -> None:
    engine, plain = Engine(models), model_helpers.hf_greedy(models.target.model, PROMPT, N)
    streams, leaves, comes = (
        engine.submit(make_request(method)) for method in (streaming(), streaming(), registry.get("draft-model"))
    )
    while not engine.is_idle and (leaves.n_new < 9 or comes.n_new < 5):
        engine.step()
    n_leaves, n_comes = leaves.n_new, comes.n_new
    leaves.change(method=registry.get("draft-model"))
    comes.change(method=registry.get("streaming-llm"), params={"sinks": SINKS, "window": WINDOW})
    while any(sequence.status not in ENDED for sequence in (streams, leaves, comes)):
        engine.step()
    texts = [sequence.trace.token_ids for sequence in (streams, leaves, comes) if sequence.trace is not None]
    assert texts[0] == Engine(models).generate(make_request(streaming())).token_ids
    start = texts[1][:n_leaves]
    assert start == texts[0][:n_leaves]
    assert texts[1][n_leaves:] == model_helpers.hf_greedy(models.target.model, PROMPT + start, N - n_leaves)
    assert texts[2][:n_comes] == plain[:n_comes]
    assert not models.target.slots


def test_a_text_beyond_the_context_cannot_leave(models: Models) -> None:
    engine, context = Engine(models), models.target.context
    sequence = engine.submit(make_request(streaming(), n=context + 20))
    while not engine.is_idle and sequence.n_new < context:
        engine.step()
    sequence.change(method=registry.get("draft-model"))
    while sequence.status not in ENDED:
        engine.step()
    assert sequence.trace is not None
    assert "more than the context" in sequence.trace.footer.warnings[0]
    assert len(sequence.trace.token_ids) == context + 20


def test_a_bounded_method_ends_at_the_context(models: Models) -> None:
    engine, context = Engine(models), models.target.context
    sequence = engine.submit(make_request(streaming(), n=context + 20))
    while not engine.is_idle and sequence.n_new < 5:
        engine.step()
    room = context - len(PROMPT)
    sequence.change(method=registry.get("draft-model"))
    while sequence.status not in ENDED:
        engine.step()
    assert sequence.trace is not None
    assert (
        f"max_new_tokens was cut from {context + 20} to {room}: the text of Draft model"
        in sequence.trace.footer.warnings[0]
    )
    assert (len(sequence.trace.token_ids), sequence.trace.footer.reason) == (room, "length")


def test_after_a_return_to_an_unbounded_method_the_requested_length_holds_again(models: Models) -> None:
    engine, n = Engine(models), models.target.context + 20
    sequence = engine.submit(make_request(streaming(), n=n))
    for changed_at, method in ((5, "draft-model"), (10, "streaming-llm")):
        while sequence.n_new < changed_at:
            engine.step()
        sequence.change(method=registry.get(method))
    while not engine.is_idle:
        engine.step()
    assert [c.after for r in sequence.trace.rounds for c in r.changes if c.name == "method"] == [
        "draft-model",
        "streaming-llm",
    ]
    assert len(sequence.trace.token_ids) == n


def test_models_whose_keys_cannot_be_moved_are_refused() -> None:
    gpt2 = model_helpers.make_models("gpt2", noise=None)
    with pytest.raises(MethodUnavailableError, match="cannot be moved"):
        key_rotation(gpt2.target)
    llama = model_helpers.make_models("llama", noise=None)
    assert key_rotation(llama.target) is key_rotation(llama.target)


def test_a_window_that_does_not_fit_the_context_is_cut(models: Models) -> None:
    context = models.target.context
    trace = Engine(models).generate(make_request(streaming(window=context), n=context))
    assert f"The window was cut from {context} to" in trace.footer.warnings[0]
    window = (context - SINKS - 1) // 2
    assert max(r.signals["KV cache entries"] for r in trace.rounds) == SINKS + window + window // 4 - 1


def test_a_runner_is_a_backbone_and_its_cache_a_kv_cache(models: Models) -> None:
    assert isinstance(models.target, Backbone)
    assert isinstance(models.target.cache, KVCache)
    drafter: Backbone | None = models.drafter
    assert drafter is not None
    assert drafter.cache is not models.target.cache


def test_rounding_of_moved_keys_does_not_add_up_in_half_precision(models: Models) -> None:
    """While a window of new tokens arrives, a key is moved at most four times, and stays what it would be at once."""
    window, rotation = 64, key_rotation(models.target)
    cache, moves = TreeCache(1, 1, 4 * window), list[int]()
    slot, retention = Slot(0), SinkWindow(2, window, rotation)
    size = 2 * len(rotation.frequencies)
    first = torch.randn(1, 1, 1, size, generator=torch.Generator().manual_seed(1)).bfloat16()
    buffer = cache.buffer(1, size, first)
    slot.length = 2 + window
    buffer[0, 0, 0, 0, slot.length - 1] = first[0, 0, 0]  # the newest key
    for _ in range(window - 1):
        before = slot.shift
        slot.length += 1
        retention.after_commit(cache, slot)
        if slot.shift > before:
            moves.append(slot.shift - before)
    at = 2 + window - 1 - slot.shift
    exact = rotation(first.double(), -slot.shift)[0, 0, 0]
    assert len(moves) <= 4
    assert sum(moves) == slot.shift > 0
    error = (buffer[0, 0, 0, 0, at].double() - exact).norm() / exact.norm()
    assert float(error) < 0.02
