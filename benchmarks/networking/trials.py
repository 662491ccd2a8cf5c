"""Trials of `benchmarks.hosts`: each injects one fault of the network, and leaves the network healed and its job ended."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from benchmarks import stamps
from benchmarks.cluster import POLL_S
from benchmarks.networking.cluster import NetworkHost
from benchmarks.networking.lab import HostLab, now_s
from headway.contract.spec import JobSpec
from headway.contract.views.jobs import TERMINAL_STATES

SCRIPTS = Path(__file__).parents[1] / "scripts"
SLOW_SIZE = "1M"
"""Parameters of the model that trains over a slow link: 50 steps at 100 Mbit/s take half a minute."""
_STEPS_BEFORE = 60
"""Steps before a fault."""
_STEPS_BETWEEN = 8
"""Steps between two changes of size."""

Way = Literal["both", "from_one", "from_other"]
"""Direction in which packets are lost."""


def name_s(lab: HostLab, one: NetworkHost, other: NetworkHost, way: Way) -> float:
    """Return the seconds from a submit until the service names two hosts that do not reach each other."""
    if way != "from_other":
        one.lose(other.address)
    if way != "from_one":
        other.lose(one.address)
    began_s = time.monotonic()
    job = lab.submit(f"named-{way.replace('_', '-')}", 2, 2, training_s=1.0)
    lab.until("the pair to be named", lambda: lab.names_pair(job, one, other) or None)
    took_s = time.monotonic() - began_s
    lab.net.join(one, other)
    lab.finish(job)
    return took_s


def bad_growth_s(lab: HostLab, one: NetworkHost, other: NetworkHost, watch_s: float) -> float:
    """Return the longest pause of a job that is to grow onto a host out of reach, which is healed after `watch_s`."""
    job = lab.submit("bad-growth", 1, 2, training_s=watch_s + 10.0)
    lab.client.resize(job, 1)
    lab.until_step(job, 0.0, world_size=1, count=_STEPS_BEFORE)
    lab.net.cut(one, other)
    began_s = now_s()
    lab.client.resize(job, 2)
    time.sleep(watch_s)
    lab.net.join(one, other)
    over_s = now_s()

    def goes_on() -> bool | None:
        ended = lab.client.job(job).state in TERMINAL_STATES
        return ended or bool(lab.steps(job, over_s)) or None

    lab.until("the job to go on", goes_on)
    pause_s = lab.longest_pause_s(job, began_s)
    lab.finish(job)
    return pause_s


def standstill_s(lab: HostLab, one: NetworkHost, other: NetworkHost, cut_s: float) -> float:
    """Return the seconds from the end of a cut between the hosts of a job to its next step."""
    job = lab.submit("standstill", 2, 2, training_s=10.0)
    lab.until_step(job, 0.0, count=_STEPS_BEFORE)
    lab.net.cut(one, other)
    time.sleep(cut_s)
    lab.net.join(one, other)
    healed_s = now_s()
    step = lab.until_step(job, healed_s)
    lab.finish(job)
    return step.at_s - healed_s


def partition_s(lab: HostLab, vanishing: NetworkHost) -> float:
    """Return the seconds from the moment at which one of the two hosts of a job vanishes to the next step on the other."""
    job = lab.submit("partition", 1, 2, training_s=20.0)
    lab.client.resize(job, 2)
    lab.until_step(job, 0.0, world_size=2, count=_STEPS_BEFORE)
    vanishing.unplug()
    gone_s = now_s()
    step = lab.until_step(job, gone_s, world_size=1)
    vanishing.plug()
    lab.client.resize(job, None)
    lab.finish(job)
    lab.wait_for_hosts()
    return step.at_s - gone_s


def resize_pauses(
    lab: HostLab,
    hosts: Sequence[NetworkHost],
    size: str,
    folder: Path,
    *,
    mbit_per_s: float,
    times: int,
) -> list[float]:
    """Return the pauses of growing from one host to two whose links have this rate."""
    file = folder / "resized-steps"
    for host in hosts:
        host.limit(mbit_per_s)
    job = _train(lab, "resized", size, file, least=1, most=2)
    for wanted in [1, *([2, 1] * times)]:
        lab.client.resize(job, wanted)
        lab.until(
            f"steps of {wanted} ranks",
            lambda wanted=wanted: stamps.ends_with(stamps.read(file), _STEPS_BETWEEN, wanted) or None,  # type: ignore[misc]
        )
    _end(lab, job, hosts)
    return [one.pause_s for one in stamps.pauses(stamps.read(file)) if one.grows]


def slow_link_steps(
    lab: HostLab, hosts: Sequence[NetworkHost], folder: Path, *, mbit_per_s: float, most_steps: int
) -> tuple[int | None, int]:
    """Return the steps until a host with a slow link is named or left, and the number of other hosts that were named.

    The steps are None if it is neither within `most_steps`.
    """
    file, slow = folder / "slow-link-steps", hosts[1]
    for host in hosts:
        host.limit(mbit_per_s)
    job = _train(lab, "slow-link", SLOW_SIZE, file, least=len(hosts), most=len(hosts))
    lab.until("the first steps", lambda: len(stamps.read(file)) >= _STEPS_BEFORE or None)
    # A host that is named before its link is slow has not been named for its link.
    early = lab.named_slow(job)
    slow.limit(mbit_per_s / 10)
    before = len(stamps.read(file))
    found = None
    while (steps := len(stamps.read(file)) - before) < most_steps and found is None:
        time.sleep(POLL_S)
        if slow.name in lab.named_slow(job) - early or slow.name not in lab.client.job(job).allocation:
            found = steps
    wrong = early | lab.named_slow(job) - {slow.name}
    _end(lab, job, hosts)
    return found, len(wrong)


def _train(lab: HostLab, name: str, size: str, file: Path, *, least: int, most: int) -> str:
    """Submit a job that trains until it is cancelled, and return its id."""
    spec = {
        "name": name,
        "workdir": str(SCRIPTS),
        "run": f"python resizing.py {size} {file}",
        "elastic": {"min": least, "max": most},
        "checkpoint": {"every": "2h"},
    }
    return lab.client.submit(JobSpec.model_validate(spec)).id


def _end(lab: HostLab, job: str, hosts: Sequence[NetworkHost]) -> None:
    """Cancel a job, wait for its end, and remove the limits of the links."""
    lab.client.cancel(job, force=True)
    lab.until("the end of a job", lambda: lab.client.job(job).state in TERMINAL_STATES or None)
    for host in hosts:
        host.unlimit()
