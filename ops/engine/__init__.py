"""The engine contract (SGLang), as pure readings: flag tables by version, load phases, causes of death."""
