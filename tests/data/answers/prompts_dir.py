"""A finished prompts directory, made without the stage that makes real ones."""

import time
from collections.abc import Sequence
from pathlib import Path

from eyas.base.provenance import StageInputs, finish_stage
from eyas.chat.conversation import Conversation, Message


def write_prompts(directory: Path, turns: Sequence[Sequence[str]], task: str = "q") -> Path:
    """Conversations q:0, q:1, ... of these user turns."""
    prompts = [
        Conversation(f"q:{i}", "q", tuple(Message("user", text) for text in texts), {"task": task})
        for i, texts in enumerate(turns)
    ]
    directory.mkdir(parents=True)
    (directory / "prompts.jsonl").write_bytes(b"".join(prompt.to_line() for prompt in prompts))
    finish_stage(directory, StageInputs("prompts", "test", {}), time.time())
    return directory
