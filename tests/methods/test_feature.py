"""Feature drafters: image inputs of each kind, state after each round, and unchanged output with images."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from typing import Any

import model_helpers
import pytest
import torch
from torch import Tensor
from vision_model_helpers import noise_image, tiny_processor, tiny_vision_model

from workbench.bench.goodness import chi_square, count_firsts
from workbench.core.sampling import SamplingParams
from workbench.decoders.draft_verify.image_attribution import embeddings_and_features as states_of
from workbench.decoders.draft_verify.image_attribution import explain, weight_sharing_copy_of
from workbench.engine import Engine, Models, Request, Runner
from workbench.engine.image_inputs import process_prompt
from workbench.engine.settings import ImageChange
from workbench.kernels.image_layout import layout
from workbench.methods import registry
from workbench.methods.common import compressors
from workbench.methods.common.feature import load_net
from workbench.methods.common.feature_maps import contrast
from workbench.methods.common.feature_net import FeatureNet, PromptFeatures
from workbench.methods.eagle_vlm.drafter import EagleVLMNet
from workbench.methods.flash.drafter import FlashNet
from workbench.methods.msd.drafter import MSDNet
from workbench.methods.specvlm.drafter import MENU, Compression, SpecVLMNet

D, N = 16, 16


def random_tensor(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_patch_contrast_is_relative_to_the_mean_of_its_image() -> None:
    """The mean of an image does not distinguish its patches; text positions are not patches."""
    x, spans = random_tensor(1, 10, D), [(1, 5), (6, 9)]
    found = contrast(x, spans)
    for start, end in spans:
        assert torch.allclose(found[:, start:end].sum(1), torch.zeros(1, D, dtype=x.dtype), atol=1e-12)
        assert torch.allclose(found[:, start:end].diff(dim=1), x[:, start:end].diff(dim=1))
    brighter = x.clone()
    brighter[:, 1:5] += 100
    assert torch.allclose(contrast(brighter, spans), found)
    assert not found[:, [0, 5, 9]].any()


def random_inputs(batch: int = 2, before: int = 3, vision: int = N, after: int = 5, seed: int = 0) -> PromptFeatures:
    """Prompts of text, one square image, and text."""
    n, side = before + vision + after, int(vision**0.5)
    span = [(before, before + vision)] if vision else []
    return PromptFeatures(
        random_tensor(batch, n, D, seed=seed),
        random_tensor(batch, n - 1, D, seed=seed + 1),
        span,
        [(side, side)] * len(span),
    )


def net_of(kind: type[FeatureNet], **more: Any) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return kind(D, 2, 24, **more).double()


def states(net: FeatureNet, prompt: PromptFeatures, how: Any = None) -> Tensor:
    entered = net.build_inputs(prompt, how)
    return net(entered.inputs, entered.positions)


# -- compressors ------------------------------------------------------------------------------------------------------


def test_compressors_return_as_many_tokens_as_in_the_paper() -> None:
    net, x = net_of(SpecVLMNet), random_tensor(1, 64, D)

    def sizes(name: str, ratio: int) -> int:
        view = net.compress(x, (8, 8), name, Compression(name, ratio))
        assert view.inputs.shape[1] == len(view.positions)
        assert bool((view.positions.diff() > 0).all())
        return view.inputs.shape[1]

    assert [sizes("prune", r) for r in (1, 3, 4, 20, 64)] == [64, 22, 16, 4, 1]
    assert [sizes("pool", r) for r in (1, 3, 4, 16, 20)] == [64, 22, 16, 4, 4]
    assert [sizes("conv", r) for r in (1, 4, 16, 64)] == [64, 16, 4, 1]
    assert sizes("conv", 3) == 16  # each step halves the sides: the next power of four
    assert [sizes("resample", 4), sizes("none", 4)] == [2, 0]


def test_windows_and_blocks_tile_the_grid() -> None:
    for rows, cols, ratio in itertools.product((1, 4, 5, 8), (3, 8), (1, 2, 4, 9, 16)):
        for found in (compressors.windows(rows, cols, ratio), compressors.blocks(rows, cols, max(1, ratio // 3))):
            assert sorted(itertools.chain(*found)) == list(range(rows * cols))


def test_pooling_is_the_mean_of_each_block_and_so_is_the_initial_convolution() -> None:
    x = random_tensor(2, 16, D)
    pooled = compressors.pool(x, 4, 4, 4)
    assert pooled.blocks == [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]
    assert torch.allclose(pooled.inputs[:, 1], x[:, [2, 3, 6, 7]].mean(1))
    convolution = net_of(SpecVLMNet).conv
    with torch.no_grad():
        convolution.conv.weight.copy_(torch.eye(D // 8).repeat(8, 1)[:, :, None, None].expand(-1, -1, 2, 2) / 4)
        assert torch.allclose(convolution(x, 4, 4, 4).inputs, pooled.inputs)
        assert convolution(x, 4, 4, 4).blocks == pooled.blocks


def test_pruning_keeps_a_uniform_subset() -> None:
    counts = torch.zeros(8)
    for seed in range(400):
        kept = compressors.subset(8, 3, seed)
        assert kept == sorted(set(kept))
        counts[kept] += 1
    assert chi_square(dict(enumerate(counts.int().tolist())), dict.fromkeys(range(8), 1 / 8)).fits(1e-5)
    assert compressors.subset(8, 3, 1) == compressors.subset(8, 3, 1)


# -- SpecVLM ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["all", "prune", "pool"])
def test_specvlm_without_compression_equals_eagle_vlm_bit_for_bit(name: str) -> None:
    spec, eagle = net_of(SpecVLMNet), net_of(EagleVLMNet)
    eagle.load_state_dict(spec.state_dict(), strict=False)
    prompt = random_inputs()
    assert torch.equal(states(spec, prompt, Compression(name, ratio=1)), states(eagle, prompt))
    assert not torch.equal(states(spec, prompt, Compression("prune", ratio=4))[:, -1], states(eagle, prompt)[:, -1])


def test_gate_selects_one_operation_in_drafting() -> None:
    net, prompt = net_of(SpecVLMNet), random_inputs(batch=1)
    for choice, name in enumerate(MENU):
        with torch.no_grad():
            net.gate.bias.copy_(100.0 * torch.eye(len(MENU))[choice])
        entered = net.build_inputs(prompt, Compression("gate", 4))
        assert entered.images[0].compressor == name
        assert max(entered.images[0].gate, key=entered.images[0].gate.get) == name
        assert torch.equal(entered.inputs, net.build_inputs(prompt, Compression(name, 4)).inputs)


def test_gate_depends_only_on_the_question() -> None:
    net, prompt = net_of(SpecVLMNet), random_inputs(batch=1)
    gate = net.build_inputs(prompt, Compression("gate")).images[0].gate
    start, end = prompt.spans[0]
    other = prompt.features.clone()
    other[:, start:end] += 1
    assert net.build_inputs(dataclasses.replace(prompt, features=other)).images[0].gate == gate
    asked = torch.zeros(prompt.features.shape[:2], dtype=torch.bool)
    asked[:, end:] = True
    other = dataclasses.replace(prompt, question=asked)
    assert net.build_inputs(other).images[0].gate != gate
    assert torch.allclose(other.mean_question_feature(), prompt.features[:, end:].mean(1))


def test_training_samples_and_trains_every_operation() -> None:
    net, rows = net_of(SpecVLMNet), 64
    prompt = random_inputs(batch=rows)
    uniform = torch.rand(rows, len(MENU), generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    how = Compression("gate", 4, noise=-(-uniform.log()).log())
    entered = net.build_inputs(prompt, how)
    view = entered.images[0]
    sizes = [4, 4, 4, 2, 0]
    parts = view.visible.split(sizes, 1)
    n_drawn = [int(part.any(1).sum()) if part.shape[1] else 0 for part in parts]
    n_drawn[-1] = rows - sum(n_drawn)
    assert all(n >= rows // 20 for n in n_drawn), n_drawn
    assert all(
        bool((part.all(1) | ~part.any(1)).all()) for part in parts[:-1]
    )  # each sample uses exactly one operation
    # the sampled operation's output is unchanged: the straight-through weight has the value 1
    row = int(parts[1].any(1).nonzero()[0])
    alone = net.build_inputs(prompt, Compression("pool", 4)).images[0].inputs[row]
    assert torch.allclose(view.inputs.split(sizes, 1)[1][row], alone)
    n = entered.inputs.shape[1]
    mask = torch.ones(n, n, dtype=torch.bool).tril() & entered.visible.unsqueeze(1) | torch.eye(n, dtype=torch.bool)
    net(entered.inputs, entered.positions, mask.unsqueeze(1))[:, -5:].square().sum().backward()
    gradients = {name: weight.grad for name, weight in net.named_parameters()}
    for name in ("gate.weight", "conv.conv.weight", "resample.queries", "resample.values.weight"):
        assert gradients[name] is not None, name
        assert float(gradients[name].abs().max()) > 0, name
    assert bool((gradients["gate.bias"].abs() > 0).all())  # every branch


def test_confident_gate_still_trains_every_operation() -> None:
    net, rows = net_of(SpecVLMNet), 64
    with torch.no_grad():
        net.gate.bias[MENU.index("none")] = 100.0
    uniform = torch.rand(rows, len(MENU), generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    how = Compression("gate", 4, noise=-(-uniform.log()).log())
    prompt = random_inputs(batch=rows)
    assert not net.build_inputs(prompt, how).images[0].visible.any()
    even = torch.arange(rows).unsqueeze(1) < rows // 2
    visible = net.build_inputs(prompt, dataclasses.replace(how, even=even)).images[0].visible
    assert not visible[rows // 2 :].any()
    assert all(part[: rows // 2].any() for part in visible.split([4, 4, 4, 2], 1))


# -- MSD --------------------------------------------------------------------------------------------------------------


def test_msd_does_not_use_features_at_vision_positions() -> None:
    prompt = random_inputs()
    start, end = prompt.spans[0]
    for kind, used in ((MSDNet, False), (EagleVLMNet, True)):
        features, embeds = prompt.features.clone().requires_grad_(), prompt.embeds.clone().requires_grad_()
        inputs = dataclasses.replace(prompt, features=features, embeds=embeds)
        states(net_of(kind), inputs)[:, end:].square().sum().backward()
        assert bool(features.grad[:, start:end].abs().max() > 0) is used, kind
        assert float(features.grad[:, :start].abs().min()) > 0
        assert float(embeds.grad[:, start:end].abs().min()) > 0


def test_msd_skips_the_image_between_a_token_and_the_next_one() -> None:
    net, prompt = net_of(MSDNet), random_inputs()
    start, end = prompt.spans[0]
    following = net.next_embeddings(prompt)
    assert torch.equal(following[:, start - 1], prompt.embeds[:, end])
    assert torch.equal(following[:, : start - 1], prompt.embeds[:, 1:start])
    assert torch.equal(following[:, end:], prompt.embeds[:, end + 1 :])
    two = dataclasses.replace(prompt, spans=[(2, 6), (6, 9)], grids=[(2, 2), (1, 3)])  # adjacent images
    assert torch.equal(net.next_embeddings(two)[:, 1], prompt.embeds[:, 9])
    assert torch.equal(net.build_inputs(two).inputs[:, 2:9], prompt.embeds[:, 2:9])


def test_without_an_image_all_of_them_equal_eagle() -> None:
    prompt = random_inputs(vision=0)
    eagle = net_of(EagleVLMNet)
    for kind in (MSDNet, SpecVLMNet, FlashNet):
        net = net_of(kind)
        eagle.load_state_dict({k: v for k, v in net.state_dict().items() if k in eagle.state_dict()})
        assert torch.equal(states(net, prompt), states(eagle, prompt)), kind


# -- FLASH ------------------------------------------------------------------------------------------------------------


def test_as_many_latents_as_patches_can_reproduce_the_patches() -> None:
    net, prompt = net_of(FlashNet, latents=N), random_inputs(batch=1)
    start, end = prompt.spans[0]
    features = prompt.features[:, start:end]
    with torch.no_grad():
        net.queries.copy_(1e3 * torch.linalg.pinv(features[0]).mT)  # softmax(A Fᵀ) → identity
    view = net.build_inputs(prompt).images[0]
    assert torch.allclose(view.inputs, features, atol=1e-9)
    assert view.positions.tolist() == list(range(N))
    assert torch.allclose(view.weights, torch.eye(N, dtype=torch.float64), atol=1e-9)


def test_flash_mixes_only_features_and_weights_sum_to_one() -> None:
    net, prompt = net_of(FlashNet, latents=4), random_inputs()
    view = net.build_inputs(prompt).images[0]
    assert view.inputs.shape == (2, 4, D)
    assert torch.allclose(view.weights.sum(1), torch.ones(4, dtype=torch.float64))
    start, end = prompt.spans[0]
    embeds = prompt.embeds.clone()
    embeds[:, start + 1 : end] += 1
    assert torch.equal(net.build_inputs(dataclasses.replace(prompt, embeds=embeds)).images[0].inputs, view.inputs)


def test_flash_uses_its_first_queries() -> None:
    net, prompt = net_of(FlashNet, latents=4), random_inputs()
    every = net.build_inputs(prompt).images[0]
    for latents, expected in ((1, 1), (3, 3), (9, 4)):
        view = net.build_inputs(prompt, latents).images[0]
        assert torch.allclose(view.inputs, every.inputs[:, :expected], atol=1e-12)
        assert view.weights.shape == (expected, N)


def test_flash_trains_every_size_of_its_latents() -> None:
    net = net_of(FlashNet, latents=4)
    generator = torch.Generator().manual_seed(0)
    sizes = [net.sample_options(2, lambda *shape: torch.rand(shape, generator=generator), 0) for _ in range(300)]
    counts = Counter(sizes)
    assert set(counts) == {1, 2, 4}
    assert min(counts.values()) > 60


def test_one_feature_ahead_reduces_flash_to_eagle() -> None:
    one, four, state = net_of(FlashNet, ahead=1), net_of(FlashNet, ahead=4), random_tensor(3, D)
    assert torch.equal(one.futures(state), state.unsqueeze(-2))
    assert torch.equal(four.futures(state)[:, 0], state)
    with torch.no_grad():
        four.later.weight.normal_()
    assert four.futures(state).shape == (3, 4, D)
    assert not torch.equal(four.futures(state)[:, 1], four.futures(state)[:, 2])


def test_each_feature_ahead_is_its_own_slice_of_the_head() -> None:
    """The head's output for the i-th next feature in training is the one used in drafting."""
    net, state = net_of(FlashNet, ahead=4, inner=D), random_tensor(3, D)
    with torch.no_grad():
        net.later.bias.copy_(torch.arange(1, 4).repeat_interleave(D))  # weights are zero: offset i adds i
    assert torch.equal(net.futures(state), state.unsqueeze(1) + torch.arange(4).view(1, 4, 1))


# -- in the engine ----------------------------------------------------------------------------------------------------

VOCABULARY = 12
PROMPT = "ab<|image|>cdef"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, device: str) -> Models:
    """A tiny LLaVA with 16 patches per image, and untrained drafters with random predictions and compressors."""
    return _models(VOCABULARY, tmp_path_factory, device)


def _models(vocabulary: int, folders: pytest.TempPathFactory, device: str = "cpu") -> Models:
    processor, model = tiny_processor(vocabulary, patch=2), tiny_vision_model(vocabulary, 1, patch=2)
    found = Models(Runner(model.to(device)), processor.tokenizer, "tiny-vision")
    found.processor = processor
    found.heads = model_helpers.write_random_heads(folders.mktemp("features"), found)
    return found


def request(models: Models, method: str, n: int = 20, pictures: int = 1, seed: int = 0, **values: Any) -> Request:
    shown = [noise_image(i) for i in range(pictures)]
    prompt, images = process_prompt(models, PROMPT + "<|image|>b" * (pictures - 1), shown)
    configured = registry.get(method).with_params(**values)
    return Request(prompt, configured, max_new_tokens=n, image_inputs=images, pil_images=tuple(shown), seed=seed)


def greedy(models: Models, n: int, pictures: int = 1) -> list[int]:
    """Return Hugging Face's greedy text."""
    images = request(models, "autoregressive", pictures=pictures).image_inputs
    config = model_helpers.hf.GenerationConfig(max_new_tokens=n, do_sample=False, pad_token_id=0)
    model: Any = models.target.model
    images = {name: value.to(model.device) for name, value in images.items()}
    return model.generate(**images, generation_config=config)[0, images["input_ids"].shape[1] :].tolist()


COMPRESSIONS = [{"compressor": c, "ratio": 4} for c in ("all", *MENU)] + [{"compressor": "conv", "ratio": 64}]


@pytest.mark.slow
@pytest.mark.parametrize("pictures", [1, 2])
def test_greedy_text_equals_hugging_faces_for_any_drafter_input(models: Models, pictures: int) -> None:
    wanted = greedy(models, 20, pictures)
    cases = [(method, {}) for method in model_helpers.image_head_kinds()] + [("specvlm", c) for c in COMPRESSIONS]
    cases += [("flash", {"depth": 7, "width": 4, "nodes": 40})]
    for method, values in cases:
        trace = Engine(models).generate(request(models, method, pictures=pictures, **values))
        assert trace.token_ids == wanted, (method, values)


def without_placeholder(_: Tensor, scores: Tensor) -> Tensor:
    """Exclude image tokens, which the tiny target would emit and which no forward pass with pixels could read."""
    return scores.index_fill(1, torch.tensor([scores.shape[1] - 1]), -torch.inf)


@pytest.mark.slow
def test_sampled_text_after_an_image_follows_the_targets_distribution(tmp_path_factory: pytest.TempPathFactory) -> None:
    models = _models(6, tmp_path_factory)
    asked = request(models, "specvlm", n=3, width=2, depth=2)
    sampling = SamplingParams(temperature=1.0, top_k=3, processors=(without_placeholder,))
    asked = dataclasses.replace(asked, sampling=sampling, stop_at_eos=False)
    exact = model_helpers.joint_distribution_with_images(models.target.model, asked.image_inputs, asked.sampling, 2)
    engine = Engine(models, max_sequences=50, record=False)
    rows = [engine.submit(dataclasses.replace(asked, seed=seed)) for seed in range(150)]
    while not engine.is_idle:
        engine.step()
    assert not any(row.error for row in rows)
    counts = count_firsts([row.trace.token_ids for row in rows], 2)
    fit = chi_square(counts, exact)
    assert fit.freedom > 4
    assert fit.fits(1e-5), fit


@pytest.mark.parametrize("method", model_helpers.image_head_kinds())
@pytest.mark.parametrize("pictured", [True, False])
def test_drafter_state_equals_a_fresh_prefill_after_every_round(models: Models, method: str, pictured: bool) -> None:
    """Only true features stay in the state: after any number of rounds it equals a prefill of the same text."""
    asked = (
        request(models, method, n=24) if pictured else Request([1, 2, 3, 4], registry.get(method), max_new_tokens=24)
    )
    engine = Engine(models)
    row = engine.submit(asked)
    for _ in range(8):
        engine.step()
        if row.state.drafter is None:
            break
        with torch.inference_mode():
            fresh = row.drafter.init_state(row, models)
            known, recomputed = row.state.drafter.catch_up(), fresh.catch_up()
        assert row.state.drafter.kv_cache.n_stable == fresh.kv_cache.n_stable
        assert row.state.drafter.position == fresh.position == len(row.committed) - 1
        assert float((known - recomputed).abs().max()) < 1e-10
    assert len(row.trace.rounds) > 4


def test_tree_has_the_best_candidates(models: Models) -> None:
    trees = []
    for nodes in (96, 9):
        trace = Engine(models).generate(request(models, "eagle-vlm", n=8, depth=4, width=3, nodes=nodes))
        trees.append(trace.rounds[0].nodes)
    whole, best = trees
    assert len(whole) == 3 + 3 * 9

    def paths(nodes: Any) -> dict[tuple[int, ...], float]:
        found = {}
        for i in range(len(nodes)):
            along = model_helpers.path_to(nodes.parents, i)
            found[tuple(nodes.tokens[j] for j in along)] = float(torch.tensor([nodes.q[j] for j in along]).prod())
        return found

    offered = paths(whole)
    assert set(paths(best)) == set(sorted(offered, key=offered.__getitem__, reverse=True)[:9])
    assert all(path[:-1] in offered or len(path) == 1 for path in offered)


def test_trace_describes_the_drafters_image_input(models: Models) -> None:
    def vision(method: str, pictures: int = 1, **values: Any) -> dict[str, Any]:
        return Engine(models).generate(request(models, method, n=4, pictures=pictures, **values)).rounds[0].vision

    each = 2 * D * 8  # keys and values in float64
    eagle = vision("eagle-vlm")
    assert (eagle["compressor"], eagle["n_target"], eagle["n_drafter"]) == ("all", 16, 16)
    assert eagle["drafter_bytes"] == 16 * each
    assert eagle["drafter_prefill_s"] > 0
    pruned = vision("specvlm", compressor="prune", ratio=4)
    assert (pruned["n_drafter"], len(pruned["kept"]), pruned["blocks"]) == (4, 4, None)
    pooled = vision("specvlm", pictures=2, compressor="pool", ratio=4)
    assert (pooled["n_target"], pooled["n_drafter"]) == (32, 8)
    assert sorted(itertools.chain(*pooled["blocks"])) == list(range(32))
    resampled = vision("specvlm", pictures=2, compressor="resample")
    assert [sum(w[:16]) for w in resampled["weights"]] == pytest.approx([1, 1, 0, 0], abs=1e-2)
    assert vision("specvlm", compressor="none")["kept"] == []
    gated = vision("specvlm")
    assert gated["compressor"] == max(gated["gate"], key=gated["gate"].get)
    latent = vision("flash")
    assert (latent["n_drafter"], len(latent["weights"]), len(latent["weights"][0])) == (2, 2, 16)


MAPS = [(kind, {}) for kind in model_helpers.image_head_kinds()] + [
    ("specvlm", {"compressor": c, "ratio": 4}) for c in ("all", *MENU[:4])
]


@pytest.mark.parametrize(("method", "values"), MAPS, ids=str)
@pytest.mark.parametrize("pictures", [1, 2])
def test_attribution_equals_the_effect_of_a_change_of_a_patch(
    models: Models, method: str, values: dict[str, Any], pictures: int
) -> None:
    asked, tokens = request(models, method, n=5, pictures=pictures, **values), [3, 1, 4, 1, 5]
    found = asked.configured_method().drafter.explain(models, asked, tokens)
    if found is None:  # the gate's choice
        assert Engine(models).generate(asked).rounds[0].vision["compressor"] == "none"
        return
    for maps in found.values():
        assert [len(row) for row in maps] == [16 * pictures] * 5
        assert all(max(row) == 255 for row in maps)
    wanted, error = by_contrast(models, asked, tokens, index=3)
    assert error < 0.1  # of 255: the rest is rounding of both to integers
    assert max(abs(a - b) for a, b in zip(found["gradient"][3], wanted, strict=True)) <= 0.5 + error


def by_contrast(models: Models, asked: Request, tokens: list[int], index: int) -> tuple[list[float], float]:
    """Return |d log q(token) / d s| of each patch with embedding and feature x̄ + s · (x − x̄), at s = 1, scaled to 255.

    Central differences of two steps, in float64 throughout. Their error falls with the square of the step until
    rounding takes over. So the finer one's error is about a third of their difference: the second result.
    """
    drafter: Any = asked.configured_method().drafter
    assert models.target.dtype == torch.float64
    net, inputs = load_net(drafter.net, models), asked.image_inputs
    assert inputs is not None
    embeds, features = states_of(
        weight_sharing_copy_of(models.target.model), inputs, tokens[:index]
    )  # nothing after the prompt is needed
    is_vision, grids, spans = layout(models.target.model.config, inputs)
    question = torch.zeros(1, features.shape[1] - 1, dtype=torch.bool)
    question[0, : len(is_vision) - 1] = ~is_vision[:-1]
    question = question.to(features.device)

    def moved(x: Tensor, place: int, by: float) -> Tensor:
        start, end = next((a, b) for a, b in spans if a <= place < b)
        x = x.clone()
        x[0, place] += by * (x[0, place] - x[0, start:end].mean(0))
        return x

    def says(place: int, by: float) -> float:
        seen = PromptFeatures(moved(embeds, place, by), moved(features, place, by)[:, :-1], spans, grids, question)
        entered = net.build_inputs(seen, drafter.image_options)
        state = net(entered.inputs, entered.positions)[:, -1]
        return float(models.target.lm_head.forward(state).log_softmax(1)[0, tokens[index]])

    def slopes(step: float) -> Tensor:
        places = is_vision.nonzero().flatten().tolist()
        found = torch.tensor([abs(says(p, step) - says(p, -step)) for p in places], dtype=torch.float64)
        return found / found.max() * 255

    fine, coarse = slopes(1e-4), slopes(2e-4)
    return fine.tolist(), float((fine - coarse).abs().max()) / 3


def test_attention_on_a_pooled_image_is_shared_by_the_patches_of_a_block(models: Models) -> None:
    asked = request(models, "specvlm", n=3, compressor="pool", ratio=4)
    trace = Engine(models).generate(asked)
    blocks = trace.rounds[0].vision["blocks"]
    for row in explain(models, asked, trace, asked.configured_method().drafter)["drafter"]["attention"]:
        assert all(len({row[i] for i in block}) == 1 for block in blocks)
        assert len(set(row)) > 1


def test_drafter_without_images_has_no_attribution(models: Models) -> None:
    asked = request(models, "specvlm", n=3, compressor="none")
    assert explain(models, asked, Engine(models).generate(asked), asked.configured_method().drafter)["drafter"] is None


def test_image_changed_during_a_run_is_read_again(models: Models) -> None:
    """Changed for the drafter only, the text stays; changed for both, the target continues with the new image."""
    wanted = greedy(models, 20)
    for sees in ("drafter", "both"):
        engine = Engine(models)
        asked = request(models, "eagle-vlm")
        row = engine.submit(asked)
        while not row.trace.rounds:
            engine.step()
        before = row.state.drafter
        other = noise_image(9)
        row.change(image_change=ImageChange((other,), process_prompt(models, PROMPT, [other])[1], sees))
        while not engine.is_idle:
            engine.step()
            if row.state.drafter is not None:
                assert row.state.drafter is not before
        assert row.error is None
        assert (row.trace.token_ids == wanted) is (sees == "drafter")


@pytest.mark.parametrize("kind", sorted(model_helpers.image_head_kinds()))
def test_explanation_reports_its_progress(models: Models, kind: str) -> None:
    asked = request(models, kind, n=20, **({"compressor": "pool"} if kind == "specvlm" else {}))
    trace, progress = Engine(models).generate(asked), []
    for e in (e for r in trace.rounds for e in r.emitted):
        e.token %= VOCABULARY - 1  # an image placeholder cannot be explained
    explain(models, asked, trace, asked.configured_method().drafter, progress.append)
    assert progress == sorted(progress)
    assert progress[-1] == 1.0
    assert {0.4, 0.5} <= {round(done, 3) for done in progress}, "16 of 20 tokens of the target, then all of them"
    assert {0.9} <= {round(done, 3) for done in progress}, "16 of 20 tokens of the drafter"
