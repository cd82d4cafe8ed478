"""Theoretical curves in the browser equal those of Python."""

from __future__ import annotations

import json
import subprocess

import pytest
from views.test_modules import ENV, needs_node

from workbench.trace import whatif
from workbench.trace.stalls import find_stalls
from workbench.views import module_path, recorded_runs

FOUND = {"tau": "tau", "rate": "rate", "tauIid": "tau_iid", "tauByPosition": "tau_by_position", "best": "best"}


@needs_node
@pytest.mark.parametrize("name", ["draft-model", "draft-tree", "medusa", "token-recycling", "oracle", "flash"])
@pytest.mark.parametrize("stalled", [False, True])
def test_browser_and_python_compute_the_same_theory_of_a_run(name: str, stalled: bool) -> None:
    trace, text = recorded_runs.trace(name), recorded_runs.trace("autoregressive")
    for r in trace.rounds[1:3] if stalled else []:
        r.seconds, r.overhead_s = 9 * r.seconds, r.overhead_s + 8 * r.seconds
    plain = (
        text if text.header.prompt_tokens == trace.header.prompt_tokens else None
    )  # there is no plain run with an image
    script = (
        f"import {{ overlay }} from {json.dumps(module_path('live/theory').as_uri())};"
        f"import {{ acceptanceByDepth }} from {json.dumps(module_path('shared/figures').as_uri())};"
        f"import {{ notStalled, stalls }} from {json.dumps(module_path('live/stalls').as_uri())};"
        "import { readFileSync } from 'node:fs';"
        "const [rounds, plain] = JSON.parse(readFileSync(0));"
        "const found = overlay(rounds, plain, acceptanceByDepth(rounds), notStalled);"
        "console.log(JSON.stringify({ ...found, stalls: Object.fromEntries(stalls(rounds)) }));"
    )
    given = json.dumps([[r.to_wire() for r in t.rounds] if t else None for t in (trace, plain)])
    node = subprocess.run(
        ["node", "--input-type=module", "-e", script], input=given, capture_output=True, text=True, check=True,
        timeout=60, env=ENV,
    )  # fmt: skip
    seen, expected = json.loads(node.stdout), whatif.compare_with_theory(trace, plain)
    assert {int(i): times for i, times in seen["stalls"].items()} == pytest.approx(find_stalls(trace.rounds))
    assert bool(seen["stalls"]) == stalled
    for theirs, ours in FOUND.items():
        assert seen[theirs] == pytest.approx(expected[ours]), ours
    assert sum(seen["counts"]) == pytest.approx(len(trace.rounds))
