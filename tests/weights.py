"""In which order xdist deals the test files out: the longest first, and beside one that computes one that waits.

By itself it deals by the number of tests: files of a few long tests then come last, side by side, and one worker ends
minutes after the other. Which tests are long is said by their marks; what these do not tell, a mark of `seconds` does.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

NOTEBOOK_S, OF_ITS_OWN_S, SLOW_S, QUICK_S = 20.0, 6.0, 4.0, 0.2
"""About what one takes on a quiet machine: a lesson, a browser or processes to wait for, a slow test, any other."""


def file_of(item: pytest.Item) -> str:
    """What xdist keeps on one worker with `--dist loadfile`."""
    return item.nodeid.partition("::")[0]


def waits(item: pytest.Item) -> bool:
    """Whether others compute for it: a browser, a kernel, servers."""
    marked = item.get_closest_marker("browser") or item.get_closest_marker("processes")
    return bool(marked) or file_of(item).endswith(".ipynb")


def seconds(item: pytest.Item) -> float:
    """About how long it takes."""
    if said := item.get_closest_marker("seconds"):
        return float(said.args[0])
    if file_of(item).endswith(".ipynb"):
        return NOTEBOOK_S
    return OF_ITS_OWN_S if waits(item) else SLOW_S if item.get_closest_marker("slow") else QUICK_S


def dealt(files: Mapping[str, tuple[float, bool]]) -> list[str]:
    """Names of files in the order in which they are dealt out.

    Args:
        files: seconds of each, and whether these are waited for.

    Returns:
        Of either kind the longest first; the next one is of the kind of which less has been dealt, as a part of it.
    """
    kinds = [sorted((name for name in files if files[name][1] is kind), key=lambda name: (-files[name][0], name))
             for kind in (True, False)]  # fmt: skip
    whole = [sum(files[name][0] for name in kind) for kind in kinds]
    left, order = list(whole), list[str]()
    while any(kinds):
        kind = max((i for i in (0, 1) if kinds[i]), key=lambda i: left[i] / whole[i])
        order.append(kinds[kind].pop(0))
        left[kind] -= files[order[-1]][0]
    return order


def sort(items: list[pytest.Item]) -> None:
    """Put the tests into the order of their files; within a file they stay as they are."""
    files: dict[str, tuple[float, bool]] = {}
    for item in items:
        so_far, waited = files.get(file_of(item), (0.0, False))
        files[file_of(item)] = so_far + seconds(item), waited or waits(item)
    place = {name: i for i, name in enumerate(dealt(files))}
    items.sort(key=lambda item: place[file_of(item)])
