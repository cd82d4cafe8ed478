"""The methods' pages of the site, from the registry, and the boards."""

from __future__ import annotations

import html
import inspect
from collections.abc import Sequence
from typing import Any

from workbench.bench import board
from workbench.engine.method import Method
from workbench.engine.parts import Verifier
from workbench.methods import registry
from workbench.methods.known import PROMISES, needed
from workbench.trace.metrics import DEFINITIONS

_PROMISES = {
    "exact": "The output follows the target's own distribution, whatever the drafter.",
    "greedy-exact": "Greedy output is the target's own; of sampling nothing is promised.",
    "approximate": "The output deviates from the target's distribution by a stated knob.",
    "simulation": "It uses knowledge that no real drafter has: it shows a law, not a speed.",
}


def pages() -> dict[str, str]:
    """Markdown of each page by its path: an overview, a page for each method, the boards, the definitions."""
    methods = list(registry.methods())
    shown = board.exactness()
    return (
        {"methods/index.md": _overview(methods)}
        | {f"methods/{method.name}.md": _page(method, shown) for method in methods}
        | {f"methods/board-{name}.md": _board(name) for name in _boards().values()}
        | {"methods/figures.md": _figures()}
    )


def navigation() -> list[dict[str, Any]]:
    """The part of the site's navigation that holds these pages."""
    entries: list[Any] = ["methods/index.md"]
    entries += [{method.title: f"methods/{method.name}.md"} for method in registry.methods()]
    entries += [{title: f"methods/board-{name}.md"} for title, name in _boards().items()]
    return [*entries, {"What the figures mean": "methods/figures.md"}]


def _overview(methods: Sequence[Method]) -> str:
    lines = [
        "# Methods",
        "",
        f"The {len(methods)} registered methods. {PROMISES}",
        "",
        "| method | what it shows | promise | needs | from |",
        "|---|---|---|---|---|",
    ]
    for method in methods:
        needs = ", ".join(method.needs) or "–"
        cells = [f"[{method.title}]({method.name}.md)", method.teaches, method.promise.value, needs, _paper(method)]
        lines.append(_row(cells))
    return "\n".join([*lines, ""])


def _page(method: Method, evidence: Sequence[dict[str, Any]]) -> str:
    source = method.source
    row = next(row for row in evidence if row["method"] == method.name)
    idea = method.idea or (inspect.getdoc(method.drafter) or "").split("\n\n")[0].replace("\n", " ")
    lines = [
        f"# {method.title}",
        "",
        f"*{method.teaches}*",
        "",
        idea,
        "",
        *([f'<p class="formula">{html.escape(method.formula)}</p>', ""] if method.formula else []),
        "| | |",
        "|---|---|",
        _row(["Name", f"`{method.name}`"]),
        _row(["Promise", f"**{method.promise.value}**: {_PROMISES[method.promise.value]}"]),
        _row(["Evidence", f"{_evidence(row)} ([the board](board-exactness.md))"]),
        _row(["Needs", needed(method.needs)]),
        _row(["From", ", ".join(filter(None, [_paper(method), source.title, source.where]))]),
        _row(["Drafter", _class(method.drafter)]),
        _row(["Verifier", "; or ".join(_judge(method, verifier) for verifier in method.verifiers)]),
        "",
        *(
            ["## What differs from the paper", "", *(f"- {words}" for words in method.differs), ""]
            if method.differs
            else []
        ),
        "## Parameters",
        "",
    ]
    if specs := list(method.params.values()):
        lines += ["| parameter | default | allowed | meaning |", "|---|---|---|---|"]
        for spec in specs:
            allowed = ", ".join(map(str, spec.choices)) if spec.choices else f"{spec.ge} to {spec.le}"
            meaning = f"{spec.doc} (only if {spec.when})" if spec.when else spec.doc
            cells = [f"`{spec.name}`", f"`{spec.default}`", "true, false" if spec.kind == "bool" else allowed, meaning]
            lines.append(_row(cells))
    else:
        lines.append("It has none.")
    example = f'workbench generate "Once upon a time" --method {method.name}'
    if "pictures" in method.needs:
        example = (
            'workbench generate --chat "Describe the picture." --image assets/scenes/four-shapes.png '
            f"--target vision-target --method {method.name}"
        )
    return "\n".join([*lines, "", "## Try it", "", "```bash", example, "```", ""])


def _evidence(row: dict[str, Any]) -> str:
    greedy = row["greedy"]
    parts = [f"**{row['standing']}**"]
    if greedy:
        parts.append(f"{greedy['equal']} of {greedy['tried']} greedy texts equal to plain decoding's in float64")
    parts += [f"sampling: χ² {board.law_words(law)}" for law in row["laws"]]
    return "; ".join(parts)


def _judge(method: Method, verifier: Verifier) -> str:
    """A verifier, and what is promised with it where there are several."""
    promised = f" (`verifier={verifier.name}`: {method.promises[verifier.name].value})" if method.promises else ""
    return _class(verifier) + promised


def _class(part: Any) -> str:
    kind = type(part)
    return f"[`{kind.__name__}`][{kind.__module__}.{kind.__name__}]"


def _paper(method: Method) -> str:
    source = method.source
    return f"[{f'{source.authors} {source.year}' if source.year else source.title}]({source.url})"


def _boards() -> dict[str, str]:
    """Names of the boards that were made, by title."""
    boards = {
        "Exactness": "exactness",
        "Claims of the papers": "claims",
        "Vision drafters": "vision",
        "What verifiers cost": "verifiers",
        "Which answers stay right": "answers",
        "Which drafter for which work": "work",
        "What drafters cost the host": "host",
        "Drafting heads": "heads",
        "How a drafter scales": "scaling",
        "Which loss, whose text": "distilling",
        "How many tokens a drafter needs": "trimming",
        "A head beside a target in training": "rollouts",
    }
    return {title: name for title, name in boards.items() if (board.folder() / f"{name}.md").is_file()}


def _board(name: str) -> str:
    """Its page; a picture beside it is of the repository alone."""
    lines = (board.folder() / f"{name}.md").read_text(encoding="utf-8").splitlines()
    return "\n".join([line for line in lines if not line.startswith("![")] + [""])


def _figures() -> str:
    rows = [_row([f"`{name}`", title, meaning]) for name, (title, meaning) in DEFINITIONS.items()]
    return "\n".join(["# What the figures mean", "", "| name | in words | definition |", "|---|---|---|", *rows, ""])


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
