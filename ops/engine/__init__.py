"""The engine contract: what the pinned SGLang accepts, prints and does. Pure."""
