"""The app over the hostile model: `python serve_hostile.py FOLDER PORT`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from workbench.client import Workbench
from workbench.ui import build, space

if __name__ == "__main__":
    client = Workbench(target=sys.argv[1], drafter=None, device="cpu", dtype="float32")
    client.load()
    demo = build(client)
    demo.launch(server_port=int(sys.argv[2]), quiet=True, **space.launch_options(client))
    demo.block_thread()
