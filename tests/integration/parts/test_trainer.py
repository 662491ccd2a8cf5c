"""The loops of Hugging Face's Trainer and of Accelerate train as a plain one does: the same steps, the same parameters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.optim.lr_scheduler import ExponentialLR
from torch.utils.data import DataLoader, Dataset, SequentialSampler

from headway.train.session import Run
from tests.unit.headway.train.test_session import make_run, messages

pytestmark = pytest.mark.filterwarnings("ignore")  # these libraries have many, for people
pytest.importorskip("transformers", reason="TRANSFORMERS IS NOT TESTED: pip install 'headway[transformers]'")

SAMPLES, EPOCHS = 22, 3
SEED = 3


class Points(Dataset[dict[str, torch.Tensor]]):
    """Points of a line."""

    def __init__(self) -> None:
        self.x = torch.linspace(-1, 1, SAMPLES).unsqueeze(1)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": self.x[index], "y": 3 * self.x[index] + 1}


class Fitted(nn.Module):
    """A network that returns its loss, as models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": mse_loss(self.layers(x), y)}


def adam(model: nn.Module) -> tuple[torch.optim.Optimizer, ExponentialLR]:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    return optimizer, ExponentialLR(optimizer, 0.9)


def train_plainly(run: Run, epochs: int = EPOCHS) -> nn.Module:
    model = Fitted()
    wrapped, optimizer, schedule = run.prepare(model, *adam(model))
    loader = run.loader(Points(), global_batch=8, max_local_batch=4, seed=SEED)
    for _ in run.epochs(epochs):
        for batch in loader:
            optimizer.zero_grad()
            wrapped(**batch)["loss"].backward()
            if not run.accumulating:
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            schedule.step()
    return model


def make_trainer(run: Run, folder: Path, *, epochs: int = EPOCHS, base: Any = None, **arguments: Any) -> Any:
    from transformers import Trainer, TrainingArguments  # noqa: PLC0415

    from headway.integrations.transformers import elastic_class  # noqa: PLC0415

    model = Fitted()
    given = {
        "output_dir": str(folder), "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2,
        "num_train_epochs": epochs, "max_grad_norm": 0.5, "logging_steps": 1, "data_seed": SEED, "save_strategy": "no",
        "report_to": "none", "eval_strategy": "epoch", "label_names": ["y"], "use_cpu": True,
    }  # fmt: skip
    return elastic_class(run, base or Trainer)(
        model=model,
        args=TrainingArguments(**{**given, **arguments}),
        train_dataset=Points(),
        eval_dataset=Points(),
        optimizers=adam(model),
    )


def train_with_accelerate(run: Run, epochs: int = EPOCHS) -> nn.Module:
    from headway.integrations.accelerate import ElasticAccelerator  # noqa: PLC0415

    accelerator = ElasticAccelerator(run, gradient_accumulation_steps=2, cpu=True)
    model = Fitted()
    data = DataLoader(Points(), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(SEED))
    wrapped, optimizer, schedule, data = accelerator.prepare(model, *adam(model), data)
    assert len(data) == 6
    for epoch in run.epochs(epochs):
        for batch in data:
            with accelerator.accumulate(wrapped):
                loss = wrapped(**batch)["loss"]
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(wrapped.parameters(), 0.5)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        accelerator.log({"loss": loss, "epoch": epoch})
    assert accelerator.unwrap_model(wrapped) is model
    return model


def assert_same(ours: nn.Module, theirs: nn.Module) -> None:
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=1e-6, atol=1e-7)


@pytest.mark.slow
def test_the_trainer_trains_as_a_plain_loop_does(tmp_path: Path) -> None:
    """Steps of 8, 8 and 6 samples in passes of at most 4; in the end a checkpoint, and every sample once an epoch."""
    run = make_run(control=tmp_path, checkpoint_uri=str(tmp_path / "kept"))
    trainer = make_trainer(run, tmp_path / "out")
    trainer.train()
    assert (run.steps, trainer.state.global_step, trainer.state.epoch) == (9, 9, 3.0)
    assert_same(trainer.model, train_plainly(make_run()))
    assert [audit["exactly_once"] for audit in messages(tmp_path, "epoch_closed")] == [True] * 3
    assert [done["samples"] for done in messages(tmp_path, "completed")] == [3 * SAMPLES]
    reported = [one["values"] for one in messages(tmp_path, "metrics")]
    assert [sum(name in values for values in reported) for name in ("grad_norm", "eval_loss")] == [9, 3]


def test_the_trainer_goes_on_where_the_checkpoint_is(tmp_path: Path) -> None:
    kept = str(tmp_path / "kept")
    make_trainer(make_run(checkpoint_uri=kept, generation=1), tmp_path / "out", epochs=1).train()
    trainer = make_trainer(make_run(checkpoint_uri=kept, generation=2), tmp_path / "out")
    trainer.train()
    assert_same(trainer.model, train_plainly(make_run()))
    over = make_trainer(make_run(checkpoint_uri=kept, generation=3), tmp_path / "out")
    assert over.train().global_step == 9
    assert_same(over.model, trainer.model)


def test_early_stopping_keeps_its_state_and_the_result(tmp_path: Path) -> None:
    """The evaluations never improve, so the patience of two ends with the second evaluation after a restart."""
    from transformers import EarlyStoppingCallback  # noqa: PLC0415

    kept = str(tmp_path / "kept")
    wanted = {"metric_for_best_model": "eval_loss", "greater_is_better": True}
    control = tmp_path / "control"
    control.mkdir()
    for generation, epochs in ((1, 2), (2, 9)):
        run = make_run(control=control, checkpoint_uri=kept, generation=generation)
        trainer = make_trainer(run, tmp_path / "out", epochs=epochs, **wanted)
        trainer.add_callback(EarlyStoppingCallback(early_stopping_patience=2))
        trainer.train()
    assert (run.steps, trainer.state.global_step) == (9, 9)
    assert [done["samples"] for done in messages(control, "completed")] == [2 * SAMPLES, 3 * SAMPLES]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"load_best_model_at_end": True, "save_strategy": "epoch"}, "load_best_model_at_end"),
        ({"lr_scheduler_type": "reduce_lr_on_plateau"}, "another lr_scheduler_type"),
        ({"dataloader_drop_last": True}, "dataloader_drop_last"),
        ({"torch_compile_mode": "reduce-overhead"}, "torch_compile_mode=reduce-overhead"),
        ({"torch_compile_mode": "max-autotune"}, "torch_compile_mode=max-autotune"),
        ({"fsdp": True}, "fsdp forms process groups"),
        ({"include_num_input_tokens_seen": "all"}, "include_num_input_tokens_seen"),
    ],
)
def test_what_cannot_be_elastic_is_refused(tmp_path: Path, arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        make_trainer(make_run(), tmp_path, **arguments)


def test_checkpoints_and_orders_of_others_are_refused(tmp_path: Path) -> None:
    from transformers import Trainer  # noqa: PLC0415

    class Ordered(Trainer):  # type: ignore[misc]
        def _get_train_sampler(self, dataset: Any = None) -> SequentialSampler:
            return SequentialSampler(self.train_dataset)

    with pytest.raises(ValueError, match="resume_from_checkpoint"):
        make_trainer(make_run(), tmp_path).train(resume_from_checkpoint=True)
    with pytest.raises(ValueError, match="SequentialSampler"):
        make_trainer(make_run(), tmp_path, base=Ordered).train()


def test_accelerate_trains_as_a_plain_loop_does(tmp_path: Path) -> None:
    run = make_run(control=tmp_path)
    assert_same(train_with_accelerate(run), train_plainly(make_run()))
    assert run.steps == 9
    assert [one["samples"] for one in messages(tmp_path, "metrics")] == [22, 44, 66]


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda one: one.save_state("here"), "leave out save_state"),
        (lambda one: one.load_state("here"), "leave out save_state"),
        (lambda one: one.register_for_checkpointing(object()), "register_for_checkpointing"),
        (lambda one: one.prepare(adam(Fitted())[0]), "in one call"),
    ],
)
def test_an_accelerator_refuses_what_cannot_be_elastic(call: Callable[[Any], Any], complaint: str) -> None:
    from headway.integrations.accelerate import ElasticAccelerator  # noqa: PLC0415

    with pytest.raises(ValueError, match=complaint):
        call(ElasticAccelerator(make_run(), cpu=True))
