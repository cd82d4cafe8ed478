"""Serve the page with the synthetic client for images: `python tests/ui/serve_vision.py 7998`."""

from __future__ import annotations

import base64
import json
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]


def main() -> None:
    from ui.fake_vision import SCENE, FakeVision, scene

    from workbench.ui import LAUNCH, build

    with tempfile.TemporaryDirectory() as folder:
        os.environ["WORKBENCH_SCENES"] = folder
        pictures = {
            "two": SCENE,
            "three": scene(("ellipse", "#2e7d5b", (30, 30, 58, 58)), ("rectangle", "#edae49", (4, 4, 14, 14))),
        }
        listed = []
        for name, url in pictures.items():
            (Path(folder) / f"{name}.png").write_bytes(base64.b64decode(url.partition(",")[2]))
            alt = f"Synthetic scene {name}: two shapes."
            listed.append(
                {
                    "name": name,
                    "file": f"{name}.png",
                    "alt": alt,
                    "questions": ["Describe the picture.", "How many shapes are there?"],
                }
            )
        (Path(folder) / "index.json").write_text(json.dumps({"scenes": listed, "questions": ["Describe the picture."]}))
        kinds = {"colour": ["red", "blue"], "shape": ["circle", "square", "shapes"], "size": ["large", "small"],
                 "relation": ["left", "right", "top", "bottom", "below"], "number": ["two"]}  # fmt: skip
        (Path(folder) / "lexicon.json").write_text(json.dumps(kinds))
        demo = build(FakeVision(pace=float(sys.argv[2]) if len(sys.argv) > 2 else 0.1))
        demo.launch(server_port=int(sys.argv[1]), quiet=True, **LAUNCH)


if __name__ == "__main__":
    main()
