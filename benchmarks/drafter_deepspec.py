"""Runs an exported block head with DeepSpec's own code and compares it with eyas. `prove_drafters.py` calls it.

    export/deepspec/ --> Qwen3DSparkModel, in float32 --> logits of blocks       against the exported head in eyas
                     --> Qwen3DSparkEvaluator         --> answers and rounds     against eyas's engine, chains

DeepSpec takes the target from transformers and selects the features from its `hidden_states`. So the comparison covers
the ids of the layers and the slots. Only the head's weights and config.json are common to both sides.
"""

import importlib
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from result_rows import Row
from transformers import AutoModelForCausalLM, DynamicCache

from eyas.bench.workload import Prompt
from eyas.drafters.heads import draft_with
from eyas.engine.engine import Engine
from eyas.engine.loops import RequestList, plain_loop
from eyas.engine.request import Request, RequestOutput
from eyas.formats.head_dir import StoredHead, read_head
from eyas.formats.parity import TOLERANCE, draft_block, read_matrices
from eyas.formats.sglang_vllm import BLOCK_FORMATS, write_engine_dir
from eyas.model.attention import DenseAttention
from eyas.model.block_head import BlockHead
from eyas.model.target import Target
from eyas.tree.shape import chain_shape

ANCHORS = 4  # blocks of each text
NAMES = ("DeepSpec export: difference of logits in DeepSpec's own model class", "DeepSpec export: acceptance length")


class CroppedCache(DynamicCache):
    """transformers' cache with `crop` of transformers 5.10, for which DeepSpec was written: to a length."""

    def crop(self, max_length: int) -> None:
        """Keeps the first `max_length` tokens. Newer versions take the negative number of tokens to remove."""
        surplus = self.get_seq_length() - max_length
        if surplus > 0:
            super().crop(-surplus)


@dataclass(frozen=True)
class DeepSpec:
    """DeepSpec's code with a target and an exported head, in float32 on the CPU.

    Attributes:
        evaluator: A Qwen3DSparkEvaluator that was built without its process group.
        modules: The modules `draft_ops` and `common` of DeepSpec.
    """

    evaluator: Any
    modules: SimpleNamespace

    @staticmethod
    def load(target_dir: Path, head_dir: Path) -> "DeepSpec":
        """Loads both models as the evaluator does. Requirement: the checkout is on sys.path."""
        module: Any = importlib.import_module("deepspec.eval.dspark.evaluator")
        base: Any = importlib.import_module("deepspec.eval.base_evaluator")
        module.DynamicCache = base.DynamicCache = CroppedCache
        evaluator_class = module.Qwen3DSparkEvaluator
        settings: dict[str, Any] = {"dtype": torch.float32, "attn_implementation": "sdpa"}
        evaluator = object.__new__(evaluator_class)
        evaluator.target_model = AutoModelForCausalLM.from_pretrained(target_dir, **settings).eval()
        evaluator.draft_model = evaluator_class.draft_model_cls.from_pretrained(head_dir, **settings).eval()
        evaluator.confidence_head_recorder = None
        common = importlib.import_module("deepspec.modeling.dspark.common")
        operations = importlib.import_module("deepspec.eval.dspark.draft_ops")
        return DeepSpec(evaluator, SimpleNamespace(common=common, draft_ops=operations))

    def draft_block(self, ids: Sequence[int], start: int) -> tuple[torch.Tensor, list[int]]:
        """Returns what `eyas.formats.parity.draft_block` returns, for the block whose anchor is at position `start`."""
        model, target = self.evaluator.draft_model, self.evaluator.target_model
        states = target(torch.tensor([list(ids)]), output_hidden_states=True).hidden_states
        features = self.modules.common.extract_context_feature(states, model.target_layer_ids)[:, :start]
        block = torch.tensor([[ids[start]] + [model.mask_token_id] * (model.block_size - 1)])
        hidden = self.modules.draft_ops.forward_dspark_draft_block(
            model,
            draft_input_ids=block,
            position_ids=torch.arange(start + model.block_size)[None],
            past_key_values_draft=CroppedCache(),
            target_hidden_states=features,
            start=start,
            block_size=model.block_size,
        )
        base = model.compute_logits(hidden)
        tokens, logits = model.sample_draft_tokens(base, first_prev_token_ids=block[:, 0], hidden_states=hidden)
        before = torch.cat((block[:, :1], tokens[:, :-1]), 1)
        confidence = model.predict_confidence_step(hidden, prev_token_ids=before)
        return torch.cat((logits[0], confidence.view(-1, 1)), 1), tokens[0].tolist()

    def answer(self, ids: Sequence[int], max_tokens: int, stop_ids: Sequence[int]) -> tuple[list[int], list[int]]:
        """Returns the greedy answer of DeepSpec's evaluator, and the tokens of each of its rounds."""
        self.evaluator.args = SimpleNamespace(temperature=0.0, confidence_threshold=0.0, max_new_tokens=max_tokens)
        found = self.evaluator.generate_one_sample(input_ids=torch.tensor([list(ids)]), stop_token_ids=list(stop_ids))
        return found.output_ids[0, len(ids) :].tolist(), found.acceptance_lengths


@contextmanager
def on_path(checkout: Path) -> Iterator[None]:
    """Puts a checkout on sys.path for the time of the context."""
    sys.path.insert(0, str(checkout))
    try:
        yield
    finally:
        sys.path.remove(str(checkout))


@torch.no_grad()
def measure_deepspec(
    checkout: Path | None, model: str, head_dir: Path, prompts: Sequence[Prompt], max_tokens: int, where: str
) -> Iterator[Row]:
    """Yields the difference of logits and the ratio of acceptance lengths; without a checkout, rows without figures.

    Args:
        checkout: A checkout of github.com/deepseek-ai/DeepSpec.
        model: The target.
        head_dir: The directory of a block head.
        prompts: The prompts of the answers.
        max_tokens: The most tokens of an answer.
        where: The beginning of the names of the rows.
    """
    if checkout is None:
        for name in NAMES:
            note = "not measured: name a checkout of DeepSpec with --deepspec (DEEPSPEC=DIR)"
            yield Row(f"{where}: {name}", None, "equal", None, note=note)
        return
    stored = read_head(head_dir, torch.float32)
    target = Target.load(model, torch.float32, stored.config.aux_layer_ids)
    with tempfile.TemporaryDirectory() as scratch, on_path(checkout):
        (engine_format,) = (one for one in BLOCK_FORMATS if one.name == "deepspec")
        write_engine_dir(Path(scratch), engine_format, stored, "target", 1, target)
        other = DeepSpec.load(target.directory, Path(scratch))
        answers = answer_with_chains(target, read_head(head_dir, torch.float32), prompts, max_tokens)
        texts = [[*answer.request.prompt_ids, *answer.token_ids] for answer in answers]
        yield compare_logits(other, target, stored, texts, where)
        yield compare_rounds(other, target, answers, where)


def answer_with_chains(
    target: Target, stored: StoredHead, prompts: Sequence[Prompt], max_tokens: int
) -> list[RequestOutput]:
    """Answers prompts greedily with eyas's engine, with chains of all slots of the head."""
    assert stored.config.max_depth is not None, "a block head"
    spec = draft_with(target.model.device, stored, chain_shape(stored.config.max_depth))
    context = max(len(prompt.ids) for prompt in prompts) + max_tokens + stored.config.max_depth + 1
    requests = [Request(str(i), prompt.ids, max_tokens) for i, prompt in enumerate(prompts)]
    outputs = plain_loop(Engine(target, [spec], 8, context), RequestList(requests))
    return sorted(outputs, key=lambda output: int(output.request.id))


def compare_logits(other: DeepSpec, target: Target, stored: StoredHead, texts: list[list[int]], where: str) -> Row:
    """Returns the row of the largest difference of logits over ANCHORS blocks of each text."""
    head, difference, largest, equal, total = stored.head, 0.0, 0.0, 0, 0
    assert isinstance(head, BlockHead), "DeepSpec reads block heads"
    matrices = read_matrices(target)
    for ids in texts:
        ids_1T = torch.tensor([ids])
        aux_BTL = target.forward(ids_1T, torch.arange(len(ids))[None], DenseAttention(), want_aux=True).aux_BTL
        assert aux_BTL is not None, "want_aux is set"
        for start in {len(ids) * k // (ANCHORS + 1) for k in range(1, ANCHORS + 1)} - {0}:
            ours_gX, our_tokens = draft_block(head, matrices, aux_BTL[0, :start], ids[start])
            theirs_gX, their_tokens = other.draft_block(ids, start)
            difference = max(difference, (ours_gX - theirs_gX).abs().max().item())
            largest, total = max(largest, ours_gX.abs().max().item()), total + 1
            equal += our_tokens == their_tokens
    figure = difference / largest
    note = f"share of the largest logit; {equal} of {total} blocks draft equal tokens"
    ok = figure <= TOLERANCE and equal == total
    return Row(f"{where}: {NAMES[0]}", figure, f"at most {TOLERANCE:g}, all drafts equal", ok, note=note)


def compare_rounds(other: DeepSpec, target: Target, answers: Sequence[RequestOutput], where: str) -> Row:
    """Returns the row of the acceptance length in DeepSpec's evaluator over that of eyas's engine."""
    ours, theirs, equal = [], [], 0
    for answer in answers:
        request = answer.request
        tokens, rounds = other.answer(request.prompt_ids, request.max_tokens, target.info.eos_ids)
        equal += tokens == answer.token_ids
        # eyas cuts its last round where the answer ends. DeepSpec does not, and may run a further one.
        count = len(answer.accepted) - 1
        ours += answer.accepted[:count]
        theirs += rounds[:count]
    lengths = [sum(accepted) / len(accepted) for accepted in (ours, theirs)]
    same = sum(a == b for a, b in zip(ours, theirs, strict=True))
    note = f"{lengths[1]:.3f} tokens for each of {len(ours)} rounds, {same} of them equal"
    note += f"; {equal} of {len(answers)} answers equal"
    ok = equal == len(answers) and ours == theirs
    name = f"{where}: {NAMES[1]} in DeepSpec's evaluator over eyas's"
    return Row(name, lengths[1] / lengths[0], "1, all rounds and answers equal", ok, note=note)
