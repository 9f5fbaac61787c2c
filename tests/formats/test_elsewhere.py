"""Heads of other projects become the head that they are; what may mean two things is refused in words."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.formats.elsewhere import LAYOUTS, LIST, write
from tests.formats.test_head_dir import CONFIG, FACTS, VOCAB, edit_config, logits

from eyas.base.errors import InputError
from eyas.formats.aux_layers import read_aux_layers, to_sglang_ids
from eyas.formats.fit import check_embedding, check_fit, check_weights
from eyas.formats.head_dir import digest_head, inspect_head, read_head
from eyas.formats.weights import parse_vocab
from eyas.model.head import Head
from eyas.model.layer_ids import HFIndex

TARGET_LAYERS = 8  # whose usual layers are 2, 4, 5


@pytest.fixture(scope="module")
def head() -> Head:
    made = Head.init(CONFIG, 7)
    with torch.no_grad():
        for number, weight in enumerate(made.parameters()):
            weight.mul_(4 if weight.ndim == 2 else 1 + 0.05 * number)
    return made


def warnings(directory: Path) -> list[str]:
    stored = read_head(directory, torch.float32, TARGET_LAYERS)
    return [str(finding) for finding in stored.findings if finding.weight == "warning"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_head(layout: str, head: Head, tmp_path: Path):
    stored = read_head(write(tmp_path / "head", layout, head, VOCAB), None, TARGET_LAYERS)
    assert stored.layout == {"SpecForge": "SpecForge or TorchSpec", "TorchSpec": "SpecForge or TorchSpec"}.get(
        layout, "official EAGLE" if layout == "vLLM" else layout
    )
    assert dataclasses.replace(stored.config, rope_scaling=None) == CONFIG
    assert torch.equal(stored.vocab.target_ids_V, VOCAB.target_ids_V)
    assert torch.equal(stored.vocab.t2d_W, VOCAB.t2d_W)
    assert torch.equal(logits(stored.head), logits(head))
    assert check_fit(stored, FACTS) == []
    assert stored.digest == digest_head(tmp_path / "head")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_changed_weight_changes_the_digest(layout: str, head: Head, tmp_path: Path):
    other = Head.init(CONFIG, 8)
    digests = {digest_head(write(tmp_path / name, layout, one, VOCAB)) for name, one in (("a", head), ("b", other))}
    assert len(digests) == 2


def test_the_variants_of_speculators(tmp_path: Path):
    """Its defaults: the residual behind the norm, one norm before fc, the normed state fed back."""
    config = dataclasses.replace(CONFIG, norm_before_residual=True, norm_before_fc=True, norm_output=True)
    other = Head.init(config, 3)
    directory = write(tmp_path / "head", "speculators", other, VOCAB)
    stored = read_head(directory)
    assert (stored.config, stored.metadata.target_name) == (config, "some/target")
    assert torch.equal(logits(stored.head), logits(other))
    raw = json.loads((directory / "config.json").read_text())
    del raw["norm_before_residual"]
    (directory / "config.json").write_text(json.dumps(raw))
    with pytest.raises(InputError, match=r"norm_before_residual is missing .*in a speculators head"):
        read_head(directory)


def test_target_ids_for_offsets_are_read_and_told(head: Head, tmp_path: Path):
    (said,) = warnings(write(tmp_path / "head", "TorchSpec", head, VOCAB))
    assert "d2t holds target ids" in said
    assert "eyas export" in said


def test_an_embedding_of_its_own_is_compared_with_the_target(head: Head, tmp_path: Path):
    stored = read_head(write(tmp_path / "head", "TorchSpec", head, VOCAB), None, TARGET_LAYERS)
    (right,) = check_embedding(stored, torch.zeros(20, 32))
    (wrong,) = check_embedding(stored, torch.eye(20, 32))
    assert (right.weight, wrong.weight) == ("ok", "warning")
    assert "100% of its rows" in wrong.problem


def test_modelopt_norms_that_are_no_constant_are_told(head: Head, tmp_path: Path):
    directory = write(tmp_path / "head", "ModelOpt", head, VOCAB)
    assert check_weights(read_head(directory)) == []
    tensors = load_file(directory / "model.safetensors")
    tensors["layers.0.input_layernorm.weight"][0] = 3.0
    save_file(tensors, directory / "model.safetensors")
    (finding,) = check_weights(read_head(directory))
    assert "input_layernorm are not constant" in finding.problem


def test_the_flags_of_specforge_are_doubted(head: Head, tmp_path: Path):
    directory = write(tmp_path / "head", "SpecForge", head, VOCAB)
    assert warnings(directory) == []
    edit_config(directory, norm_output=True)
    assert "SpecForge #879" in warnings(directory)[0]


def test_tensors_of_another_precision_than_said(head: Head, tmp_path: Path):
    directory = write(tmp_path / "head", "SpecForge", head, VOCAB)
    edit_config(directory, torch_dtype="bfloat16")
    assert "tensors in float32" in warnings(directory)[0]


def test_a_window_is_told(head: Head, tmp_path: Path):
    directory = write(tmp_path / "head", "speculators", head, VOCAB)
    raw = json.loads((directory / "config.json").read_text())
    raw["transformer_layer_config"] |= {"layer_types": ["sliding_attention"], "sliding_window": 16}
    (directory / "config.json").write_text(json.dumps(raw))
    assert "a window of 16 tokens" in warnings(directory)[0]


def test_everything_wrong_is_named_at_once(head: Head, tmp_path: Path):
    directory = write(tmp_path / "head", "SpecForge", head, VOCAB)
    tensors = load_file(directory / "model.safetensors")
    del tensors["norm.weight"]
    tensors["fc.weight"] = tensors["fc.weight"][:, :64].contiguous()
    tensors["d2t"][3] += 1
    save_file(tensors, directory / "model.safetensors")
    with pytest.raises(InputError) as caught:
        read_head(directory, None, TARGET_LAYERS)
    for named in ("no tensor norm.weight", "fc.weight has shape [32, 64]", "d2t maps draft token 3"):
        assert named in caught.value.problem
    edit_config(directory, tie_word_embeddings=True, hidden_act="gelu")
    read, weights = inspect_head(directory, TARGET_LAYERS)
    assert weights is None
    assert [finding.problem.split(" in config.json")[0] for finding in read.findings] == [
        'hidden_act is "gelu"',
        "tie_word_embeddings is true",
    ]


def test_a_pickle_is_not_run(head: Head, tmp_path: Path):
    directory = write(tmp_path / "head", "official EAGLE", head, VOCAB)
    torch.save({"norm.weight": print}, directory / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"pytorch_model.bin is damaged"):
        read_head(directory, None, TARGET_LAYERS)


def test_a_missing_shard_is_named(head: Head, tmp_path: Path):
    directory = write(tmp_path / "head", "TorchSpec", head, VOCAB)
    (directory / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(InputError, match=r"model-00002-of-00002\.safetensors"):
        read_head(directory, None, TARGET_LAYERS)
    (directory / "model.safetensors.index.json").write_text('{"weight_map": {"fc.weight": "../../etc/passwd"}}')
    with pytest.raises(InputError, match="names no files of weights"):
        read_head(directory, None, TARGET_LAYERS)


# --- layers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("top", "nested", "num_layers", "meant"),
    [
        ([2, 16, 29], None, None, [2, 16, 29]),  # vLLM, speculators
        ([1, 15, 28], None, 32, [1, 15, 28]),  # the same rule; check_fit wonders
        (None, [1, 15, 28], None, [2, 16, 29]),  # SpecForge, SGLang of any age
        ([2, 16, 29], [1, 15, 28], None, [2, 16, 29]),
        ([3, 8, 13], [3, 8, 13], None, [3, 8, 13]),  # SGLang since #25454
        ([3, 8, 13], [2, 7, 12], None, [3, 8, 13]),  # and before
        ([1, 2, 3], [0, 1, 2], 2, [1, 2, 3]),  # of another target: check_fit says it
        (None, [2, 16, 29], 32, [2, 16, 29]),  # ModelOpt's streaming recipes: the usual ones, literal
        (None, [], 32, [2, 16, 29]),  # ModelOpt: an empty list for the usual ones
        (None, None, 32, [2, 16, 29]),
        (None, [5, 8, 11], 12, [5, 8, 11]),  # as outputs one would be the last state of all
    ],
)
def test_what_lists_mean(top: object, nested: object, num_layers: int | None, meant: list[int]):
    assert read_aux_layers(top, nested, num_layers).ids == tuple(meant)


@pytest.mark.parametrize(
    ("top", "nested", "num_layers", "named"),
    [
        (None, [2, 16, 29], None, "may mean hidden_states [2, 16, 29] or [3, 17, 30]"),
        (None, [4, 8, 12], 32, "may mean hidden_states [4, 8, 12] or [5, 9, 13]"),
        ([1, 15, 28], [1, 15, 28], 32, "[1, 15, 28] at the top level, [1, 15, 28] in eagle_config"),
        (None, None, None, "no eagle_aux"),
        (None, None, 4, "no eagle_aux"),
        (None, [1, 1, 2], 32, "[1, 1, 2]"),
        ("2,16,29", None, 32, "'2,16,29'"),
    ],
)
def test_what_lists_may_not_mean(top: object, nested: object, num_layers: int | None, named: str):
    read = read_aux_layers(top, nested, num_layers)
    assert read.ids is None
    assert named in read.findings[0].problem


@pytest.mark.parametrize(("ids", "written"), [((2, 16, 29), [1, 15, 28]), ((3, 8, 13), [3, 8, 13]), ((1, 2, 3), None)])
def test_what_sglang_can_be_told(ids: tuple[int, ...], written: list[int] | None):
    found = to_sglang_ids([HFIndex(i) for i in ids])
    assert found == written
    if found is not None:  # SGLang's rule, written out
        assert tuple(i + 1 if found[0] == 1 else i for i in found) == ids


def test_layers_counted_the_other_way_are_wondered_at(head: Head, tmp_path: Path):
    directory = write(tmp_path / "head", "vLLM", head, VOCAB)
    edit_config(directory, **{LIST: [1, 3, 4]})
    (finding,) = check_fit(read_head(directory), FACTS)
    assert "may be the default layers [2, 4, 5], wrongly counted as layer outputs" in finding.problem


def test_the_last_state_is_another_one_elsewhere(head: Head, tmp_path: Path):
    directory = write(tmp_path / "head", "vLLM", head, VOCAB)
    edit_config(directory, **{LIST: [2, 4, 8]})
    found = check_fit(read_head(directory), FACTS)
    assert found[0].weight == "misfit"
    assert "before the final norm" in found[0].problem


# --- the draft vocabulary --------------------------------------------------------------------------------------------

CHOSEN = torch.tensor([0, 3, 5, 9])
OFFSETS = CHOSEN - torch.arange(4)
T2D = torch.zeros(12, dtype=torch.bool).index_fill(0, CHOSEN, True)


@pytest.mark.parametrize(
    ("d2t", "t2d"),
    [
        (OFFSETS, T2D),
        (CHOSEN, T2D),
        (None, T2D),
        (OFFSETS.int(), T2D),
        (OFFSETS, T2D.to(torch.uint8)),
        (torch.tensor([9, 2, 3, -3]), T2D),  # in another order: 9, 3, 5, 0
    ],
)
def test_vocabularies_that_can_be_known(d2t: torch.Tensor | None, t2d: torch.Tensor | None):
    read = parse_vocab(d2t, t2d, 4, 12)
    assert read.vocab is not None
    assert read.vocab.target_ids_V.tolist() == CHOSEN.tolist()
    assert read.vocab.find_problem() is None
    if d2t is not None and d2t[0] == 9:
        assert read.order_V is not None
        assert (d2t + torch.arange(4))[read.order_V].tolist() == CHOSEN.tolist()


def test_without_t2d_what_can_only_be_one_thing():
    repeated = torch.tensor([0, 0, 7, 7])  # target ids do not come twice
    found = parse_vocab(repeated, None, 4, 12).vocab
    assert found is not None
    assert found.target_ids_V.tolist() == [0, 1, 9, 10]
    too_high = torch.tensor([0, 3, 5, 11])  # as offsets: 14
    found = parse_vocab(too_high, None, 4, 12).vocab
    assert found is not None
    assert found.target_ids_V.tolist() == [0, 3, 5, 11]
    whole = parse_vocab(None, None, 12, 12).vocab
    assert whole is not None
    assert whole.target_ids_V.tolist() == list(range(12))


@pytest.mark.parametrize(
    ("d2t", "t2d", "named"),
    [
        (CHOSEN, None, "may be offsets or target ids"),  # [0, 3, 5, 9] or [0, 4, 7, 12 - 0]
        (
            torch.tensor([0, -1, 7, 7]),
            None,
            "as offsets they repeat 1 target tokens, and as target ids they name token -1",
        ),
        (torch.tensor([0, 3, 5, 8]), T2D, "maps draft token 1 to target token 4"),
        (OFFSETS, ~T2D, "marks 8 tokens"),
        (OFFSETS[:3], T2D, "d2t has shape [3]"),
        (None, None, "no tensor d2t"),
    ],
)
def test_vocabularies_that_cannot(d2t: torch.Tensor | None, t2d: torch.Tensor | None, named: str):
    read = parse_vocab(d2t, t2d, 4, 13 if named.startswith("may") else 12)
    assert read.vocab is None
    assert named in read.findings[0].problem, read.findings


def test_rows_of_lm_head_follow_the_order(head: Head, tmp_path: Path):
    directory = write(tmp_path / "head", "SpecForge", head, VOCAB)
    tensors = load_file(directory / "model.safetensors")
    order = torch.randperm(11, generator=torch.Generator().manual_seed(0))
    tensors["d2t"] = VOCAB.target_ids_V[order] - torch.arange(11)
    tensors["lm_head.weight"] = tensors["lm_head.weight"][order].contiguous()
    save_file(tensors, directory / "model.safetensors")
    assert torch.equal(logits(read_head(directory, None, TARGET_LAYERS).head), logits(head))
    assert "not in ascending order" in warnings(directory)[0]
