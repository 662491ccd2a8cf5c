"""Scripts as users write them, composed from independent behaviours, and their training without Headway.

`train` is the script. It takes a run of Headway, or a `LoneRun`, with which plain PyTorch trains the same model on the same
samples. So a test compares each result with one that no code of Headway has touched but the order of the samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from headway.train.data.position import order
from headway.train.draws import draw

SAMPLES, BATCH, STEPS, SEED = 50, 12, 34, 7
WIDTH = 6
RATE = 0.05


@dataclass(frozen=True)
class Behaviour:
    """The actions of a script beside the loop of the guide.

    `frozen`: pairs of a step and the layers that train from it on; `once`: set in that step only. `groups`: `later` adds a
    group while it trains. `pace`: `skips` leaves some batches without a step, and `accumulates` steps in every second batch.
    `branch`: layers that some steps, or some rows, do not use. `rate`: `own`, `numpy` and `kept` set it in the loop from the step
    or from a counter given to prepare(), `counter` from one that is not, and `metric` from the rank's own loss. `extra`: what
    else the script keeps. `setting`: `once` sets a number and a mode of the model in the step `setting_at` only, `extra` changes a
    tensor that a module keeps beside its buffers, `replaced` gives the model another last layer after prepare(), `buffer`
    gives it a buffer while it trains, and `device` makes torch create tensors on a device without memory.
    """

    optimizer: str = "sgd"
    data: str = "draws"
    max_local: int | None = None
    frozen: tuple[tuple[int, tuple[str, ...]], ...] = ()
    once: bool = False
    groups: str = "one"
    group_at: int = 0
    pace: str = "every"
    branch: str = "none"
    rate: str = "fixed"
    extra: str = "none"
    clip: bool = False
    setting: str = "none"
    setting_at: int = 0

    @property
    def sentences(self) -> tuple[str, ...]:
        """Texts with which Headway may refuse this script or a change of its size; none if it has no reason to."""
        found: list[str] = []
        if self.groups == "later":
            found += ["MEMBER_DIFFERS: this process differs from those that train: parameter groups of"]
            found += ["parameter groups when it was saved, and has"]
        if self.pace == "accumulates":
            found += ["use max_local_batch (batch.max_local) to accumulate"]
        if self.rate in {"metric", "counter"}:
            found += ["REPLICAS_DIFFER: learning rate 0.0 is "]
        if self.setting == "buffer":
            found += ["MEMBER_DIFFERS: this process differs from those that train: object 0, late_mask: "]
        if self.extra == "array":
            found += ["the state of Extra cannot be kept in a checkpoint"]
        return tuple(found)


class Extra:
    """A state beside the model: a counter and values from numpy."""

    def __init__(self, kind: str) -> None:
        self.kind, self.count = kind, 0

    def state_dict(self) -> dict[str, Any]:
        best = {"numpy": np.float64(self.count / 3), "array": np.arange(3.0)}.get(self.kind, self.count / 3)
        return {"count": np.int64(self.count) if self.kind == "numpy" else self.count, "best": best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = int(state["count"])


class Gate(nn.Module):
    """A layer with a factor in its extra state, a number and another result in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = torch.ones(1, dtype=torch.float64)
        self.number = 1.0

    def get_extra_state(self) -> torch.Tensor:
        return self.factor

    def set_extra_state(self, state: torch.Tensor) -> None:
        self.factor = state.clone()

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows * self.factor * self.number * (1.0 if self.training else 0.9)


class Network(nn.Module):
    """Layers that are always used, one for some steps or rows, and one that trains later."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.branch, self.late, self.head = nn.Linear(4, WIDTH), nn.Linear(4, WIDTH), nn.Linear(WIDTH, 1)
        self.gate = Gate()

    def forward(self, rows: torch.Tensor, which: torch.Tensor | None) -> torch.Tensor:
        hidden = torch.tanh(self.first(rows)) + torch.tanh(self.late(rows))
        if which is not None and which.any():
            hidden = hidden.index_add(0, which.nonzero()[:, 0], torch.tanh(self.branch(rows[which])))
        result: torch.Tensor = self.head(self.gate(torch.tanh(self.second(hidden))))
        return result


class Script:
    """The objects of one script and its actions in a step."""

    def __init__(self, run: Any, behaviour: Behaviour) -> None:
        torch.manual_seed(3)
        self.run, self.behaviour = run, behaviour
        self.inputs = torch.randn(SAMPLES, 4, dtype=torch.float64)
        self.model = Network().double()
        self.model.late.requires_grad_(requires_grad=False)
        if behaviour.frozen:
            self._set_trained(0)
        self.optimizer = self._make_optimizer()
        self.extra = Extra(behaviour.extra)
        self.counter = 0
        self.last_loss = 0.0
        self.schedule: Any = None
        self.average: Any = None
        more: list[Any] = []
        if behaviour.rate == "lambda":
            more.append(LambdaLR(self.optimizer, lambda step: 1.0 / (1 + step)))
        if behaviour.extra == "ema":
            more.append(AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.8)))  # type: ignore[no-untyped-call]
        if behaviour.extra in {"numpy", "array", "count"} or behaviour.rate == "kept":
            more.append(self.extra)
        self.wrapped, self.optimizer, *given = run.prepare(self.model, self.optimizer, *more)
        self.schedule = given.pop(0) if behaviour.rate == "lambda" else None
        self.average = given.pop(0) if behaviour.extra == "ema" else None
        if behaviour.setting == "replaced":
            torch.manual_seed(5)
            self.model.head = nn.Linear(WIDTH, 1).double()
            self.optimizer.param_groups[0]["params"] = [
                one for name, one in self.model.named_parameters() if not name.startswith("late.")
            ]
        sizes = {"global_batch": BATCH, "max_local_batch": behaviour.max_local, "seed": SEED}
        if behaviour.data == "draws":
            self.data = run.indices(SAMPLES, **sizes)
        else:
            self.data = run.loader(range(SAMPLES), collate_fn=torch.tensor, **sizes)

    def _make_optimizer(self) -> torch.optim.Optimizer:
        model, groups = self.model, self.behaviour.groups
        early = [one for name, one in model.named_parameters() if not name.startswith("late.")]
        params: Any = early
        if groups == "two":
            head = set(model.head.parameters())
            params = [{"params": [one for one in early if one not in head]}]
            params.append({"params": list(model.head.parameters()), "lr": RATE / 2})
        if self.behaviour.optimizer == "adamw":
            return torch.optim.AdamW(params, lr=RATE, weight_decay=0.1)
        return torch.optim.SGD(params, lr=RATE, momentum=0.9)

    def _set_trained(self, step: int) -> None:
        begun, trained = max(one for one in self.behaviour.frozen if one[0] <= step)
        if self.behaviour.once and step not in {0, begun}:
            return
        for name in ("first", "second"):
            getattr(self.model, name).requires_grad_(name in trained)

    def begin_step(self, step: int) -> None:
        behaviour = self.behaviour
        if behaviour.frozen:
            self._set_trained(step)
        if (
            behaviour.groups == "later"
            and step >= behaviour.group_at
            and len(self.optimizer.param_groups) == 1
        ):
            self.model.late.requires_grad_(requires_grad=True)
            self.optimizer.add_param_group({"params": list(self.model.late.parameters()), "lr": RATE / 3})
        if behaviour.rate in {"own", "numpy", "kept", "counter", "metric"}:
            self._set_rate(step)
        if behaviour.setting == "once" and step == behaviour.setting_at:
            self.model.gate.number = 0.5
            self.model.gate.eval()
        if behaviour.setting == "buffer" and step == behaviour.setting_at:
            self.model.register_buffer("late_mask", torch.ones(3))

    def _set_rate(self, step: int) -> None:
        number = {"kept": self.extra.count, "counter": self.counter}.get(self.behaviour.rate, step)
        rate = RATE / (1 + 0.1 * number)
        if self.behaviour.rate == "metric":
            rate = RATE / (1 + self.last_loss)
        self.optimizer.param_groups[0]["lr"] = np.float64(rate) if self.behaviour.rate == "numpy" else rate

    def in_batch(self, step: int, indices: torch.Tensor) -> None:
        behaviour, rows = self.behaviour, self.inputs[indices]
        which = {
            "none": None,
            "steps": torch.full((len(rows),), fill_value=step % 3 == 0),
            "rows": rows[:, 0] > 1.0,
        }[behaviour.branch]
        if behaviour.pace != "accumulates":
            self.optimizer.zero_grad()
        loss = (self.wrapped(rows, which) - rows.sum(1, keepdim=True)).square().mean()
        loss.backward()
        self.last_loss = loss.item()
        if behaviour.clip and not self.run.accumulating:
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        if behaviour.pace == "skips" and step % 5 == 2:
            return
        if behaviour.pace == "accumulates" and step % 2 == 0:
            return
        self.optimizer.step()
        if behaviour.pace == "accumulates":
            self.optimizer.zero_grad()
        if self.schedule is not None:
            self.schedule.step()
        if self.run.stepped:
            self.extra.count += 1
            self.counter += 1
            if behaviour.setting == "extra":
                self.model.gate.factor = self.model.gate.factor * 0.99
            if self.average is not None:
                self.average.update_parameters(self.model)

    def result(self) -> dict[str, torch.Tensor]:
        """The weights, and those of the average."""
        found = dict(self.model.state_dict())
        if self.average is not None:
            found |= {f"average.{name}": one for name, one in self.average.module.state_dict().items()}
        return found


def train(
    run: Any, behaviour: Behaviour, in_body: Callable[[], None] = lambda: None
) -> dict[str, torch.Tensor]:
    """Train to the end, and return the final weights. `in_body` is called at the beginning of each step."""
    elsewhere = behaviour.setting == "device"
    with torch.device("meta") if elsewhere else nullcontext():
        with torch.device("cpu"):
            script = Script(run, behaviour)
        for step in run.train_steps(STEPS):
            in_body()
            with torch.device("cpu"):
                script.begin_step(step)
            for indices in script.data:
                with torch.device("cpu"):
                    script.in_batch(step, torch.as_tensor(indices))
    return script.result()


class LoneRun:
    """As much of a run as `train` uses, for one process without Headway: each step takes its whole batch at once."""

    accumulating = False
    stepped = True

    def prepare(self, *objects: Any) -> tuple[Any, ...]:
        return objects

    def indices(self, _population: int, **_sizes: object) -> Iterator[list[int]]:
        self._batches = [
            draw(SAMPLES, range(start, start + BATCH), seed=SEED) for start in range(0, STEPS * BATCH, BATCH)
        ]
        return self._taken()

    def loader(self, _dataset: object, **_sizes: object) -> Iterator[list[int]]:
        epochs = (order(SAMPLES, seed=SEED, epoch=epoch) for epoch in range(STEPS))
        self._batches = [one[start : start + BATCH] for one in epochs for start in range(0, SAMPLES, BATCH)]
        return self._taken()

    def train_steps(self, count: int) -> Iterator[int]:
        for self._step in range(count):
            yield self._step

    def _taken(self) -> Any:
        run = self

        class OfStep:
            def __iter__(self) -> Iterator[list[int]]:
                yield run._batches[run._step].tolist()

        return OfStep()


def expected_weights(behaviour: Behaviour) -> dict[str, torch.Tensor]:
    """Return the final weights of the script without Headway."""
    return train(LoneRun(), behaviour)
