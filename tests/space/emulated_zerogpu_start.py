"""The app's start on ZeroGPU, for `python emulated_zerogpu_start.py`, with the package's own pretence of CUDA.

Models are put on a "cuda" that is not there, as on a Space. In the process that is lent a GPU there is none either, so
what the package would move to the GPU stays where it is; everything else is its own code.
"""

from __future__ import annotations

import os
from typing import Any


def patch_cuda_names() -> None:
    """Give a build for CPUs the names of CUDA's that the package replaces."""
    import torch

    for name in ("_cuda_init", "_cuda_exchangeDevice", "_cuda_maybeExchangeDevice"):
        if not hasattr(torch._C, name):
            setattr(torch._C, name, lambda *_: None)
    torch.version.cuda = "12.8"
    torch.cuda._is_in_bad_fork = bool  # type: ignore[assignment]


def keep_on_cpu(callback: Any = None) -> None:
    from spaces.zero.torch import patching

    for fake, original in patching.cuda_aliases.items():
        if original is not None:
            fake.data = original


def main() -> None:
    import emulated_zerogpu

    patch_cuda_names()
    emulated_zerogpu.start_device_api()
    os.environ["SPACE_ID"] = "somebody/workbench"

    from workbench.ui import space

    client = space.client(space.detect(), "text-target", "auto", "auto", "float32")
    import spaces.zero.torch as pretence  # type: ignore[import-not-found]

    pretence.init, pretence.move = lambda _: None, keep_on_cpu
    model = client._models.loaded["text-target"][0]
    assert next(model.parameters()).device.type == "cuda", "models belong on cuda before the launch"
    trace = client.generate("Once upon a time", "draft-model", max_new_tokens=24)
    assert trace.header.device == "cpu", "the device is found in the GPU's process, not before"
    assert len(trace.token_ids) == 24
    assert client.generate("Once upon a time", "medusa", max_new_tokens=24).token_ids == trace.token_ids
    print("SEEN start")


if __name__ == "__main__":
    import emulated_zerogpu

    status = 1
    try:
        main()
        status = 0
    finally:
        emulated_zerogpu.exit_with_children(status)
