"""A target's own answers to training prompts, written by the workbench's batched engine.

Drafters learn what their *target* says: this text is the first thing that recipes for a real model need. Prompts are
the user turns of the public training text and of the generators' copying, editing and code tasks, group by group in
turn; half of the answers are greedy, the others sampled at 0.7 and 1. One line of JSON an answer, appended as it ends:
whoever is stopped goes on where it was, and nothing is written twice.

With `given` the answers are those of the public text itself. They are not the target's own words, and cost no decoding:
a drafter that has too few answers to learn a language from reads them beside the target's.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout

from workbench.core.errors import ParameterError
from workbench.core.sampling import SamplingParams
from workbench.engine import Engine, Request
from workbench.engine.datastore import dtype_of
from workbench.engine.request import ENDED, Row
from workbench.methods import registry
from workbench.models.chat_markers import ASSISTANT, END, USER
from workbench.models.loading import Models, load_models
from workbench.models.local_models import named
from workbench.trace.files import write_whole
from workbench.training.clock import RunClock
from workbench.training.corpus import DEFAULT_DATA, row_held_out
from workbench.training.generators import TASKS
from workbench.training.loop import Report
from workbench.training.sources import SOURCES

TEMPERATURES = (0.0, 0.7, 0.0, 1.0)
"""Of the prompts in turn."""
EDITING = ("copy", "repeat", "replace", "quote", "summary", "json", "extract", "code")
ALIKE = 192
"""Prompts among which those of one length are answered together."""
ANSWERS = "answers.jsonl"
HELD_EVERY = 50
"""One prompt in so many is kept for measuring: its answer is written, but to the held-out file. See `is_held`."""
FIRST_HELD = 4
"""Of these prompts so many are answered before all others."""
REPORT_S = 10.0
RATE = "rate.json"
"""Beside the answers: {"tokens", "seconds"} of all runs that wrote them, for the cards of what is trained on them."""


@dataclass
class AnswersOptions:
    """Options of the `answers` recipe.

    Attributes:
        target: Name or folder of the target.
        data: Folder with the public training text; missing files are skipped.
        out: Folder of the answers: `answers.jsonl`, and `train.bin` and `held.bin`, packed from it.
        tokens: Answer tokens after which it ends.
        minutes: Or after so long; none: no limit.
        after: Prompts left out from the beginning of their list: those that an earlier run has had.
        max_new_tokens: Longest answer.
        longest_prompt: Prompts of more tokens are left out.
        per_task: Prompts of each of the generators' tasks.
        rows: Answers written at once.
        dtype: Number format of the target; "auto" is that in which it runs fastest here.
        seed: Order of the prompts, and every random number.
        threads: CPU threads.
        device: Where the target answers: cpu, cuda, cuda:1 …; auto takes a GPU where there is one.
        given: Take the answers that the public text gives, in place of the target's own. Prompts that are kept for
            measuring are left out.
    """

    target: str = "smollm2"
    data: Path = DEFAULT_DATA
    out: Path = Path(".cache/train/answers")
    tokens: int = 2_000_000
    minutes: float | None = None
    after: int = 0
    max_new_tokens: int = 256
    longest_prompt: int = 640
    per_task: int = 400
    rows: int = 16
    dtype: str = "auto"
    seed: int = 0
    threads: int = 2
    device: str = "auto"
    given: bool = False


def is_held(n: int) -> bool:
    """Whether the n-th prompt is kept for measuring, by a hash: groups and temperatures follow from n itself."""
    return int.from_bytes(hashlib.sha256(f"held/{n}".encode()).digest()[:4], "big") % HELD_EVERY == 0


def first_turns(data: Path, per_task: int, seed: int) -> list[tuple[str, str]]:
    """(group, what the user says) of all training prompts, in the order in which they are answered.

    Groups take turns, so that any beginning of the list holds all of them. Held-out rows are not among them.
    """
    return [(group, said) for group, said, _ in _exchanges(data, per_task, seed)]


def _exchanges(data: Path, per_task: int, seed: int) -> list[tuple[str, str, str]]:
    """`first_turns`, with the first answer that the text gives to each."""
    groups: dict[str, dict[str, str]] = {}
    for source in SOURCES:
        for row in source.rows(data):
            for document in () if row_held_out(row) else source.documents(row):
                said = document.removeprefix(USER).partition(ASSISTANT)
                if document.startswith(USER) and said[1]:
                    answer = said[2].partition(END)[0].strip()
                    groups.setdefault(source.group, {})[said[0].strip()] = answer
    for name in EDITING:
        own = islice(TASKS[name].stream(seed, held_out=False), per_task)
        groups.setdefault(f"own {name}", {}).update({instance.prompt: instance.answer for instance in own})
    orders = []
    for group, texts in sorted(groups.items()):
        order = list(texts)
        random.Random(f"answers/{group}/{seed}").shuffle(order)
        orders.append([(group, said, texts[said]) for said in order])
    longest = max(map(len, orders), default=0)
    return [order[i] for i in range(longest) for order in orders if i < len(order)]


def write_answers(options: AnswersOptions, report: Report) -> dict[str, Any]:
    """Write answers until there are enough, pack them, and return the figures.

    Raises:
        ParameterError: the folder holds answers made with other options or to other prompts, or another process is
            writing there.
    """
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(options.out / ".lock", timeout=0):
            return _write(options, report)
    except Timeout:
        raise ParameterError(
            f"Another process is writing answers into {options.out}.", "Wait until it is done, or give another out."
        ) from None


def _write(options: AnswersOptions, report: Report) -> dict[str, Any]:
    torch.set_num_threads(options.threads)
    path = options.out / ANSWERS
    models = load_models(options.target, None, options.device, options.dtype)
    tokenizer, engine = models.tokenizer, Engine(models, max_rows=options.rows, record=False)
    exchanges = _exchanges(options.data, options.per_task, options.seed)
    prompts = [(group, said) for group, said, _ in exchanges]
    done, written = _begun(path, options, prompts)
    report(f"answers: {len(prompts):,} prompts, {len(done):,} of them answered with {written:,} tokens")
    turns = [(i, said) for i, (_, said) in enumerate(prompts) if i >= options.after and i not in done]
    first = [] if any(map(is_held, done)) else _first_held(turns, tokenizer, options.longest_prompt)
    early = {i for i, _ in first}
    rest = _askable([turn for turn in turns if turn[0] not in early], tokenizer, options.longest_prompt)
    waiting = chain(first, rest)
    if options.given:
        return _write_given(options, exchanges, waiting, models, written)
    running: list[tuple[int, Row]] = []
    kinds = {is_held(n) for n in done}
    clock, new, told = RunClock(options.minutes or float("inf")), 0, 0.0
    noted = Rate(options.out / RATE)
    method = registry.get("autoregressive")
    with path.open("a", encoding="utf-8") as file:
        while (written + new < options.tokens or (first and len(kinds) < 2)) and clock.progress(0) < 1.0:
            for i, ids in islice(waiting, max(0, options.rows - len(running))):
                sampling = SamplingParams(temperature=TEMPERATURES[i % len(TEMPERATURES)])
                request = Request(ids, method, sampling, options.max_new_tokens, options.seed + i)
                running.append((i, engine.submit(request)))
            if not running:
                break
            engine.step()
            for i, row in [item for item in running if item[1].status in ENDED]:
                asked, answer = row.committed[: row.prompt_length], row.committed[row.prompt_length :]
                line = {"n": i, "group": prompts[i][0], "temperature": row.sampling.temperature}
                line |= {"prompt": asked, "answer": answer}
                file.write(json.dumps(line) + "\n")
                new += len(answer)
                kinds.add(is_held(i))
            file.flush()
            running = [item for item in running if item[1].status not in ENDED]
            if clock.seconds - told > REPORT_S:
                told = clock.seconds
                report(f"answers: {written + new:,} tokens · {new / clock.seconds:,.0f}/s")
                noted.now(new, clock.seconds)
    noted.now(new, clock.seconds)
    packed = pack(options.out, tokenizer.eos_token_id, models.target.vocab_size)
    return {"new_tokens": new, "seconds": round(clock.seconds, 1)} | packed


def _write_given(
    options: AnswersOptions,
    exchanges: Sequence[tuple[str, str, str]],
    waiting: Iterator[tuple[int, list[int]]],
    models: Models,
    written: int,
) -> dict[str, Any]:
    """Write the text's own answers to the prompts that wait, as many tokens as are asked for; returns the figures."""
    clock, new, tokenizer = RunClock(options.minutes or float("inf")), 0, models.tokenizer
    with (options.out / ANSWERS).open("a", encoding="utf-8") as file:
        for i, asked in waiting:
            if written + new >= options.tokens or clock.progress(0) >= 1.0:
                break
            group, _, given = exchanges[i]
            if is_held(i) or not given:
                continue
            answer = [*tokenizer(given, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
            answer = answer[: options.max_new_tokens]
            line = {"n": i, "group": group, "temperature": None, "prompt": asked, "answer": answer}
            file.write(json.dumps(line) + "\n")
            new += len(answer)
    packed = pack(options.out, models.tokenizer.eos_token_id, models.target.vocab_size)
    return {"new_tokens": new, "seconds": round(clock.seconds, 1)} | packed


def rate_of(folder: Path) -> float | None:
    """Answer tokens a second at which the answers of a folder were written; None where nobody noted it."""
    try:
        said = json.loads((folder / RATE).read_text(encoding="utf-8"))
        return said["tokens"] / said["seconds"]
    except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError):
        return None


class Rate:
    """The figures of all runs that wrote answers; noted as one goes on, for whoever is killed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._before = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            self._before = {"tokens": 0, "seconds": 0.0}

    def now(self, tokens: int, seconds: float) -> None:
        """What this run has come to."""
        said = {"tokens": self._before["tokens"] + tokens, "seconds": round(self._before["seconds"] + seconds, 3)}
        write_whole(self._path, (json.dumps(said) + "\n").encode())


def encode_turn(tokenizer: Any, said: str) -> list[int]:
    """Return a user's message in the target's chat format, where it has one; a base model continues the message."""
    if not getattr(tokenizer, "chat_template", None):
        return [int(token) for token in tokenizer(said)["input_ids"]]
    chat = [{"role": "user", "content": said}]
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    return [int(token) for token in ids]


def _first_held(turns: Sequence[tuple[int, str]], tokenizer: Any, longest: int) -> list[tuple[int, list[int]]]:
    """The first `FIRST_HELD` of the prompts that are kept for measuring, as `_askable` gives them.

    They are answered before all others: the fewest answers are some to learn from and some to measure with.
    """
    held = ((i, encode_turn(tokenizer, said)) for i, said in turns if is_held(i))
    return list(islice((item for item in held if len(item[1]) <= longest), FIRST_HELD))


def _askable(turns: Sequence[tuple[int, str]], tokenizer: Any, longest: int) -> Iterator[tuple[int, list[int]]]:
    """(number, token ids) of the prompts that are not too long.

    A few rows' worth at a time come in order of length: rows of one length waste no attention on each other's padding.
    """
    left = ((i, encode_turn(tokenizer, said)) for i, said in turns)
    while some := list(islice(left, ALIKE)):
        yield from sorted((item for item in some if len(item[1]) <= longest), key=lambda item: len(item[1]))


def check_whose(folder: Path, target: str, given: bool = False) -> str:
    """That a folder has answers, and of this target: what another model says is not what this one would.

    Args:
        folder: of the answers.
        target: whose they have to be.
        given: whether the public text's own answers will do.

    Returns:
        A hash of the prompts that are answered: by their numbers the same are meant where it is the same.

    Raises:
        ParameterError: it has none, or another's, or the text's own where they will not do.
    """
    path = folder / ANSWERS
    if not path.exists():
        raise ParameterError(f"There are no answers in {folder}.", "Write them first: workbench train answers.")
    with path.open(encoding="utf-8") as file:
        first = json.loads(file.readline() or "{}")
    whose = str(first.get("target"))
    if named(whose) != named(target):
        raise ParameterError(
            f"{folder} holds answers of {whose}, not of {target}.",
            f"Give target={whose}, or have {target} write answers into another folder.",
        )
    if first.get("given") and not given:
        raise ParameterError(
            f"{folder} holds answers that the training text gives, not what {target} says.",
            "Have it write its own into another folder: workbench train answers, without given.",
        )
    return str(first.get("prompts", ""))


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The answers of a file, the line of its options left out; a line that was cut off ends it."""
    with path.open(encoding="utf-8") as file:
        for line in islice(file, 1, None):
            if not line.endswith("\n"):
                return
            yield json.loads(line)


def token_dtype(vocabulary: int) -> np.dtype:
    """Of token ids on disk: uint16, and uint32 of a vocabulary that is too large for it."""
    return dtype_of(vocabulary).newbyteorder("<")


def pack(folder: Path, end: int, vocabulary: int) -> dict[str, Any]:
    """Write `train.bin` and `held.bin` (prompt and answer, one behind the other, of `token_dtype`) from the answers.

    Args:
        folder: of `answers.jsonl`.
        end: the token between two texts, where an answer was cut off before it.
        vocabulary: the target's tokens in number.
    """
    parts: dict[str, list[int]] = {"train": [], "held": []}
    count, groups = 0, dict[str, int]()
    for line in read(folder / ANSWERS):
        ids = line["prompt"] + line["answer"]
        parts["held" if is_held(line["n"]) else "train"] += ids if ids[-1] == end else [*ids, end]
        count += len(line["answer"])
        groups[line["group"]] = groups.get(line["group"], 0) + len(line["answer"])
    for name, ids in parts.items():
        np.asarray(ids, dtype=token_dtype(vocabulary)).tofile(folder / f"{name}.bin")
    return {"answer_tokens": count, "groups": groups} | {f"{name}_tokens": len(ids) for name, ids in parts.items()}


def _begun(path: Path, options: AnswersOptions, prompts: Sequence[tuple[str, str]]) -> tuple[set[int], int]:
    """Which prompts the file answers already, and with how many tokens; a new file gets its first line."""
    fixed = ("target", "max_new_tokens", "longest_prompt", "per_task", "seed", "dtype")
    settings = {name: value for name, value in asdict(options).items() if name in fixed}
    settings |= {"given": True} if options.given else {}
    settings["prompts"] = hashlib.sha256(json.dumps(prompts).encode()).hexdigest()  # their numbers are their places
    if not path.exists():
        path.write_text(json.dumps(settings) + "\n", encoding="utf-8")
        return set(), 0
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]  # a line that was being written when it was stopped is written again
    if len(whole) < len(data):
        with path.open("r+b") as file:
            file.truncate(len(whole))
    before = json.loads(whole.partition(b"\n")[0] or b"{}")
    if before != settings:
        changed = ", ".join(f"{name}={before.get(name)}" for name in settings if before.get(name) != settings[name])
        raise ParameterError(f"{path} was made with {changed}.", "Give the same again to go on, or another out.")
    lines = list(read(path))
    return {line["n"] for line in lines}, sum(len(line["answer"]) for line in lines)
