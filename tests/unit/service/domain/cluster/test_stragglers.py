"""Marked slots are left only where free ones of their pool replace them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from headway.contract.views.jobs import JobState
from service.domain.cluster.snapshot import SlotKey, Snapshot
from service.domain.cluster.stragglers import without_stragglers
from service.domain.nodes.stragglers import HALF_LIFE_S, LEAST_TIMES, LONGEST, StragglerMark
from tests.unit.service.builders import NOW, clusters


def keys_of(snapshot: Snapshot) -> list[SlotKey]:
    return [SlotKey(node.id, slot) for node in snapshot.nodes.values() for slot in node.slots]


@given(st.data())
def test_no_job_loses_a_slot_that_none_replaces(data: st.DataObject) -> None:
    snapshot = data.draw(clusters())
    keys = keys_of(snapshot)
    chosen = data.draw(st.sets(st.sampled_from(keys))) if keys else set()
    marked = replace(snapshot, stragglers=dict.fromkeys(chosen, "it is slow"))
    seen = without_stragglers(marked)
    hidden = set(keys) - set(keys_of(seen))
    assert hidden <= chosen
    assert all(seen.nodes[key.node_id].quarantined[key.slot] == "it is slow" for key in hidden)
    left = Counter(marked.pool_of(key) for key in hidden if key in marked.held)
    free = Counter(marked.pool_of(key) for key in marked.free if key not in chosen)
    assert left <= free
    assert all(marked.jobs[marked.held[key]].live for key in hidden if key in marked.held)
    waiting = [job.spec for job in marked.jobs.values() if job.state is JobState.PENDING]
    assert not any(pool.serves(spec) for pool in map(marked.pool_of, hidden) if pool for spec in waiting), (
        "while a job waits, a slow slot is better than none"
    )


@given(st.floats(LEAST_TIMES, 1e3), st.floats(0.0, 20 * HALF_LIFE_S), st.floats(0.0, HALF_LIFE_S))
def test_a_mark_fades_and_does_not_come_back(times: float, age_s: float, more_s: float) -> None:
    mark = StragglerMark(node_id="n", slot=0, job="job", times=times, marked_at=NOW)
    assert mark.counts(NOW)
    before, after = (NOW + timedelta(seconds=one) for one in (age_s, age_s + more_s))
    assert mark.counts(before) >= mark.counts(after)
    assert not mark.counts(NOW + LONGEST)
