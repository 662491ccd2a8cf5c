"""The page that submits a job file, shows its forecast and reports its errors."""

from __future__ import annotations

from dataclasses import dataclass

from headway.contract.spec import JobSpec
from headway.contract.views.forecasts import Mark, PlanView
from headway.jobfile import JobFileError, parse
from service.console.html.text import NONE, between, charge, plural, short, usd
from service.console.pictures.job_curves import OptionRow, speedup_text

EXAMPLE = """\
# A small network that learns on one to four slots. Nothing has to be uploaded.
name: first-steps
run: |
  python -c '
  import time, torch, headway
  from torch.utils.data import TensorDataset

  run = headway.init()
  torch.manual_seed(0)
  x = torch.randn(20_000, 16)
  y = (x[:, :1] * x[:, 1:2]).sin()
  model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 1))
  model, optimizer = run.prepare(model, torch.optim.AdamW(model.parameters(), lr=3e-3))
  loader = run.loader(TensorDataset(x, y), global_batch=64)
  for epoch in run.epochs(12):
      for inputs, targets in loader:
          loss = (model(inputs) - targets).square().mean()
          optimizer.zero_grad()
          loss.backward()
          optimizer.step()
          run.report(loss=loss.item())
          time.sleep(0.02)
      if run.is_main:
          print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
  '
elastic: {min: 1, max: 4, resize: live}
batch: {policy: fixed, global: 64}
checkpoint: {every: 10s}
"""


@dataclass(frozen=True, slots=True)
class SubmitPreview:
    """The forecast of the job's time and cost."""

    headline: str
    rows: tuple[OptionRow, ...]
    warnings: tuple[str, ...]


def read_job_file(text: str, *, sweeps: bool = False) -> JobSpec:
    """Return the job in the text of a job file; with `sweeps`, a `SweepSpec` if the file has the part `sweep`.

    Raises:
        JobFileError: the text is not a valid job, or names a folder.
    """
    spec = parse(text, "job file", sweeps=sweeps)
    if spec.workdir is not None and spec.bundle is None:
        raise JobFileError(
            "workdir names a folder on your machine, which a page cannot read.",
            "Submit it with `headway submit`, or leave workdir out.",
        )
    return spec


def plan_of(view: PlanView) -> SubmitPreview:
    """Return a plan as text and table rows."""
    known = [one for one in view.configurations if one.time_s is not None]
    best = next((one for one in known if Mark.KNEE in one.marks), known[0] if known else None)
    if best is not None:
        place = plural(best.slots, f"{best.device_kind} slot")
        headline = f"About {between(best.time_s, best.time_p90_s)} and {usd(best.cost_usd)} on {place}."
    elif view.configurations:
        rates = sorted({one.usd_per_h for one in view.configurations})
        cost = usd(rates[0]) if len(rates) == 1 else f"{usd(rates[0])} to {usd(rates[-1])}"
        headline = f"It costs {cost} an hour. Its duration is unknown until a similar job has run."
    else:
        headline = "It does not fit any present node of the cluster."
    rows = tuple(
        OptionRow(
            slots=plural(one.slots, f"{one.device_kind} slot"),
            speed=short(one.goodput),
            speedup=speedup_text(one),
            time=between(one.time_s, one.time_p90_s),
            cost=charge(one.cost_usd)
            if one.cost_usd is not None or not one.usd_per_h
            else f"{usd(one.usd_per_h)}/h",
            value=NONE,
            note=one.why_not_now,
            marks=tuple(one.marks),
            present=one is best,
        )
        for one in view.configurations
    )
    notes = [] if view.deadline is None else [view.deadline.message]
    return SubmitPreview(headline, rows, (*notes, *view.warnings))
