"""Public prompt suites, such as Spec-Bench and HumanEval, read from the user's files; the repository has none of them.

Each suite is described by its file name, the conversion of a row into a prompt, and the file's source. The prompts are
those of Spec-Bench and of the data sets' own papers, without few-shot examples.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.bench import workloads
from workbench.bench.prompts import BenchPrompt, load_prompts
from workbench.bench.verifiable_problems import all_problems
from workbench.core.errors import PromptError, UnknownNameError
from workbench.trace.files import read_regular

Row = dict[str, Any]

MT_BENCH = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
"""Categories of MT-bench's questions. Spec-Bench counts them as one of its six categories, `mt_bench`."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """A file of questions of a public data set.

    Attributes:
        file: name of the file in the folder, without `.gz`.
        read: function (row, number of the row from 1) → prompt. Error messages quote the example row in its docstring,
            the text after "such as".
        source: repository and path where the file is available.
        licence: licence of the file.
    """

    file: str
    read: Callable[[Row, int], BenchPrompt]
    source: str
    licence: str


def _spec_bench(row: Row, number: int) -> BenchPrompt:
    """Return the prompt of a Spec-Bench row such as {"question_id": 81, "category": "writing", "turns": ["…", "…"]}."""
    group = "mt_bench" if row["category"] in MT_BENCH else row["category"]
    return _question(row, group)


def _mt_bench(row: Row, number: int) -> BenchPrompt:
    """Convert a row of MT-bench to a prompt, with the row's category as the group.

    A row is an object such as {"question_id": 81, "category": "writing", "turns": ["…", "…"]}.
    """
    return _question(row, row["category"])


def _question(row: Row, group: str) -> BenchPrompt:
    first, *rest = (str(turn) for turn in row["turns"])
    number = int(row["question_id"])
    return BenchPrompt(f"q{number}", first, group, True, tuple(rest), question=number, category=str(row["category"]))


def _human_eval(row: Row, number: int) -> BenchPrompt:
    """Return the prompt of a HumanEval row such as {"task_id": "HumanEval/0", "prompt": "def has_close_elements(…"}."""
    return BenchPrompt(row["task_id"], row["prompt"], "humaneval", chat=False, question=number)


def _gsm8k(row: Row, number: int) -> BenchPrompt:
    """Return the prompt of a GSM8K row such as {"question": "Janet’s ducks lay 16 eggs …", "answer": "… #### 18"}."""
    return BenchPrompt(f"gsm8k-{number}", row["question"], "gsm8k", chat=True, question=number)


def _mbpp(row: Row, number: int) -> BenchPrompt:
    """Return the MBPP paper's prompt for a row such as {"text": "Write a …", "test_list": ["assert min_cost(…", …]}."""
    tests = "\n".join(row["test_list"])
    task = f"You are an expert Python programmer, and here is your task: {row['text']}"
    text = f"{task} Your code should pass these tests:\n\n{tests}"
    return BenchPrompt(f"mbpp-{row['task_id']}", text, "mbpp", chat=True, question=int(row["task_id"]))


DATASETS = {
    "spec-bench": Dataset(
        "spec_bench.jsonl", _spec_bench, "github.com/hemingkx/Spec-Bench, data/spec_bench/question.jsonl", "Apache-2.0"
    ),
    "mt-bench": Dataset(
        "mt_bench.jsonl", _mt_bench, "github.com/lm-sys/FastChat, fastchat/llm_judge/data/mt_bench/question.jsonl",
        "Apache-2.0",
    ),
    "humaneval": Dataset(
        "humaneval.jsonl", _human_eval, "github.com/openai/human-eval, data/HumanEval.jsonl.gz", "MIT"
    ),
    "gsm8k": Dataset(
        "gsm8k_test.jsonl", _gsm8k, "github.com/openai/grade-school-math, grade_school_math/data/test.jsonl", "MIT"
    ),
    "mbpp": Dataset("mbpp.jsonl", _mbpp, "github.com/google-research/google-research, mbpp/mbpp.jsonl", "CC-BY-4.0"),
}  # fmt: skip
BUNDLED = "bundled"
ANSWERS = "answers"
"""Name of the suite of problems whose answers a program checks: see `workbench.bench.answers_suite`."""
NAMES = (BUNDLED, ANSWERS, workloads.WORK, *workloads.KINDS, *DATASETS)


def load_suite(name: str, data: Path | None = None) -> list[BenchPrompt]:
    """Return the prompts of a bundled or public prompt suite.

    Args:
        name: one of `NAMES`; the suites "bundled" and "answers" and the workload suites need no data. Workload suites
            also contain some of Spec-Bench's questions if `data` has them.
        data: folder with the data sets' files, plain or gzipped, or one such file under any name.

    Raises:
        UnknownNameError: the suite does not exist.
        PromptError: the file is missing, or a row has another format.
    """
    if name == BUNDLED:
        return load_prompts()
    if name == ANSWERS:
        return all_problems()
    if name in (workloads.WORK, *workloads.KINDS):
        return (
            workloads.bundled_prompts(name)
            if data is None
            else workloads.with_spec_bench(name, load_suite("spec-bench", data))
        )
    if name not in DATASETS:
        raise UnknownNameError.of("suite", name, NAMES)
    dataset = DATASETS[name]
    if data is None:
        raise PromptError(
            f"The suite {name} reads {dataset.file}, which is not part of the workbench.",
            f"Give the folder of the file with --data. The file comes from {dataset.source} ({dataset.licence}).",
        )
    paths = [data] if data.is_file() else [data / dataset.file, data / f"{dataset.file}.gz"]
    path = next((candidate for candidate in paths if candidate.is_file()), None)
    if path is None:
        raise PromptError(
            f"The folder {data} contains no file {dataset.file}.",
            f"Get the file from {dataset.source} ({dataset.licence}), or give another folder with --data.",
        )
    prompts = list(_read(path, dataset))
    if not prompts:
        raise PromptError(f"{path} contains no questions.", f"Get the file from {dataset.source}.")
    return prompts


def _read(path: Path, dataset: Dataset) -> Iterator[BenchPrompt]:
    try:
        data = read_regular(path)
        data = gzip.decompress(data) if path.suffix == ".gz" else data
        lines = data.decode("utf-8").split("\n")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "the file is damaged or not UTF-8 text"
        raise PromptError(f"{path} cannot be read: {reason}.", f"Get the file from {dataset.source}.") from None
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield _parse(line, number, path, dataset)


def _parse(line: str, number: int, path: Path, dataset: Dataset) -> BenchPrompt:
    try:
        prompt = dataset.read(json.loads(line), number)
    except (ValueError, KeyError, TypeError, IndexError):
        prompt = None
    if prompt is None or not isinstance(prompt.prompt, str) or not prompt.prompt.strip():
        form = " ".join((dataset.read.__doc__ or "").split()).partition(" such as ")[2]
        raise PromptError(
            f"Line {number} of {path} is not a question in the format of this suite.", f"A row looks like {form}"
        )
    return prompt


def first_of_each_group(prompts: Iterable[BenchPrompt], n: int) -> list[BenchPrompt]:
    """Return the first `n` prompts of every group of a suite, in the order of the suite."""
    counts: Counter[str] = Counter()
    selected = []
    for prompt in prompts:
        counts[prompt.group] += 1
        if counts[prompt.group] <= n:
            selected.append(prompt)
    return selected
