"""Curves of a training run, as TensorBoard's event files: written while it trains, read while it is being written.

`tensorboard --logdir FOLDER` shows the same files. A run that was killed and goes on from an earlier step writes a
second file that says from which step on the first one is void, as TensorBoard does it (`SessionLog.START`).
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

LOSS, HELD, ON_POLICY = "loss", "teacher-forced", "on-policy"
"""Groups of curves: `loss/NAME`, `teacher-forced/position 1`, `on-policy/position 1`."""
TAU, TESTED = f"{ON_POLICY}/tau", "on-policy tested"
"""Tokens a pass of the target; and of each position, how many rounds tested it: what its acceptance is a share of."""
SPEEDUP = f"{ON_POLICY}/speed-up"
"""Over plain decoding of the same prompts, one after the other in the same process: `workbench.trace.speedup`."""
EVALUATING, TRAINING = "seconds/evaluating", "seconds/training"
"""Seconds so far: spent on drafting for held-out prompts, and on the run itself, without those."""
NAMES = "events.out.tfevents.*"
Points = list[tuple[int, float]]


class CurveWriter:
    """Appends points to the curves of a run; each call is on disk when it returns, so that a kill loses none.

    Args:
        folder: of the run, made where it is missing.
        step: of the run that goes on from there; what was written of later steps is void. 0: it begins.

    Raises:
        ImportError: tensorboardX is not installed.
    """

    def __init__(self, folder: Path, step: int = 0) -> None:
        from tensorboardX.event_file_writer import EventsWriter  # a second, which only training has to wait
        from tensorboardX.proto import event_pb2, summary_pb2

        folder.mkdir(parents=True, exist_ok=True)
        events: Any = event_pb2  # modules that are made when they are imported
        summaries: Any = summary_pb2
        self._event, self._summary = events.Event, summaries.Summary
        suffix = f".{len(list(folder.glob(NAMES)))}"  # two files of one second
        self._file = EventsWriter(str(folder / "events"), suffix)
        start = events.SessionLog(status=events.SessionLog.START)
        self._write(self._event(step=step, session_log=start))

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """One more point on each of these curves."""
        self._write(self._event(step=step, summary=self._summary(
            value=[self._summary.Value(tag=tag, simple_value=float(value)) for tag, value in values.items()]
        )))  # fmt: skip

    def _write(self, event: Any) -> None:
        event.wall_time = time.time()
        self._file.write_event(event)
        self._file.flush()

    def close(self) -> None:
        """Nothing more will come."""
        self._file.close()


def read_curves(folder: Path) -> dict[str, Points]:
    """All curves of a run by tag: (step, value), steps rising.

    A record that is being written, or was cut off by a kill, is left out, and what follows a damaged one.

    Raises:
        ImportError: tensorboardX is not installed.
    """
    curves: dict[str, Points] = {}
    for path in sorted(folder.glob(NAMES), key=lambda path: (path.name.split(".")[3], len(path.name), path.name)):
        for event in _events(path):
            if event.HasField("session_log") and event.session_log.status == event.session_log.START:
                curves = {tag: [p for p in points if p[0] < event.step] for tag, points in curves.items()}
            for value in event.summary.value:
                curves.setdefault(value.tag, []).append((event.step, value.simple_value))
    return {tag: points for tag, points in curves.items() if points}


def _events(path: Path) -> Iterator[Any]:
    """The events of a file: each is its length and a checksum of that, the event, a checksum of it."""
    from google.protobuf.message import DecodeError
    from tensorboardX.proto import event_pb2

    made: Any = event_pb2
    data, at = path.read_bytes(), 0
    while at + 12 <= len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        if at + 16 + length > len(data):
            return
        try:
            yield made.Event.FromString(data[at + 12 : at + 12 + length])
        except DecodeError:
            return
        at += 16 + length
