"""Recorded and replayed forward passes: here on the host, with `-m gpu` as CUDA graphs on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import model_helpers
import pytest
import torch

from workbench.core.errors import WorkbenchError
from workbench.core.sampling import SamplingParams
from workbench.engine import Engine, Models, Request
from workbench.kernels import forward_replay
from workbench.kernels.cuda_graphs import CudaGraphRecorder
from workbench.kernels.forward_replay import Recorder, ReplayCache
from workbench.kernels.no_synchronisation import NoSyncMode
from workbench.kernels.segment import Output, Segment, Slot
from workbench.methods import registry
from workbench.models.runner import Runner

PROMPT = [3, 17, 4, 3, 17, 4, 9, 22, 5, 3, 17]
METHODS = {
    "autoregressive": {}, "draft-model": {"depth": 3}, "draft-tree": {"nodes": 6}, "draft-tree-sampled": {},
    "prompt-lookup": {}, "token-recycling": {}, "early-exit": {}, "del": {}, "swift": {}, "medusa": {}, "eagle": {},
    "jacobi": {},
}  # fmt: skip


OFTEN = ("autoregressive", "draft-model", "draft-tree-sampled", "early-exit", "medusa", "eagle")
"""Methods tested in each run, one per kind of forward pass. The others are tested on demand."""


class Rerun:
    """Runs the same work again on the same tensors and window, with results in the same memory, as a graph does.

    The test fails on changes that a graph cannot notice: moved weights or cache buffers.
    """

    def __init__(self, runner: Runner) -> None:
        self.runner, self.forgotten = runner, 0

    def _places(self) -> list[int]:
        stacks = [stack.data_ptr() for stack in self.runner.cache._stacks]
        return stacks + [weight.data_ptr() for weight in self.runner.model.parameters()]

    def __call__(self, work: Callable[[], Output]) -> tuple[Output, Callable[[], None]]:
        cache = self.runner.cache
        with NoSyncMode("cpu"):
            made, window, places = work(), cache.window, self._places()

        def play() -> None:
            assert self._places() == places, "it would read released memory"
            now, cache.window = cache.window, window
            new = work()
            cache.window = now
            made.logits.copy_(new.logits)
            made.hidden.copy_(new.hidden)
            for layer, tap in new.layer_states.items():
                made.layer_states[layer].copy_(tap)

        return made, play

    def reset(self) -> None:
        self.forgotten += 1


def recorder(runner: Runner) -> Recorder:
    return Rerun(runner) if runner.device.type == "cpu" else CudaGraphRecorder(runner.device)


def make_request(n: int, name: str = "autoregressive", **options: Any) -> Request:
    return Request(PROMPT, registry.get(name), max_new_tokens=n, **options)


def records(runner: Runner, by: Recorder) -> ReplayCache:
    """Let a runner record, as runners on a GPU do."""
    runner._lean, runner.geometry.is_length_rounded = None, True
    runner.replays = made = ReplayCache(by)
    return made


@pytest.fixture
def heads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("heads")


def make_models(heads: Path, device: str, kind: str = "llama", **overrides: Any) -> Models:
    made = model_helpers.make_models(kind, noise=0.15, device=device, heads=heads, **overrides)
    assert made.drafter is not None
    for runner in (made.target, made.drafter):
        records(runner, recorder(runner))
    return made


@pytest.fixture
def models(device: str, heads: Path) -> Models:
    return make_models(heads, device)


def counting(runner: Runner) -> tuple[ReplayCache, list[int]]:
    """Let a runner record, and count replays."""
    by, played = recorder(runner), list[int]()

    class Counting:
        def __call__(self, work: Callable[[], Output]) -> tuple[Output, Callable[[], None]]:
            made, play = by(work)

            def counted() -> None:
                played.append(0)
                play()

            return made, counted

        def reset(self) -> None:
            by.reset()

    return records(runner, Counting()), played


def forward(runner: Runner, slot: Slot, tokens: list[int], keep: bool = False) -> torch.Tensor:
    out = runner.forward([Segment(slot, torch.tensor(tokens, device=runner.device))])
    runner.commit(slot, range(len(tokens))) if keep else runner.rewind(slot, slot.length)
    return out.logits[0]


@pytest.mark.parametrize("name", model_helpers.mark_on_demand_unless(OFTEN, METHODS))
def test_text_equals_hugging_faces_and_most_passes_are_replayed(name: str, models: Models) -> None:
    target, played = counting(models.target)
    wanted = model_helpers.hf_greedy(models.target.model, PROMPT, 48)
    method = registry.get(name).with_params(**METHODS[name])
    engine = Engine(models)
    for _ in range(2):  # the second run starts with the records of the first
        trace = engine.generate(Request(PROMPT, method, max_new_tokens=48))
        assert trace.token_ids == wanted
        assert not target.why_not
    assert len(played) > len(trace.rounds) / 2
    assert 0 < len(target) <= len(played)
    assert target.n_bytes > 0


@pytest.mark.parametrize("kind", ["gpt2", "gemma3_text", "mistral", "qwen3_moe"])
@pytest.mark.parametrize(
    "name", model_helpers.mark_on_demand_unless(("draft-tree",), ["draft-tree", "lookahead", "early-exit"])
)
def test_text_equals_hugging_faces_for_every_kind_of_model(kind: str, name: str, heads: Path, device: str) -> None:
    """Learned positions; a mask per kind of layer; windows; experts, for which some passes synchronise."""
    models = make_models(heads, device, kind)
    wanted = model_helpers.hf_greedy(models.target.model, PROMPT, 40)
    engine = Engine(models)
    for _ in range(2):
        assert engine.generate(make_request(40, name)).token_ids == wanted
    assert models.target.replays is not None
    assert bool(models.target.replays) != bool(models.target.replays.why_not)
    assert kind == "qwen3_moe" or models.target.replays


@pytest.mark.parametrize("n", [1, 3])
def test_logits_equal_those_of_one_pass_over_the_text(n: int, heads: Path, device: str) -> None:
    """Each pass, replayed or not, reads the entries of all passes before it."""
    models = make_models(heads, device, max_position_embeddings=1024)
    target, slot, text = models.target, models.target.open(), model_helpers.random_prompt(630, seed=4)
    whole = target.model(torch.tensor([text], device=target.device), use_cache=False).logits[0]
    replays, played = counting(target)
    found = [forward(target, slot, text[at : at + n], keep=True) for at in range(0, len(text), n)]
    assert len({key[-1] for key in replays._records}) == 5, "128, 256, 384, 512 and 1,024 entries are read"
    assert len(played) > len(text) / n - 20
    assert torch.allclose(torch.cat(found), whole, atol=1e-9)
    target.close(slot)


def test_single_and_batched_sequences_have_separate_records(models: Models) -> None:
    """Passes of two sequences alternate; then one runs beside the other, with an inactive sequence between them."""
    target, texts = models.target, [model_helpers.random_prompt(48, seed=seed) for seed in (1, 2, 3)]
    whole = [target.model(torch.tensor([text], device=target.device), use_cache=False).logits[0] for text in texts]
    slots = [target.open() for _ in texts]
    replays, played = counting(target)
    found: list[list[torch.Tensor]] = [[], [], []]
    for at in range(20):
        for slot, text, logits in zip(slots, texts, found, strict=True):
            logits.append(forward(target, slot, [text[at]], keep=True))
    assert len(replays) == 3
    found[2] += [forward(target, slots[2], [texts[2][at]], keep=True) for at in range(20, 25)]
    n_played = len(played)
    for _ in range(20):
        two = [(i, slots[i], texts[i][slots[i].length]) for i in (0, 2)]
        pieces = [Segment(slot, torch.tensor([token], device=target.device)) for _, slot, token in two]
        for (i, slot, _), mine in zip(two, target.forward(pieces).logits, strict=True):
            found[i].append(mine)
            target.commit(slot, [0])
    assert len(replays) == 4
    assert len(played) > n_played + 15
    for i, logits in enumerate(found):
        assert torch.allclose(torch.cat(logits), whole[i][: len(logits)], atol=1e-9), i
    for slot in slots:
        target.close(slot)


def test_sampled_text_is_the_same_without_replay(models: Models) -> None:
    sampled = make_request(32, "draft-model", sampling=SamplingParams(temperature=1.0), seed=3)
    played = Engine(models).generate(sampled).token_ids
    assert models.target.replays
    assert models.drafter is not None
    assert models.drafter.replays
    models.target.replays = models.drafter.replays = None
    assert Engine(models).generate(sampled).token_ids == played


@pytest.mark.parametrize("name", ["draft-model", "draft-tree", "token-recycling"])
def test_batched_sequences_and_reused_slots(name: str, models: Models) -> None:
    wanted = [model_helpers.hf_greedy(models.target.model, PROMPT[:n], 40) for n in (5, 9)]
    engine = Engine(models)
    rows = [engine.submit(Request(PROMPT[:n], registry.get(name), max_new_tokens=40)) for n in (5, 9)]
    replays = models.target.replays
    assert replays is not None
    while not engine.is_idle and not any(key[3] - key[2] == 2 for key in replays._records):
        engine.step()
    assert not engine.is_idle
    rows[0].cancel()
    while not engine.is_idle:
        engine.step()
    assert rows[1].trace is not None
    assert rows[1].trace.token_ids == wanted[1]
    assert models.target.replays


def test_results_of_a_pass_are_not_overwritten_by_the_next(models: Models) -> None:
    target, slot = models.target, models.target.open()
    target.prefill(slot, PROMPT)
    found = []
    for token in (3, 3, 5, 7):  # plain, recorded, replayed, replayed
        out = target.forward([Segment(slot, torch.tensor([token], device=target.device))], capture_layers={0})
        found.append((out, out.logits.clone(), out.hidden.clone(), out.layer_states[0].clone()))
        target.rewind(slot, len(PROMPT))
    assert target.replays
    for out, logits, hidden, tap in found:
        assert torch.equal(out.logits, logits)
        assert torch.equal(out.hidden, hidden)
        assert torch.equal(out.layer_states[0], tap)
    assert torch.allclose(found[0][1], found[1][1], atol=1e-12)
    assert not torch.equal(found[2][1], found[3][1])
    target.close(slot)


# -- unsupported cases -------------------------------------------------------------------------------------------------


class WrongReplay(Rerun):
    """Replays wrong results: everywhere, or only at other positions than the recorded one."""

    def __init__(self, runner: Runner, elsewhere: bool) -> None:
        super().__init__(runner)
        self.elsewhere = elsewhere

    def __call__(self, work: Callable[[], Output]) -> tuple[Output, Callable[[], None]]:
        made, play = super().__call__(work)
        place = self.runner.slots[0].length

        def wrongly() -> None:
            play()
            if not self.elsewhere or self.runner.slots[0].length != place:
                made.logits.mul_(1.01)

        return made, wrongly


class Raises(Rerun):
    """Recording raises an error, the first times or always."""

    def __init__(self, runner: Runner, error: BaseException, times: int = 10**9) -> None:
        super().__init__(runner)
        self.error, self.left, self.asked = error, times, 0

    def __call__(self, work: Callable[[], Output]) -> tuple[Output, Callable[[], None]]:
        self.asked += 1
        self.left -= 1
        if self.left >= 0:
            raise self.error
        return super().__call__(work)


WAITS = "CUDA error: operation not permitted when stream is capturing"


@pytest.mark.parametrize("how", ["wrong", "elsewhere", "waits"])
def test_pass_that_cannot_be_recorded_runs_normally(how: str, models: Models, caplog: pytest.LogCaptureFixture) -> None:
    runner = models.target
    by = (
        Raises(runner, RuntimeError(f"{WAITS}\nmore of it"))
        if how == "waits"
        else WrongReplay(runner, how == "elsewhere")
    )
    target = records(runner, by)
    wanted = model_helpers.hf_greedy(runner.model, PROMPT, 24)
    why = WAITS if how == "waits" else "the replay's logits differ by 1.0e-02"
    assert Engine(models).generate(make_request(24)).token_ids == wanted
    assert target.why_not == why
    assert len(target) == 0
    assert by.forgotten
    assert caplog.messages.count(f"Forward passes are launched kernel by kernel, without CUDA graphs: {why}") == 1, (
        "recording is tried once"
    )


def test_recording_is_tried_again_after_running_out_of_memory(models: Models) -> None:
    by = Raises(models.target, torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB"), times=1)
    target = records(models.target, by)
    slot = models.target.open()
    for n in range(forward_replay.AGAIN):
        forward(models.target, slot, [1] * (1 + n % 3))
        assert by.asked == (n > 2), "no shape is recorded without memory"
    assert not target
    assert not target.why_not
    for n in range(2 * 3 + 3):
        forward(models.target, slot, [1] * (1 + n % 3))
    assert len(target) == 3
    models.target.close(slot)


def test_nan_logits_do_not_stop_recording(models: Models) -> None:
    target = models.target
    embed: Any = target.embed
    embed.weight.data[5] = torch.nan
    slot, replays = target.open(), target.replays
    assert replays is not None
    for _ in range(3):
        assert forward(target, slot, [5]).isnan().all()
    assert (len(replays), replays.why_not) == (0, "")
    good = [forward(target, slot, [3]) for _ in range(3)]
    assert torch.equal(good[0], good[2])
    assert len(replays) == 1
    target.prefill(slot, [3])
    (record,) = replays._records.values()
    assert forward(target, slot, [5]).isnan().all(), "at the first other position"
    assert (len(replays), replays.why_not, record.checks_left) == (1, "", 1)
    forward(target, slot, [3])
    assert (len(replays), replays.why_not, record.checks_left) == (1, "", 0)
    target.close(slot)


def test_other_errors_are_raised(models: Models) -> None:
    records(models.target, Raises(models.target, ZeroDivisionError("of the recorder")))
    with pytest.raises((ZeroDivisionError, WorkbenchError), match="of the recorder"):
        Engine(models).generate(make_request(24))


@pytest.mark.parametrize("what", ["weights", "buffers of the cache", "attention", "training"])
def test_records_are_dropped_when_the_model_changes(what: str, models: Models) -> None:
    target, replays = models.target, models.target.replays
    assert replays is not None
    engine, plain = Engine(models), make_request(24)
    before = [engine.generate(plain).token_ids for _ in range(3)]
    kept = list(replays._records.values())
    assert kept
    if what == "weights":
        head = target.model.get_output_embeddings()
        head.weight.data = head.weight.data.roll(1, 0)  # elsewhere every token gets its neighbour's embedding
    elif what == "attention":
        target.model.config._attn_implementation = "eager"
    elif what == "training":
        target.model.train()
    else:
        target.cache.grow(target.cache.n_rows + 1)
    slot = target.open()
    assert len(replays) == 0
    target.close(slot)
    after = engine.generate(plain).token_ids
    assert after == model_helpers.hf_greedy(target.model, PROMPT, 24)
    assert (after != before[0]) is (what == "weights")
    assert replays
    assert not replays.why_not
    assert not any(old is new for old in kept for new in replays._records.values())


def test_least_recently_replayed_records_are_evicted(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward_replay, "MOST_RECORDS", 2)
    target, slot = models.target, models.target.open()
    replays = target.replays
    assert replays is not None

    def kept() -> list[int]:
        return [key[1] for key in replays._records]

    for n in (1, 1, 2, 2, 1, 3, 3):
        forward(target, slot, [1] * n)
    assert kept() == [1, 3]
    for _ in range(forward_replay.AGAIN):
        forward(target, slot, [1, 1])
        assert kept() == [1, 3]
    forward(target, slot, [1, 1])
    assert kept() == [3, 2]
    for _ in range(3):
        forward(target, slot, [1] * (forward_replay.MOST_TOKENS + 1))
    assert len(replays) == 2, "long passes are not recorded"
    monkeypatch.setattr(forward_replay, "MOST_BYTES", replays.n_bytes)
    for _ in range(2):
        forward(target, slot, [1] * 4)
    assert kept() == [4] or replays.n_bytes <= forward_replay.MOST_BYTES
    assert kept()[-1] == 4
    ids, made = torch.zeros(1, 1, dtype=torch.long), Output(torch.zeros(1, 1, 2), torch.zeros(1, 1, 2))
    for kind in range(100):  # or as sets of skipped layers, each once
        replays(kind, lambda *_: made, target.cache, ids, ids, ids)
    assert len(replays._seen) == forward_replay.MOST_RECORDS * forward_replay.AGAIN
    target.close(slot)


# -- synchronising work ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("work", "says"),
    [
        (lambda x: x.sum().item(), "item|_local_scalar_dense"),
        (lambda x: bool(x.sum() > 0), "is_nonzero|_local_scalar"),
        (lambda x: x.nonzero(), "nonzero"), (lambda x: x[x > 1], "index by a mask|nonzero"),
        (lambda x: torch.unique(x), "unique"), (lambda x: x.masked_select(x > 1), "masked_select"),
        (lambda x: torch.repeat_interleave(x.long()), "repeat_interleave"), (lambda x: torch.equal(x, x), "equal"),
    ],
)  # fmt: skip
def test_host_synchronisation_is_detected(work: Callable[[torch.Tensor], Any], says: str) -> None:
    x = torch.arange(6.0)
    work(x)
    with torch.inference_mode(), pytest.raises(RuntimeError, match=says), NoSyncMode("cpu"):
        work(x)
    with NoSyncMode("cuda"):
        work(x)


def test_work_without_synchronisation_runs() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    with torch.inference_mode(), NoSyncMode("cpu"):
        y = x[torch.tensor([1, 0])] @ x.T
        y[torch.tensor([0]), :] = 0
        z = y.softmax(-1).argmax(-1)
    assert z.shape == (2,)
