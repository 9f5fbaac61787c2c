import pytest
from tests.privacy.detection import detect, detect_values

CARDS = [
    "4111111111111111",
    "4111 1111 1111 1111",
    "4111-1111-1111-1111",
    "4111.1111.1111.1111",
    "4111 1111\n1111 1111",
    "4111\u00a01111\u00a01111\u00a01111",
    "3782 822463 10005",
    "5500 0055 5555 5559",
    "3530 1113 3330 0000",
    "6011 1111 1111 1117",
]


@pytest.mark.parametrize("number", CARDS)
def test_cards(number):
    assert detect_values("CARD", f"pay with {number}, please") == [number]
    assert number in "".join(detect_values("CARD", f"12 {number} 01/29"))


def test_a_labelled_number_needs_no_checksum():
    assert detect_values("CARD", "card number: 1234 5678 9012 3456.") == ["1234 5678 9012 3456"]


@pytest.mark.parametrize(
    "text",
    [
        "4111 1111 1111 1112",
        "1732098765438",  # a Unix time in milliseconds, which passes the checksum
        "3.1415926535897932 and 0.4111111111111111",
        "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20",
        "Order id: 4111111111111111 was delayed",
    ],
)
def test_no_cards(text):
    assert detect_values("CARD", text) == []


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("IBAN: DE89 3704 0044 0532 0130 00 bitte", "DE89 3704 0044 0532 0130 00"),
        ("to GB29NWBK60161331926819, thanks", "GB29NWBK60161331926819"),
        ("FR14 2004 1010 0505 0001 3M02 606 Merci", "FR14 2004 1010 0505 0001 3M02 606"),
        ("IBAN DE89 3704 0044 0532 0130 01", "DE89 3704 0044 0532 0130 01"),  # a slip in it, but labelled
        ("routing number 021000021", "021000021"),
        ("account number: 12345678", "12345678"),
        ("Kontonummer 1234567890", "1234567890"),
        ("numer rachunku 12 1234 1234 1234 1234 1234 1234", "12 1234 1234 1234 1234 1234 1234"),
        ("1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNa", "1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNa"),  # the first one, public
        ("pay 0x52908400098527886E0F7030069857D2E4169EE7", "0x52908400098527886E0F7030069857D2E4169EE7"),
    ],
)
def test_accounts(text, value):
    assert detect_values("ACCOUNT", text) == [value]


@pytest.mark.parametrize("text", ["DE89 3704 0044 0532 0130 01", "the account of 120000 dollars", "account manager"])
def test_no_accounts(text):
    assert detect(text) == []
