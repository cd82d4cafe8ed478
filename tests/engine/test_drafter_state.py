"""Drafter state can be inspected, saved, loaded and reset; invalid requests are refused."""

from __future__ import annotations

from typing import Any

import model_helpers
import numpy as np
import pytest
from safetensors.numpy import load as read_arrays
from safetensors.numpy import save as write_arrays

from workbench.core.errors import CapacityError, MethodUnavailableError, ModelError, TokenizerMismatchError
from workbench.decoders.draft_verify import state_actions
from workbench.decoders.draft_verify.inspectable_state import MOST_BYTES, inspectable_state_of
from workbench.decoders.draft_verify.state_file import from_bytes, to_bytes
from workbench.engine import Engine, Models, Request, Sequence
from workbench.engine.request import ERROR, FINISHED
from workbench.methods import registry
from workbench.methods.rasd.drafter import BOTH, STORE

SAVABLE_METHODS = (
    "prompt-lookup", "suffix", "stand", "adaptive-trigram", "token-recycling", "lookahead-trie", "lookahead", "online",
    "tlt",
)  # fmt: skip
"""Methods whose state can be saved to a file."""
DATASTORE_METHODS = ("rest", "rasd")
"""Methods that read a datastore."""
ALL: dict[str, dict[str, Any]] = {"rasd": {"top": 64}, "tlt": {"tail": 1.0}}
"""Parameters so that nothing of the datastore is pruned (a random model's likely tokens are not those of its texts),
and so that a head is trained whatever other sequences have started.
"""
PROMPT = model_helpers.repeating_prompt(24, period=5)
N = 24


@pytest.fixture(scope="module")
def models(device: str, tmp_path_factory: pytest.TempPathFactory) -> Models:
    return model_helpers.make_models(
        "llama", noise=0.15, device=device, heads=tmp_path_factory.mktemp("owned") / "heads"
    )


def run_to_end(models: Models, method: str, prompt: list[int] = PROMPT, n: int = N, **asked: Any) -> Sequence:
    """Return a sequence that has ended, with its state."""
    engine = Engine(models)
    params = ALL.get(method, {}) | asked.pop("params", {})
    configured = registry.get(method).with_params(**params)
    row = engine.submit(
        Request(prompt, configured, max_new_tokens=n, stop_at_eos=False, keep_drafter_state=True, **asked)
    )
    while not engine.is_idle:
        engine.step()
    return row


def run_six_rounds(models: Models, method: str, prompt: list[int] = PROMPT, **params: Any) -> tuple[Engine, Sequence]:
    """Return a sequence after six rounds."""
    engine = Engine(models)
    configured = registry.get(method).with_params(**ALL.get(method, {}) | params)
    row = engine.submit(Request(prompt, configured, max_new_tokens=60, stop_at_eos=False))
    while row.trace is None or len(row.trace.rounds) < 6:
        engine.step()
    return engine, row


def data_of(models: Models, method: str) -> bytes:
    row = run_to_end(models, method)
    assert row.state.final is not None
    assert row.state.final.data is not None, row.state.final.why
    return row.state.final.data


def test_every_drafter_with_memory_can_be_inspected_and_saved(models: Models) -> None:
    """This covers new drafters with a memory; the exceptions are listed with the reason."""
    small = {"jacobi", "aggressive"}  # the guesses of one round, and a position in the prompt
    learn = {
        m.name for m in model_helpers.text_methods() if m.drafter.state_key() is not None and m.decoder_params is None
    }
    assert learn - small == set(SAVABLE_METHODS)


@pytest.mark.parametrize("method", [*SAVABLE_METHODS, *DATASTORE_METHODS])
def test_state_reports_its_size_hits_and_the_source_of_the_draft(models: Models, method: str) -> None:
    engine, row = run_six_rounds(models, method, **ALL.get(method, {}))
    shown = state_actions.inspect_state(row, engine.token_text)
    assert 0 < shown["entries"] <= shown["bound"]
    assert 0 < shown["n_bytes"] <= shown["most_bytes"]
    assert row.trace is not None
    rounds = row.trace.rounds
    assert shown["asked"] == len(rounds)
    made = [[method != "rasd" or source in (STORE, BOTH) for source in r.nodes.source] for r in rounds]
    assert shown["hits"] == sum(map(any, made)) > 0
    assert shown["kept"] == sum(mine[node] for r, mine in zip(rounds, made, strict=True) for node in r.path)
    assert shown["top"]
    assert shown["saves"] == (method in SAVABLE_METHODS)
    last = rounds[-1]
    n = int(last.signals.get("matched tokens", 0))  # a draft model has none
    if not n or not any(made[-1]):
        assert shown["made"] is None
        return
    before = row.committed[: len(row.committed) - len(last.emitted)][-n:]
    assert shown["made"]["before"] == "".join(map(engine.token_text, before))
    assert shown["made"]["round"] == last.index
    assert shown["made"]["after"].startswith(engine.token_text(last.nodes.tokens[made[-1].index(True)]))


def test_draft_models_nodes_are_no_hits_of_the_datastore(models: Models) -> None:
    """RASD's tree has nodes of both; if all nodes of the datastore are pruned, none of them was drafted."""
    engine, row = run_six_rounds(models, "rasd", top=1)
    shown = state_actions.inspect_state(row, engine.token_text)
    assert row.trace is not None
    assert any(r.path for r in row.trace.rounds), "drafts of the draft model are accepted"
    assert any(r.signals["matched tokens"] for r in row.trace.rounds), "the datastore has entries"
    assert (shown["hits"], shown["kept"], shown["made"]) == (0, 0, None)
    assert shown["asked"] == len(row.trace.rounds)


@pytest.mark.parametrize("method", SAVABLE_METHODS)
def test_loaded_state_drafts_from_the_first_round_and_keeps_the_text(models: Models, method: str) -> None:
    """A second request with the same prompt drafts from the first one's saved state in its first round."""
    first = run_to_end(models, method)
    assert first.state.final is not None
    fresh, warm = (
        run_to_end(models, method, n=12),
        run_to_end(models, method, n=12, drafter_state=first.state.final.data),
    )
    assert warm.status == FINISHED
    assert fresh.trace is not None
    assert warm.trace is not None
    assert warm.trace.token_ids == fresh.trace.token_ids == model_helpers.hf_greedy(models.target.model, PROMPT, 12)
    assert warm.state.final is not None
    assert fresh.state.final is not None
    more = warm.state.final.summary["entries"] - fresh.state.final.summary["entries"]
    assert more >= 0 if method == "lookahead-trie" else more > 0  # these share the branches of one prompt
    kept = [sum(len(r.path) for r in row.trace.rounds) for row in (fresh, warm) if row.trace]
    own = ("prompt-lookup", "lookahead", "lookahead-trie", "online", "tlt")  # these have their own text or rules
    if method not in own:
        assert kept[1] > kept[0]
    assert kept[1] >= kept[0]


@pytest.mark.parametrize("method", SAVABLE_METHODS)
def test_file_contains_the_whole_state(models: Models, method: str) -> None:
    engine, row = run_six_rounds(models, method)
    saved = state_actions.save(row)
    arrays = from_bytes(saved).arrays
    other = engine.submit(Request(PROMPT[:3], registry.get(method), max_new_tokens=60, stop_at_eos=False))
    while not other.is_open:
        engine.step()
    state_actions.load(other, saved)
    again = from_bytes(state_actions.save(other)).arrays
    assert set(again) == set(arrays)
    whole = {name: {tuple(np.ravel(item)) for item in array} for name, array in again.items()}
    for name, array in arrays.items():
        if name in ("text", "texts", "contexts", "pairs", "firsts", "tails") or method == "token-recycling":
            assert {tuple(np.ravel(item)) for item in array} <= whole[name], name


LENGTHS = {
    "prompt-lookup": ({"ngram": 8}, {"ngram": 1}),
    "stand": ({"longest": 4}, {"longest": 1}),
    "lookahead-trie": ({"branch_length": 16}, {"branch_length": 2}),
    "lookahead": ({"ngram": 6, "guesses": 32, "from_text": True}, {"ngram": 2, "guesses": 1}),
}


@pytest.mark.parametrize("turned", [False, True], ids=["into-shorter", "into-longer"])
@pytest.mark.parametrize("method", LENGTHS)
def test_file_can_be_loaded_with_other_length_parameters(models: Models, method: str, turned: bool) -> None:
    """Lengths are parameters: a state saved with other values still drafts, and can be saved again."""
    its, mine = LENGTHS[method][::-1] if turned else LENGTHS[method]
    first = run_to_end(models, method, params=its)
    assert first.state.final is not None
    row = run_to_end(models, method, drafter_state=first.state.final.data, params=mine)
    assert row.status == FINISHED
    assert row.trace is not None
    assert row.trace.token_ids == model_helpers.hf_greedy(models.target.model, PROMPT, N)
    assert row.state.final is not None
    assert row.state.final.data is not None
    assert run_to_end(models, method, drafter_state=row.state.final.data, params=its).status == FINISHED


@pytest.mark.parametrize("method", SAVABLE_METHODS)
def test_reset_keeps_the_text(models: Models, method: str) -> None:
    engine, row = run_six_rounds(models, method)
    state_actions.load(row, data_of(models, method))
    before = inspectable_state_of(row.state.drafter)
    assert before is not None
    size = before.summarise(0).entries
    state_actions.reset(row)
    state = inspectable_state_of(row.state.drafter)
    assert state is not None
    assert state is not before
    assert state.summarise(0).entries < size
    assert state.n_queries == 0
    while not engine.is_idle:
        engine.step()
    assert row.status == FINISHED
    assert row.trace is not None
    assert row.trace.token_ids == model_helpers.hf_greedy(models.target.model, PROMPT, 60)


def test_reset_empties_shared_state(device: str) -> None:
    models = model_helpers.make_models("llama", noise=None, device=device)
    run_to_end(models, "suffix", params={"warm": True})
    _, row = run_six_rounds(models, "suffix", warm=True)
    assert row.state.drafter.store.n > 0
    state_actions.reset(row)
    assert row.state.drafter.store is models.shared["suffix"]
    assert row.state.drafter.store.n == 0


def test_a_file_of_another_tokenizer_target_or_drafter_is_refused(models: Models, device: str) -> None:
    data = data_of(models, "suffix")
    engine, row = run_six_rounds(models, "token-recycling")
    with pytest.raises(ModelError, match="belongs to the drafter suffix, but the run drafts with token-recycling"):
        state_actions.load(row, data)
    other = model_helpers.make_models("llama", noise=None, device=device)
    other.target_name = "another"
    failed = run_to_end(other, "suffix", drafter_state=data)
    assert failed.status == ERROR
    assert isinstance(failed.error, TokenizerMismatchError)
    assert "saved for tiny-llama" in str(failed.error)
    other.tokenizer = model_helpers.letter_tokenizer(40)
    other.shared.pop("tokenizer hash")
    failed = run_to_end(other, "suffix", drafter_state=data)
    assert "tokenizer of tiny-llama" in str(failed.error)
    assert engine.running == [row], "the run continues"


def test_methods_without_state_report_an_error(models: Models) -> None:
    engine, row = run_six_rounds(models, "draft-model")
    assert state_actions.inspect_state(row, engine.token_text)["kind"] == ""
    for act in (state_actions.save, state_actions.reset, lambda r: state_actions.load(r, data_of(models, "suffix"))):
        with pytest.raises(MethodUnavailableError, match="has no drafter state"):
            act(row)
    _, reader = run_six_rounds(models, "rest")
    for act in (state_actions.save, state_actions.reset, lambda r: state_actions.load(r, data_of(models, "suffix"))):
        with pytest.raises(MethodUnavailableError):
            act(reader)


def test_damaged_file_is_refused(models: Models) -> None:
    data = data_of(models, "token-recycling")
    assert from_bytes(data).kind == "token-recycling"
    generator = np.random.default_rng(0)
    wrong = [data[:n] for n in (0, 7, 8, 100, len(data) // 2, len(data) - 1)]
    wrong += [data + b"more", b"\x80\x04K\x01.", b"\xff" * 64, (1 << 62).to_bytes(8, "little") + data[8:]]
    for at in generator.integers(0, len(data), 60):
        wrong.append(data[:at] + bytes([data[at] ^ 1 << int(generator.integers(8))]) + data[at + 1 :])
    for i, bad in enumerate(wrong):
        with pytest.raises((ModelError, CapacityError)) as refused:
            from_bytes(bad).check("token-recycling", models)  # the change may be in a letter of a name in the header
        assert refused.value.remedy, i
    with pytest.raises(CapacityError):
        from_bytes(bytes(MOST_BYTES + 1))


def contents(data: bytes) -> dict[str, Any]:
    """Return the contents of a file; the order in its header is not defined."""
    return {name: array.tolist() for name, array in from_bytes(data).arrays.items()}


def corrupted_arrays(arrays: dict[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    """Yield the same arrays, each once missing, with another shape, or with invalid numbers."""
    found = []
    for name, array in arrays.items():
        rest = {other: a for other, a in arrays.items() if other != name}
        found += [rest, rest | {name: array[None]}, rest | {name: array.astype(bool)}]
        found += [rest | {name: np.full_like(array, value)} for value in (-9, 1 << 30)]
        if array.dtype.kind == "f":
            found.append(rest | {name: np.full_like(array, np.nan)})
        else:
            found.append(rest | {name: array + 0.5})
    return found


def test_trie_with_a_too_long_branch_is_refused(models: Models) -> None:
    """Branches are walked recursively: in a shared trie, one such file would break pruning for all requests."""
    n, most = 2_000, 17  # a branch has at most 16 tokens after its first one
    chain = {"tokens": np.arange(n) % 7, "parents": np.arange(n) - 1, "counts": np.ones(n, np.float32)}
    _, row = run_six_rounds(models, "lookahead-trie", warm=True)
    with pytest.raises(ModelError, match="longer than the limit"):
        state_actions.load(row, to_bytes("lookahead-trie", chain, models))
    state_actions.load(row, to_bytes("lookahead-trie", {name: array[:most] for name, array in chain.items()}, models))
    row.state.drafter.trie.forget(row.state.drafter.request)


@pytest.mark.parametrize("method", SAVABLE_METHODS)
def test_invalid_numbers_are_refused(models: Models, method: str) -> None:
    """Test a file with a valid header and checksum, as anybody can write one."""
    arrays = read_arrays(data_of(models, method))
    _, row = run_six_rounds(models, method)
    for bad in corrupted_arrays(arrays):
        before = contents(state_actions.save(row))
        with pytest.raises(ModelError, match="The state file is damaged"):
            state_actions.load(row, to_bytes(method, bad, models))
        assert contents(state_actions.save(row)) == before, "the state is unchanged"
    assert write_arrays(arrays)
