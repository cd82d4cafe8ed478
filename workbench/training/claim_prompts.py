"""More prompts of the bundled kinds, for measuring claims: chat messages, and problems held out from training.

`bench/claim_prompts.jsonl` is the output of `render_prompts`, because `workbench.bench` imports nothing of
`workbench.training`; `workbench docs` writes it.
"""

from __future__ import annotations

import random
import re
from pathlib import Path

from workbench.training.generators import TASKS
from workbench.training.workload_prompts import MAKERS, prompt_line

FILE = Path(__file__).resolve().parents[1] / "bench" / "claim_prompts.jsonl"
SEED, N = 37, 36
"""Seed of the generated prompts for measuring claims, and number of prompts of each kind."""
N_COPIES = 60
"""Number of prompts of the kind "copy": the bundled target copies about half of them; claims about copies need 25."""
CHAT = (
    "Why is the sky blue?",
    "How do I clean a wooden table?",
    "Give me three tips for a first day at a new job.",
    "What should I pack for a week by the sea?",
    "Why do cats sleep so much?",
    "How can I learn to cook soup?",
    "What is a good name for a small brown dog?",
    "Explain to a child why the moon changes its shape.",
    "How do I keep tomato plants healthy?",
    "Give me two reasons to walk to work.",
    "What can I say to a friend who lost a game?",
    "Why do people yawn?",
    "How do I write a short thank-you note?",
    "What is the difference between a lake and a river?",
    "Give me three ideas for a rainy afternoon.",
    "How do birds find their way home?",
    "What should I eat before a long walk?",
    "Why is it colder on a mountain?",
    "How can I remember the names of new people?",
    "Give me a short plan for cleaning my room.",
    "What makes bread rise?",
    "How do I make a paper boat?",
    "Why do we have four seasons?",
    "What is a polite way to say no?",
    "How can I save water at home?",
    "Give me three questions to ask my grandmother.",
    "Why do onions make people cry?",
    "How do I teach a dog to sit?",
    "What is a good gift for a teacher?",
    "Why do ships float?",
    "How can I read more books this year?",
    "Give me two ways to relax after school.",
    "What should I do when I cannot fall asleep?",
    "How do bees make honey?",
    "Why do leaves fall from trees?",
    "What can I cook with rice and one egg?",
)
"""Chat messages as prompts for measuring claims, written for this project."""
TASKS_OF: dict[str, tuple[str, ...]] = {
    "stories": ("story",),
    "code": ("code",),
    "maths": ("addition", "subtraction", "multiplication"),
    "copy": ("copy", "repeat", "replace", "summary", "quote"),
    "json": ("json", "extract"),
    "lists": ("sort_words", "sort_numbers"),
}
"""Tasks of the text generators by kind of prompt; the tasks of a kind are used in turn."""


def render_prompts() -> str:
    """Return all prompts for measuring claims as JSON Lines, which `workbench.bench.prompts.load_prompts` reads."""
    lines = [prompt_line(f"chat-more-{i + 1}", "chat", prompt) for i, prompt in enumerate(CHAT)]
    for kind, tasks in TASKS_OF.items():
        rng, prompts = random.Random(f"{kind}/{SEED}"), dict[str, bool]()
        while len(prompts) < (N_COPIES if kind == "copy" else N):
            number = len(prompts)
            if kind == "code" and number % 2:  # few functions are held out, so every other prompt edits two of them
                prompts[MAKERS["refactoring"][number // 2 % 2](rng)] = True
                continue
            instance = TASKS[tasks[number % len(tasks)]].draw(rng, held_out=True)
            raw = kind == "stories" and number % 5 < 2  # as in training, two stories in five are text to continue
            prompts[re.split(r"(?<=[.]) ", instance.answer)[0] if raw else instance.prompt] = not raw
        lines += [
            prompt_line(f"{kind}-more-{i + 1}", kind, prompt, chat) for i, (prompt, chat) in enumerate(prompts.items())
        ]
    return "".join(lines)
