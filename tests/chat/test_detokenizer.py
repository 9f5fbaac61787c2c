"""Streaming text: what comes piece by piece is what the whole list of ids says, up to the first stop string."""

import random
from collections.abc import Sequence

import pytest
from tests.tiny import tiny_tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from eyas.chat.detokenizer import UNFINISHED, Detokenizer, TextStream
from eyas.model.target_dir import EMBEDDED, resolve_target

TEXTS = ["plain words", "Gärten für Żółw", "雨が降る ☂️ 🦅🦅", "", "line\n\nbreak", "aab aab aabaab", "\ufffd? \ufffd"]


@pytest.fixture(scope="module")
def embedded() -> PreTrainedTokenizerBase:
    """A tokenizer with tokens of many characters."""
    return AutoTokenizer.from_pretrained(resolve_target(EMBEDDED))


@pytest.mark.parametrize("text", TEXTS)
def test_the_pieces_add_up(text: str) -> None:
    tokenizer = tiny_tokenizer()  # one token a byte: a character outside ASCII takes up to four
    ids = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.convert_tokens_to_ids("<|end|>")]
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.push(token) for token in ids]
    assert "".join(pieces) + detokenizer.finish() == text
    if UNFINISHED not in text:
        assert not any(UNFINISHED in piece for piece in pieces), "no half character is shown"


def test_only_the_shown_special_tokens_give_text() -> None:
    tokenizer = tiny_tokenizer()
    ids = tokenizer.encode("<|im_start|>ü<|user|>b<|im_end|><|end|>", add_special_tokens=False)
    shown = [int(str(tokenizer.convert_tokens_to_ids(name))) for name in ("<|im_start|>", "<|im_end|>")]
    detokenizer = Detokenizer(tokenizer, shown)
    assert "".join(detokenizer.push(token) for token in ids) == "<|im_start|>üb<|im_end|>"


def test_an_answer_that_ends_inside_a_character() -> None:
    tokenizer = tiny_tokenizer()
    ids = tokenizer.encode("ab🦅", add_special_tokens=False)[:-1]
    detokenizer = Detokenizer(tokenizer)
    shown = "".join(detokenizer.push(token) for token in ids)
    assert shown == "ab"
    assert set(detokenizer.finish()) == {UNFINISHED}


def decoded(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    text = tokenizer.decode(list(ids), skip_special_tokens=True)
    assert isinstance(text, str)
    return text


def finished_text(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """All characters that are complete: the decode of the longest part that does not end inside one."""
    whole = (decoded(tokenizer, ids[:end]) for end in range(len(ids), 0, -1))
    return next((text for text in whole if not text.endswith(UNFINISHED)), "")


def cut(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], stops: Sequence[str]) -> tuple[str, int | None]:
    """The text of the answer, and how many tokens it takes until a stop string is complete (None: never)."""
    for count in range(1, len(ids) + 1):
        text = finished_text(tokenizer, ids[:count])
        places = [text.find(stop) for stop in stops if stop in text]
        if places:
            return text[: min(places)], count
    return decoded(tokenizer, ids), None


def assert_streams(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], stops: Sequence[str]) -> bool:
    """Push the ids; whether a stop string ended it."""
    wanted, end = cut(tokenizer, ids, stops)
    out, shown = TextStream(tokenizer, stops), ""
    for count, token in enumerate(ids, 1):
        stopped = out.push(token)
        assert out.text.startswith(shown), "text only grows"
        shown = out.text
        assert stopped == (count == end), (ids, stops)
        if stopped:
            assert out.text == wanted
            out.finish()
            assert out.text == wanted, "what stood behind the cut does not come back"
            return True
        held = finished_text(tokenizer, ids[:count])[len(shown) :]
        assert shown + held == finished_text(tokenizer, ids[:count])
        assert not held or any(stop.startswith(held) and stop != held for stop in stops), "held back without a reason"
    out.finish()
    assert out.text == wanted
    return False


def stops_for(text: str, pick: random.Random) -> list[str]:
    """Pieces of the text, some of them spoilt at the end: those must be held back and let go."""
    stops = []
    for _ in range(pick.randint(0, 3)):
        begin = pick.randint(0, max(len(text) - 1, 0))
        piece = text[begin : begin + pick.randint(1, 6)]
        stops.append(piece + pick.choice(("", "", "~", "a")))
    return [stop for stop in stops if stop and UNFINISHED not in stop]


@pytest.mark.parametrize("which", ["bytes", "words"])
def test_cut_at_the_first_stop_string(which: str, embedded: PreTrainedTokenizerBase) -> None:
    """As decoding the whole and cutting it, whatever tokens the stop string begins and ends in."""
    tokenizer, pick, ended = tiny_tokenizer() if which == "bytes" else embedded, random.Random(4), []
    for _ in range(40):
        for text in TEXTS:
            ids = tokenizer.encode(text, add_special_tokens=False)
            ended.append(assert_streams(tokenizer, ids, stops_for(text, pick)))
        ids = [pick.randrange(len(tokenizer)) for _ in range(pick.randint(1, 12))]
        ended.append(assert_streams(tokenizer, ids, stops_for(decoded(tokenizer, ids), pick)))
    assert 40 < sum(ended) < len(ended) - 40


@pytest.mark.parametrize(
    ("text", "stops", "wanted"),
    [
        ("an ENjoy", ("END",), "an ENjoy"),
        ("an END of", ("END",), "an "),
        ("an EN", ("END",), "an EN"),
        ("aab aab", ("ab a",), "a"),
        ("aaab", ("aab",), "a"),
        ("abcd", ("cd", "b"), "a"),
        ("abcd", ("bcd", "c"), "ab"),  # c is complete before bcd is: the answer ends there
        ("🦅🦉", ("🦉",), "🦅"),
        ("one\n\ntwo", ("\n",), "one"),
        ("END", ("END",), ""),
    ],
)
def test_stops_by_hand(text: str, stops: tuple[str, ...], wanted: str) -> None:
    tokenizer = tiny_tokenizer()
    out = TextStream(tokenizer, stops)
    for token in tokenizer.encode(text, add_special_tokens=False):
        if out.push(token):
            break
    else:
        out.finish()
    assert out.text == wanted


def test_what_could_become_a_stop_string_is_held_back() -> None:
    tokenizer = tiny_tokenizer()
    out = TextStream(tokenizer, ("END", "D!"))
    shown = []
    for token in tokenizer.encode("an ENED END", add_special_tokens=False):
        out.push(token)
        shown.append(out.text)
    assert shown[:-1] == ["a", "an", "an ", "an ", "an ", "an EN", "an ENE", "an ENED ", "an ENED ", "an ENED "]
    assert shown[-1] == "an ENED "
