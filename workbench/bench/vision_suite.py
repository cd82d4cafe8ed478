"""The vision suite: held-out scenes by kind of question, for every drafter and for every way to shrink a picture.

What it counts (tokens a target pass, drafts accepted) does not depend on the machine or on what else runs on it. Each
scene and question is one observation; intervals are bootstrapped over them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from PIL import Image

from workbench.bench import board
from workbench.bench.estimates import estimate
from workbench.core.errors import MethodUnavailableError, ModelError
from workbench.engine import Engine, Models, Request
from workbench.engine.models import load_models
from workbench.engine.pictures import read
from workbench.methods import registry
from workbench.trace import metrics
from workbench.trace.events import Trace
from workbench.training.generators import ASSISTANT, USER
from workbench.training.scenes.draw import picture
from workbench.training.scenes.evaluate import CAPTION_TOKENS, held_scenes
from workbench.training.scenes.tasks import LEXICON, QUESTIONS, ask
from workbench.training.tokenizer import IMAGE

BOARD = "vision"
TARGET, SEEING, BLIND = "vision-target", "vision-drafter", "vision-text-drafter"
DEPTH = 5
"""Levels that every drafter may draft, so that τ compares what they know and not how much they dare."""
CAPTION, SHORT = "captions", "short answers"
GROUPS = ("all", CAPTION, SHORT)
FACTS = {word: "fact" for words in LEXICON.values() for word in words}
"""Words that state facts of a picture."""
SCENES, QUESTIONS_EACH = 40, 4
"""Held-out scenes that are described, and questions of each other kind."""
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Setting:
    """A drafter with its parameters.

    Attributes:
        name: of the row.
        method: registry name.
        params: beyond the method's defaults.
        drafter: the draft model it runs with, where it takes one.
        line: of the curve τ against vision tokens, where several strengths of one compressor make one.
    """

    name: str
    method: str
    params: Mapping[str, Any] = field(default_factory=dict)
    drafter: str | None = None
    line: str | None = None


def settings() -> list[Setting]:
    """The six drafters, then compressors one by one: SpecVLM's, and FLASH with fewer latents."""
    found = [
        Setting("text-only", "vlm-text-only", {"policy": "fixed"}, BLIND),
        Setting("draft model, chain", "vlm-draft", {"policy": "fixed"}, SEEING),
        Setting("draft model, tree", "vlm-draft", {"policy": "dynamic-tree"}, SEEING),
        Setting("EagleVLM", "eagle-vlm"),
        Setting("MSD", "msd"),
        Setting("FLASH", "flash", line="latents"),
        Setting("SpecVLM, gate", "specvlm", {"compressor": "gate"}),
        Setting("SpecVLM, all", "specvlm", {"compressor": "all"}),
    ]
    ratios = {"prune": (2, 4, 8, 16, 32), "pool": (4, 16, 64), "conv": (4, 16)}
    for name, steps in ratios.items():
        found += [
            Setting(f"SpecVLM, {name} {r}×", "specvlm", {"compressor": name, "ratio": r}, line=name) for r in steps
        ]
    found += [Setting(f"SpecVLM, {name}", "specvlm", {"compressor": name}) for name in ("resample", "none")]
    return found + [Setting(f"FLASH, {n} of 8", "flash", {"latents": n}, line="latents") for n in (4, 2, 1)]


@dataclass(frozen=True)
class Asked:
    """A question about a held-out scene."""

    kind: str
    question: str
    image: Image.Image
    scene: int


def questions(scenes: int, short: int, seed: int = 5) -> list[Asked]:
    """The caption of each of so many held-out scenes, and of each other kind so many questions."""
    found: list[Asked] = []
    for kind in QUESTIONS:
        rng = random.Random(f"{kind}/{seed}")
        mine: list[Asked] = []
        for i, scene in enumerate(held_scenes(scenes)):
            one = ask(kind, scene, rng)
            if one is not None and len(mine) < (scenes if kind == "caption" else short):
                mine.append(Asked(kind, one.question, picture(scene), i))
        found += mine
    return found


def run_suite(
    scenes: int = SCENES,
    short: int = QUESTIONS_EACH,
    names: Sequence[str] = (),
    models: Models | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Measure and put each row on the board as soon as it is there.

    Args:
        scenes: held-out scenes that are described.
        short: questions of each other kind.
        names: settings by name; all by default.
        models: target and drafters; the bundled ones by default.
        progress: told (done, total, what).

    Returns:
        The board's rows by name.
    """
    models = models or load_models(TARGET, None)
    asked = questions(scenes, short)
    chosen = [s for s in settings() if not names or s.name in names]
    plain = plain_texts(models, asked)
    for number, setting in enumerate(chosen):
        if progress is not None:
            progress(number, len(chosen), setting.name)
        row = measure(setting, models, asked, plain)
        if row is not None:
            board.save(BOARD, setting.name, row, markdown)
    return board.read(BOARD)


def plain_texts(models: Models, asked: Sequence[Asked]) -> list[list[int]]:
    """What plain decoding writes for each question."""
    engine, plain = Engine(models), registry.get("autoregressive").with_params()
    return [engine.generate(request(models, one, plain)).token_ids for one in asked]


def request(models: Models, one: Asked, configured: Any) -> Request:
    """The request for one question."""
    prompt, images = read(models, f"{USER}{IMAGE}{one.question}{ASSISTANT}", [one.image])
    return Request(
        prompt, configured, max_new_tokens=CAPTION_TOKENS, images=images, pictures=(one.image,), models=models
    )


def measure(
    setting: Setting, models: Models, asked: Sequence[Asked], plain: Sequence[Sequence[int]]
) -> dict[str, Any] | None:
    """One row: counts of every question, summed up by group; None where the models lack what the setting needs.

    Args:
        setting: what to run.
        models: target and drafters.
        asked: the questions.
        plain: what plain decoding wrote for each.
    """
    try:
        traces = traces_of(setting, models, asked)
    except (MethodUnavailableError, ModelError):
        return None
    seen = next(iter(_vision(traces)), {})
    equal = sum(t.token_ids == list(text) for t, text in zip(traces, plain, strict=True))
    groups = {
        "all": traces,
        CAPTION: [t for t, one in zip(traces, asked, strict=True) if one.kind == "caption"],
        SHORT: [t for t, one in zip(traces, asked, strict=True) if one.kind != "caption"],
    }
    groups |= {kind: [t for t, one in zip(traces, asked, strict=True) if one.kind == kind] for kind in QUESTIONS}
    return {
        "method": setting.method,
        "params": {**setting.params, "depth": DEPTH},
        "line": setting.line,
        "compressor": seen.get("compressor"),
        "vision_tokens": estimate([float(v["n_drafter"]) for v in _vision(traces)]),
        "drafter_bytes": estimate([float(v["drafter_bytes"]) for v in _vision(traces)]),
        "of": seen.get("n_target"),
        "chosen": _chosen(traces),
        "same_text": [equal, len(traces)],
        "groups": {name: figures(mine) for name, mine in groups.items() if mine},
    }


def traces_of(setting: Setting, models: Models, asked: Sequence[Asked]) -> list[Trace]:
    """Run a setting on questions.

    Raises:
        MethodUnavailableError: the models lack what it needs.
        ModelError: its draft model cannot be loaded.
    """
    if setting.drafter not in (None, models.drafter_name):
        models = models.with_drafter(setting.drafter)
    configured = registry.get(setting.method).with_params(depth=DEPTH, **setting.params)
    engine = Engine(models)
    return [engine.generate(request(models, one, configured)) for one in asked]


def _vision(traces: Sequence[Trace]) -> Iterator[dict[str, Any]]:
    for trace in traces:
        yield next((r.vision for r in trace.rounds if r.vision), {"n_drafter": 0, "drafter_bytes": 0})


def _chosen(traces: Sequence[Trace]) -> dict[str, int]:
    """How often a gate chose what."""
    found: dict[str, int] = {}
    for seen in _vision(traces):
        if seen.get("gate"):
            found[seen["compressor"]] = found.get(seen["compressor"], 0) + 1
    return found


def figures(traces: Sequence[Trace]) -> dict[str, Any]:
    """τ and acceptance, each question one observation; acceptance on words of the picture and on the others."""
    kinds = [metrics.acceptance_by_kind(t, FACTS) for t in traces]

    def share(kind: str) -> dict[str, Any] | None:
        return estimate([k[kind][1] / k[kind][0] for k in kinds if k.get(kind, (0, 0))[0]])

    return {
        "tau": estimate([v for t in traces if (v := metrics.tau(t.rounds)) is not None]),
        "acceptance": estimate([v for t in traces if (v := metrics.acceptance_rate(t.rounds)) is not None]),
        "facts": share("fact"),
        "others": share(metrics.OTHER),
    }


# -- shown ------------------------------------------------------------------------------------------------------------


def markdown(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """The drafters side by side, and the curve: τ against vision tokens."""
    order = [s.name for s in settings() if s.name in rows]
    six = [name for name in order if "," not in name or rows[name]["method"] == "vlm-draft" or name == "SpecVLM, gate"]
    elastic = {"specvlm", "flash"}
    curve = sorted((n for n in order if rows[n]["method"] in elastic), key=lambda n: -_tokens(rows[n]))
    some = rows[order[0]] if order else {}
    n = some["groups"]["all"]["tau"]["n"] if some else 0
    lines = [
        "| drafter | vision tokens | τ, captions | τ, short answers | accepted | accepted: facts | other words |",
        "|---|---:|---:|---:|---:|---:|---:|",
        *(_line(name, rows[name]) for name in six),
        "",
        "| compressor | vision tokens | τ, captions | τ, short answers | accepted |",
        "|---|---:|---:|---:|---:|",
        *(_curve_line(name, rows[name]) for name in curve),
        "",
        f"{n} questions about held-out scenes, greedy; every drafter drafts at most {DEPTH} levels; [95 % interval,"
        " bootstrapped over questions]. Accepted: tokens accepted / tested, in captions. Facts: words for colour,"
        " shape, size, place, relation and number. Made by `workbench bench --suite vision`.",
    ]
    return "\n".join(lines) + "\n"


def _tokens(row: Mapping[str, Any]) -> float:
    return row["vision_tokens"]["value"]


def _line(name: str, row: Mapping[str, Any]) -> str:
    groups = row["groups"]
    captions = groups[CAPTION]
    cells = [_span(captions["tau"]), _span(groups[SHORT]["tau"]), _share(captions["acceptance"])]
    return f"| {name} | {_tokens(row):.4g} | " + " | ".join(
        [*cells, _share(captions["facts"]), _share(captions["others"])]
    ) + " |"  # fmt: skip


def _curve_line(name: str, row: Mapping[str, Any]) -> str:
    groups = row["groups"]
    cells = [_span(groups[CAPTION]["tau"]), _span(groups[SHORT]["tau"]), _share(groups[CAPTION]["acceptance"])]
    chosen = ", ".join(f"{what} {n}" for what, n in sorted(row["chosen"].items(), key=lambda item: -item[1]))
    label = name + (f" ({chosen})" if chosen else "")
    return f"| {label} | {_tokens(row):.4g} | {' | '.join(cells)} |"


def _span(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "–"
    low = "" if found["low"] is None else f" [{found['low']:.2f}, {found['high']:.2f}]"
    return f"{found['value']:.2f}{low}"


def _share(found: Mapping[str, Any] | None) -> str:
    return "–" if found is None else f"{100 * found['value']:.0f} %"


def figure(rows: Mapping[str, Mapping[str, Any]], group: str = CAPTION) -> Any:
    """τ against vision tokens, one line a compressor, with intervals; the other drafters as points. Plotly."""
    import plotly.graph_objects as go

    lines: dict[str, list[Mapping[str, Any]]] = {}
    for name, row in rows.items():
        if group in row["groups"]:
            lines.setdefault(row["line"] or name, []).append(row)
    shown = go.Figure()
    for label, mine in lines.items():
        mine = sorted(mine, key=_tokens)
        taus = [row["groups"][group]["tau"] for row in mine]
        ends = [(t["value"] if t[end] is None else t[end]) for end in ("high", "low") for t in taus]
        high, low = ends[: len(taus)], ends[len(taus) :]
        shown.add_scatter(
            x=[_tokens(row) for row in mine],
            y=[t["value"] for t in taus],
            error_y={
                "array": [h - t["value"] for h, t in zip(high, taus, strict=True)],
                "arrayminus": [t["value"] - b for b, t in zip(low, taus, strict=True)],
            },
            mode="lines+markers" if len(mine) > 1 else "markers",
            name=label,
        )
    shown.update_layout(
        xaxis_title="vision tokens that the drafter sees (of 64)",
        yaxis_title=f"τ, {group} (tokens a target pass)",
        template="plotly_white",
    )
    return shown
