"""`eyas respond`: the target answers the prompts, turn by turn, batched and resumable; its ids are kept as generated.

    user 1 -> answer 1 -> user 2 -> answer 2       each user turn sees the answers before it, as text, like a server

Prompts are worked on in parts of fixed size: a part is finished, or absent with a journal beside it. Whatever a kill
leaves, the same command ends with each id answered once, in the order of the prompts.
"""

import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from transformers import PreTrainedTokenizerBase

from eyas.base.errors import InputError, UsageError
from eyas.base.progress import Progress
from eyas.base.provenance import (
    Origin,
    Provenance,
    digest_json,
    finish,
    is_finished,
    read_provenance,
    reopen,
    require,
    require_digest,
    write_atomic,
    write_json_atomic,
    writing,
)
from eyas.chat.conversation import Conversation, Finish, Message, Turn, read
from eyas.chat.render import prompt_ids
from eyas.synth.journal import SUFFIX, Journal
from eyas.synth.loops import looping
from eyas.synth.prompts import PROMPTS_FILE
from eyas.synth.prompts import STAGE as PROMPTS_STAGE

STAGE = "respond"
ORIGIN_FILE = "origin.json"
LEDGER_FILE = "ledger.json"
LOOPING = "looping"  # the tag of a conversation with an answer that got stuck
MAX_NAMED = 20  # ids named in the ledger


@dataclass(frozen=True)
class RespondConfig:
    """The recipe keys `respond.*`. Whoever makes the `Answer` takes temperature, batch_size and seed from here."""

    max_tokens: int = 256  # of one answer, its end-of-turn token included
    temperature: float = 0.0
    batch_size: int = 16
    seed: int = 0
    part_size: int = 256  # conversations in one file, and held in memory at a time

    def __post_init__(self) -> None:
        for name in ("max_tokens", "batch_size", "part_size"):
            if getattr(self, name) < 1:
                raise UsageError(f"respond.{name}={getattr(self, name)}", "a number from 1 on", "raise it")
        if self.temperature < 0:
            raise UsageError(f"respond.temperature={self.temperature}", "0 (greedy) or more", "raise it")


@dataclass(frozen=True)
class Answered:
    """One answer: to prompts[index], as generated, the end-of-turn token included where finish is "stop"."""

    index: int
    token_ids: Sequence[int]
    finish: Finish


class Answer(Protocol):
    """Generates at most `max_tokens` for each prompt and yields each answer as it is finished, in any order.

    ids[i] names prompts[i] for ever ("gsm8k-train:17/0": conversation/turn), so that sampling can be seeded by it: an
    answer must not depend on which prompts are asked together.
    """

    def __call__(self, prompts: list[list[int]], ids: list[str]) -> Iterator[Answered]: ...


@dataclass(frozen=True)
class Responder:
    """The target as this room sees it."""

    answer: Answer
    tokenizer: PreTrainedTokenizerBase
    max_positions: int  # prompt and answer together
    target_digest: str
    tokenizer_digest: str
    template_digest: str
    target_dtype: str = "torch.float32"  # decides near ties, so it decides answers


@dataclass
class _Rates:
    """Tokens per second of this process, for the progress line."""

    started_s: float
    tokens: int = 0

    def note(self) -> str:
        return f"{self.tokens / max(time.monotonic() - self.started_s, 1e-9):,.0f} tokens/s"


def origin_of(config: RespondConfig, prompts_digest: str, responder: Responder) -> Origin:
    """What decides the answers."""
    return Origin(
        STAGE,
        digest_json(asdict(config) | {"target_dtype": responder.target_dtype}),
        {"prompts": prompts_digest, "target": responder.target_digest},
        responder.tokenizer_digest,
        responder.template_digest,
    )


def run(
    config: RespondConfig, prompts_dir: Path, out_dir: Path, responder: Responder, progress: bool = True
) -> Provenance:
    """Writes part-*.jsonl, ledger.json, origin.json and provenance.json; nothing where they are finished already.

    A conversation of which a prompt and a full answer do not fit into max_positions is dropped and counted. Raises
    InputError for damaged prompts, and where no conversation is left; StageError for a full disk.
    """
    started_s = time.time()
    require(prompts_dir, PROMPTS_STAGE)
    origin = origin_of(config, require_digest(prompts_dir).digest, responder)
    if is_finished(out_dir, origin):
        return read_provenance(out_dir)
    prompts = _read_prompts(prompts_dir / PROMPTS_FILE)
    _begin(out_dir, origin)
    starts = range(0, len(prompts), config.part_size)
    parts = [out_dir / f"part-{number:05d}.jsonl" for number in range(len(starts))]
    with Progress(STAGE, sum(_num_answers(prompt) for prompt in prompts), "answers", enabled=progress) as bar:
        rates = _Rates(time.monotonic())
        for start, part in zip(starts, parts, strict=True):
            asked = prompts[start : start + config.part_size]
            if part.exists():
                bar.skip(sum(_num_answers(prompt) for prompt in asked))
            else:
                _write_part(config, part, asked, responder, bar, rates)
            Journal(part).remove()
    ledger = _ledger(prompts, parts)
    if not ledger["conversations"]:
        _clear(out_dir)
        raise InputError(
            f"no conversation that fits: {len(prompts)} prompts with {config.max_tokens} answer tokens are too long",
            f"at most {responder.max_positions} positions, which the target has",
            "lower respond.max_tokens, or take shorter prompts",
        )
    write_json_atomic(out_dir / LEDGER_FILE, ledger)
    return finish(out_dir, origin, started_s)


# --- the directory ---------------------------------------------------------------------------------------------------


def _begin(out_dir: Path, origin: Origin) -> None:
    """Keeps what an unfinished run of this origin left, and clears what any other left: answers are never mixed."""
    wanted = digest_json(asdict(origin))
    path = out_dir / ORIGIN_FILE
    try:
        same = json.loads(path.read_bytes()) == {"origin": wanted}
    except (OSError, ValueError):
        same = False
    if same:
        reopen(out_dir)
    else:
        _clear(out_dir)
        write_json_atomic(path, {"origin": wanted})


def _clear(out_dir: Path) -> None:
    """Removes what this stage writes, provenance first, and nothing else."""
    reopen(out_dir)
    parts = [*out_dir.glob("part-*.jsonl"), *out_dir.glob(f"part-*.jsonl{SUFFIX}")]
    for path in (*parts, out_dir / LEDGER_FILE, out_dir / ORIGIN_FILE):
        with writing(path):
            path.unlink(missing_ok=True)


def _read_prompts(path: Path) -> list[Conversation]:
    prompts = list(read(path))
    counts = Counter(prompt.id for prompt in prompts)
    twice = [name for name, count in counts.items() if count > 1]
    if twice:
        raise InputError(f"the id {twice[0]} more than once in {path}", "ids that differ", "run `eyas prompts` again")
    for prompt in prompts:
        if any(message.role == "assistant" for message in prompt.messages) or not _num_answers(prompt):
            raise InputError(f"{prompt.id} in {path} with other than user turns", "prompts", "run `eyas prompts` again")
    if not prompts:
        raise InputError(f"no prompt in {path}", "at least one", "run `eyas prompts` again")
    return prompts


def _num_answers(prompt: Conversation) -> int:
    return sum(message.role == "user" for message in prompt.messages)


# --- one part --------------------------------------------------------------------------------------------------------


@dataclass
class _Talk:
    """A conversation on its way: what was said, and the answers so far."""

    prompt: Conversation
    said: list[Message] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    fits: bool = True

    @property
    def num_open(self) -> int:
        """User turns that still want an answer."""
        return _num_answers(self.prompt) - len(self.turns) if self.fits else 0

    def ask(self, tokenizer: PreTrainedTokenizerBase) -> list[int]:
        """Says the next user turn; returns what serving would feed."""
        heard = len(self.said) - len(self.turns)
        first = not heard and self.prompt.messages[0].role == "system"
        self.said += self.prompt.messages[heard : heard + 1 + first]
        return prompt_ids(self.said, tokenizer)

    def take(self, turn: Turn, tokenizer: PreTrainedTokenizerBase) -> None:
        """The answer to what was asked, as text for the next turn and as generated ids."""
        text_ids = list(turn.token_ids[:-1] if turn.finish == "stop" else turn.token_ids)
        # Without special tokens, as a server hands it out: else an answer could open a turn of its own.
        text = tokenizer.decode(text_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        self.said.append(Message("assistant", text))
        self.turns.append(turn)

    def answered(self) -> Conversation:
        """The whole conversation; loops are flagged."""
        tags = dict(self.prompt.tags)
        if any(looping(turn.token_ids) for turn in self.turns):
            tags[LOOPING] = "true"
        return replace(self.prompt, messages=tuple(self.said), turns=tuple(self.turns), tags=tags)


def _write_part(
    config: RespondConfig, part: Path, prompts: list[Conversation], responder: Responder, bar: Progress, rates: _Rates
) -> None:
    """Answers the prompts, all first turns first, and writes those conversations that fit."""
    talks = [_Talk(prompt) for prompt in prompts]
    with Journal(part) as journal:
        bar.skip(len(journal))
        turn = 0
        while still_open := [talk for talk in talks if talk.num_open]:
            asked: list[tuple[_Talk, list[int]]] = []
            for talk in still_open:
                ids = talk.ask(responder.tokenizer)
                if len(ids) + config.max_tokens <= responder.max_positions:
                    asked.append((talk, ids))
                else:
                    bar.skip(talk.num_open)
                    talk.fits = False
            new = [(talk, ids) for talk, ids in asked if journal.get(talk.prompt.id, turn) is None]
            names = [talk.prompt.id for talk, _ in new]
            if new:
                answers = responder.answer([ids for _, ids in new], [f"{name}/{turn}" for name in names])
                for answer in answers:
                    assert 0 <= answer.index < len(new), f"an answer to prompt {answer.index} of {len(new)}"
                    assert 1 <= len(answer.token_ids) <= config.max_tokens, f"{len(answer.token_ids)} tokens"
                    token_ids = tuple(int(token) for token in answer.token_ids)
                    journal.add(names[answer.index], turn, Turn(token_ids, (True,) * len(token_ids), answer.finish))
                    rates.tokens += len(token_ids)
                    bar.advance(note=rates.note())
            for talk, _ in asked:
                came = journal.get(talk.prompt.id, turn)
                assert came is not None, f"no answer came to {talk.prompt.id}/{turn}"
                talk.take(came, responder.tokenizer)
            turn += 1
        write_atomic(part, b"".join(talk.answered().to_line() for talk in talks if talk.fits))


# --- the ledger ------------------------------------------------------------------------------------------------------


def _ledger(prompts: Sequence[Conversation], parts: Sequence[Path]) -> dict[str, Any]:
    """What came and what went, counted in the finished parts."""
    answered: set[str] = set()
    finishes: Counter[str] = Counter()
    tasks: Counter[str] = Counter()
    num_tokens = num_looping = 0
    for part in parts:
        for conversation in read(part):
            answered.add(conversation.id)
            finishes.update(turn.finish for turn in conversation.turns)
            tasks[conversation.tags.get("task", "none")] += 1
            num_tokens += sum(len(turn.token_ids) for turn in conversation.turns)
            num_looping += LOOPING in conversation.tags
    too_long = [prompt.id for prompt in prompts if prompt.id not in answered]
    return {
        "schema": 1,
        "prompts": len(prompts),
        "conversations": len(answered),
        "dropped": {"too_long": {"count": len(too_long), "ids": too_long[:MAX_NAMED]}},
        "looping": num_looping,
        "answers": finishes.total(),
        "finish": {"stop": finishes["stop"], "length": finishes["length"]},
        "tokens": num_tokens,
        "tasks": dict(sorted(tasks.items())),
    }
