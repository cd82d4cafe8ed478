"""Readers of the public training text: each converts the rows of one file into documents.

The folder (by default `../shared/data/train`) holds the files that its SOURCES.md describes; this repository contains
none of their text. A missing file is skipped, so the recipes also run on the generators alone.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.models.chat_markers import ASSISTANT, END, USER

Row = dict[str, Any]
MAX_CHARS = 1900  # a prompt and its answer should fit one window of 512 tokens
MIN_SENTENCE = 30


@dataclass(frozen=True)
class Source:
    """One file of training text.

    Attributes:
        file: File name inside the data folder.
        group: Name of the group, for which the held-out loss is reported.
        share: The file's share of the tokens that do not come from the text generators.
        documents: Converts a row (a dict, or the text of a passage) into documents.
        passes: Largest number of passes over the file to reach its share.
    """

    file: str
    group: str
    share: float
    documents: Callable[[Any], list[str]]
    passes: int = 1

    def rows(self, folder: Path) -> Iterator[Any]:
        """Yield the rows of the training text's file: objects of JSON Lines, or passages of plain text."""
        path = folder / self.file
        if not path.exists():
            return
        with gzip.open(path, "rt", encoding="utf-8") as handle:
            if ".jsonl" in self.file:
                for line in handle:
                    yield json.loads(line)
            else:
                yield from re.split(r"\n{3,}|<\|endoftext\|>", handle.read())


def chat(*turns: str) -> list[str]:
    """Render alternating user and assistant turns; every assistant turn ends with the end-of-text token.

    >>> chat("Hi.", "Hello.")
    ['<|user|>Hi.<|assistant|>Hello.<|endoftext|>']
    """
    parts = []
    for i, turn in enumerate(turns):
        text = turn.replace(END, "").strip()
        parts.append(f"{USER}{text}" if i % 2 == 0 else f"{ASSISTANT}{text}{END}")
    return ["".join(parts)] if len(turns) >= 2 else []


def _short(documents: list[str]) -> list[str]:
    return [document for document in documents if len(document) <= MAX_CHARS]


def _prose(row: Row) -> list[str]:
    return [row["text"].strip() + END]


def _tiny_stories(text: str) -> list[str]:
    return [text.strip() + END] if text.strip() else []


def _copied_prose(row: Row) -> list[str]:
    sentences = [s for s in re.split(r"(?<=[.!?])\s+", row["text"]) if MIN_SENTENCE <= len(s) <= 220]
    documents = []
    for i in range(0, len(sentences) - 1, 6):
        text = " ".join(sentences[i : i + 1 + i % 2])
        documents += chat(f"Repeat this text:\n{text}", text)
    return documents


def _prompt_completion(row: Row) -> list[str]:
    return _short(chat(row["prompt"], row["completion"]))


def _instruction(row: Row) -> list[str]:
    prompt = row["instruction"] + ("\n" + row["input"] if row.get("input") else "")
    return _short(chat(prompt, row["response"]))


def _python_instruction(row: Row) -> list[str]:
    answer = row["response"]
    return _instruction(row) if re.search(r"\bdef \w+\(|print\(", answer) and "{" not in answer[:20] else []


def _self_dialogue(row: Row) -> list[str]:
    turns = row["turns"][: len(row["turns"]) // 2 * 2]
    return chat(*turns)


def _schema_dialogue(row: Row) -> list[str]:
    turns = row["turns"]
    roles = [turn["role"] for turn in turns]
    if any(role != ("user", "assistant")[i % 2] for i, role in enumerate(roles)):
        return []
    return chat(*(turn["text"] for turn in turns[: len(turns) // 2 * 2]))


def _assistant_tree(row: Row) -> list[str]:
    prompt = row["prompt"]
    replies = sorted(prompt.get("replies", []), key=lambda reply: reply.get("rank") or 0)
    return [document for reply in replies[:2] for document in _short(chat(prompt["text"], reply["text"]))]


def _library_function(row: Row) -> list[str]:
    code = row["code"]
    if len(code) > 1200:
        return []
    doc = (row["doc"] or "").strip().split("\n")[0]
    return chat(f"Write the Python function {row['name']}: {doc}", code) if doc else [code.strip() + END]


def _grade_school(row: Row) -> list[str]:
    answer = re.sub(r"<<[^>]*>>", "", row["answer"])
    return chat(row["question"], re.sub(r"####\s*(.*)", r"The answer is \1.", answer))


def _word_problem(row: Row) -> list[str]:
    equation = row["Equation"].strip("() ").replace(".0", "")
    value = f"{row['Answer']:g}"
    return chat(f"{row['Body'].rstrip('.')}. {row['Question']}", f"{equation} = {value}\nThe answer is {value}.")


def _untokenise(text: str) -> str:
    text = re.sub(r" ([,.;:!?)])", r"\1", text).replace("( ", "(").replace(" 's", "'s").replace("''", '"')
    return re.sub(r"\s+", " ", text).strip()


def _split_sentence(row: Row) -> list[str]:
    parts = [_untokenise(part) for part in row["target"]]
    return chat(f"Split this sentence into two: {_untokenise(row['source'])}", " ".join(parts))


def _paper_summary(row: Row) -> list[str]:
    return _short(chat(f"Summarize in one sentence: {row['source']}", row["summary"]))


def _open_question(row: Row) -> list[str]:
    passage = row["passage"]["text"]
    return _short(chat(f"{passage}\nQuestion: {row['question']}?", row["answers"][0])) if row["answers"] else []


def _reading(row: Row) -> list[str]:
    return _short(chat(f"{row['context']}\nQuestion: {row['question']}", row["answer"]))


def _to_english(row: Row) -> list[str]:
    language, other = ("German", row["de"]) if "de" in row else ("French", row["fr"])
    if len(other) % 3:
        return chat(f"Translate into English: {other}", row["en"])
    return chat(f"Translate into {language}: {row['en']}", other)


SOURCES: list[Source] = [
    Source("stories_gutenberg.jsonl.gz", "stories", 0.30, _prose),
    Source("stories_tinystories_sample.txt.gz", "stories", 0.03, _tiny_stories, passes=6),
    Source("stories_gutenberg.jsonl.gz", "copy", 0.06, _copied_prose),
    Source("prose_gutenberg.jsonl.gz", "prose", 0.04, _prose),
    Source("chat_self_dialogue.jsonl.gz", "chat", 0.09, _self_dialogue),
    Source("dialogue_sgd.jsonl.gz", "chat", 0.10, _schema_dialogue),
    Source("chat_oasst_en100.jsonl.gz", "chat", 0.01, _assistant_tree, passes=2),
    Source("chat_gpteacher_roleplay.jsonl.gz", "chat", 0.04, _instruction),
    Source("chat_cosmos_qa.jsonl.gz", "chat", 0.02, _prompt_completion),
    Source("code_python_stdlib.jsonl.gz", "code", 0.07, _library_function),
    Source("code_gpteacher.jsonl.gz", "code", 0.03, _python_instruction, passes=2),
    Source("math_gsm8k_train.jsonl.gz", "maths", 0.08, _grade_school),
    Source("math_svamp.jsonl.gz", "maths", 0.01, _word_problem, passes=2),
    Source("edit_wikisplit.jsonl.gz", "edit", 0.03, _split_sentence),
    Source("summarize_scitldr.jsonl.gz", "edit", 0.02, _paper_summary),
    Source("rag_nq_oracle.jsonl.gz", "passages", 0.02, _open_question),
    Source("rag_xquad_en.jsonl.gz", "passages", 0.01, _reading),
    Source("rag_adversarial_qa.jsonl.gz", "passages", 0.01, _prompt_completion),
    Source("rag_quoref.jsonl.gz", "passages", 0.01, _prompt_completion),
    Source("translate_tatoeba_en_de.jsonl.gz", "translation", 0.015, _to_english),
    Source("translate_tatoeba_en_fr.jsonl.gz", "translation", 0.005, _to_english),
]
