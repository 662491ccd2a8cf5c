"""The streams of jobs that contend for the slots of one node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from benchmarks.scripts.sharing import factor
from headway.contract.spec import JobSpec

STEP_S = 0.2
"""Duration of a step on one slot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """Job of a stream.

    Attributes:
        at_s: submit time in seconds after the first job of the stream.
        work_s: mean seconds of work on one slot.
        part: share of a step on one slot that does not become shorter with more slots.
        minimum, maximum: fewest and most slots; no maximum: all slots.
        priority: priority in the job file.
        resize: way of changing its size, if it differs from that of the stream.
    """

    name: str
    at_s: float
    work_s: float
    part: float = 0.2
    minimum: int = 1
    maximum: int | None = None
    priority: int = 50
    resize: Literal["live", "restart"] | None = None

    @property
    def steps(self) -> int:
        """Number of steps of the job."""
        return round(self.work_s / STEP_S)


@dataclass(frozen=True, slots=True)
class Pin:
    """Request of a user for a fixed size; None ends the fixed size."""

    at_s: float
    name: str
    slots: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Jobs that contend for `slots` slots. `noise` is the standard deviation of the logarithm of their step times."""

    name: str
    jobs: tuple[Planned, ...]
    slots: int = 4
    noise: float = 0.03
    resize: Literal["live", "restart"] = "live"
    pins: tuple[Pin, ...] = ()

    @property
    def patience_s(self) -> float:
        """Seconds after which unfinished jobs are cancelled: enough to do all work more than twice, one job on each slot."""
        return 60.0 + self.jobs[-1].at_s + 2.5 * sum(job.work_s for job in self.jobs) / self.slots

    def work_s(self, job: Planned) -> float:
        """Return the seconds of work of a job on one slot, with the random factors of its steps."""
        seed = self.jobs.index(job)
        return STEP_S * sum(factor(step, self.noise, seed) for step in range(job.steps))

    def spec(self, job: Planned, script: str) -> JobSpec:
        """Return the job file of a job."""
        seed = self.jobs.index(job)
        return JobSpec.model_validate(
            {
                "name": job.name,
                "workdir": script.rpartition("/")[0],
                "run": f"python {script.rpartition('/')[2]} {job.steps} {STEP_S} {job.part} {self.noise} {seed}",
                "env": {"OMP_NUM_THREADS": "1"},
                "priority": job.priority,
                "elastic": {
                    "min": job.minimum,
                    "max": job.maximum or self.slots,
                    "resize": job.resize or self.resize,
                },
            }
        )


def _sweep(name: str, work_s: tuple[float, ...], *, since_s: float, every_s: float) -> tuple[Planned, ...]:
    """Return jobs of one class that are submitted at regular intervals."""
    return tuple(
        Planned(name=f"{name}-{number}", at_s=since_s + every_s * number, work_s=one)
        for number, one in enumerate(work_s)
    )


_NEWCOMERS = (
    Planned(name="ada", at_s=0.0, work_s=400.0, part=0.1),
    Planned(name="bob", at_s=2.0, work_s=375.0, part=0.2),
    Planned(name="cy", at_s=4.0, work_s=425.0, part=0.3),
    Planned(name="dan", at_s=6.0, work_s=390.0, part=0.5),
)

_ALL = (
    Stream(name="four", jobs=_NEWCOMERS),
    Stream(
        name="six",
        jobs=_sweep("eve", (240.0, 270.0, 250.0), since_s=0.0, every_s=10.0)
        + _sweep("fay", (230.0, 280.0, 210.0), since_s=5.0, every_s=10.0),
    ),
    Stream(
        name="twelve",
        jobs=_sweep(
            "sweep",
            (100.0, 90.0, 110.0, 95.0, 105.0, 80.0, 120.0, 100.0, 85.0, 115.0, 90.0, 110.0),
            since_s=0.0,
            every_s=3.0,
        ),
    ),
    Stream(
        name="long-short",
        jobs=(
            Planned(name="long", at_s=0.0, work_s=500.0),
            *_sweep("short", (75.0,) * 6, since_s=8.0, every_s=30.0),
            *_sweep("burst", (75.0,) * 8, since_s=200.0, every_s=5.0),
        ),
    ),
    Stream(name="noisy", jobs=_NEWCOMERS, noise=0.3),
    Stream(
        name="pinned",
        jobs=(
            Planned(name="fixed", at_s=0.0, work_s=620.0),
            Planned(name="gus", at_s=2.0, work_s=420.0),
            Planned(name="hal", at_s=4.0, work_s=380.0),
            Planned(name="ida", at_s=330.0, work_s=110.0),
        ),
        pins=(Pin(60.0, "fixed", 2),),
    ),
    Stream(
        name="restart",
        jobs=_sweep("jo", (260.0, 270.0, 240.0, 280.0, 230.0), since_s=0.0, every_s=4.0),
        resize="restart",
    ),
    Stream(
        name="minimums",
        jobs=(
            Planned(name="gpt", at_s=0.0, work_s=260.0, minimum=2, maximum=4, priority=50),
            Planned(name="ae", at_s=3.0, work_s=240.0, maximum=2, priority=50),
            Planned(name="snapper", at_s=6.0, work_s=200.0, maximum=2, priority=30, resize="restart"),
            Planned(name="low", at_s=9.0, work_s=150.0, maximum=1, priority=10),
            Planned(name="shard", at_s=12.0, work_s=260.0, minimum=2, maximum=2, priority=70),
            Planned(name="digit-cnn", at_s=20.0, work_s=260.0, maximum=4, priority=90),
        ),
    ),
    Stream(
        name="many-small",
        jobs=(
            Planned(name="pair", at_s=0.0, work_s=700.0, minimum=2, maximum=2, priority=50),
            Planned(name="solo", at_s=2.0, work_s=420.0, maximum=1, priority=40),
            Planned(name="tail", at_s=4.0, work_s=300.0, maximum=1, priority=10),
            Planned(name="wide", at_s=6.0, work_s=200.0, minimum=2, maximum=4, priority=30),
            *(
                replace(one, maximum=1, priority=80)
                for one in _sweep("small", (20.0, 8.0, 25.0, 15.0) * 3, since_s=30.0, every_s=35.0)
            ),
        ),
    ),
    Stream(
        name="five-on-four",
        jobs=(
            Planned(name="base", at_s=0.0, work_s=300.0, minimum=2, maximum=4, priority=30, resize="restart"),
            Planned(name="side", at_s=5.0, work_s=220.0, maximum=3, priority=50, resize="restart"),
            Planned(name="wide", at_s=40.0, work_s=240.0, minimum=3, maximum=4, priority=70),
            Planned(name="peak", at_s=75.0, work_s=90.0, minimum=2, maximum=2, priority=90),
            Planned(name="rest", at_s=80.0, work_s=120.0, maximum=4, priority=10, resize="restart"),
        ),
    ),
    Stream(
        name="ones-and-two",
        jobs=(
            Planned(name="pair", at_s=0.0, work_s=500.0, minimum=2, maximum=2, resize="restart"),
            Planned(name="duo", at_s=3.0, work_s=300.0, minimum=2, maximum=3, resize="restart"),
            *(
                replace(one, maximum=1)
                for one in _sweep("one", (15.0, 10.0, 20.0) * 3, since_s=20.0, every_s=25.0)
            ),
        ),
    ),
)
STREAMS: Mapping[str, Stream] = {stream.name: stream for stream in _ALL}

QUICK = Stream(
    name="quick",
    slots=2,
    jobs=(
        Planned(name="ada", at_s=0.0, work_s=8.0),
        Planned(name="bob", at_s=0.5, work_s=4.0),
        Planned(name="cy", at_s=1.0, work_s=3.0),
    ),
    pins=(Pin(3.0, "ada", 1),),
)
"""Stream of a quick run. It covers every kind of event, but is too short for meaningful measures."""
