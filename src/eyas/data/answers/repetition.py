"""Answers that got stuck."""

from collections.abc import Sequence

MAX_PERIOD = 64  # tokens: a few sentences
MIN_REPEATS = 4
MIN_TOKENS = 32  # so that "ha ha ha ha" or a row of dashes is no loop


def is_looping(token_ids: Sequence[int]) -> bool:
    """Whether the answer ends in a loop: its last max(4 p, 32) tokens repeat with a period p of at most 64 tokens.

        p = 3, four times and more:   ... a b c a b c a b c a b c

    An answer that ended by itself has its end-of-turn token there, which repeats nothing, and so is no loop.
    """
    for period in range(1, MAX_PERIOD + 1):
        span = max(MIN_REPEATS * period, MIN_TOKENS)
        if span > len(token_ids):
            continue
        tail = token_ids[-span:]
        if all(tail[i] == tail[i - period] for i in range(period, span)):
            return True
    return False
