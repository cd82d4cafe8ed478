"""Browser and Python compute the same speed-up and the same sentence."""

from __future__ import annotations

import json
import subprocess

import pytest
from views.test_modules import ENV, needs_node

from workbench.trace.speedup import estimate
from workbench.views import module_path

CASES: list[dict[str, list[float]]] = [
    {"a": [1.31]},
    {"a": [1.31, 0.8]},
    {"a": [1.31, 1.2, 1.4]},
    {"a": [0.7, 1.6, 1.1, 1.0]},
    {"a": [0.7, 1.3, 0.8]},
    {"a": [1.3, 1.2], "b": [0.9, 0.95]},
    {"a": [1.3], "b": [0.9], "c": [2.4]},
    {"a": [0.3, 0.31], "b": [0.2], "c": [0.4, 0.41, 0.39], "d": [0.35]},
    {str(i): [1 + i / 100, 1.02 + i / 90] for i in range(40)},
    {"a": [1.0] * 10, "b": [2.0] * 10, "c": [3.0] * 10},
]


@needs_node
def test_browser_and_python_give_the_same_speed_up_sentence() -> None:
    script = (
        f"import * as s from {json.dumps(module_path('shared/speedup').as_uri())};"
        "import { readFileSync } from 'node:fs';"
        "const said = (own) => { const e = s.estimate(own);"
        "return { ...e, verdict: s.verdict(e), basis: s.basis(e), sentence: s.sentence(e) }; };"
        "console.log(JSON.stringify(JSON.parse(readFileSync(0)).map(said)));"
    )
    node = subprocess.run(
        ["node", "--input-type=module", "-e", script], input=json.dumps([list(case.values()) for case in CASES]),
        capture_output=True, text=True, check=True, timeout=60, env=ENV,
    )  # fmt: skip
    for case, seen in zip(CASES, json.loads(node.stdout), strict=True):
        found = estimate(case)
        assert found is not None
        words = {"verdict": found.verdict, "basis": found.basis, "sentence": found.sentence}
        assert {name: seen.pop(name) for name in words} == words
        assert seen == {name: pytest.approx(value) for name, value in found.to_wire().items()}
