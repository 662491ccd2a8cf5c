"""Examples of the groups and lists of a job file, for messages about values that are none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

EXAMPLES: Final[Mapping[str, str]] = {
    "after": "[prepare-data]",
    "batch": "{global: 256}",
    "batch.balance": "off",
    "checkpoint": "{every: 10m}",
    "checkpoint.every": "10m",
    "elastic": "{min: 1, max: 4}",
    "elastic.mix": "[a100, t4]",
    "elastic.partial_backprop": "{min_depth: 0.5}",
    "elastic.sizes": "[1, 2, 4]",
    "env": '{THREADS: "2"}',
    "goal": "{objective: time}",
    "goal.target": "{loss: 1.5}",
    "output": "{dir: results}",
    "parallel": "{tp: 2}",
    "parallel.fsdp": "auto",
    "parameters": "{lr: 0.1}",
    "progress": "{total: 1000}",
    "python": "{requirements: requirements.txt}",
    "resources": "{cpus_per_slot: 2}",
    "resources.devices": "[a100]",
    "retry": "{infrastructure: 5}",
    "secrets": "{WANDB_API_KEY: wandb}",
    "sweep": "{metric: loss, parameters: {lr: [0.1, 0.01]}}",
    "sweep.parameters": "{lr: [0.1, 0.01]}",
    "trackers": "[tensorboard]",
}
"""A value that the field takes, as YAML in one line, by field."""
