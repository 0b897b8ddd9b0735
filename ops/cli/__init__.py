"""The command line: typer and output only here. Heavy imports stay inside the commands."""
