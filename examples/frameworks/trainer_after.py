"""Train a tiny Llama with Hugging Face's Trainer: after."""

from tiny import Sums, collate, model
from transformers import Trainer, TrainingArguments

from headway.integrations.transformers import elastic_class, elastic_run

run = elastic_run()

args = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=8,
    gradient_accumulation_steps=2,
    max_steps=40,
    learning_rate=1e-3,
    warmup_steps=5,
    logging_steps=5,
    eval_strategy="steps",
    eval_steps=5,
    save_strategy="no",
    report_to="none",
)
trainer = elastic_class(run, Trainer)(
    model=model(),
    args=args,
    train_dataset=Sums(300, seed=1),
    eval_dataset=Sums(64, seed=2),
    data_collator=collate,
)
trainer.train()
trainer.save_model()
