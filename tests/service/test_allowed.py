"""Models that may be asked for besides the target."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from workbench.server.app import make
from workbench.service import Backend


def test_an_allowed_folder_is_listed_and_answers_by_its_name(
    backend: Callable[..., Backend], folders: tuple[str, str], tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(folders[0], other)
    app = make(backend(allow_models=(str(other),)))

    async def ask(verb: str, place: str, **more: Any) -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
            return await http.request(verb, place, **more)

    models = asyncio.run(ask("GET", "/v1/models")).json()["data"]
    assert str(other) in [model["id"] for model in models]
    said = {"prompt": "abc", "max_tokens": 2, "speculation": {"method": "autoregressive"}}
    answer = asyncio.run(ask("POST", "/v1/completions", json=said | {"model": str(other)}))
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == 2
    refused = asyncio.run(ask("POST", "/v1/completions", json=said | {"model": str(tmp_path / "another")}))
    assert refused.status_code == 404
