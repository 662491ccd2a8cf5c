"""The other pages: the cluster, nodes, money, rounds, what-if questions, and what people type."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from headway.contract.agents import NodeState
from headway.contract.health import FaultCause, FaultGrade, QuarantineView
from headway.contract.values.markets import Market
from headway.contract.views.decisions import ClusterView, KindView, RoundView, RowPrice
from headway.contract.views.jobs import JobProgress, JobState
from headway.contract.views.nodes import NodeView, SlotView
from headway.contract.views.simulations import AddNodes, KillNode, SimulationRequest
from headway.errors import HeadwayError
from headway.jobfile import MOST_CHARACTERS
from service.console.html.fragments import Fragment, Listing
from service.console.pages.cluster import cluster_page, words_of_slots
from service.console.pages.node import node_fragments
from service.console.pages.rounds import rounds_page
from service.console.pages.simulations import question
from service.console.pages.submit import EXAMPLE, read_job_file
from service.console.templates import Templates, as_data
from tests.unit.headway.stub import job_view

NOW = datetime(2026, 11, 22, tzinfo=UTC)
FRAME = {
    "question": "Sure?",
    "action": "/",
    "fields": {},
    "remark": "",
    "back": "/",
    "csrf": "",
    "assets": "",
    "stream": "",
    "page": "",
    "added": (),
    "sight": SimpleNamespace(may_control=True),
    "signed_in": True,
    "who": "",
    "done": "",
}
"""The values of the frame of every page."""
ILL = QuarantineView(
    slot=1, grade=FaultGrade.FATAL, cause=FaultCause.XID, message="Xid 79: it fell off the bus", since=NOW
)


def node(state: NodeState = NodeState.READY) -> NodeView:
    return NodeView(
        id="n1",
        name='gpu<1">',
        state=state,
        message="",
        address="10.0.0.1",
        slots=[
            SlotView(index=0, device_kind="a100", job_id="j1", job_name="train"),
            SlotView(index=1, device_kind="a100", quarantine=ILL),
            SlotView(index=2, device_kind="a100", job_id="", job_name="another project"),
            SlotView(index=3, device_kind="a100"),
        ],
        lease_remaining_s=9,
        joined_at=NOW,
        agent_version="0",
        market=Market.SPOT,
        usd_per_slot_h=1.5,
        container_engine="podman",
    )


def cluster() -> ClusterView:
    kind = KindView(
        device_kind="a100", market=Market.SPOT, slots=4, in_service=4, held=2, free=2, usd_per_slot_h=1.5
    )
    return ClusterView(
        nodes={NodeState.READY: 1},
        kinds=[kind],
        jobs={JobState.RUNNING: 1, JobState.RESIZING: 1, JobState.PENDING: 2},
        usd_per_h=3.0,
        policy="goodput",
        parameters={},
        policies=[],
    )


def test_the_cluster_in_a_sentence_and_a_node_in_words() -> None:
    page = cluster_page(cluster(), [node()], [], None, {}, {})
    assert page.headline == "2 of 4 slots are at work. 2 jobs are pending."
    assert [one.value for one in page.figures if one.label == "Jobs"] == ["2 running"]
    (tile,) = page.tiles
    assert tile.label == "2 of 4 slots at work: 1 for train and 1 for another project; 1 in quarantine"
    assert tile.cells[1:] == ("free ill", "other", "free")
    assert (tile.pool, tile.price) == ("a100 (spot)", "$6.00/h")


def test_cluster_without_prices_shows_no_spending() -> None:
    priced = cluster()
    kinds = [priced.kinds[0].model_copy(update={"usd_per_slot_h": None})]
    free = priced.model_copy(update={"kinds": kinds, "usd_per_h": 0.0})
    labels = [
        [one.label for one in cluster_page(view, [node()], [], None, {}, {}).figures]
        for view in (priced, free)
    ]
    assert [("Spending" in one) for one in labels] == [True, False]


def test_every_list_names_a_state_alike_and_shows_priority_and_end() -> None:
    pending = job_view(JobState.PENDING, allocation={}, size=0, started_at=None)
    running = job_view(
        progress=JobProgress(
            samples=100, total_samples=1000, progress=100.0, total_progress=1000.0, samples_per_s=10.0
        )
    )
    page = cluster_page(cluster(), [node()], [pending, running], None, {}, {})
    assert [one.state for one in (*page.waiting, *page.working)] == ["pending", "running"]
    assert page.waiting[0].notes == (f"priority {pending.spec.priority}",)
    assert page.working[0].notes == ("10 samples/s", "ends in 1m30s", f"priority {running.spec.priority}")
    assert page.tiles[0].marks == ("tn", "", "", "")
    html = Templates().page("confirm.html", {**FRAME, "verb": "cancel"})
    assert 'class="button primary danger">Yes, cancel' in html
    assert "danger" not in Templates().page("confirm.html", {**FRAME, "verb": "pause"})


def test_names_cannot_break_out_of_the_html() -> None:
    templates = Templates()
    page = cluster_page(cluster(), [node()], [], None, {}, {})
    drawn = []
    for content in page.contents():
        drawn += [
            templates.fragment(one)
            for one in (content.fragments if isinstance(content, Listing) else [content])
        ]
    html = "".join(drawn)
    assert "gpu&lt;1&#34;&gt;" in html
    assert "gpu<1" not in html
    assert as_data({"a": "</script><!--"}) == '{"a":"\\u003c/script\\u003e\\u003c!--"}'


@pytest.mark.parametrize(
    ("state", "may_operate", "verbs"),
    [
        (NodeState.READY, True, ("cordon", "drain")),
        (NodeState.CORDONED, True, ("uncordon", "drain")),
        (NodeState.DRAINED, True, ("uncordon",)),
        (NodeState.LOST, True, ()),
        (NodeState.READY, False, ()),
    ],
)
def test_only_what_may_be_done_with_a_node_is_offered(
    state: NodeState, may_operate: bool, verbs: tuple[str, ...]
) -> None:
    head, listing = node_fragments(node(state), may_operate=may_operate, colours={})
    assert isinstance(head, Fragment)
    assert isinstance(listing, Listing)
    first, second = (one.value for one in listing.fragments[:2])
    assert head.value.verbs == verbs
    assert first.verbs == (("quarantine",) if may_operate else ())
    assert second.verbs == (("release",) if may_operate else ())
    assert second.problem == "in quarantine, fatal: Xid 79: it fell off the bus"
    assert words_of_slots([]) == "no slots"
    assert head.value.engine == "Podman"


def test_rounds_say_how_good_they_are_and_what_was_scarce() -> None:
    one = RoundView(
        id="r1",
        at=NOW,
        took_s=0.05,
        policy="goodput",
        inputs_digest="",
        status="optimal",
        objective=1,
        bound=1,
        gap=0.0,
        unit="speedup",
        prices=[RowPrice(name="slots/a100", capacity=4, used=4, price=0.5)],
        jobs=1,
    )
    page = rounds_page([one], {})
    assert page.rows[0].quality == "optimal under the model, gap 0.00 %"
    assert page.charts[1].words == "Value of one more unit in the latest round: slot of a100 0.5 (speedup)."
    assert rounds_page([], {}).charts[0].words == "No round has been decided yet."


def test_questions_in_words() -> None:
    changes = (AddNodes(device_kind="a100", nodes=1), KillNode(node="gpu-3"))
    assert (
        question(SimulationRequest(changes=changes))
        == "What if the cluster gained 1 a100 node and gpu-3 failed?"
    )
    assert question(SimulationRequest()) == "What if nothing changed?"


def test_the_example_is_a_job() -> None:
    spec = read_job_file(EXAMPLE)
    assert spec.elastic.max == 4
    assert "headway.init()" in spec.run


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("x" * (MOST_CHARACTERS + 1), "more than"),
        ("a: &a [1]\nb: [" + ", ".join(["*a"] * 21) + "]", "aliases"),
        ("{" * 65_000, "nested"),
        ("name: [", "job file"),
        ("name: a\nrun: b\nworkdir: .", "headway submit"),
        ("name: a\nrun: b\nprority: 3", "prority"),
        ("", "job file"),
    ],
)
def test_what_is_no_job_is_said(text: str, complaint: str) -> None:
    with pytest.raises(HeadwayError, match=complaint):
        read_job_file(text)
