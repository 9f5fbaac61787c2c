"""Drops prompts of low quality by rules on the user turns of a record. The ledger counts each rule by its name.

    rule                what it drops
    too_long            more characters than `max_chars`, all turns together (checked first, because it is fast)
    too_short           fewer characters than `min_chars`
    control_characters  NUL and other control characters, except tabs and line ends
    damaged_encoding    U+FFFD, C1 controls, half a surrogate pair, or UTF-8 that was read as Latin-1 ("fÃ¼r")
    no_task             every turn is only greetings, web addresses, punctuation or fewer than 3 letters and digits
    looping_text        text that repeats itself (see `is_looping_text`)
    jailbreak           a preamble that tells the target to ignore its safety rules
    refusal_bait        a request that the target would only refuse
    wrong_language      a main language that is not in `languages`

The phrases of jailbreak and refusal_bait are in phrases.toml; they are English only. Every rule takes linear time,
because repeats in its patterns are bounded. `is_looping_answer` is a similar rule for the tokens of an answer.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path

from eyas.base.config import load_toml
from eyas.base.errors import UsageError
from eyas.base.sequences import count_equal


@dataclass(frozen=True)
class QualityConfig:
    """The recipe keys `prompts.quality.*`.

    Attributes:
        min_chars: The minimum number of characters of all user turns together.
        max_chars: The maximum number of characters of all user turns together; the default is about 12,000 tokens of
            English.
        languages: The ISO 639-1 codes of the languages that are kept; empty keeps all.
    """

    min_chars: int = 3
    max_chars: int = 50_000
    languages: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.min_chars <= self.max_chars:
            problem = f"prompts.quality.min_chars={self.min_chars} and max_chars={self.max_chars} leave no prompt"
            raise UsageError(problem, "Set 0 <= min_chars <= max_chars")
        for code in self.languages:
            if not re.fullmatch("[a-z]{2}", code):
                problem = f"prompts.quality.languages has {code!r}, which is not an ISO 639-1 code"
                raise UsageError(problem, "Use codes of two letters such as en")


def find_quality_issue(config: QualityConfig, texts: Sequence[str], language: str) -> str | None:
    """Returns the name of the first rule that drops a record, or None if no rule does.

    Args:
        config: The recipe keys.
        texts: The user turns of the record.
        language: The main language of the record (ISO 639-1).
    """
    num_chars = sum(map(len, texts))
    if num_chars > config.max_chars:
        return "too_long"
    if num_chars < config.min_chars:
        return "too_short"
    if any(map(_CONTROL.search, texts)):
        return "control_characters"
    if any(not text.isascii() and (_NO_CHARACTER.search(text) or _MOJIBAKE.search(text)) for text in texts):
        return "damaged_encoding"
    if not any(map(has_task, texts)):
        return "no_task"
    if any(map(is_looping_text, texts)):
        return "looping_text"
    is_wanted = not config.languages or language in config.languages
    return _find_phrase(texts) or (None if is_wanted else "wrong_language")


_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")
_NO_CHARACTER = re.compile("[\x80-\x9f\ufffd-\uffff\ud800-\udfff]")
# What the UTF-8 bytes 80 to BF become when they are read as Latin-1 or Windows-1252.
_TAIL = "[" + re.escape(bytes(range(0x80, 0xC0)).decode("cp1252", "ignore")) + "\x80-\x9f]"
_CLOSING = "[»”’…›]"  # may stand right after a capital: "AMANHÃ…" is Portuguese
_MOJIBAKE = re.compile(
    f"(?<![A-Z])[ÃÂ]{_TAIL}|[ÃÂ](?!{_CLOSING}){_TAIL}"  # two bytes, Western Europe: Ã¼ Ã© Â°
    f"|â€{_TAIL}|ðŸ{_TAIL}"  # quotation marks and dashes; emoji
    f"|(?:[ÄÅ]{_TAIL}){{2}}|(?<=[a-z])[ÄÅ]{_TAIL}(?=[a-z])"  # Central Europe: two, or one inside a word
    f"|(?:[ÐÑØÙ×]{_TAIL}){{3}}"  # Cyrillic, Arabic, Hebrew
    f"|(?:[à-ï]{_TAIL}{_TAIL}){{2}}"  # three bytes: Indic, Thai, CJK
)


# --- tasks and phrases -----------------------------------------------------------------------------------------------

MIN_WORD_CHARS = 3  # letters and digits that are no greeting; one of a language without spaces between words counts two
_WEB_ADDRESS = re.compile(r"\b(?:https?://|www\.)\S+", re.IGNORECASE)
_WORD = re.compile(r"[^\W_]+")


@cache
def _load_phrases() -> tuple[frozenset[str], tuple[tuple[str, str, re.Pattern[str]], ...]]:
    """Returns the content of phrases.toml.

    Returns:
        The greetings: words that are no task, in lower case. And for each phrase the rule ("jailbreak" or
        "refusal_bait"), a word that every match contains (searched first, because it is fast), and the pattern.
    """
    tables = load_toml(Path(__file__).with_name("phrases.toml"))
    patterns = (
        (reason, phrase.get("word", ""), re.compile("".join(phrase["pattern"]).replace("@how", tables["how"])))
        for reason in ("jailbreak", "refusal_bait")
        for phrase in tables[reason]
    )
    return frozenset(tables["greetings"].split()), tuple(patterns)


def has_task(text: str) -> bool:
    """Returns True if a user turn has 3 letters or digits outside of greetings and web addresses."""
    greetings, _ = _load_phrases()
    words = (match.group() for part in _WEB_ADDRESS.split(text) for match in _WORD.finditer(part))
    chars = (char for word in words if word.casefold() not in greetings for char in word)
    counts = accumulate(2 if char >= "\u3040" else 1 for char in chars)
    return any(count >= MIN_WORD_CHARS for count in counts)


def _find_phrase(texts: Sequence[str]) -> str | None:
    _, patterns = _load_phrases()
    folded = (" ".join(text.lower().split()) for text in texts)
    found = (reason for text in folded for reason, word, pattern in patterns if word in text and pattern.search(text))
    return next(found, None)


# --- loops -----------------------------------------------------------------------------------------------------------

MIN_LOOP_CHARS = 200  # characters that a loop covers at least, so that "ha ha ha" is none
MAX_PERIOD_CHARS = 200  # of the unit that repeats
MIN_REPEATS = 8
MIN_LOOP_SHARE = 0.25  # of the turn
MIN_RULER_SHARE = 0.75  # of the turn, if the unit has no letter: rulers, tables of zeros, blanks
_STEP = 100  # characters between the probed positions: a loop of MIN_LOOP_CHARS covers one, with a margin
_PROBE = 32
MIN_LINE = 20  # characters; shorter lines of code may repeat
MIN_REPEATED_LINES = 5
MIN_REPEATED_SHARE = 0.5
_LINE_END = re.compile(r"[\n.!?。！？]+")
MAX_PERIOD_TOKENS = 64  # a few sentences
MIN_ANSWER_REPEATS = 4
MIN_LOOP_TOKENS = 32  # so that "ha ha ha ha" or a row of dashes is no loop


def is_looping_text(text: str) -> bool:
    """Returns True if a user turn repeats itself in one of two ways.

    One span: a unit of at most 200 characters stands 8 times or more in a row. The span covers at least 200 characters
    and a quarter of the turn; three quarters of the turn if the unit has no letter.

    Lines and sentences: at least 5 of them repeat an earlier one, and these make up at least half of the characters of
    the turn. Only lines and sentences of 20 characters or more, with a letter, count.
    """
    return _has_repeated_span(text) or _has_repeated_lines(text)


def is_looping_answer(token_ids: Sequence[int]) -> bool:
    """Returns True if an answer ends in a loop: its last max(4 p, 32) tokens have a period p of at most 64 tokens.

        p = 3:   ... a b c a b c a b c a b c a b c a b c a b c a b c a b c a b c a b

    An answer with an end-of-turn token is no loop, because that token does not occur before.
    """
    spans = ((p, max(MIN_ANSWER_REPEATS * p, MIN_LOOP_TOKENS)) for p in range(1, MAX_PERIOD_TOKENS + 1))
    return any(token_ids[p - span :] == token_ids[-span:-p] for p, span in spans if span <= len(token_ids))


def _has_repeated_span(text: str) -> bool:
    num_chars, done = len(text), 0
    for start in range(0, num_chars - _PROBE, _STEP):
        if start < done:
            continue
        again = text.find(text[start : start + _PROBE], start + 1, start + MAX_PERIOD_CHARS + _PROBE)
        if again < 0:
            continue
        period = again - start
        done = again + count_equal(text[start:], text[again:])
        before, before_again = (text[:end][-_STEP - MAX_PERIOD_CHARS :] for end in (start, again))
        length = done - start + count_equal(reversed(before), reversed(before_again))
        share = MIN_LOOP_SHARE if any(map(str.isalpha, text[start:again])) else MIN_RULER_SHARE
        if length >= max(MIN_LOOP_CHARS, MIN_REPEATS * period, share * num_chars):
            return True
    return False


def _has_repeated_lines(text: str) -> bool:
    lines = (part.strip() for part in _LINE_END.split(text))
    counts = Counter(line for line in lines if len(line) >= MIN_LINE)
    repeats = {line: count - 1 for line, count in counts.items() if count > 1 and any(map(str.isalpha, line))}
    num_chars = sum(len(line) * count for line, count in repeats.items())
    return sum(repeats.values()) >= MIN_REPEATED_LINES and num_chars >= MIN_REPEATED_SHARE * len(text)
