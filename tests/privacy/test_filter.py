import sys
import traceback
from typing import Any

import pytest
from tests.privacy.detection import KEY, detector, make_filter

from eyas.base.config import build
from eyas.base.errors import InputError, StageError, UsageError
from eyas.privacy.config import PrivacyConfig
from eyas.privacy.filter import MENTION, CleanedRecord, DroppedRecord, PrivacyFilter, build_detectors
from eyas.privacy.span import Span


def clean(*texts, language="en", **settings) -> Any:
    return make_filter(**settings).clean([(texts, language)])[0]


def clean_all(records, **settings) -> list[Any]:
    return list(make_filter(**settings).clean(records))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("password=hunter2", "secret"),
        ("4539 6779 7904 9696", "card"),
        ("IBAN DE29 2584 4090 4817 9671 41", "account"),
        ("SSN 536-22-1234", "government_id"),
        ("I live at 12 Elm Street.", "address"),
    ],
)
def test_what_is_dropped(text, reason):
    result = clean("fine", text)
    assert result == DroppedRecord(reason, {reason.upper(): 1})


def test_what_is_replaced_everywhere_in_the_record():
    first = "Anna Schmidt <aschmidt@web.de> wrote from 81.2.69.142: call 555-123-4567. User aschmidt is anna."
    result = clean(first, "Anna's number was 5551234567. Mrs SCHMIDT agreed, anna_schmidt too. aschmidt@web.de")
    assert isinstance(result, CleanedRecord)
    both = " ".join(result.texts).lower()
    for value in ("anna", "schmidt", "aschmidt", "81.2.69.142", "555-123-4567", "5551234567", "web.de"):
        assert value not in both, value
    name = result.texts[0].split()[0]
    assert result.texts[1].startswith(f"{name}'s number was ")
    assert f"{name.lower()}_" in result.texts[1]
    assert set(result.changed) == {"PERSON", "EMAIL", "PHONE", "IP_ADDRESS"}


def test_one_person_stays_one_over_the_run_and_another_key_changes_all():
    records = [(("Anna Schmidt left.",), "en"), (("I saw Anna.",), "en"), (("Anna Schmidt said so.",), "en")]
    one, two, three = clean_all(records)
    first, last = one.texts[0].split()[:2]
    assert two.texts[0] == f"I saw {first}."
    assert three.texts[0] == f"{first} {last} said so."
    assert clean_all(records, key=b"another key of sixteen")[0].texts != one.texts


def test_an_address_of_e_mail_tells_a_name():
    result = clean("Mail tevita.fifita@web.de today. Later Fifita was out.")
    assert "fifita" not in result.texts[0].lower()


def test_a_word_that_is_a_name_too_stays_where_it_is_a_word():
    result = clean("Will Smith has a dog. Will you walk it? They will, and Will smiles.")
    assert "Will you walk it? They will, and" in result.texts[0]
    assert "Will Smith" not in result.texts[0]
    assert "Will smiles" not in result.texts[0]


def test_a_text_without_people_survives():
    texts = ("What is 12 * 7?", "def f(x):\n    return x ** 2  # Rose to the occasion")
    assert clean(*texts) == CleanedRecord(texts, {})
    assert clean() == CleanedRecord((), {})
    assert clean("") == CleanedRecord(("",), {})


def test_languages():
    assert clean("Olen Matti.", language="fi") == DroppedRecord("unsupported_language", {})
    kept = clean("password=hunter2", language="fi", unsupported_language="keep")
    assert kept == DroppedRecord("secret", {"SECRET": 1})


def test_a_detector_adds_its_languages():
    class Finnish:
        name = "finnish"
        name_languages: frozenset[str] = frozenset(("fi",))

        def find(self, texts, languages):
            return [[Span(5, 10, "PERSON")] for _ in texts]

    result = PrivacyFilter(PrivacyConfig(names="all"), KEY, [detector(), Finnish()]).clean([(("Olen Matti.",), "fi")])[
        0
    ]
    assert isinstance(result, CleanedRecord)
    assert "Matti" not in result.texts[0]
    assert result.changed == {"PERSON": 1}


def test_kinds_may_be_left_alone_or_replaced_instead():
    assert clean("I met Anna Schmidt.", replace=()) == CleanedRecord(("I met Anna Schmidt.",), {})
    result = clean("pay 4539 6779 7904 9696 now", drop=(), replace=("CARD",))
    assert isinstance(result, CleanedRecord)
    assert "4539" not in result.texts[0]
    assert result.changed == {"CARD": 1}


def test_scan_counts_by_kind():
    assert make_filter().scan(["Anna and Bert", "fine", "password=hunter2"], ["en"] * 3) == [
        {"PERSON": 2},
        {},
        {"SECRET": 1},
    ]


def test_results_do_not_depend_on_the_batch():
    records = [((f"Anna Schmidt has {n} apples, call 555-123-4{n}",), "en") for n in range(100, 120)]
    together = make_filter().clean(records)
    assert together == [make_filter().clean([record])[0] for record in records]


def test_the_digest_knows_settings_and_detectors_but_not_the_key():
    assert make_filter().digest == make_filter(key=bytes(32)).digest
    assert make_filter(key_file="here").digest == make_filter(key_file="there").digest
    assert make_filter(replace=()).digest != make_filter().digest
    other: Any = type("Other", (), {"name": "other", "name_languages": frozenset(), "find": None})()
    assert PrivacyFilter(PrivacyConfig(), KEY, [other]).digest != make_filter().digest


def test_no_value_in_an_error_or_a_repr():
    secret = bytes([65, 110, 110, 97]).decode()  # not written in this file's lines, which a traceback quotes

    class Broken:
        name = "broken"
        name_languages: frozenset[str] = frozenset(("en",))

        def find(self, texts, languages):
            raise ValueError(f"cannot read {texts[0]}")

    with pytest.raises(StageError, match="The detector broken failed with ValueError") as caught:
        PrivacyFilter(PrivacyConfig(), KEY, [Broken()]).clean([((secret,), "en")])
    assert secret not in "".join(traceback.format_exception(caught.value))
    refused = clean("password=hunter2 and 4539 6779 7904 9696")
    assert "hunter2" not in repr(refused)
    assert "4539" not in repr(refused)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"detectors": ()}, "detectors is empty"),
        ({"detectors": ("presidio",)}, "unknown detector 'presidio'"),
        ({"detectors": ("model:",)}, "unknown detector 'model:'"),
        ({"detectors": ("gliner:a",)}, "unknown detector 'gliner:a'"),
        ({"detectors": ("dlp:p/Europe West",)}, "unknown detector 'dlp:p/Europe West'"),
        ({"detectors": ("dlp:p?filter=x",)}, r"unknown detector 'dlp:p\?filter=x'"),
        ({"detectors": ("model:a", "model:a")}, "names model:a twice"),
        ({"detectors": ("builtin", "builtin")}, "names builtin twice"),
        ({"drop": ("NAME",)}, r"drop\[0\] = 'NAME' is not one of 'PERSON'"),
        ({"replace": ("person",)}, r"replace\[0\] = 'person' is not one of 'PERSON'"),
        ({"drop": ("PERSON",)}, "PERSON is both in"),
        ({"unsupported_language": "translate"}, "'translate' is not one of 'drop' or 'keep'"),
    ],
)
def test_settings_that_are_rejected(settings, problem):
    with pytest.raises(UsageError, match=f"prompts.privacy.*{problem}|^{problem}"):
        build(PrivacyConfig, settings, "prompts.privacy")


def test_detectors_of_a_recipe():
    names = ("builtin", "model:a/b", f"model:a/b@{'0' * 40}", "dlp", "dlp:p", "dlp:p/eu", "dlp:x.com:p?template=t")
    assert PrivacyConfig(detectors=names).detectors == names


def test_detectors_that_are_not_there(tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"model:.*none is no directory"):
        build_detectors([f"model:{tmp_path}/none"])
    (tmp_path / "gliner_config.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "gliner", None)  # importing it raises ImportError
    with pytest.raises(UsageError, match="pip install gliner"):
        build_detectors([f"model:{tmp_path}"])
    monkeypatch.setitem(sys.modules, "google.cloud.dlp_v2", None)
    with pytest.raises(UsageError, match=r"pip install 'eyas\[dlp\]'"):
        build_detectors(["dlp:my-project"])
    assert build_detectors(["builtin"])[0].name.startswith("builtin")


def test_a_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "eyas.privacy.builtin_detector", None)  # importing it raises ImportError
    with pytest.raises(UsageError, match=r"pip install 'eyas\[data\]'"):
        build_detectors(["builtin"])


def test_odd_input():
    for text in ("\0\0Anna\0", "\ufffd" * 10, "A" * 3000, "é" * 100, "\u202eAnna\u202c", "🎉 Anna 🎉", "\r\n\t "):
        assert isinstance(clean(text), CleanedRecord), repr(text[:20])


def test_what_was_found_is_told_by_position():
    texts = ("My name is Anna Schmidt, mail me at anna.schmidt@acme-widgets.com.", "Does Anna answer?")
    result = clean(*texts)
    first, second = result.found
    assert [texts[0][each.span.start : each.span.end] for each in first] == [
        "Anna Schmidt",
        "anna.schmidt@acme-widgets.com",
    ]
    assert {each.span.rule.partition(".")[0] for each in first} == {"builtin"}
    for text, values, cleaned in zip(texts, result.found, result.texts, strict=True):
        for each in reversed(values):
            text = text[: each.span.start] + (each.surrogate or "") + text[each.span.end :]
        assert text == cleaned
    assert [(each.span.start, each.span.end) for each in second] == [(5, 9)]
    assert second[0].span.rule in ("builtin", MENTION) or second[0].span.rule.startswith("builtin.")
    dropped = clean("My name is Anna Schmidt and my SSN is 536-22-1234.")
    assert [(each.span.kind, each.surrogate) for each in dropped.found[0]][-1] == ("GOVERNMENT_ID", None)


class _Names:
    def __init__(self, languages):
        self.name = "names 1"
        self.name_languages = frozenset(languages)

    def find(self, texts, languages):
        return [[Span(0, len(text), "PERSON")] for text in texts]


def test_languages_in_which_a_detector_finds_names():
    detectors = [_Names(["en", "ko"]), _Names(["ja"])]
    privacy = PrivacyFilter(PrivacyConfig(), KEY, detectors)
    assert privacy.name_languages == {"en", "ja", "ko"}


def test_a_span_without_a_rule_has_the_name_of_its_detector():
    (result,) = PrivacyFilter(PrivacyConfig(names="all"), KEY, [_Names(["en"])]).clean([(("Anna",), "en")])
    assert isinstance(result, CleanedRecord)
    assert result.found[0][0].span.rule == "names"
