"""The project's own text generators: tasks with known right answers.

>>> instance = next(TASKS["addition"].stream(seed=0, held_out=True))
>>> TASKS["addition"].check(instance, instance.answer)
True
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator

from workbench.models.chat_markers import END
from workbench.training.generators.arithmetic import make_addition, make_multiplication, make_subtraction
from workbench.training.generators.base import Instance, Task, is_exact_match, is_held_out
from workbench.training.generators.code import check_code, make_code
from workbench.training.generators.editing import make_copy, make_quote, make_repeat, make_replace, make_summary
from workbench.training.generators.lists import make_sort_numbers, make_sort_words
from workbench.training.generators.records import make_extract, make_json
from workbench.training.generators.stories import Story, check_story, make_story, make_story_instance

TASKS: dict[str, Task] = {
    task.name: task
    for task in [
        Task("story", make_story_instance, check_story, share=0.24),
        Task("addition", make_addition, is_exact_match, share=0.11, goal=0.7),
        Task("subtraction", make_subtraction, is_exact_match, share=0.06),
        Task("multiplication", make_multiplication, is_exact_match, share=0.04),
        Task("json", make_json, is_exact_match, share=0.09, goal=0.9),
        Task("extract", make_extract, is_exact_match, share=0.05),
        Task("sort_words", make_sort_words, is_exact_match, share=0.07, goal=0.9),
        Task("sort_numbers", make_sort_numbers, is_exact_match, share=0.06, goal=0.9),
        Task("copy", make_copy, is_exact_match, share=0.08, goal=0.9),
        Task("repeat", make_repeat, is_exact_match, share=0.03, goal=0.9),
        Task("replace", make_replace, is_exact_match, share=0.04),
        Task("quote", make_quote, is_exact_match, share=0.03),
        Task("summary", make_summary, is_exact_match, share=0.04),
        Task("code", make_code, check_code, share=0.06),
    ]
}


def mixture(seed: int, names: Collection[str] = ()) -> Iterator[tuple[str, str]]:
    """Yield an endless stream of (task, document) for training.

    The share of a task is a share of the tokens, estimated by characters: the next task is the one furthest below its
    share. Two stories in five have no request before them: they are text to continue.

    Args:
        seed: Seed of the stream.
        names: Tasks to draw from; empty: all.
    """
    tasks = {name: task for name, task in TASKS.items() if not names or name in names}
    rng = random.Random(f"mixture/{seed}")
    streams = {name: task.stream(seed, held_out=False) for name, task in tasks.items()}
    n_chars = dict.fromkeys(tasks, 0.0)
    while True:
        name = min(tasks, key=lambda n: n_chars[n] / tasks[n].share + rng.random() * 3000)
        instance = next(streams[name])
        raw = name == "story" and rng.random() < 0.4
        document = instance.answer + END if raw else instance.render()
        n_chars[name] += len(document)
        yield name, document


__all__ = [
    "TASKS",
    "Instance",
    "Story",
    "Task",
    "is_exact_match",
    "is_held_out",
    "make_story",
    "make_story_instance",
    "mixture",
]
