"""d2t and t2d of a file, of which one may be missing and the other of another meaning. V draft, W target vocabulary.

    target token   0  1  2  3  4  5  6
    t2d            .  x  .  x  x  .  x     which of them the head drafts
    offset         1     2  2     3        target - draft: what SGLang and vLLM read (facts B.6)
    absolute       1     3  4     6        the target tokens themselves: written by mistake

With t2d the two are told apart by it. Without, by what could be true: target tokens are all different and below W.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from eyas.formats.finding import Finding
from eyas.model.vocab import DraftVocab

OFFSET, ABSOLUTE = "offsets", "target ids"


@dataclass(frozen=True)
class ReadVocab:
    """vocab None: the findings say why not. order_V: how the rows of lm_head have to be sorted; None: they are."""

    vocab: DraftVocab | None
    findings: tuple[Finding, ...] = ()
    order_V: Tensor | None = None


def read_vocab(d2t: Tensor | None, t2d: Tensor | None, num_draft: int, num_target: int) -> ReadVocab:
    """The draft vocabulary that the two tensors mean, as far as they are there."""
    for name, found, size in (("d2t", d2t, num_draft), ("t2d", t2d, num_target)):
        if found is not None and found.shape != (size,):
            return _no(f"{name} of shape {list(found.shape)}", f"shape [{size}]")
    if d2t is None and t2d is None:
        if num_draft == num_target:
            return ReadVocab(_vocab(torch.arange(num_target), num_target))
        return _no("no tensor d2t", f"d2t of shape [{num_draft}], or t2d of shape [{num_target}]")
    if t2d is not None:
        return _with_t2d(d2t, t2d.bool(), num_draft)
    assert d2t is not None, "one of them is there"
    return _without_t2d(d2t.long(), num_draft, num_target)


def _with_t2d(d2t: Tensor | None, t2d_W: Tensor, num_draft: int) -> ReadVocab:
    chosen_V = t2d_W.nonzero()[:, 0]
    if len(chosen_V) != num_draft:
        return _no(f"t2d that marks {len(chosen_V)} tokens", f"{num_draft}, the draft vocabulary")
    vocab = _vocab(chosen_V, len(t2d_W))
    if d2t is None:
        return ReadVocab(vocab, (Finding("warning", "no tensor d2t", "offsets: SGLang and vLLM draft wrong tokens"),))
    d2t = d2t.long()
    targets_V = d2t + torch.arange(num_draft)
    for meaning, ids_V in ((OFFSET, targets_V), (ABSOLUTE, d2t)):
        if torch.equal(ids_V.sort().values, chosen_V):
            order_V = None if torch.equal(ids_V, chosen_V) else ids_V.argsort()
            return ReadVocab(vocab, _told(meaning, order_V), order_V)
    wrong = int((targets_V != chosen_V).nonzero()[0, 0])
    found = f"d2t that sends draft token {wrong} to target token {int(targets_V[wrong])}"
    return _no(found, f"target token {int(chosen_V[wrong])}, which t2d says")


def _without_t2d(d2t_V: Tensor, num_draft: int, num_target: int) -> ReadVocab:
    meant = {OFFSET: d2t_V + torch.arange(num_draft), ABSOLUTE: d2t_V}
    problems = {meaning: _problem(ids_V, num_target) for meaning, ids_V in meant.items()}
    possible = [meaning for meaning, problem in problems.items() if problem is None]
    if len(possible) == 2:
        found = "d2t without t2d whose numbers may be offsets or target ids"
        return _no(found, "numbers that only one of them can be, or t2d", "add t2d from the training run")
    if not possible:
        said = " and ".join(f"{problem} as {meaning}" for meaning, problem in problems.items())
        return _no(f"d2t with {said}", f"different target tokens below {num_target}")
    ids_V = meant[possible[0]]
    order_V = None if bool((ids_V[1:] > ids_V[:-1]).all()) else ids_V.argsort()
    derived = Finding("ok", "no tensor t2d", "made from d2t, as the engines do without it")
    findings = (derived, *_told(possible[0], order_V))
    if num_draft < num_target and not d2t_V.any():
        findings += (Finding("warning", f"d2t of zeros, the first {num_draft} target tokens", "frequent tokens"),)
    return ReadVocab(_vocab(ids_V.sort().values, num_target), findings, order_V)


def _problem(ids_V: Tensor, num_target: int) -> str | None:
    low, high = int(ids_V.min()), int(ids_V.max())
    if low < 0 or high >= num_target:
        return f"target token {low if low < 0 else high} of {num_target}"
    num_twice = len(ids_V) - len(ids_V.unique())
    return f"{num_twice} target tokens that come twice" if num_twice else None


def _told(meaning: str, order_V: Tensor | None) -> tuple[Finding, ...]:
    found: list[Finding] = []
    if meaning == ABSOLUTE:
        expected = "offsets (target id - draft id), for SGLang and vLLM add the draft id to them"
        found.append(Finding("warning", "d2t that holds target ids", expected, "`eyas export` writes offsets"))
    if order_V is not None:
        found.append(Finding("warning", "d2t that is not in ascending order", "ascending target ids, as t2d has them"))
    return tuple(found)


def _vocab(chosen_V: Tensor, num_target: int) -> DraftVocab:
    t2d_W = torch.zeros(num_target, dtype=torch.bool)
    t2d_W[chosen_V] = True
    return DraftVocab(chosen_V - torch.arange(len(chosen_V)), t2d_W)


def _no(found: str, expected: str, do: str | None = None) -> ReadVocab:
    return ReadVocab(None, (Finding("misfit", found, expected, do),))
