"""The engine's thread: everything that computes runs there, and what goes wrong comes back."""

import threading

import pytest

from eyas.engine.async_engine import EngineThread


def test_calls_run_in_order_on_one_thread() -> None:
    thread, seen = EngineThread(), []
    idents = {thread.call(threading.get_ident) for _ in range(3)}
    assert len(idents) == 1
    assert threading.get_ident() not in idents
    thread.finish_with(lambda: seen.append(threading.get_ident()))
    thread.join()
    assert set(seen) == idents


def test_what_is_raised_is_the_callers() -> None:
    thread = EngineThread()

    def fail() -> None:
        raise ValueError("here")

    with pytest.raises(ValueError, match="here"):
        thread.call(fail)
    assert thread.call(lambda: 3) == 3, "and it goes on"
