"""Greedy text equals Hugging Face's, token for token, in float64: in all families, in batches, after random switches.

Properties of each single method are tested in tests/methods/test_contract.py.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import model_helpers
import pytest
from methods.test_contract import N_LAYERS, SAMPLED, values_of

from workbench.core.sampling import SamplingParams
from workbench.decoders import ConfiguredMethod, Method, Promise
from workbench.engine import Engine, Models, Request, Sequence, load_models
from workbench.engine.request import ENDED
from workbench.methods import registry
from workbench.models.bundle import bundled
from workbench.trace.metrics import summary

pytestmark = [pytest.mark.unchecked, pytest.mark.usefixtures("temporary_disk_cache")]
PROMPT = model_helpers.repeating_prompt(13, period=5)

every_method = pytest.mark.parametrize("method", model_helpers.text_methods(), ids=lambda method: method.name)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory, device: str) -> Models:
    """A target, a drafter of medium quality, and heads."""
    return model_helpers.make_models("llama", noise=0.15, device=device, heads=tmp_path_factory.mktemp("medusa"))


@pytest.fixture(scope="module")
def copy_models(tmp_path_factory: pytest.TempPathFactory, device: str) -> Models:
    """A target whose drafter is a copy of it, so that every path is accepted completely."""
    return model_helpers.make_models("llama", noise=0.0, device=device, heads=tmp_path_factory.mktemp("medusa"))


@pytest.fixture(scope="module")
def greedy_text(llama: Models) -> list[int]:
    """Return Hugging Face's continuation of PROMPT."""
    return model_helpers.hf_greedy(llama.target.model, PROMPT, 48)


def run(models: Models, method: Method | ConfiguredMethod, n: int = 24, prompt: Any = PROMPT, **options: Any) -> Any:
    """Generate with a new engine, without other sequences."""
    return Engine(models).generate(Request(prompt, method, max_new_tokens=n, **options))


# -- one request at a time --------------------------------------------------------------------------------------------


FAMILIES = ("gpt2", "gemma3_text")
MORE_FAMILIES = ("llama", "mistral", "qwen3_moe", "gpt_oss")
"""Tested on demand: test_contract.py tests every method on a Llama, test_families.py the trees of the others."""


@pytest.mark.parametrize("family", model_helpers.mark_on_demand_unless(FAMILIES, [*FAMILIES, *MORE_FAMILIES]))
def test_every_method_emits_hugging_faces_text(family: str, device: str, tmp_path: Path) -> None:
    """All methods in one batch after a prompt, and each alone after a single token, on two families per method."""
    models = model_helpers.make_models(family, seed=2, noise=0.15, device=device, heads=tmp_path)
    methods, single = model_helpers.text_methods(), model_helpers.random_prompt(1, seed=5)
    wanted = model_helpers.hf_greedy(models.target.model, PROMPT, 24)
    engine = Engine(models, max_sequences=len(methods))
    rows = {method.name: engine.submit(Request(PROMPT, method, max_new_tokens=24)) for method in methods}
    while not engine.is_idle:
        engine.step()
    assert {name: row.trace and row.trace.token_ids for name, row in rows.items()} == dict.fromkeys(rows, wanted)
    wanted = model_helpers.hf_greedy(models.target.model, single, 24)
    dealt = methods[(FAMILIES + MORE_FAMILIES).index(family) % 3 :: 3]
    alone = {m.name: engine.generate(Request(single, m, max_new_tokens=24)).token_ids for m in dealt}
    assert alone == dict.fromkeys(alone, wanted)


def test_drafts_are_accepted_at_all(llama: Models, copy_models: Models) -> None:
    """The other tests prove nothing if all drafts are rejected, or all accepted."""
    rate = summary(run(llama, registry.get("draft-model"), 48))["acceptance_rate"]
    assert 0.2 < rate < 0.95
    assert summary(run(copy_models, registry.get("draft-model")))["acceptance_rate"] == 1.0
    all_layers = registry.get("early-exit").with_params(exit_layer=N_LAYERS)
    assert summary(run(llama, all_layers))["acceptance_rate"] == 1.0


@pytest.mark.skipif("text-target" not in bundled(), reason="the bundled models are missing")
@pytest.mark.parametrize(
    "method",
    model_helpers.mark_on_demand_unless(
        model_helpers.representative_names() | {"autoregressive"},
        model_helpers.text_methods(),
        lambda method: method.name,
    ),
)
def test_bundled_models(method: Method, bundled_models: Models, bundled_text: tuple[list[int], list[int]]) -> None:
    prompt, wanted = bundled_text
    reason = bundled_models.unsupported_reason(method.needs)
    if reason:
        pytest.skip(reason)
    assert run(bundled_models, method, len(wanted), prompt, stop_at_eos=True).token_ids == wanted


@pytest.fixture(scope="module")
def bundled_models(device: str) -> Models:
    """The bundled models in float64."""
    return load_models(device=device, dtype="float64")


@pytest.fixture(scope="module")
def bundled_text(bundled_models: Models) -> tuple[list[int], list[int]]:
    """A prompt that repeats itself, and Hugging Face's continuation."""
    prompt = bundled_models.tokenizer.encode("Tom had a red ball. Tom had a red hat. Tom had")
    eos: Any = sorted(bundled_models.eos) or None
    return prompt, model_helpers.hf_greedy(bundled_models.target.model, prompt, 48, eos=eos and eos[0])


# -- many sequences ----------------------------------------------------------------------------------------------------


def requests(seed: int) -> list[Request]:
    """Return one request per method, greedy and sampled in turn, with different prompts and lengths."""
    rng = random.Random(seed)
    found = []
    for i, method in enumerate(2 * model_helpers.text_methods()):
        prompt = model_helpers.repeating_prompt(rng.randint(1, 30), seed=i, period=rng.randint(2, 6))
        sampling = SAMPLED if (i + seed) % 2 else SamplingParams()
        found.append(Request(prompt, random_setting(method, rng), sampling, rng.randint(1, 20), seed=100 * seed + i))
    rng.shuffle(found)
    return found


def random_setting(method: Method, rng: random.Random) -> ConfiguredMethod:
    """Return random allowed parameters, with trees of at most 24 nodes (to save time)."""
    values: dict[str, Any] = {}
    for name, spec in method.params.items():
        if spec.kind == "choice":
            values[name] = rng.choice(values_of(spec))
        elif spec.kind == "bool" and name != "warm":
            values[name] = rng.random() < 0.5
        elif name not in ("forgetting", "warm"):  # a warm table is shared, so that runs are not meant to be equal
            low, high = values_of(spec)
            high = min(high, 24) if name == "nodes" else high
            values[name] = rng.randint(low, high) if spec.kind == "int" else rng.uniform(low, high)
    # Policies that use the clock draft, and therefore sample, differently; other ones need a head that is missing here.
    unfit = {policy.name for policy in method.policies if policy.timed or policy.head}
    if values.get("policy") in unfit:
        values["policy"] = method.params["policy"].default
    if values.get("verifier") in {verifier.name for verifier in method.verifiers if not verifier.keeps_greedy}:
        values["verifier"] = method.params["verifier"].default
    return method.with_params(**values)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.on_demand)])
def test_sequences_that_join_and_leave_equal_separate_runs(seed: int, llama: Models) -> None:
    wanted = [Engine(llama).generate(request).token_ids for request in requests(seed)]
    engine, rng = Engine(llama, max_sequences=6), random.Random(seed)
    todo, rows = requests(seed), []
    while todo or not engine.is_idle:
        some = rng.choice((0, 0, 1, 3))
        rows += [engine.submit(request) for request in todo[:some]]
        del todo[:some]
        engine.step()
    assert [row.trace.footer.error for row in rows] == [""] * len(rows)
    assert [row.trace.token_ids for row in rows] == wanted
    assert llama.target.slots == []
    assert llama.drafter is not None
    assert llama.drafter.slots == []


# -- changes in mid-run -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_random_switches_never_change_greedy_text(seed: int, llama: Models, greedy_text: list[int]) -> None:
    rng = random.Random(seed)
    engine = Engine(llama)
    rows = [
        engine.submit(Request(PROMPT, random_setting(m, rng), max_new_tokens=48))
        for m in model_helpers.text_methods()[:3]
    ]
    switches = 0
    while not engine.is_idle:
        engine.step()
        row = rng.choice(rows)
        if row.status in ENDED or rng.random() < 0.3:
            continue
        method = rng.choice(model_helpers.text_methods())
        setting = random_setting(method, rng)
        row.change(method, dict(setting.values), SamplingParams(top_k=rng.randint(0, 9)))
        switches += 1
    for row in rows:
        assert row.trace is not None
        assert row.trace.footer.error == ""
        assert row.trace.token_ids == greedy_text
    assert switches > 5
    assert any(r.changes for row in rows if row.trace for r in row.trace.rounds)


def test_the_trace_records_a_switch_at_the_round_it_takes_effect(llama: Models, greedy_text: list[int]) -> None:
    engine = Engine(llama)
    row = engine.submit(Request(PROMPT, registry.get("draft-model"), max_new_tokens=40))
    while not row.trace or len(row.trace.rounds) < 3:
        engine.step()
    row.change(registry.get("draft-tree"), {"width": 2})
    row.change(params={"nodes": 5}, sampling=SamplingParams(top_p=0.5))
    while row.status not in ENDED:
        engine.step()
    assert row.trace.token_ids == greedy_text[:40]
    assert [r.method for r in row.trace.rounds[:5]] == ["draft-model"] * 3 + ["draft-tree"] * 2
    found = {c.name: (c.before, c.after) for c in row.trace.rounds[3].changes}
    assert found == {
        "method": ("draft-model", "draft-tree"), "width": (3, 2), "nodes": (12, 5), "top_p": (1.0, 0.5),
    }  # fmt: skip
    assert row.trace.rounds[3].params["width"] == 2
    assert not any(r.changes for r in row.trace.rounds if r.index != 3)


def test_impossible_change_is_noted_and_the_run_continues(device: str) -> None:
    models = model_helpers.make_models("llama", noise=None, device=device)
    engine = Engine(models)
    row = engine.submit(Request(PROMPT, registry.get("prompt-lookup"), max_new_tokens=20))
    engine.step()
    row.change(registry.get("draft-model"))
    while row.status not in ENDED:
        engine.step()
    assert row.trace is not None
    assert row.trace.token_ids == model_helpers.hf_greedy(models.target.model, PROMPT, 20)
    assert {r.method for r in row.trace.rounds} == {"prompt-lookup"}
    assert any("cannot run" in note for r in row.trace.rounds for note in r.notes)


def test_switching_to_temperature_zero_continues_greedily(llama: Models) -> None:
    engine = Engine(llama)
    row = engine.submit(Request(PROMPT, registry.get("draft-tree-sampled"), SAMPLED, 30, seed=3))
    while row.n_new < 8:
        engine.step()
    before = list(row.committed)
    row.change(sampling=SamplingParams())
    while row.status not in ENDED:
        engine.step()
    rest = model_helpers.hf_greedy(llama.target.model, before, len(row.committed) - len(before))
    assert row.committed[len(before) :] == rest


def test_pause_step_resume_and_cancel(llama: Models, greedy_text: list[int]) -> None:
    engine = Engine(llama)
    row = engine.submit(Request(PROMPT, registry.get("draft-model"), max_new_tokens=40, paused=True))
    other = engine.submit(Request(PROMPT, registry.get("prompt-lookup"), max_new_tokens=40))
    for _ in range(4):
        engine.step()
    assert row.trace is not None
    assert row.trace.rounds == []
    assert row.status == "paused"
    for n in (1, 2):
        row.step()
        engine.step()
        engine.step()
        assert len(row.trace.rounds) == n
    row.resume()
    engine.step()
    row.pause()
    n = len(row.trace.rounds)
    engine.step()
    assert len(row.trace.rounds) == n
    other.cancel()
    engine.step()
    assert other.status == "cancelled"
    assert other.trace is not None
    assert other.trace.footer.reason == "cancelled"
    assert other.trace.token_ids == greedy_text[: len(other.trace.token_ids)]
    assert other.trace.rounds
    row.resume()
    finish(engine, row)
    assert row.trace.token_ids == greedy_text[:40]
    waiting = engine.submit(Request(PROMPT, registry.get("draft-model")))
    waiting.cancel()
    engine.step()
    assert waiting.status == "cancelled"
    assert engine.is_idle


def finish(engine: Engine, row: Sequence) -> None:
    """Run until a sequence has ended."""
    while row.status not in ENDED:
        engine.step()


def test_every_approximate_method_is_declared() -> None:
    assert {m.name for m in model_helpers.speculative_methods() if m.promise is Promise.APPROXIMATE} == {
        "medusa-typical"
    }
    assert {m.name for m in model_helpers.speculative_methods() if m.promise is Promise.SIMULATION} == {"oracle"}
