"""Lightning's loop trains as a plain one does: the same steps, the same numbers, the same checkpoints."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

from headway.train.session import Run
from tests.unit.headway.train.test_session import make_run, messages

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning has many, for people

EPOCHS, SAMPLES = 3, 22


def data() -> TensorDataset:
    x = torch.linspace(-1, 1, SAMPLES).unsqueeze(1)
    return TensorDataset(x, 3 * x + 1)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1))


def new_module() -> Any:
    """A module of Lightning, which takes seconds to import: not to be done where tests are only collected."""
    pl = pytest.importorskip(
        "lightning.pytorch", reason="LIGHTNING IS NOT TESTED: pip install 'headway[lightning]'"
    )

    class Fitted(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.network = network()
            self.seen: list[int] = []

        def training_step(self, batch: Any, _number: int) -> Any:
            x, y = batch
            loss = mse_loss(self.network(x), y)
            self.log("loss", loss, on_step=True, on_epoch=False)
            return loss

        def validation_step(self, batch: Any, _number: int) -> None:
            x, y = batch
            self.log("error", mse_loss(self.network(x), y))

        def on_train_epoch_start(self) -> None:
            self.seen.append(self.current_epoch)

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.Adam(self.parameters(), lr=0.05)
            return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)]

    return Fitted()


def new_trainer(run: Run, **arguments: Any) -> Any:
    from headway.integrations.lightning import elastic_trainer  # noqa: PLC0415

    return elastic_trainer(run, enable_model_summary=False, **arguments)


def fit(run: Run, epochs: int | None = EPOCHS, **arguments: Any) -> Any:
    module = new_module()
    trainer = new_trainer(run, max_epochs=epochs, log_every_n_steps=1, gradient_clip_val=0.5, **arguments)
    loader = run.loader(data(), global_batch=8, max_local_batch=3)
    trainer.fit(module, loader, DataLoader(data(), batch_size=SAMPLES))
    return module


def plain(run: Run, epochs: int = EPOCHS) -> nn.Module:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    wrapped, optimizer, schedule = run.prepare(model, optimizer, schedule)
    loader = run.loader(data(), global_batch=8, max_local_batch=3)
    for _ in run.epochs(epochs):
        for x, y in loader:
            loss = mse_loss(wrapped(x), y)
            optimizer.zero_grad()
            loss.backward()
            if not run.accumulating:
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
        schedule.step()
    return model


def plain_steps(run: Run, steps: int) -> nn.Module:
    """Like `plain`, with the schedule after each epoch of three steps."""
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    wrapped, optimizer, schedule = run.prepare(model, optimizer, schedule)
    loader = run.loader(data(), global_batch=8)
    for step in run.train_steps(steps):
        for x, y in loader:
            loss = mse_loss(wrapped(x), y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
        if step % 3 == 2:
            schedule.step()
    return model


def assert_close(ours: nn.Module, theirs: nn.Module) -> None:
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_it_trains_as_a_plain_loop_does(tmp_path: Path) -> None:
    """Steps of 8, 8 and 6 samples in passes of at most 3; in the end a checkpoint, and every sample once an epoch."""
    run = make_run(control=tmp_path, checkpoint_uri=str(tmp_path / "kept"))
    module = fit(run)
    assert module.seen == [0, 1, 2]
    assert (run.steps, module.trainer.global_step, module.trainer.current_epoch) == (9, 9, 3)
    for ours, theirs in zip(plain(make_run()).parameters(), module.network.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert [audit["exactly_once"] for audit in messages(tmp_path, "epoch_closed")] == [True] * 3
    assert [done["samples"] for done in messages(tmp_path, "completed")] == [3 * SAMPLES]
    reported = messages(tmp_path, "metrics")
    assert [one["samples"] for one in reported if "error" in one["values"]] == [22, 44, 66]
    # The last of the passes of a step is logged once it is committed.
    losses = {one["samples"] for one in reported if "loss" in one["values"]}
    assert losses == {0, 8, 16, 22, 30, 38, 44, 52, 60, 66}


def test_it_goes_on_where_the_checkpoint_is(tmp_path: Path) -> None:
    kept = str(tmp_path / "kept")
    fit(make_run(checkpoint_uri=kept, generation=1), epochs=1)
    module = fit(make_run(checkpoint_uri=kept, generation=2))
    assert module.seen == [1, 2]
    for ours, theirs in zip(plain(make_run()).parameters(), module.network.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    over = fit(make_run(checkpoint_uri=kept, generation=3))
    assert over.seen == []


def test_max_steps_counts_optimizer_steps_also_after_a_checkpoint(tmp_path: Path) -> None:
    kept = str(tmp_path / "kept")
    early = fit(make_run(checkpoint_uri=kept, generation=1), epochs=None, max_steps=2)
    assert (early.trainer.global_step, early.seen) == (2, [0])
    run = make_run(control=tmp_path, checkpoint_uri=kept, generation=2)
    module = fit(run, epochs=None, max_steps=7)
    assert (run.steps, module.trainer.global_step, module.seen) == (7, 7, [0, 1, 2])
    assert_close(module.network, plain_steps(make_run(), 7))
    assert [audit["exactly_once"] for audit in messages(tmp_path, "epoch_closed")] == [True] * 2
    assert [done["samples"] for done in messages(tmp_path, "completed")] == [2 * SAMPLES + 8]
    validated = [one["samples"] for one in messages(tmp_path, "metrics") if "error" in one["values"]]
    assert validated == [22, 44, 52]
    over = fit(make_run(checkpoint_uri=kept, generation=3), epochs=None, max_steps=7)
    assert (over.trainer.global_step, over.seen) == (7, [])


@pytest.mark.parametrize(("limits", "steps"), [({"max_steps": 4}, 4), ({"max_steps": 10}, 9)])
def test_the_first_limit_ends_training(limits: dict[str, int], steps: int, tmp_path: Path) -> None:
    module = fit(make_run(control=tmp_path), **limits)
    assert module.trainer.global_step == steps
    assert_close(module.network, plain_steps(make_run(), steps))
    assert len(messages(tmp_path, "completed")) == 1


@pytest.mark.parametrize(
    ("limits", "epochs"),
    [({"max_epochs": 2, "min_epochs": 2}, 8), ({"max_epochs": None, "max_steps": 16}, 8)],
)
def test_an_adaptive_job_ends_at_the_progress_of_the_limits(
    limits: dict[str, Any], epochs: int, tmp_path: Path
) -> None:
    """At an unscaled rate a step of 16 samples makes the progress of one of 4: two epochs of 32 become eight."""
    run = make_run(
        control=tmp_path, global_batch=4, most_global_batch=16, start_global_batch=16, lr_rule="none"
    )
    module = new_module()
    x = torch.linspace(-1, 1, 32).unsqueeze(1)
    loader = run.loader(TensorDataset(x, 3 * x + 1), global_batch=4)
    new_trainer(run, **limits).fit(module, loader)
    assert module.seen == list(range(epochs))
    assert (run.steps, module.trainer.global_step, run.progress) == (2 * epochs, 2 * epochs, 2.0)
    assert len(messages(tmp_path, "epoch_closed")) == epochs
    assert len(messages(tmp_path, "completed")) == 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"accumulate_grad_batches": 2}, "accumulate_grad_batches must stay 1"),
        ({"epochs": -1}, "give max_epochs or max_steps"),
        ({"min_steps": 7}, "min_steps is not followed"),
        ({"limit_train_batches": 0.5}, "skip samples of an epoch"),
        ({"strategy": "ddp", "devices": 2}, r"devices, strategy: decided by Headway"),
    ],
)
def test_what_does_not_go_together_is_refused(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        fit(make_run(), **arguments)


def test_max_steps_is_refused_in_manual_optimization() -> None:
    module, run = new_module(), make_run()
    module.automatic_optimization = False
    with pytest.raises(ValueError, match="max_steps counts the steps of every optimizer"):
        new_trainer(run, max_steps=3).fit(module, run.loader(data(), global_batch=4))


def test_scaled_losses_of_several_optimizers_are_refused() -> None:
    module, run = new_module(), make_run()
    module.automatic_optimization = False
    module.configure_optimizers = lambda: [torch.optim.SGD(module.parameters(), lr=0.1) for _ in range(2)]
    plugins = importlib.import_module("lightning.pytorch.plugins")
    half = plugins.MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))
    with pytest.raises(ValueError, match="16-mixed scales the losses of one optimizer"):
        new_trainer(run, max_epochs=1, plugins=[half]).fit(module, run.loader(data(), global_batch=4))


def test_other_training_data_are_refused() -> None:
    module = new_module()
    with pytest.raises(ValueError, match=r"run\.loader"):
        new_trainer(make_run(), max_epochs=1).fit(module, DataLoader(data()))
