import itertools

import torch
from tests.features.small import mask

from eyas.evaluation.replay import find_answers
from eyas.features.layout import (
    count_supervised,
    supervised_positions,
    teacher_positions,
    trimmed_length,
)


def draw(picture: str, step: int) -> str:
    return "".join("x" if flag else "." for flag in supervised_positions(mask(picture), step))


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
    assert count_supervised(mask(text)) == 5


def test_a_text_shorter_than_the_unroll() -> None:
    for step in range(7):
        assert draw(".xx", step) == ("x.." if step == 0 else "...")


def test_a_state_is_kept_where_any_step_or_the_evaluation_asks_for_it() -> None:
    """Against all teachers of all chains and steps, and the positions before generated tokens, for every mask."""
    for length in range(1, 10):
        for bits in itertools.product((False, True), repeat=length):
            mask_T = torch.tensor(bits)
            teachers = {
                t + 1 + step  # the position whose final hidden state is the teacher
                for step in range(length)
                for t in supervised_positions(mask_T, step).nonzero()[:, 0].tolist()
            }
            asked = {t for t in range(length - 1) if bits[t + 1]}
            assert teachers <= asked
            # All that training leaves to the evaluation alone is the state that says the first generated token.
            assert asked - teachers <= {min(asked, default=0)}
            assert set(teacher_positions(mask_T).nonzero()[:, 0].tolist()) == asked


def test_what_follows_the_last_generated_token_is_read_by_none() -> None:
    for length in range(1, 10):
        for bits in itertools.product((False, True), repeat=length):
            mask_T, needed = torch.tensor(bits), trimmed_length(bits)
            for step in range(length):
                assert torch.equal(
                    supervised_positions(mask_T[:needed], step), supervised_positions(mask_T, step)[:needed]
                )
                assert not supervised_positions(mask_T, step)[max(0, needed - 2) :].any()
            assert torch.equal(teacher_positions(mask_T[:needed]), teacher_positions(mask_T)[:needed])
            ids_T = torch.arange(length)
            assert all(answer.end <= needed for answer in find_answers(0, ids_T, mask_T))
    assert trimmed_length([False, False]) == 0
