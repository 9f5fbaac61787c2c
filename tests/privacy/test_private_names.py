"""Private names are replaced; names of public figures, characters and school problems stay."""

import pytest
from tests.privacy.detection import find_private_names, make_filter

from eyas.base.errors import InputError
from eyas.privacy.filter import CleanedRecord
from eyas.privacy.private_names import select_private
from eyas.privacy.span import Span
from eyas.privacy.words import PhraseMatcher, split_words

PAIRS = [
    ("Zorvek Tallis", "My landlord {} keeps our deposit and never answers.", "Who was {}, the painter of the fresco?"),
    ("Napoleon Bonaparte", "Patient {} needs a new prescription for insulin.", "Why did {} lose the battle?"),
    ("Marie Curie", "I share a flat with {} and she owes me rent.", "How many Nobel prizes did {} win?"),
    ("Anna", "Write a card for my sister {}, she had a baby last week.", "{} has 12 apples. How many are left?"),
    ("Tevita Fifita", "hi, my name is {} and my parcel never came", "Write a story about {}, a knight on a horse."),
]


@pytest.mark.parametrize(("name", "private", "public"), PAIRS)
def test_the_context_decides(name, private, public):
    cleaned, kept = make_filter(names="private").clean([((text.format(name),), "en") for text in (private, public)])
    assert isinstance(cleaned, CleanedRecord)
    assert name not in cleaned.texts[0]
    assert kept == CleanedRecord((public.format(name),), {})


def test_evidence_in_one_turn_counts_for_the_others():
    turns = ("Write to my colleague Zorvek Tallis about the overdue invoice.", "What could Zorvek answer?")
    result = make_filter(names="private").clean([(turns, "en")])[0]
    assert isinstance(result, CleanedRecord)
    assert "Zorvek" not in result.texts[1]


def test_a_private_person_makes_the_others_of_the_record_likelier():
    text = "My landlord Zorvek Tallis keeps my deposit. And what about Brenna Quill?"
    spans = [Span(12, 25, "PERSON", 1.0, "builtin.first"), Span(59, 71, "PERSON", 1.0, "builtin.first")]
    alone = select_private([text[44:]], [[Span(15, 27, "PERSON", 1.0, "builtin.first")]], "en")[0]
    together = select_private([text], [spans], "en")[0]
    assert not alone
    assert [text[span.start : span.end] for span in together] == ["Zorvek Tallis", "Brenna Quill"]
    assert all(0.5 <= span.score <= 1 for span in together)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("Jean court 60 km chaque semaine, 3 jours par semaine. Quelle est sa vitesse ?", []),
        ("Jean court 60 km chaque semaine, 3 jours par semaine avec son patron.", ["Jean"]),
        ("Jean me doit 60 euros depuis 3 semaines. Comment lui demander ?", ["Jean"]),
    ],
)
def test_a_first_name_stays_in_a_question_with_numbers(text, names):
    assert find_private_names(text, "fr") == names


def test_a_place_stays_unless_the_record_has_personal_data():
    asked = "I live in Leeds. What can I see at the weekend?"
    told = "My name is Zorvek Tallis and I live in Leeds."
    kept, cleaned = make_filter(names="private").clean([((asked,), "en"), ((told,), "en")])
    assert kept == CleanedRecord((asked,), {})
    assert isinstance(cleaned, CleanedRecord)
    assert "Leeds" not in cleaned.texts[0]


def test_the_mode_all_replaces_every_name():
    result = make_filter(names="all").clean([(("Why did Napoleon Bonaparte lose?",), "en")])[0]
    assert isinstance(result, CleanedRecord)
    assert "Bonaparte" not in result.texts[0]


def test_values_of_the_steward_stay(tmp_path):
    text = "My name is Zorvek Tallis and I live in Leeds."
    path = tmp_path / "keep.txt"
    path.write_text("\nzorvek tallis\n Leeds \n")
    assert make_filter(names="private", keep=str(path)).clean([((text,), "en")])[0] == CleanedRecord((text,), {})
    assert make_filter(keep=str(path)).digest != make_filter().digest
    with pytest.raises(InputError, match=r"prompts.privacy.keep=.*none cannot be read"):
        make_filter(keep=str(tmp_path / "none"))


def test_a_matcher_finds_words_stems_and_phrases():
    matcher = PhraseMatcher(("private_relations", "private_matters", "first_person"), "en")
    found = {(text, table) for text, table in _find(matcher, "My friends got a written warning: redundancy")}
    assert found == {
        ("My", "first_person"),
        ("friends", "private_relations"),
        ("written warning", "private_matters"),
        ("redundancy", "private_matters"),
    }


def test_a_matcher_finds_words_after_an_apostrophe_and_with_hyphens():
    matcher = PhraseMatcher(("private_relations", "private_contacts"), "en")
    assert _find(matcher, "d'aunt, my mother-in-law") == [
        ("d'aunt", "private_relations"),
        ("mother-in-law", "private_relations"),
        ("mother", "private_relations"),
    ]


def _find(matcher, text):
    return [(text[start:end], table) for start, end, table in matcher.find(split_words(text))]
