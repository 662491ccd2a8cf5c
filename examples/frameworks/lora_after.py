"""Train adapters (LoRA) of a tiny Llama with PEFT and Hugging Face's Trainer: after."""

from peft import LoraConfig, get_peft_model
from tiny import Sums, collate, model
from transformers import Trainer, TrainingArguments

from headway.integrations.transformers import elastic_class, elastic_run

run = elastic_run()

args = TrainingArguments(
    output_dir="out",
    per_device_train_batch_size=16,
    num_train_epochs=2.5,
    learning_rate=1e-2,
    logging_steps=5,
    eval_strategy="steps",
    eval_steps=5,
    save_strategy="no",
    report_to="none",
)
adapters = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
trainer = elastic_class(run, Trainer)(
    model=get_peft_model(model(), adapters),
    args=args,
    train_dataset=Sums(250, seed=1),
    eval_dataset=Sums(64, seed=2),
    data_collator=collate,
)
trainer.train()
trainer.save_model()
