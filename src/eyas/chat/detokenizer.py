"""Decodes token ids to text while they arrive, and detects stop strings in the text.

A token may end in the middle of a character, and a stop string may end in the middle of a token.
"""

from collections.abc import Collection, Sequence

from transformers import PreTrainedTokenizerBase

UNFINISHED = "\ufffd"
CONTEXT = 4  # ids decoded again with each new one, because some tokenizers strip the space of the first


class Detokenizer:
    """A decoder for one growing list of token ids. Special tokens give no text, except those of `shown_ids`."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, shown_ids: Collection[int] = ()) -> None:
        self.tokenizer = tokenizer
        added = tokenizer.added_tokens_decoder if shown_ids else {}
        self._hidden_ids = {token for token, entry in added.items() if entry.special and token not in shown_ids}
        self._shows_special = bool(shown_ids)
        self.ids: list[int] = []
        self._start = 0  # index of the id where decoding starts
        self._shown = 0  # characters from there on that were returned

    def push(self, token: int) -> str:
        """Adds a token and returns the new text; "" if the text would end in the middle of a character."""
        self.ids.append(token)
        text = self._decode()
        if text.endswith(UNFINISHED):
            return ""
        new = text[self._shown :]
        self._start = max(len(self.ids) - CONTEXT, 0)
        self._shown = len(self._decode())
        return new

    def finish(self) -> str:
        """Returns the remaining text: replacement characters if the output ends inside a character, else ""."""
        return self._decode()[self._shown :]

    def _decode(self) -> str:
        ids = [token for token in self.ids[self._start :] if token not in self._hidden_ids]
        return str(self.tokenizer.decode(ids, skip_special_tokens=not self._shows_special))


class TextStream:
    """The text of an output, cut before the first stop string.

    Characters that may be the beginning of a stop string are not part of `text` until the next tokens decide. So `text`
    only grows. With the stop string "END":

        token     text after it        token     text after it
        "an E"    "an "                "an E"    "an "
        "N"       "an "                "ND"      "an ", and the output ends
        "joy"     "an ENjoy"
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, stops: Sequence[str], shown_ids: Collection[int] = ()
    ) -> None:
        self.text = ""
        self.shown_ids = shown_ids
        self._stops = tuple(stops)
        self._held = ""
        self._detokenizer = Detokenizer(tokenizer, shown_ids)

    def push(self, token: int) -> bool:
        """Adds a token. Returns True if the text now contains a stop string; the output must then end."""
        return self._take(self._detokenizer.push(token))

    def finish(self) -> None:
        """Adds the characters that were held back to `text`. If they contain a stop string, cuts them before it."""
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
        cut = len(self._held) - max((_overlap(self._held, stop) for stop in self._stops), default=0)
        self.text, self._held = self.text + self._held[:cut], self._held[cut:]
        return False


def _overlap(text: str, stop: str) -> int:
    """Returns how many characters at the end of `text` are also the beginning of `stop`: ("an EN", "END") -> 2."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if stop.startswith(text[-n:])), 0)
