"""Generator task of writing a small Python function from a description, with a docstring and an example call."""

from __future__ import annotations

import random
from collections.abc import Callable

from workbench.training.generators.base import Instance

_LISTS = ["items", "values", "numbers", "xs", "data", "scores"]
_NUMBERS = ["n", "x", "number", "value", "count", "a"]
_TEXTS = ["text", "word", "name", "line", "s", "title"]

# (function name, description, body): {v} is the parameter, {k} a small number.
_ON_NUMBER: list[tuple[str, str, str, Callable[[int, int], object]]] = [
    ("add_{k}", "{v} plus {k}", "{v} + {k}", lambda v, k: v + k),
    ("subtract_{k}", "{v} minus {k}", "{v} - {k}", lambda v, k: v - k),
    ("times_{k}", "{v} times {k}", "{v} * {k}", lambda v, k: v * k),
    ("is_greater_than_{k}", "True if {v} is greater than {k}", "{v} > {k}", lambda v, k: v > k),
    ("is_less_than_{k}", "True if {v} is less than {k}", "{v} < {k}", lambda v, k: v < k),
    ("is_equal_to_{k}", "True if {v} is equal to {k}", "{v} == {k}", lambda v, k: v == k),
    ("smaller_of_{k}", "the smaller one of {v} and {k}", "min({v}, {k})", lambda v, k: min(v, k)),
    ("larger_of_{k}", "the larger one of {v} and {k}", "max({v}, {k})", lambda v, k: max(v, k)),
]
_ON_LIST: list[tuple[str, str, str, Callable[[list[int], int], object]]] = [
    ("first_{k}", "the first {k} elements of {v}", "{v}[:{k}]", lambda v, k: v[:k]),
    ("without_first_{k}", "{v} without its first {k} elements", "{v}[{k}:]", lambda v, k: v[k:]),
    ("count_{k}", "how often {k} occurs in {v}", "{v}.count({k})", lambda v, k: v.count(k)),
    ("contains_{k}", "True if {k} is in {v}", "{k} in {v}", lambda v, k: k in v),
    ("append_{k}", "{v} with {k} at the end", "{v} + [{k}]", lambda v, k: [*v, k]),
    ("prepend_{k}", "{v} with {k} at the start", "[{k}] + {v}", lambda v, k: [k, *v]),
    ("reverse", "{v} in reverse order", "{v}[::-1]", lambda v, k: v[::-1]),
    ("length", "the number of elements of {v}", "len({v})", lambda v, k: len(v)),
    ("last", "the last element of {v}", "{v}[-1]", lambda v, k: v[-1]),
    (
        "keep_above_{k}",
        "the elements of {v} that are greater than {k}",
        "[x for x in {v} if x > {k}]",
        lambda v, k: [x for x in v if x > k],
    ),
    (
        "keep_below_{k}",
        "the elements of {v} that are less than {k}",
        "[x for x in {v} if x < {k}]",
        lambda v, k: [x for x in v if x < k],
    ),
    (
        "remove_{k}",
        "the elements of {v} that are not equal to {k}",
        "[x for x in {v} if x != {k}]",
        lambda v, k: [x for x in v if x != k],
    ),
    ("add_{k}_to_all", "every element of {v} plus {k}", "[x + {k} for x in {v}]", lambda v, k: [x + k for x in v]),
]
_ON_TEXT: list[tuple[str, str, str, Callable[[str, str], object]]] = [
    ("starts_with_{k}", 'True if {v} starts with "{k}"', '{v}.startswith("{k}")', lambda v, k: v.startswith(k)),
    ("ends_with_{k}", 'True if {v} ends with "{k}"', '{v}.endswith("{k}")', lambda v, k: v.endswith(k)),
    ("contains_{k}", 'True if "{k}" is in {v}', '"{k}" in {v}', lambda v, k: k in v),
    ("first_letter", "the first letter of {v}", "{v}[0]", lambda v, k: v[0]),
    ("last_letter", "the last letter of {v}", "{v}[-1]", lambda v, k: v[-1]),
    ("append_{k}", '{v} with "{k}" at the end', '{v} + "{k}"', lambda v, k: v + k),
    ("prepend_{k}", '{v} with "{k}" at the start', '"{k}" + {v}', lambda v, k: k + v),
]
_WORDS = ["cat", "dog", "sun", "tree", "moon", "fish", "bird", "rain", "star", "milk"]


def _write(name: str, v: str, description: str, body: str, argument: object, result: object) -> tuple[str, str]:
    prompt = f"Write a Python function {name}({v}) that returns {description}."
    argument_text = '"' + argument + '"' if isinstance(argument, str) else repr(argument)
    result_text = '"' + result + '"' if isinstance(result, str) else repr(result)
    answer = (
        f"def {name}({v}):\n"
        f'    """Return {description.replace(chr(34), chr(39))}."""\n'
        f"    return {body}\n\n"
        f"# Example: {name}({argument_text}) returns {result_text}"
    )
    return prompt, answer


def make_code(rng: random.Random) -> Instance:
    """Generate a request to write a function, from its description, with the definition as the answer."""
    kind = rng.choice(["number", "list", "list", "text"])
    if kind == "number":
        template, description, body, function = rng.choice(_ON_NUMBER)
        v, k, argument = rng.choice(_NUMBERS), rng.randint(1, 9), rng.randint(1, 9)
        result = function(argument, k)
    elif kind == "list":
        template, description, body, function = rng.choice(_ON_LIST)
        v, k = rng.choice(_LISTS), rng.randint(1, 4)
        argument = [rng.randint(1, 9) for _ in range(rng.randint(3, 4))]
        result = function(argument, k)
    else:
        template, description, body, function = rng.choice(_ON_TEXT)
        v, k, argument = rng.choice(_TEXTS), rng.choice("abcdehlmnorst"), rng.choice(_WORDS)
        result = function(argument, k)
    name = template.format(k=k)
    prompt, answer = _write(name, v, description.format(v=v, k=k), body.format(v=v, k=k), argument, result)
    return Instance("code", prompt, answer, f"{kind}:{name}({v})")


def check_code(instance: Instance, output: str) -> bool:
    """Return whether an output defines the requested function correctly. The example call after it is not checked."""
    marker = "# Example:"
    return output.split(marker)[0].strip() == instance.answer.split(marker)[0].strip()
