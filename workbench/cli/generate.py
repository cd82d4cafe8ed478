"""`workbench generate`: run one generation and stream its text."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from workbench.cli import checks, output
from workbench.cli.loading import describe_models, loading_progress, open_workbench, wait_for_models
from workbench.cli.options import (
    DEFAULT_DRAFTER,
    DEFAULT_TARGET,
    ApiKey,
    Connect,
    Debug,
    Device,
    Drafter,
    Dtype,
    Head,
    Json,
    MaxNewTokens,
    Method,
    Seed,
    Settings,
    Target,
    Temperature,
    TopK,
    TopP,
    check_key,
    parse_settings,
    refuse_server_options,
    refuse_unused_heads,
    use_heads,
)
from workbench.cli.stream import Marks, TokenPrinter
from workbench.core.errors import PromptError, WorkbenchError, system_reason
from workbench.service.checks import check_models
from workbench.trace.events import ABORT_REASONS, Trace
from workbench.trace.files import read_regular, write_atomically
from workbench.trace.metrics import ACCEPTANCE_GAIN, DISTRIBUTION_ERROR, DISTRIBUTION_ERROR_BOUND, summary


def generate(
    prompt: Annotated[str | None, typer.Argument(help="Text to continue; '-' reads standard input.")] = None,
    prompt_file: Annotated[Path | None, typer.Option(help="Read the prompt from a file.")] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Format the prompt as a user message with the model's chat template.")
    ] = False,
    method: Method = None,
    settings: Settings = None,
    target: Target = DEFAULT_TARGET,
    drafter: Drafter = DEFAULT_DRAFTER,
    head: Head = None,
    max_new_tokens: MaxNewTokens = 128,
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    stop: Annotated[list[str] | None, typer.Option(help="End the text before this string; repeatable.")] = None,
    image: Annotated[
        list[Path] | None, typer.Option(help="An image for a vision target; repeatable, in order.")
    ] = None,
    seed: Seed = 0,
    dtype: Dtype = "auto",
    device: Device = "auto",
    connect: Connect = None,
    api_key: ApiKey = None,
    trace: Annotated[
        Path | None, typer.Option(help="Write the trace, with every round, to this file as JSON Lines.")
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Save the run in the store that `workbench runs` lists.")
    ] = False,
    tag: Annotated[list[str] | None, typer.Option(help="Save the run with this tag; repeatable.")] = None,
    store: Annotated[
        Path | None, typer.Option(help="Save the run in this folder instead of the default store.")
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            help="File of the drafter's saved state, such as its n-grams: loaded before the run if it "
            "exists, saved after it."
        ),
    ] = None,
    marks: Annotated[
        Marks,
        typer.Option(
            help="How to mark accepted, corrected and bonus tokens: colour, style alone (underlined, bold, "
            "italic), text "
            "characters (_accepted_, *corrected*, /bonus/), or none. auto: colour on a terminal, style with NO_COLOR, "
            "text on a dumb terminal, none elsewhere."
        ),
    ] = Marks.auto,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Continue a prompt. A terminal shows which tokens were drafted; measurements go to standard error.

    Examples: workbench generate --chat "What is in the image?" --image scene.png --target vision-target;
    workbench generate --chat "Sort these numbers from smallest to largest: 41, 7, 58" --method prompt-lookup
    --set depth=8; workbench generate "Pip ran home." --method suffix --state pip.safetensors
    """
    text = read_prompt(prompt, prompt_file)
    check_key(connect, api_key)
    use_heads(head, target, connect)
    refuse_server_options(connect, device=(device, "auto"), dtype=(dtype, "auto"))
    sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    values = parse_settings(settings)
    checks.check_sampling(sampling)
    checks.check_request(text, max_new_tokens, stop or ())
    if connect is None:
        pair = check_models(target, drafter, device, dtype)
        method = checks.resolve_method(method, values, pair, len(image or ()))
        refuse_unused_heads(head, [method])
    checks.check_images(image or (), target if connect is None else "")
    checks.check_output_file(trace, "trace")
    checks.check_output_folder(store, "store")
    memory = read_state(state)
    checks.check_output_file(state, "state")
    images = [str(path) for path in image or ()]
    content = [*[{"type": "image"}] * len(images), {"type": "text", "text": text.strip()}] if images else text.strip()
    printer = None if as_json else TokenPrinter(marks)
    not_saved: list[WorkbenchError] = []

    def save(work: Callable[[], object]) -> None:
        """Call `work`, which saves a file. With --json, store its error in the field `not_saved` of the output."""
        try:
            work()
        except WorkbenchError as error:
            if not as_json:
                raise
            not_saved.append(error)

    with open_workbench(connect, target, drafter, device, dtype, api_key) as bench:
        start_text: Any = text
        if chat:
            with loading_progress(bench, target, drafter) if connect is None else nullcontext():
                start_text = bench.chat_prompt([{"role": "user", "content": content}], target)
        run = bench.start(
            start_text,
            **({"method": method} if method else {}),
            images=images,
            params={**sampling, **values},
            target=target,
            drafter=drafter,
            max_new_tokens=max_new_tokens,
            seed=seed,
            stop=tuple(stop or ()),
            **({} if state is None else {"memory": memory, "keeps": True}),
        )
        try:
            if connect is None:
                wait_for_models(run, describe_models(target, drafter))
            if printer is not None:
                _stream(run, printer, text.rstrip() + "\n" if chat or images else text)
            result = run.wait()
        except KeyboardInterrupt:
            run.cancel()
            result = run.trace
        if state is not None and result is not None:
            save(partial(write_state, run, state))
    if result is None:
        raise KeyboardInterrupt
    if trace is not None:
        save(partial(write_trace, result, trace))
    if keep or tag or store:
        save(partial(_save_run, result, tag or (), store))
    if as_json:
        wire = to_object(result) | ({"not_saved": [str(error) for error in not_saved]} if not_saved else {})
        print(json.dumps(wire, ensure_ascii=False, indent=2))
    elif not output.is_quiet():
        _print_figures(result)
    if result.footer.reason in ABORT_REASONS and as_json:
        raise typer.Exit(130)  # an error would print a second JSON object
    if not_saved:
        raise typer.Exit(1)
    if result.footer.reason in ABORT_REASONS:
        raise KeyboardInterrupt


def read_prompt(prompt: str | None, prompt_file: Path | None) -> str:
    """Read the prompt from the command-line argument, a file or standard input.

    Raises:
        PromptError: the file cannot be read, or the prompt is empty.
    """
    if (prompt is None) == (prompt_file is None):
        raise typer.BadParameter("give either a prompt, '-' for standard input, or --prompt-file", param_hint="PROMPT")
    if prompt_file is not None:
        try:
            text = read_regular(prompt_file, or_pipe=True).decode().replace("\r\n", "\n")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "the file is not UTF-8 text"
            raise PromptError(f"{prompt_file} cannot be read: {reason}.", "Give a text file.") from None
    else:
        text = sys.stdin.read() if prompt == "-" else str(prompt)
    if not text.strip():
        raise PromptError("The prompt is empty.", "Write at least one word for the model to continue.")
    return text


def read_state(path: Path | None) -> bytes | None:
    """Read the saved state of a drafter from a file; return None if the file does not exist yet.

    Raises:
        WorkbenchError: the file cannot be read, or has no drafter state.
    """
    if path is None or not path.exists():
        return None
    from workbench.decoders.draft_verify.state_file import from_bytes  # imports PyTorch

    try:
        data = read_regular(path)
    except OSError as error:
        raise WorkbenchError(f"{path} cannot be read: {system_reason(error)}.", "Give another file.") from None
    from_bytes(data)  # report a damaged file before a model is loaded
    return data


def write_state(run: Any, path: Path) -> None:
    """Save the drafter's state after a run to a file, atomically, and print its size.

    Raises:
        WorkbenchError: the drafter has no state to save, or the file cannot be written.
    """
    state = run.memory("save")
    try:
        write_atomically(path, state["data"])
    except OSError as error:
        raise WorkbenchError(f"{path} cannot be written: {system_reason(error)}.", "Choose another file.") from None
    if not output.is_quiet():
        size = f"{state['entries']:,} of at most {state['bound']:,} {state['unit']}"
        print(f"drafter state: {size}; {state['hits']:,} of {state['asked']:,} lookups found a draft", file=sys.stderr)


def approximation_note(trace: Trace) -> str:
    """Return a note that a text's distribution may differ from the target's, with the measured distance.

    Returns:
        The note; "" for a lossless run, and for a greedy run in which the verifier changed no distribution.
    """
    if trace.header.promise != "approximate":
        return ""
    signals = [
        {
            name: r.signals[name]
            for name in (DISTRIBUTION_ERROR, DISTRIBUTION_ERROR_BOUND, ACCEPTANCE_GAIN)
            if name in r.signals
        }
        for r in trace.rounds
    ]
    paid = [values.get(DISTRIBUTION_ERROR, values.get(DISTRIBUTION_ERROR_BOUND)) for values in signals]
    total = sum(x for x in paid if x is not None)
    greedy = not trace.header.params.get("temperature")
    if not any(signals) or (greedy and not total):
        return ""
    params = trace.header.params
    settings = ", ".join(f"{name}={params[name]}" for name in ("verifier", "grower") if name in params)
    bound = "at most " if any(DISTRIBUTION_ERROR_BOUND in values for values in signals) else ""
    has_price = any(x is not None for x in paid)
    price = (
        f" (total variation distance {bound}{total / max(1, len(trace.token_ids)):.3f} per token)" if has_price else ""
    )
    return f"with {settings or trace.header.method}, the text may not follow the target's distribution{price}"


def to_object(trace: Trace) -> dict[str, Any]:
    """Return a generation as the JSON object that `--json` prints."""
    header = trace.header
    return {
        "text": trace.text,
        "token_ids": trace.token_ids,
        "method": header.method,
        "promise": header.promise,
        "parameters": header.params,
        "target": header.target,
        "drafter": header.drafter,
        "dtype": header.dtype,
        "device": header.device,
        "seed": header.seed,
        "prompt": header.prompt,
        "prompt_tokens": len(header.prompt_tokens),
        "finish_reason": trace.footer.reason,
        "warnings": trace.footer.warnings,
        "metrics": summary(trace),
    }


def write_trace(trace: Trace, path: Path) -> None:
    """Write a trace to a file as JSON Lines (`workbench.trace.export`)."""
    from workbench.trace.export import to_json_lines  # imports Polars

    write_file(path, to_json_lines(trace))


def _save_run(trace: Trace, tags: Sequence[str], folder: Path | None) -> None:
    from workbench.trace.store import RunStore  # imports Polars

    run_id = RunStore(folder).save(trace, tags)
    if not output.is_quiet():
        print(f"saved as {run_id}", file=sys.stderr)


def write_file(path: Path, text: str) -> None:
    """Write a text file atomically.

    Raises:
        WorkbenchError: the file cannot be written.
    """
    try:
        write_atomically(path, text.encode())
    except OSError as error:
        raise WorkbenchError(f"{path} cannot be written: {system_reason(error)}.", "Choose another file.") from None


def _stream(run: Any, printer: TokenPrinter, prompt: str) -> None:
    """Print the prompt and then the run's tokens. Call it after loading, when the progress line is erased."""
    if not output.is_quiet():
        printer.echo(prompt)
    for round_ in run:
        printer.show(round_)
    printer.end(legend=not output.is_quiet())


def _print_figures(trace: Trace) -> None:
    from rich.console import Console

    figures = summary(trace)
    parts = [f"{figures['tokens']} tokens in {figures['rounds']} rounds", trace.footer.reason]
    if figures["tau"] is not None:
        parts.append(f"τ {figures['tau']:.2f}")
    if figures["acceptance_rate"] is not None:
        parts.append(f"accepted / tested {figures['acceptance_rate']:.0%}")
    if figures["tokens_per_second"] is not None:
        parts.append(f"{figures['tokens_per_second']:.0f} tokens/s")
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(f"[{trace.header.method} · {' · '.join(parts)}]", style="dim", markup=False)
    if remark := approximation_note(trace):
        console.print(f"note: {remark}", markup=False)
    for warning in trace.footer.warnings:
        console.print(f"note: {warning}", markup=False)
