"""Turns prompts into a queue of questions, and answers into files. A few files (shards, parts) are open at once.

    part 0  . . # #      . answered   # in flight   _ not started
    part 1  . # # _      the next question may come from the next part while the last answers of this one are missing,
    part 2  _ _ _ _      so the number of requests in flight stays the same across parts and turns

A part is written whole, in the order of its prompts, when its last conversation has ended.
"""

from collections import Counter, deque
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from eyas.base.errors import InputError
from eyas.base.progress import Progress
from eyas.base.storage import write_atomic
from eyas.chat.conversation import MODE_TAG, Conversation, Finish, Message, Turn, read_conversations
from eyas.chat.render import decode_ids, render_prompt
from eyas.data.answers.journal import Journal, KeptAnswer, WithheldAnswer
from eyas.data.answers.openai_protocol import message_texts
from eyas.data.answers.respond_config import RespondConfig
from eyas.data.answers.responder import Answered, Question, Refused, Responder
from eyas.data.ledger.ledger import EMPTY, LOOPING, PRIVATE, TOO_LONG, TRUNCATED, UNRENDERED, AnswerLedger
from eyas.data.select.quality import is_looping_answer
from eyas.privacy.filter import PrivacyFilter

DEFAULT_LANGUAGE = "en"  # of a prompt without that tag
SPARE_SHARDS = 3  # shards that may be open besides those that the requests in flight need: room for slow answers


def count_answers(prompt: Conversation) -> int:
    """Returns the number of answers that a prompt needs: one for each user turn."""
    return sum(message.role == "user" for message in prompt.messages)


@dataclass(eq=False)
class ConversationState:
    """A conversation in progress: its messages and answers so far."""

    prompt: Conversation
    messages: list[Message] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    drop_reason: str | None = None
    private_counts: Counter[str] = field(default_factory=Counter)  # of the scanner, in the answers

    @property
    def num_unanswered(self) -> int:
        """Number of user turns that still need an answer."""
        return count_answers(self.prompt) - len(self.turns) if self.drop_reason is None else 0

    def next_question(self, tokenizer: PreTrainedTokenizerBase, config: RespondConfig) -> Question:
        """Adds the next user turn of the prompt to the messages, and returns the question for its answer."""
        num_used = len(self.messages) - len(self.turns)  # messages of the prompt
        has_system = not num_used and self.prompt.messages[0].role == "system"
        self.messages += self.prompt.messages[num_used : num_used + 1 + has_system]
        decoding = config.decoding_for(self.prompt.tags.get("task"))
        messages, variables = tuple(self.messages), self.prompt.template_variables
        ids = render_prompt(messages, tokenizer, variables=variables)
        return Question(f"{self.prompt.id}/{len(self.turns)}", messages, ids, decoding, variables)

    def add_answer(self, answer: KeptAnswer | WithheldAnswer, config: RespondConfig) -> None:
        """Adds the answer to the last question. If the answer must be dropped, the conversation ends here."""
        self.private_counts.update(answer.private_counts)
        if isinstance(answer, WithheldAnswer):
            self.drop_reason = PRIVATE
            return
        self.messages.append(answer.message)
        self.turns.append(answer.turn)
        if not any(text.strip() for text in message_texts(answer.message)):
            self.drop_reason = EMPTY
        elif config.drop_looping and is_looping_answer(answer.turn.token_ids):
            self.drop_reason = LOOPING
        elif config.drop_truncated and answer.turn.finish == "length":
            self.drop_reason = TRUNCATED

    def to_conversation(self) -> Conversation:
        """Returns the answered conversation, with the tag `looping` if an answer ends in a loop."""
        tags = dict(self.prompt.tags)
        if any(is_looping_answer(turn.token_ids) for turn in self.turns):
            tags[LOOPING] = "true"
        return replace(self.prompt, messages=tuple(self.messages), turns=tuple(self.turns), tags=tags)


class OutputShard:
    """The conversations of one output file, and their journal."""

    def __init__(self, path: Path, prompts: list[Conversation]) -> None:
        """Prepares the shard; `ShardWriter` opens its journal.

        Args:
            path: The output file.
            prompts: The prompts of the shard.
        """
        self.path = path
        self.conversations = [ConversationState(prompt) for prompt in prompts]
        self.num_unfinished = len(self.conversations)
        self.journal = Journal(path)

    def write(self) -> None:
        """Writes the ledger of the shard, then its conversations. Afterwards the journal can be removed."""
        ledger = AnswerLedger()
        lines: list[bytes] = []
        for state in self.conversations:
            ledger.private.update(state.private_counts)
            if state.drop_reason is None:
                conversation = state.to_conversation()
                ledger.count_kept(conversation)
                lines.append(conversation.to_line())
            else:
                ledger.count_dropped(state.drop_reason, state.prompt.id)
        ledger.write(ledger.path_beside(self.path))
        write_atomic(self.path, b"".join(lines))


class ShardWriter(AbstractContextManager["ShardWriter"]):
    """The `QuestionQueue` of all shards that are not written yet. A context manager that closes their journals."""

    def __init__(
        self,
        prompts: Path,
        paths: list[Path],
        config: RespondConfig,
        responder: Responder,
        scan: PrivacyFilter | None,
        bar: Progress,
    ) -> None:
        """Prepares the queue. A shard is opened when its first question is needed.

        Args:
            prompts: The file of prompts.
            paths: The output files, in order.
            config: The recipe keys.
            responder: Answers the questions.
            scan: Scans the answers for personal data; None does not scan.
            bar: The progress bar. It also counts answers that an earlier run stored and answers that are not needed.
        """
        self._config = config
        stream, size = read_conversations(prompts), config.part_size
        self._shards_to_open = ((path, [self._with_mode(one) for one in islice(stream, size)]) for path in paths)
        self._responder = responder
        self._scan = scan
        in_flight = config.batch_size if config.url is None else config.concurrency
        self._max_open = -(-in_flight // config.part_size) + SPARE_SHARDS
        self._open: list[OutputShard] = []
        # Conversations that have no question yet, and those whose next turn goes before all others.
        self._first_turns: deque[tuple[OutputShard, ConversationState]] = deque()
        self._next_turns: deque[tuple[OutputShard, ConversationState]] = deque()
        self._in_flight: dict[str, tuple[OutputShard, ConversationState]] = {}
        self._bar = bar

    def __exit__(self, *_: object) -> None:
        for shard in self._open:
            shard.journal.close()

    def next(self) -> Question | None:
        """Returns the next question, or None if none is ready now."""
        while True:
            ready = self._next_turns or self._first_turns
            if ready:
                if (question := self._build_question(*ready.popleft())) is not None:
                    return question
            elif len(self._open) == self._max_open or not self._open_next():
                return None

    def add(self, event: Answered | Refused) -> None:
        """Stores an answer, or drops the conversation if its question was refused."""
        shard, state = self._in_flight.pop(event.id)
        if isinstance(event, Refused):
            self._drop(state, event.reason)
        else:
            answer = self._to_answer(event, state.prompt)
            shard.journal.add(state.prompt.id, len(state.turns), answer)
            self._apply(state, answer)
        if state.num_unanswered:
            self._next_turns.append((shard, state))
        else:
            self._finish(shard)

    def check(self) -> None:
        """Asserts that every shard is written."""
        assert not self._in_flight, f"no answer came to {next(iter(self._in_flight))}"
        assert not self._open, "a shard is not written"
        assert next(self._shards_to_open, None) is None, "a shard was never opened"

    def _with_mode(self, prompt: Conversation) -> Conversation:
        name = self._config.mode_for(prompt.id)
        if name is None:
            return prompt
        variables = self._config.modes[name].chat_template_kwargs
        return replace(prompt, tags={**prompt.tags, MODE_TAG: name}, template_variables=variables)

    def _open_next(self) -> bool:
        """Opens the next shard that is not written. Returns False if there is none."""
        for path, prompts in self._shards_to_open:
            if path.exists():
                self._bar.skip(sum(count_answers(prompt) for prompt in prompts))
                Journal(path).remove()
                continue
            shard = OutputShard(path, prompts)
            shard.journal.open()
            self._open.append(shard)
            self._bar.skip(len(shard.journal))
            states = shard.conversations
            if self._config.url is None:
                # Prompts of similar length together: a batch of the engine is as wide as its longest member.
                states = sorted(states, key=lambda each: sum(len(message.content) for message in each.prompt.messages))
            self._first_turns.extend((shard, state) for state in states)
            return True
        return False

    def _build_question(self, shard: OutputShard, state: ConversationState) -> Question | None:
        """Returns the next question of a conversation without an answer in the journal; None if there is none."""
        while state.num_unanswered:
            try:
                question = state.next_question(self._responder.tokenizer, self._config)
            except InputError:
                # Some templates need a tool's result after a call, which no prompt has.
                if not any(message.tool_calls for message in state.messages):
                    raise
                self._drop(state, UNRENDERED)
                break
            if len(question.prompt_ids) + question.decoding.max_tokens > self._responder.max_positions:
                self._drop(state, TOO_LONG)
                break
            answer = shard.journal.get(state.prompt.id, len(state.turns))
            if answer is None:
                self._in_flight[question.id] = shard, state
                return question
            self._apply(state, answer)
        self._finish(shard)
        return None

    def _to_answer(self, event: Answered, prompt: Conversation) -> KeptAnswer | WithheldAnswer:
        """Scans an answer before it is stored: a target may have memorized personal data."""
        token_ids = tuple(int(token) for token in event.token_ids)
        message = self._decode_message(token_ids, event.finish) if event.message is None else event.message
        counts: dict[str, int] = {}
        if self._scan is not None:
            text, language = "\n".join(message_texts(message)), prompt.tags.get("language", DEFAULT_LANGUAGE)
            (counts,) = self._scan.scan([text], [language])
        if any(counts.get(kind) for kind in self._config.drop_private):
            return WithheldAnswer(counts)
        return KeptAnswer(Turn(token_ids, (True,) * len(token_ids), event.finish, event.ids_source), message, counts)

    def _decode_message(self, token_ids: tuple[int, ...], finish: Finish) -> Message:
        """Returns the answer's text as a message, without special tokens, so that it cannot start another turn."""
        ids = token_ids[:-1] if finish == "stop" else token_ids
        return Message("assistant", decode_ids(ids, self._responder.tokenizer, skip_special_tokens=True))

    def _apply(self, state: ConversationState, answer: KeptAnswer | WithheldAnswer) -> None:
        expected = state.num_unanswered - 1
        state.add_answer(answer, self._config)
        self._bar.skip(expected - state.num_unanswered)

    def _drop(self, state: ConversationState, reason: str) -> None:
        self._bar.skip(state.num_unanswered)
        state.drop_reason = reason

    def _finish(self, shard: OutputShard) -> None:
        """Counts one conversation of the shard as ended. After the last conversation, writes the shard."""
        shard.num_unfinished -= 1
        if shard.num_unfinished == 0:
            shard.write()
            shard.journal.close()
            shard.journal.remove()
            self._open.remove(shard)
