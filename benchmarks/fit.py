"""How well the throughput models foretell step times that they were not fitted to, on measured profiles.

    python -m benchmarks.fit --json

Six applications on four kinds of GPU (published with Sia and Pollux; `HEADWAY_DATA`, else `../shared/data` beside the
repository). For each application and kind the model is fitted to every third of the rows with at most `SMALL` GPUs and
tested on all others: `median_error`, `p90_error` of the step time, relative, over all test rows; `interval_coverage`, the
share of them between P10 and P90 (0.8 were ideal); `larger_median_error`, over those with more than `SMALL` GPUs alone;
`fit_s`, seconds for one model.

`cross_kind_median_error`: over all rows of several GPUs of a kind, foretold from the application's one-GPU profile there,
its models of the other kinds, and what the other five applications show of the links of the kinds.
`cross_kind_alone_median_error`: without those other applications, as Sia does.
`repeat_median_error`: how far repeated measurements of the same configuration (another placement) are from their own
median. No model can do better.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Sequence

import numpy as np

from benchmarks.arguments import benchmark_parser, run_benchmark, show
from service.domain.perf.fit import Observations, fit
from service.domain.perf.throughput import PERCENTILE_90, ThroughputModel, log_spread, step_time
from service.domain.perf.transfer import across_kinds
from service.domain.shared.arrays import FloatArray
from service.simulation.model.profiles import data_folder

APPLICATIONS = ("bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3")
KINDS = ("t4", "rtx2080ti", "a100", "rtx6000")
SMALL = 8
STEPS = 100
"""The profiles do not say how many steps a row is the mean of."""
NODES, SLOTS, BATCH, STEP, SYNC = range(5)


def read_rows(application: str, kind: str) -> FloatArray:
    """(rows, 5) nodes, slots, local batch, step and synchronisation in seconds; what both files have is there once."""
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
    """To fit, and to test."""
    chosen = np.zeros(len(rows), bool)
    chosen[np.flatnonzero(rows[:, SLOTS] <= SMALL)[::3]] = True
    return rows[chosen], rows[~chosen]


def fit_rows(groups: Sequence[FloatArray]) -> ThroughputModel:
    """A model for each group of rows."""
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
    """Relative error of each row, and whether it is between P10 and P90; the model is one, of shape (1,)."""
    nodes, slots, batch = rows[None, :, NODES], rows[None, :, SLOTS], rows[None, :, BATCH]
    step, _ = step_time(model, slots=slots, nodes=nodes, local_batch=batch)
    spread = log_spread(model, slots=slots, nodes=nodes, local_batch=batch)
    inside = np.abs(np.log(step[0] / rows[:, STEP])) <= PERCENTILE_90 * spread[0]
    return np.abs(step[0] / rows[:, STEP] - 1), inside.astype(float)


def repeat_errors(rows: FloatArray) -> FloatArray:
    """Of the rows whose configuration was measured several times."""
    _, group, number = np.unique(rows[:, :STEP], axis=0, return_inverse=True, return_counts=True)
    medians = np.array([np.median(rows[group == one, STEP]) for one in range(len(number))])
    again = number[group] > 1
    result: FloatArray = np.abs(rows[again, STEP] / medians[group[again]] - 1)
    return result


def within_kinds(rows: dict[tuple[str, str], FloatArray]) -> dict[str, object]:
    """The keys about models of the kind that they were fitted on."""
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
    """The keys about models of a kind where only one GPU was profiled."""
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
    """With four decimals, however deep."""
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    return round(value, 4) if isinstance(value, float) else value


def table(result: dict[str, object]) -> str:
    """For people."""
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
