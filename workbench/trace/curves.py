"""Write and read the curves of a training run as TensorBoard event files, also while the run is in progress.

`tensorboard --logdir FOLDER` shows these files, too. A run that was killed and resumes from an earlier step writes a
second file. The first event of the second file names the step from which the points of the first file are invalid
(TensorBoard's `SessionLog.START`).
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

LOSS, TEACHER_FORCED, ON_POLICY = "loss", "teacher-forced", "on-policy"
"""Prefixes of the TensorBoard tags of training curves: `loss/NAME`, `teacher-forced/position 1` (accuracy on held-out
text) and `on-policy/position 1` (acceptance rate while generating)."""
TAU, TESTED = f"{ON_POLICY}/tau", "on-policy tested"
"""TensorBoard tags of two training curves. `TAU`: tokens per target pass. `TESTED`: number of rounds that tested each
draft position, the denominator of that position's acceptance rate."""
SPEEDUP = f"{ON_POLICY}/speed-up"
"""TensorBoard tag of the curve of the speed-up over plain decoding. Speculative and plain decoding are measured
alternately on the same prompts in one process (`workbench.trace.speedup`)."""
EVALUATING, TRAINING = "seconds/evaluating", "seconds/training"
"""TensorBoard tags of two cumulative times of a training run, in seconds: time for on-policy evaluation, and time for
training."""
NAMES = "events.out.tfevents.*"
Points = list[tuple[int, float]]


class CurveWriter:
    """Append points to the curves of a training run. Points are on disk when a call returns, so a kill loses none.

    Args:
        folder: folder of the training run; created if missing.
        step: step from which the run resumes; points of later steps become invalid. 0 for a new run.

    Raises:
        ImportError: tensorboardX is not installed.
    """

    def __init__(self, folder: Path, step: int = 0) -> None:
        from tensorboardX.event_file_writer import EventsWriter  # importing takes a second
        from tensorboardX.proto import event_pb2, summary_pb2

        folder.mkdir(parents=True, exist_ok=True)
        events: Any = event_pb2  # generated modules without types
        summaries: Any = summary_pb2
        self._event, self._summary = events.Event, summaries.Summary
        suffix = f".{len(list(folder.glob(NAMES)))}"  # two files may be created in the same second
        self._file = EventsWriter(str(folder / "events"), suffix)
        start = events.SessionLog(status=events.SessionLog.START)
        self._write(self._event(step=step, session_log=start))

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Add one point at a training step to each curve in `values`, a dict from the curve's tag to its new value."""
        self._write(self._event(step=step, summary=self._summary(
            value=[self._summary.Value(tag=tag, simple_value=float(value)) for tag, value in values.items()]
        )))  # fmt: skip

    def _write(self, event: Any) -> None:
        event.wall_time = time.time()
        self._file.write_event(event)
        self._file.flush()

    def close(self) -> None:
        """Close the event file of the training curves."""
        self._file.close()


def read_curves(folder: Path) -> dict[str, Points]:
    """Return all curves of a training run by tag, each as (step, value) pairs in rising order of steps.

    Incomplete event records, and all records after a damaged one, are skipped.

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
    """Yield the events of a TensorBoard event file.

    Each record of the file has four parts: length, checksum of the length, event, checksum of the event.
    """
    from google.protobuf.message import DecodeError
    from tensorboardX.proto import event_pb2

    events: Any = event_pb2
    data, at = path.read_bytes(), 0
    while at + 12 <= len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        if at + 16 + length > len(data):
            return
        try:
            yield events.Event.FromString(data[at + 12 : at + 12 + length])
        except DecodeError:
            return
        at += 16 + length
