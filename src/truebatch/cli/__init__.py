"""The `truebatch` command: one file per subcommand."""

from truebatch.cli.main import main

__all__ = ["main"]
