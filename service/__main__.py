"""Entry point of `python -m service`: the programs of `service.main`, `service.backup`, `service.admin`,
`service.returning` and `service.rotation`.
"""

import os
import sys

from service.garbage import paused_collector

with paused_collector():
    from headway.processes import keep_to_itself
    from headway.proxies import loopback_exemptions
    from headway.streams import make_streams_tolerant
    from service import admin, backup, main, returning, rotation

keep_to_itself()
make_streams_tolerant()
os.environ.update(loopback_exemptions(os.environ))
verb = sys.argv[1] if len(sys.argv) > 1 else ""
program = next((one for one in (admin, backup, returning, rotation) if verb in one.VERBS), main)
sys.exit(program.main(sys.argv[1:]))
