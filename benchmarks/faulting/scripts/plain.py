"""A script without Headway, which begins from the first step at every start.

plain.py STEPS STEP_S
"""

from __future__ import annotations

import sys
import time

from journal import Journal

journal = Journal()
for step in range(int(sys.argv[1])):
    time.sleep(float(sys.argv[2]))
    journal.write("step", step=step)
journal.write("end")
