"""Detects the language of a prompt with py3langid (offline, 4.5 MB), with rules for short text and code.

For "2+2", `print(1)` or "pizza", a statistical model returns a random language. Three rules return "en" for such
prompts:

1. Only the first MAX_CHARS characters are read. Web addresses and program code in ``` fences are removed, unless
   nothing else remains.
2. A text without a letter is "en".
3. A text whose letters are all ASCII is "en", unless py3langid's confidence in another language is at least
   MIN_CONFIDENCE. Measured on sentences written for eyas: for short ASCII sentences, the lowest confidence of a correct
   result was 0.39. For code, formulas and single words, the highest confidence of a wrong result was 0.27.

Only the languages in LABELS are returned, which have many writers. A text in another language gets the most similar
language of LABELS. With more languages, short texts would more often get a rare, dead or constructed language.
"""

import re
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from eyas.base.environment import import_extra
from eyas.base.storage import convert_write_errors

MAX_CHARS = 1000  # of a text; 0.3 us each
MIN_CONFIDENCE = 0.3
MIN_PART_CHARS = 8  # a shorter turn, or a shorter text in one script, adds no language to the record

# Names of py3langid for varieties, as the ISO 639-1 language that they are written as.
VARIETIES = {"ary": "ar", "arz": "ar", "pcm": "en", "nn": "no", "wuu": "zh", "yue": "zh"}
_CODES = """
af ar az be bg bn bs ca cs cy da de el en es et eu fa fi fr ga gl gu he hi hr hu hy id is it ja jv ka kk km kn ko ky lo
lt lv mk ml mn mr ms my ne nl no pa pl ps pt ro ru si sk sl so sq sr sv sw ta te th tl tr ug uk ur uz vi zh
"""
LABELS = (*_CODES.split(), *VARIETIES)
_LETTER = re.compile(r"[^\W\d_]")
_OTHER_LETTER = re.compile(r"[^\W\d_\x00-\x7f]")
_CODE_AND_ADDRESSES = re.compile(r"```.*?(?:```|\Z)|\b(?:https?://|www\.)\S+", re.DOTALL)
_LATIN = re.compile(r"[A-Za-z\u00c0-\u024f\u1e00-\u1eff]+")
# Letters after the Latin blocks of Unicode: from Greek on, without the Latin and the phonetic blocks after it.
_NOT_LATIN = re.compile(
    r"(?:(?![\u1d00-\u1dbf\u1e00-\u1eff\u2000-\u2bff\ua720-\ua7ff\uff00-\uff65])[^\W\d_\x00-\u036f])+"
)


def detect_language(text: str) -> str:
    """Returns the ISO 639-1 code of the language of `text`; "en" if the text is too short to tell. Deterministic.

    Raises InputError if the extra `data` is not installed.
    """
    head = text[:MAX_CHARS]
    rest = _CODE_AND_ADDRESSES.sub(" ", head)
    if not _LETTER.search(rest):
        rest = head
    if not _LETTER.search(rest):
        return "en"
    name: str
    name, confidence = _load_identifier().classify(rest)
    if confidence < MIN_CONFIDENCE and not _OTHER_LETTER.search(rest):
        return "en"
    return VARIETIES.get(name, name)


def detect_languages(texts: Sequence[str]) -> tuple[str, ...]:
    """Returns all languages (ISO 639-1) in the user turns of one record: the main one, then the others, sorted.

    Each turn is detected separately, and so is the text in Latin letters and in other letters. A prompt "Translate into
    English: ..." has two languages, and names may be in either of them.
    """
    main = detect_language("\n".join(text[:MAX_CHARS] for text in texts))
    parts = list(texts) if len(texts) > 1 else []
    for text in texts:
        other = "" if text.isascii() else " ".join(_NOT_LATIN.findall(text))
        if other:
            parts += [other, " ".join(_LATIN.findall(text))]
    return (main, *sorted({detect_language(part) for part in parts if len(part) >= MIN_PART_CHARS} - {main}))


@cache
def _load_identifier() -> Any:
    langid = import_extra("py3langid.langid", "data")
    with convert_write_errors(Path(tempfile.gettempdir())):  # py3langid unpacks the model there
        identifier = langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)
    identifier.set_languages(list(LABELS))
    return identifier
