"""The tree KV cache and its attention masks compared with naive references."""

from __future__ import annotations

import random
from typing import Any

import model_helpers
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.bench.tiny_config import tiny_config
from workbench.core.errors import CapacityError
from workbench.core.tree import depths_of, tree_attention_mask
from workbench.engine import Runner
from workbench.kernels.attention_span import AttentionSpan, AttentionSpans, attention_spans
from workbench.kernels.kv_cache import TreeCache, Window
from workbench.kernels.masks import MaskMaker
from workbench.kernels.segment import Segment
from workbench.models.runner import SCRATCH

SHAPE = {"num_hidden_layers": 2, "hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 1,
         "num_key_value_heads": 1}  # fmt: skip


class Reference:
    """Committed tokens of each sequence as plain lists, and a reference model."""

    def __init__(self, seed: int, name: str = "llama", context: int = 96) -> None:
        self.model = model_helpers.family(name, seed, "cpu", **(SHAPE if name == "llama" else {}))
        self.runner = Runner(self.model, context)
        self.ask = model_helpers.next_logits_function(self.model)


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10_000))
def test_commits_rewinds_and_moves_keep_each_sequences_text(seed: int) -> None:
    """After random operations on up to four sequences, their next logits equal a plain pass over their own text."""
    rng, world = random.Random(seed), Reference(seed)
    runner, texts = world.runner, {}
    for _ in range(10):
        action = rng.choice(["open", "tree", "tree", "tree", "chain", "rewind", "close"])
        if action == "open" and len(texts) < 4:
            slot, text = runner.open(), model_helpers.random_prompt(rng.randint(1, 9), seed=rng.randint(0, 99))
            assert not has_nonzero_entries(runner, slot.index, 0), "nothing stale"
            runner.prefill(slot, text, chunk=rng.randint(1, 5))
            texts[id(slot)] = (slot, text)
        elif texts:
            slot, text = rng.choice(list(texts.values()))
            if action == "close":
                runner.close(slot)
                del texts[id(slot)]
            elif action == "rewind":
                keep = rng.randint(1, len(text))
                runner.rewind(slot, keep)
                del text[keep:]
            elif action == "chain":
                new = model_helpers.random_prompt(rng.randint(1, 4), seed=rng.randint(0, 99))
                runner.forward([Segment(slot, torch.tensor(new))])
                runner.commit(slot, range(len(new)))
                text += new
            else:
                grow_trees(world, [rng.choice(list(texts.values())), (slot, text)], rng)
        assert not any(has_nonzero_entries(runner, row, reached) for row, reached in enumerate(runner.cache._reached))
    for slot, text in texts.values():
        probe = rng.randint(1, 63)
        out = runner.forward([Segment(slot, torch.tensor([probe]))])
        runner.rewind(slot, len(text))
        assert slot.length == len(text)
        assert float((out.logits[0, -1] - world.ask([*text, probe])).abs().max()) < 1e-12
    assert sorted(slot.index for slot, _ in texts.values()) == list(range(len(texts)))


def has_nonzero_entries(runner: Runner, row: int, start: int) -> bool:
    """Return whether a sequence's cache has nonzero entries from a position on."""
    return any(bool(stack[:, :, row, :, start:].any()) for stack in runner.cache._stacks)


def grow_trees(world: Reference, rows: list, rng: random.Random) -> None:
    """Run one batch of random trees and commit a random path of each."""
    rows = list({id(slot): (slot, text) for slot, text in rows}.values())
    batch, trees = [], []
    for slot, _ in rows:
        n = rng.randint(1, 6)
        parents = [rng.randint(-1, i - 1) for i in range(n)]
        tokens = model_helpers.random_prompt(n + 1, seed=rng.randint(0, 99))
        trees.append((tokens, parents))
        batch.append(model_helpers.tree_segment(slot, tokens[0], tokens[1:], parents))
    world.runner.forward(batch)
    for (slot, text), (tokens, parents) in zip(rows, trees, strict=True):
        path = [0, *(node + 1 for node in model_helpers.path_to(parents, rng.randint(-1, len(parents) - 1)))]
        world.runner.commit(slot, path)
        text += [tokens[i] for i in path]


def test_a_forward_beyond_the_capacity_is_a_named_error(device: str) -> None:
    runner = Runner(model_helpers.family("llama", device=device, **SHAPE), context=16)
    slot = runner.open()
    runner.prefill(slot, [1] * 16)
    with pytest.raises(CapacityError, match="positions") as caught:
        runner.forward([Segment(slot, torch.ones(SCRATCH + 1, dtype=torch.long, device=device))])
    assert "smaller tree" in caught.value.remedy
    runner.forward(
        [Segment(slot, torch.ones(SCRATCH, dtype=torch.long, device=device))]
    )  # the capacity is just reached


def test_no_memory_for_another_sequence_is_a_named_error(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = Runner(model_helpers.family("llama", device=device, **SHAPE), context=16)
    runner.prefill(runner.open(), [1, 2])

    def full(rows: int) -> None:
        raise MemoryError

    monkeypatch.setattr(runner.cache, "grow", full)
    with pytest.raises(CapacityError, match="no memory left for the KV cache of another sequence"):
        runner.open()


def test_cache_reports_its_memory(device: str) -> None:
    runner = Runner(model_helpers.family("llama", device=device, **SHAPE), context=16)
    runner.prefill(runner.open(), [1, 2])
    assert runner.cache.n_bytes == 2 * 2 * 8 * 8 * (16 + SCRATCH)  # layers, keys and values, width, bytes, positions


def test_unused_cache_memory_is_neither_written_nor_copied(device: str) -> None:
    """A long context is mostly untouched memory; zeroing it, or copying it for another sequence, took seconds."""
    runner = Runner(model_helpers.family("llama", device=device, **SHAPE), context=64)
    runner.prefill(runner.open(), [1, 2, 3])
    (stack,) = runner.cache._stacks
    with torch.inference_mode():
        stack[..., 3:, :] = 7.0  # which only this test writes
    runner.open()
    (grown,) = runner.cache._stacks
    assert torch.equal(grown[:, :, 0, :, :3], stack[:, :, 0, :, :3])
    assert not grown[:, :, 0, :, 3:].any()
    assert not grown[:, :, 1].any()


# -- masks ------------------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 5), st.integers(0, 1000)), min_size=1, max_size=3),
       st.sampled_from([None, 3, 5]), st.sampled_from([None, 4]))  # fmt: skip
def test_masks_allow_committed_tokens_and_ancestors_only(
    rows: list[tuple[int, int, int]], window: int | None, chunk: int | None
) -> None:
    """Every mask entry from first principles: committed tokens and ancestors, within the window of a sliding layer."""
    trees = []
    for start, n, seed in rows:
        rng = random.Random(seed)
        trees.append((start, [-1, *(rng.randint(-1, i - 1) + 1 for i in range(n))]))
    n = max(len(parents) for _, parents in trees)
    used = max(start for start, _ in trees) + n
    spans = {"full_attention": AttentionSpan()}
    spans |= {"sliding_attention": AttentionSpan(window)} if window else {}
    spans |= {"chunked_attention": AttentionSpan(None, chunk)} if chunk else {}
    maker = MaskMaker(AttentionSpans(spans, len(spans) > 1), torch.float32, torch.device("cpu"))
    sees = [tree_attention_mask(torch.tensor(parents), len(parents)) for _, parents in trees]
    full = maker.tree([start for start, _ in trees], sees, n, used)
    query, key = torch.zeros(len(trees), n, dtype=torch.long), torch.arange(used).repeat(len(trees), 1)
    for b, (start, parents) in enumerate(trees):
        at = torch.tensor(depths_of(parents)) - 1 + start
        query[b, : len(parents)] = at
        key[b, start : start + len(parents)] = at
    masks = maker.by_layer_type(full, query, key)
    masks = masks if isinstance(masks, dict) else {"full_attention": masks}
    assert set(masks) == set(spans)
    for b, (start, parents) in enumerate(trees):
        for i in range(len(parents)):
            for j in range(used):
                ancestor = j >= start and j - start in [*model_helpers.path_to(list(parents), i)]
                seen = j < start or ancestor
                q, k = int(query[b, i]), int(key[b, j])
                assert (float(masks["full_attention"][b, 0, i, j]) == 0) == seen
                if window:
                    assert (float(masks["sliding_attention"][b, 0, i, j]) == 0) == (seen and q - k < window)
                if chunk:
                    assert (float(masks["chunked_attention"][b, 0, i, j]) == 0) == (seen and q // chunk == k // chunk)
    assert bool((full.amax(-1) == 0).all())  # also for padding: a token that attends to nothing would become NaN


FULL, SLIDING = {"full_attention": AttentionSpan()}, {"sliding_attention": AttentionSpan(6)}
SPANS: dict[str, tuple[str, dict[str, Any], AttentionSpans]] = {
    "llama": ("llama", {}, AttentionSpans(FULL)),
    "llama, stray window": ("llama", {"sliding_window": 6}, AttentionSpans(FULL)),
    "llama, stray layer types": ("llama", {"sliding_window": 6, "layer_types": ["sliding_attention"] * 3},
                                 AttentionSpans(FULL)),
    "mistral": ("mistral", {}, AttentionSpans(SLIDING)),
    "mistral, stray switch": ("mistral", {"use_sliding_window": False}, AttentionSpans(SLIDING)),
    "mistral, longer than the context": ("mistral", {"sliding_window": 100}, AttentionSpans(FULL)),
    "mistral, none": ("mistral", {"sliding_window": None}, AttentionSpans(FULL)),
    "phi3, stray switch": ("phi3", {"sliding_window": 6, "use_sliding_window": False}, AttentionSpans(SLIDING)),
    "qwen2, switched off": ("qwen2", {"sliding_window": 6, "use_sliding_window": False}, AttentionSpans(FULL)),
    "qwen2": ("qwen2", {"sliding_window": 6, "use_sliding_window": True, "max_window_layers": 1},
              AttentionSpans(FULL | SLIDING, True)),
    "gemma3": ("gemma3_text", {}, AttentionSpans(FULL | SLIDING, True)),
    "gpt2, learned positions": ("gpt2", {}, AttentionSpans(FULL)),
    "llama4": ("llama4_text", {}, AttentionSpans({"chunked_attention": AttentionSpan(None, 8)}, True)),
}  # fmt: skip


@pytest.mark.parametrize("name", SPANS)
def test_attention_spans_equal_the_models_own_masks(name: str) -> None:
    """Configuration keys that a family does not read have no effect."""
    family, values, wanted = SPANS[name]
    assert attention_spans(model_helpers.family(family, **values), 90) == wanted


@pytest.mark.parametrize("name", ["mixtral", "starcoder2", "qwen2_moe", "phimoe"])
def test_switch_of_the_window_counts_only_in_families_that_read_it(name: str) -> None:
    """Layers of Mixtral, Starcoder2 and Phi-3.5-MoE have their window whatever `use_sliding_window` is."""
    values: dict[str, Any] = {"sliding_window": 6, "use_sliding_window": False}
    model = model_helpers.random_model(tiny_config(name, **values))
    assert attention_spans(model, 90) == AttentionSpans(FULL if name == "qwen2_moe" else SLIDING)


def test_model_without_measurable_masks_uses_its_configuration() -> None:
    model = model_helpers.family("mistral")
    model.model.forward = None
    assert attention_spans(model, 90) == AttentionSpans(SLIDING)
    assert AttentionSpans.from_config(model_helpers.FAMILIES["gemma3_text"]()) == AttentionSpans(FULL | SLIDING, True)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("start", [0, 5, 40])
def test_masks_on_a_gpu_are_aligned_to_16_bytes(n: int, start: int) -> None:
    """A view into a strip may begin anywhere: on an H200, attention failed with "misaligned address"."""
    kinds = AttentionSpans(FULL)
    elsewhere = MaskMaker(kinds, torch.bfloat16, torch.device("meta"))  # meta tensors have no values here
    mask = elsewhere.chain(start, n, 128)
    assert mask.shape == (1, 1, n, 128)
    assert mask.storage_offset() == 0
    assert mask.untyped_storage().nbytes() == 2 * n * 128
    here = MaskMaker(kinds, torch.bfloat16, torch.device("cpu")).chain(start, n, 128)
    assert torch.equal(here, MaskMaker(kinds, torch.bfloat16, torch.device("cpu")).tree([start], [None], n, 128))


def test_positions_are_zeroed_if_buffers_were_allocated_meanwhile() -> None:
    """A drafter may read text outside the rounds before any prefill."""
    cache, entry = TreeCache(1, rows=1, capacity=4), torch.ones(1, 1, 2, 3)
    with cache.restore_on_exit(0, 0, 2):
        cache.window = Window(slice(0, 1), start=0, used=2)
        cache.update(entry, entry, 0)
    assert cache.update(entry[:, :, :0], entry[:, :, :0], 0)[0].tolist() == torch.zeros(1, 1, 2, 3).tolist()
