"""The Python client of the service: the HTTP API as typed methods.

with Client() as client:
    job = client.submit("job.yaml")
    client.resize(job, 4)
    for line in client.log_lines(job, follow=True):
        print(line)
    client.wait(job, check=True)
"""

from __future__ import annotations

import os
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from email.utils import parsedate_to_datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import httpx

from headway._lazy import lazy
from headway.client.access import AccessCalls
from headway.client.calls import api_path, job_path
from headway.client.cluster import ClusterCalls
from headway.client.executions import ExecutionCalls
from headway.client.logs import LogCalls
from headway.client.money import MoneyCalls
from headway.client.outputs import OutputCalls
from headway.client.simulations import SimulationCalls
from headway.client.sweeps import SweepCalls
from headway.client.target import target
from headway.client.webhooks import WebhookCalls
from headway.contract.spec import JobSpec
from headway.contract.values.markets import Market
from headway.contract.views.jobs import (
    TERMINAL_STATES,
    BundleView,
    CancelRequest,
    EventView,
    GraphView,
    JobPatch,
    JobState,
    JobView,
    MetricPoint,
    Page,
    ResizeRequest,
)
from headway.errors import BundleError, HeadwayError, JobFailedError, LeftOutWarning, WaitTimeoutError
from headway.http import ApiError, Http, ServiceUnavailableError, Timer

if TYPE_CHECKING:
    from headway import bundle as bundles
    from headway import jobfile, left_out
    from headway.contract import spec_sweep
    from headway.contract.views import decisions, forecasts, recommendations
    from headway.contract.views import diagnosis as diagnosis_models
    from headway.contract.views import ranks as rank_models
    from headway.contract.views import sweeps as sweep_models
else:
    bundles = lazy("headway.bundle")
    jobfile = lazy("headway.jobfile")
    left_out = lazy("headway.left_out")
    decisions = lazy("headway.contract.views.decisions")
    diagnosis_models = lazy("headway.contract.views.diagnosis")
    forecasts = lazy("headway.contract.views.forecasts")
    rank_models = lazy("headway.contract.views.ranks")
    spec_sweep = lazy("headway.contract.spec_sweep")
    sweep_models = lazy("headway.contract.views.sweeps")
    recommendations = lazy("headway.contract.views.recommendations")

__all__ = [
    "ApiError",
    "BundleError",
    "Client",
    "HeadwayError",
    "JobFailedError",
    "LeftOutWarning",
    "ServiceUnavailableError",
    "WaitTimeoutError",
]

_UPLOAD_TIMEOUT_S = 300.0
_SWEEP_TIMEOUT_S = 60.0
"""Timeout of a submit of a sweep: 500 trials take about 1 s, more on a busy host."""
_RECOMMENDATION_TIMEOUT_S = 120.0
"""Timeout of recommendations: searching hundreds of plans takes up to 2 s, more on a busy host."""


class Client(
    LogCalls,
    ExecutionCalls,
    OutputCalls,
    ClusterCalls,
    MoneyCalls,
    AccessCalls,
    SimulationCalls,
    SweepCalls,
    WebhookCalls,
):
    """A client of one service with the rights of one user.

    The client retries a request for up to `patience_s` if the service is away (no connection, 502, 503, 504,
    429). No request takes effect twice. Every method raises `ApiError` if the service refuses, and
    `ServiceUnavailableError` after `patience_s`. Response fields that only a newer service knows are ignored.
    A client is not thread-safe.

    Args:
        url: URL such as `http://127.0.0.1:8123`; None: that of `HEADWAY_URL`, `headway login` or `headway
            up`.
        token: API token; needed with a `url`.
        patience_s: time limit for the retries of a request.
        transport: transport in place of the network.
        timer: clock for waits; tests pass their own.
        project: project of look-ups, and of submitted jobs that name none; None: all visible projects, and
            `default`.
        ca_file: certificate file (PEM) to trust as well, with a `url`.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        project: str | None = None,
        patience_s: float = 10.0,
        transport: httpx.BaseTransport | None = None,
        timer: Timer = time,
        ca_file: str | None = None,
    ) -> None:
        if url is None:
            found = target(os.environ)
            url, token, ca_file = found.url, token or found.token, found.ca_file
        self._http = Http(
            url, token, patience_s=patience_s, transport=transport, timer=timer, ca_file=ca_file
        )
        self._timer = timer
        self._project: str | None = None
        if project is not None:
            self.about(project)

    def about(self, project: str) -> None:
        """Look for jobs in this project from now on, and submit jobs to it that name no project."""
        self._project = project
        self._http.about(project)

    def _own(self, spec: JobSpec) -> JobSpec:
        if self._project is None or "project" in spec.model_fields_set:
            return spec
        return spec.model_copy(update={"project": self._project})

    @property
    def url(self) -> str:
        """Return the URL of the service."""
        return self._http.url

    def close(self) -> None:
        """Close the connections of the client."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Jobs

    def submit(
        self,
        job: JobSpec | Mapping[str, Any] | str | Path,
        *,
        workdir: str | Path | None = None,
        base: Path | None = None,
        from_: str | None = None,
        idempotency_key: str | None = None,
    ) -> JobView:
        """Submit a job, after uploading its working folder if it has one and no `bundle`.

        A `LeftOutWarning` names files that `.gitignore` excludes and that the script probably reads.

        Args:
            job: a spec, its fields as a dictionary, or the path of a job file.
            workdir: working folder, in place of the one in `job`.
            base: folder of a relative `workdir`; default: that of the job file, otherwise the current one.
            from_: another job of the project, or `JOB@CHECKPOINT`, from whose checkpoint the job starts.
            idempotency_key: repeated calls with the same key submit one job.

        Raises:
            JobFileError: the job is invalid. The error lists every wrong field.
            BundleError: the working folder cannot be uploaded.
        """
        spec = self._prepared(job, workdir=workdir, base=base, sweeps=False)
        if from_ is not None:
            fields = spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
            spec = jobfile.from_fields(
                {**fields, "checkpoint": {**fields.get("checkpoint", {}), "from": from_}}
            )
        key = idempotency_key or str(uuid.uuid4())
        body = spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
        waits = {} if spec.checkpoint.from_ is None else {"timeout": _UPLOAD_TIMEOUT_S}
        return self._post(api_path("jobs"), JobView, json=body, headers={"Idempotency-Key": key}, **waits)

    def submit_sweep(
        self,
        sweep: spec_sweep.SweepSpec | Mapping[str, Any] | str | Path,
        *,
        workdir: str | Path | None = None,
        base: Path | None = None,
        idempotency_key: str | None = None,
    ) -> sweep_models.SweepView:
        """Submit a sweep, all of whose trials are stored at once. The arguments are those of `submit`.

        Raises:
            JobFileError: the job file is invalid. The error lists every wrong field.
            BundleError: the working folder cannot be uploaded.
            HeadwayError: the job file has no `sweep`.
        """
        spec = self._prepared(sweep, workdir=workdir, base=base, sweeps=True)
        if not isinstance(spec, spec_sweep.SweepSpec):
            raise HeadwayError(f"{spec.name} has no sweep.", "Add `sweep` to the job file, or use `submit`.")
        key = idempotency_key or str(uuid.uuid4())
        body = spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
        return self._post(
            api_path("sweeps"),
            sweep_models.SweepView,
            json=body,
            headers={"Idempotency-Key": key},
            timeout=_SWEEP_TIMEOUT_S,
        )

    def _prepared(
        self,
        job: JobSpec | Mapping[str, Any] | str | Path,
        *,
        workdir: str | Path | None,
        base: Path | None,
        sweeps: bool,
    ) -> JobSpec:
        """Return the spec of a job to submit, after uploading its working folder if it has one and no `bundle`."""
        if isinstance(job, str | Path):
            base = base or Path(job).resolve().parent
            job = jobfile.read(Path(job), sweeps=sweeps).spec
        spec = self._own(job if isinstance(job, JobSpec) else jobfile.from_fields(job, sweeps=sweeps))
        if workdir is not None:
            spec = spec.model_copy(update={"workdir": str(Path(workdir).resolve()), "bundle": None})
        if spec.workdir is not None and spec.bundle is None:
            folder = (base or Path.cwd()) / spec.workdir
            packed = bundles.pack(folder)
            if text := left_out.left_out_warning(folder, packed.excluded, spec.run):
                warnings.warn(text, LeftOutWarning, stacklevel=3)
            spec = spec.model_copy(update={"bundle": self._upload(packed).digest})
        return spec

    def jobs(
        self,
        *,
        state: JobState | None = None,
        live: bool = False,
        name: str | None = None,
        project: str | None = None,
        owner: str | None = None,
    ) -> Iterator[JobView]:
        """Yield jobs, newest first, fetching pages on demand. `live` leaves out ended jobs.

        Raises:
            HeadwayError: `owner` is given, and the service is too old to know it.
        """
        live_ = "true" if live else None
        params = {"state": state, "live": live_, "name": name, "project": project, "owner": owner}
        for job in self._pages(api_path("jobs"), Page[JobView], params):
            if owner is not None and job.owner != owner:  # an older service ignores the parameter
                raise HeadwayError(
                    "This service is too old to list the jobs of one owner.",
                    "Upgrade it, or list all jobs with `headway ps`.",
                )
            yield job

    def job(self, job: str | JobView) -> JobView:
        """Return a job by its id, or the newest job of a name."""
        return self._get(job_path(job), JobView)

    def cancel(self, job: str | JobView, *, force: bool = False) -> JobView:
        """Cancel a job. Its ranks get their grace period for a last checkpoint unless `force`."""
        return self._post(job_path(job, "cancel"), JobView, json=CancelRequest(force=force).model_dump())

    def pause(self, job: str | JobView) -> JobView:
        """Stop the job, which may save a checkpoint, take its slots and keep it."""
        return self._post(job_path(job, "pause"), JobView)

    def resume(self, job: str | JobView) -> JobView:
        """Let a job compete for slots again that is paused, or that failed or was cancelled and has a checkpoint."""
        return self._post(job_path(job, "resume"), JobView)

    def resize(self, job: str | JobView, slots: int | None, *, force: bool = False) -> JobView:
        """Fix the size of a job at `slots` slots, or let the scheduler choose it (None).

        With `force`, a job that has not made its first step restarts now, instead of waiting for that step.
        """
        body = ResizeRequest(slots=slots, force=force).model_dump()
        return self._post(job_path(job, "resize"), JobView, json=body)

    def set_priority(self, job: str | JobView, priority: int) -> JobView:
        """Set the priority of a job, from 0 to 100. Each 25 points double its weight."""
        body = JobPatch(priority=priority).model_dump()
        return self._send("PATCH", job_path(job), JobView, json=body)

    def ranks(self, job: str | JobView) -> Iterator[rank_models.RankView]:
        """Yield the processes of a job that have not ended, with node, slot and process id."""
        return self._pages(job_path(job, "ranks"), Page[rank_models.RankView])

    def graph(self, job: str | JobView | None = None, *, project: str | None = None) -> GraphView:
        """Return the chain of a job, or all chains with a job that waits for another one."""
        named = job.id if isinstance(job, JobView) else job
        return self._get(api_path("graph"), GraphView, job=named, project=project or self._project)

    def explain(self, job: str | JobView) -> decisions.ExplanationView:
        """Return the last decision about a job, its alternatives, and the value of another slot."""
        return self._get(job_path(job, "explain"), decisions.ExplanationView)

    def forecast(self, job: str | JobView) -> forecasts.ForecastView:
        """Return the time and cost of a job at every size."""
        return self._get(job_path(job, "forecast"), forecasts.ForecastView)

    def plan(self, spec: JobSpec) -> forecasts.PlanView:
        """Return the time and cost of a job at every size, without submitting it.

        Its `workdir` is not read.
        """
        body = self._own(spec).model_dump(mode="json", by_alias=True, exclude_unset=True)
        return self._post(api_path("plans"), forecasts.PlanView, json=body)

    def recommend(self, request: recommendations.RecommendationRequest) -> recommendations.RecommendationView:
        """Return machines to rent for a job, without submitting it. Nothing is rented."""
        request = request.model_copy(update={"spec": self._own(request.spec)})
        body = request.model_dump(mode="json", by_alias=True, exclude_unset=True)
        return self._post(
            api_path("recommendations"),
            recommendations.RecommendationView,
            json=body,
            timeout=_RECOMMENDATION_TIMEOUT_S,
        )

    def offers(
        self,
        *,
        device: str | None = None,
        provider: str | None = None,
        region: str | None = None,
        market: Market | None = None,
        max_usd_per_h: float | None = None,
    ) -> recommendations.OfferPage:
        """Return the offers of machines that match every given condition."""
        return self._get(
            api_path("offers"),
            recommendations.OfferPage,
            device=device,
            provider=provider,
            region=region,
            market=market,
            max_usd_per_h=max_usd_per_h,
        )

    def metrics(self, job: str | JobView) -> Iterator[MetricPoint]:
        """Yield the metrics that the script reported, oldest first."""
        return self._pages(job_path(job, "metrics"), Page[MetricPoint])

    def events(self, job: str | JobView, *, after: int = 0, follow: bool = False) -> Iterator[EventView]:
        """Yield the events of a job after sequence number `after`, oldest first.

        With `follow`, also yield new events until the job ends.
        """
        if follow:
            return self.follow_events(job, after=after)
        return self._pages(job_path(job, "events"), Page[EventView], {"after": after})

    def follow_events(self, job: str | JobView, *, after: int = 0) -> Iterator[EventView]:
        """Yield events as `events` does with `follow`."""
        query = {"after": str(after)}
        for received in self._http.follow(job_path(job, "events"), query):
            event = EventView.model_validate_json(received.data)
            query["after"] = str(event.sequence)
            yield event

    def watch(
        self, job: str | JobView, *, every_s: float = 1.0, outage_s: float = 600.0
    ) -> Iterator[JobView]:
        """Yield the job now and then every `every_s` seconds, for the last time when it has ended.

        An outage of the service ends the watch only if it lasts longer than `outage_s`.
        """
        last_seen = self._timer.monotonic()
        while True:
            try:
                view = self.job(job)
            except ServiceUnavailableError:
                if self._timer.monotonic() - last_seen > outage_s:
                    raise
            else:
                last_seen = self._timer.monotonic()
                yield view
                if view.state in TERMINAL_STATES:
                    return
            self._timer.sleep(every_s)

    def wait(
        self,
        job: str | JobView,
        *,
        timeout_s: float | None = None,
        on_progress: Callable[[JobView], None] | None = None,
        check: bool = False,
        every_s: float = 1.0,
    ) -> JobView:
        """Wait until a job ends, and return it.

        Args:
            job: the job.
            timeout_s: longest wait; None: no limit.
            on_progress: called with the job every `every_s`, for the last time when it has ended.
            check: raise unless the job succeeds.
            every_s: seconds between two requests.

        Raises:
            WaitTimeoutError: the job has not ended in time. It continues.
            JobFailedError: with `check`, the job failed or was cancelled.
            ServiceUnavailableError: the service is away for minutes. The job continues.
        """
        began = self._timer.monotonic()
        for view in self.watch(job, every_s=every_s):
            if on_progress is not None:
                on_progress(view)
            waited_s = self._timer.monotonic() - began
            if timeout_s is not None and view.state not in TERMINAL_STATES and waited_s + every_s > timeout_s:
                raise WaitTimeoutError(
                    f"{view.name} is {view.state} after {waited_s:.0f} s: {view.present or view.message}",
                    "The job continues. Wait again, or cancel it.",
                )
        if check and view.state is not JobState.SUCCEEDED:
            raise JobFailedError(
                f"{view.name} is {view.state}: {view.message}", f"Its output: headway logs {view.name}"
            )
        return view

    # Bundles and the service itself

    def upload_bundle(self, folder: Path) -> BundleView:
        """Upload a working folder, unless the service has it already.

        Raises:
            BundleError: the folder is missing or too large, or a link leads out of it.
        """
        return self._upload(bundles.pack(folder))

    def _upload(self, bundle: bundles.Bundle) -> BundleView:
        known = self._http.request("HEAD", api_path("bundles", bundle.digest), accept=(404,))
        if known.is_success:
            return BundleView(digest=bundle.digest, size_bytes=len(bundle.content), files=len(bundle.files))
        return self._post(
            api_path("bundles"),
            BundleView,
            content=bundle.content,
            headers={"Content-Type": "application/gzip"},
            timeout=_UPLOAD_TIMEOUT_S,
        )

    def version(self) -> str:
        """Return the version of the service."""
        return str(self._http.request("GET", "/version").json()["version"])

    def ready(self) -> bool:
        """Return whether the service reaches its stores. Asks once, without a retry of a 503."""
        return self._http.request("GET", "/readyz", accept=(503,)).is_success

    def diagnosis(self) -> diagnosis_models.DiagnosisView:
        """Return the service's checks of itself and its agents."""
        return self._get(api_path("diagnosis"), diagnosis_models.DiagnosisView)

    def clock_ahead_s(self) -> float:
        """Return the lead of the service's clock over ours in seconds, to about 1 s; 0 without a `Date` header."""
        date = self._http.request("GET", "/livez").headers.get("Date")
        return parsedate_to_datetime(date).timestamp() - time.time() if date else 0.0
