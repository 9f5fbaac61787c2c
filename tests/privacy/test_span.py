"""Spans that overlap become one; windows of a long text lose nothing."""

import pytest

from eyas.privacy.span import Span, merge_spans, split_windows


def test_merging_covers_all_and_keeps_the_kind_that_takes_precedence():
    assert merge_spans([Span(5, 9, "PERSON", 0.5), Span(0, 6, "EMAIL", 1.0), Span(20, 22, "PHONE", 0.3)]) == [
        Span(0, 9, "EMAIL", 1.0),
        Span(20, 22, "PHONE", 0.3),
    ]
    assert merge_spans([Span(0, 3, "PERSON"), Span(3, 5, "EMAIL")]) == [Span(0, 3, "PERSON"), Span(3, 5, "EMAIL")]


@pytest.mark.parametrize("length", [0, 1, 10, 11, 17, 100])
def test_windows_cover_the_text_and_overlap(length):
    text = "".join(chr(97 + k % 26) for k in range(length))
    windows = list(split_windows(text, 10, 3))
    assert all(text[start : start + len(window)] == window for start, window in windows)
    assert {k for start, window in windows for k in range(start, start + len(window))} == set(range(length))
    # Every part of at most three characters is whole in one window.
    for start in range(length - 2):
        assert any(first <= start and start + 3 <= first + len(window) for first, window in windows)


def test_blank_windows_are_left_out():
    assert list(split_windows("a" + " " * 30 + "b", 10, 3)) == [(0, "a         "), (28, "   b")]
