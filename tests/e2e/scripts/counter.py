"""A script without the library that counts slowly. It prints how far it is, and with CHECKPOINT it resumes from that file."""

import os
import signal
import sys
import time
from pathlib import Path

checkpoint = Path(os.environ["CHECKPOINT"]) if "CHECKPOINT" in os.environ else None
hurry = Path(os.environ["HURRY"])
step = int(checkpoint.read_text()) if checkpoint is not None and checkpoint.exists() else 0


def stop(*_: object) -> None:
    if checkpoint is not None:
        checkpoint.write_text(str(step))
    sys.exit(143)


if os.environ.get("RANK", "0") == "0":
    signal.signal(signal.SIGTERM, stop)
    while not hurry.exists():
        sys.stdout.write(f"iter {step}: loss {1 / (step + 1):.4f}, time 50ms\n")
        sys.stdout.flush()
        time.sleep(0.05)
        step += 1
else:
    while not hurry.exists():
        time.sleep(0.05)
