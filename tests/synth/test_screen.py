"""Every value here is made up; those of a vendor's documentation are marked as examples there."""

import time

import pytest

from eyas.synth.screen import REASONS, find

FOUND = {
    "secret_private_key": [
        "-----BEGIN RSA PRIVATE KEY-----\nMIIE",
        "-----BEGIN PRIVATE KEY-----",
        "-----BEGIN OPENSSH PRIVATE KEY",
    ],
    "secret_aws_key": [
        "id AKIAIOSFODNN7EXAMPLE.",
        "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    ],
    "secret_github_token": ["ghp_" + "a1B2" * 9, "x=github_pat_" + "a1B2" * 6, "glpat-" + "a1B2" * 5],
    "secret_google_key": ["key=AIza" + "SyA1b" * 7],
    "secret_slack_token": ["xoxb-1234567890-abc", "https://hooks.slack.com/services/T00000000/B0/XXX"],
    "secret_api_key": [
        "sk-" + "abc1" * 12,
        "sk-proj-" + "Ab1_" * 9,
        "sk-ant-api03-" + "Ab1-" * 9,
        "sk_live_" + "a1" * 12,
    ],
    "secret_jwt": ["Bearer eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJlMTIz"],
    "secret_password": [
        'password="opensesame"',
        "PASSWORD=hunter2",
        "db_password = 'abc!'",
        "password: s3cretword",
        '{"password": "opensesame"}',
        "the api_key=qwertyuiop",
    ],
    "email": ["write to jane.doe+x@mail.example.co.uk!", "jane@example.comです", "a@b.io"],
    "card_number": [
        "4111111111111111",
        "card 4111-1111-1111-1111.",
        "12 5500 0055 5555 5559 01/29",
        "3782 822463 10005",
        "6011 1111 1111 1117 123",
    ],
}
CLEAN = [
    "def login(user, password): return check(user, password)",
    "password = input('Password: ')",
    "password = None",
    "if password == expected:",
    "password: str",
    "The password: it must not be short.",
    "task-management-system-for-small-teams and sk-fading-circle-of-little-dots",
    "@decorator and user@localhost and a @ b.com",
    "4111 1111 1111 1112",  # the checksum does not hold
    "1732098765438",  # a Unix time in milliseconds, which passes the checksum
    "3.1415926535897932 and 0.4111111111111111",
    "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20",
    "eyJustice is served.",
    "AKIA is a prefix; AIza too; sk- and ghp_ as well",
    "-----BEGIN CERTIFICATE-----",
    "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May.",
]


def test_the_time_in_clean_would_pass_the_checksum():
    digits = [int(digit) for digit in "1732098765438"]
    doubled = [sum(map(int, str(2 * digit))) if i % 2 else digit for i, digit in enumerate(reversed(digits))]
    assert sum(doubled) % 10 == 0


@pytest.mark.parametrize(("reason", "text"), [(reason, text) for reason, texts in FOUND.items() for text in texts])
def test_found(reason, text):
    assert find([text]) == reason
    assert find(["fine", f"before {text} after"]) == reason


@pytest.mark.parametrize("text", CLEAN)
def test_clean(text):
    assert find([text]) is None


def test_every_reason_is_tested():
    assert set(FOUND) == set(REASONS)


@pytest.mark.parametrize(
    "piece",
    [
        "a",
        "a.",
        "a@",
        "a@a.",
        "1",
        "1 ",
        "4111 ",
        "eyJ",
        "eyJaaaaaaaa.",
        "sk-",
        "password=",
        "password: ",
        "aws key ",
        "-----BEGIN ",
        "a-",
        "A",
    ],
)
def test_no_text_takes_long(piece):
    text = piece * (200_000 // len(piece))
    start = time.perf_counter()
    find([text])
    assert time.perf_counter() - start < 2  # linear: a quadratic pattern takes minutes
