"""What a client asked -> what may be kept of it: the rules and the privacy filter of `eyas prompts`, record by record.

    request -> what users said (and a leading system message) -> language -> quality -> personal data -> Conversation

Nothing is stored that has not come out of the far end. Evaluation sets, duplicates and licence are left to `eyas run`.
"""

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from eyas.chat.conversation import Conversation, Message
from eyas.data.select.language import detect_languages
from eyas.data.select.quality import QualityConfig, find_quality_issue
from eyas.data.select.screen import pick_screening_language
from eyas.data.sources.record_formats import RejectedRecord, parse_record
from eyas.data.surrogate_key import load_surrogate_key
from eyas.privacy.config import PrivacyConfig
from eyas.privacy.filter import DroppedRecord, PrivacyFilter

SOURCE = "own-traffic"
LICENSE = "LicenseRef-Own"
SELF_TEST_PROMPT = ("What is the sum of 12 and 30?",)


@dataclass(frozen=True)
class Rejection:
    """Why nothing of a request is kept: "unreadable" (no text, tools), or "refused" by a rule or the filter."""

    reason: str


class PrivacyGate:
    """Loads everything at once, so that what is missing shows before the server is up.

    InputError without the extra `data`.
    """

    def __init__(self) -> None:
        self._quality = QualityConfig()
        self._privacy = PrivacyFilter(PrivacyConfig(), load_surrogate_key(None))
        self._privacy.clean([(SELF_TEST_PROMPT, detect_languages(SELF_TEST_PROMPT)[0])])

    def __call__(self, record: Any, task: str | None) -> Conversation | Rejection:
        """asked: a JSON value in one of the shapes of `data.sources.record_formats`."""
        shaped = parse_record(record, keep_system=True)
        if isinstance(shaped, RejectedRecord):
            return Rejection("unreadable")
        users = [message.content for message in shaped.messages if message.role == "user"]
        languages = detect_languages(users)
        if find_quality_issue(self._quality, users, languages[0]) is not None:
            return Rejection("refused")
        texts = [message.content for message in shaped.messages]
        (found,) = self._privacy.clean([(texts, pick_screening_language(languages, self._privacy.name_languages))])
        if isinstance(found, DroppedRecord):
            return Rejection("refused")
        messages = tuple(Message(old.role, text) for old, text in zip(shaped.messages, found.texts, strict=True))
        tags = {"task": task or SOURCE, "language": languages[0]}
        return Conversation(f"{SOURCE}:{digest_messages(messages)}", SOURCE, messages, tags, found.changed)


def digest_messages(messages: tuple[Message, ...]) -> str:
    """Equal ones are one prompt."""
    text = json.dumps([message.to_json() for message in messages]).encode()
    return hashlib.blake2b(text, digest_size=8).hexdigest()
