"""Fine-tune a tiny Llama with TRL's SFTTrainer: after."""

from datasets import Dataset
from tiny import model, sums, tokenizer
from trl import SFTConfig, SFTTrainer

from headway.integrations.transformers import elastic_class, elastic_run

run = elastic_run()

args = SFTConfig(
    output_dir="out",
    per_device_train_batch_size=8,
    max_steps=40,
    learning_rate=1e-3,
    bf16=False,
    logging_steps=5,
    eval_strategy="steps",
    eval_steps=5,
    save_strategy="no",
    report_to="none",
)
trainer = elastic_class(run, SFTTrainer)(
    model=model(),
    args=args,
    train_dataset=Dataset.from_dict({"text": sums(150, seed=1)}),
    eval_dataset=Dataset.from_dict({"text": sums(64, seed=2)}),
    processing_class=tokenizer(),
)
trainer.train()
trainer.save_model()
