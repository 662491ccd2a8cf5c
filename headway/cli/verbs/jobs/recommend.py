"""The verbs about rental before machines are rented: recommendations for a job, and offers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from pydantic import ValidationError

from headway import jobfile
from headway.cli.context import Format, JobFile, Output, OwnProject, Replacements, invalid, of
from headway.cli.render import rental as render_rental
from headway.cli.verbs.cluster.machines import machines_table
from headway.cli.verbs.jobs.reading import job_of
from headway.client.client import Client
from headway.contract.spec import JobSpec
from headway.contract.values.markets import Market
from headway.contract.views.jobs import Page
from headway.contract.views.machines import LeaseGroup, LeaseRequest, MachineView
from headway.contract.views.recommendations import (
    Objective,
    RecommendationRequest,
    RecommendationView,
    SpeedHint,
)
from headway.errors import HeadwayError

_Speed = Annotated[
    str | None,
    typer.Option(
        metavar="KIND=RATE", help="samples per second on one slot, for a job that never ran, e.g. t4=350"
    ),
]
_Samples = Annotated[
    float | None,
    typer.Option(min=1, metavar="N", help="samples that the job trains on, if unknown to the service"),
]
_Ranking = Annotated[
    Objective | None,
    typer.Option(help="ranking of the plans; default: the job file's goal. flopp: as DeepVM"),
]
_Rent = Annotated[
    bool, typer.Option("--rent", help="rent a plan for the submitted job of this name, until it ends")
]
_Plan = Annotated[int, typer.Option(min=1, metavar="N", help="the plan to rent: its row, from 1")]
_Limit = Annotated[int, typer.Option(min=1, max=200, help="show the best N plans and the Pareto front")]
_Yes = Annotated[bool, typer.Option("--yes", "-y", help="rent without asking")]


def recommend(
    context: typer.Context,
    file: JobFile,
    objective: _Ranking = None,
    max_usd_per_h: Annotated[
        float | None, typer.Option(metavar="USD", help="limit on the dollars per hour of a plan")
    ] = None,
    max_cost_usd: Annotated[
        float | None, typer.Option(metavar="USD", help="limit on the total cost of the job, in dollars")
    ] = None,
    deadline: Annotated[
        str | None, typer.Option(metavar="TIME", help="latest end, e.g. 2026-12-01T00:00:00Z")
    ] = None,
    market: Annotated[
        Literal["on-demand", "spot", "mixed"] | None,
        typer.Option(help="markets to rent on; default: the job file's, otherwise all"),
    ] = None,
    samples: _Samples = None,
    samples_per_s: _Speed = None,
    checkpoint_size: Annotated[
        str | None, typer.Option(metavar="SIZE", help="size of a checkpoint, e.g. 2GiB")
    ] = None,
    provider: Annotated[str | None, typer.Option(help="only offers of this provider")] = None,
    region: Annotated[str | None, typer.Option(help="only offers in this region or zone")] = None,
    limit: _Limit = 10,
    rent: _Rent = False,
    plan: _Plan = 1,
    yes: _Yes = False,
    set_: Replacements = None,
    project: OwnProject = None,
    output: Output = Format.TABLE,
) -> None:
    """Recommend machines to rent for a job, with time and cost to completion, and rent them with --rent.

    Examples: headway recommend job.yaml --objective cost; headway recommend job.yaml --rent --plan 2;
    headway recommend job.yaml --objective flopp --max-usd-per-h 3
    """
    cli = of(context)
    request = _request(
        job_of(cli, file, set_),
        samples_per_s,
        objective=objective,
        market=market,
        max_usd_per_h=max_usd_per_h,
        max_cost_usd=max_cost_usd,
        deadline=deadline,
        samples=samples,
        checkpoint_size=checkpoint_size,
        provider=provider,
        region=region,
        limit=limit,
    )
    with cli.connect_in(project) as client:
        view = client.recommend(request)
        if not rent or output is Format.TABLE:
            cli.show(output, view, render_rental.recommendation_page(view))
        if rent:
            leased = _rent(client, view, plan, yes=yes)
            cli.show(output, leased, machines_table(leased.items))


def _rent(client: Client, view: RecommendationView, number: int, *, yes: bool) -> Page[MachineView]:
    """Rent a plan for the job of the recommendation, after a confirmation."""
    if number > len(view.plans):
        raise HeadwayError(
            f"There is no plan {number}: {len(view.plans)} were found.", "Choose another row with --plan N."
        )
    chosen = view.plans[number - 1]
    request = LeaseRequest(
        groups=[LeaseGroup(**one.model_dump(include=set(LeaseGroup.model_fields))) for one in chosen.groups],
        max_usd_per_h=chosen.usd_per_h,
        expected_cost_usd=chosen.cost_usd,
    )
    if not yes:
        question = (
            f"Rent {render_rental.machines_of(chosen)} for {view.name} at ${chosen.usd_per_h:,.4g} an hour?"
        )
        typer.confirm(question, abort=True, err=True)
    return client.lease(view.name, request)


def offers(
    context: typer.Context,
    device: Annotated[
        str | None, typer.Option(metavar="KIND", help="only machines with this device kind")
    ] = None,
    provider: Annotated[str | None, typer.Option(help="only offers of this provider")] = None,
    region: Annotated[str | None, typer.Option(help="only offers in this region or zone")] = None,
    market: Annotated[Market | None, typer.Option(help="only offers on this market")] = None,
    max_usd: Annotated[
        float | None, typer.Option(min=0, metavar="USD", help="maximum dollars per hour")
    ] = None,
    for_: Annotated[
        Path | None,
        typer.Option("--for", metavar="FILE", help="sort by the cost of this job's goodput"),
    ] = None,
    samples_per_s: _Speed = None,
    output: Output = Format.TABLE,
) -> None:
    """List the machines that can be rented, with their prices, or with their cost for one job.

    Examples: headway offers --device a100 --market spot; headway offers --for job.yaml --max-usd 4
    """
    cli = of(context)
    if for_ is None:
        if samples_per_s is not None:
            raise HeadwayError("--samples-per-s needs a job.", "Add --for FILE.")
        with cli.connect() as client:
            page = client.offers(
                device=device, provider=provider, region=region, market=market, max_usd_per_h=max_usd
            )
        cli.show(output, page, render_rental.offers_page(page))
        return
    spec = jobfile.load(for_, [f"resources.devices=[{device}]"] if device else [])
    request = _request(spec, samples_per_s, provider=provider, region=region, limit=0)
    with cli.connect() as client:
        view = client.recommend(request)
    kept = [one for one in view.offers if render_rental.costs_at_most(one, market, max_usd)]
    view = view.model_copy(update={"offers": kept})
    cli.show(output, view, render_rental.priced_page(view, market))


def _request(spec: JobSpec, samples_per_s: str | None, **options: Any) -> RecommendationRequest:
    """Return the request, or raise an error that names the wrong option."""
    given = {name: value for name, value in options.items() if value is not None}
    if samples_per_s is not None:
        given["speed"] = _speed(samples_per_s)
    try:
        return RecommendationRequest(spec=spec, **given)
    except ValidationError as error:
        raise invalid(error, "recommend") from None


def _speed(text: str) -> SpeedHint:
    kind, _, rate = text.partition("=")
    try:
        return SpeedHint(device_kind=kind.strip(), samples_per_s=float(rate))
    except ValueError:
        raise HeadwayError(
            f"--samples-per-s {text}: not of the form KIND=RATE.", "Write it like --samples-per-s t4=350."
        ) from None
