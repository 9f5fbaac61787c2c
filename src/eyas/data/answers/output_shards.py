"""The prompts as a stream of questions, and their answers as files: a few parts are open at once.

    part 0  . . # #      . answered   # in flight   _ not yet asked
    part 1  . # # _      the next question may come from the next part while the last answers of this one are awaited,
    part 2  _ _ _ _      so the number of requests in flight stays the same across parts and turns

A part is written whole, in the order of its prompts, when its last conversation has ended.
"""

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Self

from transformers import PreTrainedTokenizerBase

from eyas.base.errors import InputError
from eyas.base.progress import Progress
from eyas.base.storage import write_atomic
from eyas.chat.conversation import Conversation, Finish, Message, Turn, read_conversations
from eyas.chat.render import render_prompt
from eyas.data.answers.journal import Journal, KeptAnswer, WithheldAnswer
from eyas.data.answers.respond_config import RespondConfig
from eyas.data.answers.responder import Answered, AnswerScanner, Question, Refused, Responder
from eyas.data.answers.shard_stats import EMPTY, LOOPING, PRIVATE, TOO_LONG, TRUNCATED, UNRENDERED, ShardStats
from eyas.data.select.quality import is_looping_answer

DEFAULT_LANGUAGE = "en"  # the language of a prompt without that tag
SPARE_SHARDS = 3  # open beyond those that the requests in flight fill: how far a slow answer may be left behind


def count_answers(prompt: Conversation) -> int:
    """How many answers a prompt wants: one for each user turn."""
    return sum(message.role == "user" for message in prompt.messages)


@dataclass(eq=False)
class ConversationState:
    """A conversation on its way: what was said, and the answers so far."""

    prompt: Conversation
    messages: list[Message] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    drop_reason: str | None = None  # the reason
    private_counts: Counter[str] = field(default_factory=Counter)  # by the scan of the answers

    @property
    def num_unanswered(self) -> int:
        """User turns that still want an answer."""
        return count_answers(self.prompt) - len(self.turns) if self.drop_reason is None else 0

    def next_question(self, tokenizer: PreTrainedTokenizerBase, config: RespondConfig) -> Question:
        """Says the next user turn."""
        heard = len(self.messages) - len(self.turns)
        first = not heard and self.prompt.messages[0].role == "system"
        self.messages += self.prompt.messages[heard : heard + 1 + first]
        decoding = config.decoding_for(self.prompt.tags.get("task"))
        said = tuple(self.messages)
        return Question(f"{self.prompt.id}/{len(self.turns)}", said, render_prompt(said, tokenizer), decoding)

    def add_answer(self, reply: KeptAnswer | WithheldAnswer, config: RespondConfig) -> None:
        """The answer to what was asked. An answer that is to be left out ends the conversation: no more is asked."""
        self.private_counts.update(reply.private_counts)
        if isinstance(reply, WithheldAnswer):
            self.drop_reason = PRIVATE
            return
        self.messages.append(reply.message)
        self.turns.append(reply.turn)
        if not _answer_text(reply.message).strip():
            self.drop_reason = EMPTY
        elif config.drop_looping and is_looping_answer(reply.turn.token_ids):
            self.drop_reason = LOOPING
        elif config.drop_truncated and reply.turn.finish == "length":
            self.drop_reason = TRUNCATED

    def to_conversation(self) -> Conversation:
        """The whole conversation; loops are flagged."""
        tags = dict(self.prompt.tags)
        if any(is_looping_answer(turn.token_ids) for turn in self.turns):
            tags[LOOPING] = "true"
        return replace(self.prompt, messages=tuple(self.messages), turns=tuple(self.turns), tags=tags)


def _answer_text(message: Message) -> str:
    """All that an answer says."""
    calls = [text for call in message.tool_calls for text in (call.name, call.arguments)]
    return "\n".join([message.reasoning or "", message.content, *calls])


class OutputShard:
    """A file's worth of conversations, and their journal."""

    def __init__(self, path: Path, prompts: list[Conversation]) -> None:
        self.path = path
        self.conversations = [ConversationState(prompt) for prompt in prompts]
        self.num_unfinished = len(self.conversations)
        self.journal = Journal(path)

    def write(self) -> None:
        """The tally, then the part; from then on the journal is not needed."""
        tally = ShardStats()
        kept: list[bytes] = []
        for talk in self.conversations:
            tally.count_findings(talk.private_counts)
            if talk.drop_reason is None:
                conversation = talk.to_conversation()
                tally.count_kept(conversation)
                kept.append(conversation.to_line())
            else:
                tally.count_dropped(talk.prompt.id, talk.drop_reason)
        tally.write(self.path)
        write_atomic(self.path, b"".join(kept))


class ShardWriter:
    """The `Questions` of all parts that are not written yet; a context manager that closes their journals."""

    def __init__(
        self,
        prompts: Path,
        paths: list[Path],
        config: RespondConfig,
        responder: Responder,
        scan: AnswerScanner | None,
        bar: Progress,
    ) -> None:
        """prompts: the file. paths: those of the parts, in order. bar: counts what needs no asking."""
        self._shards_to_open = self._read_shards(prompts, paths, config.part_size)
        self._config = config
        self._responder = responder
        self._scan = scan
        in_flight = config.batch_size if config.url is None else config.concurrency
        self._max_open = -(-in_flight // config.part_size) + SPARE_SHARDS
        self._open: list[OutputShard] = []
        # Conversations whose first question is not asked yet, and those whose next turn goes before all others.
        # Conversations whose first question is not asked yet, and those whose next turn goes before all others.
        self._first_turns: deque[tuple[OutputShard, ConversationState]] = deque()
        self._next_turns: deque[tuple[OutputShard, ConversationState]] = deque()
        self._in_flight: dict[str, tuple[OutputShard, ConversationState]] = {}
        self._bar = bar

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for part in self._open:
            part.journal.close()

    def next(self) -> Question | None:
        while True:
            ready = self._next_turns or self._first_turns
            if ready:
                question = self._build_question(*ready.popleft())
                if question is not None:
                    return question
            elif len(self._open) == self._max_open or not self._open_next():
                return None

    def add(self, event: Answered | Refused) -> None:
        """An answer, or that there will be none."""
        part, talk = self._in_flight.pop(event.id)
        if isinstance(event, Refused):
            self._drop(talk, event.reason)
        else:
            reply = self._to_answer(event, talk.prompt)
            part.journal.add(talk.prompt.id, len(talk.turns), reply)
            self._apply(talk, reply)
        if talk.num_unanswered:
            self._next_turns.append((part, talk))
        else:
            self._finish(part, talk)

    def check(self) -> None:
        """Assert that every part stands."""
        assert not self._in_flight, f"no answer came to {next(iter(self._in_flight))}"
        assert not self._open, "a part is not written"
        assert next(self._shards_to_open, None) is None, "a part was never opened"

    def _read_shards(self, prompts: Path, paths: list[Path], size: int) -> Iterator[tuple[Path, list[Conversation]]]:
        stream = read_conversations(prompts)
        for path in paths:
            yield path, list(islice(stream, size))

    def _open_next(self) -> bool:
        """Opens the next part that is not written; whether there was one."""
        for path, prompts in self._shards_to_open:
            if path.exists():
                self._bar.skip(sum(count_answers(prompt) for prompt in prompts))
                Journal(path).remove()
                continue
            part = OutputShard(path, prompts)
            part.journal.open()
            self._open.append(part)
            self._bar.skip(len(part.journal))
            talks = part.conversations
            if self._config.url is None:
                # Prompts of similar length together: a batch of the engine is as wide as its longest member.
                talks = sorted(talks, key=lambda talk: sum(len(message.content) for message in talk.prompt.messages))
            self._first_turns.extend((part, talk) for talk in talks)
            return True
        return False

    def _build_question(self, part: OutputShard, talk: ConversationState) -> Question | None:
        """The next question of a conversation that the journal does not answer; None where it has ended."""
        while talk.num_unanswered:
            try:
                question = talk.next_question(self._responder.tokenizer, self._config)
            except InputError:
                # Some templates want a tool's result behind a call, which no prompt has.
                if not any(message.tool_calls for message in talk.messages):
                    raise
                self._drop(talk, UNRENDERED)
                break
            if len(question.prompt_ids) + question.decoding.max_tokens > self._responder.max_positions:
                self._drop(talk, TOO_LONG)
                break
            reply = part.journal.get(talk.prompt.id, len(talk.turns))
            if reply is None:
                self._in_flight[question.id] = part, talk
                return question
            self._apply(talk, reply)
        self._finish(part, talk)
        return None

    def _to_answer(self, event: Answered, prompt: Conversation) -> KeptAnswer | WithheldAnswer:
        """The answer as it is kept. It is scanned first: a target may know personal data by heart."""
        token_ids = tuple(int(token) for token in event.token_ids)
        message = self._decode_message(token_ids, event.finish) if event.message is None else event.message
        found: dict[str, int] = {}
        if self._scan is not None:
            (found,) = self._scan([_answer_text(message)], [prompt.tags.get("language", DEFAULT_LANGUAGE)])
        if any(found.get(kind) for kind in self._config.drop_private):
            return WithheldAnswer(found)
        return KeptAnswer(Turn(token_ids, (True,) * len(token_ids), event.finish, event.ids), message, found)

    def _decode_message(self, token_ids: tuple[int, ...], finish: Finish) -> Message:
        """The text of ids, without special tokens, as a server hands it out: else an answer could open a turn."""
        text = self._responder.tokenizer.decode(
            list(token_ids[:-1] if finish == "stop" else token_ids),
            skip_special_tokens=True,
            clean_up_tokenization_spaces=False,
        )
        assert isinstance(text, str)
        return Message("assistant", text)

    def _apply(self, talk: ConversationState, reply: KeptAnswer | WithheldAnswer) -> None:
        wanted = talk.num_unanswered - 1
        talk.add_answer(reply, self._config)
        self._bar.skip(wanted - talk.num_unanswered)

    def _drop(self, talk: ConversationState, reason: str) -> None:
        self._bar.skip(talk.num_unanswered)
        talk.drop_reason = reason

    def _finish(self, part: OutputShard, talk: ConversationState) -> None:
        part.num_unfinished -= 1
        if part.num_unfinished == 0:
            part.write()
            part.journal.close()
            part.journal.remove()
            self._open.remove(part)
