from __future__ import annotations

from pathlib import Path

import pytest

from workbench.bench.prompts import groups_of, load_prompts
from workbench.core.errors import PromptError


def test_the_bundled_set_covers_its_groups_with_unique_names() -> None:
    prompts = load_prompts()
    assert {"stories", "chat", "code", "maths", "copy", "json"} <= set(groups_of(prompts))
    assert len({p.name for p in prompts}) == len(prompts)


def test_a_file_may_contain_prompts_only(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text('{"prompt": "Hello"}\n\n{"prompt": "Bye", "group": "ends", "chat": true}\n')
    first, second = load_prompts(file)
    assert (first.prompt, first.group, first.chat) == ("Hello", "all", False)
    assert (second.group, second.chat) == ("ends", True)


@pytest.mark.parametrize("line", ["not json", "[]", '{"text": "x"}', '{"prompt": 3}', '{"prompt": ""}'])
def test_a_wrong_line_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text('{"prompt": "Hello"}\n' + line + "\n")
    with pytest.raises(PromptError, match="Line 2"):
        load_prompts(file)


def test_missing_and_empty_files_are_reported(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match="cannot be read"):
        load_prompts(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(PromptError, match="no prompts"):
        load_prompts(tmp_path / "empty.jsonl")
