"""The log of a server: one JSON object per line on standard error, without inputs, ids or keys."""

from __future__ import annotations

import json
import sys
import time
from contextlib import suppress
from typing import Any

__all__ = ["Log"]


class Log:
    """Write events; a quiet log writes only errors."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet

    def event(self, event: str, *, level: str = "info", **facts: Any) -> None:
        """Write one line."""
        if self.quiet and level == "info":
            return
        now = time.time()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03}Z"
        line = json.dumps({"time": stamp, "level": level, "event": event, **facts}, ensure_ascii=False, default=str)
        with suppress(OSError, ValueError):   # a log that cannot be written must not stop the server
            sys.stderr.write(line + "\n")
            sys.stderr.flush()
