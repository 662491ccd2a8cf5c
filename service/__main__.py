"""`python -m service`: the programs that run (`service.main`), and work on backups (`service.backup`)."""

import sys

from service import backup, main

sys.exit((backup if sys.argv[1:2] and sys.argv[1] in backup.VERBS else main).main(sys.argv[1:]))
