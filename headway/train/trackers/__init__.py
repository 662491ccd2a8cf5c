"""Trackers that receive `run.report` besides the service: TensorBoard's event files, an MLflow server.

The present rank 0 passes each report to a `Sender`, whose thread writes it to a `Tracker`. Training waits for
no tracker, and no failure of a tracker ends it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, assert_never

from headway.contract.values.tracker_names import TrackerName
from headway.errors import HeadwayError
from headway.train.trackers.sender import Sender, TrackedReport, Tracker

if TYPE_CHECKING:
    from headway.train.host.environment import Environment

__all__ = ["Sender", "TrackedReport", "Tracker", "TrackerUnavailable", "senders"]


class TrackerUnavailable(HeadwayError):
    """Raised when the ranks cannot use a requested tracker because its package or its address is missing."""

    code = "TRACKER_UNAVAILABLE"


def _is_installed(package: str) -> bool:
    return find_spec(package) is not None


def senders(
    names: Sequence[TrackerName],
    environment: Environment,
    *,
    installed: Callable[[str], bool] = _is_installed,
) -> list[Sender]:
    """Return a sender for each tracker. No tracker is opened before the first report.

    Raises:
        TrackerUnavailable: a package is not installed, or an address is not given.
    """
    return [Sender(name, _opener(name, environment, installed)) for name in names]


def _opener(
    name: TrackerName, environment: Environment, installed: Callable[[str], bool]
) -> Callable[[], Tracker]:
    if name == "tensorboard":

        def event_files() -> Tracker:
            from headway.train.trackers.tensorboard import EventFiles, place_of  # noqa: PLC0415

            return EventFiles(place_of(environment.checkpoint_uri, environment.storage_keys))

        return event_files
    if name == "mlflow":
        _check_mlflow(installed("mlflow"))

        def mlflow_run() -> Tracker:
            from headway.train.trackers.mlflow import MlflowRun  # noqa: PLC0415  # takes two seconds to import

            return MlflowRun(environment.job, _params(environment))

        return mlflow_run
    assert_never(name)


def _check_mlflow(installed: bool) -> None:  # noqa: FBT001
    if not installed:
        raise TrackerUnavailable(
            "TRACKER_UNAVAILABLE: the job asks for the tracker mlflow, but its package is not installed here.",
            "Run `pip install 'headway[mlflow]'` where the ranks run, or take mlflow out of `trackers`.",
        )
    if not os.environ.get("MLFLOW_TRACKING_URI"):
        raise TrackerUnavailable(
            "TRACKER_UNAVAILABLE: the job asks for the tracker mlflow, but the address of its server is not set.",
            "Set MLFLOW_TRACKING_URI in `env` of the job file, or take mlflow out of `trackers`.",
        )


def _params(environment: Environment) -> dict[str, str]:
    """Return the batch and checkpoint settings of the job file."""
    settings = {
        "batch.global": environment.global_batch,
        "batch.max_global": environment.most_global_batch,
        "batch.max_local": environment.max_local_batch,
        "batch.lr_rule": None if environment.lr_rule == "none" else environment.lr_rule,
        "checkpoint.every_s": environment.checkpoint_every_s,
    }
    return {name: str(value) for name, value in settings.items() if value is not None}
