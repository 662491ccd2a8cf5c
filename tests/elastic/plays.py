"""Random changes of members, losses, pauses and restarts of scripts with random behaviours, and what they must not do.

A play ends in one of two ways: with the weights of the same script without Headway, or with a sentence that names the
cause. Anything else is a fault.
"""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from headway.contract.manifest import MANIFEST
from headway.contract.orders import Order
from headway.contract.runtime import ENV_CHECKPOINT_EVERY_S, EXIT_STOPPED, Ready, Switched
from headway.storage.stores import Folder
from headway.train.checkpoint.sharded import read
from headway.train.checkpoint.stages import join_stages
from headway.train.checkpoint.store import Checkpoints
from tests.elastic.behaviours import STEPS, Behaviour, expected_weights
from tests.elastic.harness import Job
from tests.elastic.live import Live

MOST_RANKS = 3
TOLERANCE = 1e-6
_STEPS_EACH = 5
"""Steps that rank 0 may take after each event: a change needs up to three."""


@dataclass(frozen=True)
class Event:
    """`kept` of the members go on, by their places, with `joining` newcomers. `how`: `change`; `lose`: the others are killed;
    `pause`: all stop by request and as many as `joining` start from the checkpoint; `crash`: the same after a kill of all.
    """

    how: str
    kept: tuple[int, ...] = ()
    joining: int = 0


@dataclass(frozen=True)
class Play:
    """A script, its first size, and the events."""

    seed: int
    behaviour: Behaviour
    size: int
    events: tuple[Event, ...]


def random_play(seed: int) -> Play:
    """Return the play of this number."""
    rng = random.Random(seed)
    behaviour = random_behaviour(rng)
    size = present = rng.randint(1, MOST_RANKS)
    if behaviour.rate == "metric":
        size = present = max(2, size)
    events = []
    for number in range(rng.randint(2, 4)):
        hows = ["change", "change", "change", "lose", "pause", "crash"]
        if behaviour.rate == "counter" or (behaviour.rate == "metric" and number == 0):
            hows = ["change"]  # see `random_behaviour`
        how = rng.choice([one for one in hows if one != "lose" or present > 1])
        event = _event(rng, how, present, moves=behaviour.rate != "counter")
        present = len(event.kept) + event.joining
        events.append(event)
    return Play(seed, behaviour, size, tuple(events))


def _event(rng: random.Random, how: str, present: int, *, moves: bool) -> Event:
    if how in {"pause", "crash"}:
        return Event(how, joining=rng.randint(1, MOST_RANKS))
    if how == "lose":
        return Event(how, tuple(rng.sample(range(present), rng.randint(1, present - 1))))
    kept = tuple(rng.sample(range(present), rng.randint(0 if moves and rng.random() < 0.3 else 1, present)))
    least = 1 if len(kept) in {0, present} and len(kept) < MOST_RANKS else 0
    return Event(how, kept, rng.randint(least, MOST_RANKS - len(kept)))


def random_behaviour(rng: random.Random) -> Behaviour:
    """Return a script that does several things, of which at most one is a reason to refuse it.

    A script that keeps its own counter and does not give it to prepare() is wrong after every restart, and no program can
    know. So such a script only changes its members, where the learning rates differ. A rank's own metric differs from
    the first step on with two ranks.
    """
    layers = [(), ("first",), ("second",), ("first", "second")]
    behaviour = Behaviour(
        optimizer=rng.choice(["sgd", "adamw"]),
        data=rng.choice(["draws", "loader"]),
        max_local=rng.choice([None, 3, 5]),
        frozen=tuple((step, rng.choice(layers)) for step in (0, *sorted(rng.sample(range(2, 24), 3))))
        if rng.random() < 0.5
        else (),
        once=rng.random() < 0.5,
        groups=rng.choice(["one", "two"]),
        pace=rng.choice(["every", "every", "skips"]),
        branch=rng.choice(["none", "steps", "rows"]),
        rate=rng.choice(["fixed", "lambda", "own", "numpy", "kept"]),
        extra=rng.choice(["none", "ema", "numpy", "count"]),
        clip=rng.random() < 0.3,
    )
    without_schedule = "own" if behaviour.rate == "lambda" else behaviour.rate
    refusable: dict[str, dict[str, Any]] = {
        # Torch's schedule of one group raises an error once there are two.
        "later": {"groups": "later", "group_at": rng.randint(1, 14), "rate": without_schedule},
        "accumulates": {"pace": "accumulates", "max_local": None},
        "metric": {"rate": "metric", "max_local": None},
        "counter": {"rate": "counter"},
        "array": {"extra": "array"},
    }
    chosen = rng.choice([*refusable, *[""] * 5])
    setting = rng.choice(["none", "once", "extra"])
    return replace(
        behaviour, **refusable.get(chosen, {}), setting=setting, setting_at=rng.randint(0, STEPS // 2)
    )


@dataclass(frozen=True)
class Verdict:
    """The end of a play. `fault`: `silent`, `killed_healthy` or empty. `said`: the cause that the job named, if any."""

    fault: str
    said: str
    unreadable: tuple[str, ...]
    detail: str = ""

    @property
    def is_right(self) -> bool:
        return not self.fault and not self.unreadable


def perform(play: Play, make: Callable[..., Job]) -> Verdict:
    """Carry out a play with a job that `make` makes, and judge it."""
    behaviour = json.dumps(asdict(play.behaviour))
    job = make("behaving.py", "--behaviour", behaviour, **{ENV_CHECKPOINT_EVERY_S: "0.05"})
    job.arguments = [*job.arguments, "--result", str(job.folder)]
    live = Live(job)
    try:
        _carry_out(live, play)
        return _judge(live, play.behaviour)
    finally:
        job.end()


def _carry_out(live: Live, play: Play) -> None:
    live.start(play.size, steps=3)
    for event in play.events:
        live.until(lambda: live.held or _over(live))
        if _over(live):
            return
        if event.how in {"pause", "crash"}:
            _start_again(live, event)
        else:
            _change(live, event)
        if _failed(live):
            return
    live.allow_all()
    live.until(lambda: _over(live))


def _start_again(live: Live, event: Event) -> None:
    if event.how == "pause":
        for member in live.members:
            live.signal(member, signal.SIGTERM)
        live.allow(_STEPS_EACH)
        live.until(lambda: _over(live))
        if any(live.processes[one].code != EXIT_STOPPED for one in live.members):
            return
    else:
        for member in live.members:
            live.kill(member)
    live.generation = live._next_number()
    live.members = live._launch(event.joining, live.generation, range(event.joining), None)
    live.allow(_STEPS_EACH)


def _change(live: Live, event: Event) -> None:
    # Fewer than planned are left after an abandoned growth.
    places = [place for place in event.kept if place < len(live.members)] or [0][: len(event.kept)]
    kept = [live.members[place] for place in places]
    if event.how == "lose":
        for member in set(live.members) - set(kept):
            live.kill(member)
        order = live.survivors(kept)
    else:
        order = live.newcomers(kept, event.joining, ready=False)
        new = [one for one in order.members if one not in kept]
        live.until(lambda: all(live.processes[one].messages(Ready) for one in new) or _ended(live, new))
        if _ended(live, new) and kept:
            return  # the service has sent no order
    live.give(order)
    live.allow(_STEPS_EACH)
    _follow(live, order, kept)


def _follow(live: Live, order: Order, kept: list[str]) -> None:
    """Wait for the switch. If a newcomer ends by its own error, those that trained get the order of a loss."""
    new = [one for one in order.members if one not in kept]
    live.until(lambda: _all_switched(live) or _failed(live))
    if kept and _ended(live, new) and not _ended(live, kept):
        live.give(live.survivors(kept))
        live.until(lambda: _all_switched(live) or _failed(live))


def _all_switched(live: Live) -> bool:
    return all(
        any(one.generation == live.generation for one in live.processes[member].messages(Switched))
        for member in live.members
    )


def _ended(live: Live, members: list[str]) -> list[str]:
    """The members that ended by an error."""
    return [one for one in members if live.processes[one].code not in (None, 0)]


def _failed(live: Live) -> bool:
    return any(code not in (None, 0, EXIT_STOPPED) for code in _codes(live))


def _over(live: Live) -> bool:
    """True once all members have ended, or one by an error, after which no order follows."""
    return _failed(live) or None not in _codes(live)


def _codes(live: Live) -> list[int | None]:
    return [live.processes[member].code for member in live.members]


def _judge(live: Live, behaviour: Behaviour) -> Verdict:
    if _failed(live):
        for member in live.members:  # the rest say what they have to, as under an agent that lets them
            live.processes[member].handle.join(5.0)
    output = live.output()
    said = next((one for one in behaviour.sentences if one in output), "")
    unreadable = tuple(unreadable_checkpoints(live.job.checkpoints))
    detail = "" if _codes(live) != [0] * len(live.members) else _difference(live, behaviour)
    if _codes(live) != [0] * len(live.members):
        return Verdict("" if said else "killed_healthy", said, unreadable, f"codes {_codes(live)}:\n{output}")
    return Verdict("silent" if detail and not said else "", said, unreadable, f"{detail}\n{output}")


def _difference(live: Live, behaviour: Behaviour) -> str:
    """The first weights that differ from those without Headway, and by how much; empty if none do."""
    expected, size = expected_weights(behaviour), len(live.members)
    for rank in range(size):
        found = torch.load(live.job.folder / f"{rank}-of-{size}.pt", weights_only=True)
        for name, value in expected.items():
            if not torch.allclose(found[name], value, rtol=0, atol=TOLERANCE):
                return f"{name} of rank {rank} is off by {(found[name] - value).abs().max().item():.3g}"
    return ""


def unreadable_checkpoints(folder: Path) -> list[str]:
    """The complete checkpoints in this folder that cannot be read, with the reason."""
    if not folder.exists():
        return []
    store, tried, found = Checkpoints(Folder(folder), generation=1_000_000, keep=1), set(), []
    while (name := store._newest(tried)) is not None:
        tried.add(name)
        if not (folder / str(name) / MANIFEST).exists():
            continue  # a rank was killed in the middle of this save
        try:
            trees, tensors = read(
                store.storage, str(name), store._manifest(name).parts, into=None, group=None
            )
            join_stages(trees, tensors)
        except (OSError, ValueError, TypeError) as error:
            found.append(f"{name}: {error}")
    return found
