"""The trackers that a job file may name. Standard library only, because every rank imports it."""

from __future__ import annotations

from typing import Literal, TypeAlias

TrackerName: TypeAlias = Literal["tensorboard", "mlflow"]
