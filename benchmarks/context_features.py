"""Lists the features of a place in a text, to which fit_context.py fits the weights of eyas.privacy.context_model."""

from collections.abc import Iterator

from eyas.privacy.context_model import CHARACTERS, REACH, ContextWords, forms


def list_features(context: ContextWords, start: int, end: int) -> list[str]:
    """Returns the features of a place. One that comes twice counts twice.

    Args:
        context: The tokens of the text.
        start: The position of the first character of the place.
        end: The position after its last character.
    """
    first, last = context.bounds(start, end)
    near = (*range(max(1, first - REACH), first), *range(last + 1, min(len(context.tokens), last + REACH)))
    beside = [
        f"{side}:{form}"
        for side, tokens in context.sides(first, last)
        for token in tokens
        for form in forms(token, context.language)
    ]
    return [*(feature for i in near for feature in _of_token(context, i)), *beside, *context.joined_beside(first, last)]


def _of_token(context: ContextWords, i: int) -> Iterator[str]:
    """Yields the features of token i that count without its side."""
    tokens = context.tokens
    yield from (f"w:{form}" for form in forms(tokens[i], context.language))
    yield f"2:{tokens[i - 1]}_{tokens[i]}"
    if context.language in CHARACTERS:
        yield f"3:{tokens[i - 2]}{tokens[i - 1]}{tokens[i]}"
