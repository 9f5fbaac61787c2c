"""The lossless check finds exactly the answers that differ, and the peer is timed token by token."""

import dataclasses
from pathlib import Path

import pytest
import torch
from make_references import write_references
from peer_transformers import PeerComparison, TokenTimer, compare_with_generate
from tests.bench.tiny_pair import TinyPair

from eyas.base.errors import InputError
from eyas.bench.lossless_check import (
    References,
    compare_with_references,
    generate_references,
    load_reference_model,
    read_references,
)
from eyas.bench.workload import interleave_tasks
from eyas.model.target_dir import digest_target

TOKENS = 24


@pytest.fixture(scope="module")
def references(pair: TinyPair) -> References:
    return generate_references(pair.directory, interleave_tasks(pair.prompts), TOKENS, progress=False)


def test_identical_answers(pair: TinyPair, references: References) -> None:
    prompts = interleave_tasks(pair.prompts)
    found = compare_with_references(pair.target, pair.draft, prompts, references, TOKENS, slots=3, progress=False)
    assert found["differing"] == []
    assert found["prompts"] == found["identical"] == 5
    assert found["reference"].startswith("transformers 5")
    # Shorter answers are compared with the beginning of the reference.
    assert compare_with_references(pair.target, pair.draft, prompts, references, 7, progress=False)["identical"] == 5


def test_planted_differences_are_found(pair: TinyPair, references: References) -> None:
    first, second = references.answers["birds:0"], references.answers["sums:1"]
    planted = {**references.answers, "birds:0": (*first[:-1], (first[-1] + 1) % 256), "sums:1": second[:-1]}
    wrong = dataclasses.replace(references, answers=planted)
    found = compare_with_references(
        pair.target, pair.draft, interleave_tasks(pair.prompts), wrong, TOKENS, progress=False
    )
    assert found["differing"] == ["birds:0", "sums:1"]
    assert (found["prompts"], found["identical"]) == (5, 3)


def test_a_wrong_target_is_found(pair: TinyPair, references: References) -> None:
    """With a changed weight of the target, all answers differ."""
    head = pair.target.logits_weight
    kept = head.detach().clone()
    try:
        with torch.no_grad():
            head.copy_(kept.roll(1, dims=0))
        found = compare_with_references(
            pair.target, pair.draft, interleave_tasks(pair.prompts), references, TOKENS, progress=False
        )
    finally:
        with torch.no_grad():
            head.copy_(kept)
    assert found["identical"] == 0


def test_references_of_another_target_are_rejected(pair: TinyPair, references: References) -> None:
    other = dataclasses.replace(references, target_digest="sha256:0")
    with pytest.raises(InputError) as error:
        compare_with_references(pair.target, pair.draft, interleave_tasks(pair.prompts), other, TOKENS, progress=False)
    assert "sha256:0" in str(error.value)
    assert digest_target(pair.directory) in str(error.value)
    with pytest.raises(InputError, match="end after 24 tokens"):
        compare_with_references(pair.target, pair.draft, interleave_tasks(pair.prompts), references, 25, progress=False)
    fewer = dataclasses.replace(references, answers={"birds:0": (1,)})
    with pytest.raises(InputError, match="There is no reference answer to prompt sums:0"):
        compare_with_references(pair.target, pair.draft, interleave_tasks(pair.prompts), fewer, TOKENS, progress=False)


def test_references_on_disk(tmp_path: Path, references: References) -> None:
    path = tmp_path / "references.json"
    write_references(path, references)
    assert read_references(path) == references
    for text in ("not json", "{}", '{"target_digest": 1}'):
        path.write_text(text)
        with pytest.raises(InputError):
            read_references(path)
    with pytest.raises(InputError, match="No such file"):
        read_references(tmp_path / "none.json")


def test_peer_is_timed_on_the_same_prompts(pair: TinyPair) -> None:
    found = compare_with_generate(pair.target, interleave_tasks(pair.prompts)[:2], 12, 1, progress=False)
    assert len(found.ratios) == 2
    assert all(0.01 < ratio < 100 for ratio in found.ratios)


def test_peer_ratio_on_known_times() -> None:
    assert PeerComparison((2.0, 4.0, 5.0), (4.0, 4.0, 20.0)).ratio == 2.0


def test_token_timer_records_the_prompt_and_every_token(pair: TinyPair) -> None:
    model = load_reference_model(pair.directory, torch.float32, "cpu")
    ids_1T, clock = torch.tensor([pair.prompts["birds"][0].ids]), TokenTimer()
    out_1T = model.generate(ids_1T, do_sample=False, max_new_tokens=9, cache_implementation="static", streamer=clock)
    assert len(clock.times_s) == 1 + out_1T.shape[1] - ids_1T.shape[1]
    clock.times_s = [0.0, 5.0, 6.0, 7.0]
    assert clock.tpot_s == 1.0
    clock.times_s = [0.0, 5.0]
    assert clock.tpot_s is None
