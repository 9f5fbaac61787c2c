"""HTTP rules of the OpenAI API that `eyas respond` and `eyas bench --url` share: URLs, keys, errors and retries.

The text of a server's error reply is never printed, because servers copy prompts and keys into it.
"""

import email.utils
import json
import os
import random
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import SplitResult, urlsplit

from eyas.base.errors import InputError, UsageError
from eyas.base.google_auth import read_access_token

CHAT_PATH = "/chat/completions"
DEFAULT_PORTS = {"http": 80, "https": 443}
CONNECT_TIMEOUT_S = 30.0
RETRIED_STATUSES = (408, 409, 429)  # and every status from 500 on
INITIAL_BACKOFF_S = 0.5  # longest wait before the first retry; doubled before each further one
MAX_BACKOFF_S = 60.0
MAX_RETRY_AFTER_S = 600.0
VERTEX_URL = re.compile(r"https://([-a-z0-9.]+\.prediction\.vertexai\.goog|[-a-z0-9]+-aiplatform\.googleapis\.com)/")
ERROR_NAME = re.compile(r"[A-Za-z_]{1,40}")  # "invalid_request_error"; no digits, so no part of a key


def parse_api_url(url: str, source: str) -> SplitResult:
    """Validates the URL of an API and returns its parts.

    Args:
        url: for example "http://127.0.0.1:8000/v1".
        source: the flag or recipe key that holds the URL, for the error message.

    Raises:
        UsageError: The URL is not http or https, has no host or an invalid port, or contains credentials.
    """
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in DEFAULT_PORTS and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is not a number or above 65535, or a bracket that is not closed
        parts, is_valid = None, False
    if "@" in url.partition("//")[2].partition("/")[0]:
        problem = f"The URL in {source} contains a user name or key"
        raise UsageError(problem, "Remove the part before @; set the key with api_key_env")
    if parts is None or not is_valid:
        problem = f"{source}={url} is not the URL of a server"
        raise UsageError(problem, f"Write for example {source}=http://127.0.0.1:8000/v1")
    return parts


def read_api_key(variable: str | None, url: str) -> str | None:
    """Returns the API key of a server; None if it needs none.

    Args:
        variable: The environment variable that holds the key. If it is None, an endpoint of Vertex AI gets an access
            token, which is valid for some minutes at least. Other servers get no key.
        url: The URL of the server.

    Raises:
        InputError: The variable is unset, empty, or holds characters that an HTTP header cannot carry. Or there is no
            access token.
    """
    if variable is None:
        return read_access_token() if VERTEX_URL.match(url) else None
    key = os.environ.get(variable, "").strip()
    if not key:
        raise InputError(f"The environment variable {variable} with the API key is not set", f"export {variable}=KEY")
    if not key.isascii() or not key.isprintable():
        problem = f"The API key in {variable} contains characters that an HTTP header cannot carry"
        raise InputError(problem, "Set it to the key alone, without line breaks")
    return key


def auth_headers(key: str | None) -> dict[str, str]:
    """Returns the HTTP header with the API key; {} if the key is None."""
    return {} if key is None else {"Authorization": f"Bearer {key}"}


def describe_error(status: int, body: bytes) -> str:
    """Returns the status and the error type of an error reply, for example "HTTP 429 (rate_limit_error)"."""
    name = error_type(body)
    return f"HTTP {status}" + (f" ({name})" if name else "")


def error_type(body: bytes) -> str | None:
    """Returns the error code or type in an error reply of OpenAI, vLLM or FastAPI; None if the reply has none."""
    try:
        value: Any = json.loads(body)
    except (ValueError, RecursionError):
        return None
    for key in ("error", "detail"):
        inner = value.get(key) if isinstance(value, Mapping) else None
        inner = inner[0] if isinstance(inner, list) and inner else inner
        value = inner if isinstance(inner, Mapping) else value
    names = [value.get(key) for key in ("code", "type")] if isinstance(value, Mapping) else []
    return next((name for name in names if isinstance(name, str) and ERROR_NAME.fullmatch(name)), None)


def is_retried(status: int) -> bool:
    """Returns True for an HTTP status after which the same request may succeed later."""
    return status in RETRIED_STATUSES or status >= 500


def backoff_s(seed: int, name: str, attempt: int) -> float:
    """Returns the seconds to wait before a retry: exponential backoff with full jitter.

    The wait is a random number between 0 and a maximum that doubles with each retry.

    Args:
        seed: The seed of the random number.
        name: The name of the request. Requests with different names wait for different times.
        attempt: The number of retries before this one; 0 for the first retry.
    """
    longest_s = min(MAX_BACKOFF_S, INITIAL_BACKOFF_S * 2**attempt)
    return random.Random(f"{seed}/{name}/{attempt}").uniform(0, longest_s)


def parse_retry_after_s(value: str | None, now_s: float) -> float:
    """Returns the seconds of a Retry-After header, which holds a number or a date.

    Args:
        value: the header; None if it is missing.
        now_s: the current time, in seconds since the epoch.

    Returns:
        At most MAX_RETRY_AFTER_S; 0 if the header is missing, unreadable or in the past.
    """
    try:
        wait_s = float(value or 0)
    except ValueError:
        try:
            wait_s = email.utils.parsedate_to_datetime(value or "").timestamp() - now_s
        except ValueError:
            return 0.0
    return min(wait_s, MAX_RETRY_AFTER_S) if wait_s > 0 else 0.0
