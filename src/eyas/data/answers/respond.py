"""`eyas respond`: generates the target's answers to the prompts, turn by turn, and stores their token ids.

    user 1 -> answer 1 -> user 2 -> answer 2       the prompt of answer 2 contains answer 1 as text, like on a server

The target runs on eyas's engine or on any OpenAI-compatible server (`remote_responder.py`). The output is split into
parts of fixed size. Until a part is finished, its answers are in a journal (`journal.py`). If a run is killed, the same
command continues it: stored answers are not generated again, and the output has the order of the prompts.
"""

import contextlib
import json
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from eyas.base import provenance
from eyas.base.errors import InputError
from eyas.base.progress import Progress
from eyas.base.provenance import Provenance, StageInputs, digest_json
from eyas.base.storage import convert_write_errors, write_json_atomic
from eyas.chat.conversation import read_conversations
from eyas.data.answers.journal import JOURNAL_SUFFIX
from eyas.data.answers.output_shards import ShardWriter, count_answers
from eyas.data.answers.respond_config import RespondConfig
from eyas.data.answers.responder import Answered, Responder, Retried
from eyas.data.ledger.ledger import TALLY_SUFFIX, TOO_LONG, AnswerLedger, build_answer_ledger
from eyas.data.prompts import LEDGER_FILE, ORIGIN_FILE, PROMPTS_FILE, has_origin
from eyas.data.prompts import STAGE as PROMPTS_STAGE
from eyas.privacy.filter import PrivacyFilter

STAGE = "respond"


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
    config: RespondConfig, prompts_digest: str, responder: Responder, scan: PrivacyFilter | None = None
) -> StageInputs:
    """Returns the inputs that determine the answers. A server's model name is one of them, its address is not.

    Args:
        config: The recipe keys.
        prompts_digest: The digest of the prompts directory.
        responder: The target.
        scan: The scanner for personal data; None if answers are not scanned.
    """
    scan_digest = None if scan is None else scan.digest
    identity = config.output_affecting_keys() | {"target_dtype": responder.target_dtype, "scan": scan_digest}
    parents = {"prompts": prompts_digest, "target": responder.target_digest}
    return StageInputs(STAGE, digest_json(identity), parents, responder.tokenizer_digest, responder.template_digest)


def run(
    config: RespondConfig,
    prompts_dir: Path,
    out_dir: Path,
    responder: Responder,
    progress: bool = True,
    scan: PrivacyFilter | None = None,
) -> Provenance:
    """Writes part-*.jsonl, ledger.json, origin.json and provenance.json. Does nothing if the directory is finished.

    A conversation is dropped if its prompt and a full answer exceed the target's positions, if an answer is empty, or
    by the recipe keys `respond.drop_*`. The ledger counts the dropped conversations.

    Args:
        config: The recipe keys.
        prompts_dir: The directory of finished prompts.
        out_dir: The directory of the stage.
        responder: The target.
        progress: Shows a progress bar.
        scan: Scans the answers for personal data; None does not scan.

    Raises:
        InputError: The prompts are damaged, or no conversation is left.
        StageError: The disk is full, or the server fails. Finished answers stay on disk; the same call continues.
    """
    started_s = time.time()
    provenance.require_finished(prompts_dir, PROMPTS_STAGE)
    origin = build_origin(config, provenance.verify_contents(prompts_dir).digest, responder, scan)
    if provenance.is_finished(out_dir, origin):
        return provenance.read_provenance(out_dir)
    prompts = prompts_dir / PROMPTS_FILE
    num_answers = _count_answers(prompts)
    _check_modes(config, responder)
    paths = [out_dir / f"part-{number:05d}.jsonl" for number in range(-(-len(num_answers) // config.part_size))]
    _prepare_directory(out_dir, origin, paths)
    with (
        Progress(STAGE, sum(num_answers), "answers", enabled=progress) as bar,
        ShardWriter(prompts, paths, config, responder, scan, bar) as writer,
        contextlib.closing(responder.answer(writer)) as events,
    ):
        throughput = _Throughput(time.monotonic())
        for event in events:
            if isinstance(event, Retried):
                throughput.retries, throughput.last = throughput.retries + 1, event.reason
                bar.advance(0, note=throughput.to_text())
                continue
            writer.add(event)
            if isinstance(event, Answered):
                throughput.tokens += len(event.token_ids)
                bar.advance(note=throughput.to_text())
        writer.check()
    ledger = out_dir / LEDGER_FILE
    if not ledger.exists():
        write_json_atomic(ledger, build_answer_ledger(len(num_answers), paths, scan is not None))
    _require_conversations(json.loads(ledger.read_bytes()), config, out_dir, responder)
    for path in paths:
        AnswerLedger.path_beside(path).unlink(missing_ok=True)
    return provenance.finish_stage(out_dir, origin, started_s)


def _require_conversations(ledger: dict[str, Any], config: RespondConfig, out_dir: Path, responder: Responder) -> None:
    """Raises InputError if all conversations were dropped."""
    if ledger["conversations"]:
        return
    dropped = {reason: entry["count"] for reason, entry in ledger["dropped"].items() if entry["count"]}
    if list(dropped) == [TOO_LONG]:
        clear_output(out_dir)
        problem = f"All {ledger['prompts']} prompts are too long: with {config.max_tokens} answer tokens they exceed"
        fix = "Lower respond.max_tokens, or use shorter prompts"
        raise InputError(f"{problem} the {responder.max_positions} positions of the target", fix)
    reasons = ", ".join(f"{count} {reason}" for reason, count in dropped.items())
    problem = f"All answers to the {ledger['prompts']} prompts were dropped ({reasons})"
    raise InputError(problem, "Check the target's answers and the rules respond.drop_*")


def _check_modes(config: RespondConfig, responder: Responder) -> None:
    """Raises InputError for a variable of a mode that the chat template does not read."""
    template = responder.tokenizer.chat_template
    for mode, values in config.modes.items():
        for name in values.chat_template_kwargs:
            if isinstance(template, str) and not re.search(rf"\b{re.escape(name)}\b", template):
                problem = f"respond.modes.{mode} sets {name}, which the target's chat template does not read"
                raise InputError(problem, "Correct its name, or remove it from the recipe")


# --- the directory ---------------------------------------------------------------------------------------------------


def _prepare_directory(out_dir: Path, origin: StageInputs, parts: Sequence[Path]) -> None:
    """Prepares the output directory. Keeps the answers of an unfinished run with the same inputs; else removes them."""
    digest = digest_json(asdict(origin))
    path = out_dir / ORIGIN_FILE
    # ledger.json is written after all parts, and then their own ledgers are removed: a part that is missing was lost.
    is_whole = all(part.exists() for part in parts) or not (out_dir / LEDGER_FILE).exists()
    if has_origin(path, digest) and is_whole:
        provenance.mark_unfinished(out_dir)
    else:
        clear_output(out_dir)
        write_json_atomic(path, {"origin": digest})


def clear_output(out_dir: Path) -> None:
    """Removes the files that `eyas respond` writes, provenance.json first. Other files stay."""
    provenance.mark_unfinished(out_dir)
    patterns = ("part-*.jsonl", f"part-*.jsonl{JOURNAL_SUFFIX}", f"part-*.jsonl{TALLY_SUFFIX}")
    parts = [path for pattern in patterns for path in out_dir.glob(pattern)]
    for path in (*parts, out_dir / LEDGER_FILE, out_dir / ORIGIN_FILE):
        with convert_write_errors(path):
            path.unlink(missing_ok=True)


def _count_answers(path: Path) -> list[int]:
    """Returns the number of answers that each prompt needs. Raises InputError for records that are no prompts."""
    num_answers: dict[str, int] = {}
    for prompt in read_conversations(path):
        if prompt.id in num_answers:
            raise InputError(f"{path} has the id {prompt.id} more than once", "Run `eyas prompts` again")
        num_answers[prompt.id] = count_answers(prompt)
        if any(message.role == "assistant" for message in prompt.messages) or not num_answers[prompt.id]:
            raise InputError(f"{prompt.id} in {path} has answers or no user turn", "Run `eyas prompts` again")
    if not num_answers:
        raise InputError(f"{path} holds no prompt", "Run `eyas prompts` again")
    return list(num_answers.values())
