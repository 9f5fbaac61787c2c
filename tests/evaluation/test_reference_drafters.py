import torch
from tests.features.small import mask

from eyas.evaluation.reference_drafters import NgramDrafter, NgramTable, PromptLookup
from eyas.evaluation.replay import find_answers, replay_answers


def proposal(drafter: PromptLookup | NgramDrafter, position: int) -> list[int]:
    tree = drafter.draft([0], [position])
    return tree.tokens_BM[0][tree.valid_BM[0]].tolist()


def test_lookup_prefers_the_longest_match_and_then_the_latest() -> None:
    #                     0  1  2  3  4  5  6  7  8  9  10 11
    text = torch.tensor([[1, 2, 3, 7, 8, 2, 3, 9, 1, 2, 3, 5]])
    # Committed up to token 10: "1 2 3" occurred at 0 and was followed by 7, though "2 3" was followed by 9 later.
    assert proposal(PromptLookup(list(text), 3), 9) == [3, 7, 8, 2]
    # Committed up to 6, "7 8 2" and "8 2 3" never before; "2 3" was, at 1.
    assert proposal(PromptLookup(list(text), 3), 5) == [3, 7, 8, 2]
    # Committed up to 9: "2" alone occurred at 1 and at 5; "9 1 2" never, "1 2" at 0.
    assert proposal(PromptLookup(list(text), 2), 8) == [2, 3, 7]
    # Committed up to 4: nothing matches.
    assert proposal(PromptLookup(list(text), 3), 3) == [8]


def test_lookup_does_not_look_ahead() -> None:
    text = torch.tensor([5, 6, 5, 6, 1, 1])
    assert proposal(PromptLookup([text], 4), 2) == [6, 5, 6]
    other = torch.tensor([5, 6, 5, 6, 2, 2])
    assert proposal(PromptLookup([other], 4), 2) == [6, 5, 6]


def test_lookup_remembers_what_it_has_read() -> None:
    torch.manual_seed(0)
    text = torch.randint(0, 4, (200,))
    drafter = PromptLookup([text], 5)
    for position in range(0, 190, 3):
        assert proposal(drafter, position) == proposal(PromptLookup([text], 5), position)


def test_table_takes_the_most_frequent_and_of_ties_the_smallest() -> None:
    rows = [
        (torch.tensor([1, 2, 3, 4, 5]), mask("...xx")),
        (torch.tensor([1, 2, 3, 6, 7]), mask("...xx")),
        (torch.tensor([0, 2, 3, 6, 9]), mask("....x")),
    ]
    table = NgramTable(rows)
    assert table.continue_chain([1, 2, 3], 4) == [4, 5]  # 4 and 6 once each; after "3 4 5" nothing is known
    assert table.continue_chain([2, 3, 6], 4) == [7]  # 7 and 9 once each
    assert table.continue_chain([0, 2, 3], 4) == []  # the 6 there was prompt
    table = NgramTable([*rows, rows[1]])
    assert table.continue_chain([1, 2, 3], 4) == [6, 7]
    assert table.continue_chain([1, 2, 3], 1) == [6]


def test_both_walk_a_text_to_its_end() -> None:
    ids_T = torch.tensor([1, 2, 3, 4] * 10)
    mask_T = mask("." * 8 + "x" * 32)
    (answer,) = find_answers(0, ids_T, mask_T)
    (lookup,) = replay_answers([answer], PromptLookup([ids_T], 4))
    # 31 tokens after the first: five a round, and a last round of one.
    assert lookup.accepted == (5, 5, 5, 5, 5, 5, 1)
    (table,) = replay_answers([answer], NgramDrafter(NgramTable([(ids_T, mask_T)]), [ids_T], 2))
    assert table.accepted == (3,) * 10 + (1,)
