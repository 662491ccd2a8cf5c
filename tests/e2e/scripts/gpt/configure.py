"""Replace global settings of the script that executes this file by a file of settings and `--name=value`."""

import sys

for given in sys.argv[1:]:
    if given.startswith("--"):
        setting, text = given[2:].split("=", 1)
        globals()[setting] = type(globals()[setting])(text)
    else:
        with open(given) as settings:
            exec(settings.read())
