"""A small target, conversations that it really answered, and rows of random features."""

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from eyas.base.progress import Progress
from eyas.base.provenance import StageInputs, finish_stage
from eyas.chat.conversation import Conversation, Message, Turn
from eyas.chat.render import render_prompt
from eyas.features import capture
from eyas.features.layout import Row, teacher_positions
from eyas.features.quantize import StoredDtype, quantize
from eyas.features.shard import RowInfo, StoredRow
from eyas.model.attention import DenseAttention
from eyas.model.target import Target

LAYERS = (1, 2, 3)


@torch.no_grad()
def greedy(target: Target, ids: Sequence[int], count: int) -> list[int]:
    """The next `count` tokens, or fewer if the turn ends."""
    attend, new = DenseAttention(), []
    rows_1T, positions_1T = torch.tensor([ids]), torch.arange(len(ids))[None]
    while len(new) < count and not (new and new[-1] in target.info.eos_ids):
        hidden_1D = target.forward(rows_1T, positions_1T, attend).hidden_BTD[:, -1]
        new.append(int(target.logits(hidden_1D).argmax()))
        rows_1T, positions_1T = torch.tensor([new[-1:]]), positions_1T[:, -1:] + 1
    return new


def write_conversations(directory: Path, target: Target, count: int, tokens: int) -> Path:
    """A finished stage directory: `count` conversations of two tasks, answered greedily, of different lengths."""
    directory.mkdir(parents=True)
    lines = b""
    for number in range(count):
        message = Message("user", "what follows? " * (1 + number % 3) + str(number))
        new = tuple(greedy(target, render_prompt([message], target.tokenizer), tokens + number % 5))
        text = target.tokenizer.decode(list(new))
        assert isinstance(text, str)
        turn = Turn(new, (True,) * len(new), "stop" if new[-1] in target.info.eos_ids else "length")
        tags = {"task": ("math", "chat")[number % 2]}
        lines += Conversation(f"p:{number}", "p", (message, Message("assistant", text)), tags, turns=(turn,)).to_line()
    (directory / "part-00000.jsonl").write_bytes(lines)
    finish_stage(directory, StageInputs("respond", "test", {}), time.time())
    return directory


def capture_rank(
    config: capture.CaptureConfig, target: Path, conversations: Path, out: Path, rank: int, is_killed: bool = False
) -> None:
    """Captures the features of one rank. Call it in a separate process, because it patches modules.

    is_killed: True to end this process by a signal after half of the work.
    """
    torch.set_num_threads(1)  # the bytes depend on it
    os.environ["RANK"] = str(rank)
    capture.POLL_S = 0.05
    advance = Progress.advance

    def die(bar: Progress, n: int = 1, note: str = "") -> None:
        advance(bar, n, note)
        assert bar.total is not None
        if bar.done > bar.total / 2:
            os.kill(os.getpid(), signal.SIGKILL)

    if is_killed:
        setattr(Progress, "advance", die)  # noqa: B010 a patch
    capture.run(config, conversations, Target.load(target, torch.float32, layers=LAYERS), out, progress=False)


def mask(picture: str) -> Tensor:
    """ "..xx" as a bool tensor."""
    return torch.tensor([letter == "x" for letter in picture.replace(" ", "")])


def random_row(picture: str, width: int, vocab: int, dtype: torch.dtype = torch.float32) -> Row:
    """Random ids and features under the drawn loss mask."""
    length = len(picture.replace(" ", ""))
    mask_T = mask(picture)
    aux_TL, hidden_TD = torch.randn(length, 3 * width, dtype=dtype), torch.randn(length, width, dtype=dtype)
    return Row(picture, "any", torch.randint(0, vocab, (length,)), mask_T, aux_TL, hidden_TD[teacher_positions(mask_T)])


def stored_row(row: Row, dtype: StoredDtype) -> StoredRow:
    """The row as a shard would hold it."""
    aux, hidden = quantize(row.aux_TL, 3, dtype), quantize(row.hidden_UD, 1, dtype)
    return StoredRow(row.ids_T, row.loss_mask_T, aux, hidden)


def info_of(row: Row) -> RowInfo:
    """Of a row that shares nothing, not yet placed."""
    return RowInfo(row.id, row.task, "train", False, len(row.ids_T), 0, len(row.hidden_UD), 1)


def contents(directory: Path) -> dict[str, bytes]:
    """Every file but provenance.json, which carries times."""
    files = (path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in files if path.stem != "provenance"}
