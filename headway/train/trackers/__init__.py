"""Where `run.report` goes beside the service: TensorBoard's event files, an MLflow server.

Rank 0 of the moment hands each report to a `Sender`, whose thread writes it to a `Tracker`. Training waits for none of
them, and none of them ends it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, assert_never

from headway.contract.runtime import TrackerName
from headway.errors import HeadwayError
from headway.train.trackers.sender import Report, Sender, Tracker

if TYPE_CHECKING:
    from headway.train.environment import Environment

__all__ = ["Report", "Sender", "Tracker", "TrackerUnavailable", "senders"]


class TrackerUnavailable(HeadwayError):
    """A tracker is asked for that cannot be used where the ranks run: its package or its address is missing."""

    code = "TRACKER_UNAVAILABLE"


def _is_installed(package: str) -> bool:
    return find_spec(package) is not None


def senders(
    names: Sequence[TrackerName],
    environment: Environment,
    *,
    installed: Callable[[str], bool] = _is_installed,
) -> list[Sender]:
    """A sender to each tracker. Nothing is opened before the first report.

    Raises:
        TrackerUnavailable: the package of one is not installed, or its address not given.
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
            from headway.train.trackers.mlflow import MlflowRun  # noqa: PLC0415  # two seconds, and only here

            return MlflowRun(environment.job, _params(environment))

        return mlflow_run
    assert_never(name)


def _check_mlflow(installed: bool) -> None:  # noqa: FBT001
    if not installed:
        raise TrackerUnavailable(
            "TRACKER_UNAVAILABLE: the job asks for the tracker mlflow, and its package is not installed here.",
            "Run `pip install 'headway[mlflow]'` where the ranks run, or take mlflow out of `trackers`.",
        )
    if not os.environ.get("MLFLOW_TRACKING_URI"):
        raise TrackerUnavailable(
            "TRACKER_UNAVAILABLE: the job asks for the tracker mlflow, and does not say where its server is.",
            "Set MLFLOW_TRACKING_URI in `env` of the job file, or take mlflow out of `trackers`.",
        )


def _params(environment: Environment) -> dict[str, str]:
    """What the job file says of how it trains."""
    said = {
        "batch.global": environment.global_batch,
        "batch.max_global": environment.most_global_batch,
        "batch.max_local": environment.max_local_batch,
        "batch.lr_rule": None if environment.lr_rule == "none" else environment.lr_rule,
        "checkpoint.every_s": environment.checkpoint_every_s,
    }
    return {name: str(value) for name, value in said.items() if value is not None}
