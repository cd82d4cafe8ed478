"""Traces for tests: random ones by hypothesis, and one with hostile texts."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from workbench.core.rules import Rule
from workbench.trace.events import Change, Footer, Header, Phase, Round, Trace
from workbench.trace.images import PNG_URL, PromptImage, images_of
from workbench.trace.nodes import ACCEPTED, DISCARDED, REJECTED, Nodes, Probe, TopTokens
from workbench.trace.tokens import BONUS, CORRECTED, EmittedToken, TentativeTokenRecord
from workbench.views import recorded_runs

FIXTURES = Path(__file__).parent / "fixtures" / "wire"

HOSTILE = [
    "</script><img src=x onerror=window.hurt=1>",
    "</script <img src=x onerror=window.hurt=1 ",
    "<!--<script>window.hurt=1</script>",
    "\u2028\u2029",
    "${window.hurt=1}",
    "'\"`\\",
    "{{window.hurt=1}}",
    "\x00\x07\x1b[31m",
    "\ufffd",
    "&lt;b&gt;&amp;",
    "]]>",
    "../../etc/passwd",
    "\u202etxt.exe",
]
"""Token texts that break out of HTML, scripts, templates, terminals and file names if they are not escaped."""


QUOTES = "\"'><img src=x onerror=window.hurt=1><script>window.hurt=1</script>"
"""End of an image URL that breaks out of an HTML attribute if it is not escaped."""


def make_hostile_trace() -> Trace:
    """Return a trace with trees whose tokens, prompt, model names and notes are all hostile texts."""
    wire = json.loads((FIXTURES / "tree.json").read_text())
    texts = iter(HOSTILE * 10_000)
    header = wire["header"]
    header["target"], header["drafter"], header["prompt"] = HOSTILE[0], HOSTILE[1], "".join(HOSTILE)
    header["prompt_text"] = [next(texts) for _ in header["prompt_tokens"]]
    header["hardware"], header["created"] = HOSTILE[0], HOSTILE[3]
    length = 0
    for r in wire["rounds"]:
        r["nodes"]["text"] = [next(texts) for _ in r["nodes"]["text"]]
        r["nodes"]["source"] = [next(texts) for _ in r["nodes"]["source"]]
        r["notes"] = [HOSTILE[0]]
        for top in [*r["top_p"], *(t for t in r["top_q"] if t)]:
            top["text"] = [next(texts) for _ in top["text"]]
        for e in r["emitted"]:
            e["text"] = next(texts)
            e["start"], e["end"] = length, length + len(e["text"])
            length = e["end"]
    wire["rounds"][2]["changes"] = [{"name": HOSTILE[0], "before": HOSTILE[1], "after": HOSTILE[0]}]
    wire["footer"]["text"] = "".join(e["text"] for r in wire["rounds"] for e in r["emitted"])
    wire["footer"]["warnings"] = HOSTILE[:2]
    return Trace.from_wire(wire)


def make_hostile_image_trace() -> Trace:
    """Return a recorded run over an image whose URLs go on after their data, with quotes and an element.

    Files with such URLs are refused; a trace that was made in Python may still hold them.
    """
    trace = recorded_runs.trace("specvlm")
    assert trace.header.pictures
    for image in trace.header.pictures:
        image.url += QUOTES
    for record in trace.rounds:
        for image in images_of(record.vision):
            image["url"] += QUOTES
    return trace


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.sampled_from(HOSTILE)
number = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**40), 2**40)
probability = st.none() | st.floats(0, 1)
int64 = st.integers(-(2**63), 2**63 - 1)
json_value = st.recursive(
    st.none() | st.booleans() | number | text, lambda inner: st.lists(inner, max_size=2), max_leaves=3
)
top_candidates = st.integers(0, 3).flatmap(
    lambda n: st.builds(TopTokens, *(st.lists(kind, min_size=n, max_size=n) for kind in (int64, text, st.floats(0, 1))))
)

size = st.integers(0, 2**20)
pictures = st.builds(PromptImage, st.text("AZaz09+/=").map(PNG_URL.__add__), size, size, size, size, size, size)
visions = st.fixed_dictionaries(
    {}, optional={"drafter": text, "kept": st.none() | st.lists(size, max_size=2), "pictures": st.lists(
        pictures.map(asdict), max_size=1)},
)  # fmt: skip
maps = st.lists(st.lists(st.integers(0, 255), max_size=2), max_size=2)
attributions = st.none() | st.fixed_dictionaries(
    {"target": st.fixed_dictionaries({"attention": maps, "gradient": maps}), "drafter": st.none()}
)


words = st.dictionaries(text, text, max_size=2)
rules = st.builds(Rule, text, text, text, words, text, words, text, text, st.booleans(), text)


@st.composite
def nodes(draw: Any) -> Nodes:
    """Draw a tree with random texts and figures."""
    n = draw(st.integers(0, 4))

    def column(kind: Any) -> list[Any]:
        return draw(st.lists(kind, min_size=n, max_size=n))

    more = draw(st.dictionaries(text, st.just(probability), max_size=2)) if n else {}
    return Nodes(
        column(int64), [draw(st.integers(-1, i - 1)) for i in range(n)], column(int64), column(int64), column(text),
        column(st.floats(0, 1)), column(probability), column(probability), column(probability),
        column(st.sampled_from([ACCEPTED, REJECTED, DISCARDED])), column(text), column(st.none() | text),
        {name: column(kind) for name, kind in more.items()},
    )  # fmt: skip


@st.composite
def rounds(draw: Any, index: int) -> Round:
    """Draw a round whose parts need not be consistent."""
    tree = draw(nodes())
    places = st.sampled_from([0, len(tree) + 1])
    kinds = st.sampled_from([ACCEPTED, CORRECTED, BONUS])
    emitted = st.builds(EmittedToken, int64, text, int64, int64, kinds, st.none() | int64, int64, st.floats(0, 1))

    def some(kind: Any, n: int) -> list[Any]:
        return draw(st.lists(kind, min_size=n, max_size=n))

    path = draw(st.lists(st.integers(0, len(tree) - 1), max_size=3)) if len(tree) else []
    times = [draw(st.floats(0, 1e6)) for _ in range(5)]
    return Round(
        index,
        draw(text),
        draw(st.dictionaries(text, json_value, max_size=2)),
        tree,
        path,
        draw(st.none() | int64),
        draw(st.none() | kinds),
        draw(st.lists(emitted, max_size=3)),
        some(top_candidates, draw(places)),
        some(st.none() | top_candidates, draw(places)),
        some(st.floats(0, 20), draw(places)),
        draw(st.lists(st.builds(Phase, text, st.floats(0, 1e6), st.floats(0, 1e6), text), max_size=2)),
        *times,
        draw(st.integers(0, 99)),
        draw(st.integers(0, 99)),
        draw(st.lists(st.builds(Change, text, json_value, json_value), max_size=2)),
        draw(st.dictionaries(text, st.floats(0, 1), max_size=2)),
        draw(st.lists(text, max_size=2)),
        draw(visions),
        draw(st.floats(0, 1e6)),
        draw(st.dictionaries(st.sampled_from(["rows", "draft_s"]), st.floats(0, 1), max_size=2)),
        draw(st.lists(int64, max_size=2)),
        draw(st.lists(st.builds(TentativeTokenRecord, int64, text, int64, st.floats(0, 1)), max_size=2)),
        draw(st.lists(st.builds(Probe, int64, text, st.integers(-1, len(tree) - 1), int64, text), max_size=2)),
    )


@st.composite
def traces(draw: Any) -> Trace:
    """Draw a whole trace."""
    header = draw(
        st.builds(
            Header, text, text, st.dictionaries(text, json_value, max_size=2), text, st.integers(), text,
            st.lists(int64, max_size=3), st.lists(text, max_size=3), st.integers(0, 9999), text, text,
            st.none() | text, text, text, st.floats(0, 1e6), st.just(1), text, st.booleans(),
            st.lists(pictures, max_size=2), rules=st.dictionaries(text, rules, max_size=2),
        )
    )  # fmt: skip
    footer = draw(st.builds(Footer, text, text, st.floats(0, 1e6), text, st.lists(text, max_size=2)))
    return Trace(header, [draw(rounds(i)) for i in range(draw(st.integers(0, 3)))], footer, draw(attributions))
