"""Quoting for the three languages that templates are written in: shell, systemd units, supervisord programs."""

import re
import shlex

from ops.errors import ConfigError

SAFE = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")


def sh(word: object) -> str:
    """Quote one word for a POSIX shell.

    Raises: ConfigError for a zero byte or an unpaired surrogate, which no command line can hold.
    """
    text = str(word)
    _refuse_unwritable(text)
    return shlex.quote(text)


def systemd_word(word: object) -> str:
    """Quote one word of a systemd command or path list: specifiers and variables stay literal.

    Source: systemd.service(5) "Command lines", systemd.unit(5) "Specifiers".
    """
    text = str(word)
    _refuse_control(text)
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return escaped if SAFE.fullmatch(text) else f'"{escaped}"'


def systemd_command(word: object) -> str:
    """Quote one word of ExecStart= and its relatives, where `$` would be a variable as well."""
    return systemd_word(word).replace("$", "$$")


def systemd_path(path: object) -> str:
    """Write a path for a setting that takes the whole line (EnvironmentFile=): only specifiers need care."""
    text = str(path)
    _refuse_control(text)
    return text.replace("%", "%%")


def supervisor(word: object) -> str:
    """Quote one word of a supervisord command: `%` is an expansion, ` ;` starts a comment.

    Source: supervisor 4.2 options.py (expand, shlex.split; inline_comment_prefixes " ;").
    """
    text = str(word)
    _refuse_control(text)
    if " ;" in text:
        raise ConfigError(f"{text!r}: supervisord reads ` ;` as the start of a comment; choose another path")
    return shlex.quote(text).replace("%", "%%")


def supervisor_value(value: object) -> str:
    """Write a whole value of a supervisord setting that is no command."""
    text = str(value)
    _refuse_control(text)
    if " ;" in text:
        raise ConfigError(f"{text!r}: supervisord reads ` ;` as the start of a comment; choose another path")
    return text.replace("%", "%%")


def _refuse_unwritable(text: str) -> None:
    if "\x00" in text:
        raise ConfigError(f"{text!r}: a zero byte cannot be passed to a program")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ConfigError(f"{text!r}: not text that can be written as UTF-8") from None


def _refuse_control(text: str) -> None:
    _refuse_unwritable(text)
    if re.search(r"[\x00-\x1f\x7f]", text):
        raise ConfigError(f"{text!r}: a control character in a path or name")
