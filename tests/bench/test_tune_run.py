"""`eyas tune` with an EAGLE-3 head and a block head: texts on which copies win, others, and heads that do not fit.

The clock is replaced by fixed seconds of rounds, because a busy machine has no stable one. All else is real.
"""

import json
import random
import string
import time
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from tests.features.small import LAYERS
from tests.train.features import features, target
from tests.train.test_block_loss import CONFIG as BLOCK

from eyas.base.errors import InputError
from eyas.base.provenance import StageInputs, finish_stage
from eyas.bench import tune
from eyas.bench.config import TuneConfig
from eyas.bench.tune_predictions import RoundCosts, arms_to_measure
from eyas.chat.conversation import Conversation, Message, Turn
from eyas.features import capture
from eyas.formats.config import HeadMetadata
from eyas.formats.head_dir import write_head
from eyas.model.head import Head, HeadConfig
from eyas.model.layer_ids import check_aux_layers
from eyas.model.target import Target
from eyas.model.vocab import DraftVocab
from eyas.speculation.round_costs import CostTable
from eyas.train import train

__all__ = ["features", "target"]


def make_features(run: Path, target: Target, repeats: bool) -> Path:
    """Features of random answers. They repeat the letters of their prompts, or share nothing with them."""
    (run / "conversations").mkdir()
    words, lines = random.Random(3), b""
    for number in range(10):
        text, other = ("".join(words.choices(string.ascii_letters, k=60)) for _ in range(2))
        answer = text[5:55] if repeats else other[5:55]
        new = tuple(target.tokenizer.encode(answer, add_special_tokens=False))
        messages = (Message("user", f"repeat {text}"), Message("assistant", answer))
        turn = Turn(new, (True,) * len(new), "length")
        lines += Conversation(f"p:{number}", "p", messages, {"task": "edit"}, turns=(turn,)).to_line()
    (run / "conversations" / "part-00000.jsonl").write_bytes(lines)
    finish_stage(run / "conversations", StageInputs("respond", "test", {}), time.time())
    config = capture.CaptureConfig(dtype="float32", held_out=0.5)
    capture.run(config, run / "conversations", target, run / "features", progress=False)
    return run / "features"


@pytest.fixture(scope="module")
def heads(features: Path, target: Target, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An EAGLE-3 head that was trained well, and a block head of 3 slots that was not."""
    directory = tmp_path_factory.mktemp("heads")
    config = train.TrainConfig(steps=3, updates=40, batch_tokens=100, draft_vocab_size=200, learning_rate=1e-2)
    train.run(config, features, target, directory / "eagle3", progress=False)
    train.run(BLOCK, features, target, directory / "block", progress=False)
    return directory / "eagle3", directory / "block"


def fixed_costs(config: TuneConfig, stored: list, head_s: float) -> RoundCosts:
    """At one stream, plain decoding takes 10 ms and a copy 1 to 4 ms more; four streams take half more."""
    arms = arms_to_measure([config.shape_groups(one.config.max_depth) for one in stored])
    seconds = tuple((one, one * 1.5) for one in (0.010, 0.011, 0.014, *(head_s for _ in arms[3:])))
    return RoundCosts(CostTable(tuple(arm.name for _, arm in arms), (1, 4), 50, seconds, (0.0,) * len(arms)), arms)


def tuned(own: Path, other: Path, features: Path, target: Target, out: Path, head_s: float = 0.018) -> dict:
    """Returns tune.json of two heads. head_s: the seconds of a round with a draft of a head."""
    config = TuneConfig(streams=(1, 4), depth=3, top_k=(1, 2), nodes=(6,), heads=(str(other),))
    with patch.object(tune.RoundCosts, "measure", lambda config, stored, *_: fixed_costs(config, stored, head_s)):
        tune.run(config, own, features, target, out, progress=False)
    return json.loads((out / tune.FILE).read_text())


def test_copies_win_where_answers_repeat_their_prompts(
    heads: tuple[Path, Path], target: Target, tmp_path: Path
) -> None:
    told = tuned(*heads, make_features(tmp_path, target, repeats=True), target, tmp_path / "out")
    for point in told["streams"]:
        answer = point["answer"]
        assert (answer["tree"], answer["head"], answer["copies"]) == (None, None, True)
        assert answer["acceptance_length"] > 3
        assert answer["speedup"] > 2
        assert answer["tps"] > point["best"]["tps"]
    beside = [one for one in told["copies"] if one["n"] == 1]
    assert [one["head"] for one in beside] == [None, *map(str, heads)]
    assert all(one["acceptance_length"] > 3 for one in beside)


def test_plain_decoding_wins_where_nothing_is_accepted(
    heads: tuple[Path, Path], target: Target, tmp_path: Path
) -> None:
    told = tuned(*heads, make_features(tmp_path, target, repeats=False), target, tmp_path / "out")
    for point in told["streams"]:
        answer = point["answer"]
        assert (answer["tree"], answer["head"], answer["copies"], answer["speedup"]) == (None, None, False, 1.0)
        assert point["best"]["tree"] is None


def test_the_better_head_wins_from_either_side(
    heads: tuple[Path, Path], features: Path, target: Target, tmp_path: Path
) -> None:
    """Which head is the run's own one changes no figure. Drafts are nearly free, so that the longest one wins."""
    eagle3, block = heads
    one = tuned(eagle3, block, features, target, tmp_path / "1", 0.0101)
    two = tuned(block, eagle3, features, target, tmp_path / "2", 0.0101)
    assert [head["kind"] for head in one["heads"]] == ["eagle3", "block"]
    assert one["heads"] == two["heads"][::-1]
    assert (one["trees"], two["trees"]) == (one["heads"][0]["trees"], two["heads"][0]["trees"])
    shapes = [(tree["depth"], tree["top_k"], tree["nodes"]) for tree in two["trees"]]
    assert shapes == [(1, 1, 2), (2, 1, 3), (3, 1, 4), (1, 5, 6), (2, 5, 6), (3, 5, 6)]
    lengths = [max(tree["acceptance_length"] for tree in head["trees"]) for head in one["heads"]]
    assert abs(lengths[0] - lengths[1]) > 0.03, "the heads hardly differ: the test shows little"
    for point, other in zip(one["streams"], two["streams"], strict=True):
        assert point["answer"] == other["answer"]
        assert point["answer"]["head"] == str(heads[lengths.index(max(lengths))])
        assert point["best"]["head"] == str(eagle3)
        assert other["best"]["head"] == str(block)


def test_a_head_that_does_not_fit_is_named(
    heads: tuple[Path, Path], features: Path, target: Target, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=r"The head in .*embedded.head does not fit .* hidden size"):
        tuned(heads[0], Path("embedded"), features, target, tmp_path / "out")
    with pytest.raises(InputError, match="No head directory"):
        tuned(heads[0], tmp_path / "absent", features, target, tmp_path / "out")
    config = HeadConfig.for_target(target.info, 200, aux_layer_ids=check_aux_layers((0, 1, 2), 4))
    vocab = DraftVocab.from_counts(torch.arange(target.info.vocab_size), 200)
    write_head(tmp_path / "layers", Head.init(config, 0), vocab, HeadMetadata(), torch.float32)
    with pytest.raises(InputError, match=rf"reads layers \[0, 1, 2\], but the run captures layers \{list(LAYERS)}"):
        tuned(heads[0], tmp_path / "layers", features, target, tmp_path / "out")
    assert not (tmp_path / "out").exists()
