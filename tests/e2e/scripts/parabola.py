"""Report the loss (x - 3)^2 of the parameter x, through the output alone."""

import os

x = float(os.environ["HEADWAY_PARAM_X"])
for step in range(1, 4):
    print(f"step {step} loss {(x - 3) ** 2 + 3 - step}", flush=True)  # noqa: T201 - its output is read
