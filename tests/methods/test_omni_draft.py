"""Translated drafts: examples by hand, and a copy of the target with other token ids."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import different_vocabulary
import model_helpers
import pytest
import torch
from different_vocabulary import NAME, needs_bundle
from transformers import PreTrainedTokenizerFast

from workbench.core.sampling import SamplingParams
from workbench.engine import Engine, Models, Request, Runner
from workbench.kernels.segment import Segment
from workbench.methods import registry
from workbench.methods.omni_draft.drafter import OmniDraftState, common_prefix_length
from workbench.methods.omni_draft.vocabulary_map import BROKEN, VocabularyMap, token_texts
from workbench.models.loading import load_models
from workbench.models.other_vocabulary import OtherVocabularyDrafter
from workbench.models.pretrained import load_tokenizer

PIECES = ["", "he", "l", "lo", " wor", "ld", "!", "hello wor", "\n\n", ""]
TOKENS = {"hello": 7, "he": 3, "l": 4, " world": 5, " w": 6, "or": 8, "!": 9, "\n\n": 10}
WORDS = VocabularyMap(PIECES, TOKENS, frozenset({0}), 2)


# -- by hand ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "drafted", "apart"),
    [
        ([1, 2, 3, 4], [7], [3, 4]),  # "hello" is complete; " wor" may still become " world" and therefore waits
        ([1, 2, 3, 4, 5, 6], [7, 5], [3, 4]),  # "!" ends the text but could be the first half of "!!"
        ([7, 5, 6], [7, 5], []),  # a token that spells several of the target's tokens is split
        ([6], [9], [9]),  # a draft of one token is better than none
        ([8, 0], [10, 2], [10, 2]),  # nothing follows the end of the text, so that the last token is complete
        ([6, 9, 6], [9], [9]),  # text without target tokens ends the draft
        ([5, 6], [4], []),  # "ld" begins with a token, and no token continues with "d"
        ([0], [2], [2]),
    ],
)
def test_translation_of_drafts_by_hand(said: list[int], drafted: list[int], apart: list[int]) -> None:
    assert WORDS.translate(said, merge=True) == drafted
    assert WORDS.translate(said, merge=False) == apart


@needs_bundle
def test_drafts_are_tokenised_like_the_targets_own_text() -> None:
    """The target would reject other tokenisations; the longest token that fits is not always the correct one."""
    tokenizer = load_tokenizer("text-target")
    pieces = token_texts(tokenizer, len(tokenizer))
    words = VocabularyMap(pieces, {text: i for i, text in enumerate(pieces) if text}, frozenset(), -1, tokenizer)
    before, text = "Say this again, word for word:", " lamp river seven. Replace Anna with Rosa and go home"
    whole = tokenizer(before + text, add_special_tokens=False)["input_ids"]
    behind = whole[len(tokenizer(before, add_special_tokens=False)["input_ids"]) :]
    cut = words.tokenise_after(before, text)
    assert cut is not None
    assert [token for token, _ in cut] == behind
    assert cut[-1][1] == len(text)
    assert words.tokenise_after("hel", "lo there") is None or "hello" not in words.token_of, (
        "merging changes earlier tokens"
    )
    assert words.translate(behind, merge=True, before=before) == behind[: len(behind) - 1]


def test_common_prefix_ends_at_the_first_difference() -> None:
    assert [common_prefix_length([1, 2, 3], other) for other in ([], [1, 2], [1, 4, 3], [1, 2, 3, 4], [9])] == [
        0,
        2,
        1,
        3,
        0,
    ]


@needs_bundle
def test_pieces_are_the_text_that_each_token_adds() -> None:
    tokenizer = load_tokenizer("text-target")
    pieces = token_texts(tokenizer, len(tokenizer))
    assert all(pieces[token] == "" for token in tokenizer.all_special_ids)
    ids = tokenizer("The little fox ran home, and it was late.", add_special_tokens=False)["input_ids"]
    assert "".join(pieces[token] for token in ids) == "The little fox ran home, and it was late."
    assert not any(BROKEN in piece for piece in pieces)
    assert sum(map(bool, pieces)) > 0.9 * len(pieces)


# -- a copy of the target with other token ids -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shuffled_models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return different_vocabulary.shuffled_vocabulary_models(tmp_path_factory.mktemp("renumbered"))


@needs_bundle
def test_copy_with_other_token_ids_is_accepted_completely(shuffled_models: Models) -> None:
    """A wrong cache position, or a token too many or too few, would cause rejections."""
    method = registry.get(NAME).with_params(policy="fixed", depth=4, merge=False)
    trace = Engine(shuffled_models).generate(
        Request("Once upon a time there was a fox", method, max_new_tokens=50, stop_at_eos=False)
    )
    assert trace.footer.error == ""
    plain = Request("Once upon a time there was a fox", registry.get("autoregressive"), max_new_tokens=50,
                    stop_at_eos=False)  # fmt: skip
    assert trace.token_ids == Engine(shuffled_models).generate(plain).token_ids
    assert {len(r.emitted) for r in trace.rounds[:-1]} == {5}
    assert trace.header.drafter == "renumbered"


@needs_bundle
def test_cache_equals_the_committed_text_after_every_round(shuffled_models: Models) -> None:
    """Rejected drafts leave no entries, and tokens with changed boundaries are read again."""
    method = registry.get(NAME).with_params(policy="fixed", depth=4)
    engine = Engine(shuffled_models)
    row = engine.submit(Request("The king", method, SamplingParams(temperature=1.5), 40, seed=3, stop_at_eos=False))
    rewound = 0
    while not engine.is_idle:
        engine.step()
        if row.state.drafter is None or row.trace is None or not row.trace.rounds:
            continue
        state, runner = row.state.drafter, row.state.drafter.draft_model.runner
        rewound += len(row.trace.rounds[-1].emitted) < 5
        text = state.tokenise_committed(row)
        state.catch_up(row)
        assert state.cached_ids == text[:-1]
        logits = runner.forward([Segment(state.slot, torch.tensor(text[-1:]))], last_only=True).logits[0, -1]
        runner.rewind(state.slot, len(text) - 1)
        torch.testing.assert_close(
            logits, model_helpers.chunked_logits(runner, text, [len(text)])[-1], rtol=1e-8, atol=1e-8
        )
    assert rewound > 3


@needs_bundle
@pytest.mark.unchecked
def test_continued_word_is_read_again_with_its_new_tokens(shuffled_models: Models) -> None:
    """Drafted letter by letter for the target, a word may become another token of the drafter's with each letter."""
    letters, writer = (
        model_helpers.byte_tokenizer(),
        OtherVocabularyDrafter(shuffled_models.target, shuffled_models.tokenizer, "words"),
    )
    state = OmniDraftState(writer, VocabularyMap([], {}, frozenset(), -1), [], slot=writer.runner.open())
    cuts = set[int]()
    for text in ("The old kin", "The old kingdo", "The old kingdom w", "The old kingdom was", "The old", "The olive"):
        row = SimpleNamespace(models=SimpleNamespace(tokenizer=letters), committed=letters(text)["input_ids"])
        before = state.ids
        state.catch_up(row)  # pyright: ignore[reportArgumentType]
        assert state.ids == shuffled_models.tokenizer(text)["input_ids"]
        cuts.add(len(before) - 1 - common_prefix_length(before, state.ids))
        logits = writer.runner.forward([Segment(state.slot, torch.tensor(state.ids[-1:]))], last_only=True).logits[
            0, -1
        ]
        writer.runner.rewind(state.slot, len(state.ids) - 1)
        fresh = model_helpers.chunked_logits(writer.runner, state.ids, [len(state.ids)])[-1]
        torch.testing.assert_close(logits, fresh, rtol=1e-8, atol=1e-8)
    writer.runner.close(state.slot)
    assert max(cuts) > 0, "no token before the last one changed"


@needs_bundle
@pytest.mark.parametrize(("merge", "temperature"), [(True, 0.0), (False, 0.0), (True, 0.8)])
def test_untrained_drafter_with_another_vocabulary_changes_no_token(
    merge: bool, temperature: float, shuffled_models: Models
) -> None:
    target = shuffled_models.target
    models = Models(target, shuffled_models.tokenizer, "text-drafter")
    models.other_vocabulary_drafter = OtherVocabularyDrafter(
        Runner(model_helpers.family("llama", vocab_size=257)), model_helpers.byte_tokenizer(), "bytes"
    )
    prompt = "A café in Zürich 🙂"  # characters of several bytes, which a draft may contain incompletely
    for seed in range(3):
        asked = {"max_new_tokens": 30, "seed": seed, "stop_at_eos": False}
        sampling = SamplingParams(temperature=temperature)
        method = registry.get(NAME).with_params(policy="fixed", depth=5, merge=merge)
        trace = Engine(models).generate(Request(prompt, method, sampling, **asked))
        assert trace.footer.error == ""
        assert len(trace.token_ids) == 30
        if not temperature:
            plain = Engine(models).generate(Request(prompt, registry.get("autoregressive"), sampling, **asked))
            assert trace.token_ids == plain.token_ids
        assert sum(len(r.nodes.tokens) for r in trace.rounds) > 10
    assert not models.other_vocabulary_drafter.runner.slots


@needs_bundle
def test_drafter_with_few_positions_stops_drafting_with_a_note(shuffled_models: Models) -> None:
    models = Models(shuffled_models.target, shuffled_models.tokenizer, "text-drafter")
    models.other_vocabulary_drafter = OtherVocabularyDrafter(
        Runner(model_helpers.family("llama", vocab_size=257), 60), model_helpers.byte_tokenizer(), "bytes"
    )
    method = registry.get(NAME).with_params(policy="fixed")
    trace = Engine(models).generate(Request("Once upon a time", method, max_new_tokens=40, stop_at_eos=False))
    assert len(trace.token_ids) == 40
    drafted = [len(r.nodes.tokens) for r in trace.rounds]
    assert sum(drafted[: len(drafted) // 2]) > 0
    assert drafted[-1] == 0
    assert any("bytes has a context of 60 tokens" in str(r.notes) for r in trace.rounds)


@needs_bundle
def test_drafter_switched_during_a_run_drafts_from_then_on(shuffled_models: Models) -> None:
    """Then an ordinary draft model follows: each one prefills the text and releases its slot."""
    target, tokenizer = shuffled_models.target, shuffled_models.tokenizer
    blind = Models(target, tokenizer, "text-drafter", shared=shuffled_models.shared)
    blind.other_vocabulary_drafter = OtherVocabularyDrafter(
        Runner(model_helpers.family("llama", vocab_size=257)), model_helpers.byte_tokenizer(), "bytes"
    )
    own = Models(target, tokenizer, "text-drafter", Runner(target.model), "itself")
    method = registry.get(NAME).with_params(policy="fixed", depth=4, merge=False)
    engine = Engine(shuffled_models)
    asked = {"max_new_tokens": 60, "stop_at_eos": False}
    row = engine.submit(Request("Once upon a time there was a fox", method, models=blind, **asked))
    switches = [(4, shuffled_models), (8, own), (12, blind)]
    while not engine.is_idle:
        engine.step()
        if switches and row.trace is not None and len(row.trace.rounds) == switches[0][0]:
            row.change(models=switches.pop(0)[1])
    assert row.trace is not None
    assert row.trace.footer.error == ""
    changes = [(r.index, c.after) for r in row.trace.rounds for c in r.changes if c.name == "drafter"]
    assert changes == [(4, "renumbered"), (8, "itself"), (12, "bytes")]
    lengths = [len(r.emitted) for r in row.trace.rounds]
    assert lengths[4:12] == [5] * 8
    assert max(lengths[:4] + lengths[12:-1]) < 5
    plain = registry.get("autoregressive")
    alone = Engine(shuffled_models).generate(Request("Once upon a time there was a fox", plain, **asked))
    assert row.trace.token_ids == alone.token_ids
    assert not any(m.draft_model is not None and m.draft_model.slots for m in (blind, shuffled_models, own))


@needs_bundle
def test_prompt_without_a_word_is_drafted_for_once_there_is_one(shuffled_models: Models) -> None:
    end = shuffled_models.tokenizer.eos_token_id
    method = registry.get(NAME).with_params(policy="fixed", depth=4, merge=False)
    trace = Engine(shuffled_models).generate(Request([end], method, max_new_tokens=30, stop_at_eos=False))
    assert trace.footer.error == ""
    assert not any("positions" in str(r.notes) for r in trace.rounds)
    assert sum(len(r.nodes.tokens) for r in trace.rounds) > 10


class Ending:
    """A tokenizer that appends an end token to every text."""

    def __init__(self, inner: PreTrainedTokenizerFast) -> None:
        self._inner = inner

    def __call__(self, text: str, **options: object) -> dict[str, list[int]]:
        return {"input_ids": [*self._inner(text)["input_ids"], self._inner.eos_token_id]}

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


@needs_bundle
def test_end_token_that_a_tokenizer_appends_is_not_read(shuffled_models: Models) -> None:
    assert shuffled_models.other_vocabulary_drafter is not None
    models = Models(shuffled_models.target, shuffled_models.tokenizer, "text-drafter")
    words = VocabularyMap.of(shuffled_models, shuffled_models.other_vocabulary_drafter)
    models.other_vocabulary_drafter = OtherVocabularyDrafter(
        shuffled_models.other_vocabulary_drafter.runner,
        Ending(shuffled_models.other_vocabulary_drafter.tokenizer),
        "ending",
    )
    models.shared["omnidraft", "text-drafter", "ending"] = words, models.other_vocabulary_drafter.tokenizer
    method = registry.get(NAME).with_params(policy="fixed", depth=4, merge=False)
    trace = Engine(models).generate(Request("Once upon a time", method, max_new_tokens=30, stop_at_eos=False))
    assert {len(r.emitted) for r in trace.rounds[:-1]} == {5}


# -- real models ------------------------------------------------------------------------------------------------------


@needs_bundle
def test_only_translating_methods_accept_a_drafter_with_another_vocabulary(tmp_path: Path) -> None:
    model_helpers.family("llama", vocab_size=257).save_pretrained(tmp_path)
    model_helpers.byte_tokenizer().save_pretrained(tmp_path)
    models = load_models("text-target", str(tmp_path), "cpu", "float32")
    assert models.drafter is None
    assert models.other_vocabulary_drafter is not None
    assert models.draft_model is models.other_vocabulary_drafter.runner
    assert not models.unsupported_reason(registry.get(NAME).needs)
    assert "do not share a vocabulary" in models.unsupported_reason(registry.get("draft-model").needs)
    alone = models.with_drafter(None)
    assert alone.draft_model is None
    assert alone.unsupported_reason(registry.get(NAME).needs) == "No draft model was chosen for this target."
    shared = models.with_drafter("text-drafter")
    assert shared.other_vocabulary_drafter is None
    assert not shared.unsupported_reason(registry.get(NAME).needs)
    trace = Engine(models).generate(Request("Once", registry.get(NAME), max_new_tokens=12))
    assert trace.header.drafter == models.draft_model_name
