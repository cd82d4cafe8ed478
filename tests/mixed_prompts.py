"""Forty prompts of many kinds: questions to a chat model, and text to continue without a chat template.

All were written for this project. Many contain text that their answer repeats, so that methods that copy have drafts.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MixedPrompt:
    """A prompt.

    Attributes:
        kind: kind of prompt.
        text: user message, or text to continue.
        chat: whether the target's chat template is applied.
    """

    kind: str
    text: str
    chat: bool = True


MIXED_PROMPTS = (
    MixedPrompt("chat", "What is the capital of Portugal?"),
    MixedPrompt("chat", "I slept badly. Any advice?"),
    MixedPrompt("chat", "Hello! Who are you?"),
    MixedPrompt("chat", "Why is the sky blue? One sentence."),
    MixedPrompt("chat", "Should I take the train or the bus to work?"),
    MixedPrompt("code", "Write a Python function that returns the larger of two numbers."),
    MixedPrompt("code", "Write a for loop in JavaScript that prints 1 to 5."),
    MixedPrompt("code", "What does `len([3, 1, 4])` return in Python?"),
    MixedPrompt("code", "def add(a, b):\n    return a + b\n\n\ndef subtract(a, b):\n", chat=False),
    MixedPrompt("code", "SELECT name FROM users WHERE age > 30;\nSELECT name FROM users WHERE", chat=False),
    MixedPrompt("copy", "Repeat exactly: the grey cat sat on the grey mat by the grey door."),
    MixedPrompt("copy", "red, green, blue, red, green, blue, red, green,", chat=False),
    MixedPrompt("copy", "Copy this line: 7f3a-99c1-7f3a-99c1-04be"),
    MixedPrompt("edit", "Replace Anna by Paul: Anna has a dog. Anna feeds the dog. The dog likes Anna."),
    MixedPrompt("edit", "Fix the spelling: I hav a vrey old bycicle and I hav a vrey old car."),
    MixedPrompt("edit", "Rename x to total:\nx = 0\nfor i in range(3):\n    x = x + i\nprint(x)"),
    MixedPrompt("edit", "Write in capitals: please mind the gap"),
    MixedPrompt("table to JSON", "As JSON:\nname | age\nAda | 36\nBob | 41"),
    MixedPrompt("table to JSON", "Turn into a list of JSON objects:\ncity,people\nOslo,700000\nBern,130000"),
    MixedPrompt("table", "Make a Markdown table with the columns fruit and colour: apple red, plum blue."),
    MixedPrompt("table", "| n | n squared |\n|---|---|\n| 1 | 1 |\n| 2 | 4 |\n| 3 |", chat=False),
    MixedPrompt(
        "summary", "Summarise: The bridge was closed on Monday. Repairs take three weeks. Buses go by the ferry."
    ),
    MixedPrompt("summary", "In five words: Rain fell all day and the match was put off until Friday."),
    MixedPrompt("quote", 'Which words name a colour? "The brown fox saw a white hare." Quote the sentence first.'),
    MixedPrompt("translation", "Translate to French: The house is small."),
    MixedPrompt("translation", "How do you say 'good night' in Spanish and in German?"),
    MixedPrompt("story", "Write a story about a lighthouse keeper and a whale."),
    MixedPrompt("story", "Once upon a time there was a little fox who could not sleep.", chat=False),
    MixedPrompt("story", "Write two lines of a poem about snow."),
    MixedPrompt("maths", "What is 12 + 30?"),
    MixedPrompt("maths", "A book costs 8 euros. What do three books cost?"),
    MixedPrompt("maths", "1, 2, 4, 8, 16, 32,", chat=False),
    MixedPrompt("list", "List three uses of a brick."),
    MixedPrompt("list", "1. wake up\n2. wash\n3. eat\n4.", chat=False),
    MixedPrompt("extraction", 'Which dates are named? "We met on 3 May and again on 9 June."'),
    MixedPrompt("sorting", "Sort from smallest to largest: 61, 12, 85, 34"),
    MixedPrompt("yes or no", "Is a whale a fish? Answer yes or no."),
    MixedPrompt("other writing", "Пиши по-русски: какая сегодня погода?"),
    MixedPrompt("other writing", "🙂🙃🙂🙃🙂", chat=False),
    MixedPrompt("one token", "The", chat=False),
)
"""Neighbours are of the same kind, so that methods that take prompts in turn get many kinds each."""
