import math

import pytest
import torch
from tests.features.small import random_row
from torch import Tensor

from eyas.model.vocab import DraftVocab
from eyas.train import loss
from eyas.train.loss import Graded, Lessons, grade
from eyas.train.teacher import Teacher
from eyas.train.ttt import pack

WIDTH, VOCAB = 6, 10


def teacher_of(t2d: list[int], weight_WD: Tensor) -> Teacher:
    counts_W = torch.zeros(VOCAB)
    counts_W[t2d] = 1
    output = torch.nn.Linear(WIDTH, VOCAB, bias=False)
    output.weight.data = weight_WD
    return Teacher(output, DraftVocab.from_counts(counts_W, len(t2d)), torch.float32)


def lessons_of(hidden_JD: Tensor, steps: int = 1) -> Lessons:
    rows = hidden_JD.shape[0]
    pupils_JK = torch.arange(steps) * rows + torch.arange(rows)[:, None]
    return Lessons(hidden_JD, pupils_JK, torch.ones(rows, steps, dtype=torch.bool))


def test_what_the_head_cannot_say_costs_no_loss_but_is_a_miss() -> None:
    weight_WD = torch.zeros(VOCAB, WIDTH)
    weight_WD[torch.arange(WIDTH), torch.arange(WIDTH)] = 50.0
    teacher = teacher_of([0, 1, 2], weight_WD)
    hidden_JD = torch.eye(WIDTH)[[0, 1, 4]]  # the third row says token 4, which is not in the draft vocabulary
    lm_weight_VD = (50.0 * torch.eye(WIDTH)[:3]).requires_grad_()
    pupils_ND = torch.eye(WIDTH)[[0, 2, 0]].requires_grad_()  # right, wrong, whatever
    graded = grade(pupils_ND, lm_weight_VD, lessons_of(hidden_JD), teacher, 0.8)
    assert graded.hits_JK[:, 0].tolist() == [True, False, False]
    torch.testing.assert_close(graded.ce_JK[:, 0], torch.tensor([0.0, 50.0, 0.0]), atol=1e-4, rtol=0)
    torch.testing.assert_close(graded.overlap_JK[:, 0], torch.tensor([1.0, 0.0, 0.0]), atol=1e-4, rtol=0)
    graded.loss.backward()
    assert pupils_ND.grad is not None
    assert pupils_ND.grad[2].abs().sum() == 0
    assert pupils_ND.grad[1].abs().sum() > 0


def test_the_perfect_head_has_the_entropy_of_its_teacher() -> None:
    weight_WD = torch.randn(VOCAB, WIDTH)
    inside = [1, 4, 5, 8]
    teacher, hidden_JD = teacher_of(inside, weight_WD), torch.randn(40, WIDTH)
    graded = grade(hidden_JD, weight_WD[inside], lessons_of(hidden_JD), teacher, 1.0)
    full_JW = (hidden_JD @ weight_WD.T).softmax(-1)
    p_JV = full_JW[:, inside] / full_JW[:, inside].sum(-1, keepdim=True)
    known_J = torch.tensor([int(best) in inside for best in full_JW.argmax(-1)])
    entropy_J = -(p_JV * p_JV.log()).sum(-1)
    torch.testing.assert_close(graded.ce_JK[:, 0], entropy_J * known_J, atol=1e-5, rtol=1e-5)
    assert graded.hits_JK[:, 0].tolist() == known_J.tolist()


def both(normed_ND: Tensor, lm_weight_VD: Tensor, lessons: Lessons, teacher: Teacher) -> tuple[Graded, Tensor, Tensor]:
    x, w = normed_ND.clone().requires_grad_(), lm_weight_VD.clone().requires_grad_()
    graded = grade(x, w, lessons, teacher, 0.8)
    (graded.loss / 17).backward()
    assert x.grad is not None
    assert w.grad is not None
    return graded, x.grad, w.grad


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    teacher, steps = teacher_of([0, 3, 5, 6, 7], torch.randn(VOCAB, WIDTH)), 3
    inputs = torch.randn(3 * 29, WIDTH), torch.randn(5, WIDTH), lessons_of(torch.randn(29, WIDTH), steps), teacher
    whole = both(*inputs)
    monkeypatch.setattr(loss, "CHUNK_FLOATS", 4 * steps * 5)
    parts = both(*inputs)
    torch.testing.assert_close(parts[0].loss, whole[0].loss)
    torch.testing.assert_close(parts[1:], whole[1:])
    assert torch.equal(parts[0].hits_JK, whole[0].hits_JK)
    assert math.isfinite(float(whole[0].loss.detach()))


def test_packing_says_who_teaches_whom() -> None:
    """Row by row: the output at step k of the chain at t stands under teacher t + 1 + k, and nothing else does."""
    rows = [random_row("..xxxx", 2, 9), random_row("...xxx", 2, 9)]
    packed = pack(rows, 3, torch.float32)
    assert packed.chains_Q.tolist() == [1, 2, 3, 6 + 2, 6 + 3]
    assert packed.teachers_J.tolist() == [2, 3, 4, 6 + 3, 6 + 4]
    pairs = {
        (int(packed.teachers_J[j]), k, int(packed.chains_Q[packed.pupils_JK[j, k] % 5]))
        for j, k in packed.taught_JK.nonzero().tolist()
    }
    chains = {(0, 1): 3, (0, 2): 2, (0, 3): 1, (6, 2): 2, (6, 3): 1}  # (start, t): steps with a lesson
    assert pairs == {(start + t + 1 + k, k, start + t) for (start, t), count in chains.items() for k in range(count)}
    # What step k embeds is the token after its position: x_{t+1+k}.
    for q, chain in enumerate(packed.chains_Q.tolist()):
        for k in range(3):
            if packed.supervised_KQ[k, q]:
                assert packed.tokens_KQ[k, q] == packed.ids_P[chain + 1 + k]
