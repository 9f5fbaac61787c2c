import ipaddress

import pytest
from tests.privacy.detection import KEY

from eyas.privacy.span import KINDS
from eyas.privacy.surrogates import FIRST, LAST, Surrogates, name_parts
from eyas.privacy.word_lists import LANGUAGES

S = Surrogates(KEY)
EXAMPLES = {
    "LOCATION": "Berlin",
    "ADDRESS": "12 Elm Street",
    "EMAIL": "jane@mail.com",
    "PHONE": "+49 171 1234567",
    "CARD": "4111 1111 1111 1111",
    "ACCOUNT": "DE89 3704 0044 0532 0130 00",
    "GOVERNMENT_ID": "536-22-1234",
    "SECRET": "hunter2",
    "IP_ADDRESS": "81.2.69.142",
}


@pytest.mark.parametrize("language", [*LANGUAGES, "xx"])
@pytest.mark.parametrize("kind", EXAMPLES)
def test_another_value_and_always_the_same(kind, language):
    value = EXAMPLES[kind]
    other = S.replace_value(kind, value, language)
    assert other != value
    assert other == S.replace_value(kind, value, language)
    assert other != Surrogates(bytes(32)).replace_value(kind, value, language) or kind == "LOCATION"


def test_every_kind_has_a_surrogate():
    assert {*EXAMPLES, "PERSON"} == set(KINDS)


def test_names_keep_their_shape():
    anna = S.replace_name_part("Anna", FIRST, "de")
    assert S.replace_name_part("anna", FIRST, "de") == anna.lower()
    assert S.replace_name_part("ANNA", FIRST, "de") == anna.upper()
    assert S.replace_name_part("Anna", LAST, "de") != anna
    assert len(S.replace_name_part("J", FIRST, "en")) == 1
    assert [part[0] for part in name_parts("Ana de la Cruz-Vega")] == ["Ana", "Cruz", "Vega"]


def test_no_name_becomes_itself():
    from eyas.privacy.word_lists import person_names

    for name in person_names("first", "sv_SE"):
        assert S.replace_name_part(name, FIRST, "sv") != name


def test_reserved_numbers_and_domains():
    assert S.replace_value("EMAIL", "jane@mail.com", "en").split("@")[1] in (
        "example.com",
        "example.org",
        "example.net",
    )
    assert ".555-01" in S.replace_value("PHONE", "213.867-5309", "en") or "-555-01" in S.replace_value(
        "PHONE", "213-867-5309", "en"
    )
    assert S.replace_value("PHONE", "+49 171 1234567", "de").startswith("+49 ")
    assert not ipaddress.ip_address(S.replace_value("IP_ADDRESS", "81.2.69.142", "en")).is_global
    assert ipaddress.ip_address(S.replace_value("IP_ADDRESS", "2a00:1450::200e", "en")) in ipaddress.ip_network(
        "2001:db8::/32"
    )
    # The same digits in another grouping are the same number.
    first, second = S.replace_value("PHONE", "213-867-5309", "en"), S.replace_value("PHONE", "(213) 867 5309", "en")
    assert [c for c in first if c.isdigit()] == [c for c in second if c.isdigit()]


def test_the_key_shows_nowhere():
    assert repr(KEY)[2:10] not in repr(S) + str(S)
