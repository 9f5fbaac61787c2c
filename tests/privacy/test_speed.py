"""Time is linear in the text whatever it holds. CPU time, with room for slow machines: quadratic means minutes."""

import base64
import time

import pytest
from tests.privacy.found import make_filter

LENGTH = 20_000
MAX_S = 0.8  # for 20,000 characters; 0.2 s or less where this was measured
PIECES = [
    "a.", "a@", "1 ", "A ", "-", "a", "1", "1.", "1-", "a@a.", "é", "\n", "O'", "d'A", "::", "日本語 ",
    "password=", "password: ", "password ", "token ", "key a1 ", "eyJ", "eyJaaaaaaaa.", "sk-", "aws key ", "x://a:",
    "-----BEGIN PRIVATE KEY-----", "4111 ", "4111 1111 1111 1111 ", "123456789 ", "12-34-56 ", "GB29 NWBK ", "0x",
    "+49 171 1234567 ", "81.2.69.142 ", "ssn ", "passport 12345678 ", "Calle ", "12 Elm Street ", "de la ",
    "12 the of ",
    "I live at 1 A ", "Anna ", "anna ", "Anna Schmidt, ", "Dr. Dr. ", "Name: ", "my name is ", "Aa Bb ", "Berlin ",
]  # fmt: skip


def seconds(text, language="en"):
    cleaner = make_filter(drop=())
    start = time.process_time()
    cleaner.clean([((text,), language)])
    return time.process_time() - start


@pytest.mark.parametrize("piece", PIECES)
def test_no_text_takes_long(piece):
    assert seconds(piece * (LENGTH // len(piece))) < MAX_S


def test_noise_takes_no_longer():
    noise = base64.b64encode(bytes(n * n % 251 for n in range(LENGTH * 3 // 4))).decode()
    assert seconds(noise) < MAX_S
    assert seconds(" ".join(noise[k : k + 7].title() for k in range(0, LENGTH, 8))) < MAX_S


@pytest.mark.parametrize("piece", ["a.", "1 ", "Anna Schmidt, ", "123456789 ", "password=", "81.2.69.142 "])
def test_twice_the_text_takes_twice_the_time(piece):
    seconds(piece * 100)  # what is built once is built
    # 10,000 characters against four times as many: quadratic growth makes a ratio of 16.
    short = min(seconds(piece * (10_000 // len(piece))) for _ in range(3))
    long = min(seconds(piece * (40_000 // len(piece))) for _ in range(2))
    assert long < 9 * short + 0.05


def test_prompts_of_usual_length_are_fast():
    text = (
        "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May. The total was "
        "1,250.50 dollars on 2024-05-01. Write a Python function total(items) that returns the sum, and explain it. "
    )
    records = [((f"{n} {text}" * 2,), "en") for n in range(100)]
    cleaner = make_filter()
    cleaner.clean(records[:5])
    start = time.process_time()
    cleaner.clean(records)
    per_500 = (time.process_time() - start) / sum(len(texts[0]) for texts, _ in records) * 500
    assert per_500 < 0.006  # s; 0.0013 where this was measured: 400 prompts of 500 characters a second are 0.0025
