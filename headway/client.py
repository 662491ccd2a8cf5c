"""The Python client of the service: the HTTP API as typed methods.

with Client("http://127.0.0.1:8123", token) as client:
    job = client.submit(JobSpec(name="mnist", run="python train.py", workdir="."))
    for view in client.wait(job.id):
        print(view.state, view.progress.samples)
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

import httpx

from headway._access import AccessCalls
from headway._calls import given
from headway._checkpoints import CheckpointCalls
from headway._http import ApiError, Http, ServiceUnavailableError, Timer
from headway._join_tokens import JoinTokenCalls
from headway._logs import LogCalls
from headway._money import MoneyCalls
from headway._secrets import SecretCalls
from headway._simulations import SimulationCalls
from headway.bundle import BundleError, pack
from headway.contract.decisions import ClusterView, ExplanationView, ParameterValue, PolicyRequest, RoundView
from headway.contract.diagnosis import DiagnosisView
from headway.contract.forecasts import ForecastView, PlanView
from headway.contract.health import QuarantineRequest
from headway.contract.jobs import (
    TERMINAL_STATES,
    BundleView,
    CancelRequest,
    EventView,
    JobPatch,
    JobState,
    JobView,
    MetricPoint,
    Page,
    ResizeRequest,
)
from headway.contract.machines import MachineView
from headway.contract.markets import Market
from headway.contract.nodes import NodeView
from headway.contract.recommendations import OfferPage, RecommendationRequest, RecommendationView
from headway.contract.spec import JobSpec
from headway.errors import HeadwayError

__all__ = ["ApiError", "BundleError", "Client", "HeadwayError", "ServiceUnavailableError"]

_API = "/api/v1"
_UPLOAD_TIMEOUT_S = 300.0
_RECOMMENDATION_TIMEOUT_S = 120.0
"""Hundreds of small integer programs: a second or two, more on a busy host."""


class Client(
    LogCalls, CheckpointCalls, MoneyCalls, SecretCalls, AccessCalls, JoinTokenCalls, SimulationCalls
):
    """One service, as one user.

    A request that meets a service that is away (no connection, 502, 503, 504, 429) is tried again for
    up to `patience_s`; none is ever done twice. Every method raises `ApiError` when the service refuses
    and `ServiceUnavailableError` when patience runs out. Fields that only a newer service knows are
    ignored. Not for use by several threads at once.

    Args:
        url: where the service listens, for example `http://127.0.0.1:8123`.
        token: an API token.
        patience_s: see above.
        transport: another way to reach the service than the network.
        timer: the clock to wait by; tests hand one in.
        project: where jobs are looked for and submitted to whose file names no project; None: all that one sees, and `default`.
    """

    def __init__(
        self,
        url: str,
        token: str | None,
        *,
        project: str | None = None,
        patience_s: float = 10.0,
        transport: httpx.BaseTransport | None = None,
        timer: Timer = time,
    ) -> None:
        self._http = Http(url, token, patience_s=patience_s, transport=transport, timer=timer)
        self._timer = timer
        self._project: str | None = None
        if project is not None:
            self.about(project)

    def about(self, project: str) -> None:
        """Look for jobs in this project from now on, and submit to it those whose file names none."""
        self._project = project
        self._http.about(project)

    def _own(self, spec: JobSpec) -> JobSpec:
        if self._project is None or "project" in spec.model_fields_set:
            return spec
        return spec.model_copy(update={"project": self._project})

    @property
    def url(self) -> str:
        """Where the service listens."""
        return self._http.url

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Jobs

    def submit(
        self, spec: JobSpec, *, base: Path | None = None, idempotency_key: str | None = None
    ) -> JobView:
        """Submit a job. Its `workdir`, when it has one and no `bundle`, is uploaded first.

        Args:
            spec: the job.
            base: the folder that a relative `workdir` starts from; default: the current one.
            idempotency_key: give the same one to submit the same job once however often this is called.

        Raises:
            BundleError: the working folder cannot be sent.
        """
        spec = self._own(spec)
        if spec.workdir is not None and spec.bundle is None:
            uploaded = self.upload_bundle((base or Path.cwd()) / spec.workdir)
            spec = spec.model_copy(update={"bundle": uploaded.digest})
        key = idempotency_key or str(uuid.uuid4())
        body = spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
        return self._post(f"{_API}/jobs", JobView, json=body, headers={"Idempotency-Key": key})

    def jobs(
        self,
        *,
        state: JobState | None = None,
        live: bool = False,
        name: str | None = None,
        project: str | None = None,
    ) -> Iterator[JobView]:
        """Jobs, newest first, fetched page by page as they are consumed; `live` leaves out ended ones."""
        params = {"state": state, "live": "true" if live else None, "name": name, "project": project}
        return self._pages(f"{_API}/jobs", Page[JobView], params)

    def job(self, job: str) -> JobView:
        """One job, by its id, or the newest of that name."""
        return self._get(_job(job), JobView)

    def cancel(self, job: str, *, force: bool = False) -> JobView:
        """End a job; its ranks get their grace for a last checkpoint unless `force`."""
        return self._post(_job(job, "cancel"), JobView, json=CancelRequest(force=force).model_dump())

    def pause(self, job: str) -> JobView:
        """Take a job's slots after a checkpoint and keep the job."""
        return self._post(_job(job, "pause"), JobView)

    def resume(self, job: str) -> JobView:
        """Let a paused job compete for slots again."""
        return self._post(_job(job, "resume"), JobView)

    def resize(self, job: str, slots: int | None) -> JobView:
        """Keep a job at `slots` slots; None gives the choice back to the scheduler."""
        return self._post(_job(job, "resize"), JobView, json=ResizeRequest(slots=slots).model_dump())

    def set_priority(self, job: str, priority: int) -> JobView:
        """Give a job another priority, from 0 to 100: each 25 points double its weight."""
        body = JobPatch(priority=priority).model_dump()
        return JobView.model_validate_json(
            self._http.request("PATCH", _job(job), json=body).content, extra="ignore"
        )

    def explain(self, job: str) -> ExplanationView:
        """The last decision about a job, what it was weighed against, and what a little more would be worth to it."""
        return self._get(_job(job, "explain"), ExplanationView)

    def forecast(self, job: str) -> ForecastView:
        """What a job would take at every size, in time and money."""
        return self._get(_job(job, "forecast"), ForecastView)

    def plan(self, spec: JobSpec) -> PlanView:
        """What a job would take if it was submitted. Nothing is stored, and its `workdir` is not read."""
        body = self._own(spec).model_dump(mode="json", by_alias=True, exclude_unset=True)
        return self._post(f"{_API}/plans", PlanView, json=body)

    def recommend(self, request: RecommendationRequest) -> RecommendationView:
        """What to rent for a job that is not submitted. Nothing is stored or rented."""
        request = request.model_copy(update={"spec": self._own(request.spec)})
        body = request.model_dump(mode="json", by_alias=True, exclude_unset=True)
        return self._post(
            f"{_API}/recommendations", RecommendationView, json=body, timeout=_RECOMMENDATION_TIMEOUT_S
        )

    def offers(
        self,
        *,
        device: str | None = None,
        provider: str | None = None,
        region: str | None = None,
        market: Market | None = None,
        max_usd_per_h: float | None = None,
    ) -> OfferPage:
        """What can be rented, of that which fulfils every condition that is given."""
        query = {
            "device": device,
            "provider": provider,
            "region": region,
            "market": market,
            "max_usd_per_h": max_usd_per_h,
        }
        answer = self._http.request("GET", f"{_API}/offers", params=given(query))
        return OfferPage.model_validate_json(answer.content)

    def metrics(self, job: str) -> Iterator[MetricPoint]:
        """What the script reported, oldest first."""
        return self._pages(_job(job, "metrics"), Page[MetricPoint], {})

    def events(self, job: str, *, after: int = 0) -> Iterator[EventView]:
        """What happened to a job so far, oldest first, from the event after sequence number `after`."""
        return self._pages(_job(job, "events"), Page[EventView], {"after": after})

    def follow_events(self, job: str, *, after: int = 0) -> Iterator[EventView]:
        """The same, and what happens from now on, until the job is over."""
        query = {"after": str(after)}
        for received in self._http.follow(_job(job, "events"), query):
            event = EventView.model_validate_json(received.data)
            query["after"] = str(event.sequence)
            yield event

    def wait(self, job: str, *, every_s: float = 1.0, outage_s: float = 600.0) -> Iterator[JobView]:
        """The job as it is now and then every `every_s`, the last time when it is over.

        An outage of the service does not end the wait, unless it lasts for more than `outage_s`.
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

    # Nodes

    def nodes(self) -> Iterator[NodeView]:
        """The hosts, with who holds which slot."""
        return self._pages(f"{_API}/nodes", Page[NodeView], {})

    def machines(self, *, open_only: bool = False) -> Iterator[MachineView]:
        """Rented machines, newest first; `open_only` leaves out those that are gone."""
        return self._pages(f"{_API}/machines", Page[MachineView], {"open": "true" if open_only else None})

    def drain(self, node: str) -> NodeView:
        """Move a node's jobs away and give it no new ones."""
        return self._post(f"{_API}/nodes/{quote(node, safe='')}/drain", NodeView)

    def cordon(self, node: str) -> NodeView:
        """Give a node no new jobs; it keeps those that it has."""
        return self._post(f"{_API}/nodes/{quote(node, safe='')}/cordon", NodeView)

    def uncordon(self, node: str) -> NodeView:
        """Let a node take jobs again."""
        return self._post(f"{_API}/nodes/{quote(node, safe='')}/uncordon", NodeView)

    def quarantine(self, node: str, slot: int, *, why: str = "") -> NodeView:
        """Keep a slot from jobs until it is released; the job that is on it moves away."""
        body = QuarantineRequest(why=why).model_dump()
        return self._post(f"{_API}/nodes/{quote(node, safe='')}/slots/{slot}/quarantine", NodeView, json=body)

    def release(self, node: str, slot: int) -> NodeView:
        """Give a slot to jobs again, whatever kept it from them."""
        return self._post(f"{_API}/nodes/{quote(node, safe='')}/slots/{slot}/release", NodeView)

    # The cluster and its rounds

    def cluster(self) -> ClusterView:
        """Slots by kind, jobs by state, the policy, and the policies that there are."""
        return self._get(f"{_API}/cluster", ClusterView)

    def set_policy(self, policy: str, parameters: Mapping[str, ParameterValue] | None = None) -> ClusterView:
        """Have the cluster follow a policy, with `parameters` in place of its own, from the next round on."""
        request = PolicyRequest(policy=policy, parameters=dict(parameters or {}))
        answer = self._http.request("PUT", f"{_API}/cluster", json=request.model_dump())
        return ClusterView.model_validate_json(answer.content)

    def rounds(self) -> Iterator[RoundView]:
        """Rounds that changed something and the latest one, newest first, page by page as they are consumed."""
        return self._pages(f"{_API}/rounds", Page[RoundView], {})

    def round(self, round_id: str = "latest") -> RoundView:
        """One round."""
        return self._get(f"{_API}/rounds/{quote(round_id, safe='')}", RoundView)

    # Bundles and the service itself

    def upload_bundle(self, folder: Path) -> BundleView:
        """Send a working folder, unless the service has it already.

        Raises:
            BundleError: it cannot be sent: missing, too large, or a link leads out of it.
        """
        bundle = pack(folder)
        known = self._http.request("HEAD", f"{_API}/bundles/{bundle.digest}", accept=(404,))
        if known.is_success:
            return BundleView(digest=bundle.digest, size_bytes=len(bundle.content), files=len(bundle.files))
        return self._post(
            f"{_API}/bundles",
            BundleView,
            content=bundle.content,
            headers={"Content-Type": "application/gzip"},
            timeout=_UPLOAD_TIMEOUT_S,
        )

    def version(self) -> str:
        """Version of the service."""
        return str(self._http.request("GET", "/version").json()["version"])

    def ready(self) -> bool:
        """Whether the service can work: it reaches its stores. Asks once."""
        return self._http.request("GET", "/readyz", accept=(503,)).is_success

    def diagnosis(self) -> DiagnosisView:
        """What the service finds when it looks at itself and its agents."""
        return self._get(f"{_API}/diagnosis", DiagnosisView)

    def clock_ahead_s(self) -> float:
        """How far the service's clock is ahead of ours, to about a second; 0 when it does not say."""
        date = self._http.request("GET", "/livez").headers.get("Date")
        return parsedate_to_datetime(date).timestamp() - time.time() if date else 0.0


def _job(job: str, *rest: str) -> str:
    return "/".join((f"{_API}/jobs/{quote(job, safe='')}", *rest))
