"""Models that requests may name besides the target."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from workbench.core.errors import ModelError
from workbench.engine import load_models
from workbench.models.bundle import bundled
from workbench.models.local_models import path_of, short_name
from workbench.models.names import folder_of
from workbench.server.app import make
from workbench.service import Backend


def test_an_allowed_folder_is_used_by_its_short_name_and_its_path_stays_hidden(
    backend: Callable[..., Backend], folders: tuple[str, str], tmp_path: Path
) -> None:
    one, other = tmp_path / "models" / "mine", tmp_path / "others" / "mine"
    for place in (one, other):
        shutil.copytree(folders[0], place)
    bench = backend(allow_models=(str(one), str(other)), folders=False)
    app = make(bench)

    async def ask(verb: str, place: str, **more: Any) -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
            return await http.request(verb, place, **more)

    listed = asyncio.run(ask("GET", "/v1/models"))
    names = [model["id"] for model in listed.json()["data"]]
    mine = [name for name in names if name.startswith("mine")]
    assert (len(mine), mine[1]) == (2, f"{mine[0]}-2"), "two folders with the same last part"
    said = {"prompt": "abc", "max_tokens": 2, "speculation": {"method": "autoregressive"}}
    answers = [listed]
    for model in mine:
        answers.append(asyncio.run(ask("POST", "/v1/completions", json=said | {"model": model})))
        assert answers[-1].status_code == 200, answers[-1].text
        assert answers[-1].json()["usage"]["completion_tokens"] == 2
        answers.append(asyncio.run(ask("GET", f"/v1/models/{model}")))
        assert answers[-1].json()["id"] in mine
    assert {entry["name"] for entry in bench.loaded_models()} >= set(mine)
    headers = [run.trace.header for run in bench._runs._by_id.values() if run.trace is not None]
    assert {header.target for header in headers} == set(mine)
    for unknown in (str(tmp_path / "another"), "another"):
        refused = asyncio.run(ask("POST", "/v1/completions", json=said | {"model": unknown}))
        assert refused.status_code == 404

    def errors_for(path: str) -> list[str]:
        """Return the error that a client gets for a path."""
        over = [asyncio.run(ask("POST", "/v1/completions", json=said | {"model": path}))]
        over.append(asyncio.run(ask("GET", f"/v1/models/{path}")))
        with pytest.raises(ModelError) as refused:
            bench.load(path)
        assert {answer.status_code for answer in over} == {404}
        return [text.replace(path[:80], "PATH") for text in (*(answer.text for answer in over), str(refused.value))]

    nowhere = errors_for(str(tmp_path / "models" / "none"))
    assert errors_for(str(one)) == nowhere, "the path given to --allow-model"
    assert errors_for(folders[0]) == nowhere, "the path given to --target"
    assert str(tmp_path) not in "".join(answer.text for answer in answers) + str(bench.targets()) + str(headers)


def test_a_folder_has_one_short_name_for_all_spellings(
    folders: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = short_name(folders[0])
    assert "/" not in name
    assert short_name(name) == name
    assert short_name(f"{folders[0]}/../target/") == name
    monkeypatch.chdir(Path(folders[0]).parent)
    assert short_name("./target") == name
    assert folder_of(name) == Path(folders[0]).resolve()
    (Path(folders[0]).parent / "small.gguf").write_bytes(b"GGUF")
    assert short_name(f"{folders[0]}/../small.gguf") == "small.gguf"
    assert path_of("small.gguf") == Path(folders[0]).parent.resolve() / "small.gguf"
    assert short_name("/no/such/folder") == "/no/such/folder", "loading reports what is wrong with the path"
    assert short_name("owner/name") == "owner/name"
    assert [short_name(str(bundled()[one])) for one in bundled()] == list(bundled()), "a bundled model has its own name"


def test_traces_have_the_short_names_of_models_loaded_by_path(folders: tuple[str, str]) -> None:
    models = load_models(*folders, device="cpu", dtype="float64")
    assert (models.target_name, models.drafter_name) == tuple(map(short_name, folders))
