"""The text of a release's files, for a diff before anything is touched. Values of secrets never leave the host."""

import os
import re

from ops.remote import durable

SECRET_FILES = ("engine.env", "secrets.yaml")


def read(emit, *, instance_dir, release, secrets):
    """{file: {text, sha256, mode}} of a release folder; {} when there is none.

    Args: secrets: names whose values are emptied, as in ids and digests (ops.render.env_file.without_secrets).
    """
    folder = os.path.join(instance_dir, "releases", release)
    found = {}
    try:
        names = sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    for name in names:
        path = os.path.join(folder, name)
        if not os.path.isfile(path) or os.path.islink(path):
            continue
        text = durable.read_text(path)
        if text is None:
            continue
        if name in SECRET_FILES:
            for secret in secrets:
                text = re.sub(r"(?m)^(%s)(=|: ).*$" % re.escape(secret), r"\1\2", text)
        mode = os.stat(path).st_mode & 0o777
        found[name] = {"text": text, "sha256": durable.sha256(path), "mode": f"{mode:04o}"}
    return found
