"""What posting to any platform shares: trying again without posting twice, and payloads that others made."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from typing import Any

from gradfix.review import ReviewError

TRIES = 5
LONGEST_WAIT = 300.0  # seconds, over all tries
TIMEOUT = 30  # seconds, of one request


class NotPosted(Exception):
    """The platform won't take it (a token that may only read, a full quota, …): show the findings otherwise."""


class Refused(Exception):
    """This request was refused and did nothing; `wait` seconds later it may pass."""

    def __init__(self, reason: str, wait: float | None = None):
        super().__init__(reason)
        self.wait = wait


class Unclear(Exception):
    """The answer got lost or the server failed: the request may have done its work."""


def insist(send: Callable[[], Any], arrived: Callable[[], bool]) -> None:
    """Send until it is certain that it arrived, once."""
    waited = 0.0
    for attempt in range(TRIES):
        wait = 2.0**attempt
        try:
            send()
            return
        except Refused as refused:
            why = str(refused)
            wait = wait if refused.wait is None else refused.wait
        except Unclear as unclear:
            why = str(unclear)
            pause(1)  # the platform may still be at it
            if arrived():
                return
        if waited + wait > LONGEST_WAIT:
            raise NotPosted(f"{why} (it asks to wait {wait:.0f} seconds)")
        if attempt + 1 < TRIES:
            waited += wait
            pause(wait)
    raise NotPosted(f"{why} (tried {TRIES} times)")


def pause(seconds: float) -> None:
    time.sleep(seconds)


def wait_of(headers: dict[str, str]) -> float | None:
    """How long an answer asks to wait."""
    headers = {name.lower(): value for name, value in headers.items()}
    try:
        if "retry-after" in headers:
            return max(0.0, float(headers["retry-after"]))
        if headers.get("x-ratelimit-remaining") == "0" and "x-ratelimit-reset" in headers:
            return max(0.0, float(headers["x-ratelimit-reset"]) - time.time()) + 1
    except ValueError:  # a date, which neither platform sends
        pass
    return None


def variable(*names: str) -> str:
    for name in names:
        if value := os.environ.get(name, "").strip():  # a stored secret often ends with a newline
            if not (value.isascii() and value.isprintable()):
                raise ReviewError(f"{name} has characters that can't be part of it")
            return value
    raise ReviewError(f"--post needs {' or '.join(names)} in the environment")


def server(name: str, default: str) -> str:
    url = os.environ.get(name, "").strip() or default
    if not re.match("https?://.", url):
        raise ReviewError(f"{name} is {url!r}, no address of a server")
    return url


def event() -> dict:
    """What GitHub says of the event that started the workflow."""
    path = os.environ.get("GITHUB_EVENT_PATH")
    if not path:
        return {}
    try:
        with open(path, encoding="utf-8") as handle:
            data = json.load(handle)
    except (OSError, ValueError) as error:
        raise ReviewError(f"{path}: the event can't be read: {error}") from None
    return data if isinstance(data, dict) else {}
