"""Decides whether a request's prompt may be stored, and replaces personal data in it, as `eyas prompts` does.

    request -> messages of users (and a leading system message) -> language -> quality -> personal data -> Conversation

The prompt sampler stores only what this gate returns. Prompts of evaluation sets, duplicates and the license are
checked later, by `eyas run`.
"""

from typing import Any, Literal

from eyas.chat.conversation import Conversation, Message, digest_messages, find_user_turns
from eyas.data.select.language import detect_languages
from eyas.data.select.quality import QualityConfig, find_quality_issue
from eyas.data.select.screen import pick_screening_language
from eyas.data.sources.record_formats import RejectedRecord, parse_record
from eyas.privacy.config import PrivacyConfig
from eyas.privacy.filter import DroppedRecord, PrivacyFilter
from eyas.privacy.surrogates import load_surrogate_key

SOURCE = "own-traffic"
LICENSE = "LicenseRef-Own"
SELF_TEST_PROMPT = ("What is the sum of 12 and 30?",)
Rejection = Literal["unreadable", "refused"]
"""Why a prompt is not stored: it has no text or uses tools, or a quality rule or the privacy filter refused it."""


class PrivacyGate:
    """The quality rules and the privacy filter for prompts. A call screens one prompt."""

    def __init__(self) -> None:
        """Loads the rules and the filter, and cleans one test prompt, so that problems appear at the start.

        Raises:
            InputError: the packages of the extra `data` are not installed.
        """
        self._quality = QualityConfig()
        self._privacy = PrivacyFilter(PrivacyConfig(), load_surrogate_key(None))
        self._privacy.clean([(SELF_TEST_PROMPT, detect_languages(SELF_TEST_PROMPT)[0])])

    def __call__(self, record: Any, task: str | None) -> Conversation | Rejection:
        """Returns the prompt with personal data replaced, or why it is not stored.

        Args:
            record: a JSON value in one of the shapes of `data.sources.record_formats`.
            task: the task name to store as a tag of the prompt; None for "own-traffic".
        """
        parsed = parse_record(record, keep_system=True)
        if isinstance(parsed, RejectedRecord):
            return "unreadable"
        users = find_user_turns(parsed.messages)
        languages = detect_languages(users)
        if find_quality_issue(self._quality, users, languages[0]) is not None:
            return "refused"
        texts = [message.content for message in parsed.messages]
        (cleaned,) = self._privacy.clean([(texts, pick_screening_language(languages, self._privacy.name_languages))])
        if isinstance(cleaned, DroppedRecord):
            return "refused"
        messages = tuple(Message(old.role, text) for old, text in zip(parsed.messages, cleaned.texts, strict=True))
        tags = {"task": task or SOURCE, "language": languages[0]}
        return Conversation(f"{SOURCE}:{digest_messages(messages).hex()}", SOURCE, messages, tags, cleaned.changed)
