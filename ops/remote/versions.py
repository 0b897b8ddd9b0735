"""Versions of the files that ops keeps on a host, and the one rule for reading them.

A file says its version itself: `schema` in JSON, `VERSION=` in shell files. One that says nothing is version 1. Keys
that the reader does not know are kept and ignored; a version above the reader's is refused, for what it means nobody
here knows. "1.2" is read as 1: what comes after the point adds keys and changes none.
"""

import json

from ops.remote import durable
from ops.remote.refusal import VerbError

CURRENT = 1


def problem(name, version, known=CURRENT):
    """Why a reader that knows versions up to `known` must not read the file `name`; empty when it may."""
    major = str(version).partition(".")[0]
    if major.isdigit() and int(major) <= known:
        return ""
    return (
        f"{name} has version {version}, and this ops reads {known}: a newer ops wrote it, so use that one on this host"
    )


def require(name, version, known=CURRENT):
    """Raises: VerbError (newer-version)."""
    found = problem(name, version, known)
    if found:
        raise VerbError(found, code="newer-version", file=name)


def parsed(name, text):
    """The JSON object in `text`, which came from the file `name`. Raises: VerbError (newer-version)."""
    document = json.loads(text)
    require(name, document.get("schema", CURRENT))
    return document


def document(path):
    """The JSON object in the file, or None when there is none. Raises: VerbError (newer-version)."""
    text = durable.read_text(path)
    return None if text is None else parsed(path, text)


def settings(path):
    """The KEY=VALUE lines of a shell file as a dict, or None when there is none. Raises: VerbError (newer-version)."""
    text = durable.read_text(path)
    if text is None:
        return None
    values = dict(line.split("=", 1) for line in text.split("\n") if "=" in line)
    require(path, values.get("VERSION", CURRENT))
    return values


def stamped(fields):
    """`fields` as the document that is written: with its version."""
    return {"schema": CURRENT, **fields}
