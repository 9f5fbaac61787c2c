"""One token as text and as bytes, for log-probabilities. Answers themselves are detokenised by the engine."""

from dataclasses import dataclass
from functools import cached_property

from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

REPLACEMENT_CHARACTER = "\ufffd"


@dataclass(frozen=True)
class TokenText:
    """raw: the token's bytes; None where the tokenizer does not say which bytes an unfinished character has."""

    text: str
    raw_bytes: list[int] | None


class TokenDecoder:
    """Reads tokens one by one.

    Some tokenizers strip the space of the first token of a text, so each is read behind an anchor and cut off again:

        decode("a" " cat")  ->  "a cat"  ->  " cat"
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self.anchor: list[int] = tokenizer.encode("a", add_special_tokens=False)

    def decode(self, token: int) -> TokenText:
        """Text and bytes; a token that is a part of a character only has the replacement character as text."""
        text = self._decode_ids([*self.anchor, token]).removeprefix(self._anchor_text)
        return TokenText(text, self._partial_bytes(token) if REPLACEMENT_CHARACTER in text else list(text.encode()))

    def _partial_bytes(self, token: int) -> list[int] | None:
        name = self.tokenizer.convert_ids_to_tokens(token)
        assert isinstance(name, str), "one id names one token"
        if len(name) == 6 and name.startswith("<0x"):  # SentencePiece's single bytes: <0xE2>
            return [int(name[3:5], 16)]
        if all(letter in self._byte_of for letter in name):  # byte-level BPE: a letter for each byte
            return [self._byte_of[letter] for letter in name]
        return None

    @cached_property
    def _anchor_text(self) -> str:
        return self._decode_ids(self.anchor)

    @cached_property
    def _byte_of(self) -> dict[str, int]:
        return {letter: byte for byte, letter in bytes_to_unicode().items()}

    def _decode_ids(self, ids: list[int]) -> str:
        text = self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        assert isinstance(text, str), "one list of ids gives one text"
        return text
