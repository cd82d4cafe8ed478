"""Rounds that the host reads late: same text and trace as the normal loop, whatever the delay; no hidden host read."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import model_helpers
import numpy as np
import pytest
import torch
from engine.test_device_syncs import SyncCounter, treat_memory_as_device

from workbench.core.errors import WorkbenchError
from workbench.core.random_stream import Purpose, RandomStream
from workbench.core.rejection import walk
from workbench.core.sampling import SamplingParams
from workbench.decoders.draft_verify.decoder import DraftVerify
from workbench.decoders.draft_verify.device_rounds import round_queue
from workbench.decoders.draft_verify.device_rounds.host_copy import HostCopy
from workbench.decoders.draft_verify.device_rounds.launch import Launch
from workbench.decoders.draft_verify.device_rounds.round_replay import RoundReplays
from workbench.engine import Engine, Models, Request
from workbench.engine.request import ENDED
from workbench.kernels.device_random import as_signed, device_uniforms
from workbench.kernels.device_walk import find_path
from workbench.methods import registry
from workbench.methods.draft_model.drafter import DraftModel
from workbench.models.runner import SCRATCH
from workbench.trace.events import Trace

PROMPT = model_helpers.repeating_prompt(11, period=5)
N = 40
METHODS = {
    "plain": registry.get("autoregressive").with_params(),
    "chain": registry.get("draft-model").with_params(depth=3),
    "tree": registry.get("draft-tree").with_params(depth=3, nodes=7),
    "sampled": registry.get("draft-tree-sampled").with_params(grower="specinfer", depth=3, branching="2-2-2"),
    "heads": registry.get("medusa").with_params(),
    "template": registry.get("draft-tree").with_params(grower="template", depth=3, nodes=7),
}


@pytest.fixture(scope="module")
def models(device: str, tmp_path_factory: pytest.TempPathFactory) -> Models:
    """A drafter of medium quality, and untrained heads."""
    heads = tmp_path_factory.mktemp("medusa")
    return model_helpers.make_models("llama", noise=0.05, device=device, heads=heads)


def make_request(method: str, **more: Any) -> Request:
    return Request(PROMPT, METHODS[method], max_new_tokens=N, stop_at_eos=False, **more)


def queue_of(engine: Engine) -> Any:
    decoder = engine._decoder(METHODS["plain"])
    assert isinstance(decoder, DraftVerify)
    assert decoder.queue is not None
    return decoder.queue


def content(trace: Trace) -> list[Any]:
    """Return all facts about a trace's rounds but its times."""
    return [
        (r.nodes.tokens, r.nodes.status, r.path, r.bonus, [t.token for t in r.emitted], r.changes, r.notes,
         np.round([a or 0 for a in r.nodes.accept], 9).tolist(), np.round(r.entropy, 9).tolist())
        for r in trace.rounds
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("method", "temperature", "late"),
    [*itertools.product(METHODS, (0.0, 0.8), (1,)), ("chain", 0.8, 3), ("tree", 0.0, 3)],
)
def test_late_rounds_equal_the_normal_loop(models: Models, method: str, temperature: float, late: int) -> None:
    request = {"sampling": SamplingParams(temperature=temperature), "seed": 5}
    normal = Engine(models).generate(make_request(method, **request))
    engine = Engine(models, rounds_late=late)
    trace = engine.generate(make_request(method, **request))
    assert content(trace) == content(normal)
    assert trace.footer.text == normal.footer.text
    assert trace.footer.reason == normal.footer.reason == "length"
    assert queue_of(engine).n_launched > len(trace.rounds) / 2, "most rounds were launched before the last was read"


class FrozenRounds:
    """Replays rounds as a CUDA graph does: with the host's numbers of the recording, and without effects of Python."""

    def __init__(self, models: Models) -> None:
        assert models.draft_model is not None
        self.runners, self.n_replays = (models.target, models.draft_model), 0

    def __call__(self, work: Callable[[], Launch]) -> tuple[Launch, Callable[[], None]]:
        lengths = [[(s.length, s.scratch, s.on_device) for s in runner.slots] for runner in self.runners]
        made = work()

        def replay() -> None:
            self.n_replays += 1
            slots = [slot for runner in self.runners for slot in runner.slots]
            before = [(s.length, s.scratch, s.on_device, s.last_hidden) for s in slots]
            reached = [list(runner.cache._reached) for runner in self.runners]
            for runner, recorded in zip(self.runners, lengths, strict=True):
                for slot, (length, scratch, on_device) in zip(runner.slots, recorded, strict=False):
                    if slot.on_device is None and on_device is None:
                        slot.length, slot.scratch = length, scratch
            for old, new in zip(made.tensors(), work().tensors(), strict=True):
                old.copy_(new)
            for slot, values in zip(slots, before, strict=True):
                slot.length, slot.scratch, slot.on_device, slot.last_hidden = values
            for runner, positions in zip(self.runners, reached, strict=True):
                runner.cache._reached = positions

        return made, replay

    def reset(self) -> None:
        pass


def with_replays(engine: Engine) -> FrozenRounds:
    """Let an engine replay its rounds as it does on a GPU."""
    recorder = FrozenRounds(engine.models)
    engine._decoder(METHODS["plain"])
    queue_of(engine).replays = RoundReplays(recorder, nullcontext)
    return recorder


@pytest.mark.parametrize(("method", "temperature"), [*((name, 0.8) for name in METHODS), ("tree", 0.0)])
def test_replayed_rounds_equal_the_normal_loop(models: Models, method: str, temperature: float) -> None:
    requests = [make_request(method, sampling=SamplingParams(temperature=temperature), seed=seed) for seed in (1, 2)]
    normal = [Engine(models).generate(request) for request in requests]
    engine = Engine(models, rounds_late=1)
    recorder = with_replays(engine)
    for request, expected in zip(requests, normal, strict=True):
        assert content(engine.generate(request)) == content(expected), "the second run reuses the records of the first"
    assert queue_of(engine).replays.why_not == ""
    assert recorder.n_replays >= queue_of(engine).n_launched - 4


def new_models(**options: Any) -> Models:
    return model_helpers.make_models("llama", **{"noise": 0.05, **options})


def test_a_sequence_in_the_normal_loop_has_its_rounds_beside_queued_ones(models: Models) -> None:
    engine = Engine(models, rounds_late=1)
    late = engine.submit(make_request("chain"))
    other = engine.submit(Request(PROMPT, registry.get("prompt-lookup"), max_new_tokens=N, stop_at_eos=False))
    for _ in range(9):
        engine.step()
    assert queue_of(engine).n_launched > 0
    assert min(len(late.trace.rounds), len(other.trace.rounds)) >= 6
    late.cancel()
    other.cancel()
    engine.step()


def test_a_replayed_sequence_keeps_its_text_when_another_joins() -> None:
    """Its entries were written by replays alone: the cache grows with all of them, and no other pass writes there."""
    models = new_models()
    expected = Engine(new_models()).generate(make_request("chain")).token_ids
    engine = Engine(models, rounds_late=1)
    with_replays(engine)
    engine.generate(make_request("chain"))
    sequence = engine.submit(make_request("chain"))
    while len(sequence.trace.rounds) < 4:
        engine.step()
    other = Request(PROMPT, registry.get("prompt-lookup"), max_new_tokens=20, stop_at_eos=False)
    others = [engine.submit(other) for _ in "ab"]
    while any(s.status not in ENDED for s in (sequence, *others)):
        engine.step()
    assert sequence.trace.token_ids == expected


def test_a_long_queued_sequence_moves_with_all_entries_of_the_draft_model() -> None:
    """When another sequence ends, the row of a queued one moves; the host's length of its draft slot is stale then."""
    sampling = SamplingParams(temperature=0.7)

    def run(rounds_late: int) -> Trace:
        models = new_models(context=600, max_position_embeddings=1024)
        engine = Engine(models, rounds_late=rounds_late)
        other = engine.submit(Request(PROMPT, METHODS["chain"], sampling, 260, 1, stop_at_eos=False))
        sequence = engine.submit(Request(PROMPT, METHODS["chain"], sampling, 420, 2, stop_at_eos=False))
        while other.status not in ENDED:
            engine.step()
        assert SCRATCH < len(sequence.committed) < 420
        while sequence.status not in ENDED:
            engine.step()
        return sequence.trace

    assert content(run(1)) == content(run(0))


@pytest.mark.parametrize("phase", ["propose", "commit_on_device", "begin_on_device"])
def test_an_error_ends_only_its_sequence(phase: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(new_models(), rounds_late=1)
    sequences = [engine.submit(make_request("chain", seed=i)) for i in range(3)]
    while not all(len(s.trace.rounds) >= 2 for s in sequences):
        engine.step()
    bad, original = sequences[1], getattr(DraftModel, phase)

    def failing(self: DraftModel, argument: Any, *more: Any) -> Any:
        if bad in [s.owner for s in (argument if isinstance(argument, list) else [argument])]:
            raise ValueError("a bug of the drafter")
        return original(self, argument, *more)

    monkeypatch.setattr(DraftModel, phase, failing)
    while any(s.status not in ENDED for s in sequences):
        engine.step()
    assert [s.status for s in sequences] == ["finished", "error", "finished"]
    assert "a bug of the drafter" in bad.trace.footer.error


def test_a_drafters_error_while_recording_is_reported_by_the_next_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(new_models(), rounds_late=1)
    recorder = with_replays(engine)
    sequence, calls, propose = engine.submit(make_request("chain")), [0], DraftModel.propose

    def failing(self: DraftModel, sequences: Any) -> Any:
        calls[0] += bool(sequences[0].is_on_device)
        if calls[0] == 2:  # the first launch is an ordinary one, the second is recorded
            raise WorkbenchError("no draft this time")
        return propose(self, sequences)

    monkeypatch.setattr(DraftModel, "propose", failing)
    while sequence.status not in ENDED:
        engine.step()
    assert sequence.status == "finished"
    assert recorder.n_replays == 0
    assert queue_of(engine).replays.why_not == "no draft this time"


def test_too_many_late_rounds_are_refused(models: Models) -> None:
    for rounds_late in (-1, 5):
        with pytest.raises(WorkbenchError, match="rounds_late"):
            Engine(models, rounds_late=rounds_late)


def test_rounds_around_another_sequences_row_are_not_recorded(models: Models) -> None:
    """The row between is padding, whose position on the host would be recorded: it could overwrite that text later."""
    request = make_request("plain")
    other = Request(PROMPT, registry.get("prompt-lookup"), max_new_tokens=N, stop_at_eos=False)
    normal = [Engine(models).generate(r) for r in (request, other)]
    engine = Engine(models, rounds_late=1)
    recorder = with_replays(engine)
    sequences = [engine.submit(r) for r in (request, other, request)]
    while any(s.status not in ENDED for s in sequences):
        n_before, all_decode = recorder.n_replays, all(s.trace.rounds and s.status not in ENDED for s in sequences)
        engine.step()
        assert not all_decode or recorder.n_replays == n_before or any(s.status in ENDED for s in sequences)
    assert [s.trace.token_ids for s in sequences] == [normal[i].token_ids for i in (0, 1, 0)]
    assert queue_of(engine).n_launched > 0


def test_records_are_dropped_when_weights_move(models: Models) -> None:
    engine = Engine(models, rounds_late=1)
    with_replays(engine)
    replays = queue_of(engine).replays
    engine.generate(make_request("plain"))
    assert len(replays) > 0
    weight = models.target.embed.get_parameter("weight")
    weight.data = weight.detach().clone()
    sequence = engine.submit(make_request("plain"))
    while not sequence.trace.rounds and not len(queue_of(engine)._queues):
        engine.step()
    assert len(replays) == 0
    sequence.cancel()
    engine.step()


@pytest.mark.parametrize("method", ["chain", "sampled"])
def test_a_batch_is_replayed_together(models: Models, method: str) -> None:
    requests = [make_request(method, sampling=SamplingParams(temperature=0.6), seed=seed) for seed in (1, 2, 3)]
    normal = Engine(models).generate_all(requests)
    engine = Engine(models, rounds_late=1)
    with_replays(engine)
    assert [content(t) for t in engine.generate_all(requests)] == [content(t) for t in normal]


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("method", METHODS)
def test_launches_wait_for_nothing(
    models: Models, method: str, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Launch three rounds with the code paths of a GPU, and count what the host reads or uploads."""
    treat_memory_as_device(monkeypatch)
    monkeypatch.setattr(round_queue, "copy_later", HostCopy)
    engine = Engine(models, rounds_late=1)
    sequence = engine.submit(make_request(method, sampling=SamplingParams(temperature=temperature)))
    while not sequence.trace.rounds:
        engine.step()
    queue = queue_of(engine)
    with torch.inference_mode(), SyncCounter() as counted:
        for _ in range(3):
            queue.launch([sequence])
    assert counted.found == Counter()
    assert len(queue._queues[sequence]) == 4


@pytest.mark.parametrize("seed", range(4))
def test_shuffled_delays_change_nothing(models: Models, seed: int) -> None:
    """Copies arrive 0 to 3 rounds late, in any mixture of methods; greedy texts also with a change of method.

    A change starts after the rounds that are queued already, so a sampled text may differ from there on.
    """
    rng = random.Random(seed)
    sampling = SamplingParams(temperature=(0.0, 0.9)[seed % 2])
    requests = [make_request(rng.choice(list(METHODS)), sampling=sampling, seed=i) for i in range(3)]
    other, at = METHODS["chain"], rng.randrange(2, 12)

    def run(engine: Engine, delay: Callable[[], int]) -> list[Any]:
        sequences = [engine.submit(request) for request in requests]
        has_changed = False
        while any(s.status not in ENDED for s in sequences):
            if sampling.greedy and not has_changed and len(sequences[0].trace.rounds) >= at:
                sequences[0].change(other.method, dict(other.values))
                has_changed = True
            if engine._decoders:
                queue_of(engine).rounds_late = delay()
            engine.step()
        return [[t.token for r in s.trace.rounds for t in r.emitted] for s in sequences]

    late = Engine(models, rounds_late=1)
    assert run(late, lambda: rng.randrange(4)) == run(Engine(models, rounds_late=1), lambda: 0)
    assert queue_of(late).n_launched > 10


def test_a_text_that_ends_by_a_stop_string_drops_the_rounds_after_it(models: Models) -> None:
    plain = Engine(models).generate(make_request("chain"))
    stop = plain.footer.text[20:24]
    normal = Engine(models).generate(make_request("chain", stop=(stop,)))
    engine = Engine(models, rounds_late=2)
    trace = engine.generate(make_request("chain", stop=(stop,)))
    assert (trace.footer.text, trace.footer.reason) == (normal.footer.text, "stop-string")
    assert content(trace) == content(normal)
    assert engine.is_idle
    assert content(engine.generate(make_request("chain"))) == content(plain), "the next run finds a clean state"


def test_pause_step_and_cancel_read_all_queued_rounds(models: Models) -> None:
    engine = Engine(models, rounds_late=2)
    sequence = engine.submit(make_request("chain"))
    while len(sequence.trace.rounds) < 3:
        engine.step()
    n = len(sequence.trace.rounds)
    sequence.pause()
    assert not engine.step()
    assert len(sequence.trace.rounds) == n + 2, "the two rounds that were queued"
    assert sequence.cache_slot.on_device is None
    assert sequence.cache_slot.length == len(sequence.committed) - 1
    sequence.step()
    engine.step()
    assert len(sequence.trace.rounds) == n + 3
    sequence.resume()
    engine.step()
    sequence.cancel()
    engine.step()
    assert sequence.status in ENDED
    assert not queue_of(engine)._queues


def test_a_part_that_reads_the_text_is_refused(models: Models) -> None:
    engine = Engine(models, rounds_late=1)
    sequence = engine.submit(make_request("chain"))
    while not sequence.trace.rounds:
        engine.step()
    view = queue_of(engine)._views[sequence]
    with pytest.raises(WorkbenchError, match="read the text"):
        _ = view.committed


@pytest.mark.parametrize(
    ("name", "more"),
    [("prompt-lookup", {}), ("draft-model", {"policy": "heuristic"}), ("draft-model", {"verifier": "reflective"})],
)
def test_methods_that_need_the_host_run_in_the_normal_loop(models: Models, name: str, more: dict[str, Any]) -> None:
    request = Request(PROMPT, registry.get(name).with_params(**more), max_new_tokens=20, stop_at_eos=False)
    engine = Engine(models, rounds_late=1)
    assert engine.generate(request).token_ids == Engine(models).generate(request).token_ids
    assert queue_of(engine).n_launched == 0


def test_device_numbers_are_the_hosts() -> None:
    rng = random.Random(1)
    for _ in range(100):
        seed = rng.choice([0, 1, 2**63 + 5, 2**64 - 1, rng.getrandbits(64), -3])
        stream = RandomStream(seed)
        stream.attempt, position, level = rng.choice([0, 1, 2**20]), rng.randrange(10**6), rng.randrange(9)
        purpose, n = rng.choice(list(Purpose)), rng.randrange(1, 40)
        on_device = [torch.tensor([as_signed(x)]) for x in (seed, stream.attempt, position)]
        drawn = device_uniforms(*on_device, purpose, n, level)  # type: ignore[call-arg]
        assert np.array_equal(drawn.numpy(), stream.uniform(position, purpose, n, level))


def test_device_walk_is_the_hosts() -> None:
    rng = random.Random(2)
    for i in range(400):
        n = rng.randrange(14)
        parents = [rng.randrange(-1, node) if node else -1 for node in range(n)]
        accept, uniform = [rng.random() for _ in range(n)], [rng.random() for _ in range(n)]
        expected = walk(parents, accept, [0] * (n + 1), uniform if i % 3 else None)
        found = find_path(
            torch.tensor(parents, dtype=torch.int64), torch.tensor(accept, dtype=torch.float64),
            torch.tensor(uniform, dtype=torch.float64) if i % 3 else None, n + 1,
        )  # fmt: skip
        assert tuple(found.nodes[: int(found.n)].tolist()) == expected.path
        assert found.nodes[int(found.n) :].tolist() == list(range(int(found.n), n + 1))
        assert int(found.last) == (expected.path[-1] if expected.path else -1)
