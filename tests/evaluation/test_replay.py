from collections.abc import Sequence

import torch
from engine_checks import check_tree
from tests.features.small import mask, random_row
from tests.train.test_reference import CONFIG, DRAFT, VOCAB, WIDTH

from eyas.evaluation.head_drafter import HeadDrafter
from eyas.evaluation.replay import AnswerSpan, find_answers, replay_answers
from eyas.features.layout import Row
from eyas.model.attention import DenseAttention
from eyas.model.head import Head
from eyas.model.vocab import DraftVocab
from eyas.tree.shape import TreeShape, chain_shape
from eyas.tree.tree import Tree


class Script:
    """Proposes chains written down beforehand, by position."""

    def __init__(self, chains: dict[int, list[int]], depth: int) -> None:
        self.chains, self.depth, self.asked = chains, depth, []

    def draft(self, texts: Sequence[int], positions: Sequence[int]) -> Tree:
        self.asked.append(list(positions))
        tokens = torch.zeros(len(positions), self.depth + 1, dtype=torch.int64)
        lengths = torch.zeros(len(positions), 1, dtype=torch.int64)
        for slot, position in enumerate(positions):
            proposal = self.chains.get(position, [])
            tokens[slot, 1 : 1 + len(proposal)] = torch.tensor(proposal)
            lengths[slot] = 1 + len(proposal)
        return Tree.from_chains(tokens, torch.arange(self.depth + 1) < lengths)


def test_rounds_are_those_of_generation() -> None:
    #            0  1  2  3  4  5  6  7  8   answer = tokens 3..9, the first of them from prefill
    ids_T = torch.tensor([9, 9, 9, 3, 4, 5, 6, 7, 8, 2])
    chains = {
        2: [4, 5, 1],  # root 3: 4 and 5 right, 1 refused, bonus 6        accepted 3, offered 3
        5: [],  # root 6: nothing proposed, bonus 7                       accepted 1, offered 0
        6: [8, 2, 1],  # root 7: 8 and the end; what follows is cut       accepted 2, offered 1
    }
    script = Script(chains, 3)
    (rounds,) = replay_answers([AnswerSpan(0, ids_T, 3, 10)], script)
    assert script.asked == [[2], [5], [6]]
    assert rounds.accepted == (3, 1, 2)
    assert rounds.offered == (3, 0, 1)
    assert sum(rounds.accepted) == 6, "the answer but for its first token"


def test_answers_are_runs_of_generated_tokens() -> None:
    ids_T = torch.arange(9)
    found = [(answer.start, answer.end) for answer in find_answers(0, ids_T, mask("..xxx..xx"))]
    assert found == [(2, 5), (7, 9)]
    assert find_answers(0, ids_T[:2], mask("..")) == []
    # One token needs no round, two need one.
    assert replay_answers([AnswerSpan(0, ids_T, 7, 8)], Script({}, 2))[0].accepted == ()
    assert replay_answers([AnswerSpan(0, ids_T, 7, 9)], Script({}, 2))[0].accepted == (1,)


def test_answers_of_different_length_move_together() -> None:
    ids_T = torch.arange(20)
    script = Script({2: [4, 5]}, 2)
    first, second = replay_answers([AnswerSpan(0, ids_T, 3, 7), AnswerSpan(1, ids_T, 10, 13)], script)
    assert script.asked == [[2, 9], [10]]
    assert (first.accepted, second.accepted) == ((3,), (1, 1))


def random_head() -> Head:
    head = Head.init(CONFIG, 0, torch.float64)
    with torch.no_grad():
        for weight in head.parameters():
            weight.copy_(torch.randn_like(weight) * 0.4 + (weight.ndim == 1))
    return head


@torch.no_grad()
def test_the_head_drafts_the_same_tree_alone_and_in_a_padded_group() -> None:
    """Against a reference without batch, tree or mask: each path has the probability of feeding it as a chain."""
    head, embedding = random_head(), torch.randn(VOCAB, WIDTH, dtype=torch.float64)
    vocab = DraftVocab.from_counts(torch.rand(VOCAB), DRAFT)
    rows = [random_row(picture, WIDTH, VOCAB, torch.float64) for picture in ("..xxxxxx", "...xxxxxxxxx")]
    drafter = HeadDrafter(head, vocab, lambda ids: embedding[ids], TreeShape(4, 3, 14), rows)
    positions = [3, 6]
    tree = drafter.draft([0, 1], positions)
    check_tree(tree)
    for slot, (row, t) in enumerate(zip(rows, positions, strict=True)):
        assert tree.tokens_BM[slot, 0] == row.ids_T[t + 1]
        for node in range(1, 14):
            path, up = [], node
            while up:
                path.insert(0, int(tree.tokens_BM[slot, up]))
                up = int(tree.parents_BM[slot, up])
            wanted = chain_log_prob(head, vocab, embedding, row, t, path)
            torch.testing.assert_close(float(tree.scores_BM[slot, node]), wanted, atol=1e-5, rtol=0)


def chain_log_prob(head: Head, vocab: DraftVocab, embedding: torch.Tensor, row: Row, t: int, path: list[int]) -> float:
    attend, ids_T = DenseAttention(), row.ids_T[1 : t + 2]
    out = head.step(embedding[ids_T][None], head.fuse_aux(row.aux_TL[None, : t + 1]), torch.arange(t + 1)[None], attend)
    total = 0.0
    for step, token in enumerate(path):
        log_probs = head.logits(out[:, -1:])[0, 0].log_softmax(0)
        total += float(log_probs[vocab.to_draft(torch.tensor(token))[0]])
        out = head.step(embedding[[token]][None], head.next_hidden(out[:, -1:]), torch.tensor([[t + 1 + step]]), attend)
    return total


@torch.no_grad()
def test_a_chain_is_accepted_as_far_as_greedy_drafts_equal_the_text() -> None:
    """Against asking for every token's probability, one chain at a time."""
    head, embedding = random_head(), torch.randn(VOCAB, WIDTH, dtype=torch.float64)
    vocab = DraftVocab.from_counts(torch.rand(VOCAB), DRAFT)
    row = random_row("..." + "x" * 40, WIDTH, VOCAB, torch.float64)
    drafter = HeadDrafter(head, vocab, lambda ids: embedding[ids], chain_shape(3), [row])
    (rounds,) = replay_answers(find_answers(0, row.ids_T, row.loss_mask_T), drafter)
    t, ids, known = 2, row.ids_T.tolist(), vocab.target_ids_V.tolist()
    for accepted in rounds.accepted:
        agreed = 0
        while agreed < 3 and t + 2 + agreed < len(ids) - 1:
            path = [*ids[t + 2 : t + 2 + agreed]]
            scores = [chain_log_prob(head, vocab, embedding, row, t, [*path, token]) for token in known]
            if known[scores.index(max(scores))] != ids[t + 2 + agreed]:
                break
            agreed += 1
        assert accepted == min(agreed + 1, len(ids) - 2 - t)
        t += accepted
    assert t == len(ids) - 2
    assert max(rounds.accepted) > 1, "no draft was ever right: the test shows little"
