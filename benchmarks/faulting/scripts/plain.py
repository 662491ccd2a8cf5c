"""A script that knows nothing of Headway: works for so long, and starts over when it is started over.

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
