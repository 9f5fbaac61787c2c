"""Finds names of people and towns in Arabic and Hindi texts, which have spaces between words but no capitals.

    text                    evidence for a name
    وصلتني من سمر الحربي رسالة  a listed first name, a listed last name behind it
    ابن عمي كنعان بن لؤي        a relation before it, a particle inside it
    रोहताश बैरवा की फ़ीस          a word that no dictionary has, a listed last name behind it
    नाम – टेन्ज़िन                a label

Each word of a name gives points, and so do the words beside it. The search reads each word a fixed number of times, so
it takes linear time.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache

from eyas.privacy.case_insensitive import fold_word
from eyas.privacy.dictionary import is_known
from eyas.privacy.phrase_matcher import load_matcher
from eyas.privacy.span import Span
from eyas.privacy.word_lists import read_data_file, read_entries, read_names_of
from eyas.privacy.words import Words, cut_prefixes

_LEADS: dict[str, tuple[str, int]] = {table: tuple(lead) for table, lead in read_data_file("data/name_leads").items()}
_AFTER_MARK = 3  # points of a name behind a label with a colon or a dash
_FIRST, _LAST, _DOUBTFUL, _UNKNOWN, _JOINED = 3, 2, 1, 0, 3  # points of a word
_ENOUGH = 3  # points of a name
_MAX_WORDS = 6  # of a name
_SPACE = re.compile(r"[ \u00a0]\Z")
_INSIDE = re.compile(r"(?:[ \u00a0]|-|\.[ \u00a0]?)\Z")
_LEAD_GAP = re.compile(r"[ \u00a0]?[\"'“«(*]*\Z")
_MARK = re.compile(r"[ \u00a0]?[*_]*[:=：–|-][*_]*[\s\"'“«(*]*\Z")
_VERB = re.compile(r"^(?!ال)(?:س[يتن]|.*(?:ت|وا|ون|ين)\Z)")  # Arabic verbs, of which the dictionary lacks many
_NISBA = re.compile(r"ال\w{3,}ي\Z")  # behind a first name, "of Basra" is a last name
_LINE = re.compile(r"\n")
_BASE = "عبد"  # "servant of": a first name with the word behind it
_REACH_OF_LIVING = 4  # words between a town and a word such as "live"


class _Lists:
    """The words of one language, each in the spelling of `fold_word`."""

    def __init__(self, language: str) -> None:
        self.language = language
        women, men = self.read("given_names_of_women"), self.read("given_names_of_men")
        self.doubtful = self.read("first_names_that_are_words")
        relations = self.read("private_relations") | self.read("titles") | self.read("honorifics")
        faker = self._faker("first") | self._faker("last")
        words = frozenset(name for name in faker if is_known(name, language))
        self.first = (women | men | self.doubtful | (self._faker("first") - words)) - relations
        self.last = (self.read("surnames") | (self._faker("last") - words)) - relations
        self.joining, self.kin = self.read("joining_particles"), self.read("particles_before_names")
        self.endings = self.read("last_parts_of_names")
        self.spelled = read_entries("function_words", language)  # "على" is a word, "علي" is a name
        self.initials = self.read("initials")
        self.behind = self.read("honorifics")
        self.never = self.read("function_words") | self.read("common_words")
        self.towns = {tuple(town.split()) for town in self.read("towns")}
        self.town_starts = {town[0] for town in self.towns}
        self.doubtful_towns = {tuple(town.split()) for town in self.read("towns_that_are_words")}
        self.no_town = self.read("words_after_public_places") | self.read("words_before_public_places")

    def read(self, table: str) -> frozenset[str]:
        """Returns the entries of a table; an empty set if the language lacks it."""
        entries = read_entries(table, self.language)
        return frozenset(" ".join(map(fold_word, entry.split())) for entry in entries)

    def _faker(self, part: str) -> frozenset[str]:
        names = (fold_word(name) for name in read_names_of(part, self.language))
        return frozenset(name for name in names if " " not in name and len(name) > 2)


@cache
def load_lists(language: str) -> _Lists:
    """Returns the word lists of one of UNICASED. A process loads them once."""
    return _Lists(language)


@lru_cache(maxsize=100_000)
def find_name_start(written: str, language: str, is_followed: bool) -> int:
    """Returns the number of characters of the Arabic prefixes before a listed first name: 1 for "لأحمد", else 0.

    Args:
        written: The word.
        language: One of UNICASED.
        is_followed: A listed name stands behind the word, so that the first name may be a word as well.
    """
    form, lists = fold_word(written), load_lists(language)
    if language != "ar" or _class_of(form, language) > 0 or form in lists.never:
        return 0
    for rest in cut_prefixes(form)[1:]:
        is_certain = is_followed or rest not in lists.doubtful
        if (rest in lists.first and is_certain) or rest == _BASE or (rest in lists.kin and is_followed):
            return _position_of(written, len(form) - len(rest))
    return 0


def _position_of(written: str, count: int) -> int:
    """Returns the position in a word behind its first `count` characters that are no signs."""
    place = 0
    while count:
        count -= bool(fold_word(written[place]))
        place += 1
    return place


@lru_cache(maxsize=100_000)
def _class_of(form: str, language: str) -> int:
    """Returns the points of one word: as a first name, a last name, or both; -1 for a word that is no name."""
    lists = load_lists(language)
    if form in lists.doubtful:
        return _DOUBTFUL
    if form in lists.first:
        return _FIRST
    if form in lists.last:
        return _LAST
    return -1 if form in lists.never or is_known(form, language) else _UNKNOWN


class NameSearch:
    """The search for names and towns in one text. Arguments `i` are indices of words."""

    def __init__(self, words: Words, language: str) -> None:
        """Looks up the words of the text.

        Args:
            words: The words of the text.
            language: One of UNICASED.
        """
        self.words, self.language, self.lists = words, language, load_lists(language)
        self.forms = tuple(map(fold_word, words.lowers))
        self.points = tuple(
            -1 if lower in self.lists.spelled else _class_of(form, language)
            for lower, form in zip(words.lowers, self.forms, strict=True)
        )
        self.leads: dict[int, list[str]] = {}  # end of an entry -> its tables
        self.known: dict[int, int] = {}  # start of a well-known name -> its end
        living = set[int]()
        for start, end, table in load_matcher((*_LEADS, "public_people", "words_of_living"), language).find(words):
            if table == "public_people":
                # No single word that is a doubtful name: "صباح" is a singer and the morning.
                i = bisect_left(words.starts, start)
                if words.ends[i] < end or self.points[i] != _DOUBTFUL:
                    self.known[start] = max(end, self.known.get(start, 0))
            elif table == "words_of_living":
                living.add(end)
            else:
                self.leads.setdefault(end, []).append(table)
        self.living = {i for i, end in enumerate(words.ends) if end in living}

    def find_names(self) -> Iterator[Span]:
        """Yields the spans of names, of kind "PERSON"."""
        i = 0
        while i < len(self.words):
            span, following = self._name_at(i)
            if span:
                yield span
            i = following

    def _name_at(self, i: int) -> tuple[Span | None, int]:
        """Returns the name that begins at word i, if there is one, and the index of the next word to look at."""
        rule, lead = self._lead_of(i)
        skipped = 0
        if self.points[i] <= 0:
            is_followed = self._follows(i) and self.points[i + 1] >= _LAST
            skipped = find_name_start(self.words.written[i], self.language, is_followed)
        end, points, count = self._read(i, bool(lead), skipped > 0)
        if end > i:
            behind = self._points_behind(end)
            # Nearly all Arabic last names are first names or other words as well.
            is_sure = end == i + 1 and self.points[i] == _LAST and self.language != "ar"
            points += lead + (count > 1) + behind + (is_sure and not is_known(self.forms[i], self.language))
            rule = "title" if behind and rule == "listed" else rule
        known = self.known.get(self.words.starts[i], 0)
        start = self.words.starts[i] + skipped
        if end > i and points >= _ENOUGH and self.words.ends[end - 1] >= known and not self._is_town(i, end):
            return Span(start, self.words.ends[end - 1], "PERSON", min(0.9, points / 8), f"builtin.{rule}"), end
        if known:
            following = next((k for k in range(i, len(self.words)) if self.words.starts[k] >= known), len(self.words))
            return Span(self.words.starts[i], known, "PERSON", 0.5, f"builtin.{rule}"), following
        return None, i + 1

    def _follows(self, i: int) -> bool:
        """Returns True if another word follows word i, with a blank between."""
        return i + 1 < len(self.words) and _SPACE.match(self.words.gap(i)) is not None

    def _lead_of(self, i: int) -> tuple[str, int]:
        """Returns the rule and the points of the words before word i."""
        if i == 0:
            return "listed", 0
        k = i - 1
        gap = self.words.gap(k)
        has_mark = _MARK.match(gap) is not None
        if not has_mark and gap.strip() and self.words.ends[k] not in self.leads:
            return "listed", 0
        tables = self.leads.get(self.words.ends[k])
        if not tables or not (has_mark or _LEAD_GAP.match(gap.replace(".", "").replace("،", "").replace(",", ""))):
            return "listed", 0
        rules = (_LEADS[table] for table in tables)
        rules = (("field", _AFTER_MARK) if has_mark and rule == "label" else (rule, points) for rule, points in rules)
        return max(rules, key=lambda rule: rule[1])

    def _read(self, i: int, is_led: bool, is_prefixed: bool) -> tuple[int, int, int]:
        """Reads the words of a name from word i on.

        Returns:
            The index behind its last word, its points, and the number of its words.
        """
        k, points, count, best = i, 0, 0, 0
        is_complete = False  # no unlisted word continues the name
        while k < len(self.words) and k - i < _MAX_WORDS and (k == i or _INSIDE.match(self.words.gap(k - 1))):
            size, more = self._read_part(k, k == i, is_led or points > 0, is_prefixed and k == i)
            is_unlisted = size == 1 and k > i and self.points[k] == _UNKNOWN and self.forms[k] not in self.lists.endings
            if not size or (is_unlisted and (is_complete or _VERB.search(self.forms[k]))):
                break
            is_complete = size > 1 or self.points[k] == _LAST
            k, points, count, best = k + size, points + more, count + 1, max(best, more)
        # Two words that are names sometimes, "हर विकास", are a name if the second one is a surname.
        is_full = best > _DOUBTFUL or (k > i and self.forms[k - 1] in self.lists.last)
        return k, points, count if is_full else 1

    def _read_part(self, k: int, is_start: bool, is_name: bool, is_prefixed: bool) -> tuple[int, int]:
        """Returns the number of words and the points of the part of a name that begins at word k; 0, 0 for none.

        Args:
            k: Index of the word.
            is_start: It is the first word of the name.
            is_name: Something before it shows that a name may follow.
            is_prefixed: The word is a listed first name behind a prefix.
        """
        form, points = self.forms[k], self.points[k]
        following = k + 1 if self._follows(k) else 0
        if following and (form == _BASE or (is_prefixed and form.endswith((_BASE, *self.lists.kin)))):
            return 2, _FIRST
        if is_prefixed:
            return 1, _FIRST
        if following and form in self.lists.joining:
            after = self.points[following]
            if after > 0 or (is_name and not is_start and self.forms[following] not in self.lists.never):
                size, more = self._read_part(following, False, True, False)
                return (1 + size, max(more, _LAST)) if size or not is_start else (0, 0)
            return 0, 0
        if following and form in self.lists.kin and not self._is_town(k, following + 1):
            after = self.points[following]
            is_kin = after >= _LAST or (is_name and self.forms[following] not in self.lists.never)
            return (2, _LAST + (after >= _LAST)) if is_kin else (0, 0)
        if points > 0:
            return 1, points
        if not is_start and (form in self.lists.endings or (is_name and _NISBA.match(form))):
            return 1, _DOUBTFUL
        if form in self.lists.initials and (self._starts_initials(k) or (is_name and self._ends_name(k, is_start))):
            return 1, 0
        if points == _UNKNOWN and len(form) > 2 and (is_name or (following and self.points[following] == _LAST)):
            return 1, 0 if is_start and is_name else 1
        return 0, 0

    def _starts_initials(self, k: int) -> bool:
        """Returns True if the initials from word k on stand before a name: "एम एस धोनी"."""
        while k < len(self.words) and self.forms[k] in self.lists.initials and _INSIDE.match(self.words.gap(k)):
            k += 1
        return k < len(self.words) and self.points[k] >= _LAST

    def _ends_name(self, k: int, is_start: bool) -> bool:
        """Returns True for an initial behind a name. "के" is a postposition, too: "फ़ातिमा पी के को"."""
        if is_start or self.words.lowers[k] not in self.lists.spelled:
            return not is_start
        is_word_behind = not self._follows(k) or self.words.lowers[k + 1] in self.lists.spelled
        return self.forms[k - 1] in self.lists.initials and is_word_behind

    def _points_behind(self, end: int) -> int:
        """Returns the points of the words behind a name: an honorific."""
        is_near = end < len(self.words) and _SPACE.match(self.words.gap(end - 1)) is not None
        return 2 if is_near and self.forms[end] in self.lists.behind else 0

    def _is_town(self, i: int, end: int) -> bool:
        return self._town_size(i, 0) == end - i

    def find_towns(self, is_personal: bool, people: Sequence[Span]) -> Iterator[Span]:
        """Yields the spans of listed towns, of kind "LOCATION".

        Args:
            is_personal: The text is about a person. In another one, a town counts only beside words such as "live".
            people: The names in the text, which are no towns.
        """
        names, done = {k for span in people for k in range(span.start, span.end)}, 0
        for i, form in enumerate(self.forms):
            for rest in cut_prefixes(form)[:3] if self.language == "ar" else (form,):
                size = self._town_size(i, len(form) - len(rest)) if i >= done and rest in self.lists.town_starts else 0
                lives = bool(size) and self._is_lived_in(i, i + size)
                is_word = (rest, *self.forms[i + 1 : i + size]) in self.lists.doubtful_towns
                if not size or not (lives or (is_personal and not is_word)) or self._is_institution(i, i + size):
                    continue
                start = self.words.starts[i] + _position_of(self.words.written[i], len(form) - len(rest))
                if start not in names:
                    done = i + size
                    yield Span(start, self.words.ends[i + size - 1], "LOCATION", 0.8 if lives else 0.5)

    def _town_size(self, i: int, skipped: int) -> int:
        """Returns the number of words of the town that begins at word i, behind so many letters; 0 for none."""
        for size in (3, 2, 1):
            name = (self.forms[i][skipped:], *self.forms[i + 1 : i + size])
            if len(name) == size and name in self.lists.towns:
                return size
        return 0

    def _is_lived_in(self, i: int, end: int) -> bool:
        """Returns True if a word such as "live" or "city" is near the words from i to before `end`."""
        near = range(max(0, i - _REACH_OF_LIVING), min(len(self.words), end + _REACH_OF_LIVING))
        return any(k in self.living and not _LINE.search(self._text_between(k, i, end)) for k in near)

    def _text_between(self, k: int, i: int, end: int) -> str:
        first, last = (k, i) if k < i else (end - 1, k)
        return self.words.text[self.words.ends[first] : self.words.starts[last]]

    def _is_institution(self, i: int, end: int) -> bool:
        """Returns True for the town in "جامعة القاهرة", "दिल्ली विश्वविद्यालय"."""
        beside = [k for k in (i - 1, end) if 0 <= k < len(self.words)]
        return any(self.forms[k] in self.lists.no_town for k in beside)
