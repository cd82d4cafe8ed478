"""Page /methods: a card per method, the models with which it can run, and definitions of measured quantities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gradio as gr

from workbench.bench import boardfiles
from workbench.bench.measured_speeds import measured_speeds, measured_targets
from workbench.client import Client
from workbench.decoders.declarations import DRAFTERS, GROUPS, heads_in
from workbench.methods import method_info
from workbench.models.bundle import bundled_folder
from workbench.service.choices import IN_FULL, describe
from workbench.service.request_context import make_disconnect_check
from workbench.trace.metrics import DEFINITIONS
from workbench.ui.dependency_cache import DependencyCache, stamp
from workbench.ui.hosting import ServerFunction
from workbench.ui.pages import add_page
from workbench.ui.recommendation import RecommendationView
from workbench.ui.saved_runs import SavedRunsView
from workbench.views import recorded_runs

KEEP_S, MATRIX_S = 3600.0, 20.0
"""Seconds for which the boards are cached, unless their files change, and for which the compatibility matrix is cached.

The matrix depends on the loaded models.
"""
_method_maps: DependencyCache[dict[str, Any]] = DependencyCache(KEEP_S)


def add(demo: gr.Blocks, client: Client, saved_runs: SavedRunsView | None = None) -> None:
    """Add the page /methods to the app.

    Args:
        demo: the finished main page.
        client: client that lists the methods that can run with each model, and measures which is fastest.
        saved_runs: saved runs whose prompts may be used for a recommendation; None: none.
    """

    def methods(request: dict[str, Any]) -> dict[str, Any]:
        return {"methods": catalogue(), "definitions": definitions(), "recordings": recorded_runs.names()}

    kept_boards: DependencyCache[dict[str, Any]] = DependencyCache(KEEP_S)

    def recording(request: dict[str, Any]) -> dict[str, Any]:
        return recorded_runs.load(str(request.get("name")))

    def boards(request: dict[str, Any]) -> dict[str, Any]:
        from workbench.bench import board  # imports PyTorch: only when the boards are opened

        key = stamp(board.folder(), "*.json"), stamp(bundled_folder())
        return kept_boards.get(key, all_boards)

    view = RecommendationView(client, saved_runs or SavedRunsView())
    answers = [methods, matrix_of(client), measured, recording, boards, *view.server_functions()]
    add_page(demo, "Methods", "methodcards", answers, view.decode)


def matrix_of(client: Client) -> ServerFunction:
    """Return the function `matrix` for the page, which calls `compatibility` and caches the result for `MATRIX_S` s."""
    matrices: DependencyCache[dict[str, Any]] = DependencyCache(MATRIX_S)

    def matrix(request: dict[str, Any]) -> dict[str, Any]:
        return matrices.get((), lambda: compatibility(client))

    return matrix


def measured(request: dict[str, Any]) -> dict[str, Any]:
    """Return the data of the map (plot) of methods, cached until the file of a board changes."""
    return _method_maps.get(stamp(boardfiles.folder(), "*.json"), method_map)


def method_map() -> dict[str, Any]:
    """Return the data of the map (plot) of methods: `methods`, `groups`, and `targets` with measured speeds."""
    return {
        "methods": [
            {"name": m.name, "title": m.title, "group": m.group, "promise": m.promise, "teaches": m.teaches}
            | {"part": extra_part(m.needs), "source": m.source}
            for m in method_info.methods()
        ],
        "groups": list(GROUPS.items()),
        "targets": [
            {"name": name, "speeds": {method: speed.to_wire() for method, speed in measured_speeds(name).items()}}
            for name in measured_targets()
        ],
    }


def extra_part(needs: Sequence[str]) -> str:
    """Return the model that a method needs besides the target: "head", "draft model" or "nothing".

    Example:
        >>> extra_part(["eagle", "trees"]), extra_part(["drafter"]), extra_part(["trees"])
        ('head', 'draft model', 'nothing')
    """
    if heads_in(needs):
        return "head"
    return "draft model" if {*DRAFTERS, "sight"} & set(needs) else "nothing"


def all_boards() -> dict[str, Any]:
    """Return the boards (tables of measurements) as the page shows them. This takes seconds of CPU time."""
    from workbench.bench import board, claimsboard, workload_board  # import PyTorch
    from workbench.methods import combinations, registry

    exactness = board.exactness_rows()
    standings = {row["method"]: row["standing"] for row in exactness}
    choice_matrix = combinations.matrix(registry.methods(), standings, board.choice_standings())
    claims, work = claimsboard.rows(), workload_board.targets()
    return {"exactness": exactness, "claims": claims, "combinations": choice_matrix, "work": work}


def catalogue() -> list[dict[str, Any]]:
    """Return the data of a card for each registered method, taken from the registry."""
    return [
        describe(m, "")
        | {name: m.to_wire()[name] for name in IN_FULL}
        | {"needed": method_info.describe_needs(m.needs)}
        for m in method_info.methods()
    ]


def definitions() -> list[dict[str, str]]:
    """Return name, title, meaning and formula of each measured quantity, such as the acceptance rate."""
    return [{"name": name, "title": title, "meaning": meaning} for name, (title, meaning) in DEFINITIONS.items()]


def compatibility(client: Client) -> dict[str, Any]:
    """Return a matrix that says which methods can run with which models.

    `columns` are pairs of a target and a draft model; `rows` are methods. Each row has, for each column, the reason why
    the method cannot run with this pair; an empty reason means that it can.

    A target that may not be used here has no columns, for example one that a public app would have to download.
    """
    columns, cells, check_connected = [], {}, make_disconnect_check()
    for target in client.targets():
        check_connected()
        if not target.get("available", True):
            continue
        usable = [d["name"] for d in client.drafters(target["name"]) if d.get("available", True)]
        for drafter in [*usable, "none"]:
            columns.append({"target": target["name"], "drafter": None if drafter == "none" else drafter})
            for method in client.methods(target["name"], drafter):
                reason = "" if method["available"] else method["reason"]
                cells.setdefault((method["name"], method["title"]), []).append(reason)
    rows = [{"name": name, "title": title, "reasons": reasons} for (name, title), reasons in cells.items()]
    return {"columns": columns, "rows": rows}
