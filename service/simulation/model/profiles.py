"""True performance of an application on each configuration, from its measured profiles.

The folder of an application holds `placements-<kind>.csv` and `scalability-<kind>.csv` (step times by shape
and batch of a slot) and `validation-<batch>.csv` (progress, iterations and gradient noise of every epoch at a
global batch).

Step times are interpolated linearly between two measured batches of a slot, and between two measured numbers
of nodes with the same number of slots per node. Only batches of a slot that were measured for both numbers of
nodes are used. A shape without measured neighbours is not available. With accumulation, only the last pass
synchronises. Progress per step comes from the measurements at that batch in that epoch, interpolated between
batches on logarithmic axes. The smallest batch is the reference.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headway.contract.values.devices import slots_by_kind
from service.domain.perf.convergence import converged_work, spaced
from service.domain.policies.framework.policy import Configurations
from service.domain.shared.arrays import FloatArray, IntArray
from service.simulation.model.world import USUAL_RESTART_S, Application, BadInput, BatchStages, Steps

RESTART_S = {
    "cifar10": 50.0,
    "deepspeech2": 25.0,
    "bert": 120.0,
    "yolov3": 80.0,
    "imagenet": 250.0,
    "ncf": 15.0,
}
"""Measured seconds of checkpoint and restart, by application; `USUAL_RESTART_S` for any other."""
EPOCHS = {"cifar10": 100, "deepspeech2": 80, "bert": 2, "yolov3": 50, "imagenet": 90, "ncf": 10}
"""Epochs to completion. Any other application has as many as were measured."""
BATCHES = 60
"""Number of global batches tried for each configuration, geometric from the reference to the largest measured."""

_HALVINGS = 30
"""Steps of the bisection that divides a batch over two kinds."""

Shape = tuple[int, int]
"""Number of nodes and number of slots."""


@dataclass(frozen=True, slots=True)
class _Curve:
    """Step and synchronisation seconds by batch of a slot, for one shape."""

    local_batch: FloatArray
    step_s: FloatArray
    sync_s: FloatArray


def data_folder() -> Path:
    """Return the folder of measured data: `HEADWAY_DATA`, else `../shared/data` beside the repository. Raise BadInput."""
    beside = Path(__file__).resolve().parents[3].parent / "shared" / "data"
    folder = Path(os.environ.get("HEADWAY_DATA", beside))
    if not (folder / "profiles").is_dir():
        raise BadInput(
            f"{folder}: has no measured profiles: set HEADWAY_DATA to a folder with profiles/ and workloads/"
        )
    return folder


def read_application(folder: Path, configurations: Configurations) -> Application:
    """Return the application whose profiles are in `folder`, on the given configurations. Raise BadInput."""
    name = folder.name
    batches, progress, iterations, noise_scale, loss = _read_validation(folder, EPOCHS.get(name))
    boundaries = np.concatenate(([0.0], batches[0] * progress[0]))
    tried = np.geomspace(batches[0], batches[-1], BATCHES)
    gain = _interpolated(batches, np.diff(progress, prepend=0.0) / np.diff(iterations, prepend=0.0), tried)
    curves = {kind: _read_curves(folder, kind) for kind in configurations.kinds}
    # Arrays of shape (C, M): steps of all batches on all configurations.
    parts = [
        _mixed_step([(curves[kind], slots) for kind, slots in by_kind.items()], tried)
        if len(by_kind := slots_by_kind(configurations.kind_name(column), int(slots))) > 1
        else _step(_curve(curves[next(iter(by_kind))], (int(nodes), int(slots))), int(slots), tried)
        for column, (slots, nodes) in enumerate(zip(configurations.slots, configurations.nodes, strict=True))
    ]
    step_s, sync_s, passes = (np.stack(part) for part in zip(*parts, strict=True))
    # Reference samples per second: progress of a step (E, 1, M) over its seconds (C, M).
    goodput = batches[0] * gain.T[:, None, :] / step_s
    max_local = np.array(
        [max(curve.local_batch[-1] for curve in curves[kind].values()) for kind in configurations.kinds]
    )

    doublings = np.arange(int(np.log2(batches[-1] / batches[0])) + 1)
    at_stages = np.unique(
        [*np.abs(tried[:, None] / batches[0] - 2.0**doublings).argmin(axis=0), len(tried) - 1]
    )
    stages = BatchStages(
        batch=tried[at_stages],
        step_s=np.broadcast_to(step_s.T[at_stages], (len(goodput), len(at_stages), len(step_s))),
        goodput=goodput[:, :, at_stages].transpose(0, 2, 1),
    )

    def with_batches(best: IntArray, max_batch: float, at_reference: Application | None) -> Application:
        """Return the application with the tried batch of these indices (E, C) in each configuration."""
        at = (np.arange(len(step_s)), best)
        chosen = np.take_along_axis(goodput, best[:, :, None], axis=2)[:, :, 0]
        runs = chosen > 0
        return Application(
            name=name,
            boundaries=boundaries,
            goodput=chosen,
            restart_s=RESTART_S.get(name, USUAL_RESTART_S),
            steps=Steps(
                global_batch=np.where(runs, tried[best], np.nan),
                accumulation=np.where(runs, passes[at], np.nan),
                step_s=np.where(runs, step_s[at], np.nan),
                sync_s=np.where(runs, sync_s[at], np.nan),
                noise_scale=noise_scale,
                reference_batch=float(batches[0]),
                max_batch=max_batch,
                max_local=max_local,
                stages=None if at_reference is None else stages,
            ),
            converged=_converged(boundaries, loss),
            at_reference=at_reference,
        )

    reference = with_batches(np.zeros(goodput.shape[:2], dtype=np.int64), float(batches[0]), None)
    return with_batches(goodput.argmax(axis=2), float(batches[-1]), reference)


def _read_validation(
    folder: Path, epochs: int | None
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return global batches (B,), progress and iterations (B, E) at the end of each epoch, noise scales and losses (E,).

    The losses are those of the smallest batch.
    """
    files = sorted(folder.glob("validation-*.csv"), key=_batch_of)
    if not files:
        raise BadInput(f"{folder}: has no validation-*.csv")
    tables = [read_table(file, ("progress", "iteration", "metric", "grad_sqr", "grad_var")) for file in files]
    epochs = epochs or min(len(table["progress"]) for table in tables)
    for file, table in zip(files, tables, strict=True):
        if len(table["progress"]) < epochs:
            raise BadInput(f"{file}: has {len(table['progress'])} rows, and {epochs} epochs are needed")
    progress = np.stack([table["progress"][:epochs] for table in tables])
    iterations = np.stack([table["iteration"][:epochs] for table in tables])
    batches = np.array([_batch_of(file) for file in files], dtype=np.float64)
    for file, *grows in zip(files, progress, iterations, strict=True):
        if min(np.diff(one, prepend=0.0).min() for one in grows) <= 0:
            raise BadInput(f"{file}: progress and iterations must grow with every row")
    sqr, var = tables[0]["grad_sqr"][:epochs], tables[0]["grad_var"][:epochs]
    known = (sqr > 0) & (var >= 0)
    # The file has the variance of the gradient of a batch. The variance for one sample is larger by the batch
    # size.
    noise_scale = np.where(known, batches[0] * var / np.where(known, sqr, 1.0), np.nan)
    return batches, progress, iterations, noise_scale, _loss(tables[0]["metric"][:epochs])


def _loss(metric: FloatArray) -> FloatArray:
    """Return the distance (E,) of a metric from its best value: 0 if it falls, otherwise 1, or 100 for percentages."""
    if metric[-1] < metric[0]:
        return metric
    return (1.0 if metric.max() <= 1.0 else 100.0) - metric


def _converged(boundaries: FloatArray, loss: FloatArray) -> FloatArray:
    """Return the work (E + 1,) at which the curve of the losses (E,) that are known at each boundary converges."""
    points: list[list[float]] = []
    found = np.full(len(boundaries), np.nan)
    for epoch, (work, value) in enumerate(zip(boundaries[1:].tolist(), loss.tolist(), strict=True), start=1):
        before, points = points, spaced(points, work, value)
        new = None if points is before else converged_work(points, work / epoch)
        found[epoch] = found[epoch - 1] if new is None else new
    return found


def _batch_of(file: Path) -> int:
    digits = file.stem.removeprefix("validation-")
    if not digits.isdecimal() or int(digits) == 0:
        raise BadInput(f"{file}: its name has no global batch, as in validation-128.csv")
    return int(digits)


def _interpolated(batches: FloatArray, gain: FloatArray, tried: FloatArray) -> FloatArray:
    """Return the progress of a step (M, E) at the tried batches, from that (B, E) at the measured ones."""
    logs = np.log(gain)
    columns = [np.interp(np.log(tried), np.log(batches), column) for column in logs.T]
    return np.asarray(np.exp(np.stack(columns, axis=1)))


def _read_curves(folder: Path, kind: str) -> dict[Shape, _Curve]:
    """Return the measured curves of shapes with equal slots on all nodes. Placements take precedence over scalability."""
    times = ("local_bsz", "step_time", "sync_time")
    placements = read_table(folder / f"placements-{kind}.csv", ("placement", *times))
    digits = [[int(digit) for digit in str(int(placement))] for placement in placements["placement"]]
    balanced = np.array([len(set(one)) == 1 for one in digits], dtype=np.bool_)
    shapes = [(len(one), sum(one)) for one in digits if len(set(one)) == 1]
    curves = _curves(shapes, {column: values[balanced] for column, values in placements.items()})
    scalability = folder / f"scalability-{kind}.csv"
    if not scalability.is_file():
        return curves
    table = read_table(scalability, ("num_nodes", "num_replicas", *times))
    sizes = zip(table["num_nodes"].astype(int), table["num_replicas"].astype(int), strict=True)
    return {**_curves(list(sizes), table), **curves}


def _curves(shapes: Sequence[Shape], table: Mapping[str, FloatArray]) -> dict[Shape, _Curve]:
    rows_of: dict[Shape, list[int]] = {}
    for row in np.argsort(table["local_bsz"], kind="stable"):
        rows_of.setdefault(shapes[row], []).append(int(row))
    return {
        shape: _Curve(table["local_bsz"][rows], table["step_time"][rows], table["sync_time"][rows])
        for shape, rows in rows_of.items()
    }


def _curve(measured: Mapping[Shape, _Curve], shape: Shape) -> _Curve | None:
    """Return the curve of a shape, or None if it cannot be determined.

    The curve is measured, or interpolated between the next smaller and larger numbers of nodes with equal
    slots per node.
    """
    if shape in measured:
        return measured[shape]
    nodes, slots = shape
    alike = sorted(one for one in measured if one[1] * nodes == slots * one[0])
    below = max((one for one in alike if one[0] < nodes), default=None)
    above = min((one for one in alike if one[0] > nodes), default=None)
    if below is None or above is None:
        return None
    first, second = measured[below], measured[above]
    batches, of_first, of_second = np.intersect1d(first.local_batch, second.local_batch, return_indices=True)
    if not len(batches):
        return None
    part = (nodes - below[0]) / (above[0] - below[0])
    return _Curve(
        batches,
        (1 - part) * first.step_s[of_first] + part * second.step_s[of_second],
        (1 - part) * first.sync_s[of_first] + part * second.sync_s[of_second],
    )


def _step(curve: _Curve | None, slots: int, batches: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the seconds of a step (M,) of each global batch on the slots, its seconds of synchronisation,
    and its passes.

    The seconds are infinite where a slot would have too few samples. A slot that cannot hold its share
    processes it in several passes.
    """
    if curve is None:
        never = np.full(len(batches), np.inf)
        return never, np.zeros(len(batches)), np.ones(len(batches))
    share = batches / slots
    passes = np.ceil(share / curve.local_batch[-1])
    local = share / passes
    step_s = np.interp(local, curve.local_batch, curve.step_s)
    sync_s = np.interp(local, curve.local_batch, curve.sync_s)
    enough = local >= curve.local_batch[0]
    return np.where(enough, step_s + (passes - 1) * (step_s - sync_s), np.inf), sync_s, passes


def _mixed_step(
    parts: Sequence[tuple[Mapping[Shape, _Curve], int]], batches: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the step (M,) of each global batch on slots of two kinds, given with their curves, as `_step` does.

    Both kinds compute equally long, as with dynamic batching. The synchronisation is that of the kind that takes
    longer for it on as many slots, over several nodes, of its own.
    """
    total = sum(slots for _, slots in parts)
    (first, mine), (second, theirs) = ((_across(curves, total), slots) for curves, slots in parts)
    if first is None or second is None:
        return _step(None, total, batches)
    low = np.maximum(first.local_batch[0], 0.0) + 0.0 * batches
    high = (batches - theirs * second.local_batch[0]) / mine
    possible = high >= low
    low, high = np.where(possible, low, 1.0), np.where(possible, high, 1.0)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        other = np.maximum((batches - mine * middle) / theirs, 1e-9)
        longer = _compute(first, middle)[0] > _compute(second, other)[0]
        low, high = np.where(longer, low, middle), np.where(longer, middle, high)
    of_first = _compute(first, high)
    of_second = _compute(second, np.maximum((batches - mine * high) / theirs, 1e-9))
    compute_s, sync_s, passes = (np.maximum(*pair) for pair in zip(of_first, of_second, strict=True))
    return np.where(possible, compute_s + sync_s, np.inf), sync_s, passes


def _across(measured: Mapping[Shape, _Curve], slots: int) -> _Curve | None:
    """Return the curve on the fewest measured slots over several nodes that are as many, else on the most."""
    several = sorted((shape for shape in measured if shape[0] > 1), key=lambda shape: (shape[1], shape[0]))
    enough = [shape for shape in several if shape[1] >= slots]
    return measured[(enough or several[::-1])[0]] if several else None


def _compute(curve: _Curve, samples: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the seconds of compute for these samples (M,) of a slot, those of synchronisation, and the passes."""
    passes = np.maximum(np.ceil(samples / curve.local_batch[-1] - 1e-9), 1.0)
    local = samples / passes
    step_s, sync_s = (np.interp(local, curve.local_batch, one) for one in (curve.step_s, curve.sync_s))
    return passes * (step_s - sync_s), sync_s, passes


def read_table(file: Path, needed: Sequence[str]) -> dict[str, FloatArray]:
    """Return the columns of a file of non-negative numbers, by name. Raise BadInput."""
    try:
        with file.open(newline="", encoding="utf-8") as lines:
            header, *rows = list(csv.reader(lines)) or [[]]
    except OSError as error:
        raise BadInput(f"{file}: cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"{file}: is not a CSV file in UTF-8: {error}") from error
    missing = [name for name in needed if name not in header]
    if missing:
        raise BadInput(
            f"{file}: row 1: has no column {missing[0]!r}; the columns are {', '.join(header) or 'none'}"
        )
    if not rows:
        raise BadInput(f"{file}: has no rows")
    at = [header.index(name) for name in needed]
    table = np.empty((len(rows), len(needed)))
    for number, row in enumerate(rows, start=2):
        for index, column in enumerate(at):
            table[number - 2, index] = _number(
                file, number, header[column], row[column] if column < len(row) else ""
            )
    return dict(zip(needed, table.T, strict=True))


def _number(file: Path, row: int, column: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0.0 <= value < 1e300:
        raise BadInput(f"{file}: row {row}, column {column}: {text!r} is not a number of at least 0")
    return value
