"""`model.generate(custom_generate=…)` against `generate` itself, on tiny models in float64."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest
import torch
from model_helpers import byte_tokenizer, family, noisy_copy, random_prompt, repeating_prompt
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    MaxTimeCriteria,
    StoppingCriteria,
    StoppingCriteriaList,
    TextIteratorStreamer,
)

from workbench.bench.goodness import chi_square
from workbench.core.errors import MethodUnavailableError, ModelError, ParameterError, UnknownNameError
from workbench.interop import SpeculativeOutput, speculative
from workbench.interop.custom_generate import _Ids

FAMILIES = ("llama", "gpt2", "qwen3_moe", "gemma3_text", "opt")
N = 16


def batch(*lengths: int) -> dict[str, torch.Tensor]:
    """Return prompts of several lengths, padded on the left with token 0."""
    longest = max(lengths)
    rows = [[0] * (longest - n) + repeating_prompt(n, seed=i) for i, n in enumerate(lengths)]
    ids = torch.tensor(rows)
    return {"input_ids": ids, "attention_mask": (ids != 0).long()}


def both(model: Any, spec: Any, inputs: dict[str, torch.Tensor], **options: Any) -> tuple[Any, Any]:
    """Return the output of `generate` without and with `spec`."""
    options = {"max_new_tokens": N, "do_sample": False, "eos_token_id": None, "pad_token_id": 0} | options
    plain = model.generate(**inputs, **options)
    return plain, model.generate(**inputs, **options, custom_generate=spec)


@pytest.mark.parametrize("method", ["prompt-lookup", "draft-model", "draft-tree", "token-recycling", "early-exit"])
def test_greedy_text_equals_generates(method: str) -> None:
    model = family("llama")
    spec = speculative(method, assistant=noisy_copy(model, 0.2, 1))
    plain, ours = both(model, spec, batch(9))
    assert torch.equal(plain, ours)
    assert sum(f["accepted"] for f in spec.figures) > 0  # there was speculation


@pytest.mark.parametrize("name", FAMILIES)
def test_left_padded_batch_equals_generates_text(name: str) -> None:
    model = family(name)
    plain, ours = both(model, speculative("draft-tree", assistant=noisy_copy(model, 0.2, 1)), batch(5, 12, 1, 9))
    assert torch.equal(plain, ours)


def test_rows_that_end_earlier_are_padded_as_by_generate() -> None:
    model = family("llama")
    free, _ = both(model, speculative("autoregressive"), batch(5, 12))
    eos = [int(free[0, 12 + 3]), int(free[1, 12 + 10])]
    plain, ours = both(model, speculative("prompt-lookup"), batch(5, 12), eos_token_id=eos, pad_token_id=1)
    assert torch.equal(plain, ours)
    assert plain.shape[1] < 12 + N


PROCESSORS: dict[str, dict[str, Any]] = {
    "repetition_penalty": {"repetition_penalty": 1.7},
    "no_repeat_ngram": {"no_repeat_ngram_size": 2},
    "min_new_tokens": {"min_new_tokens": 12, "eos_token_id": 5},
    "min_length": {"min_length": 22, "eos_token_id": 5},
    "suppress": {"suppress_tokens": [17], "begin_suppress_tokens": [60]},
    "encoder_repetition": {"encoder_repetition_penalty": 1.5},
    "exponential_decay": {"exponential_decay_length_penalty": (3, 1.8), "eos_token_id": 5},
    "prefix": {"prefix_allowed_tokens_fn": lambda row, sent: [(int(sent[-1]) * 3 + row) % 50 + 1, 60 + row]},
    "forced_eos": {"forced_eos_token_id": 9},
    "bias": {"sequence_bias": {(3,): 8.0, (4, 5): 8.0}},
}


@pytest.mark.parametrize("option", PROCESSORS)
def test_logits_processors_get_the_same_inputs_as_from_generate(option: str) -> None:
    model = family("llama")
    spec = speculative("draft-model", assistant=noisy_copy(model, 0.2, 1))
    plain, ours = both(model, spec, batch(5, 12), **PROCESSORS[option])
    assert torch.equal(plain, ours)
    free, _ = both(model, spec, batch(5, 12))
    assert not torch.equal(plain, free), (
        "the option had no effect, so that the test would not detect that it is ignored"
    )


class NotTwice(LogitsProcessor):
    """A custom processor that forbids the previous token."""

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        return scores.scatter(1, input_ids[:, -1:], -torch.inf)


class AfterTwo(StoppingCriteria):
    """Ends a row once token `token` has come twice."""

    def __init__(self, token: int, prompt: int) -> None:
        self.token, self.prompt = token, prompt

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        return (input_ids[:, self.prompt :] == self.token).sum(1) >= 2


def test_custom_processors_and_criteria() -> None:
    model = family("llama")
    mine = {"logits_processor": LogitsProcessorList([NotTwice()])}
    free, _ = both(model, speculative("autoregressive"), batch(12), **mine)
    values, counts = free[0, 12:].unique(return_counts=True)
    token = int(values[counts >= 2][0])
    mine["stopping_criteria"] = StoppingCriteriaList([AfterTwo(token, 12)])
    plain, ours = both(model, speculative("prompt-lookup"), batch(12), **mine)
    assert torch.equal(plain, ours)
    assert plain.shape[1] < 12 + N


def test_time_and_stop_strings_are_criteria_too() -> None:
    model = family("llama", vocab_size=257)
    ended = {"stopping_criteria": StoppingCriteriaList([MaxTimeCriteria(0.0)])}
    _, ours = both(model, speculative("prompt-lookup"), batch(5), **ended)
    assert ours.shape[1] == 5 + 1


@pytest.mark.parametrize("options", [
    {"temperature": 1.6, "top_k": 4},
    {"top_p": 0.8, "min_p": 0.15, "top_k": 0},
    {"typical_p": 0.6, "repetition_penalty": 1.6, "top_k": 5},
], ids=str)  # fmt: skip
def test_sampling_keeps_generates_distribution(options: dict[str, Any]) -> None:
    """Compare the first two tokens of 250 rows with their exact distribution, computed with generate's own processors.

    A correct sampler fails with probability 1e-4; the seed is fixed. The sample does not fit the distribution without
    the options, so that ignored options would be detected.
    """
    model = family("llama", vocab_size=6, hidden_size=16, intermediate_size=24, num_hidden_layers=1, seed=3)
    prompt = torch.tensor([random_prompt(4, 6)])
    base: dict[str, Any] = {"do_sample": True, "max_new_tokens": 2, "eos_token_id": None, "pad_token_id": 0}
    spec = speculative("draft-model", assistant=noisy_copy(model, 0.4, 1), depth=1, seed=5)
    rows = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), num_return_sequences=250, **base, **options,
        custom_generate=spec,
    )  # fmt: skip
    counts = Counter(map(tuple, rows[:, 4:].tolist()))
    fit = chi_square(counts, exact_distribution(model, prompt, GenerationConfig(**base, **options)))
    assert fit.fits(), fit
    assert not chi_square(counts, exact_distribution(model, prompt, GenerationConfig(**base, top_k=0))).fits()


def exact_distribution(model: Any, prompt: torch.Tensor, config: GenerationConfig) -> dict[tuple[int, int], float]:
    """Return the probability of each pair of first tokens, from full forward passes and generate's own processors."""
    config._eos_token_tensor = None
    processors = model._get_logits_processor(config, prompt.shape[1], prompt, device="cpu", model_kwargs={})

    def after(ids: torch.Tensor) -> list[float]:
        with torch.inference_mode():
            return processors(ids, model(ids).logits[:, -1].clone()).softmax(1)[0].tolist()

    pairs = {}
    for a, p in enumerate(after(prompt)):
        for b, q in enumerate(after(torch.cat([prompt, torch.tensor([[a]])], 1))):
            pairs[a, b] = p * q
    return pairs


def test_torch_seed_reproduces_a_sampled_run() -> None:
    model = family("llama")
    options: dict[str, Any] = {"do_sample": True, "max_new_tokens": N, "pad_token_id": 0, "eos_token_id": None}
    texts = []
    for seed in (1, 1, 2):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            texts.append(model.generate(**batch(9), **options, custom_generate=speculative("prompt-lookup")))
    assert torch.equal(texts[0], texts[1])
    assert not torch.equal(texts[0], texts[2])


def test_streamer_gets_every_token_and_the_end() -> None:
    model = family("llama", vocab_size=257)
    streamer = TextIteratorStreamer(byte_tokenizer(), skip_prompt=True, timeout=20)
    inputs = batch(9)
    plain, _ = both(model, speculative("autoregressive"), inputs)
    thread = threading.Thread(
        target=model.generate,
        kwargs={**inputs, "max_new_tokens": N, "do_sample": False, "eos_token_id": None, "pad_token_id": 0,
                "streamer": streamer, "custom_generate": speculative("prompt-lookup")},
    )  # fmt: skip
    thread.start()
    text = "".join(streamer)
    thread.join(20)
    assert text == byte_tokenizer().decode(plain[0, 9:])


def test_result_contains_figures_and_traces() -> None:
    model = family("llama")
    spec = speculative("draft-model", assistant=model)
    _, out = both(model, spec, batch(5, 9), return_dict_in_generate=True)
    assert isinstance(out, SpeculativeOutput)
    assert out.figures is not None
    assert out.traces is not None
    assert [f["acceptance_rate"] for f in out.figures] == [1.0, 1.0]  # drafts of a copy of the target are always right
    assert out.figures[0]["tau"] >= 4
    assert [len(t.token_ids) for t in out.traces] == [N, N]
    assert out.traces[0].header.method == "draft-model"


def test_assistant_model_of_generate_is_used_as_drafter() -> None:
    model = family("llama")
    spec = speculative("draft-model")
    plain, ours = both(model, spec, batch(9), assistant_model=noisy_copy(model, 0.2, 1))
    assert torch.equal(plain, ours)
    assert spec.figures[0]["accepted"] > 0


def test_users_model_is_unchanged() -> None:
    model, draft = family("llama"), family("llama", seed=1)
    speculative_run = speculative("draft-tree", assistant=draft)
    both(model, speculative_run, batch(9))
    with pytest.raises(ParameterError):
        both(model, speculative_run, batch(9), output_scores=True, return_dict_in_generate=True)
    for module in [*model.modules(), *draft.modules()]:
        assert not module._forward_hooks
        assert not module._forward_pre_hooks


REFUSED: dict[str, dict[str, Any]] = {
    "beam_search": {"num_beams": 3},
    "output_scores": {"output_scores": True, "return_dict_in_generate": True},
    "output_hidden_states": {"output_hidden_states": True, "return_dict_in_generate": True},
    "prompt_lookup_num_tokens": {"prompt_lookup_num_tokens": 3},
    "ClassifierFreeGuidance": {"guidance_scale": 2.0},
    "past_key_values": {"past_key_values": "cache"},
}


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_options_are_refused_by_name(name: str) -> None:
    from transformers import DynamicCache

    options = dict(REFUSED[name])
    if "past_key_values" in options:
        options["past_key_values"] = DynamicCache()
    with pytest.raises(ParameterError, match=name):
        family("llama").generate(**batch(5), max_new_tokens=2, **options, custom_generate=speculative("prompt-lookup"))


def test_mistakes_have_named_errors() -> None:
    model = family("llama")
    with pytest.raises(UnknownNameError, match="prompt-lookup"):
        speculative("prompt-lokup")
    with pytest.raises(ParameterError, match="depth"):
        speculative("prompt-lookup", depth=-1)
    with pytest.raises(MethodUnavailableError, match="assistant="):
        both(model, speculative("draft-model"), batch(5))
    with pytest.raises(ModelError, match="so their tokenizers differ"):
        both(model, speculative("draft-model", assistant=family("llama", vocab_size=31)), batch(5))
    inputs = batch(5, 9)
    inputs = {name: value.flip(1) for name, value in inputs.items()}
    with pytest.raises(ParameterError, match="padding_side"):
        model.generate(**inputs, max_new_tokens=3, custom_generate=speculative("prompt-lookup"))


@pytest.mark.parametrize("whose", ["model", "assistant"])
def test_error_for_dropout_names_the_call_that_disables_it(whose: str) -> None:
    models = {name: family("gpt2", attn_pdrop=0.5, resid_pdrop=0.5, embd_pdrop=0.5) for name in ("model", "assistant")}
    models[whose].train()
    spec = speculative("draft-model", assistant=models["assistant"])
    with pytest.raises(ModelError, match=r"training mode.*model\.eval\(\)"):
        models["model"].generate(**batch(5), max_new_tokens=4, custom_generate=spec, pad_token_id=0)
    models[whose].eval()
    plain, ours = both(models["model"], spec, batch(5))
    assert torch.equal(plain, ours)


@pytest.mark.filterwarnings("ignore:In some rounds the KV cache had no room")  # lexical-unit's probes
@pytest.mark.parametrize("name", ["rest", "rasd", "lexical-unit"])
def test_method_that_reads_text_requires_the_tokenizer(name: str) -> None:
    model = family("llama", vocab_size=257)
    draft = noisy_copy(model, 0.2, 1)
    with pytest.raises(MethodUnavailableError, match=rf"{name} needs the model's tokenizer.*tokenizer=tokenizer"):
        both(model, speculative(name, assistant=draft), batch(5))
    plain, ours = both(model, speculative(name, assistant=draft, tokenizer=byte_tokenizer()), batch(5))
    assert torch.equal(plain, ours)


def test_tokenizer_placeholder_shows_ids_and_refuses_other_uses() -> None:
    stand_in: Any = _Ids("rest")
    assert stand_in.decode([3, 4]) == "\u20393\u203a\u20394\u203a"
    assert getattr(stand_in, "is_fast", False) is False
    for use in (lambda: stand_in.get_vocab(), lambda: stand_in("text"), lambda: len(stand_in)):
        with pytest.raises(MethodUnavailableError, match="tokenizer=tokenizer"):
            use()


ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24},
    "llama3": {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 24},
}  # fmt: skip


@pytest.mark.parametrize("rope", ROPES)
def test_rotary_models_continue_past_their_trained_length(rope: str) -> None:
    model = family("llama", max_position_embeddings=24, rope_parameters={"rope_theta": 1e4, **ROPES[rope]})
    for method in ("draft-model", "draft-tree"):
        plain, ours = both(
            model, speculative(method, assistant=noisy_copy(model, 0.2, 1)), batch(12, 9), max_new_tokens=30
        )
        assert plain.shape[1] == 42
        assert torch.equal(plain, ours)


def test_sliding_windows_continue_past_the_trained_length() -> None:
    model = family("mistral", max_position_embeddings=24, use_sliding_window=False)
    spec = speculative("draft-tree", assistant=noisy_copy(model, 0.2, 1))
    plain, ours = both(model, spec, batch(12, 9), max_new_tokens=30)
    assert torch.equal(plain, ours)


@pytest.mark.parametrize(("name", "why"), [("gpt2", "its context is 24 tokens"), ("opt", "its context is"),
                                           ("llama", r"other factors \(RoPE type dynamic\)")])  # fmt: skip
def test_texts_beyond_the_context_are_refused_and_not_cut(name: str, why: str) -> None:
    values: dict[str, Any] = {"max_position_embeddings": 24}
    if name == "llama":
        values["rope_parameters"] = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}
    model = family(name, **({"n_positions": 24} if name == "gpt2" else values))
    spec = speculative("draft-model", assistant=model)
    plain, ours = both(model, spec, batch(12, 9), max_new_tokens=12)  # up to the last position
    assert torch.equal(plain, ours)
    with pytest.raises(ModelError, match=rf"cannot generate texts of up to 25 tokens: .*{why}") as caught:
        model.generate(**batch(12), max_new_tokens=13, custom_generate=spec)
    assert "max_length=24" in caught.value.remedy


@pytest.mark.slow
def test_bundled_model_and_its_heads() -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from workbench.models.bundle import bundled

    if "text-target" not in bundled():
        pytest.skip("needs the bundled models")
    folder = bundled()["text-target"]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    inputs = tokenizer(["Once upon a time, there was a fox.", "The"], return_tensors="pt", padding=True)
    inputs = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    options = {"max_new_tokens": 40, "do_sample": False}
    plain = model.generate(**inputs, **options)
    for method, assistant in (("draft-model", "text-drafter"), ("medusa", None)):
        spec = speculative(method, assistant=assistant)
        assert torch.equal(plain, model.generate(**inputs, **options, custom_generate=spec)), method
        assert spec.figures[0]["accepted"] > 0, method
