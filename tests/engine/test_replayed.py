"""Forwards that are recorded and played again: here by the host, with `-m gpu` by a GPU, as it always does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import worlds

from workbench.core.errors import WorkbenchError
from workbench.core.sampling import SamplingParams
from workbench.engine import Engine, Models, Request, replayed
from workbench.engine.cache import TreeCache
from workbench.engine.replayed import Graphs, Recorder, Replays
from workbench.engine.runner import Runner
from workbench.engine.segment import Output, Segment
from workbench.methods import registry

PROMPT = [3, 17, 4, 3, 17, 4, 9, 22, 5, 3, 17]
METHODS = {
    "autoregressive": {}, "draft-model": {"depth": 3}, "draft-tree": {"nodes": 6}, "draft-tree-sampled": {},
    "prompt-lookup": {}, "token-recycling": {}, "early-exit": {}, "del": {}, "swift": {}, "medusa": {}, "eagle": {},
    "jacobi": {},
}  # fmt: skip


def rerun(cache: TreeCache) -> Recorder:
    """As a graph does: the same work on the same tensors and at the same window, with its results where they were."""

    def record(work: Callable[[], Output]) -> tuple[Output, Callable[[], None]]:
        made, window = work(), cache.window

        def play() -> None:
            now, cache.window = cache.window, window
            new = work()
            cache.window = now
            made.logits.copy_(new.logits)
            made.hidden.copy_(new.hidden)
            for layer, tap in new.taps.items():
                made.taps[layer].copy_(tap)

        return made, play

    return record


def recorder(runner: Runner) -> Recorder:
    return rerun(runner.cache) if runner.device.type == "cpu" else Graphs(runner.device)


def asked(n: int, name: str = "autoregressive", **options: Any) -> Request:
    return Request(PROMPT, registry.get(name), max_new_tokens=n, **options)


def records(runner: Runner, by: Recorder) -> Replays:
    """Let a runner record, as those on a GPU do."""
    runner._lean, runner.geometry.in_steps = None, True
    runner.replays = made = Replays(by)
    return made


@pytest.fixture
def models(device: str, tmp_path_factory: pytest.TempPathFactory) -> Models:
    made = worlds.world("llama", noise=0.15, device=device, heads=tmp_path_factory.mktemp("heads"))
    assert made.drafter is not None
    for runner in (made.target, made.drafter):
        records(runner, recorder(runner))
    return made


@pytest.mark.parametrize("name", METHODS)
def test_text_is_hugging_faces_and_most_of_it_was_played(name: str, models: Models) -> None:
    by, played = recorder(models.target), []

    def counting(work: Callable[[], Output]) -> tuple[Output, Callable[[], None]]:
        made, play = by(work)
        return made, lambda: (played.append(0), play())[1]

    target = records(models.target, counting)
    wanted = worlds.hf_greedy(models.target.model, PROMPT, 48)
    method = registry.get(name).with_params(**METHODS[name])
    engine = Engine(models)
    for _ in range(2):  # the second begins with what the first has recorded
        trace = engine.generate(Request(PROMPT, method, max_new_tokens=48))
        assert trace.token_ids == wanted
        assert not target.why_not
    assert len(played) > len(trace.rounds) / 2
    assert len(target) <= len(played)


@pytest.mark.parametrize("n", [1, 3])
def test_logits_of_a_text_are_those_of_reading_it_whole(n: int, models: Models) -> None:
    """Each forward reads what those before it, played or not, have written."""
    target, slot, text = models.target, models.target.open(), worlds.random_prompt(48, seed=4)
    whole = target.model(torch.tensor([text], device=target.device), use_cache=False).logits[0]
    found = []
    for at in range(0, len(text), n):
        piece = torch.tensor(text[at : at + n], device=target.device)
        found.append(target.forward([Segment(slot, piece)]).logits[0])
        target.commit(slot, range(n))
    assert target.replays
    assert torch.allclose(torch.cat(found), whole, atol=1e-9)
    target.close(slot)


def test_sampled_text_is_what_it_would_be_without(models: Models) -> None:
    sampled = asked(32, "draft-model", sampling=SamplingParams(temperature=1.0), seed=3)
    played = Engine(models).generate(sampled).token_ids
    assert models.target.replays
    assert models.drafter is not None
    assert models.drafter.replays
    models.target.replays = models.drafter.replays = None
    assert Engine(models).generate(sampled).token_ids == played


def test_rows_beside_each_other_and_changes_in_between(models: Models) -> None:
    """Forwards of two rows are never played; those of one row are its own, wherever it stands in the cache."""
    wanted = [worlds.hf_greedy(models.target.model, PROMPT[:n], 40) for n in (5, 9)]
    engine = Engine(models)
    rows = [engine.submit(Request(PROMPT[:n], registry.get("draft-model"), max_new_tokens=40)) for n in (5, 9)]
    for _ in range(4):
        engine.step()
    rows[0].cancel()
    while not engine.idle:
        engine.step()
    assert rows[1].trace is not None
    assert rows[1].trace.token_ids == wanted[1]
    assert models.target.replays


def test_what_a_forward_gives_is_not_overwritten_by_the_next(models: Models) -> None:
    target, slot = models.target, models.target.open()
    target.prefill(slot, PROMPT)
    found = []
    for token in (3, 3, 5, 7):  # as it is, recorded, played, played
        out = target.forward([Segment(slot, torch.tensor([token], device=target.device))], taps={0})
        found.append((out, out.logits.clone(), out.hidden.clone(), out.taps[0].clone()))
        target.rewind(slot, len(PROMPT))
    assert target.replays
    for out, logits, hidden, tap in found:
        assert torch.equal(out.logits, logits)
        assert torch.equal(out.hidden, hidden)
        assert torch.equal(out.taps[0], tap)
    assert torch.allclose(found[0][1], found[1][1], atol=1e-12)
    assert not torch.equal(found[2][1], found[3][1])
    target.close(slot)


def _wrong(work: Callable[[], Output]) -> tuple[Output, Callable[[], None]]:
    made = work()
    return made, lambda: (made.logits.mul_(1.01), None)[1]


def _waits(work: Callable[[], Output]) -> tuple[Output, Callable[[], None]]:
    raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nmore of it")


def _has_no_room(work: Callable[[], Output]) -> tuple[Output, Callable[[], None]]:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB")


@pytest.mark.parametrize(
    ("by", "why"),
    [(_wrong, "what is played differs by 1.0e-02"), (_has_no_room, "out of memory"),
     (_waits, "CUDA error: operation not permitted when stream is capturing")],
)  # fmt: skip
def test_where_a_forward_cannot_be_recorded_it_runs_as_it_is(
    by: Recorder, why: str, models: Models, caplog: pytest.LogCaptureFixture
) -> None:
    target = records(models.target, by)
    wanted = worlds.hf_greedy(models.target.model, PROMPT, 24)
    assert Engine(models).generate(asked(24)).token_ids == wanted
    assert target.why_not == why
    assert len(target) == 0
    assert caplog.messages.count(f"Forwards are launched kernel by kernel: {why}") == 1, "it is tried once"


def test_what_fails_for_another_reason_is_told(models: Models) -> None:
    def broken(work: Callable[[], Output]) -> tuple[Output, Callable[[], None]]:
        raise ZeroDivisionError("of the recorder")

    records(models.target, broken)
    with pytest.raises((ZeroDivisionError, WorkbenchError), match="of the recorder"):
        Engine(models).generate(asked(24))


def test_records_go_when_weights_or_buffers_are_elsewhere(models: Models) -> None:
    target, replays = models.target, models.target.replays
    assert replays is not None
    engine, plain = Engine(models), asked(24)
    before = engine.generate(plain).token_ids
    assert engine.generate(plain).token_ids == before
    kept = len(replays)
    assert kept
    assert engine.generate(plain).token_ids == before
    assert len(replays) == kept
    head = target.model.get_output_embeddings()
    head.weight.data = head.weight.data.roll(1, 0)  # a copy, elsewhere: every token is called by its neighbour's name
    assert engine.generate(plain).token_ids == worlds.hf_greedy(target.model, PROMPT, 24) != before
    assert replays, "and recorded anew"
    target.cache.grow(target.cache.n_rows + 1)
    slot = target.open()
    assert len(replays) == 0
    target.close(slot)


def test_those_played_longest_ago_go_first(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replayed, "MOST_RECORDS", 2)
    target, slot = models.target, models.target.open()
    target.prefill(slot, PROMPT)

    def forward(n: int) -> None:
        target.forward([Segment(slot, torch.ones(n, dtype=torch.long, device=target.device))])
        target.rewind(slot, len(PROMPT))

    for n in (1, 1, 2, 2, 1, 3, 3):
        forward(n)
    assert target.replays is not None
    assert [key[1] for key in target.replays._records] == [1, 3]
    for n in (replayed.MOST_TOKENS + 1,) * 3:
        forward(n)
    assert len(target.replays) == 2, "long ones are not worth it"
    target.close(slot)
