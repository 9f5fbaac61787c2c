"""Token ids to text as they come: a token may end in the middle of a character."""

from transformers import PreTrainedTokenizerBase

UNFINISHED = "\ufffd"


class Detokenizer:
    """Text of a growing list of ids; special tokens are left out."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self.ids: list[int] = []
        # Text before `_start` is out; decoding starts a few tokens earlier, for some tokenizers strip a leading space.
        self._start = 0
        self._shown = 0

    def push(self, token: int) -> str:
        """The text that this token completes; empty while a character is unfinished."""
        self.ids.append(token)
        text = self._decode(self._start)
        if text.endswith(UNFINISHED):
            return ""
        new = text[self._shown :]
        self._start, self._shown = self._shown_from(), 0
        self._shown = len(self._decode(self._start))
        return new

    def finish(self) -> str:
        """What is left: the replacement characters of an answer that ends inside a character."""
        return self._decode(self._start)[self._shown :]

    def _decode(self, start: int) -> str:
        text = self.tokenizer.decode(self.ids[start:], skip_special_tokens=True)
        assert isinstance(text, str), "one list of ids gives one text"
        return text

    def _shown_from(self) -> int:
        return max(len(self.ids) - 4, 0)
