"""The same words: greedy float32 answers with the head against transformers' own `generate`, token by token."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, GenerationConfig

from eyas.base.errors import InputError
from eyas.base.progress import Progress
from eyas.base.storage import write_atomic
from eyas.bench.workload import Prompt
from eyas.drafters.eagle3 import Eagle3Spec
from eyas.engine.engine import Engine
from eyas.engine.loops import RequestList, plain_loop
from eyas.engine.request import Request
from eyas.model.target import Target
from eyas.model.target_dir import digest_target, resolve_target

KEYS = {"target_digest": str, "max_tokens": int, "reference": str, "answers": dict}


@dataclass(frozen=True)
class References:
    """Greedy float32 answers of one target. reference: who made them, "transformers <version> generate"."""

    target_digest: str
    max_tokens: int
    reference: str
    answers: Mapping[str, tuple[int, ...]]  # by prompt id; the end-of-turn token included

    def require(self, target_digest: str, prompts: Sequence[Prompt], max_tokens: int) -> None:
        """InputError where these are answers of another target (naming both digests), too short, or too few."""
        remake = "make them again with tools/make_references.py"
        if self.target_digest != target_digest:
            raise InputError(
                f"reference answers of a target with digest {self.target_digest}", f"digest {target_digest}", remake
            )
        if self.max_tokens < max_tokens:
            raise InputError(f"reference answers of {self.max_tokens} tokens", f"{max_tokens} at least", remake)
        missing = [prompt.id for prompt in prompts if prompt.id not in self.answers]
        if missing:
            raise InputError(f"no reference answer to prompt {missing[0]}", "one for each prompt", remake)


@dataclass(frozen=True)
class LosslessResult:
    """result as it stands in results.json; differing: ids of prompts with another answer than the reference."""

    counts: dict[str, Any]
    differing: tuple[str, ...]


def compare_with_references(
    target: Target,
    draft: Eagle3Spec,
    prompts: Sequence[Prompt],
    references: References,
    max_tokens: int,
    slots: int = 8,
    progress: bool = True,
) -> LosslessResult:
    """Answers `prompts` with the head, `slots` at a time, and compares. Target and head must be loaded in float32.

    InputError where the references do not belong to this target and these prompts.
    """
    assert target.model.dtype == torch.float32, target.model.dtype
    assert next(draft.head.parameters()).dtype == torch.float32, "the head is compared in float32"
    references.require(target.digest, prompts, max_tokens)
    context = max((len(prompt.ids) for prompt in prompts), default=0) + max_tokens
    engine = Engine(target, draft, slots, context)
    requests = (Request(prompt.id, prompt.ids, max_tokens) for prompt in prompts)
    differing = []
    with Progress("same words", len(prompts), "answers", enabled=progress) as bar:
        for answer in plain_loop(engine, RequestList(requests)):
            wanted = references.answers[answer.request.id][: engine.max_new_tokens(answer.request)]
            if tuple(answer.token_ids) != tuple(wanted):
                differing.append(answer.request.id)
            bar.advance(note=f"{len(differing)} differ" if differing else "")
    result = {
        "prompts": len(prompts),
        "identical": len(prompts) - len(differing),
        "dtype": "float32",
        "reference": references.reference,
    }
    return LosslessResult(result, tuple(sorted(differing)))


@torch.inference_mode()
def generate_references(
    name: str | Path,
    prompts: Sequence[Prompt],
    max_tokens: int,
    progress: bool = True,
    device: torch.device | str = "cpu",
) -> References:
    """Ask plain transformers: float32, its own attention and cache, one unpadded prompt at a time."""
    directory = resolve_target(name)
    model: Any = AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, trust_remote_code=False, use_safetensors=True, local_files_only=True
    )
    model.to(device).eval()
    force_greedy(model)
    limit = model.config.get_text_config(decoder=True).max_position_embeddings
    answers: dict[str, tuple[int, ...]] = {}
    with Progress("reference answers", len(prompts), "answers", enabled=progress) as bar:
        for prompt in prompts:
            ids_1T = torch.tensor([prompt.ids], device=device)
            new = min(max_tokens, limit - len(prompt.ids))
            out_1T = model.generate(ids_1T, attention_mask=torch.ones_like(ids_1T), do_sample=False, max_new_tokens=new)
            answers[prompt.id] = tuple(out_1T[0, len(prompt.ids) :].tolist())
            bar.advance()
    maker = f"transformers {transformers.__version__} generate"
    return References(digest_target(directory), max_tokens, maker, answers)


def force_greedy(model: Any) -> None:
    """Forget the model's sampling defaults: some publish a repetition penalty, which changes greedy answers too."""
    theirs = model.generation_config
    model.generation_config = GenerationConfig(eos_token_id=theirs.eos_token_id, pad_token_id=theirs.pad_token_id)


def write_references(path: Path, references: References) -> None:
    """Compact JSON, one line, whole or not at all."""
    content = {key: getattr(references, key) for key in KEYS}
    write_atomic(path, json.dumps(content, separators=(",", ":")) + "\n")


def read_references(path: Path) -> References:
    """InputError for a file that is missing or none of ours."""
    do = "make it again with tools/make_references.py"
    try:
        raw = json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", "a file of reference answers", do) from None
    except ValueError as error:
        raise InputError(f"{path} is not JSON: {error}", "a file of reference answers", do) from None
    if not isinstance(raw, dict) or any(not isinstance(raw.get(key), kind) for key, kind in KEYS.items()):
        raise InputError(f"{path} with other content", f"an object with {', '.join(KEYS)}", do)
    answers = {str(name): tuple(ids) for name, ids in raw["answers"].items()}
    return References(raw["target_digest"], raw["max_tokens"], raw["reference"], answers)
