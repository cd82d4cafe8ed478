"""Beam search: equal to Hugging Face's `generate(num_beams=…)`; tree over the KV cache; changes to other methods."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import model_helpers
import pytest
import torch

from workbench.core.sampling import SamplingParams
from workbench.decoders.beam_search.beams import HEURISTIC, Beam, Search
from workbench.engine import Engine, Models, Request
from workbench.engine.request import ENDED, FINISHED
from workbench.kernels.kv_cache import TreeCache
from workbench.methods import registry
from workbench.trace import export
from workbench.trace.events import Trace, list_tentative_tokens

PROMPT = model_helpers.repeating_prompt(11, period=5)
N = 24
ENDS = list(range(0, 64, 7))
EARLY = {"heuristic": False, "full": True, "never": "never"}
"""Stop rules and the values of Hugging Face's `early_stopping`."""


@pytest.fixture(scope="module")
def models(device: str) -> Models:
    return model_helpers.make_models("llama", noise=0.15, device=device)


@pytest.fixture
def with_ends(models: Models, monkeypatch: pytest.MonkeyPatch) -> Models:
    """Several tokens end a text, so that searches finish candidates at different lengths."""
    monkeypatch.setattr(models.target.model.generation_config, "eos_token_id", ENDS)
    return models


def make_request(prompt: list[int] = PROMPT, **values: Any) -> Request:
    return Request(prompt, registry.get("beam-search").with_params(**values), max_new_tokens=N)


def hf_beams(models: Models, prompt: list[int], n: int, **values: Any) -> list[int]:
    """Return the text of Hugging Face's own beam search."""
    method = registry.get("beam-search").with_params(**values)
    ends = sorted(models.eos)
    model: Any = models.target.model
    found = model.generate(
        torch.tensor([prompt], device=models.target.device),
        max_new_tokens=n, do_sample=False, num_beams=method.values["beams"], pad_token_id=ends[0] if ends else 0,
        length_penalty=method.values["length_penalty"], early_stopping=EARLY[method.values["stop_rule"]],
        eos_token_id=ends or None,
    )[0, len(prompt) :].tolist()  # fmt: skip
    end = next((i for i, token in enumerate(found) if token in ends), len(found) - 1)
    return found[: end + 1]


CASES = [
    {"beams": 1},
    {"beams": 4},
    {"beams": 3, "length_penalty": 0.5, "stop_rule": "full"},
    {"beams": 5, "length_penalty": 2.0, "stop_rule": "never"},
    {"beams": 4, "length_penalty": -1.0},
    {"beams": 16, "length_penalty": 0.0},
]


@pytest.mark.parametrize("values", CASES, ids=str)
def test_its_text_is_that_of_hugging_face(models: Models, values: dict[str, Any]) -> None:
    trace = Engine(models).generate(make_request(**values))
    assert trace.token_ids == hf_beams(models, PROMPT, N, **values)
    assert trace.footer.reason == "length"


@pytest.mark.parametrize("values", CASES, ids=str)
def test_candidates_of_different_lengths_finish_as_in_hugging_face(with_ends: Models, values: dict[str, Any]) -> None:
    reasons = set[str]()
    for seed in range(4):
        prompt = model_helpers.repeating_prompt(9 + seed, period=4 + seed)
        trace = Engine(with_ends).generate(make_request(prompt, **values))
        assert trace.token_ids == hf_beams(with_ends, prompt, N, **values), seed
        reasons.add(trace.footer.reason)
    assert "eos" in reasons


def test_tentative_tokens_are_the_best_candidate_and_traces_are_read_back(models: Models) -> None:
    trace = Engine(models).generate(make_request(beams=4))
    assert any(r.revoked for r in trace.rounds), "somewhere another candidate became the best"
    begin = len(trace.header.prompt_tokens)
    for n, r in enumerate(trace.rounds, 1):
        tentative = list_tentative_tokens(trace.rounds[:n])
        end = begin + sum(len(before.emitted) for before in trace.rounds[:n])
        assert [token.position for token in tentative] == list(range(end, end + len(tentative))), r.index
    assert list_tentative_tokens(trace.rounds) == []
    assert export.read_json_lines(export.to_json_lines(trace)) == trace
    assert export.read_parquet(export.to_parquet(trace)) == trace


def test_sequences_side_by_side_and_changes_of_the_method(models: Models) -> None:
    """Each stretch of the text is what its method writes after the text before it."""
    engine, search = Engine(models), registry.get("beam-search").with_params(beams=4)
    plain = model_helpers.hf_greedy(models.target.model, PROMPT, N)
    alone, into, out = (
        engine.submit(Request(PROMPT, method, max_new_tokens=N))
        for method in (search, registry.get("draft-model"), search)
    )
    while not engine.is_idle and (into.n_new < 5 or out.n_new < 3):
        engine.step()
    n_into, n_out = into.n_new, out.n_new
    into.change(method=registry.get("beam-search"), params={"beams": 4})
    out.change(method=registry.get("draft-model"))
    while any(sequence.status not in ENDED for sequence in (alone, into, out)):
        engine.step()
    texts = [sequence.trace.token_ids for sequence in (alone, into, out) if sequence.trace is not None]
    assert texts[0] == hf_beams(models, PROMPT, N, beams=4)
    assert texts[1] == plain[:n_into] + hf_beams(models, PROMPT + plain[:n_into], N - n_into, beams=4)
    start = texts[2][:n_out]
    assert start == texts[0][:n_out]
    assert texts[2][n_out:] == model_helpers.hf_greedy(models.target.model, PROMPT + start, N - n_out)
    assert out.trace is not None
    assert next(r for r in out.trace.rounds if r.changes).revoked, "tentative tokens are taken back"
    assert not models.target.slots


def test_beams_move_with_their_sequence_when_another_one_ends(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache rows are kept dense: the last row, with its committed entries and its beams, takes the free place."""
    scratch, moved, whole = list[int](), list[int](), TreeCache.move_row

    def watched(self: TreeCache, row: int, to: int, n: int) -> None:
        scratch.append(search.cache_slot.scratch)
        moved.append(n - search.cache_slot.length)
        whole(self, row, to, n)

    engine = Engine(models)
    short = engine.submit(Request(PROMPT, registry.get("autoregressive"), max_new_tokens=6, stop_at_eos=False))
    search = engine.submit(make_request(beams=4))
    monkeypatch.setattr("workbench.models.runner.SCRATCH", 1)
    monkeypatch.setattr(TreeCache, "move_row", watched)
    while search.status not in ENDED:
        engine.step()
    assert short.status == FINISHED
    assert scratch[0] > 1, "beams have scratch nodes"
    assert moved[0] >= scratch[0]
    assert search.trace is not None
    assert search.trace.token_ids == hf_beams(models, PROMPT, N, beams=4)


def test_a_full_cache_drops_candidates_and_not_the_run(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    from workbench.decoders.beam_search.decoder import BeamSearchDecoder

    monkeypatch.setattr(BeamSearchDecoder, "_room", lambda self, sequence: 20)
    most = list[int]()
    whole = BeamSearchDecoder.segment

    def watched(self: BeamSearchDecoder, sequence: Any) -> Any:
        segment = whole(self, sequence)
        most.append(sequence.cache_slot.scratch + len(segment.tokens))
        return segment

    monkeypatch.setattr(BeamSearchDecoder, "segment", watched)
    trace = Engine(models).generate(make_request(beams=6))
    assert len(trace.token_ids) == N
    assert max(most) <= 20


def test_sampling_has_no_effect_and_a_note_says_so(models: Models) -> None:
    trace = Engine(models).generate(dataclasses.replace(make_request(), sampling=SamplingParams(0.7, top_k=3), seed=4))
    assert trace.token_ids == hf_beams(models, PROMPT, N)
    assert [note for note in trace.footer.warnings if "does not sample" in note]
    assert not Engine(models).generate(make_request()).footer.warnings


def test_enough_beams_find_the_most_probable_text() -> None:
    """With a beam for every prefix the search is exhaustive: compared with all texts of four tokens."""
    vocabulary, length = 3, 4
    generator = torch.Generator().manual_seed(2)
    tables = [torch.randn(vocabulary**i, vocabulary, generator=generator).log_softmax(1) for i in range(length)]

    def rows(beams: list[Beam], level: int) -> torch.Tensor:
        index = [sum(token * vocabulary**k for k, token in enumerate(reversed(beam.tokens))) for beam in beams]
        return tables[level][index]

    def run(n_beams: int) -> Search:
        search = Search([Beam((), (), (), 0.0)])
        end: Callable[[Any], str] = lambda tokens: "length" if len(tokens) == length else ""  # noqa: E731
        for level in range(length):
            search.extend(rows(search.beams, level), n_beams, 0, end, 1.0, HEURISTIC, length)
        return search

    def logprob(text: tuple[int, ...]) -> float:
        prefixes = [text[:i] for i in range(length)]
        return sum(float(rows([Beam((), prefix, (), 0.0)], i)[0, text[i]]) for i, prefix in enumerate(prefixes))

    best = max(itertools.product(range(vocabulary), repeat=length), key=logprob)
    found = run(vocabulary ** (length - 1))
    assert found.best()[0] == best
    assert found.finished[0].score == pytest.approx(logprob(best) / length, abs=1e-5)
    assert run(1).best()[0] != best, "a greedy search misses it here"


def test_recorded_runs_show_what_is_counted(models: Models) -> None:
    trace: Trace = Engine(models).generate(make_request(beams=3))
    assert trace.rounds[1].signals["beams"] == 3
    assert all(r.target_forwards == 1 for r in trace.rounds)
    assert trace.rounds[-1].signals["finished hypotheses"] == 3


def test_a_warning_from_the_opening_is_in_the_first_round_and_the_run(models: Models) -> None:
    request = make_request(beams=2)
    request.sampling = SamplingParams(temperature=0.7)
    trace = Engine(models).generate(request)
    (warning,) = trace.footer.warnings
    assert warning.startswith("Beam search does not sample")
    assert [r.index for r in trace.rounds if warning in r.notes] == [0]
