"""Operations of training, against what torch counts while it computes."""

import pytest
import torch
from tests.features.small import random_row
from torch.utils.flop_counter import FlopCounterMode

from eyas.model.head import Head
from eyas.model.target import Target
from eyas.model.vocab import DraftVocab
from eyas.train import training_metrics as pace
from eyas.train.config import TrainConfig, build_head_config
from eyas.train.loss import Teacher
from eyas.train.trainer import compute_batch_loss
from eyas.train.ttt import pack_rows


@pytest.mark.parametrize("steps", [1, 3])
def test_operations_are_those_that_torch_counts(target: Target, steps: int) -> None:
    config = TrainConfig(steps=steps, draft_vocab_size=100, dtype="float32")
    sizes = build_head_config(config, target.aux_layer_ids, target.info)
    head = Head.init(sizes, 0)
    vocab = DraftVocab.from_counts(torch.arange(288), 100)
    torch.manual_seed(0)
    rows = [random_row("....xxxxxx", 48, 288), random_row("..xxx..xxxx", 48, 288)]
    packed = pack_rows(rows, steps, torch.float32)
    with FlopCounterMode(display=False) as counter:
        compute_batch_loss(head, packed, Teacher(target.lm_head, vocab, torch.float32), target, 0.8).loss.backward()
    counted = counter.get_flop_counts()["Global"]
    # Attention is made of batched products, which are not counted by eyas; all else is plain products of weights.
    plain = sum(count for op, count in counted.items() if "bmm" not in str(op))
    # The head's logits are computed for whole teacher rows, also for the steps that have nothing to learn from one.
    wasted = packed.supervised_JK.numel() - int(packed.supervised_JK.sum())
    assert (wasted > 0) == (steps > 1)
    assert pace.count_flops(head, 288, packed) == plain - 3 * 2 * wasted * 48 * 100


def test_the_share_is_that_of_the_time_since_the_last_look(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 2.0, 3.0])
    monkeypatch.setattr(pace.time, "perf_counter", lambda: next(clock))
    sizes = build_head_config(TrainConfig(draft_vocab_size=100), target.aux_layer_ids, target.info)
    head = Head(sizes)
    packed = pack_rows([random_row("..xxxx", 48, 288)], 2, torch.float32)
    done = pace.count_flops(head, 288, packed)
    work = pace.FlopsUtilization(head, 288, peak_per_s=done)
    work.add(packed)
    assert work.format_share() == "50% of peak"
    work.add(packed)
    assert work.format_share() == "100% of peak"


def test_the_peak_is_faster_for_none_than_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "MEASURED_S", 0.01)
    assert pace.measure_peak_flops(torch.float32, torch.device("cpu")) > 1e8
