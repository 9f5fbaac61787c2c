import pytest
from tests.privacy.detection import detect, detect_values


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("write to jane.doe+x@mail.acme.co.uk!", "jane.doe+x@mail.acme.co.uk"),
        ("連絡先はjane@web.deです", "jane@web.de"),
        ("jürgen.müller@web.de schreibt", "jürgen.müller@web.de"),
        ("<mailto:x@y.org>", "x@y.org"),
        ("user=a_b@c.io;", "a_b@c.io"),
        ("tevita [at] web [dot] de", "tevita [at] web [dot] de"),
        ("bob at gmail dot com", "bob at gmail dot com"),
    ],
)
def test_emails(text, value):
    assert detect_values("EMAIL", text) == [value]


@pytest.mark.parametrize(
    "text", ["@decorator and user@localhost", "git@github.com:owner/name.git", "a @ b", "5 @ 3.50"]
)
def test_no_emails(text):
    assert detect_values("EMAIL", text) == []


@pytest.mark.parametrize(
    ("text", "language", "value"),
    [
        ("call 555-123-4567 now", "en", "555-123-4567"),
        ("(555) 123-4567", "en", "(555) 123-4567"),
        ("(902)207-2512x593", "en", "(902)207-2512x593"),
        ("my cell is 5551234567", "en", "5551234567"),
        ("+49 171 1234567", "de", "+49 171 1234567"),
        ("Tel. 0171/1234567", "de", "0171/1234567"),
        ("au 06 12 34 56 78", "fr", "06 12 34 56 78"),
        ("mi número es 612 345 678", "es", "612 345 678"),
        ("chiamami al 333 1234567", "it", "333 1234567"),
        ("liga-me: 912 345 678", "pt", "912 345 678"),
        ("bel 06-12345678", "nl", "06-12345678"),
        ("zadzwoń 601 234 567", "pl", "601 234 567"),
        ("ring 070-123 45 67", "sv", "070-123 45 67"),
        ("電話は+81 3-1234-5678です", "en", "+81 3-1234-5678"),
    ],
)
def test_phones(text, language, value):
    assert detect_values("PHONE", text, language) == [value]


@pytest.mark.parametrize(
    "text",
    [
        "Convert the Unix timestamp 1732098765 to a date.",
        "ts=1732098765438 level=info",
        "2024-05-01 12:30:45",
        "01.02.2023",
        "invoice number is 2024-0042",
        "ISBN 978-3-16-148410-0",
        "1 732 098 765 people",
        "version 10.15.7.1234",
        "1 2 3 5 8 13 21 34 55 89 144 233 377 610 987",
    ],
)
@pytest.mark.parametrize("language", ["en", "de", "fr"])
def test_no_phones(text, language):
    assert detect(text, language) == []


def test_ip_addresses():
    assert detect_values("IP_ADDRESS", "from 81.2.69.142 and 2a00:1450:4001:81b::200e") == [
        "81.2.69.142",
        "2a00:1450:4001:81b::200e",
    ]
    for text in (
        "10.0.0.12:5432",
        "192.168.1.1",
        "v1.2.3.4",
        "version 91.2.3.4",
        "8.8.8.8",
        "12:30:45",
        "::1",
        "std::vec",
    ):
        assert detect(text) == []


def test_a_word_of_a_mail_address_does_not_hide_the_label_of_a_phone():
    text = "Zgłoszenie, użytkownik radzimir.k@gmail.com, kontakt 691-996-204: faktura"
    assert detect_values("PHONE", text, "pl") == ["691-996-204"]
