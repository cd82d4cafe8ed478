"""Options that several commands share, and how their values are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from workbench.cli import complete
from workbench.core.errors import ParameterError

Target = Annotated[
    str,
    typer.Option(
        help="The model that is verified against: a name of `workbench models`, a folder, a GGUF file, a Hub id.",
        autocompletion=complete.targets,
    ),
]
Drafter = Annotated[
    str,
    typer.Option(
        help="The small model that drafts; 'auto': the target's own where it is bundled; 'none': no drafter.",
        autocompletion=complete.drafters,
    ),
]
Head = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FOLDER",
        help="Draft with the trained heads in this folder, of any layout that `workbench heads inspect` knows (EAGLE, "
        "Medusa, …); repeatable. WORKBENCH_HEADS names folders for every command and the app.",
    ),
]
Dtype = Annotated[
    str,
    typer.Option(
        help="Number format of the target: auto, float32, bfloat16, float16, float64, or int8 (weights, on a CPU).",
        autocompletion=complete.dtypes,
    ),
]
Device = Annotated[
    str, typer.Option(help="auto, cpu, or cuda, cuda:1 … where there is one.", autocompletion=complete.device_names)
]
Method = Annotated[
    str | None,
    typer.Option(
        help="How to decode: a name that `workbench methods` lists. By default draft-model, or without a draft model "
        "what runs on the target.",
        autocompletion=complete.methods,
    ),
]
Json = Annotated[
    bool,
    typer.Option(
        "--json",
        help='Print JSON for scripts, and nothing else, on standard output; an error is {"error": {"type", "message", '
        '"remedy", "option", "exit_code"}} there.',
    ),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Connect = Annotated[
    str | None, typer.Option(metavar="URL", help="Ask a running app (http://localhost:7860) or a Space (owner/space).")
]
ApiKey = Annotated[
    str | None,
    typer.Option(metavar="KEY", help="The key that --connect's server asks for; better set as WORKBENCH_CONNECT_KEY."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Set a parameter of the method; may be given several times.",
        autocompletion=complete.settings,
    ),
]
Temperature = Annotated[float, typer.Option(help="0 is greedy; 1 samples from the model's own law.")]
TopK = Annotated[int, typer.Option(help="Sample among the k likeliest tokens; 0 is off.")]
TopP = Annotated[float, typer.Option(help="Sample among the likeliest tokens that hold this mass; 1 is off.")]
MaxNewTokens = Annotated[int, typer.Option(min=1, help="Stop after so many tokens.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of every random number of the run.")]

DEFAULT_TARGET, DEFAULT_DRAFTER = "text-target", "auto"


def parse_settings(settings: Sequence[str] | None) -> dict[str, str]:
    """Split `name=value` pairs. The registry checks names and values, so that all faces say the same about them.

    Example:
        >>> parse_settings(["depth=4"])
        {'depth': '4'}
    """
    pairs: dict[str, str] = {}
    for setting in settings or ():
        name, equals, value = setting.partition("=")
        if not equals or not name.strip():
            raise typer.BadParameter(f"{setting!r} is not NAME=VALUE", param_hint="--set")
        pairs[name.strip()] = value.strip()
    return pairs


def check_key(connect: str | None, api_key: str | None) -> None:
    """Refuse a key that goes nowhere, or is none."""
    if api_key is not None and connect is None:
        raise typer.BadParameter("it is for a server: name that with --connect", param_hint="--api-key")
    if api_key is not None and not api_key.strip():  # as from a variable that is not set
        raise typer.BadParameter("the key is empty", param_hint="--api-key")


def take_heads(heads: Sequence[str] | None, target: str, connect: str | None = None) -> None:
    """Draft with heads of one's own in this process; those that do not suit the target are refused at once."""
    from workbench.engine.checkpoints import own
    from workbench.engine.names import folder_of
    from workbench.service.checks import about

    if heads and connect is not None:
        raise typer.BadParameter(f"the server at {connect} decides it", param_hint="--head")
    with about("head"):
        for place in heads or ():
            own.check(place, target, folder_of(target))
    own.choose(*(heads or ()))


def refuse_idle_heads(heads: Sequence[str] | None, methods: Sequence[str]) -> None:
    """Refuse heads of one's own that none of these methods drafts with: they would be left aside in silence.

    What a rule or a policy reads (`judge`, `acceptance`) is of no method by itself, and is not asked for here.
    """
    from workbench.engine.checkpoints import own
    from workbench.methods import known
    from workbench.service.checks import about

    for place in heads or ():
        kind = own.open_heads(place).kind
        able = known.drafting_with(kind)
        if able and not set(able) & set(methods):
            with about("head"):
                raise ParameterError(
                    f"{place} has {kind} heads, which {', '.join(methods)} does not draft with.",
                    f"Take a method that does: {', '.join(able)}.",
                )


def only_here(connect: str | None, **options: tuple[str, str]) -> None:
    """Refuse options that belong to the server when another one is asked. `options`: name → (value, default)."""
    for name, (value, default) in options.items():
        if connect is not None and value != default:
            raise typer.BadParameter(f"the server at {connect} decides it", param_hint=f"--{name}")


def drafter_or_none(name: str) -> str | None:
    """`none` on the command line means no drafter."""
    return None if name.lower() == "none" else name
