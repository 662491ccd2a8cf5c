"""The MLflow tracker: one run per job, independent of the process that is rank 0."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from headway.train.host.environment import Job
from headway.train.trackers.sender import TrackedReport

# The package would send usage data to its makers; a rank may contact only the given server.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

from mlflow.entities import Metric, Param, RunTag
from mlflow.tracking import MlflowClient

if TYPE_CHECKING:
    from mlflow.entities import Run

METRICS_AT_ONCE = 1000
"""Most metrics that MLflow accepts in one request."""
_JOB_ID = "headway.job_id"
_NOT_IN_A_NAME = re.compile(r"[^\w. /:-]")


class MlflowRun:
    """The run of a job, found by the job's id. Outside Headway each process has a run of its own.

    `MLFLOW_TRACKING_URI` names the server. The experiment is `MLFLOW_EXPERIMENT_NAME`, or one named after the
    job's project. `params` are recorded when the run is created.

    Raises:
        MlflowException: the server does not answer, or refuses.
    """

    def __init__(self, job: Job | None, params: Mapping[str, str]) -> None:
        self._client = MlflowClient()
        self._last_steps: dict[str, int] = {}
        self._members: tuple[int, int] | None = None
        run = self._find(job)
        self._resumed = run is not None
        self._id = (run or self._make(job, params)).info.run_id
        if self._resumed:
            self._client.set_terminated(self._id, "RUNNING")

    def write(self, reports: Sequence[TrackedReport]) -> None:
        """Log new values. A step repeated after a loss keeps its first values.

        Raises:
            MlflowException: the server does not answer, or refuses.
        """
        metrics = [
            Metric(_name(name), value, int(report.at_s * 1000), report.step)
            for report in reports
            for name, value in report.values.items()
        ]
        for start in range(0, len(metrics), METRICS_AT_ONCE):
            new = [
                one for one in metrics[start : start + METRICS_AT_ONCE] if one.step > self._last_step(one.key)
            ]
            self._client.log_batch(self._id, metrics=new, tags=self._changed_tags(reports[-1]))
            for one in new:
                self._last_steps[one.key] = max(one.step, self._last_steps[one.key])
            self._members = (reports[-1].generation, reports[-1].world_size)

    def close(self, *, complete: bool) -> None:
        """End the run if training is complete; otherwise the next process continues it.

        Raises:
            MlflowException: the server does not answer, or refuses.
        """
        if complete:
            self._client.set_terminated(self._id, "FINISHED")

    def _find(self, job: Job | None) -> Run | None:
        if job is None:
            return None
        experiment = self._experiment(job)
        runs = self._client.search_runs(
            [experiment],
            f"tags.`{_JOB_ID}` = '{job.id}'",
            order_by=["attributes.start_time ASC"],
            max_results=1,
        )
        return runs[0] if runs else None

    def _make(self, job: Job | None, params: Mapping[str, str]) -> Run:
        tags = {_JOB_ID: job.id, "headway.job": job.name, "headway.project": job.project} if job else {}
        run = self._client.create_run(
            self._experiment(job), tags=tags, run_name=job.name if job is not None else None
        )
        self._client.log_batch(run.info.run_id, params=[Param(*pair) for pair in params.items()])
        return run

    def _experiment(self, job: Job | None) -> str:
        """Return the id of the experiment, which is created if it does not exist."""
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or (job.project if job is not None else "default")
        found = self._client.get_experiment_by_name(name)
        return str(found.experiment_id if found is not None else self._client.create_experiment(name))

    def _last_step(self, key: str) -> int:
        """Return the last step for which the run has a value of `key`; -1 if none."""
        if key not in self._last_steps:
            history = self._client.get_metric_history(self._id, key) if self._resumed else []
            self._last_steps[key] = max((one.step for one in history), default=-1)
        return self._last_steps[key]

    def _changed_tags(self, report: TrackedReport) -> list[RunTag]:
        if self._members == (report.generation, report.world_size):
            return []
        return [
            RunTag("headway.generation", str(report.generation)),
            RunTag("headway.size", str(report.world_size)),
        ]


def _name(metric: str) -> str:
    """Return the name with only characters that MLflow accepts: a refused name would block all later values."""
    return _NOT_IN_A_NAME.sub("_", metric)
