"""`workbench record`: record one run of each method, which the pages show when no model is loaded.

Prompt, seed and models determine the text of a recording; its times depend on the machine that recorded it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from workbench.cli import checks
from workbench.cli.bench import progress_bar
from workbench.cli.examples import EXAMPLES
from workbench.cli.loading import load
from workbench.cli.options import DEFAULT_DRAFTER, DEFAULT_TARGET
from workbench.core.errors import WorkbenchError
from workbench.decoders.declarations import Recording
from workbench.models.bundle import VISION_TARGET, bundled
from workbench.service.checks import check_models, set_error_option
from workbench.trace.events import Trace

if TYPE_CHECKING:
    from workbench.models.loading import Models
    from workbench.trace.speedup import Baseline

TOKENS = 56
SEEDS = 12
"""Number of seeds that are tried for a recording with sampling."""


PAIRS = 9
"""Number of measured pairs for the recording "race", which the Live page shows first.

A pair is a greedy run of `draft-tree` and one of plain decoding.
"""
SWITCH, SWITCH_TO = Recording(("copy ×3",)), (3, "prompt-lookup")
"""Settings of the recording "switch", which changes its method during the run.

It starts with `draft-model`. The second constant has the number of rounds before the change, and the second method.
"""
OTHERS = ("race", "switch")
"""Names of the recorded runs that are not named after a method."""
QUESTION = "Describe every object, left to right."


def record_run(name: str, recording: Recording, models: Models, preset: str, seed: int) -> Trace:
    """Record one run without other sequences in the batch, and return its trace.

    Args:
        name: name of the method, or "switch".
        recording: settings of the recording.
        models: loaded models.
        preset: name of the example prompt.
        seed: seed of the run.
    """
    from workbench.engine import Engine, Request
    from workbench.methods import registry
    from workbench.service.params import split_params
    from workbench.service.presets import presets

    method = registry.get("draft-model" if recording is SWITCH else name)
    method_params, sampling = split_params(method, dict(recording.params))
    prompt = next(p["prompt"] for p in presets() if p["name"] == preset)
    request = Request(prompt, method.with_params(**method_params), sampling, max_new_tokens=TOKENS, seed=seed)
    engine = Engine(models)
    sequence = engine.submit(request)
    while not engine.is_idle:
        engine.step()
        if recording is SWITCH and len(sequence.trace.rounds) == SWITCH_TO[0]:
            sequence.change(registry.get(SWITCH_TO[1]), {})
    return on_this_machine(sequence.trace)


def record_race(models: Models) -> tuple[Trace, Trace, Baseline]:
    """Record pairs of runs of one prompt, with plain decoding and with `draft-tree`, in alternating order.

    Returns:
        Trace of `draft-tree`, trace of plain decoding, and the baseline with the speed-ups of all pairs. The two traces
        come from the pair whose speed-up is closest to the estimate over all pairs.

    Raises:
        WorkbenchError: the two texts differ.
    """
    from workbench.trace.metrics import summary
    from workbench.trace.speedup import Baseline, estimate

    pairs: list[tuple[Trace, Trace]] = []
    for i in range(PAIRS):
        order = ("draft-tree", "autoregressive")[:: 1 if i % 2 else -1]
        takes = {name: record_run(name, Recording(), models, "story", 0) for name in order}
        pairs.append((takes["draft-tree"], takes["autoregressive"]))
    if any(mine.token_ids != plain.token_ids for mine, plain in pairs):
        raise WorkbenchError(
            "The text of the recorded race differs from the text of plain decoding.",
            "Report this as a bug: draft-tree must be exact.",
        )
    rates = [tuple(summary(trace)["tokens_per_second"] for trace in pair) for pair in pairs]
    ratios = [mine / plain for mine, plain in rates]
    found = estimate({0: ratios})
    assert found is not None
    nearest = min(range(PAIRS), key=lambda i: abs(ratios[i] - found.value))
    return *pairs[nearest], Baseline(rates[nearest][1], tuple(ratios))


def record_image(name: str, recording: Recording) -> Trace:
    """Record a description of a bundled image, with the patches to which each word is attributed."""
    from workbench.client import Workbench
    from workbench.views import scenes

    url = next(scene["url"] for scene in scenes.gallery() if scene["name"] == recording.scene)
    parts = [{"type": "image"}, {"type": "text", "text": QUESTION}]
    with Workbench(target=VISION_TARGET) as wb:
        prompt = wb.chat_prompt([{"role": "user", "content": parts}])
        wb.generate(prompt, "autoregressive", images=[url], max_new_tokens=TOKENS)  # the first run of a process is slow
        options: dict[str, Any] = {"images": [url], "max_new_tokens": scenes.CAPTION_TOKENS}
        run = wb.start(prompt, name, params=dict(recording.params), **options)
        trace = run.wait()
        trace.attribution = run.explain()
        return on_this_machine(trace)


def on_this_machine(trace: Trace) -> Trace:
    """Return a copy of a trace whose header names this machine."""
    from workbench.models.machine import machine_facts

    facts = machine_facts()
    trace.header.hardware = facts.get("gpu") or f"{facts['cpu']}, {facts['cores']} cores"
    return trace


def record_best(name: str, recording: Recording, models: Models, others: Mapping[str, Trace]) -> Trace:
    """Record runs of a method with several prompts and seeds, and return the trace of one of them.

    The returned run is the first that supports the exercises of the guided tour, or the first run if none does.

    Args:
        name: name of the method, or "switch" for the recording that changes its method during the run.
        recording: settings of the recording.
        models: loaded models.
        others: traces of the recordings made so far, by name; some exercises compare two recordings.
    """
    if recording.scene is not None:
        return record_image(name, recording)
    seeds = range(SEEDS) if recording.params.get("temperature") else range(1)
    tries = (record_run(name, recording, models, preset, seed) for preset in recording.presets for seed in seeds)
    first = next(tries)
    return next((t for t in (first, *tries) if supports_tour(name, {**others, name: t})), first)


def supports_tour(name: str, recorded: Mapping[str, Trace]) -> bool:
    """Return whether a reader can do the tasks of all steps of the guided tour that show this recording.

    Args:
        name: name of the recording.
        recorded: traces of all recordings made so far, by name.
    """
    from workbench.views import tour

    try:
        tour_steps = [(make_step, needed) for make_step, needed in tour.STEPS.values() if needed[0] == name]
        steps = [
            make_step(*(recorded[n] for n in needed))
            for make_step, needed in tour_steps
            if recorded.keys() >= set(needed)
        ]
    except (StopIteration, ValueError):
        return False
    return all(map(tour.can_be_done, steps))


def record(
    out: Annotated[Path | None, typer.Option(help="Folder for the recordings; by default assets/recorded.")] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="Record only this example: the name of a method, or race, switch, compare or sweep; repeatable."
        ),
    ] = None,
    target: Annotated[str, typer.Option(help="Target model: a bundled name, local folder or Hub id.")] = DEFAULT_TARGET,
) -> None:
    """Record the examples that the pages show without a model: a run of each method, a comparison and a sweep.

    `--only race`, `--only compare` and `--only sweep` measure times: run nothing else on the machine meanwhile.
    """
    from workbench.methods import method_info
    from workbench.views import recorded_runs

    with set_error_option("only"):
        for name in only or ():
            if name not in (*OTHERS, *EXAMPLES):
                method_info.get(name)
    check_models(target, DEFAULT_DRAFTER, "auto", "auto")
    checks.check_output_folder(out, "out")
    from workbench.methods import registry
    from workbench.trace.metrics import summary

    folder = out or recorded_runs.folder()
    folder.mkdir(parents=True, exist_ok=True)
    examples = [name for name in EXAMPLES if not only or name in only]
    methods = [name for name in only or [*registry.names(), *OTHERS] if name not in EXAMPLES]
    for name in examples:
        with progress_bar() as bar:
            content = EXAMPLES[name](target, bar or (lambda done, total, what: None))
        n_bytes = recorded_runs.write_example(name, content, folder)
        print(f"{name:20} {n_bytes / 1e3:5.1f} kB")
    if not methods:
        return
    models = load(target, DEFAULT_DRAFTER, "auto")
    traces: dict[str, Trace] = {}
    record_run("autoregressive", Recording(), models, "story", 0)  # the first run of a process is slow
    for name in methods:
        if name == "race":
            mine, plain, baseline = record_race(models)
            n_bytes = recorded_runs.write(folder / f"{name}{recorded_runs.SUFFIX}", mine, plain, baseline)
            print(f"{name:20} {n_bytes / 1e3:5.1f} kB  speed-up {baseline.estimate}")
            continue
        take = SWITCH if name == "switch" else registry.get(name).recording
        own_models = load(take.target, "none", "auto") if take.target and take.target in bundled() else models
        reason = "" if take is SWITCH or take.scene else own_models.unsupported_reason(registry.get(name).needs)
        if reason:
            print(f"{name:20} left out: {reason}")
            continue
        try:
            models_of_take = own_models.with_drafter(take.drafter) if take.drafter else own_models
        except WorkbenchError as error:
            print(f"{name:20} left out: {error}")
            continue
        traces[name] = trace = record_best(name, take, models_of_take, traces)
        n_bytes = recorded_runs.write(folder / f"{name}{recorded_runs.SUFFIX}", trace)
        figures = summary(trace)
        rate = figures["acceptance_rate"]
        rate_text = "–" if rate is None else f"{rate:.0%}"
        remark = "" if supports_tour(name, traces) else "  (does not support every step of the Live page's tour)"
        print(f"{name:20} {n_bytes / 1e3:5.1f} kB  τ {figures['tau']:.2f}  accepted / tested {rate_text}{remark}")
