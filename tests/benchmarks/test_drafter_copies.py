"""The benchmark of copies: what a warm index copies from, and which sets need no file."""

from pathlib import Path

from drafter_copies import LOOPS, NUM_LOOPS, WarmFinder, forced_prompts, read_pairs, replay

from eyas.model.target import Target
from eyas.model.target_dir import EMBEDDED
from eyas.speculation.copy_index import CopyFinder, CopyIndex


def test_a_warm_index_has_the_outputs_from_before_and_no_other() -> None:
    told = [5, 6, 7, 8, 9, 10, 11, 12]
    warm, cold = WarmFinder([told]), CopyFinder(0)
    asked = [1, 2, 3, 4]
    assert replay(warm, asked, told)[1] < replay(cold, asked, told)[1] == len(told) - 1
    other = [21, 22, 23, 24]
    warm.store("tenant", "1", other)
    assert warm.propose(CopyIndex(), [1, 21, 22], "", 0) is None, "an output of the measurement is not copied"


def test_tool_loops_are_forced_without_a_file(tmp_path: Path) -> None:
    assert len(read_pairs(tmp_path, LOOPS)) == NUM_LOOPS
    prompts, forced, others = forced_prompts(tmp_path, Target.load(EMBEDDED), LOOPS)
    assert prompts
    assert len(prompts) + len(others) == NUM_LOOPS
    assert all(list(forced.answers[prompt.ids]) not in [list(other) for other in others] for prompt in prompts)
