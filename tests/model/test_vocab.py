import pytest
import torch

from eyas.base.errors import InputError
from eyas.model.vocab import DraftVocab


def test_offsets_as_drawn_in_the_module():
    vocab = DraftVocab.from_counts(torch.tensor([0, 9, 0, 8, 7, 0, 6]), 4)
    assert vocab.d2t_V.tolist() == [1, 2, 2, 3]
    assert vocab.t2d_W.tolist() == [False, True, False, True, True, False, True]
    assert vocab.to_target(torch.tensor([[0, 1], [2, 3]])).tolist() == [[1, 3], [4, 6]]
    ids, in_vocab = vocab.to_draft(torch.arange(7))
    assert in_vocab.tolist() == [False, True, False, True, True, False, True]
    assert ids.tolist() == [0, 0, 0, 1, 2, 0, 3]
    assert vocab.coverage(torch.tensor([5, 9, 5, 8, 7, 0, 6])) == 30 / 40


def test_every_draft_token_goes_there_and_back():
    counts = torch.randint(0, 50, (500,), generator=torch.Generator().manual_seed(0))
    vocab = DraftVocab.from_counts(counts, 123)
    ids, in_vocab = vocab.to_draft(vocab.to_target(torch.arange(123)))
    assert in_vocab.all()
    assert torch.equal(ids, torch.arange(123))
    vocab.check()


def test_frequency_then_the_smaller_id_and_forced_ids_always():
    counts = torch.tensor([3, 5, 3, 3, 0, 9])
    assert DraftVocab.from_counts(counts, 3).to_target(torch.arange(3)).tolist() == [0, 1, 5]
    assert DraftVocab.from_counts(counts, 3, {4}).to_target(torch.arange(3)).tolist() == [1, 4, 5]


@pytest.mark.parametrize(("size", "forced"), [(0, ()), (7, ()), (1, (2, 3)), (3, (6,)), (3, (-1,))])
def test_sizes_that_cannot_be(size: int, forced: tuple[int, ...]):
    with pytest.raises(InputError):
        DraftVocab.from_counts(torch.ones(6), size, forced)


def test_problem_names_the_classic_mistakes():
    good = DraftVocab.from_counts(torch.tensor([0, 9, 0, 8, 7, 0, 6]), 4)
    absolute = DraftVocab(torch.tensor([1, 3, 4, 6]), good.t2d_W)
    assert "offsets" in str(absolute.find_problem())
    moved = DraftVocab(torch.tensor([1, 2, 3, 3]), good.t2d_W)
    assert "draft token 2 to target token 5" in str(moved.find_problem())
    assert "marks 3 tokens, but d2t has 4" in str(
        DraftVocab(good.d2t_V, good.t2d_W & (torch.arange(7) != 1)).find_problem()
    )
