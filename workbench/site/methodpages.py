"""Generate the web site's pages about methods (from the registry), boards of measurements, and metrics."""

from __future__ import annotations

import html
import inspect
from collections.abc import Sequence
from typing import Any

from workbench.bench import board
from workbench.decoders.draft_verify.parts import Verifier
from workbench.decoders.method import Method
from workbench.methods import registry
from workbench.methods.method_info import PROMISES, describe_needs
from workbench.trace.metrics import DEFINITIONS

_PROMISES = {
    "exact": "The output follows the target's distribution with any drafter.",
    "greedy-exact": "Greedy output equals the target's; sampled output may differ in distribution.",
    "approximate": "The output deviates from the target's distribution; a parameter controls the size of the "
    "deviation.",
    "simulation": "The method uses information that no real drafter has: it demonstrates theory, not speed.",
}


def pages() -> dict[str, str]:
    """Return the Markdown of the web site's pages by path: overview, one page per method, boards, metrics."""
    methods = list(registry.methods())
    exactness = board.exactness_rows()
    return (
        {"methods/index.md": _overview(methods)}
        | {f"methods/{method.name}.md": _page(method, exactness) for method in methods}
        | {f"methods/board-{name}.md": _board(name) for name in _boards().values()}
        | {"methods/figures.md": _figures()}
    )


def navigation() -> list[dict[str, Any]]:
    """Return the entries of the web site's navigation for the pages about methods, boards and metrics."""
    entries: list[Any] = ["methods/index.md"]
    entries += [{method.title: f"methods/{method.name}.md"} for method in registry.methods()]
    entries += [{title: f"methods/board-{name}.md"} for title, name in _boards().items()]
    return [*entries, {"Definitions of the metrics": "methods/figures.md"}]


def _overview(methods: Sequence[Method]) -> str:
    lines = [
        "# Methods",
        "",
        f"The {len(methods)} registered methods. {PROMISES}",
        "",
        "| method | lesson | guarantee | requirements | source |",
        "|---|---|---|---|---|",
    ]
    for method in methods:
        needs = ", ".join(method.needs) or "–"
        cells = [f"[{method.title}]({method.name}.md)", method.summary, method.promise.value, needs, _paper(method)]
        lines.append(_row(cells))
    return "\n".join([*lines, ""])


def _page(method: Method, evidence: Sequence[dict[str, Any]]) -> str:
    source = method.source
    row = next(row for row in evidence if row["method"] == method.name)
    idea = method.idea or (inspect.getdoc(method.drafter) or "").split("\n\n")[0].replace("\n", " ")
    lines = [
        f"# {method.title}",
        "",
        f"*{method.summary}*",
        "",
        idea,
        "",
        *([f'<p class="formula">{html.escape(method.formula)}</p>', ""] if method.formula else []),
        "| | |",
        "|---|---|",
        _row(["Name", f"`{method.name}`"]),
        _row(["Guarantee", f"**{method.promise.value}**: {_PROMISES[method.promise.value]}"]),
        _row(["Evidence", f"{_evidence(row)} ([exactness board](board-exactness.md))"]),
        _row(["Requirements", describe_needs(method.needs)]),
        _row(["Source", ", ".join(filter(None, [_paper(method), source.title, source.where]))]),
        _row(["Drafter", _class(method.drafter)]),
        _row(["Verifier", "; or ".join(_verifier_link(method, verifier) for verifier in method.verifiers)]),
        "",
        *(
            ["## Differences from the paper", "", *(f"- {difference}" for difference in method.differences), ""]
            if method.differences
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
        lines.append("This method has no parameters.")
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
        parts.append(f"{greedy['equal']} of {greedy['tried']} greedy outputs equal to plain decoding in float64")
    parts += [f"sampling: χ² {board.describe_fit(fit)}" for fit in row["distributions"]]
    return "; ".join(parts)


def _verifier_link(method: Method, verifier: Verifier) -> str:
    """Return a Markdown link to a verifier; if a method has several verifiers, add its guarantee with this one."""
    guarantee = f" (`verifier={verifier.name}`: {method.promises[verifier.name].value})" if method.promises else ""
    return _class(verifier) + guarantee


def _class(part: Any) -> str:
    kind = type(part)
    return f"[`{kind.__name__}`][{kind.__module__}.{kind.__name__}]"


def _paper(method: Method) -> str:
    source = method.source
    return f"[{f'{source.authors} {source.year}' if source.year else source.title}]({source.url})"


def _boards() -> dict[str, str]:
    """Return the names of the existing boards (tables of measurements), by title."""
    boards = {
        "Exactness": "exactness",
        "Claims of the papers": "claims",
        "Vision drafters": "vision",
        "Verifier cost": "verifiers",
        "Answer accuracy by verifier": "answers",
        "Choosing a method for your workload": "work",
        "Host overhead of drafters": "host",
        "Drafting heads": "heads",
        "Scaling of a drafter": "scaling",
        "Distillation losses and training texts": "distilling",
        "Reduced output vocabularies": "trimming",
        "Training a head with its target": "rollouts",
    }
    return {title: name for title, name in boards.items() if (board.folder() / f"{name}.md").is_file()}


def _board(name: str) -> str:
    """Return the Markdown page of a board without its images, which are not part of the web site."""
    lines = (board.folder() / f"{name}.md").read_text(encoding="utf-8").splitlines()
    return "\n".join([line for line in lines if not line.startswith("![")] + [""])


def _figures() -> str:
    rows = [_row([f"`{name}`", title, meaning]) for name, (title, meaning) in DEFINITIONS.items()]
    return "\n".join(["# Definitions of the metrics", "", "| name | title | definition |", "|---|---|---|", *rows, ""])


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
