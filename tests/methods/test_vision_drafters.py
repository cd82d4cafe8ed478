"""Drafters for vision-language targets: exact with every setting, with and without image input as declared."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from PIL import Image
from vision_model_helpers import IMAGE, noise_image, tiny_vision_models

from workbench.bench.goodness import chi_square, count_firsts, joint_distribution
from workbench.core.errors import MethodUnavailableError, PromptError
from workbench.core.sampling import SamplingParams, to_probs
from workbench.decoders import ConfiguredMethod
from workbench.decoders.draft_verify.image_attribution import explain
from workbench.engine import Engine, Models, Request, Sequence
from workbench.engine.image_inputs import create_image_change, insert_placeholders, process_prompt
from workbench.methods import registry
from workbench.models.image_prefill import prefill_images
from workbench.trace.events import Trace

PROMPT = f"abc{IMAGE}deab"
SETTINGS = {
    "blind": ("vlm-text-only", {}),
    "blind, confidence": ("vlm-text-only", {"policy": "confidence", "threshold": 0.3}),
    "chain": ("vlm-draft", {}),
    "tree": ("vlm-draft", {"policy": "dynamic-tree"}),
    "wide tree": ("vlm-draft", {"policy": "dynamic-tree", "path_threshold": 0.02, "children": 8, "depth": 9}),
    "narrow tree": ("vlm-draft", {"policy": "dynamic-tree", "path_threshold": 1.0, "depth": 1}),
    "any draft model": ("draft-tree-sampled", {}),
}


@pytest.fixture(scope="module")
def models(device: str) -> Models:
    """A target whose image takes 4 tokens and a drafter for which it is one token, so that their positions differ."""
    return tiny_vision_models(vocabulary=20, device=device)


def setting(name: str) -> ConfiguredMethod:
    method, values = SETTINGS[name]
    return registry.get(method).with_params(**values)


def request(
    models: Models, method: ConfiguredMethod, *pictures: Image.Image, prompt: str = PROMPT, **more: object
) -> Request:
    text, inputs = process_prompt(models, prompt, pictures)
    return Request(text, method, image_inputs=inputs, pil_images=pictures, stop_at_eos=False, **more)


def hugging_face(models: Models, asked: Request, n: int) -> list[int]:
    assert asked.image_inputs is not None
    on, double = models.target.device, torch.float64
    inputs = {k: v.to(on, double if v.is_floating_point() else None) for k, v in asked.image_inputs.items()}
    config = transformers.GenerationConfig(max_new_tokens=n, do_sample=False, pad_token_id=0)
    with torch.inference_mode():
        out = models.target.model.generate(**inputs, generation_config=config)  # type: ignore[operator]
    return out[0, inputs["input_ids"].shape[1] :].tolist()


@pytest.mark.parametrize("name", SETTINGS)
def test_greedy_text_is_hugging_faces(name: str, models: Models) -> None:
    engine = Engine(models)
    for pictures in ((noise_image(3),), (noise_image(4), noise_image(5))):
        prompt = PROMPT if len(pictures) == 1 else f"{IMAGE}a{IMAGE}bc"
        asked = request(models, setting(name), *pictures, prompt=prompt, max_new_tokens=16)
        trace = engine.generate(asked)
        assert trace.token_ids == hugging_face(models, asked, 16)
        assert any(r.path for r in trace.rounds), "some draft was accepted"
        assert len(trace.header.pictures) == len(pictures)


def test_batched_sequences_equal_separate_runs(models: Models) -> None:
    engine = Engine(models)
    asked = [
        request(models, setting(name), noise_image(3 + i % 2), max_new_tokens=12) for i, name in enumerate(SETTINGS)
    ]
    rows = [engine.submit(one) for one in asked]
    text = engine.submit(Request("abcabcab", setting("any draft model"), max_new_tokens=12, stop_at_eos=False))
    while not engine.is_idle:
        engine.step()
    for row, one in zip(rows, asked, strict=True):
        assert row.trace is not None
        assert row.trace.token_ids == hugging_face(models, one, 12)
    assert text.trace is not None
    assert not text.trace.footer.error


SAMPLING = {"plain": SamplingParams(1.0), "filtered": SamplingParams(0.8, top_k=2)}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "sampling"), [("blind", "filtered"), ("chain", "plain"), ("tree", "filtered")])
def test_sampled_text_follows_the_targets_distribution(name: str, sampling: str) -> None:
    small, picture, n, how = tiny_vision_models(vocabulary=6), noise_image(1), 2, SAMPLING[sampling]
    text, inputs = process_prompt(small, f"ab{IMAGE}cd", (picture,))
    target: Any = small.target.model
    slot = small.target.open()
    prefill_images(small.target, slot, inputs)
    assert slot.image_prefill is not None
    prompt = slot.image_prefill.embeds[None]
    small.target.close(slot)

    class Seeing:
        device = target.device

        def __call__(self, ids: torch.Tensor) -> Any:  # after the prompt, a placeholder is an ordinary token
            behind = target.get_input_embeddings()(ids[:, prompt.shape[1] :])
            return target(inputs_embeds=torch.cat([prompt, behind], 1), use_cache=False)

    exact = joint_distribution(Seeing(), inputs["input_ids"][0].tolist(), n, lambda x: to_probs(x[None], how)[0])
    engine = Engine(small, max_sequences=32, record=False)
    more = {"image_inputs": inputs, "pil_images": (picture,), "stop_at_eos": False}
    rows = [engine.submit(Request(text, setting(name), how, n + 1, seed, **more)) for seed in range(150)]
    while not engine.is_idle:
        engine.step()
    fit = chi_square(count_firsts([row.trace.token_ids for row in rows if row.trace], n), exact)
    assert fit.fits(1e-4), fit
    assert fit.freedom >= 3


def drafts(models: Models, name: str, picture: Image.Image) -> list[int]:
    """Return the draft of the first round."""
    engine = Engine(models)
    row = engine.submit(request(models, setting(name), picture, max_new_tokens=16))
    assert row.trace is not None
    while not row.trace.rounds:
        engine.step()
    row.cancel()
    engine.step()
    return row.trace.rounds[0].nodes.tokens


def test_only_drafters_with_image_input_depend_on_the_image(models: Models) -> None:
    pictures = [noise_image(seed) for seed in range(6)]
    assert len({tuple(drafts(models, "blind", picture)) for picture in pictures}) == 1
    assert len({tuple(drafts(models, "chain", picture)) for picture in pictures}) > 1


def test_dynamic_tree_keeps_paths_above_the_threshold(models: Models) -> None:
    """The threshold applies to the whole path, not to one node; the most likely first token is always kept."""
    least, depths = 0.05, set()
    method = registry.get("vlm-draft").with_params(policy="dynamic-tree", path_threshold=least)
    trace = Engine(models).generate(request(models, method, noise_image(1), max_new_tokens=30))
    for r in trace.rounds:
        path = {-1: 1.0}
        for node, (parent, q) in enumerate(zip(r.nodes.parents, r.nodes.q, strict=True)):
            assert q is not None
            path[node] = path[parent] * q
            assert path[node] >= least or node == 0
        depths |= set(r.nodes.depth)
    assert max(depths) > 1


def test_blind_drafter_reads_exactly_the_text(models: Models) -> None:
    asked = request(models, setting("blind"), noise_image(1), max_new_tokens=6)
    with_picture = Engine(models).generate(asked).rounds[0].nodes.tokens
    text = Request("abcdeab", registry.get("draft-model").with_params(), max_new_tokens=6, stop_at_eos=False)
    assert Engine(models).generate(text).rounds[0].nodes.tokens == with_picture


def run_with_swap(models: Models, name: str, sees: str, other: Image.Image, at: int = 3) -> tuple[Trace, Request]:
    """Run a request whose image is changed before round `at`."""
    engine = Engine(models)
    asked = request(models, setting(name), noise_image(3), max_new_tokens=16)
    row: Sequence = engine.submit(asked)
    assert row.trace is not None
    while not engine.is_idle:
        if len(row.trace.rounds) == at and not asked.image_changes:
            row.change(image_change=create_image_change(models, asked, [other], sees))
        engine.step()
    assert not row.trace.footer.error
    return row.trace, asked


@pytest.mark.parametrize("name", ["blind", "chain", "tree"])
def test_target_continues_with_an_image_changed_during_the_run(name: str, models: Models) -> None:
    trace, asked = run_with_swap(models, name, "both", noise_image(9, side=40))
    written = sum(len(r.emitted) for r in trace.rounds[:3])
    assert asked.image_inputs is not None
    before, after = asked.image_inputs, asked.image_changes[0][1].image_inputs
    whole = asked.image_inputs["input_ids"][0].tolist() + trace.token_ids
    n = asked.image_inputs["input_ids"].shape[1]
    with torch.inference_mode():
        ids = torch.tensor([whole], device=models.target.device)
        greedy = [
            models.target.model(input_ids=ids, pixel_values=seen["pixel_values"].to(ids.device, torch.float64))
            .logits[0, n - 1 : -1].argmax(-1).tolist()
            for seen in (before, after)
        ]  # fmt: skip
    assert trace.token_ids == greedy[0][:written] + greedy[1][written:]
    assert greedy[0] != greedy[1]
    changed = trace.rounds[3]
    assert [c.name for c in changed.changes] == ["pictures"]
    assert changed.vision["sees"] == "both"
    assert changed.vision["pictures"][0]["url"] != trace.header.pictures[0].url
    assert all(not r.vision for r in trace.rounds[1:3] + trace.rounds[4:]), "recorded only in the round of the change"


def test_several_changes_before_one_round_all_apply(models: Models) -> None:
    """Images change for both models, then for the drafter only: each continues with its own last one."""
    engine = Engine(models)
    asked = request(models, setting("chain"), noise_image(3), max_new_tokens=16)
    row: Sequence = engine.submit(asked)
    assert row.trace is not None
    while not engine.is_idle:
        if len(row.trace.rounds) == 3 and not asked.image_changes:
            for picture, sees in ((7, "drafter"), (8, "both"), (9, "both"), (5, "drafter"), (6, "drafter")):
                row.change(image_change=create_image_change(models, asked, [noise_image(picture, side=40)], sees))
        engine.step()
    alone, _ = run_with_swap(models, "chain", "both", noise_image(9, side=40))
    assert row.trace.token_ids == alone.token_ids
    changed, other = row.trace.rounds[3], alone.rounds[3]
    assert [(c.name, c.after) for c in changed.changes] == [
        ("pictures", "changed for the drafter only"),
        ("pictures", "changed for target and drafter"),
    ]
    assert changed.vision["sees"] == "drafter"
    assert changed.vision["target_pictures"] == other.vision["pictures"]
    assert changed.vision["pictures"] != other.vision["pictures"]
    assert [swap.receiver for _, swap in asked.image_changes] == ["both", "drafter"]


def test_image_changed_for_the_drafter_only_changes_drafts_and_no_text(models: Models) -> None:
    plain = Engine(models).generate(request(models, setting("chain"), noise_image(3), max_new_tokens=16))
    others = {seed: drafts(models, "chain", noise_image(seed)) for seed in range(6)}
    seed = next(seed for seed, tokens in others.items() if tokens != plain.rounds[0].nodes.tokens)
    trace, _ = run_with_swap(models, "chain", "drafter", noise_image(seed), at=0)
    assert trace.token_ids == plain.token_ids
    assert trace.rounds[0].nodes.tokens == others[seed]
    assert trace.rounds[0].vision["sees"] == "drafter"


def test_number_of_images_cannot_change(models: Models) -> None:
    asked = request(models, setting("chain"), noise_image(3))
    with pytest.raises(PromptError, match="1 image, but 2 were given"):
        create_image_change(models, asked, [noise_image(1), noise_image(2)], "both")
    with pytest.raises(PromptError, match="no images"):
        create_image_change(models, Request("ab", setting("chain")), [noise_image(1)], "both")


def test_draft_model_without_image_input_drafts_from_the_text() -> None:
    models = tiny_vision_models(vocabulary=20, blind=True)
    assert "reads text only" in models.unsupported_reason(registry.get("vlm-draft").needs)
    asked = request(models, setting("blind"), noise_image(3), max_new_tokens=24)
    assert Engine(models).generate(asked).token_ids == hugging_face(models, asked, 24)
    with pytest.raises(MethodUnavailableError, match="reads text only"):
        Engine(models).submit(request(models, setting("chain"), noise_image(3)))


# -- placeholders -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prompt", [f"a{IMAGE}b{IMAGE}c", f"{IMAGE}{IMAGE}{IMAGE}x"])
def test_more_placeholders_than_images_are_refused(prompt: str, models: Models) -> None:
    for given in (prompt, models.tokenizer.encode(prompt)):
        with pytest.raises(PromptError, match=r"has . image placeholders .* but 1 image was given"):
            process_prompt(models, given, [noise_image(1)])


def test_placeholders_without_images_and_images_at_the_end_are_refused(models: Models) -> None:
    engine = Engine(models)
    with pytest.raises(PromptError, match=r"1 image placeholder .* but no image was given"):
        engine.submit(Request(f"ab{IMAGE}c", setting("chain")))
    with pytest.raises(PromptError, match="ends with an image"):
        engine.submit(request(models, setting("chain"), noise_image(1), prompt=f"ab{IMAGE}"))


def test_images_without_placeholders_come_first_and_traced_tokens_are_accepted(models: Models) -> None:
    assert insert_placeholders(models.processor, "ab", 2) == f"{IMAGE}{IMAGE}ab"
    text, inputs = process_prompt(models, PROMPT, [noise_image(1)])
    ids = inputs["input_ids"][0].tolist()
    again, same = process_prompt(models, ids, [noise_image(1)])
    assert again == models.tokenizer.encode(text)
    assert all(torch.equal(same[name], inputs[name]) for name in inputs)


# -- attribution ------------------------------------------------------------------------------------------------------


def test_attribution_equals_the_effect_of_a_change_of_the_embedding(models: Models) -> None:
    asked = request(models, setting("chain"), noise_image(3), max_new_tokens=5)
    trace = Engine(models).generate(asked)
    found = explain(models, asked, trace, asked.configured_method().drafter)
    for who, n in (("target", 4), ("drafter", 1)):
        for kind in ("attention", "gradient"):
            assert [len(row) for row in found[who][kind]] == [n] * 5
            assert all(max(row) == 255 for row in found[who][kind])
    assert len(found["p_blind"]) == 5
    wanted = by_differences(models, asked, trace.token_ids, 1)
    assert all(abs(a - b) <= 1 for a, b in zip(found["target"]["gradient"][1], wanted, strict=True))


def by_differences(models: Models, asked: Request, tokens: list[int], index: int) -> list[int]:
    """Return |d log p(token) / d scale| of each vision embedding, by central differences."""
    model = models.target.model
    assert asked.image_inputs is not None
    ids = torch.tensor([asked.image_inputs["input_ids"][0].tolist() + tokens], device=model.device)
    places = (ids[0] == model.config.image_token_id).nonzero().flatten().tolist()
    pixels = asked.image_inputs["pixel_values"].to(model.device, torch.float64)
    row = asked.image_inputs["input_ids"].shape[1] - 1 + index

    def log_p(place: int, scale: float) -> float:
        def scaled(_: object, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
            states = args[0].clone()
            states[:, place] *= scale
            return (states, *args[1:])

        hook = model.model.language_model.layers[0].register_forward_pre_hook(scaled)
        try:
            with torch.inference_mode():
                logits = model(input_ids=ids, pixel_values=pixels, use_cache=False).logits
        finally:
            hook.remove()
        return float(logits[0, row].log_softmax(0)[tokens[index]])

    slopes = [abs(log_p(place, 1.01) - log_p(place, 0.99)) for place in places]
    return [round(slope / max(slopes) * 255) for slope in slopes]


def test_attribution_uses_the_image_at_that_time(models: Models) -> None:
    trace, asked = run_with_swap(models, "chain", "both", noise_image(9))
    plain = request(models, setting("chain"), noise_image(3), max_new_tokens=16)
    unchanged = explain(models, plain, trace, plain.configured_method().drafter)
    found = explain(models, asked, trace, asked.configured_method().drafter)
    written = sum(len(r.emitted) for r in trace.rounds[:3])
    assert found["target"]["gradient"][:written] == unchanged["target"]["gradient"][:written]
    assert found["target"]["gradient"][written:] != unchanged["target"]["gradient"][written:]
    with pytest.raises(PromptError, match="no images"):
        explain(models, Request("ab", setting("blind")), trace, setting("blind").drafter)
