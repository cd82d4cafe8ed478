"""`workbench bench`: measure methods against plain decoding, or run another suite of measurements."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from workbench.cli import answers as answers_command
from workbench.cli import checks, gpukernels, hostcosts, verifiercosts, whatif_errors
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
from workbench.core.errors import ModelError, UnknownNameError, WorkbenchError, system_reason
from workbench.kernels.devices import check_gpu
from workbench.methods import method_info
from workbench.service.checks import check_models, set_error_option


class Against(str, Enum):
    """Other inference engine with which the workbench is compared."""

    hf = "hf"
    hf_stock = "hf-stock"
    llama_cpp = "llama-cpp"


ACCEPTANCE = "acceptance"
"""Name of the benchmark suite of drafters with a forced acceptance rate, compared with Hugging Face."""
VISION = "vision"
"""Name of the benchmark suite with images: acceptance of the vision drafters, saved on a separate board."""
GPU = "gpu"
"""Name of the benchmark suite for GPUs: targets with the sizes of 1B and 8B models, compared with Transformers."""
ANSWERS = "answers"
"""Name of the benchmark suite that counts correct answers to problems.

It measures the named methods, or all approximate verifiers if no method is named.
"""
VERIFIERS = "verifiers"
"""Name of the benchmark suite of verifiers: time to verify a draft of 64 nodes, by vocabulary size."""
HOST = "host"
"""Name of the benchmark suite of host overheads: time of drafters outside of forward passes, by context length."""
WHATIF = "whatif"
"""Name of the benchmark suite that compares predictions of `workbench whatif` with the runs that they predict."""
KINDS = (".md", ".json", ".csv", ".parquet", ".html")


def bench(
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="Method to measure; repeatable. By default all methods except those that simulate acceptance."
        ),
    ] = None,
    settings: Settings = None,
    prompts: Annotated[
        Path | None, typer.Option(help="JSON Lines file with a `prompt` in each line; by default the bundled prompts.")
    ] = None,
    group: Annotated[
        list[str] | None, typer.Option(help="Use only the prompts of this group, for example copy; repeatable.")
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="Use only the first N prompts; 0: all.")] = 0,
    per_group: Annotated[
        int,
        typer.Option(min=0, help="Use only the first N prompts of each group that fit the target's context; 0: all."),
    ] = 0,
    suite: Annotated[
        str,
        typer.Option(
            help="Prompts or measurement. Prompt sets: bundled, spec-bench, mt-bench, humaneval, gsm8k, mbpp; "
            "work: all workloads; or one workload: copy-edit, summary, retrieval, refactoring, json, chat, "
            "stories, maths, repeat. Measurements: answers: problems whose answers are checked; acceptance: "
            "drafters with a forced acceptance rate, compared with Hugging Face; gpu: random targets with the "
            "shapes of 1B and 8B models, and smollm2 if installed, compared with Hugging Face; gpu-kernels: "
            "kernels, forward passes and rounds on a GPU in eight minutes, saved step by step to the .json file "
            "of --out; vision: all vision drafters on held-out scenes; verifiers: the time of each verifier; "
            "host: host overhead of the drafters by context length; whatif: every prediction of `workbench "
            "whatif`, compared with a real run."
        ),
    ] = "bundled",
    data: Annotated[
        Path | None, typer.Option(help="Folder with the prompt files of suites that are not bundled.")
    ] = None,
    against: Annotated[
        list[Against] | None,
        typer.Option(
            help="Also measure another engine; repeatable. hf: Hugging Face's generate on the workbench's model "
            "objects; hf-stock: with transformers' own linear layers; llama.cpp."
        ),
    ] = None,
    target: Target = DEFAULT_TARGET,
    drafter: Drafter = DEFAULT_DRAFTER,
    dtype: Dtype = "auto",
    drafter_dtype: Annotated[str, typer.Option(help="Number format of the drafter.")] = "auto",
    device: Device = "auto",
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Length limit of every generation, in tokens.")] = 128,
    repeats: Annotated[int, typer.Option(min=1, help="Number of runs of every method with every prompt.")] = 3,
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    seed: Seed = 0,
    depth: Annotated[
        int, typer.Option(min=1, help="Draft length in the suites `acceptance` and `gpu`, in tokens.")
    ] = 5,
    timed: Annotated[
        bool | None,
        typer.Option(
            "--timed/--untimed",
            help="Suite `whatif`: test only predictions of speed (on an otherwise idle machine), or only the "
            "other predictions.",
        ),
    ] = None,
    toy: Annotated[
        bool,
        typer.Option("--toy", help="Suite `gpu-kernels`: run every measurement on a tiny model; works on a CPU too."),
    ] = False,
    time_limit: Annotated[
        float | None,
        typer.Option(
            min=1,
            metavar="SECONDS",
            help="Suite `gpu-kernels`: time limit of all measurements in seconds; default 480.",
        ),
    ] = None,
    connect: Annotated[str | None, typer.Option(hidden=True)] = None,
    out: Annotated[
        list[Path] | None,
        typer.Option(help="Also write the report to this file: .md, .html, .json, .csv or .parquet; repeatable."),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="JSON Lines file that stores each run; the same command resumes after an interruption."
        ),
    ] = None,
    answers: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder for answer files in Spec-Bench's format.")
    ] = None,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option(
            metavar="OLD NEW", help="Measure nothing; show the significant differences between two saved reports."
        ),
    ] = None,
    tolerance: Annotated[
        float, typer.Option(min=0, max=1, help="With --compare: smallest relative change to report.")
    ] = 0.02,
    read_answers: Annotated[
        tuple[Path, Path] | None,
        typer.Option(
            metavar="BASELINE METHOD", help="Measure nothing; compute speeds from two Spec-Bench answer files."
        ),
    ] = None,
    by_group: Annotated[bool, typer.Option(help="Also show a table for each group of prompts.")] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Measure speed, acceptance and overhead of methods, interleaved with plain decoding, prompt by prompt.

    Speed-ups are ratios within one repeat, given as the geometric mean over prompts with its 95 % confidence interval.
    Ctrl-C keeps the finished measurements. `--set NAME=VALUE` applies to every method that has the parameter, `--set
    METHOD.NAME=VALUE` to one method. There is no --connect: a benchmark measures the machine on which it runs.

    Example: workbench bench --suite spec-bench --data ../data/eval --per-group 3 --against hf --out bench.html
    """
    if connect is not None:
        raise typer.BadParameter(
            "a benchmark measures only the machine on which it runs; run it on the server itself",
            param_hint="--connect",
        )
    if compare is not None:
        raise typer.Exit(_compare(*compare, tolerance, as_json))
    if read_answers is not None:
        return _print_speeds(*read_answers, as_json)
    if suite != gpukernels.SUITE and (toy or time_limit is not None):
        raise typer.BadParameter(
            f"only the suite {gpukernels.SUITE} has this option", param_hint="--toy" if toy else "--time-limit"
        )
    from workbench.bench.datasets import load_suite
    from workbench.bench.prompts import load_prompts

    for path in out or ():
        if path.suffix not in KINDS and suite != HOST:
            raise typer.BadParameter(f"the name must end in one of {', '.join(KINDS)}", param_hint="--out")
        checks.check_output_file(path, "out")
    checks.check_output_folder(answers, "answers")
    if resume is not None:
        if suite in (ACCEPTANCE, GPU, HOST, VERIFIERS, VISION, gpukernels.SUITE):
            raise typer.BadParameter(f"the suite {suite} stores no runs", param_hint="--resume")
        checks.check_output_file(resume, "resume")
    if suite == VERIFIERS:
        return verifiercosts.measure(device, repeats, out or [], as_json)
    if suite == HOST:
        return hostcosts.measure(target, repeats, out or [], as_json)
    if suite == VISION:
        return _vision(limit, out or [], as_json)
    if suite == gpukernels.SUITE:
        given = {"--answers": answers, "--set": settings, "--method": method, "--prompts": prompts, "--data": data,
                 "--against": against, "--target": target != DEFAULT_TARGET, "--drafter": drafter != DEFAULT_DRAFTER,
                 "--dtype": dtype != "auto", "--drafter-dtype": drafter_dtype != "auto"}  # fmt: skip
        refused = [name for name, is_set in given.items() if is_set]
        return gpukernels.measure(device, toy, time_limit, refused, out or [], as_json)
    if suite == GPU:
        ignored = {"--answers": answers, "--set": settings and not method, "--data": data, "--dtype": dtype != "auto",
                   "--target": target != DEFAULT_TARGET, "--drafter": drafter != DEFAULT_DRAFTER,
                   "--drafter-dtype": drafter_dtype != "auto"}  # fmt: skip
        _check_gpu(device, [name for name, is_set in ignored.items() if is_set], method or ())
    is_flat = prompts is not None or suite in (ACCEPTANCE, GPU, WHATIF)
    chosen = load_prompts(prompts) if is_flat else load_suite(suite, data)
    checks.check_groups(group or (), chosen)
    chosen = [p for p in chosen if not group or p.group in group]
    chosen = chosen[:limit] if limit else chosen
    sampling_values = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    checks.check_sampling(sampling_values)
    pair = check_models(target, drafter, device, dtype, drafter_dtype)
    if suite == ANSWERS and not method and prompts is None:
        scale = {"per_group": per_group, "temperature": temperature, "tokens": max_new_tokens, "seed": seed}
        return answers_command.measure(
            lambda: load(target, drafter, device, dtype, drafter_dtype), scale, out or [], as_json, resume
        )
    if suite == WHATIF:
        return whatif_errors.measure(
            lambda: load(target, drafter, device, dtype), chosen, max_new_tokens, timed, as_json, resume
        )
    values = _settle(method, parse_settings(settings))
    for name in method or ():
        checks.resolve_method(name, values[name], pair)
    from workbench.bench.suites import Plan, bench_forced_acceptance, bench_methods
    from workbench.core.sampling import SamplingParams
    from workbench.methods import registry

    configured = [registry.get(name).with_params(**own_values) for name, own_values in values.items()]
    sampling = SamplingParams(**sampling_values)
    engines = against or []
    plan = Plan(
        max_new_tokens,
        repeats,
        sampling,
        seed,
        against_hf=bool({Against.hf, Against.hf_stock}.intersection(engines)),
        stock=Against.hf_stock in engines,
        against_llama=Against.llama_cpp in engines,
        suite=suite if prompts is None else "",
        per_group=per_group,
    )
    if suite == GPU:
        report = _gpu(plan, configured if method else [], chosen, device, depth)
        return _output_report(report, out or [], True, as_json)
    models = load(target, drafter, device, dtype, drafter_dtype)
    if not method:
        configured = [
            c for c in configured if c.promise != "simulation" and not models.unsupported_reason(c.method.needs)
        ]
    with progress_bar() as progress:
        if suite == ACCEPTANCE:
            report = bench_forced_acceptance(models, chosen, plan, depth, progress=progress)
        else:
            report = bench_methods(models, configured, chosen, plan, progress, resume)
    llama_status = str(report.settings.get("llama.cpp") or "")
    if llama_status.startswith("left out"):
        typer.echo(f"note: llama.cpp is {llama_status}", err=True)
    if failed_engine := report.settings.get("failed contenders"):
        typer.echo(f"note: {failed_engine}; the other engines were measured", err=True)
    if answers is not None:
        from workbench.bench.specbench import write_answers

        for path in write_answers(report, answers, lambda ids: models.tokenizer.decode(ids, skip_special_tokens=True)):
            typer.echo(f"wrote {path}", err=True)
    _output_report(report, out or [], by_group or suite == ACCEPTANCE, as_json)


def _output_report(report: Any, out: list[Path], by_group: bool, as_json: bool) -> None:
    """Write a benchmark report to files and print it. Exit with status 130 if the measurement was stopped.

    Args:
        report: report of a suite.
        out: files for the report; their suffixes decide the formats.
        by_group: whether to print a table for each group of prompts, too.
        as_json: whether to print JSON.
    """
    for path in out:
        _write(report, path)
    print(report.to_json() if as_json else report.to_markdown(by_group))
    if not report.complete:
        raise typer.Exit(130)


def _check_gpu(device: str, refused: Sequence[str] = (), methods: Sequence[str] = ()) -> None:
    """Refuse the suite `gpu` on a machine without a GPU, or with options that it would ignore.

    Args:
        device: value of `--device`.
        refused: options given by the user that have no effect in this suite, such as `--set` without methods.
        methods: names of the methods to measure.

    Raises:
        BadParameter: an option or a method cannot be used with this suite.
    """
    for option in refused:
        reason = (
            "name the methods whose parameters are set, with --method"
            if option == "--set"
            else "this suite creates its own targets"
        )
        raise typer.BadParameter(f"the suite gpu does not accept this option: {reason}", param_hint=option)
    for name in methods:
        if needs := [need for need in method_info.get(name).needs if need not in ("drafter", "trees")]:
            raise typer.BadParameter(
                f"{name} needs more than a target and a draft model: {needs[0]}", param_hint="--method"
            )
    with set_error_option("device"):
        check_gpu(device, "The suite gpu")


def _gpu(plan: Any, configured: list[Any], prompts: list[Any], device: str, depth: int) -> Any:
    """Run the suite `gpu`: measure targets that are created on the GPU, and SmolLM2 if its files are available."""
    from workbench.bench.gpu_suite import bench_gpu
    from workbench.models.loading import load_models
    from workbench.models.model_index import SMOLLM2, local_folder, packaged_file
    from workbench.models.pretrained import resolve_device

    resolved_device = resolve_device(device)
    _check_gpu(str(resolved_device))  # checked again: "auto" may resolve to the CPU if there is a driver without a card

    def real() -> Any:
        if local_folder(SMOLLM2) is None and packaged_file(SMOLLM2) is None:
            raise ModelError(f"{SMOLLM2.title} is not on this machine.", "")
        return load_models(SMOLLM2.name, "auto", device)

    with progress_bar() as progress:
        return bench_gpu(
            resolved_device, plan, methods=configured, real=real, real_prompts=prompts, depth=depth, progress=progress
        )


def _vision(limit: int, out: list[Path], as_json: bool) -> None:
    """Run the suite `vision`, and save each result to `assets/boards/vision.json` as soon as it is measured.

    Args:
        limit: number of images; 0: the suite's default.
        out: files for the results.
        as_json: whether to print JSON.
    """
    from workbench.bench import vision_suite
    from workbench.trace.files import write_atomically
    from workbench.views import vision_figure

    rows: dict[str, Any] = {}
    forms = {
        ".json": lambda: json.dumps(rows, ensure_ascii=False),
        ".md": lambda: vision_suite.markdown(rows),
        ".html": lambda: vision_figure.figure(rows, vision_suite.CAPTION).to_html(include_plotlyjs="cdn"),
    }
    checks.check_suffixes("vision", out, forms)
    with progress_bar() as progress:
        rows = vision_suite.run_suite(scenes=limit or vision_suite.SCENES, progress=progress)
    for path in out:
        write_atomically(path, forms[path.suffix]().encode())
    print(forms[".json"]() if as_json else forms[".md"]())


def _write(report: Any, path: Path) -> None:
    """Write a report to a file, in the format of its suffix."""
    from workbench.bench.report_files import to_parquet
    from workbench.trace.files import write_atomically
    from workbench.views.report import page

    forms = {
        ".json": lambda: report.to_json().encode(),
        ".csv": lambda: report.to_csv().encode(),
        ".md": lambda: report.to_markdown(by_group=True).encode(),
        ".parquet": lambda: to_parquet(report),
        ".html": lambda: page(report.to_wire()).encode(),
    }
    try:
        write_atomically(path, forms[path.suffix]())
    except OSError as error:
        raise WorkbenchError(f"{path} cannot be written: {system_reason(error)}.", "Choose another file.") from None


def _compare(old: Path, new: Path, tolerance: float, as_json: bool) -> int:
    """Print the differences between two saved benchmark reports that exceed the measurement noise.

    Args:
        old: file of the earlier report.
        new: file of the later report.
        tolerance: smallest relative change to print.
        as_json: whether to print JSON.

    Returns:
        1 if a measured value has become worse, else 0.
    """
    from workbench.bench.regression import compare_reports
    from workbench.bench.report_files import read_report

    differences = compare_reports(read_report(old), read_report(new), tolerance)
    print(json.dumps(differences.to_wire(), ensure_ascii=False) if as_json else differences.to_markdown())
    return 1 if differences.worse else 0


def _print_speeds(baseline: Path, method: Path, as_json: bool) -> None:
    from workbench.bench.specbench import read_answers, speeds, speeds_table

    rows = speeds(read_answers(method), read_answers(baseline))
    plain = [{**row, "speedup": row["speedup"] and row["speedup"].to_wire()} for row in rows]
    print(json.dumps(plain) if as_json else speeds_table(rows))


def _settle(names: list[str] | None, settings: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Check the values of the option `--set`, and return the parameters of each method by the method's name."""
    with set_error_option("method"):
        methods = [method_info.get(name) for name in names] if names else method_info.methods()
    used: set[str] = set()
    values_by_method = {}
    with set_error_option("set"):
        for method in methods:
            values = {}
            for key, value in settings.items():
                scope, dot, name = key.rpartition(".")
                if (dot and scope == method.name) or (not dot and name in method.params):
                    values[name] = value
                    used.add(key)
            values_by_method[method.name] = method.check_params(values)
        for key in settings:
            if key not in used:
                raise UnknownNameError.of("parameter", key, {name for method in methods for name in method.params})
    return values_by_method


class progress_bar:
    """Context manager for a progress bar on standard error; without a terminal it shows nothing."""

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
