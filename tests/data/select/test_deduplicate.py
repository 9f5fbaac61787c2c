import random
import subprocess
import sys

import numpy as np
import pytest
from tests.data.select.mixture import POOL, WORDS, draw

from eyas.data.select import deduplicate as dedupe
from eyas.data.select.deduplicate import NUM_ROWS, NearDuplicates, minhash_signature


def decide(tmp_path, signatures, piece=100, threshold=0.8):
    with NearDuplicates(tmp_path, threshold) as duplicates:
        for start in range(0, len(signatures), piece):
            duplicates.add(signatures[start : start + piece])
        return duplicates.find()


def by_the_rule(signatures, threshold=0.8):
    """Every record with every one that stays, in order: the rule itself, without buckets."""
    stay, goes = [], {}
    for record, rows in enumerate(signatures):
        near = np.flatnonzero((signatures[stay] == rows).mean(axis=1) >= threshold)
        if len(near):
            goes[record] = stay[near[0]]
        else:
            stay.append(record)
    return goes


def edited(rng, text):
    """A near-duplicate: one word in forty is another, and blanks and capitals differ."""
    words = text.split(" ")
    for _ in range(max(1, len(words) // 40)):
        words[rng.randrange(len(words))] = rng.choice(WORDS)
    return "  ".join(words).upper()


@pytest.fixture(scope="module")
def planted():
    """1,000 prompts and 400 near-duplicates of long ones among them, mixed; which is made from which."""
    rng = random.Random(1)
    texts, _ = draw(rng, 1000, POOL)
    long = [place for place, text in enumerate(texts) if len(text) > 250]
    made = [(rng.choice(long)) for _ in range(400)]
    texts += [edited(rng, texts[place]) for place in made]
    groups = [*range(1000), *made]
    order = list(range(len(texts)))
    rng.shuffle(order)
    return np.stack([minhash_signature([texts[place]]) for place in order]), [groups[place] for place in order]


def test_planted_near_duplicates_are_found_and_little_else(tmp_path, planted):
    signatures, groups = planted
    found = decide(tmp_path, signatures)
    wanted = {record for record, group in enumerate(groups) if group in groups[:record]}
    right = {later for later, earlier in found.tolist() if groups[later] == groups[earlier]}
    assert len(wanted) == 400
    assert len(right & wanted) >= 0.97 * len(wanted)
    wrong = {later for later, _ in found.tolist()} - right
    # What else goes are templates with one word changed, which the rule means too.
    assert wrong <= set(by_the_rule(signatures))


def test_the_rule_itself_says_the_same(tmp_path, planted):
    signatures, _ = planted
    for threshold in (0.75, 0.8, 1.0):
        assert dict(decide(tmp_path, signatures, threshold=threshold).tolist()) == by_the_rule(signatures, threshold)


def test_pieces_and_partitions_change_nothing(tmp_path, planted, monkeypatch):
    signatures, _ = planted
    whole = decide(tmp_path, signatures, piece=10_000)
    np.testing.assert_array_equal(decide(tmp_path, signatures, piece=7), whole)
    monkeypatch.setattr(dedupe, "PARTITION", 100)
    monkeypatch.setattr(dedupe, "BLOCK", 64)
    np.testing.assert_array_equal(decide(tmp_path, signatures), whole)
    assert list(tmp_path.iterdir()) == []  # nothing is left behind


def test_chains_end_at_a_record_that_stays(tmp_path):
    rows = np.arange(4 * NUM_ROWS, dtype=np.uint32).reshape(4, NUM_ROWS)
    rows[1, :110] = rows[0, :110]
    rows[2, 18:] = rows[1, 18:]  # near 1, which goes, and not near 0: it stays
    assert (rows[2] == rows[0]).mean() < 0.8
    rows[3] = rows[1]  # a copy of one that goes: it goes for the same reason
    assert decide(tmp_path, rows).tolist() == [[1, 0], [3, 0]]


def test_copies_always_go_and_there_may_be_many(tmp_path):
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 2**32, (300, NUM_ROWS), dtype=np.uint32)
    order = np.r_[np.arange(300), rng.integers(0, 300, 20_000)]
    found = decide(tmp_path, rows[order], piece=1000, threshold=1.0)
    assert len(found) == 20_000
    np.testing.assert_array_equal(found[:, 1], order[300:])


def test_none_and_one(tmp_path):
    assert decide(tmp_path, np.empty((0, NUM_ROWS), np.uint32)).shape == (0, 2)
    assert decide(tmp_path, np.zeros((1, NUM_ROWS), np.uint32)).shape == (0, 2)


def test_signatures():
    one = minhash_signature(["Write a poem about rain.", "Now in French."])
    assert one.dtype == np.uint32
    assert one.shape == (NUM_ROWS,)
    np.testing.assert_array_equal(one, minhash_signature([" write  a POEM about\nrain.", "now in french."]))
    assert (minhash_signature(["2+2"]) == minhash_signature(["2+3"])).mean() < 0.1  # shorter than a shingle
    assert (minhash_signature([""]) == minhash_signature([" \n"])).all()
    # Another release of the hash would make stored signatures useless: then this number changes.
    assert (
        int(minhash_signature(["The quick brown fox jumps over the lazy dog."]).astype(np.uint64).sum()) == 265274285014
    )


MEMORY = """
import resource, sys, tempfile
from pathlib import Path
import numpy as np
from eyas.data.select.deduplicate import NearDuplicates
rng = np.random.default_rng(0)
with tempfile.TemporaryDirectory() as scratch, NearDuplicates(Path(scratch)) as duplicates:
    for piece in range(int(sys.argv[1]) // 1000):
        rows = rng.integers(0, 2**32, (1000, 128), dtype=np.uint32)
        rows[900:] = rows[:100]
        rows[950:, :12] += 1
        duplicates.add(rows)
    found = duplicates.find()
assert len(found) == duplicates.num_records // 10, len(found)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_memory_does_not_grow_with_the_records():
    peaks = [
        int(
            subprocess.run(
                [sys.executable, "-c", MEMORY, str(number)], capture_output=True, text=True, check=True
            ).stdout
        )
        for number in (10_000, 60_000)
    ]
    assert peaks[1] - peaks[0] < 20_000, peaks  # kB; the signatures that were added are 26 MB
