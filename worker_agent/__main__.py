"""Entry point of `python -m worker_agent`."""

import sys

from worker_agent.main import main

sys.exit(main(sys.argv[1:]))
