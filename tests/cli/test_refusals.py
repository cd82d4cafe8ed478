"""Common mistakes are refused in one line before models load and without importing PyTorch."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from service.fake_hub import FakeHub

from .conftest import Command

PROGRAM = """
import contextlib, io, json, sys
from workbench.cli import main
for words in json.load(sys.stdin):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(words)
    print(json.dumps([status, out.getvalue(), err.getvalue(), "torch" in sys.modules]))
"""
CommandResult = tuple[int, str, str, bool]


def invalid_commands(folder: Path) -> dict[tuple[str, ...], str]:
    """Return invalid commands, each with the error message expected."""
    files = {name: folder / name for name in ("text.txt", "latin.txt", "damaged.png", "cut.png", "empty.txt")}
    files["text.txt"].write_text("Once")
    files["latin.txt"].write_bytes(b"caf\xe9")
    files["empty.txt"].write_text(" ")
    files["damaged.png"].write_bytes(b"no picture")
    files["cut.png"].write_bytes(next(Path("assets/scenes").glob("*.png")).read_bytes()[:200])
    bare = folder / "bare"
    bare.mkdir()
    (bare / "config.json").write_text("{}")
    hello = ("generate", "Hello")
    vision = (*hello, "--target", "vision-target", "--image")
    return {
        (*hello, "--method", "promt-lookup"): "--method: There is no method 'promt-lookup'. Did you mean 'prompt-look",
        (*hello, "--set", "dept=9"): "--set: There is no parameter of draft-model 'dept'. Did you mean 'depth'",
        (*hello, "--set", "depth=99"): "--set: depth='99' is outside its range. Use a whole number from 1 to 16",
        (*hello, "--set", "depth=two"): "is not a whole number",
        (*hello, "--set", "depth"): "NAME=VALUE",
        (*hello, "--temperature", "-1"): "--temperature: temperature=-1.0 is outside its range",
        (*hello, "--top-p", "2"): "--top-p",
        (*hello, "--temperature", "warm"): "'--temperature'",
        (*hello, "--seed", "-1"): "'--seed'",
        (*hello, "--max-new-tokens", "0"): "'--max-new-tokens'",
        (*hello, "--max-new-tokens", "999999"): "--max-new-tokens",
        (*hello, "--stop", ""): "--stop: A stop string is empty",
        (*hello, "--dtype", "int3"): "--dtype: There is no dtype 'int3'. Use one of: auto, float64",
        (*hello, "--device", "warp"): "--device: Device 'warp' is not available here. Use auto",
        (*hello, "--device", "mps"): "--device: Device 'mps' is not available here. Use auto",
        (*hello, "--target", "text-targt"): "--target: There is no model 'text-targt'. Did you mean 'text-target'",
        (*hello, "--target", "/no/such/model"): "--target: There is no model",
        (*hello, "--target", str(files["text.txt"])): "is a file. Give a folder",
        (*hello, "--target", str(folder)): "has no config.json",
        (*hello, "--target", str(bare)): "contains no *.safetensors",
        (*hello, "--target", "text-target-medusa"): "is a drafting head trained for text-target",
        (*hello, "--drafter", "text-draftr"): "--drafter: There is no model 'text-draftr'",
        (*hello, "--drafter", "none", "--method", "draft-model"): "Name a draft model with --drafter",
        (
            *hello,
            "--method",
            "flash",
        ): "Such heads exist for vision-target: choose --target vision-target. These methods can run on",
        (
            *hello,
            "--method",
            "kangaroo",
        ): "Train a head: workbench train kangaroo --target text-target. These methods can run on",
        (
            *hello,
            "--method",
            "vlm-draft",
        ): "this prompt has none. Give an image with --image FILE and --target vision-target",
        (*hello, "--method", "vlm-draft", "--target", "vision-target"): "vlm-draft needs a prompt with images",
        (*hello, "--image", str(files["cut.png"])): "text-target reads text only. Leave out --image",
        (*vision, str(files["damaged.png"])): f"{files['damaged.png']}: The file is not an image",
        (*vision, str(files["cut.png"])): f"{files['cut.png']}: The image is damaged",
        (*vision, str(folder)): "Is a directory",
        (*vision, "/no/such.png"): "/no/such.png cannot be read: No such file",
        (*hello, "--trace", "/no/such/folder/t.jsonl"): "--trace: /no/such/folder/t.jsonl cannot be written",
        (*hello, "--trace", str(folder)): "cannot be written: Is a directory",
        (*hello, "--store", str(files["text.txt"])): "--store",
        (*hello, "--nonsense"): "--nonsense",
        ("generate", "   "): "The prompt is empty",
        ("generate",): "--prompt-file",
        ("generate", "--prompt-file", "/no/such/file"): "cannot be read",
        ("generate", "--prompt-file", str(folder)): "cannot be read: Is a directory",
        ("generate", "--prompt-file", str(files["latin.txt"])): "the file is not UTF-8 text",
        ("generate", "--prompt-file", str(files["empty.txt"])): "The prompt is empty",
        ("methods", "medus"): "Did you mean 'medusa'",
        ("methods", "--target", "text-targt"): "--target: There is no model",
        ("config", "generat"): "Did you mean 'generate'",
        ("dance",): "dance",
        ("compare",): "No prompt was given",
        ("compare", "x", "--lane", "draft-model:dept=1"): "Did you mean 'depth'",
        ("compare", "x", "--lane", "draft-modl"): "--lane: There is no method 'draft-modl'",
        ("compare", "x", "--lane", "draft-model:drafter=text-draftr"): "There is no model 'text-draftr'",
        ("compare", "x", "--target", "text-targt"): "--target: There is no model",
        ("compare", "x", "--temperature", "9"): "--temperature",
        ("compare", "x", "--out", "x.txt"): "must end in",
        ("compare", "x", "--out", "/no/such/x.json"): "--out: /no/such/x.json cannot be written",
        ("compare", "--prompts", "/no/such/file"): "cannot be read",
        ("compare", "--group", "storys"): "--group: There is no group of prompts 'storys'. Did you mean 'stories'",
        ("sweep", "--axis", "depth=1..x"): "'1..x' is not a range of whole numbers.",
        ("sweep",): "No axis was given",
        ("sweep", "--axis", "depth"): "is not an axis",
        ("sweep", "--axis", "depth=0"): "outside its range",
        ("sweep", "--axis", "dept=1"): "Did you mean 'depth'",
        ("sweep", "--axis", "depth=1", "--method", "medus"): "Did you mean 'medusa'",
        ("sweep", "--axis", "depth=1", "--dtype", "int3"): "--dtype",
        ("sweep", "--axis", "depth=1", "--out", str(files["text.txt"])): "is a file",
        (
            "serve",
            "--trusted-proxy",
            "nginx",
        ): "--trusted-proxy: The trusted proxy 'nginx' is not an IP address. For example: 127.0.0.1",
        ("serve", "--request-timeout", "0"): "--request-timeout",
        ("bench", "--group", "opera"): "--group: There is no group of prompts 'opera'",
        ("bench", "--method", "medus"): "--method: There is no method 'medus'",
        ("bench", "--method", "flash"): "There are no flash heads",
        ("bench", "--set", "dept=3", "--method", "draft-model"): "Did you mean 'depth'",
        ("bench", "--set", "depth=0", "--method", "draft-model"): "outside its range",
        ("bench", "--dtype", "int3"): "--dtype",
        ("bench", "--out", "report.docx"): ".json",
        ("bench", "--out", "/no/such/report.md"): "cannot be written",
        ("bench", "--suite", "gms8k"): "Did you mean 'gsm8k'",
        ("bench", "--suite", "gpu", "--device", "cpu"): "--device: The suite gpu needs a GPU, but cpu is not one. ",
        (
            "bench",
            "--suite",
            "gpu-kernels",
            "--device",
            "cpu",
        ): "--device: The suite gpu-kernels without --toy needs a GPU",
        ("bench", "--suite", "gpu-kernels", "--toy", "--method", "draft-tree"): "this suite creates its own targets",
        (
            "bench",
            "--suite",
            "gpu-kernels",
            "--toy",
            "--out",
            "/tmp/a.csv",
        ): "the suite gpu-kernels writes .json or .md",
        ("bench", "--suite", "gpu", "--toy"): "--toy: only the suite gpu-kernels has this option",
        ("bench", "--suite", "gpu", "--method", "medusa"): "medusa needs more than a target and a draft model: medusa",
        (
            "bench",
            "--suite",
            "gpu",
            "--dtype",
            "float16",
        ): "does not accept this option: this suite creates its own targets",
        (
            "bench",
            "--suite",
            "gpu",
            "--set",
            "draft-model.depth=9",
        ): "name the methods whose parameters are set, with --method",
        ("bench", "--prompts", str(files["text.txt"])): "is not an object with a text under 'prompt'",
        ("check", "medus"): "Did you mean 'medusa'",
        ("check", "medusa", "--target", "text-targt"): "--target",
        ("check", "--runs", "3"): "'--runs'",
        ("doctor", "medus"): "error: There is no method 'medus'",
        ("doctor", "medusa", "--set", "node=3"): "Did you mean 'nodes'",
        ("doctor", "--dtype", "int3"): "--dtype",
        ("doctor", "--trace", str(folder)): "Is a directory",
        (
            "doctor",
            "--trace",
            str(files["text.txt"]),
        ): f"{files['text.txt']}: Line 1 of the file is not an event of a trace",
        ("serve", "--device", "warp"): "--device",
        ("serve", "--target", "text-targt"): "--target",
        ("serve", "--port", "99999"): "'--port'",
        ("serve", "--host", "256.256.256.256"): "--host",
        ("serve", "--allow-model", "a b"): "--allow-model",
        ("serve", "--allow-model", str(bare)): "--allow-model: " + str(bare),
        ("record", "--only", "medus"): "--only: There is no method 'medus'",
        ("record", "--target", "text-targt"): "--target",
        ("record", "--out", str(files["text.txt"])): "is a file",
        ("claims", "--method", "medus"): "--method: There is no method 'medus'",
        ("claims", "--method", "draft-model", "--key", "equation-2"): "Did you mean 'equation-1'",
        ("claims", "--key", "main"): "--key: A key selects one claim of one method. Name the method",
        ("train", "everything"): "There is no recipe",
        ("train", "target", "--set", "steps=many"): "--set: option steps takes int, not 'many'",
        ("train", "target", "--set", "compile=maybe"): "--set: option compile takes bool, not 'maybe'",
        ("train", "target", "--set", "exit_layers=2,x"): "--set: option exit_layers takes",
        ("train", "tokenizer", "--set", "vocab=3"): "Did you mean 'vocab_size'",
        ("whatif", "nobody"): "one of the bundled recordings",
    }


def run_commands(commands: list[tuple[str, ...]], **env: str) -> list[CommandResult]:
    """Run commands one after the other in a new process; return their output."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], input=json.dumps([*commands]), capture_output=True, text=True, check=True,
        env={**os.environ, **env},
    )  # fmt: skip
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


def test_serve_and_the_app_report_a_port_in_use() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        ((status, _, err, torch),) = run_commands([("serve", "--port", port)], WORKBENCH_CONFIG=os.devnull)
        assert (status, torch) == (2, False)
        assert f"--port: Port {port} is in use" in err
        app = [sys.executable, "app.py", "--port", port]
        done = subprocess.run(app, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: --port: Port {port} is in use. Choose another port, or 0 for any free port.\n"


def test_the_app_refuses_models_that_it_cannot_load_before_it_serves() -> None:
    for words, said in {("--dtype", "int3"): "There is no dtype", ("--target", "text-targt"): "text-target"}.items():
        done = subprocess.run([sys.executable, "app.py", *words], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (2, "")
        assert said in done.stderr
        assert done.stderr.count("\n") == 1


def test_every_mistake_is_one_line_with_a_remedy_and_imports_no_pytorch(tmp_path: Path) -> None:
    commands = invalid_commands(tmp_path)
    answers = run_commands(list(commands), WORKBENCH_CONFIG=os.devnull)
    for (words, said), (status, out, err, torch) in zip(commands.items(), answers, strict=True):
        assert (status, out) == (2, ""), (words, err)
        assert err.startswith("error: "), (words, err)
        assert err.count("\n") == 1, (words, err)
        assert said in err, (words, err)
        assert "cuda" not in err or "cuda" in words, (words, err)
        assert not torch, words


def test_a_hub_id_is_checked_before_anything_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"a pickle")
    hub = FakeHub({"owner/pickled": tmp_path, "owner/gated": tmp_path}, gated=("owner/gated",))
    home = {"HF_HOME": str(tmp_path), "HF_HUB_CACHE": str(tmp_path / "hub"), "WORKBENCH_CONFIG": os.devnull}
    known, unknown = ("generate", "x", "--target", "owner/pickled"), ("generate", "x", "--drafter", "owner/missing")
    gated = ("sweep", "--axis", "depth=1", "--target", "owner/gated")
    lane = ("compare", "x", "--lane", "draft-model:drafter=owner/missing")
    wanted = [
        (known, "--target: owner/pickled has no safetensors files"),
        (
            unknown,
            "--drafter: The Hugging Face Hub has no model owner/missing, or the model is private. Check the spelling",
        ),
        (
            gated,
            "--target: The model owner/gated is gated on the Hugging Face Hub: its owners must grant you access. Ask ",
        ),
        (lane, "--lane: The Hugging Face Hub has no model owner/missing"),
    ]
    try:
        answers = run_commands([words for words, _ in wanted], **home, HF_ENDPOINT=hub.url, HF_HUB_OFFLINE="0")
    finally:
        hub.close()
    for (words, said), (status, out, err, torch) in zip(wanted, answers, strict=True):
        assert (status, out, torch) == (2, "", False), (words, err)
        assert said in err
        assert err.count("\n") == 1
    assert not any("/resolve/" in path for path in hub.requested_paths), "nothing is downloaded"
    ((status, _, err, torch),) = run_commands([unknown], **home, HF_HUB_OFFLINE="1")
    assert (status, torch) == (2, False)
    assert "--drafter: owner/missing is not on this machine, and the Hugging Face Hub cannot be reached" in err


def test_under_json_an_error_is_one_object(tmp_path: Path) -> None:
    commands = {
        words: said for words, said in invalid_commands(tmp_path).items() if words[0] in ("generate", "methods")
    }
    answers = run_commands([(*words, "--json") for words in commands], WORKBENCH_CONFIG=os.devnull)
    for words, (status, out, err, _) in zip(commands, answers, strict=True):
        json_error: dict[str, Any] = json.loads(out)["error"]
        assert set(json_error) == {"type", "message", "remedy", "option", "exit_code"}, words
        assert (json_error["exit_code"], err) == (status, ""), words
        assert json_error["type"].endswith("Error"), words
        assert json_error["message"], words


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[defaults\n", "is not valid TOML"),
        ("target = 'x'\n", "'target' is in no TOML table"),
        ("[defaults]\n\ntarge = 'x'\n", "line 3: There is no option 'targe'. Did you mean 'target'"),
        ("[generat]\nseed = 1\n", "line 1: There is no command 'generat'. Did you mean 'generate'"),
        ("[generate]\nseed = 1\nlimit = 4\n", "line 3: There is no option of generate 'limit'"),
        ("[runs.list]\nlimit = 4\nseed = 1\n", "line 3: There is no option of runs list 'seed'"),
        ("[defaults]\nseed = 'one'\n", 'line 2: seed = "one": '),
        ("[defaults]\nseed = -4\n", "line 2: seed = -4: "),
    ],
)
def test_an_error_in_the_users_defaults_names_file_and_line(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(text)
    ((status, out, err, torch),) = run_commands([("methods",)], WORKBENCH_CONFIG=str(file))
    assert (status, out, torch) == (1, "", False)
    assert says in err
    assert str(file) in err
    assert err.count("\n") == 1


def test_the_users_defaults_apply_and_the_command_line_overrides_them(
    workbench: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[methods]\ntarget = "text-target"\n\n[defaults]\ntarget = "vision-target"\ndrafter = "none"\n')
    monkeypatch.setenv("WORKBENCH_CONFIG", str(file))
    rows = {row["name"]: row["available"] for row in workbench("methods", "--json").json}
    assert (rows["medusa"], rows["draft-model"]) == (True, False), "[methods] over [defaults] over what is built in"
    assert not workbench("methods", "medusa", "--target", "vision-target", "--json").json["available"]
    settings = workbench("config", "--json").json
    assert (settings["path"], settings["exists"]) == (str(file), True)
    found = {(row["command"], row["option"]): (row["value"], row["from"]) for row in settings["settings"]}
    assert found["methods", "--target"] == ("text-target", "line 2, [methods]")
    assert found["generate", "--target"] == ("vision-target", "line 5, [defaults]")
    shown = workbench("config", "generate").out
    assert "generate --seed                    0                        built in" in shown


def test_the_shell_completes_methods_models_and_parameters_without_pytorch() -> None:
    def offered(line: str) -> list[str]:
        asked = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1), "_WORKBENCH_COMPLETE": "complete_bash"}
        code = "import sys; from workbench.cli import main\ntry: main([])\nfinally: assert 'torch' not in sys.modules"
        env = {**os.environ, **asked}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False)
        assert "Error" not in done.stderr, done.stderr
        return done.stdout.split()

    assert offered("workbench generate --method medu") == ["medusa", "medusa-typical"]
    assert offered("workbench generate --target text-t") == ["text-target"]
    assert "threshold=" in offered("workbench generate --method draft-model --set t")
    assert offered("workbench methods prompt") == ["prompt-lookup"]


def test_a_pipe_that_is_closed_early_is_no_error() -> None:
    line = f"{sys.executable} -m workbench methods --json | head -c 1"
    done = subprocess.run(line, shell=True, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[", "")
