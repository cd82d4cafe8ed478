"""Images of runs: correct memory accounting, bounded concurrent decoding, and release with the run."""

from __future__ import annotations

import gc
import threading
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image

from workbench.core.errors import CapacityError
from workbench.engine.request import CANCELLED, Request
from workbench.engine.request_options import TokenLogprob
from workbench.methods import registry
from workbench.service import Backend, Limits, image_decoding, runregister
from workbench.service.run import Run
from workbench.service.runregister import RunRegister

SIDE = 64


def pictured(register: RunRegister) -> Run:
    """Return a run with an image as a backend starts it, with a reference cycle between request and run."""
    host = SimpleNamespace(record_end=lambda run: None, wake=lambda: None)
    run = Run(host, "user", "draft-model")  # type: ignore[arg-type]
    picture = Image.new("RGB", (SIDE, SIDE))
    images = {"pixel_values": torch.zeros(3, SIDE, SIDE)}
    run.request = Request(
        "x", registry.get("draft-model"), pil_images=(picture,), image_inputs=images, on_round=lambda _: run.notify()
    )
    run.request.logprobs.append(TokenLogprob(1, b"a", 1, -0.5))
    run.trace_bytes += image_decoding.image_bytes((picture,), images)
    register.add(run, 1)
    return run


@pytest.mark.parametrize("how", ["removed", "tidied"])
def test_a_removed_run_leaves_no_image_in_memory(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    register = RunRegister(Limits(kept_runs=0))
    freed: list[object] = []
    monkeypatch.setattr(runregister, "trim", lambda: freed.append(alive[0]()))
    run = pictured(register)
    alive = weakref.ref(run.request.image_inputs["pixel_values"]), weakref.ref(run)
    id_of = run.id
    gc.collect()
    gc.disable()  # the image must be freed without garbage collection
    try:
        run.end(CANCELLED)
        kept = register.get(id_of)
        assert kept.request.image_inputs is not None, "an ended run can still be explained"
        del kept
        if how == "removed":
            register.remove(run)
        else:
            register.tidy()
        assert run.request.logprobs[0].data == b"a"
        assert (run.request.pil_images, alive[0]()) == ((), None)
        assert freed == [None], "memory is returned to the system, after the image was released"
        del run
        assert alive[1]() is None
    finally:
        gc.enable()
    assert register.trace_bytes == 0


def test_images_are_counted_at_their_size_in_pillow_and_as_model_input() -> None:
    picture = Image.new("RGB", (SIDE, SIDE))
    assert image_decoding.image_bytes((picture, picture)) == 2 * 4 * SIDE * SIDE
    images = {"pixel_values": torch.zeros(3, SIDE, SIDE), "ids": torch.zeros(5, dtype=torch.long)}
    assert image_decoding.image_bytes((picture,), images) == 4 * SIDE * SIDE + 4 * 3 * SIDE * SIDE + 5 * 8


def test_few_requests_decode_images_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now, most, lock, both = 0, 0, threading.Lock(), threading.Barrier(2)

    def decode(data: Any) -> Any:
        nonlocal now, most
        with lock:
            now, most = now + 1, max(most, now + 1)
        both.wait(10)
        with lock:
            now -= 1
        return data

    monkeypatch.setattr(image_decoding, "decode", decode)
    threads = [threading.Thread(target=image_decoding.decode_all, args=([b"x"],)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 2


def test_a_request_over_the_limit_is_refused_before_its_images_are_decoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = Backend("text-target", "none", limits=Limits(runs=0))
    try:
        monkeypatch.setattr(image_decoding, "decode", lambda data: pytest.fail("it was decoded"))
        with pytest.raises(CapacityError, match="running or waiting runs, which"):
            backend.start("x", "autoregressive", images=[b"x"], user="somebody")
    finally:
        backend.close()
