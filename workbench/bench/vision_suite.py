"""The vision suite: held-out scenes by kind of question, for every drafter and for every way to compress an image.

Its metrics (tokens per target pass, accepted drafts) depend neither on the machine nor on its load. Each pair of
scene and question is one observation; intervals are bootstrapped over observations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from workbench.bench import board
from workbench.bench.markdown import format_interval
from workbench.bench.markdown import markdown_table as table
from workbench.bench.statistics import mean
from workbench.bench.study import BEGIN, Rows, Study, in_turn
from workbench.bench.vision_settings import (
    CAPTION,
    DEPTH,
    FACTS,
    QUESTIONS_EACH,
    SCENES,
    SHORT,
    SUITE,
    SceneQuestion,
    questions,
    settings,
)
from workbench.core.errors import MethodUnavailableError, ModelError
from workbench.decoders.declarations import Setting
from workbench.engine import Engine, Models, Request
from workbench.engine.image_inputs import process_prompt
from workbench.methods import registry
from workbench.models.bundle import VISION_TARGET as TARGET
from workbench.models.chat_markers import ASSISTANT, IMAGE, USER
from workbench.models.loading import load_models
from workbench.scenes.held import CAPTION_TOKENS
from workbench.scenes.tasks import QUESTIONS
from workbench.trace import metrics
from workbench.trace.events import Trace

BOARD = SUITE
Progress = Callable[[int, int, str], None]


def run_suite(
    scenes: int = SCENES,
    short: int = QUESTIONS_EACH,
    names: Sequence[str] = (),
    models: Models | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Measure all settings of the vision suite, and save each row to the vision board as soon as it is finished.

    Args:
        scenes: number of held-out scenes that are captioned.
        short: number of questions of each kind other than captions.
        names: names of the settings to measure; by default all.
        models: target and drafters; the bundled ones by default.
        progress: function that is called with (done, total, name).

    Returns:
        The board's rows by name.
    """
    models = models or load_models(TARGET, None)
    scene_questions = questions(scenes, short)
    selected = [s for s in settings() if not names or s.name in names]
    plain = plain_texts(models, scene_questions)
    store = Rows[Setting](
        lambda setting: setting.name, save_row=lambda name, row: row and board.save(BOARD, name, row, markdown)
    )

    def measure_row(setting: Setting) -> dict[str, Any] | None:
        return measure(setting, models, scene_questions, plain)

    study = Study[Setting, Any](selected, in_turn(measure_row), store, key=lambda setting: setting.name)
    for kind, setting, _ in study.run():
        if kind == BEGIN and progress is not None:
            progress(study.done, len(selected), setting.name)
    return board.read(BOARD)


def plain_texts(models: Models, scene_questions: Sequence[SceneQuestion]) -> list[list[int]]:
    """Return the tokens that plain decoding generates for each question about a scene."""
    engine, plain = Engine(models), registry.get("autoregressive").with_params()
    return [engine.generate(request(models, question, plain)).token_ids for question in scene_questions]


def request(models: Models, scene_question: SceneQuestion, configured: Any) -> Request:
    """Return the engine request for one question about a scene."""
    prompt, images = process_prompt(
        models, f"{USER}{IMAGE}{scene_question.question}{ASSISTANT}", [scene_question.image]
    )
    return Request(
        prompt,
        configured,
        max_new_tokens=CAPTION_TOKENS,
        image_inputs=images,
        pil_images=(scene_question.image,),
        models=models,
    )


def measure(
    setting: Setting, models: Models, scene_questions: Sequence[SceneQuestion], plain: Sequence[Sequence[int]]
) -> dict[str, Any] | None:
    """Return one row of the vision board: a setting's metrics by group of questions.

    The result is None if the models lack a part that the setting needs.

    Args:
        setting: drafter with the parameters to measure.
        models: models with the target and its drafters.
        scene_questions: questions about scenes.
        plain: tokens that plain decoding generates for each question.
    """
    try:
        traces = traces_of(setting, models, scene_questions)
    except (MethodUnavailableError, ModelError):
        return None
    vision = next(iter(_vision(traces)), {})
    equal = sum(t.token_ids == list(text) for t, text in zip(traces, plain, strict=True))
    groups = {
        "all": traces,
        CAPTION: [t for t, question in zip(traces, scene_questions, strict=True) if question.kind == "caption"],
        SHORT: [t for t, question in zip(traces, scene_questions, strict=True) if question.kind != "caption"],
    }
    groups |= {
        kind: [t for t, question in zip(traces, scene_questions, strict=True) if question.kind == kind]
        for kind in QUESTIONS
    }
    return {
        "method": setting.method,
        "params": {**setting.params, "depth": DEPTH},
        "line": setting.line,
        "compressor": vision.get("compressor"),
        "vision_tokens": mean([float(v["n_drafter"]) for v in _vision(traces)]),
        "drafter_bytes": mean([float(v["drafter_bytes"]) for v in _vision(traces)]),
        "of": vision.get("n_target"),
        "chosen": _chosen(traces),
        "same_text": [equal, len(traces)],
        "groups": {name: figures(members) for name, members in groups.items() if members},
    }


def traces_of(setting: Setting, models: Models, scene_questions: Sequence[SceneQuestion]) -> list[Trace]:
    """Run a setting of the vision suite on questions about scenes, and return the traces.

    Raises:
        MethodUnavailableError: the models lack a part that the setting needs.
        ModelError: the setting's draft model cannot be loaded.
    """
    if setting.drafter not in (None, models.drafter_name):
        models = models.with_drafter(setting.drafter)
    configured = registry.get(setting.method).with_params(depth=DEPTH, **setting.params)
    engine = Engine(models)
    return [engine.generate(request(models, question, configured)) for question in scene_questions]


def _vision(traces: Sequence[Trace]) -> Iterator[dict[str, Any]]:
    for trace in traces:
        yield next((r.vision for r in trace.rounds if r.vision), {"n_drafter": 0, "drafter_bytes": 0})


def _chosen(traces: Sequence[Trace]) -> dict[str, int]:
    """Return for each image compressor the number of runs in which the drafter's gate chose it."""
    counts: dict[str, int] = {}
    for vision in _vision(traces):
        if vision.get("gate"):
            counts[vision["compressor"]] = counts.get(vision["compressor"], 0) + 1
    return counts


def figures(traces: Sequence[Trace]) -> dict[str, Any]:
    """Return τ and acceptance over questions, and the acceptance of words that state facts and of other words."""
    kinds = [metrics.acceptance_by_kind(t, FACTS) for t in traces]

    def share(kind: str) -> dict[str, Any] | None:
        return mean([k[kind][1] / k[kind][0] for k in kinds if k.get(kind, (0, 0))[0]])

    return {
        "tau": mean([v for t in traces if (v := metrics.tau(t.rounds)) is not None]),
        "acceptance": mean([v for t in traces if (v := metrics.acceptance_rate(t.rounds)) is not None]),
        "facts": share("fact"),
        "others": share(metrics.OTHER),
    }


# -- display ----------------------------------------------------------------------------------------------------------


def markdown(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the vision board as Markdown: a table of the drafters, and a table of τ by number of vision tokens."""
    declared = [s for s in settings() if s.name in rows]
    order, main = [s.name for s in declared], [s.name for s in declared if s.main]
    elastic = {s.method for s in declared if s.line}
    curve = sorted((s.name for s in declared if s.method in elastic), key=lambda n: -_tokens(rows[n]))
    first_row = rows[order[0]] if order else {}
    n = first_row["groups"]["all"]["tau"]["n"] if first_row else 0
    return "\n".join(
        [
            table(COLUMNS, [(name, rows[name]) for name in main]),
            "",
            table(
                {"compressor": _compressor} | dict(list(COLUMNS.items())[1:5]), [(name, rows[name]) for name in curve]
            ),
            "",
            f"{n} questions about held-out scenes, greedy; every drafter drafts at most {DEPTH} levels; [95 % "
            f"interval, bootstrapped over questions]. Accepted: accepted / tested draft tokens, in captions. "
            f"Facts: words for colour,"
            " shape, size, place, relation and number. Made by `workbench bench --suite vision`.",
            "",
        ]
    )


Row = tuple[str, Mapping[str, Any]]
COLUMNS: dict[str, Callable[[Row], str]] = {
    "drafter": lambda r: r[0],
    "vision tokens": lambda r: f"{_tokens(r[1]):.4g}",
    "τ, captions": lambda r: format_interval(r[1]["groups"][CAPTION]["tau"]),
    "τ, short answers": lambda r: format_interval(r[1]["groups"][SHORT]["tau"]),
    "accepted": lambda r: _share(r[1], "acceptance"),
    "accepted: facts": lambda r: _share(r[1], "facts"),
    "other words": lambda r: _share(r[1], "others"),
}


def _tokens(row: Mapping[str, Any]) -> float:
    return row["vision_tokens"]["value"]


def _compressor(row: Row) -> str:
    name, counts = row[0], sorted(row[1]["chosen"].items(), key=lambda item: -item[1])
    return name + (f" ({', '.join(f'{compressor} {n}' for compressor, n in counts)})" if counts else "")


def _share(row: Mapping[str, Any], kind: str) -> str:
    interval = row["groups"][CAPTION][kind]
    return "–" if interval is None else f"{100 * interval['value']:.0f} %"
