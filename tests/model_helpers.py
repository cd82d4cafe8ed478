"""Tiny models for tests: random float64 targets, generated tokenizers, drafters of adjustable quality. No downloads."""

from __future__ import annotations

import copy
import json
from collections import abc
from collections.abc import Callable, Container, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers import models as tokenizer_models
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from workbench.bench.families import FAMILIES as FAMILIES
from workbench.bench.families import VOCABULARY, family
from workbench.bench.families import random_model as random_model
from workbench.bench.goodness import joint_distribution
from workbench.core.sampling import SamplingParams, to_probs
from workbench.core.tree import tree_attention_mask
from workbench.decoders import ConfiguredMethod, Method
from workbench.decoders.draft_verify.state import DraftState, drafter_state
from workbench.decoders.draft_verify.verification_input import VerificationInput
from workbench.engine import Engine, Models, Request, Runner, Sequence
from workbench.engine.datastore import Card, Datastore, dtype_of, n_ids, tokenizer_hash
from workbench.engine.datastore_builder import sort_suffixes
from workbench.kernels.segment import Segment, Slot
from workbench.methods import registry
from workbench.models.loading import HeadInfo
from workbench.models.pretrained import load_tokenizer as bundled_tokenizer
from workbench.trace.events import Header, Trace
from workbench.training.heads.artefact import save_net
from workbench.training.scenes.model import language_config, vision_language_config
from workbench.training.scenes.tower import tower_config
from workbench.training.tokenizer import load_tokenizer

# -- tokenizers -------------------------------------------------------------------------------------------------------


def byte_alphabet() -> list[str]:
    """Return the 256 printable characters that byte-level tokenizers use for the bytes 0 to 255, in this order."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(others)) for b in range(256)]


@lru_cache
def byte_tokenizer(size: int = 257) -> PreTrainedTokenizerFast:
    """Return a tokenizer in which token 0 is EOS and token b + 1 is the byte b, cut to `size` entries."""
    vocabulary = {"<e>": 0} | {c: i + 1 for i, c in enumerate(byte_alphabet()) if i + 1 < size}
    tokenizer = Tokenizer(tokenizer_models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<e>")


@lru_cache
def letter_tokenizer(size: int) -> PreTrainedTokenizerFast:
    """Return a tokenizer without special tokens: token i is the i-th letter, and token 26 + i this letter twice."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    vocabulary = {letters[i % 26] * (i // 26 + 1): i for i in range(size)}
    tokenizer = Tokenizer(tokenizer_models.WordLevel(vocab=vocabulary, unk_token="a"))
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


# -- models -----------------------------------------------------------------------------------------------------------

hf: Any = transformers  # configurations accept arguments that their type stubs lack


def noisy_copy(model: Any, amount: float, seed: int = 0) -> Any:
    """Return a copy, a drafter of medium quality, with noise of `amount` standard deviations in every weight matrix."""
    shared_copy = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    for weight in shared_copy.parameters():
        if weight.dim() > 1:
            noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64).to(weight.device)
            weight.data.add_(amount * weight.std() * noise)
    return shared_copy


def make_models(
    name: str = "llama",
    seed: int = 0,
    noise: float | None = 0.25,
    device: str = "cpu",
    heads: Path | None = None,
    context: int | None = None,
    **overrides: Any,
) -> Models:
    """Return a target of a model family, a noisy copy as its drafter, and random heads.

    Args:
        name: model family.
        seed: seed of all weights.
        noise: noise of the drafter (see `noisy_copy`); None: no drafter.
        device: device of the models.
        heads: folder for Medusa heads; the heads of other kinds are written beside it. None: no heads.
        context: number of positions of target and drafter.
        overrides: values of the model's configuration.
    """
    target = family(name, seed, device, **overrides)
    size = target.get_output_embeddings().weight.shape[0]
    tokenizer = byte_tokenizer() if size == 257 else letter_tokenizer(size)
    models = Models(Runner(target, context), tokenizer, f"tiny-{name}")
    models.shared["datastore"] = random_datastore(models)
    if noise is not None:
        models.drafter = Runner(noisy_copy(target, noise, seed + 1), models.target.context)
        models.drafter_name, models.drafter_problem = f"tiny-{name}-noisy", ""
    if heads is not None:
        models.heads = {"medusa": write_random_medusa(heads, models), **write_random_heads(heads.parent, models)}
    return models


def generate_separately(models: Models, requests: abc.Sequence[Request]) -> list[list[int]]:
    """Return the output tokens of each request, each run in a separate engine."""
    return [Engine(models).generate(request).token_ids for request in requests]


def generate_batched(models: Models, requests: abc.Sequence[Request]) -> list[list[int]]:
    """Return the output tokens of each request, all run as sequences of one batch."""
    engine = Engine(models)
    rows = [engine.submit(request) for request in requests]
    while not engine.is_idle:
        engine.step()
    return [row.trace.token_ids for row in rows if row.trace is not None]


def run_rounds(engine: Engine, row: Sequence) -> Iterator[int]:
    """Step the engine to the end; after each round of a prefilled sequence, yield the number of tokens it committed."""
    while not engine.is_idle:
        before = len(row.committed)
        engine.step()
        if drafter_state(row) is not None and len(row.committed) > before:
            yield len(row.committed) - before


def make_small_models(
    vocabulary: int = 6, seed: int = 3, noise: float | None = 0.35, device: str = "cpu", **overrides: Any
) -> Models:
    """Return models with a vocabulary of a few tokens, whose distributions are far from uniform.

    The joint distribution of the first tokens can be enumerated.
    """
    overrides = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2} | overrides
    return make_models("llama", seed, noise, device, vocab_size=vocabulary, **overrides)


def random_datastore(models: Models, n: int = 600) -> Datastore:
    """Return a datastore of a repeating and a random text.

    It replaces the bundled datastore, whose texts have few tokens in a tiny vocabulary.
    """
    end = n_ids(models.tokenizer)
    ids = [*repeating_prompt(n // 2, min(end, VOCABULARY), period=7), end, *random_prompt(n // 2, min(end, VOCABULARY))]
    tokens = np.array([*ids, end], dtype_of(end))
    card = Card(len(tokens), end, tokenizer_hash(models.tokenizer), "tiny", texts=[("a", 0), ("b", n // 2 + 1)])
    return Datastore(card, tokens, sort_suffixes(tokens))


def write_random_medusa(folder: Path, models: Models, n_heads: int = 3, seed: int = 0) -> HeadInfo:
    """Write untrained Medusa heads in the format of `workbench train medusa`, and return their description."""
    width = models.target.hidden_size
    generator = torch.Generator().manual_seed(seed)
    weights = {
        f"heads.{i}.{part}": 0.3 * torch.randn(shape, generator=generator)
        for i in range(n_heads)
        for part, shape in (("weight", (width, width)), ("bias", (width,)))
    }
    folder.mkdir(parents=True, exist_ok=True)
    ranks = min(10, models.target.vocab_size)
    config = {
        "workbench_head": "medusa", "target": models.target_name, "hidden_size": width, "n_heads": n_heads,
        "head_accuracy": [[0.4 / (r + 1) for r in range(ranks)] for _ in range(n_heads)],
    }  # fmt: skip
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return HeadInfo(folder.name, folder, config)


def write_random_heads(folder: Path, models: Models, seed: int = 0) -> dict[str, HeadInfo]:
    """Write untrained heads of every kind except Medusa, and return their descriptions by kind."""
    found = {}
    width = models.target.hidden_size
    sizes = {
        "heads": 2,
        "ffn": 16,
        "taps": (1, 2),
        "draft_vocab_size": 5,
        "latents": 2,
        "ahead": 3,
        "inner": 8,
        "exit_layer": 1,
        "transfer_layer": 1,
        "rank": 2,
        "vocabulary": models.target.vocab_size,
    }
    for kind, head in registry.heads().items():
        if kind == "medusa":
            continue
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            net = head.build(width, sizes)
            for weight in net.parameters():
                if weight.dim() > 1 or kind == "judge":
                    torch.nn.init.normal_(weight, std=0.3)
        place = folder / f"tiny-{kind}"
        found[kind] = HeadInfo(place.name, place, save_net(net, place, models.target_name, torch.float32))
    return found


def image_head_kinds() -> list[str]:
    """Return the kinds of trained heads that have image inputs."""
    return [kind for kind, head in registry.heads().items() if head.recipe == "vision-heads"]


def representative_methods(methods: Iterable[ConfiguredMethod]) -> list[ConfiguredMethod]:
    """Return the last method of each combination of tree builder, sibling sampling and verifier.

    The others of a combination differ only in the source of their drafts, which verification does not depend on.
    """
    kinds: dict[tuple[Any, ...], ConfiguredMethod] = {}
    for m in methods:
        tree_builders = m.method.tree_builders
        grower = type(tree_builders[0]) if tree_builders else None
        kinds[(grower, type(m.verifier), m.method.drafter.siblings())] = m
    return list(kinds.values())


def mark_on_demand_unless(kept: Container[str], values: Iterable[Any], name: Callable[[Any], str] = str) -> list[Any]:
    """Return values as parameters of a test, with their names as ids; values outside `kept` get the mark `on_demand`.

    For properties that another test checks for every method, and that are checked here in a second way.
    """
    return [
        pytest.param(value, id=name(value), marks=() if name(value) in kept else pytest.mark.on_demand)
        for value in values
    ]


def representative_names() -> set[str]:
    """Return the names of `representative_methods` among the methods without images, with default parameters."""
    return {m.name for m in representative_methods(m.with_params() for m in text_methods())}


def mark_non_representatives(names: abc.Sequence[str], methods: Iterable[ConfiguredMethod]) -> list[Any]:
    """Return names of methods as parameters of a test; those outside `representative_methods` get the mark
    `on_demand`."""
    return mark_on_demand_unless({m.name for m in representative_methods(methods)}, names)


def make_sequence(request: Request, prompt: list[int], models: Models) -> Sequence:
    """Return a sequence outside of an engine, with an empty state and trace that the parts may read."""
    row = Sequence(request, prompt, models)
    row.trace = Trace(Header("t", row.configured_method.name, {}, "exact", 0, "", prompt, [], 8, "float64", "cpu"))
    row.state = DraftState()
    return row


def speculative_methods() -> list[Method]:
    """Return the methods whose rounds draft and verify. `tests/decoders` tests the others."""
    return [method for method in registry.methods() if method.is_speculative]


def text_methods() -> list[Method]:
    """Return the speculative methods that run without an image."""
    return [method for method in speculative_methods() if "pictures" not in method.needs]


# -- references -------------------------------------------------------------------------------------------------------


def save_random_llama(folder: Path, layers: int = 4) -> Path:
    """Save a small random Llama, which is not a bundled model, with the bundled tokenizer; return its folder."""
    tokenizer = bundled_tokenizer("text-target")
    config = hf.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=1024, tie_word_embeddings=False,
        bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = hf.LlamaForCausalLM(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def random_prompt(length: int, vocabulary: int = VOCABULARY, seed: int = 0) -> list[int]:
    """Return random token ids from 1 on: token 0 is EOS."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, vocabulary, (length,), generator=generator).tolist()


def repeating_prompt(length: int, vocabulary: int = VOCABULARY, seed: int = 0, period: int = 4) -> list[int]:
    """Return a prompt that repeats itself, so that methods that copy from the text have drafts."""
    return (random_prompt(period, vocabulary, seed) * length)[:length]


def hf_greedy(model: Any, prompt: abc.Sequence[int], n: int, eos: int | None = None, **options: Any) -> list[int]:
    """Return the greedy continuation of a prompt by Hugging Face's `generate`."""
    ids = torch.tensor([list(prompt)], device=model.device)
    config = hf.GenerationConfig(max_new_tokens=n, do_sample=False, eos_token_id=eos, pad_token_id=eos or 0)
    with torch.inference_mode():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config, **options)
    return out[0, len(prompt) :].tolist()


def path_to(parents: abc.Sequence[int], node: int) -> list[int]:
    """Return the nodes on the path from the first level down to `node`."""
    path = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


def tree_segment(
    slot: Slot, root: int, tokens: abc.Sequence[int], parents: abc.Sequence[int], device: str = "cpu"
) -> Segment:
    """Return the input segment of the last committed token and a tree after it, in the engine's format."""
    shifted = torch.tensor([-1, *(p + 1 for p in parents)], device=device)
    sees = tree_attention_mask(shifted, len(shifted))
    return Segment(slot, torch.tensor([root, *tokens], device=device), sees, sees.sum(1) - 1)


def tree_error(
    logits: Tensor, beginning: abc.Sequence[int], tokens: abc.Sequence[int], parents: abc.Sequence[int], ask: Any
) -> float:
    """Return the largest difference between tree logits [N+1, V] and those of a separate full forward of each path.

    Args:
        logits: logits at the root and after each node.
        beginning: committed tokens; the last one is the root.
        tokens: tokens of the nodes.
        parents: parents of the nodes.
        ask: function from token ids to the logits [V] after the last one.
    """
    worst = 0.0
    for node in range(-1, len(tokens)):
        wanted = ask([*beginning, *(tokens[i] for i in path_to(parents, node))])
        worst = max(worst, float((logits[node + 1] - wanted).abs().max()))
    return worst


def next_logits_function(model: Any, **extra: Any) -> Callable[[abc.Sequence[int]], Tensor]:
    """Return a function from token ids to the logits after the last one, by a plain forward without a KV cache."""

    def ask(ids: abc.Sequence[int]) -> Tensor:
        with torch.inference_mode():
            return model(torch.tensor([list(ids)], device=model.device), use_cache=False, **extra).logits[0, -1]

    return ask


def joint_distribution_with_images(
    model: Any, images: dict[str, Tensor], sampling: SamplingParams, n_tokens: int
) -> dict[tuple[int, ...], float]:
    """Return the exact joint distribution of the first tokens after a prompt with images, by full forward passes.

    Logits processors must not depend on the generated tokens.
    """
    prompt = images["input_ids"][0].tolist()

    class Sees:
        device = model.device

        def __call__(self, ids: Tensor) -> Any:
            return model(input_ids=ids, pixel_values=images["pixel_values"].to(model.dtype), use_cache=False)

    def warp(logits: Tensor) -> Tensor:
        for processor in sampling.processors:
            logits = processor(torch.tensor([prompt]), logits[None])[0]
        return to_probs(logits[None], sampling)[0]

    return joint_distribution(Sees(), prompt, n_tokens, warp)


def tiny_scene_target() -> tuple[Any, Any]:
    """Return a random LLaVA with the layout of the bundled one, and the bundled tokenizer."""
    tokenizer = load_tokenizer(Path("assets/models/text-target"))
    vision = tower_config(hidden=16, layers=1, inner=16)
    config = vision_language_config(tokenizer, vision, language_config(tokenizer, hidden=64, layers=1, inner=32))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.LlavaForConditionalGeneration(config)
    return model.eval().requires_grad_(False), tokenizer


def chunked_logits(runner: Runner, text: list[int], pieces: list[int]) -> Tensor:
    """Return the logits at each token of a text that is processed in pieces of these sizes."""
    slot, found, at = runner.open(), [], 0
    for size in pieces:
        found.append(runner.forward([Segment(slot, torch.tensor(text[at : at + size]))]).logits[0].clone())
        runner.commit(slot, range(size))
        at += size
    runner.close(slot)
    return torch.cat(found)


def assert_cache_equals_prefill(row: Sequence) -> None:
    """Check that a sequence's committed keys and values equal those of a new prefill of the same text."""
    target, n = row.models.target, row.cache_slot.length
    clean = target.open()
    target.prefill(clean, row.committed[:n])
    mine, fresh = (target.cache._stacks[0][:, :, slot.index, :, :n].clone() for slot in (row.cache_slot, clean))
    target.close(clean)
    torch.testing.assert_close(mine, fresh, rtol=0, atol=1e-12)


def assert_stale_cache_changes_text(
    models: Models, prompt: list[int], method: ConfiguredMethod, monkeypatch: pytest.MonkeyPatch, n: int = 24
) -> None:
    """Check that verification overwrites the KV cache entries of a draft by a part of the target.

    If the verified tokens are stored after these entries instead of over them, the text changes.
    """
    plain = VerificationInput.segment

    def behind(self: VerificationInput, row: Sequence, of: Models) -> Any:
        made, drafted = plain(self, row, of), len(self.tree)
        row.cache_slot.scratch = drafted if drafted and made.attention_mask is None else 0
        return made

    text = hf_greedy(models.target.model, prompt, n)
    request = Request(prompt, method, max_new_tokens=n, stop_at_eos=False)
    assert Engine(models).generate(request).token_ids == text
    monkeypatch.setattr(VerificationInput, "segment", behind)
    assert Engine(models).generate(request).token_ids != text
