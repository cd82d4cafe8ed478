"""Stop strings: where a text is cut."""

from __future__ import annotations

import model_helpers

from workbench.engine import Engine, Request
from workbench.methods import registry
from workbench.trace.events import Trace


def run(models: model_helpers.Models, method: str = "draft-model", **options: object) -> Trace:
    request = Request(model_helpers.random_prompt(6, 26), registry.get(method), max_new_tokens=24, **options)  # type: ignore[arg-type]
    return Engine(models).generate(request)


def test_earliest_of_several_stop_strings_completed_by_one_token_counts() -> None:
    models = model_helpers.make_small_models(26)
    text = run(models, "autoregressive").text
    at = next(i for i in range(3, len(text)) if text[i] not in text[:i])
    late, early = text[at], text[at - 2 : at + 1]
    for stops in ((late, early), (early, late)):
        for method in ("autoregressive", "draft-model", "draft-tree"):
            trace = run(models, method, stop=stops)
            assert (trace.text, trace.footer.reason) == (text[: at - 2], "stop-string")
