# ruff: noqa: PTH110, PTH123, PTH105, T201
"""A script without any library that keeps its state in a relative file, as most scripts do. It goes on from there."""

import json
import os
import signal
import sys
import threading

stopping = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stopping.set())
epoch = 0
if os.path.exists("snapshot.pt"):
    with open("snapshot.pt") as file:
        epoch = json.load(file)["epoch"]
print(f"starts at epoch {epoch}", flush=True)
while not os.path.exists(os.environ["HURRY"]):
    if stopping.wait(0.02):
        print(f"stops at epoch {epoch}", flush=True)
        sys.exit(143)
    epoch += 1
    with open("snapshot.tmp", "w") as file:
        json.dump({"epoch": epoch}, file)
    os.replace("snapshot.tmp", "snapshot.pt")
with open(os.environ["SIDE"], "w") as file:
    file.write("x")
print(f"done at epoch {epoch}", flush=True)
