"""The loop around the engine: who runs next. (The overlapped twin will stand beside this one.)"""

from collections.abc import Callable, Iterable, Iterator

from eyas.serve.engine import Engine
from eyas.serve.request import Answer, Request

OnTokens = Callable[[Answer, int], None]
"""Called with an answer and the number of its newest tokens, after every round."""


def plain_loop(engine: Engine, requests: Iterable[Request], on_tokens: OnTokens | None = None) -> Iterator[Answer]:
    """Answers as they finish. Requests are taken up in order, as soon as a slot is free."""
    waiting = iter(requests)
    exhausted = False
    while True:
        while engine.has_room and not exhausted:
            request = next(waiting, None)
            if request is None:
                exhausted = True
                break
            answer = engine.admit(request)
            if on_tokens is not None:
                on_tokens(answer, 1)
            yield from engine.retire()
        if not engine.running:
            return
        before = [len(answer.token_ids) for answer in engine.running]
        engine.round()
        if on_tokens is not None:
            for answer, length in zip(engine.running, before, strict=True):
                on_tokens(answer, len(answer.token_ids) - length)
        yield from engine.retire()
