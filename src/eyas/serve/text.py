"""Token ids to text as they come: a token may end in the middle of a character."""

from transformers import PreTrainedTokenizerBase

UNFINISHED = "\ufffd"
CONTEXT = 4  # ids decoded again with each new one: some tokenizers strip the space of the first


class Detokenizer:
    """Text of a growing list of ids; special tokens are left out."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self.ids: list[int] = []
        self._start = 0  # decoding starts here,
        self._shown = 0  # and so many characters from here on are out

    def push(self, token: int) -> str:
        """The text that this token completes; empty while a character is unfinished."""
        self.ids.append(token)
        text = self._decode()
        if text.endswith(UNFINISHED):
            return ""
        new = text[self._shown :]
        self._start = max(len(self.ids) - CONTEXT, 0)
        self._shown = len(self._decode())
        return new

    def finish(self) -> str:
        """What is left: the replacement characters of an answer that ends inside a character."""
        return self._decode()[self._shown :]

    def _decode(self) -> str:
        text = self.tokenizer.decode(self.ids[self._start :], skip_special_tokens=True)
        assert isinstance(text, str), "one list of ids gives one text"
        return text
