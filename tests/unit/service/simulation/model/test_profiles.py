"""Tests of reading applications from measured profiles: step times, the best batch, and errors in files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from service.simulation.model.clusters import configurations_of
from service.simulation.model.profiles import EPOCHS, read_application
from service.simulation.model.world import BadInput, Kind


def write_profiles(folder: Path) -> Path:
    """Write an application with 0.1 s and 0.01 s per sample of a slot, plus 0.1 s of synchronisation per further node."""
    folder.mkdir()
    lines = ["placement,local_bsz,step_time,sync_time"]
    lines += [
        f"{placement},{batch},{0.1 + 0.01 * batch + 0.1 * (nodes - 1)},{0.1 * (nodes - 1)}"
        for placement, nodes in {"1": 1, "2": 1, "22": 2}.items()
        for batch in (10, 20)
    ]
    (folder / "placements-slow.csv").write_text("\n".join(lines))
    far = [f"4,8,{batch},{0.1 + 0.01 * batch + 0.3},0.3" for batch in (10, 20)]
    header = "num_nodes,num_replicas,local_bsz,step_time,sync_time"
    (folder / "scalability-slow.csv").write_text("\n".join([header, *far]))
    for batch, gain in ((40, 1.0), (80, 1.5)):
        epochs = [f"{100 * epoch},{100 * epoch / gain},0,2,3" for epoch in range(1, EPOCHS["bert"] + 3)]
        table = "\n".join(["progress,iteration,metric,grad_sqr,grad_var", *epochs])
        (folder / f"validation-{batch}.csv").write_text(table)
    return folder


def test_profiles_become_goodput(tmp_path: Path) -> None:
    configurations = configurations_of((Kind(name="slow", node_slots=(2,) * 4),))
    application = read_application(write_profiles(tmp_path / "bert"), configurations)
    assert application.boundaries.tolist() == [0.0, 4000.0, 8000.0]
    best = dict(zip(configurations.slots.tolist(), application.goodput[0], strict=True))
    # One slot takes 40 samples in two passes of 20; the larger batch, in four, makes 1.5 times the progress in twice the time.
    assert best[1] == pytest.approx(40 / (2 * 0.3))
    # Eight slots take the larger batch in one pass of 10 each.
    assert best[8] == pytest.approx(1.5 * 40 / (0.2 + 0.3))
    # Three nodes lie between two and four. 80 samples are 13.3 on each of six slots.
    assert best[6] == pytest.approx(1.5 * 40 / (0.1 + 0.01 * 80 / 6 + 0.2))


def test_the_steps_are_those_of_the_best_batch(tmp_path: Path) -> None:
    configurations = configurations_of((Kind(name="slow", node_slots=(2,) * 4),))
    steps = read_application(write_profiles(tmp_path / "bert"), configurations).steps
    assert steps is not None
    at_eight = configurations.slots.tolist().index(8)
    assert steps.global_batch[0, [0, at_eight]] == pytest.approx([40.0, 80.0])
    assert steps.accumulation[0, [0, at_eight]].tolist() == [2.0, 1.0]
    assert steps.step_s[0, [0, at_eight]] == pytest.approx([0.6, 0.5])
    assert steps.sync_s[0, at_eight] == pytest.approx(0.3)
    assert steps.noise_scale == pytest.approx([60.0, 60.0])
    assert (steps.reference_batch, steps.max_batch, steps.max_local.tolist()) == (40.0, 80.0, [20.0])


def test_the_application_at_the_batch_of_its_user(tmp_path: Path) -> None:
    configurations = configurations_of((Kind(name="slow", node_slots=(2,) * 4),))
    application = read_application(write_profiles(tmp_path / "bert"), configurations)
    own = application.at_reference
    assert own is not None
    assert (own.name, own.restart_s, own.at_reference) == (application.name, application.restart_s, None)
    assert own.boundaries.tolist() == application.boundaries.tolist()
    at = {slots: index for index, slots in enumerate(configurations.slots.tolist())}
    # One slot takes 40 samples in two passes of 20, two slots one pass of 20 each, four 10 each on two nodes.
    assert own.goodput[:, at[1]] == pytest.approx([40 / 0.6] * 2)
    assert own.goodput[0, at[2]] == pytest.approx(40 / 0.3)
    assert own.goodput[0, at[4]] == pytest.approx(40 / 0.3)
    # Nothing was measured with fewer than 10 samples in a slot.
    assert own.goodput[0, at[8]] == 0.0 < application.goodput[0, at[8]]
    assert (own.goodput <= application.goodput).all()
    steps = own.steps
    assert steps is not None
    assert (steps.reference_batch, steps.max_batch) == (40.0, 40.0)
    assert steps.global_batch[0, [at[1], at[4]]].tolist() == [40.0, 40.0]
    assert steps.accumulation[0, [at[1], at[2]]].tolist() == [2.0, 1.0]
    assert steps.step_s[0, at[2]] == pytest.approx(0.3)
    assert np.isnan(steps.step_s[0, at[8]])


def test_a_shape_that_was_never_measured_cannot_be_given(tmp_path: Path) -> None:
    configurations = configurations_of((Kind(name="slow", node_slots=(2,) * 8),))
    application = read_application(write_profiles(tmp_path / "bert"), configurations)
    runs = application.goodput[0] > 0
    assert configurations.slots[runs].tolist() == [1, 2, 4, 6, 8]
    assert application.steps is not None
    assert np.isnan(application.steps.step_s[0, ~runs]).all()


@pytest.mark.parametrize("best", [None, 1.0, 100.0], ids=["falls", "share", "percentage"])
def test_the_metric_is_the_loss_that_jobs_report(tmp_path: Path, best: float | None) -> None:
    folder = write_profiles(tmp_path / "new")
    distance = [0.9 / (0.5 * epoch + 0.5) for epoch in range(1, 13)]
    metric = [one if best is None else best * (1.0 - one) for one in distance]
    rows = [f"{100 * epoch},{100 * epoch},{one},2,3" for epoch, one in enumerate(metric, start=1)]
    for batch in (40, 80):
        (folder / f"validation-{batch}.csv").write_text(
            "\n".join(["progress,iteration,metric,grad_sqr,grad_var", *rows])
        )
    application = read_application(folder, configurations_of((Kind(name="slow", node_slots=(2,) * 4),)))
    found = application.converged
    assert found is not None
    assert found.shape == application.boundaries.shape
    assert np.isnan(found).tolist() == [True] * 4 + [False] * 9
    # An epoch lowers the distance by 1 % of the first one, 0.9, where 1 / (0.5 k + 0.5) falls by 0.01.
    k = found[-1] / 4000.0
    assert 1 / (0.5 * k + 0.5) - 1 / (0.5 * (k + 1) + 0.5) == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("placements-slow.csv", None, "cannot be read"),
        ("placements-slow.csv", "placement,local_bsz\n1,1\n", "row 1: has no column 'step_time'"),
        (
            "placements-slow.csv",
            "placement,local_bsz,step_time,sync_time\n1,1,x,0\n",
            "row 2, column step_time: 'x'",
        ),
        (
            "validation-40.csv",
            "progress,iteration,metric,grad_sqr,grad_var\n1,1,1,1,1\n",
            "has 1 rows, and 2 epochs",
        ),
        (
            "validation-40.csv",
            "progress,iteration,metric,grad_sqr,grad_var\n1,1,1,1,1\n1,2,1,1,1\n",
            "must grow",
        ),
        ("validation-x.csv", "progress\n", "its name has no global batch"),
    ],
)
def test_a_wrong_profile_is_one_clear_error(tmp_path: Path, name: str, content: str | None, why: str) -> None:
    folder = write_profiles(tmp_path / "bert")
    path = folder / name
    path.unlink(missing_ok=True)
    if content is not None:
        path.write_text(content)
    with pytest.raises(BadInput, match=why) as error:
        read_application(folder, configurations_of((Kind(name="slow", node_slots=(2,) * 4),)))
    assert str(error.value).startswith(str(path))
