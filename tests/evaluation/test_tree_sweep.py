from functools import partial
from pathlib import Path

import torch
from tests.evaluation.test_replay import random_head
from tests.features.small import random_row
from tests.train.test_reference import DRAFT, VOCAB, WIDTH

from eyas.evaluation.evaluate import EvalConfig, evaluate
from eyas.evaluation.head_drafter import HeadDrafter
from eyas.evaluation.replay import HeldOutRows, replay_rows, sample_held_out
from eyas.evaluation.tree_sweep import acceptance_lengths, count_rounds
from eyas.features.reader import Features
from eyas.formats.head_dir import read_head
from eyas.model.target import Target
from eyas.model.vocab import DraftVocab
from eyas.train import train as loop
from eyas.tree.acceptance_length import summarize
from eyas.tree.shape import TreeShape, chain_shape

CHAINS = [chain_shape(depth) for depth in (1, 2, 3, 5)]
TREES = [TreeShape(depth, 3, nodes) for depth in (1, 2, 3, 5) for nodes in (2, 4, 5, 9, 14, 60)]


@torch.no_grad()
def test_one_drafting_serves_every_tree() -> None:
    """Against drafting and walking each tree by itself: rounds, length and interval, text by text."""
    head, embedding = random_head(), torch.randn(VOCAB, WIDTH, dtype=torch.float64)
    vocab = DraftVocab.from_counts(torch.rand(VOCAB), DRAFT)
    pictures = ("..xxxxxx" + "x" * 30, "...xxxxxxxxx..xx...xxxx", "....x", ".xx")
    rows = [random_row(picture, WIDTH, VOCAB, torch.float64) for picture in pictures]

    def embed(ids: torch.Tensor) -> torch.Tensor:
        return embedding[ids]

    # Texts that the head half foresees: each token is, by chance, its first or second guess.
    for row in rows:
        for t in range(len(row.ids_T) - 2):
            guesses = HeadDrafter(head, vocab, embed, TreeShape(1, 2, 3), [row]).draft([0], [t]).tokens_BM[0, 1:]
            row.ids_T[t + 2] = torch.cat((guesses, guesses[:1], row.ids_T[t + 2 : t + 3]))[torch.randint(4, ())]
    for shapes in (CHAINS, TREES):
        build_drafter = partial(HeadDrafter, head, vocab, embed, rows=rows)
        found = count_rounds(rows, shapes, build_drafter, batch_tokens=150)
        told = acceptance_lengths(shapes, rows, found, seed=3)
        for x, shape in enumerate(shapes):
            walked = [text.rounds for text in replay_rows(rows, HeadDrafter(head, vocab, embed, shape, rows))]
            assert found[:, x].tolist() == [len(rounds.accepted) for rounds in walked], shape
            stats = summarize(walked, 3)
            assert (told[x].shape, told[x].acceptance_length, told[x].ci95) == (
                shape,
                stats.acceptance_length,
                stats.ci95,
            )
    lengths = [one.acceptance_length for one in told]
    assert max(lengths) > 1.8 > min(lengths), "the trees hardly differ: the test shows little"


def test_some_held_out_answers_again_and_again(target: Target, features: Path, tmp_path: Path) -> None:
    """All of them give the figure of `eyas eval`; a few are the same few each time, and none of training."""
    config = loop.TrainConfig(steps=3, updates=30, batch_tokens=100, draft_vocab_size=200, learning_rate=1e-2)
    loop.run(config, features, target, tmp_path, progress=False)
    stored, stored_features = read_head(tmp_path, torch.float32), Features(features)
    wanted = evaluate(EvalConfig(4, 3, 10), stored, (stored_features, stored_features), target, progress=False)["all"]
    held_out = sample_held_out(stored_features, 1000, 0)
    assert list(held_out) == stored_features.indices("held_out")
    before = {name: weight.clone() for name, weight in stored.head.state_dict().items()}
    rows = HeldOutRows(stored_features, held_out, target, TreeShape(4, 3, 10), 200)
    stats = summarize(rows.replay(stored.head, stored.vocab))
    assert (stats.acceptance_length, stats.rounds) == (wanted["acceptance_length"], wanted["rounds"])
    assert all(torch.equal(before[name], weight) for name, weight in stored.head.state_dict().items())
    few = sample_held_out(stored_features, 2, 5)
    assert few == sample_held_out(stored_features, 2, 5)
    assert len(few) == 2
    assert set(few) < set(held_out)
    assert len({sample_held_out(stored_features, 2, seed) for seed in range(8)}) > 1
