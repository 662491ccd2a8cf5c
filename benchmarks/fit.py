"""Prediction error of the throughput models on measured profiles, for step times that they were not fitted to.

    python -m benchmarks.fit --json

The profiles cover six applications on four kinds of GPU (published with Sia and Pollux; read from `HEADWAY_DATA`, else from
`../shared/data` beside the repository). For each application and kind, the model is fitted to every third row with at most
`SMALL` GPUs, and tested on all other rows.

`median_error`, `p90_error`: relative error of the step time over all test rows.
`interval_coverage`: share of the test rows between P10 and P90; 0.8 is ideal.
`larger_median_error`: median error of the test rows with more than `SMALL` GPUs.
`fit_s`: seconds to fit one model.
`cross_kind_median_error`: error over all rows with several GPUs of a kind. They are predicted from the application's profile
on one GPU of that kind, its models on the other kinds, and the other five applications' models of the kind's links.
`cross_kind_alone_median_error`: the same without the other applications, as in Sia.
`repeat_median_error`: deviation of repeated measurements of a configuration (with other placements) from their median. It is
a lower bound for any model.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Sequence

import numpy as np

from benchmarks.arguments import benchmark_parser, run_benchmark, show
from service.domain.perf.fit import fit
from service.domain.perf.observations import Observations
from service.domain.perf.throughput import PERCENTILE_90, ThroughputModel, log_spread, step_time
from service.domain.perf.transfer import across_kinds
from service.domain.shared.arrays import FloatArray
from service.simulation.model.profiles import data_folder

APPLICATIONS = ("bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3")
KINDS = ("t4", "rtx2080ti", "a100", "rtx6000")
SMALL = 8
STEPS = 100
"""Assumed number of steps of a row, which the profiles do not contain."""
NODES, SLOTS, BATCH, STEP, SYNC = range(5)


def read_rows(application: str, kind: str) -> FloatArray:
    """Return an array (rows, 5): nodes, slots, local batch, seconds of a step and of synchronisation, without duplicates."""
    rows: set[tuple[float, ...]] = set()
    for table in ("placements", "scalability"):
        file = data_folder() / "profiles" / application / f"{table}-{kind}.csv"
        with file.open(newline="") as lines:
            for line in csv.DictReader(lines):
                if table == "placements":
                    digits = [int(digit) for digit in line["placement"]]
                    shape = (len(digits), sum(digits))
                else:
                    shape = (int(line["num_nodes"]), int(line["num_replicas"]))
                measured = (float(line["local_bsz"]), float(line["step_time"]), float(line["sync_time"]))
                rows.add(shape + measured)
    return np.array(sorted(rows))


def split(rows: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the rows to fit and the rows to test."""
    chosen = np.zeros(len(rows), bool)
    chosen[np.flatnonzero(rows[:, SLOTS] <= SMALL)[::3]] = True
    return rows[chosen], rows[~chosen]


def fit_rows(groups: Sequence[FloatArray]) -> ThroughputModel:
    """Return a model for each group of rows."""
    rows = np.concatenate(groups)
    return fit(
        Observations(
            owner=np.repeat(np.arange(len(groups)), [len(one) for one in groups]),
            slots=rows[:, SLOTS],
            nodes=rows[:, NODES],
            local_batch=rows[:, BATCH],
            accumulation=np.zeros(len(rows)),
            step_s=rows[:, STEP],
            sync_s=rows[:, SYNC],
            count=np.full(len(rows), STEPS),
        ),
        len(groups),
    )


def errors(model: ThroughputModel, rows: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the relative error of each row, and 1 for rows between P10 and P90, else 0. The model has shape (1,)."""
    nodes, slots, batch = rows[None, :, NODES], rows[None, :, SLOTS], rows[None, :, BATCH]
    step, _ = step_time(model, slots=slots, nodes=nodes, local_batch=batch)
    spread = log_spread(model, slots=slots, nodes=nodes, local_batch=batch)
    inside = np.abs(np.log(step[0] / rows[:, STEP])) <= PERCENTILE_90 * spread[0]
    return np.abs(step[0] / rows[:, STEP] - 1), inside.astype(float)


def repeat_errors(rows: FloatArray) -> FloatArray:
    """Return the deviation from their median of the rows whose configuration was measured several times."""
    _, group, number = np.unique(rows[:, :STEP], axis=0, return_inverse=True, return_counts=True)
    medians = np.array([np.median(rows[group == one, STEP]) for one in range(len(number))])
    again = number[group] > 1
    result: FloatArray = np.abs(rows[again, STEP] / medians[group[again]] - 1)
    return result


def within_kinds(rows: dict[tuple[str, str], FloatArray]) -> dict[str, object]:
    """Return the figures of models on the kind that they were fitted to."""
    parts = {key: split(one) for key, one in rows.items()}
    began = time.process_time()
    models = fit_rows([seen for seen, _ in parts.values()])
    fit_s = (time.process_time() - began) / len(parts)
    found = {
        key: errors(models[index : index + 1], test) for index, (key, (_, test)) in enumerate(parts.items())
    }
    error = np.concatenate([one for one, _ in found.values()])
    inside = np.concatenate([one for _, one in found.values()])
    large = np.concatenate([test[:, SLOTS] > SMALL for _, test in parts.values()])
    repeats = np.concatenate([repeat_errors(one) for one in rows.values()])
    return {
        "median_error": float(np.median(error)),
        "p90_error": float(np.quantile(error, 0.9)),
        "larger_median_error": float(np.median(error[large])),
        "interval_coverage": float(inside.mean()),
        "repeat_median_error": float(np.median(repeats)),
        "rows_fitted": sum(len(seen) for seen, _ in parts.values()),
        "rows_tested": len(error),
        "fit_s": fit_s,
        "by_application": {
            application: {kind: float(np.median(found[application, kind][0])) for kind in KINDS}
            for application in APPLICATIONS
        },
    }


def between_kinds(rows: dict[tuple[str, str], FloatArray]) -> dict[str, object]:
    """Return the figures of models on a kind on which only one GPU was profiled."""
    fitted = fit_rows([split(rows[application, kind])[0] for application in APPLICATIONS for kind in KINDS])
    one_gpu = fit_rows(
        [
            rows[application, kind][rows[application, kind][:, SLOTS] == 1]
            for application in APPLICATIONS
            for kind in KINDS
        ]
    )
    grid = np.arange(len(APPLICATIONS) * len(KINDS)).reshape(len(APPLICATIONS), len(KINDS))
    shown: dict[str, list[FloatArray]] = {kind: [] for kind in KINDS}
    alone: list[FloatArray] = []
    inside: list[FloatArray] = []
    for row, application in enumerate(APPLICATIONS):
        for column, kind in enumerate(KINDS):
            mask = grid != grid[row, column]
            known = fitted[grid].where(mask, one_gpu[grid])
            test = rows[application, kind][rows[application, kind][:, SLOTS] > 1]
            error, covered = errors(across_kinds(known)[row, column : column + 1], test)
            shown[kind].append(error)
            inside.append(covered)
            alone.append(errors(across_kinds(known[row : row + 1])[0, column : column + 1], test)[0])
    return {
        "cross_kind_median_error": float(
            np.median(np.concatenate([one for some in shown.values() for one in some]))
        ),
        "cross_kind_alone_median_error": float(np.median(np.concatenate(alone))),
        "cross_kind_interval_coverage": float(np.concatenate(inside).mean()),
        "cross_kind_by_target": {
            kind: float(np.median(np.concatenate(some))) for kind, some in shown.items()
        },
        "cross_kind_by_application": {
            application: {kind: float(np.median(shown[kind][row])) for kind in KINDS}
            for row, application in enumerate(APPLICATIONS)
        },
    }


def rounded(value: object) -> object:
    """Round all numbers of a nested dictionary to four decimals."""
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    return round(value, 4) if isinstance(value, float) else value


def table(result: dict[str, object]) -> str:
    """Return the result as a table."""
    lines = [f"{key:32}{value:>10}" for key, value in result.items() if not isinstance(value, dict)]
    for title in ("by_application", "cross_kind_by_application"):
        grid = result[title]
        assert isinstance(grid, dict)
        lines += ["", "".join([f"{title:32}", *(f"{kind:>12}" for kind in KINDS)])]
        lines += [
            "".join([f"{name:32}", *(f"{one[kind]:>12.4f}" for kind in KINDS)]) for name, one in grid.items()
        ]
    return "\n".join(lines)


def main() -> None:
    parser = benchmark_parser(__doc__, quick="nothing, since it takes seconds")
    arguments = parser.parse_args()
    rows = {
        (application, kind): read_rows(application, kind) for application in APPLICATIONS for kind in KINDS
    }
    result = {key: rounded(value) for key, value in (within_kinds(rows) | between_kinds(rows)).items()}
    if arguments.json:
        show(result, arguments)
    else:
        print(table(result))


if __name__ == "__main__":
    run_benchmark(main)
