"""Log lines in the real server's form, on stderr, one write a line."""

import sys
import time
from collections.abc import Callable


def stamp(prefix: str = "") -> str:
    return f"[{time.strftime('%Y-%m-%d %H:%M:%S')}{' ' + prefix if prefix else ''}]"


def line(text: str, prefix: str = "") -> None:
    """Write one line; ``prefix`` is the rank's name (TP0) when there is more than one."""
    raw(f"{stamp(prefix)} {text}\n")


def raw(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def rank_prefix(rank: int, ranks: int) -> str:
    return f"TP{rank}" if ranks > 1 else ""


def each_rank(ranks: int, local: range | None = None) -> Callable[[str], None]:
    """Return a function that writes a line once for each rank (of this node)."""
    mine = local if local is not None else range(ranks)

    def write(text: str) -> None:
        raw("".join(f"{stamp(rank_prefix(rank, ranks))} {text}\n" for rank in mine))

    return write


def uvicorn_config() -> dict[str, object]:
    """Return uvicorn's logging with the real server's time stamp.

    Source: startup_eagle3.log: ``[2026-11-30 10:11:41] INFO:     Application startup complete.``
    """
    date = "%Y-%m-%d %H:%M:%S"
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "default": {
                "()": "uvicorn.logging.DefaultFormatter",
                "fmt": "[%(asctime)s] %(levelprefix)s %(message)s",
                "datefmt": date,
                "use_colors": False,
            },
            "access": {
                "()": "uvicorn.logging.AccessFormatter",
                "fmt": '[%(asctime)s] %(levelprefix)s %(client_addr)s - "%(request_line)s" %(status_code)s',
                "datefmt": date,
                "use_colors": False,
            },
        },
        "handlers": {
            "default": {"formatter": "default", "class": "logging.StreamHandler", "stream": "ext://sys.stderr"},
            "access": {"formatter": "access", "class": "logging.StreamHandler", "stream": "ext://sys.stderr"},
        },
        "loggers": {
            "uvicorn": {"handlers": ["default"], "level": "INFO", "propagate": False},
            "uvicorn.error": {"level": "INFO"},
            "uvicorn.access": {"handlers": ["access"], "level": "INFO", "propagate": False},
        },
    }
