"""Run a script as a rank on the first GPU, which other ranks use too.

    on_one_gpu.py SCRIPT ARGUMENTS...

`benchmarks.gpu` starts the ranks like this if there are fewer GPUs than ranks.
"""

import os
import runpy
import sys

from headway.selftest.members import shared_gpu_env

os.environ |= shared_gpu_env(0, f"rank-{os.getpid()}")
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
