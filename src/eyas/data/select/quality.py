"""Rules about the user turns of one record: each has a name, and the ledger counts what it dropped.

    too_long            more characters than `max_chars`, all turns together (looked at first: it costs nothing)
    too_short           fewer characters than `min_chars`
    control_characters  NUL and the other control characters that no text has (tab and line ends are fine)
    damaged_encoding    U+FFFD, C1 controls, half a surrogate pair, or UTF-8 that was read as Latin-1 ("fÃ¼r")
    no_task             every turn is only greetings, web addresses, punctuation or fewer than 3 letters and digits
    looping_text        a piece of text again and again (see `looping_text`)
    jailbreak           a preamble that wants to switch the target's rules off
    refusal_bait        a request that is answered by a refusal and nothing else
    wrong_language      not one of `languages`

The two lists (JAILBREAK_PHRASES, REFUSAL_BAIT_PHRASES) are English, short, and meant to miss rather than to take what
is good: a head learns nothing from "I cannot help with that". They are no safety filter.

Every rule takes time linear in the text: repeats in patterns are bounded.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from eyas.base.errors import UsageError

TOO_LONG = "too_long"
TOO_SHORT = "too_short"
CONTROL_CHARACTERS = "control_characters"
DAMAGED_ENCODING = "damaged_encoding"
NO_TASK = "no_task"
LOOPING_TEXT = "looping_text"
JAILBREAK = "jailbreak"
REFUSAL_BAIT = "refusal_bait"
WRONG_LANGUAGE = "wrong_language"
REASONS = (
    TOO_LONG,
    TOO_SHORT,
    CONTROL_CHARACTERS,
    DAMAGED_ENCODING,
    NO_TASK,
    LOOPING_TEXT,
    JAILBREAK,
    REFUSAL_BAIT,
    WRONG_LANGUAGE,
)


@dataclass(frozen=True)
class QualityConfig:
    """The recipe keys `prompts.quality.*`."""

    min_chars: int = 3  # of all user turns together
    max_chars: int = 50_000  # about 12,000 tokens of English
    languages: tuple[str, ...] = ()  # ISO 639-1 codes that are kept; empty: all

    def __post_init__(self) -> None:
        if not 0 <= self.min_chars <= self.max_chars:
            raise UsageError(
                f"prompts.quality.min_chars={self.min_chars} and max_chars={self.max_chars}",
                "0 <= min_chars <= max_chars",
                "change one of them",
            )
        for code in self.languages:
            if not re.fullmatch("[a-z]{2}", code):
                raise UsageError(f"prompts.quality.languages with {code!r}", "ISO 639-1 codes such as en", "mend it")


def find_quality_issue(config: QualityConfig, texts: Sequence[str], language: str) -> str | None:
    """The first reason of REASONS for which a record with these user turns is dropped; None where it is good."""
    reason = _check_length(config, texts) or _check_characters(texts)
    if reason is None and not any(map(has_task, texts)):
        reason = NO_TASK
    if reason is None and any(map(is_looping_text, texts)):
        reason = LOOPING_TEXT
    if reason is None:
        reason = _check_phrases(texts)
    if reason is None and config.languages and language not in config.languages:
        reason = WRONG_LANGUAGE
    return reason


def _check_length(config: QualityConfig, texts: Sequence[str]) -> str | None:
    num_chars = sum(map(len, texts))
    if num_chars > config.max_chars:
        return TOO_LONG
    return TOO_SHORT if num_chars < config.min_chars else None


_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")
_NO_CHARACTER = re.compile("[\x80-\x9f\ufffd-\uffff\ud800-\udfff]")
# What the UTF-8 bytes 80 to BF become when they are read as Latin-1 or Windows-1252.
_TAIL = "[" + re.escape(bytes(range(0x80, 0xC0)).decode("cp1252", "ignore")) + "\x80-\x9f]"
_CLOSING = "[»”’…›]"  # may stand right behind a capital: "AMANHÃ…" is Portuguese
_MOJIBAKE = re.compile(
    f"(?<![A-Z])[ÃÂ]{_TAIL}|[ÃÂ](?!{_CLOSING}){_TAIL}"  # two bytes, Western Europe: Ã¼ Ã© Â°
    f"|â€{_TAIL}|ðŸ{_TAIL}"  # quotation marks and dashes; emoji
    f"|(?:[ÄÅ]{_TAIL}){{2}}|(?<=[a-z])[ÄÅ]{_TAIL}(?=[a-z])"  # Central Europe: two, or one inside a word
    f"|(?:[ÐÑØÙ×]{_TAIL}){{3}}"  # Cyrillic, Arabic, Hebrew
    f"|(?:[à-ï]{_TAIL}{_TAIL}){{2}}"  # three bytes: Indic, Thai, CJK
)


def _check_characters(texts: Sequence[str]) -> str | None:
    if any(map(_CONTROL.search, texts)):
        return CONTROL_CHARACTERS
    if any(not text.isascii() and (_NO_CHARACTER.search(text) or _MOJIBAKE.search(text)) for text in texts):
        return DAMAGED_ENCODING
    return None


MIN_WORD_CHARS = 3  # letters and digits that are no greeting; one of a language without spaces between words counts two
_WEB_ADDRESS = re.compile(r"\b(?:https?://|www\.)\S+", re.IGNORECASE)
_WORD = re.compile(r"[^\W_]+")
_GREETINGS = """
hi hii hello hey heya hiya yo greetings good morning afternoon evening night day there everyone all bye goodbye
thanks thank you thx ok okay test testing ping hallo hei hej hoi moin servus guten morgen tag abend danke tschüss
bonjour bonsoir salut merci hola buenos buenas dias días tardes noches gracias adiós ciao buongiorno buonasera
grazie salve oi olá ola bom boa dia tarde noite obrigado obrigada goedemorgen goedemiddag goedenavond bedankt dank
cześć dzień dobry dziękuję tack godmorgon привет здравствуйте здравствуй спасибо пока 你好 您好 谢谢 早上好
こんにちは おはよう おはようございます ありがとう 안녕 안녕하세요 감사합니다 مرحبا أهلا شكرا
"""
GREETINGS = frozenset(_GREETINGS.split())


def has_task(text: str) -> bool:
    """Whether a turn says anything besides greetings and web addresses."""
    num_chars = 0
    for word in _words(text):
        if word.casefold() not in GREETINGS:
            num_chars += sum(2 if char >= "\u3040" else 1 for char in word)
            if num_chars >= MIN_WORD_CHARS:
                return True
    return False


def _words(text: str) -> Iterator[str]:
    start = 0
    for address in _WEB_ADDRESS.finditer(text):
        yield from (match.group() for match in _WORD.finditer(text, start, address.start()))
        start = address.end()
    yield from (match.group() for match in _WORD.finditer(text, start))


MIN_LOOP_CHARS = 200  # characters that a loop covers at least, so that "ha ha ha" is none
MAX_PERIOD = 200  # characters of the piece that repeats
MIN_REPEATS = 8
MIN_LOOP_SHARE = 0.25  # of the turn
MIN_RULER_SHARE = 0.75  # of the turn, where the piece has no letter: rulers, tables of zeros, blanks
_STEP = 100  # characters between the places that are looked at: a loop of MIN_STRETCH covers one, with a margin
_PROBE = 32
MIN_LINE = 20  # characters; shorter lines of code repeat by right
MIN_REPEATED_LINES = 5
MIN_REPEATED_SHARE = 0.5
_LINE_END = re.compile(r"[\n.!?。！？]+")


def is_looping_text(text: str) -> bool:
    """Whether a turn is stuck: in one stretch, or in lines and sentences that come back.

    A stretch: a piece of at most 200 characters, 8 times or more right behind itself, over at least 200 characters and
    a quarter of the turn; three quarters of it where the piece has no letter.

    Lines and sentences: those that stood earlier in the turn come to half of its characters; at least 5 of them, of
    20 characters and more with a letter among them.
    """
    return _has_repeated_span(text) or _has_repeated_lines(text)


def _has_repeated_span(text: str) -> bool:
    num_chars, done = len(text), 0
    for place in range(0, num_chars - _PROBE, _STEP):
        if place < done:
            continue
        again = text.find(text[place : place + _PROBE], place + 1, place + MAX_PERIOD + _PROBE)
        if again < 0:
            continue
        period = again - place
        done = again + _count_equal_ahead(text, place, again)
        stretch = done - place + _count_equal_behind(text, place, again)
        share = MIN_LOOP_SHARE if any(map(str.isalpha, text[place:again])) else MIN_RULER_SHARE
        if stretch >= max(MIN_LOOP_CHARS, MIN_REPEATS * period, share * num_chars):
            return True
    return False


def _count_equal_ahead(text: str, one: int, other: int) -> int:
    """How many characters from `one` on are those from `other` on (one < other)."""
    same, step = 0, _PROBE
    while step:
        if other + same + step <= len(text) and text.startswith(
            text[one + same : one + same + step], other + same, other + same + step
        ):
            same += step
            step *= 2
        else:
            step //= 2
    return same


def _count_equal_behind(text: str, one: int, other: int) -> int:
    """How many characters before `one` are those before `other`; what began earlier was seen from an earlier place."""
    same = 0
    while same < min(one, _STEP + MAX_PERIOD) and text[one - same - 1] == text[other - same - 1]:
        same += 1
    return same


def _has_repeated_lines(text: str) -> bool:
    seen: set[str] = set()
    num_repeated = num_chars = 0
    for piece in _LINE_END.split(text):
        line = piece.strip()
        if len(line) < MIN_LINE:
            continue
        if line in seen and any(map(str.isalpha, line)):
            num_repeated += 1
            num_chars += len(line)
        seen.add(line)
    return num_repeated >= MIN_REPEATED_LINES and num_chars >= MIN_REPEATED_SHARE * len(text)


# Phrases are searched in lower case with single blanks.
_HOW = r"\bhow (?:to|do i|can i|could i|would i|do you|can you|one can) "
# name -> a word that must occur (a cheap first look), and the pattern
JAILBREAK_PHRASES = {
    "ignore all previous instructions": (
        "instruction",
        r"\b(?:ignore|disregard|forget) (?:all|any|your)(?: of)?(?: the| your)?"
        r"(?: previous| prior| above| earlier| preceding)? instructions?\b",
    ),
    "do anything now": ("do anything now", r"\bdo anything now\b"),
    "a mode without rules": (" mode", r"\b(?:(?:dan|jailbreak) mode\b|developer mode (?:enabled|output))"),
    "you have no limits": (
        "you",
        r"\byou(?:r|rself)?\b[^.!?]{0,80}\b"
        r"(?:without|(?:have|has|with) no|free (?:of|from)|not bound by|bypass|ignore) "
        r"(?:any |all |your |openai'?s? )*(?:ethical|moral|safety|content|usage)(?: (?:and|or) \w{1,20})? "
        r"(?:guidelines?|restrictions?|limitations?|polic(?:y|ies)|filters?|constraints?|rules?|boundaries)\b",
    ),
    "you never refuse": ("refuse", r"\byou (?:will |must |can |should |are to )?never (?:ever )?refuse\b"),
}
REFUSAL_BAIT_PHRASES = {
    "weapons and drugs": (
        "how ",
        _HOW + r"(?:make|build|construct|cook|synthesi[sz]e|produce) (?:an? |some |the )?(?:home ?made )?"
        r"(?:bombs?|(?:pipe|nail|car|dirty) bombs?|explosives|molotov|nerve (?:gas|agent)|sarin|ricin|anthrax|napalm"
        r"|(?:crystal )?meth|methamphetamine|chemical weapons?|bioweapons?)\b",
    ),
    "violence": (
        "how ",
        _HOW + r"(?:kill|murder|poison|kidnap|stalk) (?:someone|somebody|a person|people|my (?:\w{1,12} )?"
        r"(?:wife|husband|girlfriend|boyfriend|boss|neighbou?r|mother|father|sister|brother))\b",
    ),
    "children": (
        "",
        r"\b(?:child porn(?:ography)?|csam|(?:sexual(?:ly)?(?: explicit)?|erotic|porn(?:ographic)?) "
        r"(?:story|stories|content|scene|images?) (?:about|with|of|involving) (?:an? )?"
        r"(?:underage|child|children|minors?))\b",
    ),
    "intrusion": (
        "hack",
        _HOW + r"hack (?:into )?(?:someone|somebody|my (?:\w{1,12} )?(?:wife|husband|girlfriend|boyfriend|boss|ex))",
    ),
    "malware": (
        "",
        r"\b(?:write|create|code|build|make|give) (?:me )?(?:an? |some )?(?:working |functional |undetectable )?"
        r"(?:ransomware|keylogger|malware|computer (?:virus|worm))\b",
    ),
}
_PHRASES = [
    (reason, word, re.compile(pattern))
    for reason, phrases in ((JAILBREAK, JAILBREAK_PHRASES), (REFUSAL_BAIT, REFUSAL_BAIT_PHRASES))
    for word, pattern in phrases.values()
]


def _check_phrases(texts: Sequence[str]) -> str | None:
    for text in texts:
        folded = " ".join(text.lower().split())
        for reason, word, pattern in _PHRASES:
            if word in folded and pattern.search(folded):
                return reason
    return None
