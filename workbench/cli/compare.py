"""`workbench compare`: measure two to four methods on the same prompts, one run at a time on the device."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from workbench.cli import checks
from workbench.cli.bench import progress_bar
from workbench.cli.generate import write_file
from workbench.cli.loading import open_workbench
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
    Seed,
    Target,
    Temperature,
    TopK,
    TopP,
    check_key,
    refuse_server_options,
    refuse_unused_heads,
    use_heads,
)
from workbench.core.errors import PromptError
from workbench.service.checks import check_models

FORMATS = (".json", ".csv", ".parquet", ".md")


def compare(
    prompt: Annotated[
        list[str] | None, typer.Argument(help="Prompts: texts to continue; or use --prompts or --group.")
    ] = None,
    lane: Annotated[
        list[str] | None,
        typer.Option(
            help="Method to compare: METHOD or METHOD:NAME=VALUE,…; up to four. `drafter=NAME` sets its draft model."
        ),
    ] = None,
    chat: Annotated[
        list[str] | None,
        typer.Option(help="User message, formatted with the target's chat template if the target has one; repeatable."),
    ] = None,
    prompts: Annotated[Path | None, typer.Option(help="Also use the prompts of this JSON Lines file.")] = None,
    group: Annotated[
        list[str] | None, typer.Option(help="Also use the bundled prompts of this group, for example copy.")
    ] = None,
    image: Annotated[
        list[Path] | None,
        typer.Option(help="Image for a vision target; every prompt is then a question about the image."),
    ] = None,
    question: Annotated[
        list[str] | None, typer.Option(help="Question about the image, in addition to the prompts; repeatable.")
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="Use only the first N prompts; 0: all.")] = 0,
    repeats: Annotated[int, typer.Option(min=1, help="Number of runs of every lane with every prompt.")] = 3,
    target: Target = DEFAULT_TARGET,
    drafter: Drafter = DEFAULT_DRAFTER,
    head: Head = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Length limit of every generation, in tokens.")] = 64,
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    seed: Seed = 0,
    connect: Connect = None,
    api_key: ApiKey = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Also write the result to this file: .json (the app's Compare tab opens it), .csv or .parquet "
            "(a row per run), .md."
        ),
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Compare methods with plain decoding on the same prompts and seed: interleaved and repeated, after a warm-up.

    Examples: workbench compare "Once upon a time" --lane draft-model:depth=3 --lane prompt-lookup --repeats 5;
    workbench compare --image scene.png --question "What is left of the circle?" --question "Describe the image."
    --target vision-target --lane vlm-draft --lane specvlm
    """
    check_key(connect, api_key)
    use_heads(head, target, connect)
    refuse_server_options(connect, device=(device, "auto"), dtype=(dtype, "auto"))
    if out is not None and out.suffix not in FORMATS:
        raise typer.BadParameter(f"the name must end in {', '.join(FORMATS)}", param_hint="--out")
    from workbench.bench.lanes import Lane
    from workbench.bench.prompts import BenchPrompt, load_prompts

    if question and not image:
        raise typer.BadParameter("a question needs an image: give one with --image", param_hint="--question")
    texts = [*((text, True) for text in chat or ()), *((text, False) for text in (*(prompt or ()), *(question or ())))]
    name = "question" if image else "prompt"
    chosen = [BenchPrompt(f"{name} {i + 1}", text, chat=is_chat) for i, (text, is_chat) in enumerate(texts)]
    if prompts is not None or group:
        loaded = load_prompts(prompts)
        checks.check_groups(group or (), loaded)
        chosen += [p for p in loaded if not group or p.group in group]
    if not chosen:
        remedy = "Give a prompt, --chat MESSAGE, --prompts FILE or --group copy."
        raise PromptError("No prompt was given.", remedy)
    defaults = ["vlm-draft", "vlm-text-only"] if image else ["draft-model", "prompt-lookup"]
    sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    checks.check_sampling(sampling)
    checks.check_output_file(out, "out")
    lanes = lane or defaults
    if connect is None:
        lanes = checks.check_lanes(lane, defaults, check_models(target, drafter, device, dtype))
        refuse_unused_heads(head, [Lane.parse(lane_text).method for lane_text in lanes])
    checks.check_images(image or (), target if connect is None else "")
    with open_workbench(connect, target, drafter, device, dtype, api_key) as bench, progress_bar() as bar:
        result = bench.compare(
            chosen[:limit] if limit else chosen, lanes, target=target,
            max_new_tokens=max_new_tokens, seed=seed, sampling=sampling, repeats=repeats, images=image or (),
            progress=None if bar is None else lambda step: bar(step.done, step.total, step.waiting or step.text),
        )  # fmt: skip
    if out is not None:
        write(result, out)
    print(json.dumps(result.to_wire(), ensure_ascii=False, indent=2) if as_json else to_markdown(result))
    if not result.complete:
        raise typer.Exit(130)


def write(comparison: Any, path: Path) -> None:
    """Write a comparison to a file, in the format of its suffix."""
    if path.suffix == ".json":
        write_file(path, json.dumps(comparison.to_wire(), ensure_ascii=False, indent=2))
    elif path.suffix == ".md":
        write_file(path, to_markdown(comparison))
    else:
        from workbench.bench.tables import write_rows

        write_rows(comparison.rows(), path)


def to_markdown(comparison: Any) -> str:
    """Return a comparison as a Markdown table with one row per method.

    The last column says whether the method's text is exact.
    """
    from workbench.bench.markdown import format_value, markdown_table
    from workbench.models.machine import describe

    data = comparison.to_wire()
    settings = data["settings"]
    columns: dict[str, Callable[[dict[str, Any]], Any]] = {
        "lane": lambda lane: lane["name"],
        "speed-up": lambda lane: "reference" if lane["plain"] else _speedup_text(lane["figures"]["speedup"]),
        "τ": lambda lane: format_value(lane["figures"]["tau"], ".2f"),
        "accepted / tested": lambda lane: format_value(lane["figures"]["acceptance_rate"], ".2f"),
        "tokens/s": lambda lane: format_value((lane["figures"]["tokens_per_second"] or {}).get("value"), ".0f"),
        "ms per token: draft + verify + overhead": lambda lane: " + ".join(
            format_value(lane["figures"]["ms_per_token"][part], ".2f") for part in ("draft", "verify", "overhead")
        ),
        (text := f"text compared with {data['reference']}"): lambda lane: lane["error"] or text_note(lane, data),
    }
    parts = [
        f"{name} {len(value) if name == 'images' else value}"
        for name, value in settings.items()
        if value not in ("", None, [], {}) and name != "greedy"
    ]
    stop_note = "" if data["complete"] else "Stopped before the end. "
    if not any(lane["figures"]["tau"] or lane["error"] for lane in data["lanes"]):
        return f"{stop_note}Nothing was measured.\n"
    table = markdown_table(columns, data["lanes"], left=(text,))
    return "\n".join([table, "", f"{stop_note}Measured on {describe(data['machine'])}; {', '.join(parts)}.", ""])


def text_note(lane: dict[str, Any], data: dict[str, Any]) -> str:
    """Return a note that says whether the text of a compared method equals the reference text.

    Args:
        lane: result of one method, as JSON data.
        data: the whole comparison, as JSON data.
    """
    exact = lane["exact"]
    if exact is None or exact["kind"] == "reference":
        return "reference" if exact else "–"
    if exact["kind"] == "distribution":
        return (
            f"{exact['promise']}: same distribution, so the text may differ"
            if exact["promise"] == "exact"
            else exact["promise"]
        )
    if exact["kind"] == "identical":
        return f"identical, {exact['identical']} of {exact['runs']}"
    first = exact["first"]
    place = f"; first at token {first['at'] + 1} of prompt {first['prompt'] + 1}" if first else ""
    margin = (
        f", where the target's two most likely tokens differ by {first['margin']:.2g} nats"
        if first and first["margin"] is not None
        else ""
    )
    return f"{exact['promise']}: {exact['identical']} of {exact['runs']} identical{place}{margin}"


def _speedup_text(estimate: dict[str, Any] | None) -> str:
    from workbench.trace.speedup import Estimate

    return Estimate(**estimate).sentence if estimate else "–"
