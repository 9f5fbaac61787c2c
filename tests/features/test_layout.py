from tests.features.small import mask

from eyas.features.layout import num_supervised, supervised


def draw(picture: str, step: int) -> str:
    return "".join("x" if flag else "." for flag in supervised(mask(picture), step))


def test_the_first_position_that_serving_drafts_from_is_supervised() -> None:
    """Position 2 is the last prompt token: its own mask is false, and it is the very first that serving drafts from."""
    text = "...xxxxx"
    assert draw(text, 0) == "..xxxx.."
    assert draw(text, 1) == "..xxx..."
    assert draw(text, 2) == "..xx...."
    assert draw(text, 3) == "..x....."
    assert draw(text, 4) == "........"


def test_nothing_is_asked_of_the_end_or_of_the_prompt() -> None:
    #       0    5    0
    text = "...xxx...xxxx"
    assert draw(text, 0) == "..xx....xxx.."
    # Step 4 of the chain at 2 predicts token 8, a prompt token; that of the chain at 3 predicts 9, a generated one.
    assert draw(text, 4) == "...xx........"
    assert draw("xx", 0) == ".."
    assert draw("xxx", 0) == "x.."
    assert num_supervised(mask(text)) == 5


def test_a_text_shorter_than_the_unroll() -> None:
    for step in range(7):
        assert draw(".xx", step) == ("x.." if step == 0 else "...")
