import math

import pytest
import torch
from tests.features.small import random_row
from torch import Tensor

from eyas.model.vocab import DraftVocab
from eyas.train import loss
from eyas.train.loss import LossName, LossOutput, Teacher, TeacherTargets, compute_loss
from eyas.train.ttt import pack_rows

WIDTH, VOCAB = 6, 10


def teacher_of(t2d: list[int], weight_WD: Tensor) -> Teacher:
    counts_W = torch.zeros(VOCAB)
    counts_W[t2d] = 1
    output = torch.nn.Linear(WIDTH, VOCAB, bias=False)
    output.weight.data = weight_WD
    return Teacher(output, DraftVocab.from_counts(counts_W, len(t2d)), torch.float32)


def lessons_of(hidden_JD: Tensor, steps: int = 1) -> TeacherTargets:
    rows = hidden_JD.shape[0]
    pupils_JK = torch.arange(steps) * rows + torch.arange(rows)[:, None]
    return TeacherTargets(hidden_JD, pupils_JK, torch.ones(rows, steps, dtype=torch.bool))


def test_what_the_head_cannot_say_costs_no_loss_but_is_a_miss() -> None:
    weight_WD = torch.zeros(VOCAB, WIDTH)
    weight_WD[torch.arange(WIDTH), torch.arange(WIDTH)] = 50.0
    teacher = teacher_of([0, 1, 2], weight_WD)
    hidden_JD = torch.eye(WIDTH)[[0, 1, 4]]  # the third row says token 4, which is not in the draft vocabulary
    lm_weight_VD = (50.0 * torch.eye(WIDTH)[:3]).requires_grad_()
    pupils_ND = torch.eye(WIDTH)[[0, 2, 0]].requires_grad_()  # right, wrong, whatever
    graded = compute_loss(pupils_ND, lm_weight_VD, lessons_of(hidden_JD), teacher, 0.8)
    assert graded.hits_JK[:, 0].tolist() == [True, False, False]
    torch.testing.assert_close(graded.token_loss_JK[:, 0], torch.tensor([0.0, 50.0, 0.0]), atol=1e-4, rtol=0)
    torch.testing.assert_close(graded.overlap_JK[:, 0], torch.tensor([1.0, 0.0, 0.0]), atol=1e-4, rtol=0)
    graded.loss.backward()
    assert pupils_ND.grad is not None
    assert pupils_ND.grad[2].abs().sum() == 0
    assert pupils_ND.grad[1].abs().sum() > 0


def test_the_perfect_head_has_the_entropy_of_its_teacher() -> None:
    weight_WD = torch.randn(VOCAB, WIDTH)
    inside = [1, 4, 5, 8]
    teacher, hidden_JD = teacher_of(inside, weight_WD), torch.randn(40, WIDTH)
    graded = compute_loss(hidden_JD, weight_WD[inside], lessons_of(hidden_JD), teacher, 1.0)
    full_JW = (hidden_JD @ weight_WD.T).softmax(-1)
    p_JV = full_JW[:, inside] / full_JW[:, inside].sum(-1, keepdim=True)
    known_J = torch.tensor([int(best) in inside for best in full_JW.argmax(-1)])
    entropy_J = -(p_JV * p_JV.log()).sum(-1)
    torch.testing.assert_close(graded.token_loss_JK[:, 0], entropy_J * known_J, atol=1e-5, rtol=1e-5)
    assert graded.hits_JK[:, 0].tolist() == known_J.tolist()


def both(
    normed_ND: Tensor, lm_weight_VD: Tensor, lessons: TeacherTargets, teacher: Teacher
) -> tuple[LossOutput, Tensor, Tensor]:
    x, w = normed_ND.clone().requires_grad_(), lm_weight_VD.clone().requires_grad_()
    graded = compute_loss(x, w, lessons, teacher, 0.8)
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
    packed = pack_rows(rows, 3, torch.float32)
    assert packed.chains_Q.tolist() == [1, 2, 3, 6 + 2, 6 + 3]
    assert packed.teacher_rows_J.tolist() == [2, 3, 4, 6 + 3, 6 + 4]
    pairs = {
        (int(packed.teacher_rows_J[j]), k, int(packed.chains_Q[packed.student_index_JK[j, k] % 5]))
        for j, k in packed.supervised_JK.nonzero().tolist()
    }
    chains = {(0, 1): 3, (0, 2): 2, (0, 3): 1, (6, 2): 2, (6, 3): 1}  # (start, t): steps with a lesson
    assert pairs == {(start + t + 1 + k, k, start + t) for (start, t), count in chains.items() for k in range(count)}
    # What step k embeds is the token after its position: x_{t+1+k}.
    for q, chain in enumerate(packed.chains_Q.tolist()):
        for k in range(3):
            if packed.supervised_KQ[k, q]:
                assert packed.tokens_KQ[k, q] == packed.ids_P[chain + 1 + k]


# --- the other losses ------------------------------------------------------------------------------------------------

NAMES: tuple[LossName, ...] = ("soft", "kl", "lk", "lk_log")
INSIDE = [0, 2, 3, 5, 6, 7]


def wide_case(rows: int, steps: int) -> tuple[Tensor, Tensor, TeacherTargets, Tensor]:
    """float64: the head's outputs, its matrix, lessons of which one is not taught, the target's matrix."""
    weight_WD = torch.randn(VOCAB, WIDTH, dtype=torch.float64)
    lessons = lessons_of(torch.randn(rows, WIDTH, dtype=torch.float64), steps)
    lessons.supervised_JK[1, 0] = False
    normed_ND = torch.randn(rows * steps, WIDTH, dtype=torch.float64)
    return normed_ND, torch.randn(len(INSIDE), WIDTH, dtype=torch.float64), lessons, weight_WD


def wide_teacher(weight_WD: Tensor, inside: list[int]) -> Teacher:
    counts_W = torch.zeros(VOCAB)
    counts_W[inside] = 1
    output = torch.nn.Linear(WIDTH, VOCAB, bias=False, dtype=torch.float64)
    output.weight.data = weight_WD
    return Teacher(output, DraftVocab.from_counts(counts_W, len(inside)), torch.float64)


def naive(name: LossName, p: list[float], q: list[float]) -> float:
    """One position, p not renormalised, as the papers write it."""
    mass = sum(p)
    if name == "soft":
        return -sum(pv / mass * math.log(qv) for pv, qv in zip(p, q, strict=True))
    if name == "kl":
        return sum(pv / mass * math.log(pv / mass / qv) for pv, qv in zip(p, q, strict=True))
    accepted = sum(min(pv, qv) for pv, qv in zip(p, q, strict=True))
    return -accepted if name == "lk" else -math.log(accepted)


@pytest.mark.parametrize("name", NAMES)
def test_each_loss_is_its_formula(name: LossName) -> None:
    rows, steps = 12, 3
    normed_ND, lm_weight_VD, lessons, weight_WD = wide_case(rows, steps)
    graded = compute_loss(normed_ND, lm_weight_VD, lessons, wide_teacher(weight_WD, INSIDE), 0.8, name)
    total, learnt = 0.0, 0
    for row in range(rows):
        full = (weight_WD @ lessons.hidden_JD[row]).softmax(0)
        for step in range(steps):
            wanted = 0.0
            if lessons.supervised_JK[row, step] and int(full.argmax()) in INSIDE:
                student = (lm_weight_VD @ normed_ND[lessons.student_index_JK[row, step]]).softmax(0)
                wanted = naive(name, full[INSIDE].tolist(), student.tolist())
                learnt += 1
            assert float(graded.token_loss_JK[row, step]) == pytest.approx(wanted, rel=1e-12, abs=1e-14)
            total += 0.8**step * wanted
    assert float(graded.loss) == pytest.approx(total, rel=1e-12)
    assert 0 < learnt < rows * steps - 1, "some teachers are to be outside the draft vocabulary"


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_those_of_the_loss(name: LossName, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss, "CHUNK_FLOATS", 2 * 3 * len(INSIDE))  # more than one chunk
    normed_ND, lm_weight_VD, lessons, weight_WD = wide_case(5, 3)
    teacher = wide_teacher(weight_WD, INSIDE)

    def loss_of(x_ND: Tensor, w_VD: Tensor) -> Tensor:
        return compute_loss(x_ND, w_VD, lessons, teacher, 0.8, name).loss

    assert torch.autograd.gradcheck(loss_of, (normed_ND.requires_grad_(), lm_weight_VD.requires_grad_()))


def test_kl_trains_as_soft_does() -> None:
    normed_ND, lm_weight_VD, lessons, weight_WD = wide_case(8, 2)
    teacher = wide_teacher(weight_WD, INSIDE)
    slopes = []
    for name in ("soft", "kl"):
        x_ND, w_VD = normed_ND.clone().requires_grad_(), lm_weight_VD.clone().requires_grad_()
        compute_loss(x_ND, w_VD, lessons, teacher, 0.8, name).loss.backward()
        slopes.append((x_ND.grad, w_VD.grad))
    assert all(torch.equal(one, other) for one, other in zip(*slopes, strict=True))


@pytest.mark.parametrize(("inside", "name"), [(list(range(VOCAB)), "lk"), (INSIDE, "lk"), (INSIDE, "lk_log")])
def test_the_teacher_itself_is_the_best_head_for_acceptance(inside: list[int], name: LossName) -> None:
    """q = p / mass accepts all that p has inside the draft vocabulary; nothing beside it accepts more."""
    weight_WD = torch.randn(VOCAB, WIDTH, dtype=torch.float64)
    teacher, hidden_JD = wide_teacher(weight_WD, inside), torch.randn(30, WIDTH, dtype=torch.float64)
    lessons, full_JW = lessons_of(hidden_JD), (hidden_JD @ weight_WD.T).softmax(-1)
    known_J = torch.tensor([int(best) in inside for best in full_JW.argmax(-1)])
    mass_J = full_JW[:, inside].sum(-1) * known_J
    best = compute_loss(hidden_JD, weight_WD[inside], lessons, teacher, 1.0, name)
    torch.testing.assert_close(best.token_loss_JK[:, 0], -mass_J if name == "lk" else -mass_J.where(known_J, 1.0).log())
    for scale in (1e-3, 0.1, 1.0):
        moved_ND = hidden_JD + scale * torch.randn_like(hidden_JD)
        other = compute_loss(moved_ND, weight_WD[inside], lessons, teacher, 1.0, name)
        assert (other.token_loss_JK >= best.token_loss_JK - 1e-12).all()
        assert other.loss > best.loss or inside is INSIDE
    if inside is INSIDE:  # q lies above p everywhere: the best heads are a whole region
        moved_ND = hidden_JD.clone().requires_grad_()
        compute_loss(moved_ND, weight_WD[inside], lessons, teacher, 1.0, name).loss.backward()
        assert moved_ND.grad is not None
        assert moved_ND.grad.abs().max() < 1e-12


def test_a_head_that_is_sure_of_the_wrong_token_is_taught_by_lk_log_alone() -> None:
    """lk's gradient has gone with q; lk_log's is that of cross-entropy. Where q rounds to nothing all stays finite."""
    teacher = teacher_of([0, 1, 2], torch.eye(VOCAB, WIDTH) * 60.0)
    lessons, slopes = lessons_of(torch.eye(WIDTH)[[0]]), {}
    for name in NAMES:
        for gap in (30.0, 200.0):
            pupil_ND = torch.eye(WIDTH)[[1]].requires_grad_()
            graded = compute_loss(pupil_ND, gap * torch.eye(WIDTH)[:3], lessons, teacher, 1.0, name)
            graded.loss.backward()
            assert pupil_ND.grad is not None
            assert torch.isfinite(graded.loss)
            assert torch.isfinite(pupil_ND.grad).all()
            slopes[name, gap] = pupil_ND.grad
    assert slopes["lk", 30.0].abs().max() < 1e-10
    torch.testing.assert_close(slopes["lk_log", 30.0], slopes["soft", 30.0])
