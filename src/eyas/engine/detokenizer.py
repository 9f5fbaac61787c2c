"""Turns token ids into text as they arrive. A token may end inside a character, a stop string inside a token."""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

UNFINISHED = "\ufffd"
CONTEXT = 4  # ids decoded again with each new one, because some tokenizers strip the space of the first


class Detokenizer:
    """The text of a growing list of ids, without special tokens."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self.ids: list[int] = []
        self._start = 0  # index of the id where decoding starts
        self._shown = 0  # characters from there on that were returned

    def push(self, token: int) -> str:
        """Adds a token and returns the text that it completes; empty while a character is unfinished."""
        self.ids.append(token)
        text = self._decode()
        if text.endswith(UNFINISHED):
            return ""
        new = text[self._shown :]
        self._start = max(len(self.ids) - CONTEXT, 0)
        self._shown = len(self._decode())
        return new

    def finish(self) -> str:
        """Returns the rest: replacement characters if the output ends inside a character."""
        return self._decode()[self._shown :]

    def _decode(self) -> str:
        text = self.tokenizer.decode(self.ids[self._start :], skip_special_tokens=True)
        assert isinstance(text, str), "one list of ids gives one text"
        return text


class TextStream:
    """The text of an output, cut before the first stop string.

    It holds back what may still become a stop string, so `text` only grows.

        stop "END"      tokens   an E | N | joy           text   "an " -> "an " -> "an ENjoy"
                        tokens   an E | ND | joy          text   "an " -> "an ", and the output ends
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stops: Sequence[str]) -> None:
        self.text = ""
        self._stops = tuple(stops)
        self._held = ""
        self._detokenizer = Detokenizer(tokenizer)

    def push(self, token: int) -> bool:
        """Adds a token. Returns True if it completes a stop string."""
        return self._take(self._detokenizer.push(token))

    def finish(self) -> None:
        """Releases the text that was held back, up to a stop string that the last character completes."""
        if not self._take(self._detokenizer.finish()):
            self.text += self._held
        self._held = ""

    def _take(self, new: str) -> bool:
        self._held += new
        found = [place for stop in self._stops if (place := self._held.find(stop)) >= 0]
        if found:
            self.text += self._held[: min(found)]
            self._held = ""
            return True
        keep = max((_overlap(self._held, stop) for stop in self._stops), default=0)
        cut = len(self._held) - keep
        self.text, self._held = self.text + self._held[:cut], self._held[cut:]
        return False


def _overlap(text: str, stop: str) -> int:
    """Returns how many characters at the end of the text may be the beginning of the stop string."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if stop.startswith(text[-n:])), 0)
