"""Train a small Llama in a framework, elastically, until killed. Rank 0 writes a line of JSON for each step.

    framing.py FRAMEWORK SIZE FILE

`benchmarks.frameworks` starts it. A line has the end time of the step, the number of ranks, and the loss of a fixed batch.
"""

# ruff: noqa: PLC0415  # a run imports only its framework

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import LlamaConfig, LlamaForCausalLM

import headway
from headway.integrations.single_process import elastic_run

VOCABULARY, LENGTH, SAMPLES, BATCH, STEPS = 256, 16, 4096, 8, 10**6
SIZES = {"1M": (128, 4), "16M": (512, 5)}
"""Width and number of layers, by the approximate number of parameters."""


class Texts(Dataset[dict[str, Any]]):
    """Random numbers."""

    def __init__(self) -> None:
        self.ids = torch.randint(VOCABULARY, (SAMPLES, LENGTH), generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


def write_step(_optimizer: Any, _arguments: Any, _named: Any) -> None:
    """Write down the step that the optimizer has taken."""
    at_s = time.monotonic()
    if not run.is_main:
        return
    with torch.no_grad():
        loss = model(input_ids=fixed, labels=fixed).loss.item()
    line = {"at_s": at_s, "world_size": run.world_size, "loss": loss}
    with file.open("a", encoding="utf-8") as notes:
        notes.write(json.dumps(line) + "\n")


def train_by_library() -> None:
    wrapped, prepared = run.prepare(model, optimizer)
    loader = run.loader(data, global_batch=BATCH)
    for _ in run.train_steps(STEPS):
        for batch in loader:
            wrapped(**batch).loss.backward()
        prepared.step()
        prepared.zero_grad()


def arguments_of(kind: Any) -> Any:
    return kind(
        output_dir=str(file.parent), per_device_train_batch_size=BATCH, max_steps=STEPS, logging_steps=STEPS,
        save_strategy="no", report_to="none", max_grad_norm=0.0, bf16=False, activation_checkpointing=False,
    )  # fmt: skip


def train_by_trainer(net: Any) -> None:
    from transformers import Trainer, TrainingArguments

    from headway.integrations.transformers import elastic_class

    elastic_class(run, Trainer)(
        model=net, args=arguments_of(TrainingArguments), train_dataset=data, optimizers=(optimizer, None)
    ).train()


def train_adapters() -> None:
    global optimizer
    from peft import LoraConfig, get_peft_model

    net = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
    optimizer = new_optimizer(net)
    train_by_trainer(net)


def train_by_sft() -> None:
    import datasets
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast
    from trl import SFTConfig, SFTTrainer

    from headway.integrations.transformers import elastic_class

    words = Tokenizer(WordLevel({str(number): number for number in range(VOCABULARY)}, unk_token="0"))
    elastic_class(run, SFTTrainer)(
        model=model, args=arguments_of(SFTConfig), optimizers=(optimizer, None),
        train_dataset=datasets.Dataset.from_dict({"input_ids": data.ids.tolist()}),
        processing_class=PreTrainedTokenizerFast(tokenizer_object=words, pad_token="0", eos_token="1"),
    ).train()  # fmt: skip


def train_by_accelerate() -> None:
    from headway.integrations.accelerate import ElasticAccelerator

    accelerator = ElasticAccelerator(run)
    loader = DataLoader(data, batch_size=BATCH, shuffle=True)
    wrapped, prepared, batches = accelerator.prepare(model, optimizer, loader)
    for _ in run.epochs(STEPS):
        for batch in batches:
            accelerator.backward(wrapped(**batch).loss)
            prepared.step()
            prepared.zero_grad()


def train_by_lightning() -> None:
    import lightning.pytorch as pl

    from headway.integrations.lightning import elastic_trainer

    class Trained(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = model

        def training_step(self, batch: dict[str, torch.Tensor], _number: int) -> torch.Tensor:
            return self.net(**batch).loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return optimizer

    trainer = elastic_trainer(run, max_epochs=STEPS, enable_model_summary=False, log_every_n_steps=STEPS)
    trainer.fit(Trained(), run.loader(data, global_batch=BATCH))


def new_optimizer(net: torch.nn.Module) -> torch.optim.Optimizer:
    trained = [one for one in net.parameters() if one.requires_grad]
    made = torch.optim.AdamW(trained, lr=1e-4, fused=True)
    made.register_step_post_hook(write_step)
    return made


framework, size, file = sys.argv[1], sys.argv[2], Path(sys.argv[3])
run = headway.init() if framework in ("library", "lightning") else elastic_run()
torch.manual_seed(0)
width, layers = SIZES[size]
shape = LlamaConfig(
    vocab_size=VOCABULARY, hidden_size=width, intermediate_size=width * 43 // 16, num_hidden_layers=layers,
    num_attention_heads=8, pad_token_id=None, bos_token_id=None, eos_token_id=None,
)  # fmt: skip
model = LlamaForCausalLM(shape)
data = Texts()
fixed = data.ids[:4].to(run.device)
optimizer = new_optimizer(model)
{
    "library": train_by_library,
    "trainer": lambda: train_by_trainer(model),
    "lora": train_adapters,
    "sft": train_by_sft,
    "accelerate": train_by_accelerate,
    "lightning": train_by_lightning,
}[framework]()
