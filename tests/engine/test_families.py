"""The engine over every family of the docs' table: greedy float32 answers are those of `generate`."""

from pathlib import Path

import pytest
from tests.engine.small import CONTEXT, drive, random_draft, replay_engine, speak, tokens
from tests.model.families import FAMILIES, family_target

from eyas.engine.engine import Engine
from eyas.tree.shape import TreeShape

TREE = TreeShape(4, 3, 12)


@pytest.mark.parametrize("name", [family.name for family in FAMILIES])
def test_the_same_words_with_and_without_a_head(name: str, tmp_path: Path) -> None:
    """A head that knows nothing, and drafts that are right down to a random depth; three requests at a time."""
    spoken = speak(family_target(tmp_path, name, layers=4), count=5)  # a prompt of 380 tokens is the fifth
    assert tokens(drive(Engine(spoken.target, (), 3, CONTEXT), spoken.requests)) == spoken.answers
    random = Engine(spoken.target, [random_draft(spoken.target, TREE)], 3, CONTEXT)
    assert tokens(drive(random, spoken.requests)) == spoken.answers
    assert tokens(drive(replay_engine(spoken, TREE, 3), spoken.requests)) == spoken.answers
