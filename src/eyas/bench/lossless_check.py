"""Checks that a head does not change answers: greedy float32 answers equal those of transformers' `generate`.

Every token is compared.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, GenerationConfig

from eyas.base.errors import InputError
from eyas.base.json_parser import parse_json
from eyas.base.progress import Progress
from eyas.base.storage import convert_read_errors
from eyas.bench.workload import Prompt
from eyas.drafters.head_spec import HeadSpec
from eyas.engine.engine import Engine
from eyas.engine.loops import RequestList, plain_loop
from eyas.engine.request import Request
from eyas.model.devices import Device
from eyas.model.target import Target
from eyas.model.target_dir import digest_target, resolve_target

REMAKE = "Run tools/make_references.py to make them again"


@dataclass(frozen=True)
class References:
    """Greedy float32 answers of one target, generated without a head.

    Attributes:
        target_digest: The digest of the target.
        max_tokens: The maximum number of tokens of an answer.
        reference: The program that generated the answers, "transformers VERSION generate".
        answers: Prompt id -> token ids, the end-of-turn token included.
    """

    target_digest: str
    max_tokens: int
    reference: str
    answers: Mapping[str, tuple[int, ...]]

    def require(self, target_digest: str, prompts: Sequence[Prompt], max_tokens: int) -> None:
        """Raises InputError if the answers are of another target, end before `max_tokens`, or lack a prompt."""
        if self.target_digest != target_digest:
            problem = f"The reference answers are of a target with digest {self.target_digest}, not {target_digest}"
        elif self.max_tokens < max_tokens:
            problem = f"The reference answers end after {self.max_tokens} tokens, before {max_tokens}"
        elif missing := [prompt.id for prompt in prompts if prompt.id not in self.answers]:
            problem = f"There is no reference answer to prompt {missing[0]}"
        else:
            return
        raise InputError(problem, REMAKE)


def compare_with_references(
    target: Target,
    draft: HeadSpec,
    prompts: Sequence[Prompt],
    references: References,
    max_tokens: int,
    slots: int = 8,
    progress: bool = True,
) -> dict[str, Any]:
    """Generates answers with the head, `slots` at a time, and compares them with the references.

    Requirement: the target and the head are loaded in float32.

    Returns:
        The key `lossless` of results.json. Its `differing` lists the ids of the prompts whose answers differ.

    Raises:
        InputError: The references do not belong to this target and these prompts.
    """
    assert target.model.dtype == torch.float32, target.model.dtype
    assert next(draft.head.parameters()).dtype == torch.float32, "the head is compared in float32"
    references.require(target.digest, prompts, max_tokens)
    context = max((len(prompt.ids) for prompt in prompts), default=0) + max_tokens
    engine = Engine(target, [draft], slots, context)
    requests = (Request(prompt.id, prompt.ids, max_tokens) for prompt in prompts)
    differing = []
    with Progress("lossless check", len(prompts), "answers", enabled=progress) as bar:
        for answer in plain_loop(engine, RequestList(requests)):
            expected = references.answers[answer.request.id][: engine.max_new_tokens(answer.request)]
            if tuple(answer.token_ids) != tuple(expected):
                differing.append(answer.request.id)
            bar.advance(note=f"{len(differing)} differ" if differing else "")
    return {
        "prompts": len(prompts),
        "identical": len(prompts) - len(differing),
        "dtype": "float32",
        "reference": references.reference,
        "differing": sorted(differing),
    }


@torch.inference_mode()
def generate_references(
    name: str | Path, prompts: Sequence[Prompt], max_tokens: int, progress: bool = True, device: Device = "cpu"
) -> References:
    """Generates greedy answers with transformers alone, in float32 and one prompt at a time.

    Args:
        name: The target: a directory, a hub id or "embedded".
        prompts: The prompts.
        max_tokens: The maximum number of tokens of an answer.
        progress: Shows a progress bar.
        device: The device of the model.
    """
    directory = resolve_target(name)
    model = load_reference_model(directory, torch.float32, device)
    limit = model.config.get_text_config(decoder=True).max_position_embeddings
    answers: dict[str, tuple[int, ...]] = {}
    with Progress("reference answers", len(prompts), "answers", enabled=progress) as bar:
        for prompt in prompts:
            ids_1T = torch.tensor([prompt.ids], device=device)
            new = min(max_tokens, limit - len(prompt.ids))
            out_1T = model.generate(ids_1T, attention_mask=torch.ones_like(ids_1T), do_sample=False, max_new_tokens=new)
            answers[prompt.id] = tuple(out_1T[0, len(prompt.ids) :].tolist())
            bar.advance()
    source = f"transformers {transformers.__version__} generate"
    return References(digest_target(directory), max_tokens, source, answers)


def load_reference_model(directory: Path, dtype: torch.dtype, device: Device) -> Any:
    """Loads the target with transformers alone, for greedy decoding.

    The generation config of the model is reset to greedy decoding, because some models publish a repetition penalty.
    """
    model: Any = AutoModelForCausalLM.from_pretrained(
        directory, dtype=dtype, trust_remote_code=False, use_safetensors=True, local_files_only=True
    )
    model.to(device).eval()
    published = model.generation_config
    model.generation_config = GenerationConfig(eos_token_id=published.eos_token_id, pad_token_id=published.pad_token_id)
    return model


def read_references(path: Path) -> References:
    """Reads a file that tools/make_references.py wrote. Raises InputError if it is missing or damaged."""
    try:
        with convert_read_errors(f"The reference answers {path}", REMAKE):
            return parse_json(References, path.read_bytes())
    except ValueError:
        raise InputError(f"{path} does not contain reference answers", REMAKE) from None
