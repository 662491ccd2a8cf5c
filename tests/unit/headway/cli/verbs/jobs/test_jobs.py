from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType

from headway.cli.render import jobs as render
from headway.cli.render import nodes as render_nodes
from headway.contract.agents import NodeState
from headway.contract.health import FaultCause, FaultGrade, QuarantineView
from headway.contract.run_facts import LossRate
from headway.contract.spec_parts import PartialBackprop
from headway.contract.views.forecasts import KeptForecast, SearchPhase, SearchView
from headway.contract.views.jobs import JobProgress, JobState
from tests.unit.headway.stub import NOW, event_view, job_view, node_view


def text(renderable: RenderableType) -> str:
    console = Console(file=io.StringIO(), width=160, markup=False, highlight=False)
    console.print(renderable)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_table_of_jobs():
    heading, row, pinned = text(
        render.jobs_table(
            [job_view(), job_view(name="gpt", pinned_size=2, message="[waits] for 2 slots")], NOW
        )
    ).splitlines()
    assert heading.split() == ["NAME", "STATE", "SIZE", "PROGRESS", "SAMPLES/S", "AGE", "WHY"]
    assert row.split() == ["digits", "RUNNING", "2/1-4", "50%", "500/1,000", "50", "2m00s", "training"]
    assert "2/1-4=" in pinned
    assert "[waits] for 2 slots" in pinned


def test_owners_are_a_column_where_there_is_room():
    table = render.jobs_table([job_view(owner="ada"), job_view()], NOW, owners=True)
    assert [line.split()[:2] for line in text(table).splitlines()] == [
        ["NAME", "OWNER"],
        ["digits", "ada"],
        ["digits", "-"],
    ]


@pytest.mark.parametrize(("owner", "said"), [("robot ci", "robot ci"), (None, "-")])
def test_the_page_of_a_job_names_its_owner(owner: str | None, said: str):
    lines = text(render.job_page(job_view(owner=owner), [], NOW)).splitlines()
    assert [line.split(maxsplit=1) for line in map(str.strip, lines) if line.startswith("owner")] == [
        ["owner", said]
    ]


def test_the_page_of_a_job_shows_all_of_it():
    progress = JobProgress(
        samples=500,
        total_samples=1000,
        samples_per_s=50,
        metrics={"accuracy": 0.97123},
        checkpoint_samples=400,
        checkpoint_every_s=270,
        losses=LossRate(per_h=0.121, at=NOW),
        lost_samples=16,
        lost_steps=1,
        pause_s=0.0312,
        global_batch=1024,
        max_global_batch=4096,
        epochs_audited=2,
        epochs_exact=2,
    )
    shown = text(
        render.job_page(job_view(progress=progress, preemptions=3), [event_view(7, "grew to 2")], NOW)
    )
    for expected in (
        "python digits.py",
        "local-1: 0-1",
        "about 10s to go",
        "accuracy 0.9712",
        "at 400 samples, one every 4m30s for 0.12 expected losses per hour; 16 samples were trained twice",
        "2 of 2 complete ones saw every sample exactly once",
        "3 preemptions",
        "1,024 samples a step, may grow to 4,096",
        "the last one in place paused training for 0.03 s; 1 step was done again after losses",
        "2: 2 members; attempt 1",
        "grew to 2",
    ):
        assert expected in shown


def test_the_page_of_a_job_shows_its_search_and_its_forecasts():
    kept = KeptForecast(
        share=0.1,
        at=NOW,
        samples=100,
        device_kind="cpu",
        slots=2,
        time_s=120,
        time_p90_s=150,
        cost_usd=0.5,
        cost_p90_usd=0.6,
    )
    search = SearchView(
        mode="full",
        phase=SearchPhase.SETTLED,
        device_kind="cpu",
        slots=2,
        place="2 cpu slots",
        visited=2,
        visits=3,
        skipped=1,
        time_s=12.3,
        overhead_s=4.2,
        overhead_share=0.031,
        bound=0.1,
        reason="the fastest known configuration",
    )
    ended = kept.model_copy(update={"took_s": 100.0, "cost_was_usd": 0.4})
    progress = JobProgress(forecasts=[kept.model_copy(update={"share": 0.0}), ended], search=search)
    shown = text(render.job_page(job_view(progress=progress), [], NOW))
    assert (
        "full, settled on 2 cpu slots: the fastest known configuration; 2 of 3 configurations seen in 12.3 s, 4.2 s lost"
        in shown
    )
    assert "3.1% of the run (at most 10%)" in shown
    assert "at the submit: 2m00s (P90 2m30s), $0.50 on 2 cpu" in shown
    assert "after 10% of the work: 2m00s (P90 2m30s), $0.50 on 2 cpu; it took 1m40s, $0.40: +20.0%" in shown


def test_the_page_of_a_job_that_has_not_begun():
    shown = text(
        render.job_page(
            job_view(JobState.PENDING, started_at=None, allocation={}, progress=JobProgress()), [], NOW
        )
    )
    assert "none reported" in shown
    assert "none in place" in shown
    assert "last events" not in shown


def test_the_table_of_nodes_says_which_slots_nobody_gets_and_why():
    node = node_view(NodeState.READY, ("digits", None, None))
    node.message = "is back"
    for slot, grade, probe_at in ((0, FaultGrade.FATAL, None), (2, FaultGrade.SUSPICIOUS, NOW)):
        node.slots[slot].quarantine = QuarantineView(
            slot=slot, grade=grade, cause=FaultCause.XID, message=f"Xid {slot}", since=NOW, probe_at=probe_at
        )
    node.slots[1].slow = "3.1 times"
    shown = " ".join(text(render_nodes.nodes_table([node])).split())
    assert "digits 0, free 1, quarantined 2" in shown
    assert "slot 1: 3.1 times" in shown
    lines = [render_nodes.quarantine(one) for one in (slot.quarantine for slot in node.slots) if one]
    local = NOW.astimezone()
    assert lines == [
        f"in quarantine since {local:%m-%d %H:%M:%S}, fatal: Xid 0; until it is released",
        f"in quarantine since {local:%m-%d %H:%M:%S}, suspicious: Xid 2; next probe {local:%H:%M:%S}",
    ]


def test_the_table_of_nodes_says_who_holds_which_slot():
    node = node_view(NodeState.DRAINING, ("digits", "digits", None, "digits"))
    node.lease_remaining_s = -3
    row = text(render_nodes.nodes_table([node])).splitlines()[1]
    assert "digits 0-1,3, free 2" in row
    assert "3/4" in row
    assert "over" in row
    node.container_engine = "podman"
    assert "podman" in text(render_nodes.nodes_table([node]))


@given(st.sets(st.integers(0, 200)))
def test_ranges_say_exactly_the_numbers(numbers: set[int]):
    said: set[int] = set()
    for part in filter(None, render.ranges(numbers).split(",")):
        first, _, last = part.partition("-")
        said |= set(range(int(first), int(last or first) + 1))
    assert said == numbers


def test_progress_without_a_known_end():
    assert render.progress(JobProgress()) == "-"
    assert render.progress(JobProgress(samples=1234)) == "1,234 samples"
    assert render.eta(JobProgress(samples=1234, samples_per_s=1)) == "end not known yet"
    assert render.progress(JobProgress(samples=1001, total_samples=1000)) == "100% 1,001/1,000"


def test_progress_of_an_adaptive_batch_shows_both_counts():
    done = JobProgress(
        samples=910, total_samples=1000, progress=740.0, total_progress=1000.0, dataset_samples=100,
        samples_per_s=50.0, efficiency=0.5,
    )  # fmt: skip
    assert render.progress(done) == "74% epoch 7.4 of 10 (progress), 9.1 read"
    assert render.eta(done) == "about 10s to go"
    shown = text(render.job_page(job_view(progress=done), [], NOW))
    assert "epoch 7.4 of 10 (progress), 9.1 read" in shown
    no_total = JobProgress(samples=5, progress=5.0, total_progress=20.0)
    assert render.progress(no_total) == "25% 5/20"


def test_progress_of_a_script_that_counts_steps():
    done = JobProgress(samples=740, total_samples=1000, train_step=740, train_steps=1000, samples_per_s=10.0)
    assert render.progress(done) == "74% step 740 of 1,000"
    ended = done.model_copy(update={"draws": True, "epochs_audited": 1, "epochs_exact": 1})
    assert "740 exactly once" in text(render.job_page(job_view(progress=ended), [], NOW))


def test_audits_of_a_job_that_lost_gradients_promise_nothing():
    lost = JobProgress(
        samples=740, epochs_audited=2, epochs_exact=2, warnings=["3 batches"], gradients_lost=True
    )
    assert "every sample exactly once, but gradients were lost (see the warning)" in flat(lost)
    assert "exactly once" not in flat(lost.model_copy(update={"draws": True}))
    assert "exactly once" not in flat(lost.model_copy(update={"shards": 12}))


def test_the_audit_of_a_stream_says_which_promise_holds():
    done = JobProgress(samples=740, train_step=740, train_steps=1000, shards=12)
    assert "12 shards read to the end; each sample exactly once" in flat(done)
    repeated = done.model_copy(update={"repeated_samples": 30, "repeated_shards": 2, "epochs_exact": 1})
    assert "at most one shard's tail repeated for each lost rank (30 samples of 2 shards)" in flat(repeated)


def flat(done: JobProgress) -> str:
    return " ".join(text(render.job_page(job_view(progress=done), [], NOW)).split())


TRACEBACK = "rank 0 exited with code 1; its last lines:\nTraceback:\n  File\nValueError: no data"


def test_a_traceback_takes_one_line_where_jobs_and_events_are_listed():
    short = "rank 0 exited with code 1; its last lines: … ValueError: no data"
    clause = "rank 0 exited with code 1 … ValueError: no data"
    assert clause in text(render.jobs_table([job_view(message=TRACEBACK)], NOW))
    assert short in text(render.job_page(job_view(), [event_view(7, TRACEBACK)], NOW))


def test_ps_shows_the_first_clause_of_a_reason_and_describe_the_whole():
    why = "needs at least 2 slots, and 0 of 4 are left; held by other (4); nobody is stopped for less gain"
    listed = text(render.jobs_table([job_view(message=why)], NOW))
    assert "needs at least 2 slots, and 0 of 4 are left" in listed
    assert "held by" not in listed
    assert "held by other (4); nobody is stopped" in " ".join(
        text(render.job_page(job_view(message=why), [], NOW)).split()
    )
    assert render.clause("x" * 200) == "x" * 79 + "…"
    assert render.clause(f"code 1: {'y' * 100}\nlog\n{'y' * 100}") == f"code 1: {'y' * 71}…"
    assert render.clause("code 1: bad\u2028name") == "code 1: bad\u2028name"


def test_a_screen_that_is_watched_has_a_line_for_each_job():
    jobs = [job_view(message="waits for a very good reason " * 20)] * 3
    lines = text(render.jobs_table(jobs, NOW, one_line=True)).splitlines()
    assert len(lines) == 4
    assert all(line.rstrip().endswith("…") for line in lines[1:])


def test_the_history_has_all_of_a_traceback_indented():
    first, *others = render.event_line(event_view(7, TRACEBACK)).plain.splitlines()
    assert first.endswith("its last lines:")
    assert [line[:9].strip() for line in others] == ["", "", ""]
    assert others[-1].strip() == "ValueError: no data"


def test_a_job_that_changed_in_place_and_never_lost_a_step():
    shown = text(render.job_page(job_view(size=1, progress=JobProgress(pause_s=0.5)), [], NOW))
    assert "paused training for 0.50 s; no step was done again" in shown
    assert "2: 1 member; attempt 1" in shown


def test_a_job_with_partial_gradients_says_so():
    whole = job_view()
    elastic = whole.spec.elastic.model_copy(update={"partial_backprop": PartialBackprop(min_depth=0.25)})
    part = whole.model_copy(update={"spec": whole.spec.model_copy(update={"elastic": elastic})})
    assert "of the last 25% to all of the layers" in text(render.job_page(part, [], NOW))
    assert "gradients" not in text(render.job_page(whole, [], NOW))


def test_an_ended_job_has_a_speed_and_no_time_to_go():
    done = JobProgress(samples=1000, total_samples=1000, samples_per_s=50)
    shown = text(render.job_page(job_view(JobState.SUCCEEDED, progress=done), [], NOW))
    assert "50 samples/s" in shown
    assert "to go" not in shown
    assert "no members" in text(render.job_page(job_view(JobState.SUCCEEDED, size=0), [], NOW))


@pytest.mark.parametrize(
    ("kind", "state", "message"),
    [
        ("prepare", JobState.RESIZING, "from 1 to 2 slots, as requested"),
        ("order", JobState.RESIZING, "the new rank is ready; the switch is ordered"),
        ("switch", JobState.RUNNING, "grew from 1 to 2 slots in place: paused 0.03 s"),
        ("lose", JobState.RECOVERING, "rank 1 was killed by SIGKILL; 1 of 2 ranks go on in place"),
        ("abandon", JobState.RUNNING, "stays at 1 slot: a new rank failed"),
        ("batch_changed", JobState.RUNNING, "steps take 128 samples from now on"),
    ],
)
def test_the_history_of_a_change_in_place_is_in_columns(kind: str, state: JobState, message: str):
    event = event_view(7, message).model_copy(update={"kind": kind, "state": state, "generation": 12})
    line = render.event_line(event).plain
    assert line[9:].startswith(f"{kind:<18} {state:<10} gen 12  {message}")
