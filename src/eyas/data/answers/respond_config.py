"""The recipe keys `respond.*`: who answers, how an answer is drawn, and which conversations are left out."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal
from urllib.parse import SplitResult, urlsplit

from eyas.base.errors import UsageError

EntityKind = Literal[
    "PERSON",
    "LOCATION",
    "ADDRESS",
    "EMAIL",
    "PHONE",
    "CARD",
    "ACCOUNT",
    "GOVERNMENT_ID",
    "SECRET",
    "IP_ADDRESS",
]
"""What a scan of an answer may find."""

RUNTIME_KEYS = ("url", "api_key_env", "concurrency", "requests_per_second", "timeout_s", "retries")
"""Keys that change no answer: another server of the same model goes on where the last one stopped."""


@dataclass(frozen=True)
class Decoding:
    """How one answer is drawn. top_p and top_k None: all tokens."""

    max_tokens: int  # of one answer, its end-of-turn token included
    temperature: float
    top_p: float | None
    top_k: int | None

    def check(self, where: str) -> None:
        """Raises UsageError that names the recipe key below `where`."""
        _at_least(1, where, max_tokens=self.max_tokens, top_k=self.top_k)
        if not 0 <= self.temperature < math.inf:
            raise UsageError(f"{where}.temperature={self.temperature}", "0 (greedy) or more", "raise it")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UsageError(f"{where}.top_p={self.top_p}", "a number above 0 and up to 1", "leave it out for all")


@dataclass(frozen=True)
class TaskDecoding:
    """The recipe keys `respond.tasks.<task>.*`: what differs for the prompts with that tag `task`."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None


@dataclass(frozen=True)
class RespondConfig:
    """The recipe keys `respond.*`.

    Without `url` the target answers on eyas's own engine, `batch_size` prompts at a time; with it, an OpenAI-compatible
    server does, `concurrency` requests at a time. An empty answer always drops its conversation. One that was cut at
    max_tokens is worth training on up to its cut, and one that loops is tagged and counted apart by every measurement,
    so both stay unless the recipe says otherwise.
    """

    max_tokens: int = 256
    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    tasks: Mapping[str, TaskDecoding] = field(default_factory=dict)
    batch_size: int = 16
    seed: int = 0
    part_size: int = 256  # conversations in one file; a few files' worth are held in memory
    url: str | None = None  # of the API: "http://127.0.0.1:8000/v1"
    model: str | None = None  # the target's name on that server
    api_key_env: str | None = None  # the environment variable that holds the key; the key itself is never written
    concurrency: int = 16
    requests_per_second: float | None = None  # requests are begun no faster
    timeout_s: float = 600.0  # of one attempt, from the request to the last byte of the answer
    retries: int = 8  # of one request, beyond its first attempt
    drop_truncated: bool = False
    drop_looping: bool = False
    drop_private: tuple[EntityKind, ...] = (
        "SECRET",
        "CARD",
        "ACCOUNT",
        "GOVERNMENT_ID",
        "ADDRESS",
    )  # where a scan is made

    def __post_init__(self) -> None:
        sizes = {name: getattr(self, name) for name in ("batch_size", "part_size", "concurrency")}
        _at_least(1, "respond", **sizes)
        _at_least(0, "respond", retries=self.retries)
        for name in ("timeout_s", "requests_per_second"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise UsageError(f"respond.{name}={value}", "a number above 0", "raise it")
        self.decoding_for(None).check("respond")
        for task in self.tasks:
            self.decoding_for(task).check(f"respond.tasks.{task}")
        self._check_server()

    def decoding_for(self, task: str | None) -> Decoding:
        """How answers to prompts of a task are drawn."""
        own = self.tasks.get(task or "", TaskDecoding())
        default = Decoding(self.max_tokens, self.temperature, self.top_p, self.top_k)
        changed = {name: value for name, value in asdict(own).items() if value is not None}
        return Decoding(**(asdict(default) | changed))

    def output_affecting_keys(self) -> dict[str, Any]:
        """The keys that decide answers and files, and whether a server answers; for the origin."""
        idle = () if self.url is None else ("batch_size",)
        keys = {name: value for name, value in asdict(self).items() if name not in (*RUNTIME_KEYS, *idle)}
        return keys | {"server": self.url is not None}

    def _check_server(self) -> None:
        for name in ("model", "api_key_env"):
            if self.url is None and getattr(self, name) is not None:
                raise UsageError(f"respond.{name} without respond.url", "the URL of the server", "add it")
        if self.url is None:
            return
        if not self.model:
            raise UsageError("respond.url without respond.model", "the model's name on that server", "add it")
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not _has_host(parts) or parts.query or parts.fragment:
            raise UsageError("another respond.url", "http://HOST:PORT/v1 or the same with https", "correct it")
        if "@" in parts.netloc:  # it would stand in recipe.toml and in messages
            raise UsageError("a respond.url with a name or a key in it", "one without", "use respond.api_key_env")


def _has_host(parts: SplitResult) -> bool:
    try:
        return bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is none
        return False


def _at_least(least: int, where: str, **values: int | None) -> None:
    for name, value in values.items():
        if value is not None and value < least:
            raise UsageError(f"{where}.{name}={value}", f"a number from {least} on", "raise it")
