"""Event files as TensorBoard reads them, and a library that imports no tracker."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from headway.storage.stores import open_storage
from headway.train.trackers.tensorboard import EventFiles
from tests.unit.headway.train.test_session import make_run, numbers, prepared
from tests.unit.headway.train.trackers.test_trackers import at


def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return TensorBoard's steps and values by tag."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = reader.EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]
    }


@pytest.mark.parametrize("scheme", ["file", "memory"])
def test_tensorboard_shows_one_curve_over_generations(scheme: str, tmp_path: Path) -> None:
    place: Any = tmp_path if scheme == "file" else open_storage("memory:///")
    first, second = EventFiles(place), EventFiles(place)
    first.write([at(1, loss=3.0), at(2, loss=2.0, accuracy=0.5)])
    first.write([at(3, loss=1.5)])
    first.close(complete=False)
    # The second one begins at the checkpoint after step 2, on another host; the third in the same process, at step 4.
    second.write([at(3, loss=1.25, generation=2, first_step=3)])
    second.write([at(4, loss=1.0, generation=4, first_step=4), at(5, loss=1e39, generation=4, first_step=4)])
    second.close(complete=True)
    if scheme == "memory":
        for key in place.keys():  # noqa: SIM118  # not a dictionary
            (tmp_path / key).parent.mkdir(exist_ok=True)
            (tmp_path / key).write_bytes(place.get(key))
    assert len(list((tmp_path / "tensorboard").iterdir())) == 3
    shown = curves(tmp_path / "tensorboard")
    assert shown["accuracy"] == [(2, 0.5)]
    assert shown["loss"] == [(1, 3.0), (2, 2.0), (3, 1.25), (4, 1.0), (5, float("inf"))]


def train(
    epochs: int, *, stop_at: int | None = None, tracker: str = "tensorboard", **environment: Any
) -> None:
    """Train as a script does, up to the step `stop_at`, from the checkpoint if there is one. Three steps to an epoch."""
    run = make_run(trackers=(tracker,), **environment)
    model, optimizer = prepared(run)
    loader = run.loader(numbers(12), global_batch=4)
    step = 3 * run._training.place.position.epoch  # type: ignore[union-attr]
    for epoch in run.epochs(epochs):
        for (x,) in loader:
            loss = model(x).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            run.report(loss=step * 1.0)
            if step == stop_at:
                break
        if step == stop_at:
            break
        run.report(epoch=epoch * 1.0)
    run._value_sender.close()


def test_a_run_that_is_restored_goes_on_with_its_curve(tmp_path: Path) -> None:
    """Three steps to an epoch. The first process is lost in step 5 of 9 with the end of the first epoch as its last
    checkpoint, so that the second one does step 4 and 5 again.
    """
    kept = {"checkpoint_uri": str(tmp_path)}
    train(1, generation=1, **kept)
    train(3, generation=2, stop_at=5, **kept)
    train(3, generation=3, **kept)
    shown = curves(tmp_path / "tensorboard")
    assert shown["loss"] == [(step, float(step)) for step in range(1, 10)]
    assert shown["epoch"] == [(3, 0.0), (6, 1.0), (9, 2.0)]


def test_a_report_before_training_is_of_step_0(tmp_path: Path) -> None:
    run = make_run(trackers=("tensorboard",), checkpoint_uri=str(tmp_path))
    run.report(parameters=torch.tensor(7.0))
    run._value_sender.close()
    assert curves(tmp_path / "tensorboard") == {"parameters": [(0, 7.0)]}


def test_the_library_imports_no_tracker_and_no_framework() -> None:
    extras = ("mlflow", "tensorboard", "lightning", "transformers", "accelerate")
    code = f"import sys, headway.train; print([name for name in {extras} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_event_files_that_cannot_be_stored_are_tried_again(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").write_text("in the way")
    files = EventFiles(tmp_path)
    files.write([at(1, loss=3.0)])
    with pytest.raises(OSError, match="tensorboard"):
        files.write([at(2, loss=2.0)])
    (tmp_path / "tensorboard").unlink()
    files.write([at(2, loss=2.0)])
    assert curves(tmp_path / "tensorboard")["loss"] == [(1, 3.0), (2, 2.0)]
