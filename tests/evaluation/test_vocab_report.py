"""What smaller draft vocabularies would cost, against heads whose other tokens are masked, and against counts."""

import json
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import Tensor

from eyas.evaluation import vocab_report
from eyas.evaluation.evaluate import EvalConfig, EvalInputs, run
from eyas.evaluation.head_drafter import HeadDrafter
from eyas.evaluation.replay import replay_rows
from eyas.evaluation.vocab_report import cut_head, measure_vocab_sizes
from eyas.features.reader import Features
from eyas.formats.head_dir import read_head
from eyas.model.head import Head
from eyas.model.target import Target
from eyas.model.vocab import DraftVocab, required_ids
from eyas.train import train as loop
from eyas.train.config import TrainConfig
from eyas.tree.acceptance_length import acceptance_length
from eyas.tree.shape import TreeShape

SHAPE = TreeShape(depth=4, top_k=3, nodes=10)
SIZES = (16, 40, 100, 250)


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory, target: Target, features: Path) -> Path:
    out = tmp_path_factory.mktemp("head")
    config = TrainConfig(
        steps=3, updates=60, batch_tokens=100, draft_vocab_size=200, learning_rate=1e-2, dtype="float32"
    )
    loop.run(config, features, target, out, progress=False)
    return out


def test_the_report_against_counts_and_a_masked_head(
    target: Target, features: Path, head: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vocab_report, "VOCAB_SIZES", SIZES)
    stored, data = read_head(head, torch.float32), Features(features)
    assert isinstance(stored.head, Head)
    found = measure_vocab_sizes(SHAPE, stored, (data, data), target)
    assert found["sizes"] == [16, 40, 100, 200, 250]
    assert found["head"] == 200
    train, held_out = (
        Counter(token for ids_T, mask_T in data.texts(indices) for token in ids_T[mask_T].tolist())
        for indices in (data.indices("train"), data.indices("held_out"))
    )
    assert found["seen"] == len(train)
    assert found["all"]["tokens"] == held_out.total()
    rows = [next(data.rows([index])) for index in data.indices("held_out")]
    counts_W = data.generated_counts(data.indices("train"))
    forced = required_ids(target.tokenizer, target.info.eos_ids, counts_W)
    for place, size in enumerate(found["sizes"]):
        # The most frequent first, of equals the smaller id, and always the forced ones.
        others = sorted((t for t in range(288) if t not in forced), key=lambda token: (-train[token], token))
        chosen = {*forced, *others[: size - len(forced)]}
        share = sum(count for token, count in held_out.items() if token in chosen) / held_out.total()
        assert found["all"]["coverage"][place] == pytest.approx(share, abs=1e-6)
        if size > 200:
            assert found["all"]["acceptance_length"][place] is None
            continue
        keep_V = torch.tensor([int(token) in chosen for token in stored.vocab.target_ids_V])
        assert int(keep_V.sum()) == size
        drafter = HeadDrafter(stored.head, stored.vocab, target.embed, SHAPE, rows)
        whole = stored.head.logits

        def masked(out_BTD: Tensor, whole=whole, keep_V=keep_V) -> Tensor:
            return whole(out_BTD).masked_fill(~keep_V, -torch.inf)

        stored.head.logits = masked  # type: ignore[method-assign]
        with torch.inference_mode():
            walked = replay_rows(rows, drafter)
        del stored.head.logits
        length = acceptance_length([one.rounds for one in walked])
        assert found["all"]["acceptance_length"][place] == pytest.approx(length, abs=1e-6)
    assert found["all"]["coverage"] == sorted(found["all"]["coverage"])


def test_a_cut_head_shares_all_but_its_rows(target: Target, head: Path) -> None:
    stored = read_head(head, torch.float32)
    assert isinstance(stored.head, Head)
    vocab = DraftVocab.from_counts(stored.vocab.t2d_W.long(), 50)
    cut = cut_head(stored.head, stored.vocab, vocab)
    assert cut.lm_head.weight.shape[0] == cut.config.draft_vocab_size == 50
    assert cut.fc.weight.data_ptr() == stored.head.fc.weight.data_ptr()
    out_1TD = torch.randn(1, 3, 48)
    expected = stored.head.logits(out_1TD)[..., stored.vocab.to_draft(vocab.target_ids_V)[0]]
    assert torch.allclose(cut.logits(out_1TD), expected, atol=1e-6)


def test_the_file_has_the_report(target: Target, features: Path, head: Path, tmp_path: Path) -> None:
    config = EvalConfig(depth=4, top_k=3, nodes=10)
    run(config, EvalInputs(head, features), target, tmp_path / "eval", progress=False)
    found = json.loads((tmp_path / "eval" / "acceptance.json").read_text())
    report = found["draft_vocab"]
    assert report["sizes"] == [200]  # the target has fewer tokens than the smallest of the usual sizes
    for task, entry in found["tasks"].items():
        (length,) = report["tasks"][task]["acceptance_length"]
        assert length == pytest.approx(entry["acceptance_length"], abs=1e-6)


def test_a_vocabulary_larger_than_what_was_seen(target: Target, features: Path, tmp_path: Path) -> None:
    """The rest is filled by id; the card says how many there are."""
    config = TrainConfig(steps=2, updates=2, batch_tokens=100, draft_vocab_size=280, dtype="float32")
    loop.run(config, features, target, tmp_path / "head", progress=False)
    stored, data = read_head(tmp_path / "head", torch.float32), Features(features)
    counts_W = data.generated_counts(data.indices("train"))
    seen = {int(token) for token in counts_W.nonzero()[:, 0]}
    forced = set(required_ids(target.tokenizer, target.info.eos_ids, counts_W))
    filled = sorted({int(token) for token in stored.vocab.target_ids_V} - seen - forced)
    assert len(seen) < 280
    assert filled == [token for token in range(288) if token not in seen | forced][: len(filled)]
    assert f"{len(filled) + len(forced - seen):,} of them occur in none" in (tmp_path / "head/README.md").read_text()
