"""`workbench config`: show the user's own defaults of options, from a TOML file, and the values in effect.

[defaults]            # of every command that has the option
target = "text-target"
device = "cpu"

[generate]            # of one command
max-new-tokens = 200
"""

from __future__ import annotations

import importlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from workbench.cli.options import Debug, Json
from workbench.core.errors import ParameterError, UnknownNameError, WorkbenchError

VARIABLE = "WORKBENCH_CONFIG"
SHARED = "defaults"
ENVIRONMENT = ("WORKBENCH_CONFIG", "WORKBENCH_MODELS", "WORKBENCH_METHODS", "WORKBENCH_RUNS", "WORKBENCH_BOARDS",
               "WORKBENCH_DATASTORE", "WORKBENCH_LAB", "WORKBENCH_CACHE", "HF_HUB_OFFLINE", "NO_COLOR")  # fmt: skip
LEFT_OUT = ("help", "version", "debug", "install_completion", "show_completion")
"""Names of options that the user's file of defaults cannot set."""


class ConfigError(WorkbenchError):
    """Raised if the user's file of defaults cannot be read, or has an unknown table, key or value."""


def path() -> Path:
    """Return the path of the user's file of defaults: WORKBENCH_CONFIG, else in the XDG configuration folder.

    The file need not exist.
    """
    variable = os.environ.get(VARIABLE)
    home = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(variable or Path(home) / "workbench" / "config.toml").expanduser()


def read() -> tuple[dict[str, Any], str]:
    """Return the user's file of defaults, parsed and as text; both are empty if there is no file.

    Raises:
        ConfigError: the file cannot be read, or is not TOML.
    """
    file = path()
    if not file.exists() and not os.environ.get(VARIABLE):
        return {}, ""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "the file is not UTF-8 text"
        raise ConfigError(f"{file} cannot be read: {reason}.", f"Fix the file, or unset {VARIABLE}.") from None
    try:
        toml = importlib.import_module("tomllib")
    except ModuleNotFoundError:
        try:
            toml = importlib.import_module("tomli")
        except ModuleNotFoundError:
            raise ConfigError(
                f"Python 3.10 cannot read {file}.", "Run `pip install tomli`, or use Python 3.11."
            ) from None
    try:
        return toml.loads(text), text
    except ValueError as error:
        raise ConfigError(f"{file} is not valid TOML: {error}.", "Fix that line.") from None


def default_map(group: Any, parsed: Mapping[str, Any], text: str) -> dict[str, Any]:
    """Check the user's defaults, and return them by command and parameter name.

    Args:
        group: the program's command group.
        parsed: the parsed file of defaults.
        text: text of the file, for line numbers in errors.

    Raises:
        ConfigError: a table, key or value is unknown or invalid; the message names file and line.
    """
    commands = dict(_commands(group))
    top_level = {name: command for name, command in commands.items() if " " not in name}  # without `runs list`: filters
    known_keys = {key for command in top_level.values() for key in _options(command)}
    defaults: dict[str, Any] = {}
    for table, entries in _tables(parsed, commands):
        if table != SHARED and table not in commands:
            _refuse(text, table, None, UnknownNameError.of("command", table, [SHARED, *commands]))
        for key, value in entries.items():
            affected = list(top_level.items()) if table == SHARED else [(table, commands[table])]
            names = known_keys if table == SHARED else set(_options(commands[table]))
            if _plain(key) not in names:
                kind = "option" if table == SHARED else f"option of {table}"
                _refuse(text, table, key, UnknownNameError.of(kind, key, names))
            for name, command in affected:
                if (parameter := _options(command).get(_plain(key))) is not None:
                    default = [value] if parameter.multiple and not isinstance(value, list) else value
                    _check_value(text, table, key, command, parameter, default)
                    _put(defaults, name.split(), parameter.name, default)
    return defaults


def _tables(parsed: Mapping[str, Any], commands: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (command name, table) for each table in the file of defaults, the shared table `[defaults]` first.

    The table [runs.list] has the command name "runs list".
    """
    flat: dict[str, dict[str, Any]] = {}
    for table, entries in parsed.items():
        if not isinstance(entries, dict):
            flat.setdefault("", {})[table] = entries
            continue
        is_group = table not in commands and any(name.startswith(f"{table} ") for name in commands)
        for key, value in entries.items():
            if is_group and isinstance(value, dict):
                flat.setdefault(f"{table} {key}", {}).update(value)
            else:
                flat.setdefault(table, {})[key] = value
    if "" in flat:
        key = next(iter(flat[""]))
        raise ConfigError(
            f"{path()}: the setting {key!r} is in no TOML table.", f"Put this setting under [{SHARED}] or [COMMAND]."
        )
    yield from sorted(flat.items(), key=lambda entry: entry[0] != SHARED)


def _commands(group: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{above}{name} ")
        else:
            yield f"{above}{name}", command


def _options(command: Any) -> dict[str, Any]:
    """Return the options of a command by name, without the leading dashes."""
    options = {}
    for parameter in command.params:
        if parameter.param_type_name == "option" and parameter.name not in LEFT_OUT:
            options |= {_plain(word): parameter for word in parameter.opts if word.startswith("--")}
    return options


def _plain(key: str) -> str:
    return key.lstrip("-").replace("_", "-")


def _check_value(text: str, table: str, key: str, command: Any, parameter: Any, value: Any) -> None:
    try:
        parameter.process_value(typer.Context(command), value)
    except Exception as error:  # typer's own kinds differ between its versions
        message = error.format_message() if hasattr(error, "format_message") else str(error)  # pyright: ignore[reportAttributeAccessIssue]
        _refuse(text, table, key, ParameterError(f"{key} = {json.dumps(value)}: {' '.join(message.split())}"))


def _put(defaults: dict[str, Any], names: list[str], parameter: str, value: Any) -> None:
    for name in names:
        defaults = defaults.setdefault(name, {})
    defaults[parameter] = value


def _refuse(text: str, table: str, key: str | None, why: WorkbenchError) -> None:
    line = _line_of(text, table, key)
    raise ConfigError(f"{path()}, line {line}: {why.message}", why.remedy) from None


def _line_of(text: str, table: str, key: str | None) -> int:
    """Return the line number (from 1) of a key in a TOML table; without a key, that of the table's header."""
    header = re.compile(rf"\s*\[\s*{re.escape(table.replace(' ', '.'))}\s*\]")
    is_in_table, header_line = False, 1
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("["):
            is_in_table = header.match(line) is not None
            header_line = number if is_in_table else header_line
        elif is_in_table and key is not None and re.match(rf'\s*["\']?{re.escape(key)}["\']?\s*=', line):
            return number
    return header_line


def config(
    context: typer.Context,
    command: Annotated[
        str | None,
        typer.Argument(help="Command whose options are shown, each with its value and the origin of the value."),
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show the file with your own defaults of options, and the values in effect.

    The file is TOML: [defaults] applies to every command that has the option, [generate] to one command. Order of
    precedence: command line, the command's table, [defaults], built-in values.
    """
    parsed, text = read()
    group = context.find_root().command
    mapped = default_map(group, parsed, text)
    commands = dict(_commands(group))
    if command is not None and command not in commands:
        raise UnknownNameError.of("command", command, commands)
    rows = _rows(commands, parsed, mapped, text, command)
    environment = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    if as_json:
        wire = {"path": str(path()), "exists": path().exists(), "settings": rows, "environment": environment}
        print(json.dumps(wire, ensure_ascii=False, indent=2))
        return
    print(f"{path()}{'' if path().exists() else ' (no such file: all values are built in)'}")
    for row in rows:
        print(f"{row['command'] + ' ' + row['option']:<34} {json.dumps(row['value'], ensure_ascii=False):<24} "
              f"{row['from']}")  # fmt: skip
    for name, value in environment.items():
        print(f"{name:<34} {value:<24} environment")


def _rows(
    commands: Mapping[str, Any], parsed: Mapping[str, Any], mapped: Mapping[str, Any], text: str, only: str | None
) -> list[dict[str, Any]]:
    rows = []
    for name, command in commands.items():
        values = mapped
        for part in name.split():
            values = values.get(part, {})
        tables = dict(_tables(parsed, commands)) if parsed else {}
        for option, parameter in _options(command).items():
            places = (name,) if " " in name else (name, SHARED)
            table = next((t for t in places if option in map(_plain, tables.get(t, {}))), None)
            if only == name or (only is None and table is not None):
                key = next((k for k in tables.get(table or "", {}) if _plain(k) == option), option)
                value = values[parameter.name] if table else parameter.default
                value = value if isinstance(value, (str, int, float, bool, list, type(None))) else str(value)
                origin = f"line {_line_of(text, table, key)}, [{table}]" if table else "built in"
                rows.append({"command": name, "option": f"--{option}", "value": value, "from": origin})
    return rows
