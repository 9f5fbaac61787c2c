"""`eyas respond`: the target answers the prompts, turn by turn, batched and resumable; its ids are kept as generated.

    user 1 -> answer 1 -> user 2 -> answer 2       each user turn sees the answers before it, as text, like a server

The target answers on eyas's own engine or on any OpenAI-compatible server (`remote`). Prompts are written in parts of
fixed size: a part is finished, or absent with a journal beside it. Whatever a kill leaves, the same command ends with
each id answered once, in the order of the prompts.
"""

import contextlib
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from eyas.base.errors import InputError
from eyas.base.progress import Progress
from eyas.base.provenance import (
    Provenance,
    StageInputs,
    digest_json,
    finish_stage,
    is_finished,
    mark_unfinished,
    read_provenance,
    require_finished,
    verify_contents,
)
from eyas.base.storage import convert_write_errors, write_json_atomic
from eyas.chat.conversation import read_conversations
from eyas.data.answers import journal
from eyas.data.answers import shard_stats as tally
from eyas.data.answers.output_shards import ShardWriter, count_answers
from eyas.data.answers.respond_config import RespondConfig
from eyas.data.answers.responder import Answered, AnswerScanner, Responder, Retried
from eyas.data.prompts import PROMPTS_FILE
from eyas.data.prompts import STAGE as PROMPTS_STAGE

STAGE = "respond"
ORIGIN_FILE = "origin.json"
LEDGER_FILE = "ledger.json"


@dataclass
class _Throughput:
    """Tokens per second and failed attempts of this process, for the progress line."""

    started_s: float
    tokens: int = 0
    retries: int = 0
    last: str = ""

    def to_text(self) -> str:
        text = f"{self.tokens / max(time.monotonic() - self.started_s, 1e-9):,.0f} tokens/s"
        return f"{text}  {self.retries:,} retries, last after {self.last}" if self.retries else text


def build_origin(
    config: RespondConfig, prompts_digest: str, responder: Responder, scan: AnswerScanner | None = None
) -> StageInputs:
    """What decides the answers and which of them are kept. Where a server stands decides nothing: its model does."""
    decides = config.output_affecting_keys() | {
        "target_dtype": responder.target_dtype,
        "scan": None if scan is None else scan.digest,
    }
    return StageInputs(
        STAGE,
        digest_json(decides),
        {"prompts": prompts_digest, "target": responder.target_digest},
        responder.tokenizer_digest,
        responder.template_digest,
    )


def run(
    config: RespondConfig,
    prompts_dir: Path,
    out_dir: Path,
    responder: Responder,
    progress: bool = True,
    scan: AnswerScanner | None = None,
) -> Provenance:
    """Writes part-*.jsonl, ledger.json, origin.json and provenance.json; nothing where they are finished already.

    Conversations are dropped and counted: one of which a prompt and a full answer do not fit into max_positions, one
    with an empty answer, and those that the recipe and the scan of the answers rule out. Raises InputError for damaged
    prompts, and where no conversation is left; StageError for a full disk and for a server that gives no answers: what
    was answered is kept, and the same call goes on behind it.
    """
    started_s = time.time()
    require_finished(prompts_dir, PROMPTS_STAGE)
    origin = build_origin(config, verify_contents(prompts_dir).digest, responder, scan)
    if is_finished(out_dir, origin):
        return read_provenance(out_dir)
    prompts = prompts_dir / PROMPTS_FILE
    answers = _count_answers(prompts)
    paths = [out_dir / f"part-{number:05d}.jsonl" for number in range(-(-len(answers) // config.part_size))]
    _prepare_directory(out_dir, origin, paths)
    with (
        Progress(STAGE, sum(answers), "answers", enabled=progress) as bar,
        ShardWriter(prompts, paths, config, responder, scan, bar) as parts,
        contextlib.closing(responder.answer(parts)) as events,
    ):
        rates = _Throughput(time.monotonic())
        for event in events:
            if isinstance(event, Retried):
                rates.retries, rates.last = rates.retries + 1, event.why
                bar.advance(0, note=rates.to_text())
                continue
            parts.add(event)
            if isinstance(event, Answered):
                rates.tokens += len(event.token_ids)
                bar.advance(note=rates.to_text())
        parts.check()
    ledger = out_dir / LEDGER_FILE
    if not ledger.exists():
        write_json_atomic(ledger, tally.build_ledger(len(answers), paths, scan is not None))
    _require_conversations(json.loads(ledger.read_bytes()), config, out_dir, responder)
    for path in paths:
        tally.stats_path(path).unlink(missing_ok=True)
    return finish_stage(out_dir, origin, started_s)


def _require_conversations(ledger: dict[str, Any], config: RespondConfig, out_dir: Path, responder: Responder) -> None:
    """InputError where no conversation is left."""
    if ledger["conversations"]:
        return
    dropped = {reason: entry["count"] for reason, entry in ledger["dropped"].items() if entry["count"]}
    if list(dropped) == [tally.TOO_LONG]:
        clear_output(out_dir)
        raise InputError(
            f"no conversation that fits: {ledger['prompts']} prompts with {config.max_tokens} answer tokens are too "
            "long",
            f"at most {responder.max_positions} positions, which the target has",
            "lower respond.max_tokens, or take shorter prompts",
        )
    reasons = ", ".join(f"{count} {reason}" for reason, count in dropped.items())
    raise InputError(
        f"no conversation left of {ledger['prompts']} prompts ({reasons})",
        "answers to train on",
        "check that the target answers, and the rules respond.drop_*",
    )


# --- the directory ---------------------------------------------------------------------------------------------------


def _prepare_directory(out_dir: Path, origin: StageInputs, parts: Sequence[Path]) -> None:
    """Keeps what an unfinished run of this origin left, and clears what any other left: answers are never mixed."""
    wanted = digest_json(asdict(origin))
    path = out_dir / ORIGIN_FILE
    try:
        same = json.loads(path.read_bytes()) == {"origin": wanted}
    except (OSError, ValueError):
        same = False
    # The ledger is written when all parts stand, and then their tallies go: a part that is missing was taken away.
    if same and (all(part.exists() for part in parts) or not (out_dir / LEDGER_FILE).exists()):
        mark_unfinished(out_dir)
    else:
        clear_output(out_dir)
        write_json_atomic(path, {"origin": wanted})


def clear_output(out_dir: Path) -> None:
    """Removes what this stage writes, provenance first, and nothing else."""
    mark_unfinished(out_dir)
    patterns = ("part-*.jsonl", f"part-*.jsonl{journal.JOURNAL_SUFFIX}", f"part-*.jsonl{tally.SUFFIX}")
    parts = [path for pattern in patterns for path in out_dir.glob(pattern)]
    for path in (*parts, out_dir / LEDGER_FILE, out_dir / ORIGIN_FILE):
        with convert_write_errors(path):
            path.unlink(missing_ok=True)


def _count_answers(path: Path) -> list[int]:
    """How many answers each prompt wants. InputError for prompts that are none, and for ids that are not unique."""
    seen: set[str] = set()
    answers: list[int] = []
    for prompt in read_conversations(path):
        if prompt.id in seen:
            raise InputError(
                f"the id {prompt.id} more than once in {path}", "ids that differ", "run `eyas prompts` again"
            )
        seen.add(prompt.id)
        answers.append(count_answers(prompt))
        if any(message.role == "assistant" for message in prompt.messages) or not answers[-1]:
            raise InputError(f"{prompt.id} in {path} with other than user turns", "prompts", "run `eyas prompts` again")
    if not answers:
        raise InputError(f"no prompt in {path}", "at least one", "run `eyas prompts` again")
    return answers
