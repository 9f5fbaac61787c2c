"""Time is linear in the text whatever it holds. CPU time, with room for slow machines: quadratic means minutes."""

import base64
import gc
import time

import pytest
from tests.privacy.detection import make_filter

LENGTH = 10_000
MAX_S = 0.4  # for 10,000 characters; 0.1 s or less where this was measured
PIECES = [
    "a.", "a@", "1 ", "A ", "-", "a", "1", "1.", "1-", "a@a.", "é", "\n", "O'", "d'A", "::", "日本語 ",
    "password=", "password: ", "password ", "token ", "key a1 ", "eyJ", "eyJaaaaaaaa.", "sk-", "aws key ", "x://a:",
    "-----BEGIN PRIVATE KEY-----", "4111 ", "4539 6779 7904 9696 ", "123456789 ", "12-34-56 ", "GB29 NWBK ", "0x",
    "+49 171 1234567 ", "81.2.69.142 ", "ssn ", "passport 12345678 ", "Calle ", "12 Elm Street ", "de la ",
    "12 the of ",
    "I live at 1 A ", "Anna ", "anna ", "Anna Schmidt, ", "Dr. Dr. ", "Name: ", "my name is ", "Aa Bb ", "Berlin ",
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def warm():
    """What the first text of a kind loads, tables, dictionaries, recognizers, is no part of its time."""
    make_filter(drop=()).clean([((piece * 20,), "en") for piece in PIECES])
    gc.collect()
    gc.freeze()  # what other tests have left is not collected again for each text


def seconds(text, language="en"):
    cleaner = make_filter(drop=())
    gc.collect()
    gc.disable()  # like timeit: a collection takes as long as what other tests have left in memory
    try:
        start = time.thread_time()  # threads that other tests have left do not count
        cleaner.clean([((text,), language)])
        return time.thread_time() - start
    finally:
        gc.enable()


@pytest.mark.parametrize("piece", PIECES)
def test_no_text_takes_long(piece):
    text = piece * (LENGTH // len(piece))
    assert any(seconds(text) < MAX_S for _ in range(3)), "other programs slow single calls"


def test_noise_takes_no_longer():
    noise = base64.b64encode(bytes(n * n % 251 for n in range(LENGTH * 3 // 4))).decode()
    assert seconds(noise) < MAX_S
    assert seconds(" ".join(noise[k : k + 7].title() for k in range(0, LENGTH, 8))) < MAX_S


@pytest.mark.parametrize("piece", ["a.", "1 ", "Anna Schmidt, ", "123456789 ", "password=", "81.2.69.142 "])
def test_twice_the_text_takes_twice_the_time(piece):
    # 5,000 characters against four times as many: quadratic growth makes a ratio of 16.
    short = min(seconds(piece * (5_000 // len(piece))) for _ in range(3))
    long = min(seconds(piece * (20_000 // len(piece))) for _ in range(2))
    assert long < 9 * short + 0.05
