"""Options that several commands have, and functions that parse and check their values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from workbench.cli import complete
from workbench.core.errors import ParameterError

Target = Annotated[
    str,
    typer.Option(
        help="Target model: a name from `workbench models`, a folder, a GGUF file or a Hub id.",
        autocompletion=complete.targets,
    ),
]
Drafter = Annotated[
    str,
    typer.Option(
        help="Draft model; 'auto': the draft model bundled for the target; 'none': no draft model.",
        autocompletion=complete.drafters,
    ),
]
Head = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FOLDER",
        help="Draft with the trained heads in this folder, in any layout that `workbench heads inspect` reads (EAGLE, "
        "Medusa, …); repeatable. WORKBENCH_HEADS sets such folders for every command and the app.",
    ),
]
Dtype = Annotated[
    str,
    typer.Option(
        help="Number format of the target: auto, float32, bfloat16, float16, float64, or int8 (weights only, on CPU).",
        autocompletion=complete.dtypes,
    ),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, …", autocompletion=complete.device_names)]
Method = Annotated[
    str | None,
    typer.Option(
        help="Decoding method, from `workbench methods`. By default draft-model, or a method that needs only "
        "the target if there is no draft model.",
        autocompletion=complete.methods,
    ),
]
Json = Annotated[
    bool,
    typer.Option(
        "--json",
        help='Print only JSON on standard output; an error is {"error": {"type", "message", "remedy", "option", '
        '"exit_code"}}.',
    ),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Connect = Annotated[
    str | None, typer.Option(metavar="URL", help="Use a running app (http://localhost:7860) or a Space (owner/space).")
]
ApiKey = Annotated[
    str | None,
    typer.Option(metavar="KEY", help="API key for --connect; safer in the variable WORKBENCH_CONNECT_KEY."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Set a parameter of the method; repeatable.",
        autocompletion=complete.settings,
    ),
]
Temperature = Annotated[
    float, typer.Option(help="Sampling temperature; 0: greedy; 1: sample from the model's own distribution.")
]
TopK = Annotated[int, typer.Option(help="Sample from the k most likely tokens; 0: off.")]
TopP = Annotated[float, typer.Option(help="Sample from the most likely tokens with this total probability; 1: off.")]
MaxNewTokens = Annotated[int, typer.Option(min=1, help="Maximum number of new tokens.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of all random numbers of the run.")]

DEFAULT_TARGET, DEFAULT_DRAFTER = "text-target", "auto"


def parse_settings(settings: Sequence[str] | None) -> dict[str, str]:
    """Split the values of the option `--set`, in the form NAME=VALUE, into names and values.

    The method registry checks names and values later, with the same errors for every interface.

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
    """Refuse an API key without a server, or an empty key."""
    if api_key is not None and connect is None:
        raise typer.BadParameter(
            "an API key is only for a server: give its address with --connect", param_hint="--api-key"
        )
    if api_key is not None and not api_key.strip():  # --api-key "$VARIABLE" with a variable that is not set
        raise typer.BadParameter("the API key is empty", param_hint="--api-key")


def use_heads(heads: Sequence[str] | None, target: str, connect: str | None = None) -> None:
    """Draft with the heads that the option `--head` names; refuse heads that do not fit the target.

    Args:
        heads: folders of heads.
        target: name of the target.
        connect: value of `--connect`; with a server, `--head` is refused.
    """
    from workbench.models.checkpoints import user_heads
    from workbench.models.names import folder_of
    from workbench.service.checks import set_error_option

    if heads and connect is not None:
        raise typer.BadParameter(
            f"the server at {connect} sets this option for all its clients; leave it out", param_hint="--head"
        )
    with set_error_option("head"):
        for folder in heads or ():
            user_heads.check(folder, target, folder_of(target))
    user_heads.use_heads(*(heads or ()))


def refuse_unused_heads(heads: Sequence[str] | None, methods: Sequence[str]) -> None:
    """Refuse heads of the option `--head` that no method of the run uses: they would be ignored silently.

    Heads of a verifier or policy (kinds `judge` and `acceptance`) belong to no single method and are accepted.
    """
    from workbench.methods import method_info
    from workbench.models.checkpoints import user_heads
    from workbench.service.checks import set_error_option

    for folder in heads or ():
        kind = user_heads.open_heads(folder).kind
        usable = method_info.drafting_with(kind)
        if usable and not set(usable) & set(methods):
            with set_error_option("head"):
                raise ParameterError(
                    f"{folder} has {kind} heads, and {', '.join(methods)} does not draft with such heads.",
                    f"Use a method that drafts with these heads: {', '.join(usable)}.",
                )


def refuse_server_options(connect: str | None, **options: tuple[str, str]) -> None:
    """Refuse changed options that have no effect with `--connect`, because the server sets them.

    Options at their default values are not refused.

    Args:
        connect: value of `--connect`; None: there is no server, and no option is refused.
        options: (value, default) by name of the option.
    """
    for name, (value, default) in options.items():
        if connect is not None and value != default:
            raise typer.BadParameter(
                f"the server at {connect} sets this option for all its clients; leave it out", param_hint=f"--{name}"
            )


def drafter_or_none(name: str) -> str | None:
    """Return the value of the option `--drafter`; None for "none"."""
    return None if name.lower() == "none" else name
