"""The command line: one module a subcommand, with `run(argv) -> exit code`. Must start without torch."""
