"""Generator tasks of arithmetic with worked steps, one digit at a time, so that a reader can check each step."""

from __future__ import annotations

import random

from workbench.training.generators.base import Instance

_ADD = ["What is {a} + {b}?", "Add {a} and {b}.", "Calculate {a} + {b}."]
_SUB = ["What is {a} - {b}?", "Subtract {b} from {a}.", "Calculate {a} - {b}."]
_MUL = ["What is {a} * {b}?", "Multiply {a} by {b}.", "Calculate {a} * {b}."]


def addition_steps(a: int, b: int) -> str:
    """Return the worked steps of a two-digit sum.

    >>> print(addition_steps(47, 38))
    Ones: 7 + 8 = 15, write 5, carry 1.
    Tens: 4 + 3 + 1 = 8.
    Answer: 47 + 38 = 85
    """
    ones = a % 10 + b % 10
    carry = ones // 10
    tens = a // 10 + b // 10 + carry
    lines = [
        f"Ones: {a % 10} + {b % 10} = {ones}, write {ones % 10}, carry {carry}.",
        f"Tens: {a // 10} + {b // 10} + {carry} = {tens}.",
        f"Answer: {a} + {b} = {a + b}",
    ]
    return "\n".join(lines)


def subtraction_steps(a: int, b: int) -> str:
    """Return the worked steps of a two-digit difference, for a ≥ b.

    >>> print(subtraction_steps(52, 37))
    Ones: 12 - 7 = 5, borrow 1.
    Tens: 5 - 3 - 1 = 1.
    Answer: 52 - 37 = 15
    """
    borrow = int(a % 10 < b % 10)
    top = a % 10 + 10 * borrow
    lines = [
        f"Ones: {top} - {b % 10} = {top - b % 10}, borrow {borrow}.",
        f"Tens: {a // 10} - {b // 10} - {borrow} = {a // 10 - b // 10 - borrow}.",
        f"Answer: {a} - {b} = {a - b}",
    ]
    return "\n".join(lines)


def multiplication_steps(a: int, b: int) -> str:
    """Return the worked steps of a two-digit number times a digit.

    >>> print(multiplication_steps(23, 4))
    Ones: 3 * 4 = 12, write 2, carry 1.
    Tens: 2 * 4 + 1 = 8 + 1 = 9.
    Answer: 23 * 4 = 92
    """
    ones = a % 10 * b
    carry = ones // 10
    tens = a // 10 * b
    lines = [
        f"Ones: {a % 10} * {b} = {ones}, write {ones % 10}, carry {carry}.",
        f"Tens: {a // 10} * {b} + {carry} = {tens} + {carry} = {tens + carry}.",
        f"Answer: {a} * {b} = {a * b}",
    ]
    return "\n".join(lines)


def make_addition(rng: random.Random) -> Instance:
    """Generate a problem with its worked answer: a sum of two two-digit numbers."""
    a, b = rng.randint(10, 99), rng.randint(10, 99)
    return Instance("addition", rng.choice(_ADD).format(a=a, b=b), addition_steps(a, b), f"{a}+{b}")


def make_subtraction(rng: random.Random) -> Instance:
    """Generate a problem with its worked answer: a difference of two two-digit numbers."""
    a, b = sorted((rng.randint(10, 99), rng.randint(10, 99)), reverse=True)
    return Instance("subtraction", rng.choice(_SUB).format(a=a, b=b), subtraction_steps(a, b), f"{a}-{b}")


def make_multiplication(rng: random.Random) -> Instance:
    """Generate a problem with its worked answer: a product of a two-digit number and a digit."""
    a, b = rng.randint(10, 99), rng.randint(2, 9)
    return Instance("multiplication", rng.choice(_MUL).format(a=a, b=b), multiplication_steps(a, b), f"{a}*{b}")
