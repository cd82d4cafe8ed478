"""`workbench check`: test whether each method keeps its exactness promise on a target."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from workbench.cli.loading import load
from workbench.cli.options import (
    DEFAULT_DRAFTER,
    DEFAULT_TARGET,
    Debug,
    Device,
    Drafter,
    Head,
    Json,
    Target,
    use_heads,
)
from workbench.service.checks import check_models

if TYPE_CHECKING:
    from workbench.bench.finding import Finding
    from workbench.decoders.method import Method

MINUTES = 8.0
PROMPTS = ("Once upon a time there was a little", "The red ball, the blue ball, the red ball, the", "A")
VISION_TARGET, DIFFUSION_TARGET = "vision-target", "diffusion-target"
SIGNS = {"pass": "✓ pass", "fail": "✕ FAIL", "measured": "· measured", "skipped": "– skipped"}


def check(
    names: Annotated[list[str] | None, typer.Argument(help="Methods to check; by default all methods.")] = None,
    target: Target = DEFAULT_TARGET,
    drafter: Drafter = DEFAULT_DRAFTER,
    head: Head = None,
    device: Device = "cpu",
    runs: Annotated[
        int, typer.Option(min=100, help="Number of sampled generations in each test of a token distribution.")
    ] = 1000,
    max_new_tokens: Annotated[int, typer.Option(min=2, help="Length of each greedy generation, in tokens.")] = 24,
    minutes: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Approximate time limit in minutes; with a slow target, fewer tests are run. 0: no limit. "
            f"By default {MINUTES:g}, with --report none.",
        ),
    ] = None,
    report: Annotated[
        bool,
        typer.Option(
            help="Check with the bundled models (SmolLM2's heads with SmolLM2) and save the exactness board; an "
            "interrupted check resumes."
        ),
    ] = False,
    fresh: Annotated[
        bool, typer.Option(help="With --report or --families: repeat the checks that are already on the board.")
    ] = False,
    families: Annotated[
        bool, typer.Option(help="Test every model family of transformers instead; an interrupted test resumes.")
    ] = False,
    choices: Annotated[
        bool,
        typer.Option(
            help="With --report: check each verifier, tree builder and policy separately; an interrupted check resumes."
        ),
    ] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Test the exactness promise of each method in float64; exit code 1 if one is broken or could not be tested.

    Greedy text must equal that of Hugging Face's `generate` token for token, with the defaults and with each parameter
    at both ends of its range. Sampled tokens must follow the target's exact joint distribution: a chi-square test on
    tiny models whose distribution is computed in full, repeated for each choice of a parameter. A correct method fails
    one such test in 10,000. An approximate method promises no distribution, so its distance from the target's is
    reported. Greedy text is not compared for a method that does not preserve it, and nothing is compared for
    masked-diffusion models. A method does not pass if it refuses every setting, never drafts, or is named on the
    command line but cannot run.

    If a large target would take longer than --minutes, only a sample of the settings is tested, and methods not tested
    within that time are left out. The output says so, and with --report so does the board.

    With --report, tiny models of many families are decoded too. Methods for images run on the bundled vision target,
    and heads that were trained for SmolLM2 run on it where it is on this machine. The results go into assets/boards,
    method by method. With --choices every verifier, tree builder and policy is checked separately: on the bundled
    target in float64, then on SmolLM2 in its stored number format, with shorter texts and fewer samples. No check is
    started after --minutes.
    """
    use_heads(head, target)
    limit = minutes if minutes is not None else 0.0 if report and not choices else MINUTES
    if families:
        raise typer.Exit(_families(fresh, as_json))
    from workbench.methods import method_info

    for name in names or ():
        method_info.get(name)
    if choices:
        raise typer.Exit(_choices(names, runs, max_new_tokens, limit, fresh))
    if not report:
        check_models(target, drafter, device, "float64")
    from workbench.bench import board
    from workbench.bench.check import FAIL, check_method, image_prompts
    from workbench.bench.families import FAMILIES
    from workbench.bench.study import END, STEP, Rows, Study, in_turn
    from workbench.methods import registry

    loaded: dict[tuple[str, str], Any] = {}
    deadline = time.monotonic() + 60 * limit if limit else math.inf

    def models_of(pair: tuple[str, str]) -> Any:
        if pair not in loaded:
            loaded[pair] = load(*pair, device, dtype="float64")
        return loaded[pair]

    def measure(method: Method) -> Generator[Finding, None, tuple[str, list[Finding]] | None]:
        """Test a method's exactness and yield findings; return the target and all findings, or None if time is up."""
        pairs = _bundled_pairs(method) if report else [(target, drafter)]
        usable_pairs = (pair for pair in pairs if not models_of(pair).unsupported_reason(method.needs))
        place = next(usable_pairs, pairs[0])
        models = models_of(place)
        own_findings: list[Finding] = []
        if study.done and time.monotonic() > deadline and not models.unsupported_reason(method.needs):
            return None
        prompts = image_prompts(models) if models.processor else [models.tokenizer.encode(text) for text in PROMPTS]
        n_remaining = sum(not models.unsupported_reason(other.needs) for other in chosen[study.done :])
        time_share = max(0.0, deadline - time.monotonic()) / max(n_remaining, 1)
        tried = tuple(FAMILIES) if report else ()
        for finding in check_method(method, models, prompts, max_new_tokens, runs, tried, time_share):
            own_findings.append(finding)
            yield finding
        return place[0], own_findings

    def save_row(name: str, tested: tuple[str, list[Finding]] | None) -> None:
        if report and tested is not None:
            board.save_exactness(registry.get(name), *tested)

    rows = {row["method"]: row for row in board.exactness_rows()} if report and not fresh else {}
    finished = {name: row for name, row in rows.items() if row["standing"] != board.UNPROVEN}
    cells = [registry.get(name) for name in (names or registry.names())]
    store = Rows[Any](lambda method: method.name, finished, save_row)
    study: Study[Method, Any] = Study(cells, in_turn(measure), store, key=lambda method: method.name)
    on_board = [method.name for method in study.load()]
    if on_board:
        print(
            f"Methods already on the board (--fresh checks these methods again): {', '.join(on_board)}.",
            file=sys.stderr,
        )
    chosen = [method for method in cells if method.name not in on_board]
    findings: list[Finding] = []
    left_out: list[str] = []
    for kind, method, payload in study.run():
        if kind == END and payload is None:
            left_out.append(method.name)
        elif kind == STEP:
            findings.append(payload)
            if not as_json:
                line = f"{SIGNS[payload.verdict]:<11} {payload.method:<16} {payload.claim}: {payload.detail}"
                print(f"{line} [{payload.promise}, {payload.seconds:.0f} s]", flush=True)
            else:
                print(f"{payload.method}: {payload.verdict}", file=sys.stderr)
    failed = sum(f.verdict == FAIL for f in findings)
    untested = [f.method for f in findings if f.kind == "availability"]
    if as_json:
        wire = {
            "target": target,
            "failed": failed,
            "untested": untested,
            "left_out": left_out,
            "findings": [dataclasses.asdict(f) for f in findings],
        }
        print(json.dumps(wire, ensure_ascii=False, indent=2))
    else:
        print(f"{len(findings) - failed} of {len(findings)} tests found no violation of a method's promise.")
        if untested:
            print(f"Methods not tested, because they cannot run here: {', '.join(untested)}.")
        for line in _left_out_lines(findings, left_out, limit):
            print(line)
        if report:
            print(f"Saved the board in {board.folder()}.")
    untested += left_out
    is_incomplete = bool(untested) and (bool(names) or len(untested) == len(chosen))
    raise typer.Exit(1 if failed or is_incomplete else 0)


def _left_out_lines(findings: Sequence[Any], late: Sequence[str], minutes: float) -> Iterator[str]:
    """Yield a line of text for each kind of exactness test that was left out because of the time limit.

    Args:
        findings: results of all exactness tests.
        late: names of the methods that were left out.
        minutes: time limit in minutes.
    """
    greedy, sampled = ([f.figures for f in findings if f.kind == kind] for kind in ("greedy", "distribution"))
    settings, n_tried = (sum(figures[key] for figures in greedy) for key in ("settings_left_out", "settings"))
    fewer = sum("runs_left_out" in figures for figures in sampled)
    untested = sum(figures.get("settings_left_out", 0) for figures in sampled)
    if settings or fewer or untested:
        yield (
            f"Only a sample was tested, to end within about {minutes:g} minutes: {settings} of {n_tried} settings were "
            f"left out, and {fewer} sampled distributions had fewer runs than requested"
            + (f"; {untested} settings were left out of the tests with sampling" if untested else "")
            + ". --minutes 0 tests everything."
        )
    if late:
        yield f"Methods not tested, because the time limit of {minutes:g} minutes was reached: {', '.join(late)}."


def _bundled_pairs(method: Any) -> list[tuple[str, str]]:
    """Return the targets on which to check a method, in order of preference, each with the method's draft model.

    Bundled targets come first. Published targets on this machine follow: some heads exist only for them.
    """
    from workbench.models.names import bundled_drafter

    return [
        (name, bundled_drafter(name, method.drafter.ignores_images) or "none")
        for name in _targets(DEFAULT_TARGET, VISION_TARGET, DIFFUSION_TARGET)
    ]


def _text_pairs() -> list[tuple[str, str]]:
    """Return the text-only targets for checks of verifiers, tree builders and policies, with draft models.

    The bundled target comes first, then the published targets on this machine.
    """
    from workbench.models.names import bundled_drafter

    return [(name, bundled_drafter(name, False) or "none") for name in _targets(DEFAULT_TARGET)]


def _targets(*own: str) -> list[str]:
    from workbench.models.bundle import bundled
    from workbench.models.model_index import MODEL_INDEX
    from workbench.service.inventory import TO_FETCH, availability

    return [
        *(name for name in own if name in bundled()),
        *(name for name, model in MODEL_INDEX.items() if availability(model) != TO_FETCH),
    ]


def _choices(names: Sequence[str] | None, runs: int, max_new_tokens: int, minutes: float, fresh: bool) -> int:
    """Check the exactness of each verifier, tree builder and policy on each target, and save the results to a board.

    Returns:
        1 if a guarantee does not hold, else 0.
    """
    from workbench.bench import board
    from workbench.bench.choices import Choice, all_choices, check_choice
    from workbench.bench.finding import FAIL
    from workbench.bench.study import END, Rows, Study, in_turn
    from workbench.bench.study import FAIL as ERROR
    from workbench.core.errors import WorkbenchError
    from workbench.methods import registry
    from workbench.models.bundle import bundled

    class UnsupportedError(WorkbenchError):
        """Raised if the models lack something that a verifier, tree builder or policy needs, such as heads."""

    chosen = all_choices(registry.get(name) for name in names or registry.names())
    pairs, loaded = _text_pairs(), dict[str, Any]()
    # The most informative choices on all targets, then the rest.
    cells = [(*pair, c) for is_first in (True, False) for pair in pairs for c in chosen if c.is_evidence is is_first]
    keys = {id(choice): board.choice_key(choice.configured) for choice in chosen}

    def key(cell: tuple[str, str, Choice]) -> str:
        return f"{keys[id(cell[2])]} on {cell[0]}"

    def measure(cell: tuple[str, str, Choice]) -> list[Finding]:
        target, drafter, choice = cell
        is_bundled = target in bundled()
        if target not in loaded:
            loaded[target] = load(target, drafter, "cpu", dtype="float64" if is_bundled else "auto")
        models = loaded[target]
        if reason := models.unsupported_reason(choice.configured.needs):
            raise UnsupportedError(reason)
        prompts = [models.tokenizer.encode(text) for text in PROMPTS[: 3 if is_bundled else 2]]
        return list(check_choice(choice, models, prompts, max_new_tokens, runs))

    by_key = {key(cell): cell for cell in cells}

    def save_row(name: str, findings: list[Finding]) -> None:
        target, _, choice = by_key[name]
        dtype = str(loaded[target].target.dtype).removeprefix("torch.")
        board.save_choice(choice.configured, target, dtype, findings)

    saved = {} if fresh else board.read("exactness")
    finished = {
        name: row
        for name, row in saved.items()
        if name in by_key and row.get("promise") == by_key[name][2].configured.promise.value
    }
    study = Study(cells, in_turn(measure, WorkbenchError), Rows(key, finished, save_row), key=key)
    failed = 0
    for kind, cell, payload in study.run(seconds=60 * minutes or math.inf):
        if kind == ERROR:
            if not isinstance(payload, UnsupportedError):
                print(f"{SIGNS['skipped']:<11} {key(cell)}: {payload}", flush=True)
            continue
        for finding in payload if kind == END else ():
            failed += finding.verdict == FAIL
            print(f"{SIGNS[finding.verdict]:<11} {key(cell)}: {finding.detail} [{finding.seconds:.0f} s]", flush=True)
    if study.is_complete:
        print(f"Saved the board in {board.folder()}.")
    else:
        print(
            f"The time limit of {minutes:g} minutes was reached. Run the same command to continue; --minutes "
            f"0 sets no limit."
        )
    return int(failed > 0)


def _families(fresh: bool, as_json: bool) -> int:
    """Test decoding with a tiny model of every model family, print the results and save them to a board.

    Returns:
        1 if the text of any model differs from that of Transformers' `generate`, else 0.
    """
    from workbench.bench import board, census
    from workbench.bench.study import END, Rows, Study, in_turn
    from workbench.models.pretrained import load_tokenizer

    tokenizer, saved_entries = load_tokenizer(DEFAULT_TARGET), {} if fresh else census.saved_entries()

    def save_row(name: str, entry: census.Entry) -> None:
        saved_entries[name] = entry
        census.save(list(saved_entries.values()))

    store = Rows[str](str, dict(saved_entries), save_row)

    def check(name: str) -> census.Entry:
        return census.check_family(name, tokenizer)

    for kind, name, entry in Study(list(census.families()), in_turn(check), store).run():
        if kind == END:
            line = f"{entry.verdict:<16} {name:<26} {entry.why}".rstrip()
            print(line, file=sys.stderr if as_json else sys.stdout, flush=True)
    entries = list(saved_entries.values())
    if as_json:
        print(json.dumps([dataclasses.asdict(entry) for entry in entries], ensure_ascii=False, indent=2))
    else:
        print(f"Saved the board in {board.folder()}.")
    return int(any(entry.verdict == census.DIFFERS for entry in entries))
