"""A script with the behaviours that `--behaviour` names, as JSON (`tests/elastic/behaviours.py`)."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from faults import Faults

import headway
from tests.elastic.behaviours import Behaviour, train

parser = argparse.ArgumentParser()
parser.add_argument("--behaviour", type=json.loads, required=True)
parser.add_argument("--result", type=Path, required=True)
options = parser.parse_args()

frozen = tuple((step, tuple(layers)) for step, layers in options.behaviour.pop("frozen"))
run = headway.init(timeout_s=60)
weights = train(run, Behaviour(**options.behaviour, frozen=frozen), Faults(run).in_body)
torch.save(weights, options.result / f"{run.rank}-of-{run.world_size}.pt")
