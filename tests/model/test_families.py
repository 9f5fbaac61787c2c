"""Every family of docs/families.md: the tokens, layers and logits of transformers, windows and chunks crossed."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.model.cached_rows import keep_rows
from tests.model.families import FAMILIES, REACH, Family, family_target
from torch import Tensor
from transformers import AutoModelForCausalLM

from eyas.features.extract import prefill_attention
from eyas.model.attention import AttentionParams, DenseAttention
from eyas.model.submodules import all_rope_parameters, find_layers
from eyas.model.target import Target, load_target_without_layers

DOCS = Path(__file__).parents[2] / "docs" / "families.md"
NUM_LAYERS, LAYERS = 4, (1, 2, 4)
PROMPT = torch.randint(0, 256, (1, 40), generator=torch.Generator().manual_seed(1))
NUM_TOKENS = 40


@dataclass(frozen=True)
class Loaded:
    """A target, transformers' own model of the same directory, and its greedy answer to PROMPT."""

    family: Family
    target: Target
    reference: Any
    answer: list[int]


@pytest.fixture(scope="module", params=FAMILIES, ids=lambda family: family.name)
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    """Eager attention: transformers' SDPA leaves soft-caps and sinks out."""
    family: Family = request.param
    path = family_target(tmp_path_factory.mktemp(family.name), family.name, NUM_LAYERS)
    reference: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    mask = torch.ones_like(PROMPT)
    out = reference.generate(PROMPT, attention_mask=mask, do_sample=False, max_new_tokens=NUM_TOKENS, eos_token_id=None)
    answer = out[0, PROMPT.shape[1] :].tolist()
    assert len(set(answer)) > 10, "a model that repeats itself would prove little"
    assert PROMPT.shape[1] > 2 * REACH, "every window and chunk is crossed"
    return Loaded(family, Target.load(path, torch.float32, LAYERS), reference, answer)


def text_of(loaded: Loaded) -> Tensor:
    return torch.cat((PROMPT, torch.tensor([loaded.answer])), 1)


def best(target: Target, hidden_BTD: Tensor) -> list[int]:
    return target.logits(hidden_BTD)[0].argmax(-1).tolist()


def test_greedy_tokens_equal_generate_row_by_row(loaded: Loaded):
    target, attend, ids_BT, answer = loaded.target, DenseAttention(), PROMPT, []
    while len(answer) < NUM_TOKENS:
        positions_BT = torch.arange(attend.num_cached, attend.num_cached + ids_BT.shape[1])[None]
        hidden_BTD = target.forward(ids_BT, positions_BT, attend).hidden_BTD
        answer.append(best(target, hidden_BTD[:, -1:])[0])
        ids_BT = torch.tensor([answer[-1:]])
    assert answer == loaded.answer


def test_ends_are_those_of_the_whole(loaded: Loaded):
    """The same facts, embedding and logits from a model that has no layers."""
    whole = loaded.target
    ends = load_target_without_layers(whole.directory, torch.float32, LAYERS)
    assert ends.info == whole.info
    assert (ends.aux_layer_ids, ends.digest, ends.logit_softcap) == (
        whole.aux_layer_ids,
        whole.digest,
        whole.logit_softcap,
    )
    assert ends.model.dtype == whole.model.dtype
    hidden_TD = torch.randn(5, whole.info.hidden_size, generator=torch.Generator().manual_seed(0))
    assert ends.logits(hidden_TD).equal(whole.logits(hidden_TD))
    assert ends.embed(PROMPT).equal(whole.embed(PROMPT))
    layers = find_layers(ends.model)
    assert len(layers) == NUM_LAYERS
    assert all(weight.is_meta for weight in layers.parameters())


def test_greedy_tokens_equal_generate_by_trees(loaded: Loaded):
    """Each forward is a root with two children, a wrong one first; root and true child are kept: two tokens a forward.

    kept text | root  wrong  true
    x x x x x |  x      .     .
    x x x x x |  x      x     .       the children stand at the same position
    x x x x x |  x      .     x
    """
    target, attend, start = loaded.target, DenseAttention(), PROMPT.shape[1]
    text, answer = text_of(loaded)[0].tolist(), loaded.answer
    hidden_BTD = target.forward(PROMPT, torch.arange(start)[None], attend).hidden_BTD
    said = best(target, hidden_BTD[:, -1:])
    tree_TT = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 1]], dtype=torch.bool)
    for place in range(start, start + NUM_TOKENS - 2, 2):
        nodes_BT = torch.tensor([[text[place], text[place + 1] ^ 1, text[place + 1]]])
        visible_BTS = torch.cat((torch.ones(3, place, dtype=torch.bool), tree_TT), 1)[None]
        positions_BS = torch.cat((torch.arange(place), torch.tensor([place, place + 1, place + 1])))[None]
        seeing = attend.set_visible(visible_BTS, positions_BS)
        hidden_BTD = target.forward(nodes_BT, positions_BS[:, -3:], seeing).hidden_BTD
        root, _, true = best(target, hidden_BTD)
        said += [root, true]
        keep_rows(attend, torch.tensor([[*range(place + 1), place + 2]]))
        attend.set_visible(None)
    assert said == answer[: len(said)]
    assert len(said) == NUM_TOKENS - 1


def test_captured_layers_and_logits_are_those_of_transformers(loaded: Loaded):
    """As features are captured: rows of different lengths in one forward, padded on the right."""
    long_1T, short_1T = text_of(loaded), text_of(loaded)[:, 30:]
    ids_BT = torch.zeros(2, long_1T.shape[1], dtype=torch.int64)
    ids_BT[0], ids_BT[1, : short_1T.shape[1]] = long_1T[0], short_1T[0]
    out = loaded.target.forward(ids_BT, torch.arange(ids_BT.shape[1])[None], prefill_attention, want_aux=True)
    assert out.aux_BTL is not None
    for row, alone_1T in enumerate((long_1T, short_1T)):
        T = alone_1T.shape[1]
        plain = loaded.reference(alone_1T, output_hidden_states=True, use_cache=False)
        expected = torch.cat([plain.hidden_states[i] for i in LAYERS], -1)[0]
        torch.testing.assert_close(out.aux_BTL[row, :T], expected, atol=2e-4, rtol=1e-3)
        torch.testing.assert_close(out.hidden_BTD[row, :T], plain.hidden_states[NUM_LAYERS][0], atol=2e-4, rtol=1e-3)
        logits_TW = loaded.target.logits(out.hidden_BTD[row, :T])
        torch.testing.assert_close(logits_TW, plain.logits[0], atol=2e-4, rtol=1e-3)


def test_requests_of_different_lengths_share_a_forward(loaded: Loaded):
    """Each row stands at its own position: the last token of a text of 40 beside that of one of 25."""
    target, lengths = loaded.target, (40, 25)
    attend, most = DenseAttention(), max(lengths)
    ids_BT = PROMPT.expand(2, -1).clone()
    places_BT = torch.arange(most)[None].expand(2, -1)
    target.forward(ids_BT[:, : most - 1], places_BT[:, : most - 1], attend)
    positions_B1 = torch.tensor(lengths)[:, None] - 1
    visible_BTS = (places_BT < positions_B1)[:, None]
    visible_BTS[:, :, -1] = True
    positions_BS = torch.cat((places_BT[:, :-1], positions_B1), 1)
    last_B1 = ids_BT.gather(1, positions_B1)
    hidden_BTD = target.forward(last_B1, positions_B1, attend.set_visible(visible_BTS, positions_BS)).hidden_BTD
    for row, length in enumerate(lengths):
        alone = loaded.reference(PROMPT[:, :length], output_hidden_states=True, use_cache=False).hidden_states[-1]
        torch.testing.assert_close(hidden_BTD[row, 0], alone[0, -1], atol=2e-4, rtol=1e-3)


def test_embedding_rows_are_the_stored_ones(loaded: Loaded):
    """Gemma reads them times sqrt(hidden size); a head is handed the weight, as SGLang and vLLM do."""
    weight_WD = loaded.reference.get_input_embeddings().weight
    assert torch.equal(loaded.target.embed(PROMPT), weight_WD[PROMPT])


@dataclass
class Noted(DenseAttention):
    """Dense attention that remembers the rules."""

    rules: list[AttentionParams] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def __call__(self, layer: int, q_BNTH: Tensor, k_BGTH: Tensor, v_BGTH: Tensor, params: AttentionParams) -> Tensor:
        self.rules.append(params)
        return super().__call__(layer, q_BNTH, k_BGTH, v_BGTH, params)


def asked_by(target: Target) -> set[str]:
    """What the target asks for, in the words of the table."""
    noted = Noted()
    target.forward(PROMPT, torch.arange(PROMPT.shape[1])[None], noted)
    config = target.model.config.get_text_config(decoder=True)
    bases = {rope["rope_theta"] for rope in all_rope_parameters(config)}
    checks: dict[str, Callable[[], bool]] = {
        "window": lambda: any(params.window == REACH for params in noted.rules),
        "chunk": lambda: any(params.chunk == REACH for params in noted.rules),
        "soft-cap": lambda: all(params.softcap is not None for params in noted.rules),
        "sinks": lambda: all(params.sinks_N is not None for params in noted.rules),
        "capped logits": lambda: target.logit_softcap is not None,
        "layers without RoPE": lambda: 0 in getattr(config, "no_rope_layers", ()),
        "queries scaled by position": lambda: getattr(config, "attn_temperature_tuning", False),
        "two RoPE bases": lambda: len(bases) == 2,
        f"RoPE {target.info.rope_type}": lambda: target.info.rope_type != "default",
    }
    return {word for word, holds in checks.items() if holds()}


def test_the_family_asks_for_what_is_listed(loaded: Loaded):
    assert asked_by(loaded.target) == set(loaded.family.asks)


def test_facts_are_those_of_the_text_part(tmp_path: Path):
    """The vision part counts for nothing, and RoPE is that of the layers that see the whole text."""
    text, whole = (
        Target.load(family_target(tmp_path / name, name), torch.float32, LAYERS) for name in ("gemma3_text", "gemma3")
    )
    assert whole.info.num_parameters == text.info.num_parameters == sum(w.numel() for w in text.model.parameters())
    assert sum(weight.numel() for weight in whole.model.parameters()) > whole.info.num_parameters
    assert (text.info.rope_theta, whole.info.rope_theta) == (1_000_000.0, 1_000_000.0)
    assert (text.info.rope_type, whole.info.rope_type) == ("default", "linear")
    assert (whole.info.num_heads, whole.info.num_kv_heads, whole.info.head_dim) == (4, 2, 16)


def test_a_router_that_rounds_otherwise_is_no_reason_to_refuse(tmp_path: Path):
    """With this seed, bfloat16 sends a row of the probe to another expert than transformers' attention does."""
    path = family_target(tmp_path, "gpt_oss", layers=24, seed=6)
    assert Target.load(path, torch.bfloat16).info.num_layers == 24


def test_the_table_of_the_docs_is_this_list():
    rows = re.findall(r"^\| ([^|]+) \| `(\w+)` \| ([^|]+) \|", DOCS.read_text(), re.MULTILINE)
    listed = [(family.title, family.name, ", ".join(family.asks) or "nothing more") for family in FAMILIES]
    assert rows == listed
