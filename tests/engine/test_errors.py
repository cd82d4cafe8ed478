"""Bad input raises a named error with a remedy, and the engine continues to serve others. Self-tests print warnings."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path
from typing import Any

import model_helpers
import pytest
import torch

from workbench.core.errors import (
    CapacityError,
    MethodUnavailableError,
    ModelError,
    NumericalError,
    ParameterError,
    PromptError,
    TokenizerMismatchError,
    UnknownNameError,
    WorkbenchError,
)
from workbench.core.sampling import SamplingParams
from workbench.core.tree import DraftTree
from workbench.decoders import Method
from workbench.engine import Engine, Models, Request, Runner, load_models
from workbench.engine.request import ENDED
from workbench.methods import registry
from workbench.methods.common.empty_drafter import EmptyDrafter
from workbench.methods.policies.fixed import Fixed
from workbench.models.runner import SCRATCH
from workbench.trace.events import Round
from workbench.trace.metrics import summary

PROMPT = model_helpers.repeating_prompt(10)


@pytest.fixture(scope="module")
def models(device: str) -> Models:
    return model_helpers.make_models("llama", noise=0.15, device=device, context=64)


@pytest.fixture
def engine(models: Models) -> Engine:
    return Engine(models)


# -- requests ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "says", "remedy"),
    [
        ([], "empty", "at least one token"),
        ("", "empty", "at least one token"),
        ([1] * 64, "64 tokens", "Shorten the prompt by 1 "),
        ([1] * 100, "100 tokens", "Shorten the prompt by 37 "),
        ([1, 64], "outside 0…63", "target's tokenizer"),
        ([-1], "outside", "target's tokenizer"),
    ],
)
def test_invalid_prompts(prompt: Any, says: str, remedy: str, engine: Engine) -> None:
    with pytest.raises(PromptError, match=says) as caught:
        engine.submit(Request(prompt, registry.get("autoregressive")))
    assert remedy in caught.value.remedy
    assert engine.is_idle


def test_request_for_zero_tokens_is_an_error(engine: Engine) -> None:
    with pytest.raises(PromptError, match="requests no tokens"):
        engine.submit(Request(PROMPT, registry.get("autoregressive"), max_new_tokens=0))


def test_unknown_method_has_suggestions() -> None:
    with pytest.raises(UnknownNameError, match="no method 'draft-modell'") as caught:
        registry.get("draft-modell")
    assert "Did you mean 'draft-model'" in caught.value.remedy
    assert "autoregressive" in caught.value.remedy


def test_unknown_parameter_has_suggestions() -> None:
    with pytest.raises(UnknownNameError, match="'dept'") as caught:
        registry.get("draft-model").with_params(dept=3)
    assert "'depth'" in caught.value.remedy


@pytest.mark.parametrize(("name", "value"), [("depth", 0), ("depth", 17), ("depth", 2.5), ("policy", "lucky")])
def test_parameter_out_of_range_states_the_limits(name: str, value: Any) -> None:
    with pytest.raises(ParameterError, match=name) as caught:
        registry.get("draft-model").with_params(**{name: value})
    assert "1 to 16" in caught.value.remedy or "fixed" in caught.value.remedy


def test_method_without_its_requirements_states_the_reason(device: str) -> None:
    engine = Engine(model_helpers.make_models("llama", noise=None, device=device))
    with pytest.raises(MethodUnavailableError, match="No draft model was chosen"):
        engine.submit(Request(PROMPT, registry.get("draft-tree")))
    with pytest.raises(MethodUnavailableError, match="no medusa heads"):
        engine.submit(Request(PROMPT, registry.get("medusa")))


def test_method_registered_twice_names_both_locations() -> None:
    with pytest.raises(ValueError, match=r"'medusa' is registered twice: .+medusa.__init__\.py and .+:\d+"):
        registry.register(registry.get("medusa"))


# -- models -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A target saved to disk."""
    place = tmp_path / "target"
    model_helpers.family("llama").float().save_pretrained(place)
    model_helpers.letter_tokenizer(64).save_pretrained(place)
    return place


def test_folder_is_loaded_and_generates(folder: Path) -> None:
    loaded = load_models(str(folder), drafter=str(folder), device="cpu", dtype="float64")
    assert loaded.drafter is not None
    assert loaded.drafter.dtype == torch.float64
    trace = Engine(loaded).generate(Request("abcabc", registry.get("draft-model"), max_new_tokens=8))
    assert len(trace.token_ids) == 8
    assert summary(trace)["acceptance_rate"] == 1.0


def test_missing_folder_and_unknown_name() -> None:
    for name in ("/no/such/folder", "./nowhere", "not-bundled", "a/b/c"):
        with pytest.raises(ModelError, match="There is no model") as caught:
            load_models(name, device="cpu")
        assert "Hub id" in caught.value.remedy


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config\.json"):
        load_models(str(tmp_path), device="cpu")


@pytest.mark.parametrize("damage", ["cut", "no weights", "no json", "no tokenizer"])
def test_a_corrupt_folder_is_named(folder: Path, damage: str) -> None:
    weights = folder / "model.safetensors"
    if damage == "cut":
        weights.write_bytes(weights.read_bytes()[:1000])
    elif damage == "no weights":
        weights.unlink()
    elif damage == "no json":
        (folder / "config.json").write_text("{")
    else:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (folder / name).unlink()
    with pytest.raises(ModelError, match="cannot be loaded") as caught:
        load_models(str(folder), device="cpu")
    assert "Check the files" in caught.value.remedy
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("device", "dtype"), [("cuda:77", "auto"), ("gpu", "auto"), ("cpu", "float8")])
def test_an_unknown_device_or_dtype(folder: Path, device: str, dtype: str) -> None:
    with pytest.raises(ModelError) as caught:
        load_models(str(folder), device=device, dtype=dtype)
    assert "Use" in caught.value.remedy


def test_error_for_another_tokenizer_names_the_methods_that_still_work(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "drafter"
    shutil.copytree(folder, other)
    model_helpers.letter_tokenizer(63).save_pretrained(other)
    with pytest.raises(TokenizerMismatchError, match="do not share a vocabulary") as caught:
        load_models(str(folder), drafter=str(other), device="cpu", strict=True)
    assert "prompt-lookup" in caught.value.remedy
    loaded = load_models(str(folder), drafter=str(other), device="cpu")
    assert loaded.drafter is None
    engine = Engine(loaded)
    with pytest.raises(MethodUnavailableError, match="do not share a vocabulary"):
        engine.submit(Request("ab", registry.get("draft-model")))
    for method in registry.methods():
        if not method.needs:
            engine.generate(Request("ab", method, max_new_tokens=4))


def test_heads_of_another_width_are_refused(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_MODELS", str(tmp_path))
    shallow = model_helpers.make_models("llama", noise=None)
    info = model_helpers.write_random_medusa(tmp_path / "medusa", dataclasses.replace(shallow, target_name="target"))
    assert load_models("target", None, "cpu").heads["medusa"].folder == info.folder
    (info.folder / "config.json").write_text(json.dumps(info.config | {"hidden_size": 31}))
    loaded = load_models("target", None, "cpu")
    assert "no medusa heads" in loaded.unsupported_reason(("medusa",))
    wide = model_helpers.make_models("llama", noise=None, hidden_size=64)
    wide.heads = {"medusa": info}
    engine = Engine(wide)
    row = engine.submit(Request(PROMPT, registry.get("medusa")))
    engine.step()
    assert row.trace is not None
    assert "read hidden states of width 32, but the target's hidden states have width 64" in row.trace.footer.error
    (info.folder / "model.safetensors").write_bytes(b"nonsense")
    broken = model_helpers.make_models("llama", noise=None)
    broken.heads = {"medusa": info}
    engine = Engine(broken)
    row = engine.submit(Request(PROMPT, registry.get("medusa")))
    engine.step()
    assert isinstance(row.error, ModelError)
    assert "cannot be read" in str(row.error)


# -- one sequence fails, the others continue ---------------------------------------------------------------------------


def serve(engine: Engine, bad: Request, device: str) -> tuple[Any, BaseException | None]:
    """Run a bad request between two good ones, which must not be affected; return its trace and error."""
    wanted = model_helpers.hf_greedy(engine.models.target.model, PROMPT, 20)
    good = [Request(PROMPT, registry.get(n), max_new_tokens=20) for n in ("draft-model", "prompt-lookup")]
    rows = [engine.submit(r) for r in (good[0], bad, good[1])]
    while not engine.is_idle:
        engine.step()
    assert [rows[0].status, rows[1].status, rows[2].status] == ["finished", "error", "finished"]
    for row in (rows[0], rows[2]):
        assert row.trace is not None
        assert row.trace.token_ids == wanted
    assert engine.models.target.slots == []
    assert engine.models.drafter is not None
    assert engine.models.drafter.slots == []
    assert rows[1].trace is not None
    return rows[1].trace, rows[1].error


class Poison:
    """A logits processor that returns NaN from the fourth new token on."""

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores * (float("nan") if ids.shape[1] > len(PROMPT) + 3 else 1.0)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", ["autoregressive", "draft-model", "draft-tree", "prompt-lookup"])
def test_nan_in_one_sequence(name: str, temperature: float, engine: Engine, device: str) -> None:
    sampling = SamplingParams(temperature, processors=(Poison(),))
    trace, error = serve(engine, Request(PROMPT, registry.get(name), sampling, 30), device)
    assert isinstance(error, NumericalError)
    assert "NaN" in trace.footer.error
    assert "dtype" in trace.footer.error
    assert len(trace.token_ids) <= 4


def test_nan_in_the_target_itself(device: str) -> None:
    """One token's embedding is NaN: only sequences that read it fail."""
    models = model_helpers.make_models("llama", noise=0.15, device=device)
    wanted = model_helpers.hf_greedy(models.target.model, PROMPT, 20)
    poison = next(t for t in range(1, 64) if t not in {*PROMPT, *wanted})
    embed: Any = models.target.embed
    embed.weight.data[poison] = float("nan")
    if models.target.model.config.tie_word_embeddings:
        pytest.skip("the head shares the embedding")
    _, error = serve(Engine(models), Request([poison, *PROMPT], registry.get("autoregressive")), device)
    assert isinstance(error, NumericalError)


@dataclasses.dataclass(frozen=True)
class Broken(EmptyDrafter):
    """A drafter with an error in one of its methods, or with an invalid draft."""

    at: str = "propose"

    def init_state(self, row: Any, models: Any) -> None:
        if self.at == "prime":
            raise ZeroDivisionError("in prime")

    def propose_one(self, row: Any, plan: Any) -> DraftTree:
        device = row.models.target.device
        if self.at == "propose":
            raise ZeroDivisionError("in propose")
        if self.at == "too large":
            return DraftTree.from_parents([1] * SCRATCH, [-1] * SCRATCH, device=device)
        if self.at == "not a token":
            return DraftTree.chain([64], device=device)
        return DraftTree.chain([1], device=device)

    def observe(self, row: Any, outcome: Any) -> None:
        if self.at == "observe":
            raise ZeroDivisionError("in observe")


@pytest.mark.parametrize(
    ("at", "says"),
    [
        ("prime", "ZeroDivisionError: in prime"),
        ("propose", "ZeroDivisionError: in propose"),
        ("observe", "ZeroDivisionError: in observe"),
        ("too large", "too large"),
        ("not a token", "index|out of range|token"),
    ],
)
def test_drafter_with_a_bug_ends_only_its_own_run(at: str, says: str, engine: Engine, device: str) -> None:
    base = registry.get("prompt-lookup")
    method: Method = dataclasses.replace(base, name=f"broken-{at}", drafter=Broken(at), policies=(Fixed(),))
    trace, error = serve(engine, Request(PROMPT, method), device)
    assert error is not None
    assert re.search(says, trace.footer.error)
    if "ZeroDivision" in says:
        assert "please report" in trace.footer.error
    if at == "too large":
        assert isinstance(error, CapacityError)


@pytest.mark.parametrize("token", [64, 2**40, -1])
def test_invalid_token_ids_never_reach_a_gpu(
    token: int, engine: Engine, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU its first lookup would end all users' runs with "device-side assert triggered"."""

    class InvalidIds(Broken):
        def propose_one(self, row: Any, plan: Any) -> DraftTree:
            return DraftTree.chain([1, token], device=row.models.target.device)

    monkeypatch.setattr("workbench.decoders.draft_verify.round_state.on_host", lambda device: False)
    base = registry.get("prompt-lookup")
    method: Method = dataclasses.replace(base, name="strange", drafter=InvalidIds("none"), policies=(Fixed(),))
    trace, error = serve(engine, Request(PROMPT, method), device)
    assert isinstance(error, WorkbenchError)
    assert not isinstance(error, NumericalError)
    assert (
        "InvalidIds used a token id outside the target's vocabulary, in a draft or a probe. Use token ids"
        in trace.footer.error
    )


def test_failing_listener_ends_only_its_own_sequence(engine: Engine, device: str) -> None:
    def listen(record: Any) -> None:
        raise OSError("nobody listens")

    trace, _ = serve(engine, Request(PROMPT, registry.get("draft-model"), on_round=listen), device)
    assert "nobody listens" in trace.footer.error


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("no more"),
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 TB"),
    ],
    ids=["gpu", "python", "cpu"],
)
def test_running_out_of_memory_ends_only_one_sequence(engine: Engine, device: str, error: Exception) -> None:
    class Hungry:
        def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            raise error

    trace, _ = serve(
        engine, Request(PROMPT, registry.get("draft-model"), SamplingParams(processors=(Hungry(),))), device
    )
    assert "Out of memory" in trace.footer.error
    assert "shorter prompt" in trace.footer.error


def test_failure_while_drafting_does_not_affect_other_sequences(engine: Engine, device: str) -> None:
    """A drafter drafts all its sequences together; if one fails, the trees of the others are sampled again."""

    class Late:
        def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            if ids.shape[1] > len(PROMPT) + 4:
                raise ZeroDivisionError("late")
            return scores

    wanted = model_helpers.hf_greedy(engine.models.target.model, PROMPT, 20)
    for name in ("draft-tree", "draft-model", "early-exit"):
        settings = (SamplingParams(), SamplingParams(processors=(Late(),)), SamplingParams())
        rows = [engine.submit(Request(PROMPT, registry.get(name), sampling, 20)) for sampling in settings]
        while not engine.is_idle:
            engine.step()
        assert [row.status for row in rows] == ["finished", "error", "finished"]
        assert [row.trace.token_ids for row in (rows[0], rows[2]) if row.trace] == [wanted, wanted]


@pytest.mark.parametrize("name", ["draft-model", "draft-tree-sampled", "early-exit", "oracle"])
def test_failure_of_another_sequence_changes_no_random_number(name: str, engine: Engine) -> None:
    """Trees sampled again are equal: a random number depends on its position, not on the number of calls."""

    class Late:
        def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            if ids.shape[1] > len(PROMPT) + 4:
                raise ZeroDivisionError("late")
            return scores

    sampled = SamplingParams(1.0)
    alone = engine.generate(Request(PROMPT, registry.get(name), sampled, 24, seed=5, stop_at_eos=False))
    settings = (SamplingParams(1.0, processors=(Late(),)), sampled)
    requests = [Request(PROMPT, registry.get(name), s, 24, seed=5, stop_at_eos=False, paused=True) for s in settings]
    rows = [engine.submit(request) for request in requests]
    while not all(row.is_open for row in rows):
        engine.step()
    for row in rows:
        row.resume()
    while not engine.is_idle:
        engine.step()
    assert [row.status for row in rows] == ["error", "finished"]
    assert rows[1].trace is not None
    assert rows[1].trace.token_ids == alone.token_ids
    assert [r.nodes.tokens for r in rows[1].trace.rounds] == [r.nodes.tokens for r in alone.rounds]
    assert [r.nodes.u for r in rows[1].trace.rounds] == [r.nodes.u for r in alone.rounds]


def test_generate_raises_the_error_of_the_run(engine: Engine) -> None:
    with pytest.raises(WorkbenchError, match="NaN"):
        engine.generate(Request(PROMPT, registry.get("autoregressive"), SamplingParams(processors=(Poison(),))))


# -- self-tests --------------------------------------------------------------------------------------------------------


def warnings_of(models: Models, name: str, prompt: list[int], n: int = 80, **options: Any) -> list[str]:
    engine = Engine(models)
    row = engine.submit(Request(prompt, registry.get(name), max_new_tokens=n, **options))
    while row.status not in ENDED:
        engine.step()
    assert row.trace is not None
    return row.trace.footer.warnings


def test_drafter_that_is_never_right_gives_a_warning(device: str) -> None:
    models = model_helpers.make_models("llama", seed=0, noise=None, device=device)
    models.drafter, models.drafter_name = Runner(model_helpers.family("llama", seed=9, device=device)), "random"
    models.drafter_problem = ""

    found = warnings_of(models, "draft-model", model_helpers.random_prompt(8), 75)
    assert any("Almost nothing is accepted" in w for w in found), found


class PublishedRounds(list[Round]):
    """Rounds of a trace, with the notes that each of them had when other threads could first read it."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []

    def append(self, record: Round) -> None:
        self.notes += record.notes
        super().append(record)


def test_a_round_has_its_warning_when_it_is_published(device: str) -> None:
    """A viewer reads each round once (`Run.since`), so it never sees a note that is added later."""
    models = model_helpers.make_models("llama", seed=0, noise=None, device=device)
    models.drafter, models.drafter_name = Runner(model_helpers.family("llama", seed=9, device=device)), "random"
    models.drafter_problem = ""
    engine = Engine(models)
    row = engine.submit(Request(model_helpers.random_prompt(8), registry.get("draft-model"), max_new_tokens=75))
    assert row.trace is not None
    row.trace.rounds = rounds = PublishedRounds()
    while not engine.is_idle:
        engine.step()
    assert any("Almost nothing is accepted" in note for note in rounds.notes)
    assert rounds.notes == [note for r in rounds for note in r.notes]


def test_drafter_without_proposals_gives_a_warning(device: str) -> None:
    """Every token is forbidden after its first occurrence, so that nothing repeats and lookups find nothing."""

    def fresh(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores.scatter(1, ids, -torch.inf)

    models = model_helpers.make_models("llama", noise=None, device=device, vocab_size=120)
    found = warnings_of(models, "prompt-lookup", [1, 2, 3], 70, sampling=SamplingParams(processors=(fresh,)))
    assert any("Speculation is inactive" in w for w in found), found
    assert warnings_of(models, "autoregressive", [1, 2, 3], 70) == []


def test_copy_of_the_target_is_accepted_completely_without_a_warning(device: str) -> None:
    models = model_helpers.make_models("llama", noise=0.0, device=device)
    models.drafter_name = models.target_name
    for name in ("draft-model", "draft-tree-sampled"):
        assert warnings_of(models, name, PROMPT) == []
    assert warnings_of(models, "draft-model", PROMPT, sampling=SamplingParams(temperature=1.0)) == []


def test_rejected_copy_of_the_target_gives_a_warning(device: str) -> None:
    models = model_helpers.make_models("llama", noise=0.3, device=device)
    models.drafter_name = models.target_name
    assert any("copy of the target" in w for w in warnings_of(models, "draft-model", PROMPT))


def test_too_deeply_nested_configuration_is_refused_with_its_path(tmp_path: Path) -> None:
    """Python's JSON reader raises a RecursionError for it."""
    (tmp_path / "config.json").write_text("[" * 200_000 + "]" * 200_000)
    with pytest.raises(ModelError, match=r"config\.json is nested too deeply"):
        load_models(str(tmp_path))
