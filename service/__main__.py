"""`python -m service`."""

import sys

from service.main import main

sys.exit(main(sys.argv[1:]))
