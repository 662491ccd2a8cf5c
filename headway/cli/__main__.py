"""Entry point of `python -m headway.cli`: the command line where no `headway` script is on PATH."""

from headway.cli.main import run

run()
