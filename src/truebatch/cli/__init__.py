"""The `truebatch` command: one file per subcommand."""
