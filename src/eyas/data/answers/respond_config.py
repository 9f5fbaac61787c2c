"""The recipe keys `respond.*`: the model or server, the sampling of answers, and the rules to drop conversations."""

import zlib
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from typing import Annotated, Any

from pydantic import Field

from eyas.base.config import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Scalar
from eyas.base.errors import UsageError
from eyas.base.openai_http import parse_api_url
from eyas.privacy.span import DROPPED_BY_DEFAULT, EntityKind

RUNTIME_KEYS = ("url", "api_key_env", "concurrency", "requests_per_second", "timeout_s", "retries")
"""Keys that change no answer. A run can continue with other values, for example on another server."""
Probability = Annotated[float, Field(gt=0, le=1)]


@dataclass(frozen=True)
class Decoding:
    """The sampling parameters of one answer. top_p=None and top_k=None sample from all tokens."""

    max_tokens: int  # of one answer, with its end-of-turn token
    temperature: float
    top_p: float | None
    top_k: int | None


@dataclass(frozen=True)
class TaskDecoding:
    """The recipe keys `respond.tasks.TASK.*`: sampling parameters for the prompts whose tag `task` is TASK.

    Attributes:
        max_tokens: Overrides respond.max_tokens for this task.
        temperature: Overrides respond.temperature for this task.
        top_p: Overrides respond.top_p for this task.
        top_k: Overrides respond.top_k for this task.
    """

    max_tokens: PositiveInt | None = None
    temperature: NonNegativeFloat | None = None
    top_p: Probability | None = None
    top_k: PositiveInt | None = None


@dataclass(frozen=True)
class ResponseMode:
    """The recipe keys `respond.modes.MODE.*`: a way of answering, for example with or without thoughts.

    Attributes:
        share: The part of the conversations that this mode gets, relative to the other modes.
        chat_template_kwargs: Variables of the target's chat template, as in requests of the server, for example
            {enable_thinking = false}.
    """

    share: PositiveFloat = 1.0
    chat_template_kwargs: Mapping[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True)
class RespondConfig:
    """The recipe keys `respond.*`.

    If `url` is set, an OpenAI-compatible server generates the answers; otherwise eyas's own engine does. A conversation
    with an empty answer is always dropped. By default, two other kinds of answers are kept: answers that were cut at
    max_tokens, because they are good training data, and answers that repeat themselves, which get the tag `looping`.

    Attributes:
        max_tokens: The maximum number of tokens of one answer, including the end-of-turn token.
        temperature: The sampling temperature; 0 is greedy decoding.
        top_p: Samples from the smallest set of likeliest tokens that has this total probability; by default from all
            tokens.
        top_k: Samples from this number of likeliest tokens; by default from all tokens.
        tasks: Values for the prompts of single tasks, one table for each task.
        modes: Ways of answering, one table for each; every conversation has one of them, also when it is rendered for
            training.
        batch_size: The number of prompts that eyas's engine answers at the same time.
        seed: The seed of sampling.
        part_size: The number of conversations in one output file; a larger number needs more memory.
        url: The URL of an OpenAI-compatible server that runs the target, such as http://127.0.0.1:8000/v1; by default
            eyas's engine generates the answers.
        model: The name of the target on the server at `respond.url`.
        api_key_env: The environment variable that holds the server's API key; the key itself is never written. By
            default an endpoint of Vertex AI gets an access token of Google Cloud, and other servers get no key.
        concurrency: The number of requests that are sent to the server at the same time.
        requests_per_second: The maximum rate of requests to the server; by default there is no limit.
        timeout_s: The time limit of one attempt in seconds, up to the last byte of the answer.
        retries: The number of further attempts after a request has failed.
        drop_truncated: Drops conversations whose answer was cut off at max_tokens.
        drop_looping: Drops conversations whose answer ends in a repeated piece of text.
        drop_private: The kinds of personal data in an answer for which its conversation is dropped.
    """

    max_tokens: PositiveInt = 256
    temperature: NonNegativeFloat = 0.0
    top_p: Probability | None = None
    top_k: PositiveInt | None = None
    tasks: Mapping[str, TaskDecoding] = field(default_factory=dict)
    modes: Mapping[str, ResponseMode] = field(default_factory=dict)
    batch_size: PositiveInt = 16
    seed: int = 0
    part_size: PositiveInt = 256
    url: str | None = None
    model: str | None = None
    api_key_env: str | None = None
    concurrency: PositiveInt = 16
    requests_per_second: PositiveFloat | None = None
    timeout_s: PositiveFloat = 600.0
    retries: NonNegativeInt = 8
    drop_truncated: bool = False
    drop_looping: bool = False
    drop_private: tuple[EntityKind, ...] = DROPPED_BY_DEFAULT

    def __post_init__(self) -> None:
        if self.url is None:
            for name in ("model", "api_key_env"):
                if getattr(self, name) is not None:
                    problem = f"respond.{name} is set without respond.url"
                    raise UsageError(problem, "Set respond.url=http://HOST:PORT/v1")
            return
        if not self.model:
            raise UsageError("respond.url is set without respond.model", "Set respond.model to the target's name there")
        if "?" in self.url or "#" in self.url:  # not shown: a query may hold a key
            raise UsageError("respond.url has a query or a fragment", "Write it as http://HOST:PORT/v1")
        parse_api_url(self.url, "respond.url")

    def decoding_for(self, task: str | None) -> Decoding:
        """Returns the sampling parameters for the prompts of a task; None: for prompts without a task."""
        own = self.tasks.get(task or "", TaskDecoding())
        default = Decoding(self.max_tokens, self.temperature, self.top_p, self.top_k)
        changed = {name: value for name, value in asdict(own).items() if value is not None}
        return Decoding(**(asdict(default) | changed))

    def mode_for(self, conversation: str) -> str | None:
        """Returns the mode of a conversation by its id; None without modes. It does not depend on other prompts."""
        bounds = list(accumulate(mode.share for mode in self.modes.values()))
        if bounds:
            place = zlib.crc32(f"{self.seed}/mode/{conversation}".encode()) / 2**32 * bounds[-1]
            return list(self.modes)[bisect_right(bounds, place)]
        return None

    def output_affecting_keys(self) -> dict[str, Any]:
        """Returns the keys that change the answers or the output files, and the key "server": True if `url` is set."""
        unused = (*(("batch_size",) if self.url is not None else ()), *(() if self.modes else ("modes",)))
        keys = {name: value for name, value in asdict(self).items() if name not in (*RUNTIME_KEYS, *unused)}
        return keys | {"server": self.url is not None}
