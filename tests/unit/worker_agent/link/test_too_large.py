"""EventWriter that are too large for the service hold up nothing behind them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from headway.contract.agents import (
    AnyEntry,
    JoinReply,
    RankExited,
    RankMessage,
    RanksHung,
    Released,
    ReportReply,
    ReportRequest,
    StartFailed,
)
from worker_agent.link.outbox import Draft, Outbox
from worker_agent.link.reporter import Reporter
from worker_agent.link.service_api import Membership, Refused, ServiceApi
from worker_agent.link.truncation import truncated

MOST_BYTES = 4000
_OF = {"sequence": 1, "job_id": "j00000001", "generation": 1, "at": datetime(2026, 11, 1, tzinfo=UTC)}


@dataclass
class Service:
    """Takes reports of so many bytes, and no job called `bad`."""

    taken: list[AnyEntry] = field(default_factory=list)
    largest: int = 0

    def report(self, request: ReportRequest) -> ReportReply:
        size = len(request.model_dump_json())
        if size > MOST_BYTES:
            raise Refused(413, "a request to this address may have 4000 bytes at most")
        if any(getattr(entry, "job_id", "") == "bad" for entry in request.entries):
            raise Refused(422, "entries: no such job")
        self.largest = max(self.largest, size)
        self.taken += request.entries
        return ReportReply(lease_s=60.0)


class Listener:
    def lease_renewed(self, deadline_s: float, stop: list[Any]) -> None:
        pass

    def refused(self, error: Refused) -> None:
        raise error


@pytest.fixture
def outbox(tmp_path: Path) -> Iterator[Outbox]:
    made = Outbox(tmp_path / "journal")
    yield made
    made.close()


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def reporter(outbox: Outbox, service: Service) -> Reporter:
    membership = Membership()
    membership.update(
        JoinReply(
            node_id="n",
            node_token="t",
            redis_url="redis://r",
            stream="s",
            lease_s=60.0,
            report_every_s=0.0,
            renew_credentials_s=86_400.0,
        )
    )
    return Reporter(
        api=cast("ServiceApi", service),
        keys=cast("Any", None),
        membership=membership,
        outbox=outbox,
        request=cast("Any", Joined()),
        holding=list,
        health=list,
        probe=lambda slots: None,
        reach=lambda peers: None,
        listener=Listener(),
        stopping=threading.Event(),
    )


class Joined:
    instance = "instance-of-the-agent"
    name = "alpha"


def exited(rank: int, lines: int) -> Draft:
    return lambda sequence, at: RankExited(
        sequence=sequence,
        job_id="j00000001",
        generation=1,
        at=at,
        rank=rank,
        exit_code=1,
        log_tail=["x" * 100] * lines,
    )


def metrics(characters: int) -> Draft:
    return lambda sequence, at: RankMessage(
        sequence=sequence,
        job_id="j00000001",
        generation=1,
        at=at,
        rank=0,
        message={"type": "metrics", "values": {"x" * characters: 1.0}},
    )


def released(job: str = "j00000001") -> Draft:
    return lambda sequence, at: Released(sequence=sequence, job_id=job, generation=1, at=at)


def send_all(reporter: Reporter, outbox: Outbox) -> None:
    for _ in range(40):
        if outbox.empty():
            return
        reporter.run_once()
    raise AssertionError("news are held up")


def test_many_news_go_in_several_reports(reporter: Reporter, outbox: Outbox, service: Service) -> None:
    for rank in range(20):
        outbox.add(exited(rank, 5), urgent=True)
    send_all(reporter, outbox)
    assert [entry.rank for entry in service.taken if isinstance(entry, RankExited)] == list(range(20))
    assert all(isinstance(entry, RankExited) and len(entry.log_tail) == 5 for entry in service.taken)
    assert service.largest <= MOST_BYTES


def test_one_that_is_too_large_goes_without_its_long_parts(
    reporter: Reporter, outbox: Outbox, service: Service
) -> None:
    outbox.add(exited(0, 100), urgent=True)
    outbox.add(metrics(9000), urgent=True)
    outbox.add(released(), urgent=True)
    send_all(reporter, outbox)
    first, second = service.taken
    assert isinstance(first, RankExited)
    assert (first.exit_code, first.log_tail) == (1, [])
    assert isinstance(second, Released), "metrics are made up for by later ones"


def test_one_that_the_service_cannot_take_is_dropped_alone(
    reporter: Reporter, outbox: Outbox, service: Service
) -> None:
    for job in ("j00000001", "bad", "j00000002"):
        outbox.add(released(job), urgent=True)
    send_all(reporter, outbox)
    assert [entry.job_id for entry in service.taken if isinstance(entry, Released)] == [
        "j00000001",
        "j00000002",
    ]


@pytest.mark.parametrize(
    "entry",
    [
        RankExited(**_OF, rank=1, signal=9, log_tail=["a" * 1000]),
        RanksHung(**_OF, silent_s=9.0, usual_s=1.0, stacks=["b" * 1000]),
        StartFailed(**_OF, message="c" * 1000, retryable=True),
        RankMessage(**_OF, rank=0, message={"type": "completed", "samples": 7, "note": "d" * 1000}),
    ],
)
def test_what_a_job_needs_stays(entry: AnyEntry) -> None:
    smaller = truncated(entry)
    assert smaller is not None
    assert len(smaller.model_dump_json()) < 900
    assert smaller.sequence == entry.sequence
    assert truncated(smaller) is None or isinstance(smaller, StartFailed)


def test_what_has_nothing_long_is_not_sent_again() -> None:
    assert truncated(Released(**_OF)) is None
    assert truncated(RankExited(**_OF, rank=1, exit_code=0)) is None
