"""Right and wrong answers to test the checkers of this lesson; they run in its kernel and use its names."""

from __future__ import annotations


def try_first_place(right, wrong):
    letters = ("abcdefgh-abxy+ab", "cdefgh")
    right(lookup_first, letters)
    right(lambda text, depth=10, longest=3: lookup_first(text, depth, longest), ("klmnop-klxx+kl", "mnop"))
    wrong(lookup, letters)
    wrong(lookup_first, ("abcabcabc", "abc"))  # taking the first match gains nothing there
    wrong(lambda text: [], letters)


def try_only_sure(right, wrong):
    right(lookup_sure)
    right(lambda text: lookup_sure(text, 10, 3, 2))
    wrong(lookup)
    wrong(lambda text: [])
    wrong(lambda text: lookup_sure(text, 10, 3, 3))


def try_memory(right, wrong):
    right(store)
    right(tuple(store))
    wrong(texts["story-dragon"][1])
    wrong([])
    wrong(list(store) + list(texts["story-dragon"][1]))
