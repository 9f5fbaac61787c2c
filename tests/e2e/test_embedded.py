"""The shipped pair answers like transformers, token by token, in float32, with and without the head.

The reference answers are transformers' own, made by tools/make_references.py and bound to the target's digest.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from eyas.bench.lossless_check import References, read_references
from eyas.bench.workload import Prompt, interleave_tasks, load_eval_prompts
from eyas.chat.conversation import parse_messages
from eyas.chat.render import render_prompt
from eyas.drafters.eagle3 import Eagle3Spec
from eyas.engine.engine import Engine
from eyas.engine.loops import RequestList, plain_loop
from eyas.engine.request import Request
from eyas.evalsets import FAMILIES, example
from eyas.formats.fit import require_fit
from eyas.formats.head_dir import read_head
from eyas.model.target import Target
from eyas.model.target_dir import EMBEDDED, resolve_target
from eyas.recipe import load_quickstart_recipe, resolve_head
from eyas.tree.acceptance_length import acceptance_length
from eyas.tree.shape import TreeShape, chain_shape

SHAPES = {"baseline": None, "chain": chain_shape(4), "tree": TreeShape(6, 4, 16)}
PLACE = resolve_target(EMBEDDED).parent


@pytest.fixture(scope="module")
def target() -> Target:
    return Target.load(EMBEDDED, torch.float32)


@pytest.fixture(scope="module")
def references(target: Target) -> References:
    found = read_references(PLACE / "references.json")
    assert found.target_digest == target.digest, "run tools/make_references.py"
    return found


def prompts(target: Target, count: int) -> list[Prompt]:
    """Returns prompts of all families in turn, long passages included."""
    return interleave_tasks(load_eval_prompts(target.tokenizer, -(-count // len(FAMILIES))))[:count]


def differing(target: Target, references: References, shape: TreeShape | None, slots: int, size: tuple[int, int]):
    """Returns the ids of prompts with another answer than transformers gives, and the acceptance length.

    size: the number of prompts, and of tokens.
    """
    count, max_tokens = size
    asked = prompts(target, count)
    references.require(target.digest, asked, max_tokens)
    draft = None
    if shape is not None:
        stored = read_head(resolve_head(EMBEDDED), torch.float32)
        draft = Eagle3Spec(stored.head.pack_projections(), stored.vocab, shape)
    engine = Engine(
        target, [] if draft is None else [draft], slots, max(len(prompt.ids) for prompt in asked) + max_tokens
    )
    answers = list(plain_loop(engine, RequestList(Request(prompt.id, prompt.ids, max_tokens) for prompt in asked)))
    wrong = [a.request.id for a in answers if tuple(a.token_ids) != references.answers[a.request.id][:max_tokens]]
    assert len(answers) == count
    return wrong, acceptance_length(answer.rounds for answer in answers)


FULL = [pytest.param(shape, marks=pytest.mark.full) for shape in ("chain", "baseline")]


@pytest.mark.parametrize("shape", ["tree", *FULL])
def test_the_same_words_as_transformers(target, references, shape):
    wrong, accepted = differing(target, references, SHAPES[shape], 8, (16, 64))  # each slot runs two prompts
    assert wrong == []
    assert accepted == 1 if shape == "baseline" else accepted > 1.5


@pytest.mark.parametrize("shape", ["tree", "chain"])
def test_the_same_words_one_at_a_time(target, references, shape):
    wrong, _ = differing(target, references, SHAPES[shape], 1, (7, 64))
    assert wrong == []


@pytest.mark.full
@pytest.mark.parametrize("shape", ["tree", "chain", "baseline"])
@pytest.mark.parametrize("slots", [1, 8])
def test_the_same_words_at_length(target, references, shape, slots):
    wrong, _ = differing(target, references, SHAPES[shape], slots, (200, 128))
    assert wrong == []


def test_the_pair_fits_and_is_small(target):
    stored = read_head(resolve_head(EMBEDDED))
    assert require_fit(stored, target.info, target.digest) == []
    assert stored.metadata.target_digest == target.digest
    weights = list(PLACE.rglob("*.safetensors"))
    assert len(weights) >= 2
    assert max(path.stat().st_size for path in weights) <= 15 * 2**20
    assert sum(path.stat().st_size for path in PLACE.rglob("*") if path.is_file()) <= 30e6
    assert target.info.max_positions >= 4096


def test_the_target_is_an_ordinary_directory(target):
    config = json.loads((Path(target.directory) / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["dtype"] == "bfloat16"


def test_the_quickstart_trains_from_random_weights():
    recipe = load_quickstart_recipe()
    assert recipe.target.model == EMBEDDED
    assert recipe.target.head is None, "no finished head is put in its place"
    assert recipe.train.init == "random"


def test_no_answer_that_is_measured_is_learnt_from(target):
    # The quickstart's prompts are of another split than those that are measured; none is the same.
    asked = {prompt.ids for prompt in prompts(target, 140)}
    for family in FAMILIES:
        for index in range(20):
            messages = parse_messages(example(family, "quickstart", index).prompt, "the grammar")
            assert tuple(render_prompt(messages, target.tokenizer)) not in asked


@pytest.mark.full
def test_the_target_leaves_real_uncertainty():
    # Perplexity, uncertain positions, answers that end by themselves, and no evaluation answer in the training text.
    root = PLACE.parents[2]
    done = subprocess.run([sys.executable, "tools/check_embedded.py"], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
