"""The verbs of `headway`, by subject. `headway.cli.table` lists them."""
