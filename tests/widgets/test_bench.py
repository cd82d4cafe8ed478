"""The verifier bench as a widget: inputs, refusals, stored output, and the same names as in its page."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
from views.test_modules import ENV, needs_node

from workbench import widgets as w
from workbench.core.errors import ParameterError
from workbench.views import module_path
from workbench.widgets.bench import DRAFTS, RULES, TOKENS, WAYS


def test_weights_are_normalised_and_the_static_output_has_the_golden_figures() -> None:
    made = w.bench([5, 3, 1.5, 0.5], [1, 4, 3, 2])
    assert made.state["p"] == pytest.approx([0.5, 0.3, 0.15, 0.05])
    picture = made.snapshot()
    for figure in ("0.657", "0.749", "0.735", "0.949", "0.658", "0.833"):
        assert f"<td>{figure}</td>" in picture
    hostile = w.bench([1, 1], [1, 2], ["<img src=x>", "b"]).snapshot()
    assert "<img" not in hostile
    assert "&lt;img src=x&gt;" in hostile


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"p": [1.0]}, "2 to 6 non-negative numbers"),
        ({"p": [0, 0, 0, 0]}, "at least one above 0"),
        ({"p": [1, 1, 1, float("nan")]}, "p is not a distribution"),
        ({"p": [1, 2]}, "p has 2 numbers and q 4"),
        ({"words": ["a"]}, "1 words for 4 tokens"),
        ({"k": 9}, "from 1 to 8"),
        ({"k": True}, "k=True"),
        ({"way": "sorted"}, "independent, without, head, fixed"),
        ({"rule": "typical"}, "recursive, independent"),
    ],
    ids=str,
)
def test_invalid_settings_are_refused_with_a_remedy(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ParameterError) as problem:
        w.bench(**wrong)
    assert words in str(problem.value)


def test_values_from_the_browser_are_checked_too() -> None:
    made = w.bench()
    with pytest.raises(ParameterError):
        made.state = {**made.state, "k": 0}
    made.state = {**made.state, "p": [2, 2, 2, 2]}
    assert made.state["p"] == [0.25] * 4


@needs_node
def test_python_and_the_page_have_the_same_names_and_limits() -> None:
    uris = [module_path(f"verifiers/{name}").as_uri() for name in ("rules", "sampling", "state", "acceptance")]
    script = (
        f"const [rules, sampling, state, acceptance] = await Promise.all({json.dumps(uris)}.map((at) => import(at)));"
        f"const {{ toPython }} = await import({json.dumps(module_path('notebook/bench').as_uri())});"
        "console.log(JSON.stringify([Object.keys(rules.RULES), Object.keys(sampling.WAYS), state.TOKENS, "
        "acceptance.DRAFTS, toPython(state.example())]));"
    )
    node = subprocess.run(
        ["node", "--input-type=module", "-e", script], capture_output=True, text=True, check=True, timeout=60, env=ENV
    )
    rules, ways, tokens, drafts, state = json.loads(node.stdout)
    assert (tuple(rules), tuple(ways), tuple(tokens), drafts) == (RULES, WAYS, TOKENS, DRAFTS)
    assert w.bench().state == state
