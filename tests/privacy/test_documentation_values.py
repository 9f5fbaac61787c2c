"""Values of public documentation stay; values beside them go."""

import pytest
from tests.privacy.detection import detect, detect_values

from eyas.privacy.documentation_values import is_documentation
from eyas.privacy.span import KINDS
from eyas.privacy.word_lists import read_data_file

GROUPS = read_data_file("data/documentation_values")["groups"]


@pytest.mark.parametrize(
    "text",
    [
        "mail user@example.com, admin@mail.example.org or root@server.test",
        "foo@bar.com",
        "the card 4242 4242 4242 4242 and 378282246310005 in test mode",
        "SSN 000-00-0000 or 123-45-6789",
        "call (212) 555-0142 now",
        "phone: 123-456-7890",
        "IBAN DE89 3704 0044 0532 0130 00",
        "aws_access_key_id = AKIAIOSFODNN7EXAMPLE",
        "MAC 00:00:5E:00:53:AF",
        "api_key = 'YOUR_API_KEY'",
        "Authorization: Bearer <token>",
        "password = 'changeme'",
        "account number: 1234567890",
        "server 192.0.2.17 and 2001:db8::17",
        "mail me at prenom.nom@example.fr",
        "the helpline is 1-800-222-1222 or 0800 111 0 111",
        "phone: 090-000-0000",
        "security code 0x8007000d and fault code P0420",
        "postgres://guest:guest@localhost:5432",
        "Beispielstraße 12, 00000-000",
    ],
)
def test_stay(text):
    assert detect(text) == []


def test_a_value_beside_one_goes():
    assert detect_values("PHONE", "call 0800 111 0 111 or 0171 8675309", "de") == ["0171 8675309"]
    assert detect_values("EMAIL", "from user@example.com to anna.k@web.de") == ["anna.k@web.de"]
    assert detect_values("CARD", "4242 4242 4242 4242 or 4539 6779 7904 9696") == ["4539 6779 7904 9696"]


@pytest.mark.parametrize(
    ("number", "language"),
    [
        ("020-672 45 18", "nl"),  # Amsterdam; in Sweden 020 is free
        ("0841 93 71 64", "de"),  # Ingolstadt
        ("0871 67 14 82", "de"),  # Landshut
        ("0771-89 46 13", "de"),  # Donaueschingen
    ],
)
def test_a_number_that_is_a_service_elsewhere_goes(number, language):
    assert not is_documentation("PHONE", number)
    assert detect_values("PHONE", f"tel: {number}", language) == [number]


@pytest.mark.parametrize("group", sorted(GROUPS))
def test_each_group_names_its_source(group):
    row = GROUPS[group]
    assert row["source"]
    assert set(row["kinds"].split()) <= set(KINDS)
    for value in row.get("values", "").split():
        assert is_documentation(row["kinds"].split()[0], value)
