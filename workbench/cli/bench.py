"""`workbench bench`: methods side by side, measured honestly."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from workbench.cli import checks, hostcosts, rightanswers, verifiercosts, whatifs
from workbench.cli.loading import load
from workbench.cli.options import (
    DEFAULT_DRAFTER,
    DEFAULT_TARGET,
    Debug,
    Device,
    Drafter,
    Dtype,
    Json,
    Seed,
    Settings,
    Target,
    Temperature,
    TopK,
    TopP,
    parse_settings,
)
from workbench.core.errors import ModelError, UnknownNameError, WorkbenchError
from workbench.engine.devices import check_gpu
from workbench.methods import known
from workbench.service.checks import about, check_models


class Against(str, Enum):
    """Whom to compare with."""

    hf = "hf"
    hf_stock = "hf-stock"
    llama_cpp = "llama-cpp"


ACCEPTANCE = "acceptance"
"""A suite of drafters instead of prompts."""
VISION = "vision"
"""A suite of pictures: acceptance of the vision drafters, on a board of its own."""
GPU = "gpu"
"""A suite of targets: of the sizes that people serve, made on the GPU itself, beside transformers' own generate."""
ANSWERS = "answers"
"""Problems with answers: of methods if any are named, else of rules that do not keep the target's law."""
VERIFIERS = "verifiers"
"""A suite of rules: what judging a draft of 64 nodes costs, by vocabulary."""
HOST = "host"
"""A suite of drafters: what proposing and observing cost the host, by context."""
WHATIF = "whatif"
"""A suite of predictions: every what-if beside the run that it predicts."""
KINDS = (".md", ".json", ".csv", ".parquet", ".html")


def bench(
    method: Annotated[
        list[str] | None, typer.Option(help="A method to measure; repeat for more. By default all but simulations.")
    ] = None,
    settings: Settings = None,
    prompts: Annotated[Path | None, typer.Option(help="JSON lines with `prompt`; the bundled set by default.")] = None,
    group: Annotated[list[str] | None, typer.Option(help="Only these groups of prompts, for example copy.")] = None,
    limit: Annotated[int, typer.Option(min=0, help="Only the first so many prompts; 0 takes all.")] = 0,
    per_group: Annotated[int, typer.Option(min=0, help="Only the first so many of each group that fit.")] = 0,
    suite: Annotated[
        str,
        typer.Option(
            help="bundled, spec-bench, mt-bench, humaneval, gsm8k or mbpp; work: all kinds of work, or one of them: "
            "copy-edit, summary, retrieval, refactoring, json, chat, stories, maths, repeat; answers: problems whose "
            "answers are checked; acceptance: drafters of forced acceptance against Hugging Face; gpu: targets of 1B "
            "and 8B shape made on the GPU, and smollm2 where it is there, against Hugging Face; vision: held-out "
            "scenes, all vision drafters; verifiers: the cost of each rule; host: what drafters cost the host, by "
            "context; or whatif: every prediction of `workbench whatif` beside the run that it predicts."
        ),
    ] = "bundled",
    data: Annotated[Path | None, typer.Option(help="Folder with the files of the suites that are not bundled.")] = None,
    against: Annotated[
        list[Against] | None,
        typer.Option(
            help="Also measure Hugging Face's generate (hf on the same model objects, hf-stock on unpacked ones) or "
            "llama.cpp; repeatable."
        ),
    ] = None,
    target: Target = DEFAULT_TARGET,
    drafter: Drafter = DEFAULT_DRAFTER,
    dtype: Dtype = "auto",
    drafter_dtype: Annotated[str, typer.Option(help="Number format of the drafter.")] = "auto",
    device: Device = "auto",
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Length limit of every generation, in tokens.")] = 128,
    repeats: Annotated[int, typer.Option(min=1, help="Repetitions of every method and prompt.")] = 3,
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    seed: Seed = 0,
    depth: Annotated[int, typer.Option(min=1, help="Draft length of the suites `acceptance` and `gpu`.")] = 5,
    timed: Annotated[
        bool | None,
        typer.Option(
            "--timed/--untimed",
            help="Suite `whatif`: only speeds (on an idle machine), or only the rest.",
        ),
    ] = None,
    connect: Annotated[str | None, typer.Option(hidden=True)] = None,
    out: Annotated[
        list[Path] | None,
        typer.Option(help="Also write the report here: .md, .html, .json, .csv or .parquet; repeatable."),
    ] = None,
    answers: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write answer files in Spec-Bench's format here.")
    ] = None,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option(metavar="OLD NEW", help="Measure nothing: say how two saved reports differ beyond noise."),
    ] = None,
    tolerance: Annotated[
        float, typer.Option(min=0, max=1, help="With --compare: smallest relative change that counts.")
    ] = 0.02,
    read_answers: Annotated[
        tuple[Path, Path] | None,
        typer.Option(metavar="BASELINE METHOD", help="Measure nothing: speeds from two answer files of Spec-Bench."),
    ] = None,
    by_group: Annotated[bool, typer.Option(help="Show a table for each group of prompts too.")] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Measure speed, acceptance and overhead, interleaved with plain decoding, prompt by prompt.

    Speed-ups are ratios within one repeat, given as the geometric mean over prompts with its 95 % interval. Ctrl-C
    keeps what is done. `--set NAME=VALUE` applies to every method that has the parameter, `--set METHOD.NAME=VALUE` to
    one. A bench measures the machine it runs on: there is no --connect.

    Example: workbench bench --suite spec-bench --data ../data/eval --per-group 3 --against hf --out bench.html
    """
    if connect is not None:
        raise typer.BadParameter("a bench measures the machine it runs on; run it there", param_hint="--connect")
    if compare is not None:
        raise typer.Exit(_compare(*compare, tolerance, as_json))
    if read_answers is not None:
        return _print_speeds(*read_answers, as_json)
    from workbench.bench.datasets import load_suite
    from workbench.bench.prompts import load_prompts

    for path in out or ():
        if path.suffix not in KINDS and suite != HOST:
            raise typer.BadParameter(f"the name must end in one of {', '.join(KINDS)}", param_hint="--out")
        checks.file_to_write(path, "out")
    checks.folder_to_write(answers, "answers")
    if suite == VERIFIERS:
        return verifiercosts.measure(device, repeats, out or [], as_json)
    if suite == HOST:
        return hostcosts.measure(target, repeats, out or [], as_json)
    if suite == VISION:
        return _vision(limit, out or [], as_json)
    if suite == GPU:
        refused = {"--answers": answers, "--set": settings and not method, "--data": data, "--dtype": dtype != "auto",
                   "--target": target != DEFAULT_TARGET, "--drafter": drafter != DEFAULT_DRAFTER,
                   "--drafter-dtype": drafter_dtype != "auto"}  # fmt: skip
        _check_gpu(device, [name for name, given in refused.items() if given], method or ())
    own = prompts is not None or suite in (ACCEPTANCE, GPU, WHATIF)
    chosen = load_prompts(prompts) if own else load_suite(suite, data)
    checks.groups(group or (), chosen)
    chosen = [p for p in chosen if not group or p.group in group]
    chosen = chosen[:limit] if limit else chosen
    asked_sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    checks.sampling(asked_sampling)
    pair = check_models(target, drafter, device, dtype, drafter_dtype)
    if suite == ANSWERS and not method and prompts is None:
        scale = {"per_group": per_group, "temperature": temperature, "tokens": max_new_tokens, "seed": seed}
        return rightanswers.measure(
            lambda: load(target, drafter, device, dtype, drafter_dtype), scale, out or [], as_json
        )
    if suite == WHATIF:
        return whatifs.measure(lambda: load(target, drafter, device, dtype), chosen, max_new_tokens, timed, as_json)
    values = _settle(method, parse_settings(settings))
    for name in method or ():
        checks.method(name, values[name], pair)
    from workbench.bench.suites import Plan, bench_forced_acceptance, bench_methods
    from workbench.core.sampling import SamplingParams
    from workbench.methods import registry

    configured = [registry.get(name).with_params(**mine) for name, mine in values.items()]
    sampling = SamplingParams(**asked_sampling)
    peers = against or []
    plan = Plan(
        max_new_tokens,
        repeats,
        sampling,
        seed,
        against_hf=bool({Against.hf, Against.hf_stock}.intersection(peers)),
        stock=Against.hf_stock in peers,
        against_llama=Against.llama_cpp in peers,
        suite=suite if prompts is None else "",
        per_group=per_group,
    )
    if suite == GPU:
        report = _gpu(plan, configured if method else [], chosen, device, depth)
        return _give(report, out or [], True, as_json)
    models = load(target, drafter, device, dtype, drafter_dtype)
    if not method:
        configured = [c for c in configured if c.promise != "simulation" and not models.why_not(c.method.needs)]
    with progress_bar() as progress:
        if suite == ACCEPTANCE:
            report = bench_forced_acceptance(models, chosen, plan, depth, progress=progress)
        else:
            report = bench_methods(models, configured, chosen, plan, progress)
    skipped = str(report.settings.get("llama.cpp") or "")
    if skipped.startswith("left out"):
        typer.echo(f"note: llama.cpp is {skipped}", err=True)
    if ended := report.settings.get("lost on the way"):
        typer.echo(f"note: {ended}; the others went on", err=True)
    if answers is not None:
        from workbench.bench.specbench import write_answers

        for path in write_answers(report, answers, lambda ids: models.tokenizer.decode(ids, skip_special_tokens=True)):
            typer.echo(f"wrote {path}", err=True)
    _give(report, out or [], by_group or suite == ACCEPTANCE, as_json)


def _give(report: Any, out: list[Path], by_group: bool, as_json: bool) -> None:
    """Write a report to files and print it; a run that was stopped ends with 130."""
    for path in out:
        _write(report, path)
    print(report.to_json() if as_json else report.to_markdown(by_group))
    if not report.complete:
        raise typer.Exit(130)


def _check_gpu(device: str, refused: Sequence[str] = (), methods: Sequence[str] = ()) -> None:
    """Refuse the suite `gpu` where there is none, or with what it cannot heed, before anything takes time.

    Args:
        device: as given.
        refused: options that were given and mean nothing to it; `--set` without methods is one.
        methods: to measure.
    """
    for option in refused:
        why = "settings are of the methods that you name" if option == "--set" else "it makes its own targets"
        raise typer.BadParameter(f"the suite gpu does not take it: {why}", param_hint=option)
    for name in methods:
        if lacks := [need for need in known.get(name).needs if need not in ("drafter", "trees")]:
            raise typer.BadParameter(
                f"{name} needs more than a target and a draft model: {lacks[0]}", param_hint="--method"
            )
    with about("device"):
        check_gpu(device, "The suite gpu")


def _gpu(plan: Any, configured: list[Any], prompts: list[Any], device: str, depth: int) -> Any:
    """Measure targets made on the GPU, and SmolLM2 where it is on this machine or in an installed package."""
    from workbench.bench.gpu_suite import bench_gpu
    from workbench.engine.models import load_models
    from workbench.engine.pretrained import resolve_device
    from workbench.engine.published import SMOLLM2, here, packaged_file

    where = resolve_device(device)
    _check_gpu(str(where))  # a driver without a card

    def real() -> Any:
        if here(SMOLLM2) is None and packaged_file(SMOLLM2) is None:
            raise ModelError(f"{SMOLLM2.title} is not on this machine.", "")
        return load_models(SMOLLM2.name, "auto", device)

    with progress_bar() as progress:
        return bench_gpu(
            where, plan, methods=configured, real=real, real_prompts=prompts, depth=depth, progress=progress
        )


def _vision(limit: int, out: list[Path], as_json: bool) -> None:
    """Measure the vision drafters; rows go to `assets/boards/vision.json` one by one."""
    from workbench.bench import vision_suite
    from workbench.trace.files import write_whole

    rows: dict[str, Any] = {}
    forms = {
        ".json": lambda: json.dumps(rows, ensure_ascii=False),
        ".md": lambda: vision_suite.markdown(rows),
        ".html": lambda: vision_suite.figure(rows).to_html(include_plotlyjs="cdn"),
    }
    checks.kinds_of("vision", out, forms)
    with progress_bar() as progress:
        rows = vision_suite.run_suite(scenes=limit or vision_suite.SCENES, progress=progress)
    for path in out:
        write_whole(path, forms[path.suffix]().encode())
    print(forms[".json"]() if as_json else forms[".md"]())


def _write(report: Any, path: Path) -> None:
    """The report in the form that the ending of the name says."""
    from workbench.bench.saved import to_parquet
    from workbench.trace.files import write_whole
    from workbench.views.report import page

    forms = {
        ".json": lambda: report.to_json().encode(),
        ".csv": lambda: report.to_csv().encode(),
        ".md": lambda: report.to_markdown(by_group=True).encode(),
        ".parquet": lambda: to_parquet(report),
        ".html": lambda: page(report.to_wire()).encode(),
    }
    try:
        write_whole(path, forms[path.suffix]())
    except OSError as error:
        raise WorkbenchError(f"{path} cannot be written: {error.strerror}.", "Choose another file.") from None


def _compare(old: Path, new: Path, tolerance: float, as_json: bool) -> int:
    """Print how two reports differ; 1 if something has become worse, as for a check."""
    from workbench.bench.regression import compare_reports
    from workbench.bench.saved import read_report

    found = compare_reports(read_report(old), read_report(new), tolerance)
    print(json.dumps(found.to_wire(), ensure_ascii=False) if as_json else found.to_markdown())
    return 1 if found.worse else 0


def _print_speeds(baseline: Path, method: Path, as_json: bool) -> None:
    from workbench.bench.specbench import read_answers, speeds, speeds_table

    rows = speeds(read_answers(method), read_answers(baseline))
    plain = [{**row, "speedup": row["speedup"] and row["speedup"].to_wire()} for row in rows]
    print(json.dumps(plain) if as_json else speeds_table(rows))


def _settle(names: list[str] | None, settings: dict[str, str]) -> dict[str, dict[str, Any]]:
    """For each method, by its name, the settings that concern it, checked."""
    with about("method"):
        methods = [known.get(name) for name in names] if names else known.methods()
    used: set[str] = set()
    found = {}
    with about("set"):
        for method in methods:
            values = {}
            for key, value in settings.items():
                scope, dot, name = key.rpartition(".")
                if (dot and scope == method.name) or (not dot and name in method.params):
                    values[name] = value
                    used.add(key)
            found[method.name] = method.own(values)
        for key in settings:
            if key not in used:
                raise UnknownNameError.of("parameter", key, {name for method in methods for name in method.params})
    return found


class progress_bar:
    """A progress bar on standard error; nothing where that is not a terminal."""

    def __enter__(self) -> Any:
        if not sys.stderr.isatty():
            return None
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            refresh_per_second=2,
        )
        self.bar.start()
        task = self.bar.add_task("starting", total=None)
        return lambda done, total, what: self.bar.update(task, completed=done, total=total, description=what)

    def __exit__(self, *_: object) -> None:
        if hasattr(self, "bar"):
            self.bar.stop()
