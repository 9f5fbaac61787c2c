"""A replay with copies counts the rounds of an engine that drafts copies, alone and beside the trees of a head."""

import pytest
import torch
from drafter_copies import Forced
from tests.engine.small import CONTEXT, Spoken, random_draft, row_of
from tests.engine.test_copies import TREE, CopiesInTurn

from eyas.engine.engine import Engine
from eyas.engine.loops import RequestList, plain_loop
from eyas.engine.request import Request
from eyas.evaluation.copy_replay import CopyReplay
from eyas.evaluation.head_drafter import HeadDrafter
from eyas.speculation.arms import Arm
from eyas.speculation.batch_load import CopyChoice
from eyas.speculation.copy_index import CopyFinder
from eyas.tree.shape import TreeShape

PROMPTS, LENGTH = 6, 40  # tokens


def repeat_prompts() -> list[tuple[list[int], list[int]]]:
    """Returns prompts of random tokens, and answers that repeat parts of them and change some tokens."""
    generator = torch.Generator().manual_seed(5)
    texts = []
    for number in range(PROMPTS):
        prompt = torch.randint(0, 256, (LENGTH,), generator=generator).tolist()
        answer = [*prompt[3 : 18 + number], 286, *prompt[10:24], 270 + number, 287, *prompt[20:36]]
        texts.append((prompt, answer))
    return texts


@pytest.mark.parametrize(("choice", "tree"), [("alone", None), ("beside", TREE)])
@torch.inference_mode()
def test_a_replay_counts_the_rounds_of_serving(llama: Spoken, choice: CopyChoice, tree: TreeShape | None) -> None:
    target, draft = llama.target, random_draft(llama.target, TREE)
    texts = repeat_prompts()
    engine = Engine(target, [draft], 1, CONTEXT, copies=CopyFinder(0))
    Forced({tuple(prompt): answer for prompt, answer in texts}).on(engine)
    policy = CopiesInTurn((choice,))
    policy._turns = iter(lambda: (Arm("tree", TREE), choice), None)  # the same choice in every round
    engine.policies[0] = policy
    requests = [Request(str(n), tuple(prompt), len(answer)) for n, (prompt, answer) in enumerate(texts)]
    served = {output.request.id: output.rounds for output in plain_loop(engine, RequestList(requests))}

    replay = CopyReplay(1, 0.0, tree)
    for prompt, answer in texts:
        row = row_of(target, [*prompt, *answer], len(prompt))
        head = HeadDrafter(draft.head, draft.vocab, target.embed, TREE, [row])
        replay.run([row], None if tree is None else head)
    assert [rounds.accepted for rounds in replay.rounds] == [served[request.id].accepted for request in requests]
    assert replay.num_rounds == sum(len(rounds.accepted) for rounds in replay.rounds)
    assert 0 < replay.num_copies < replay.num_rounds
    assert max(max(rounds.accepted) for rounds in replay.rounds) > 5
    assert (replay.num_rows > replay.num_copies) == (tree is None), "beside a tree, most copies take rows of its nodes"
