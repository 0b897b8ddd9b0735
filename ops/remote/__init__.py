"""What runs on the host.

These modules are piped to the host's own Python over SSH (see `agent`); nothing is installed there. Hence: standard
library only, imports only among themselves, Python 3.9 and newer.

A verb is a module function `verb(emit, **arguments)` that returns JSON-able data; `emit(event)` streams progress.
Every verb may be repeated: a client that lost its connection does not know whether the verb ran.
"""
