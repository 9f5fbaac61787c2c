import pytest
from tests.privacy.detection import detect, detect_values

CARDS = [
    "4539677979049696",
    "4539 6779 7904 9696",
    "4539-6779-7904-9696",
    "4539.6779.7904.9696",
    "4539 6779\n7904 9696",
    "4539\u00a06779\u00a07904\u00a09696",
    "3714 716108 22987",
    "5241 1425 5022 9718",
    "3530 2956 2969 8233",
    "6011 1103 6063 3847",
]


@pytest.mark.parametrize("number", CARDS)
def test_cards(number):
    assert detect_values("CARD", f"pay with {number}, please") == [number]
    assert number in "".join(detect_values("CARD", f"12 {number} 01/29"))


def test_a_labelled_number_needs_no_checksum():
    assert detect_values("CARD", "card number: 1834 5278 9012 3456.") == ["1834 5278 9012 3456"]


@pytest.mark.parametrize(
    "text",
    [
        "4539 6779 7904 9697",
        "1732098765438",  # a Unix time in milliseconds, which passes the checksum
        "3.1415926535897932 and 0.4539677979049696",
        "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20",
        "Order id: 4539677979049696 was delayed",
    ],
)
def test_no_cards(text):
    assert detect_values("CARD", text) == []


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("IBAN: DE29 2584 4090 4817 9671 41 bitte", "DE29 2584 4090 4817 9671 41"),
        ("to GB34MIDL67372476296505, thanks", "GB34MIDL67372476296505"),
        ("FR84 2004 1010 0505 0001 3M02 607 Merci", "FR84 2004 1010 0505 0001 3M02 607"),
        ("IBAN DE29 2584 4090 4817 9671 42", "DE29 2584 4090 4817 9671 42"),  # a slip in it, but labelled
        ("routing number 088437077", "088437077"),
        ("account number: 48213307", "48213307"),
        ("Kontonummer 4821330719", "4821330719"),
        ("numer rachunku 12 1234 1234 1234 1234 1234 1234", "12 1234 1234 1234 1234 1234 1234"),
        ("1FYBBK2FpSotaxeCQxhVdGugwdJ7iC4cKC", "1FYBBK2FpSotaxeCQxhVdGugwdJ7iC4cKC"),
        ("pay 0x649712d22eec24365aa7c723efd194b327baf29f", "0x649712d22eec24365aa7c723efd194b327baf29f"),
    ],
)
def test_accounts(text, value):
    assert detect_values("ACCOUNT", text) == [value]


@pytest.mark.parametrize("text", ["DE29 2584 4090 4817 9671 42", "the account of 120000 dollars", "account manager"])
def test_no_accounts(text):
    assert detect(text) == []
