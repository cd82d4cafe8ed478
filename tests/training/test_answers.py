"""A target's own answers: content, resuming after a stop, and held-out prompts."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from workbench.core.errors import ParameterError
from workbench.engine import Engine, Request
from workbench.methods import registry
from workbench.models.bundle import bundled
from workbench.models.loading import load_models
from workbench.models.pretrained import load_tokenizer
from workbench.training import answers
from workbench.training.answers import (
    RATE,
    TEMPERATURES,
    AnswersOptions,
    check_answers,
    first_turns,
    is_held_out,
    rate_of,
    read_answers,
    write_answers,
)

pytestmark = pytest.mark.skipif("text-target" not in bundled(), reason="needs the bundled models")


def some(out: Path, tokens: int) -> AnswersOptions:
    return AnswersOptions("text-target", out / "none", out, tokens, max_new_tokens=12, per_task=6, rows=3,
                          dtype="float64", threads=1)  # fmt: skip


def test_answers_are_the_targets_own_and_a_stopped_run_resumes(tmp_path: Path) -> None:
    options = some(tmp_path, 60)
    write_answers(options, lambda line: None)
    path = tmp_path / "answers.jsonl"
    first = list(read_answers(path))
    path.write_bytes(path.read_bytes()[:-7])  # as if killed while writing the last line
    before = json.loads((tmp_path / RATE).read_text())
    figures = write_answers(replace(options, tokens=160), lambda line: None)
    rate = json.loads((tmp_path / RATE).read_text())
    assert rate["tokens"] == before["tokens"] + figures["new_tokens"]
    assert rate["seconds"] > before["seconds"] > 0
    assert rate_of(tmp_path) == rate["tokens"] / rate["seconds"]
    found = list(read_answers(path))
    assert found[: len(first) - 1] == first[:-1], "complete answers are kept"
    numbers = [line["n"] for line in found]
    assert len(set(numbers)) == len(numbers)
    assert first[-1] in found, "the truncated answer is generated again, with the same text"
    assert figures["answer_tokens"] == sum(len(line["answer"]) for line in found) >= 160
    prompts = first_turns(options.data, options.per_task, options.seed)
    models = load_models("text-target", None, "cpu", "float64")
    assert {line["temperature"] for line in found} == {0.0, 0.7, 1.0}
    for line in found[:8]:
        chat = [{"role": "user", "content": prompts[line["n"]][1]}]
        assert line["prompt"] == models.tokenizer.apply_chat_template(
            chat, add_generation_prompt=True, return_dict=False
        )
        if line["temperature"] == 0:
            alone = Engine(models).generate(Request(line["prompt"], registry.get("autoregressive"), max_new_tokens=12))
            assert line["answer"] == alone.token_ids
    packed = np.fromfile(tmp_path / "train.bin", dtype=np.uint16).tolist()
    end = models.tokenizer.eos_token_id
    wanted = [[*line["prompt"], *line["answer"]] for line in found if not is_held_out(line["n"])]
    assert packed == [token for ids in wanted for token in (ids if ids[-1] == end else [*ids, end])]


def test_a_prompt_that_is_too_long_is_left_out_and_the_next_one_answered(tmp_path: Path) -> None:
    prompts = first_turns(tmp_path / "none", 6, 0)
    tokenizer = load_tokenizer("text-target")
    lengths = [len(tokenizer.apply_chat_template([{"role": "user", "content": said}], add_generation_prompt=True,
                                                 return_dict=False)) for _, said in prompts]  # fmt: skip
    limit = lengths[0] - 1  # with one sequence, nothing else runs meanwhile
    write_answers(replace(some(tmp_path, 20), rows=1, longest_prompt=limit), lambda line: None)
    found = list(read_answers(tmp_path / "answers.jsonl"))
    assert found
    assert all(len(line["prompt"]) <= limit for line in found)
    assert found[0]["n"] == min((n, i) for i, n in enumerate(lengths) if n <= limit)[1], "the shortest one first"


def test_the_smallest_run_has_training_and_held_out_answers(tmp_path: Path) -> None:
    write_answers(replace(some(tmp_path, 1), per_task=40), lambda line: None)
    held = [is_held_out(line["n"]) for line in read_answers(tmp_path / "answers.jsonl")]
    assert sorted(set(held)) == [False, True]
    assert len(held) < 12, "it does not continue until a prompt number divisible by fifty"
    assert min((tmp_path / name).stat().st_size for name in ("train.bin", "held.bin")) > 0


def test_a_second_folder_starts_after_the_prompts_of_the_first(tmp_path: Path) -> None:
    write_answers(replace(some(tmp_path, 30), after=7), lambda line: None)
    assert min(line["n"] for line in read_answers(tmp_path / "answers.jsonl")) >= 7, (
        "prompt numbers stay the same, so the same prompts are held out"
    )


def test_answers_of_other_settings_are_not_mixed(tmp_path: Path) -> None:
    options = some(tmp_path, 10)
    write_answers(options, lambda line: None)
    before = (tmp_path / "answers.jsonl").read_bytes()
    with pytest.raises(ParameterError, match="max_new_tokens=12"):
        write_answers(replace(options, max_new_tokens=13), lambda line: None)
    more = tmp_path / "none"
    more.mkdir()
    apples(more)
    with pytest.raises(
        ParameterError, match="prompts="
    ):  # another training text gives other prompts for the same numbers
        write_answers(options, lambda line: None)
    assert (tmp_path / "answers.jsonl").read_bytes() == before


def apples(folder: Path) -> list[dict[str, str]]:
    rows = [{"question": f"How many are {i} apples?", "answer": f"{i} #### {i}"} for i in range(20)]
    with gzip.open(folder / "math_gsm8k_train.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return rows


def test_the_first_prompts_contain_every_group(tmp_path: Path) -> None:
    groups = [group for group, _ in first_turns(tmp_path, 5, 0)]
    assert set(groups[:8]) == set(groups)
    assert len(groups) == 40
    assert first_turns(tmp_path, 5, 0) == first_turns(tmp_path, 5, 0) != first_turns(tmp_path, 5, 1)


def test_user_turns_are_read_from_the_training_text(tmp_path: Path) -> None:
    rows = apples(tmp_path)
    found = [text for group, text in first_turns(tmp_path, 0, 0) if group == "maths"]
    assert set(found) <= {row["question"] for row in rows}
    assert len(found) >= 15


def test_answers_of_the_training_text_follow_their_prompts_and_are_marked(tmp_path: Path) -> None:
    rows = {row["question"]: row["answer"] for row in apples(tmp_path)}
    options = replace(some(tmp_path / "given", 1000), data=tmp_path, given=True, per_task=0)
    figures = write_answers(options, lambda line: None)
    lines = list(read_answers(tmp_path / "given" / "answers.jsonl"))
    tokenizer, prompts = load_tokenizer("text-target"), first_turns(tmp_path, 0, 0)
    assert figures["new_tokens"] == sum(len(line["answer"]) for line in lines)
    assert len(lines) > 10
    assert sum(prompts[line["n"]][1] in rows for line in lines) > 10
    for line in lines:
        assert not is_held_out(line["n"]), "held-out answers are the target's own"
        assert line["temperature"] is None
        said = prompts[line["n"]][1]
        if said in rows:
            answer = tokenizer(rows[said].partition(" ####")[0], add_special_tokens=False)["input_ids"]
            assert line["answer"][: len(answer)] == answer[:12]
        assert line["answer"][-1] == tokenizer.eos_token_id or len(line["answer"]) == 12
    check_answers(tmp_path / "given", "text-target", allow_text_answers=True)
    with pytest.raises(ParameterError, match="answers copied from the training data"):
        check_answers(tmp_path / "given", "text-target")
    with pytest.raises(ParameterError, match="was generated with other settings"):
        write_answers(replace(options, given=False), lambda line: None)


def test_held_out_answers_have_every_group_and_temperature() -> None:
    """Groups and temperatures alternate, so every n-th prompt number would contain only some of them."""
    held = [n for n in range(30_000) if is_held_out(n)]
    assert 450 < len(held) < 750
    for turns in (len(TEMPERATURES), 15, 7):
        counts = [sum(n % turns == turn for n in held) for turn in range(turns)]
        assert min(counts) > 0.5 * len(held) / turns


def test_a_second_writer_is_refused_and_the_rate_is_saved_during_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "REPORT_S", 0.0)
    options, seen = some(tmp_path, 60), []

    def second(line: str) -> None:
        if rate_of(tmp_path) is not None and not seen:
            with pytest.raises(ParameterError, match="Another process is writing"):
                write_answers(options, lambda line: None)
            seen.append(json.loads((tmp_path / RATE).read_text()))

    figures = write_answers(options, second)
    assert 0 <= seen[0]["tokens"] < figures["new_tokens"]
    assert write_answers(options, lambda line: None)["new_tokens"] == 0, "the first writer's lock is released"
