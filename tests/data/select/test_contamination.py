import gzip
import json
import pickle
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from make_contamination import NGRAM_SIZES, hash_records, to_bytes

from eyas.base.errors import InputError
from eyas.data.select.contamination import ALL_EVALSETS, EVALSET_FILES, NGRAM_SIZE, ContaminationFilter
from eyas.evalsets import FAMILIES, example
from eyas.evalsets import ngram_hashes as ngrams
from eyas.evalsets.ngram_hashes import HASHES, hash_ngrams, hash_record, hash_words

TOOL = Path(__file__).parents[3] / "tools" / "make_contamination.py"
# The first question of GSM8K's test set (openai/grade-school-math, MIT), a turn of MT-bench (lm-sys/FastChat,
# Apache-2.0) and a prompt of HumanEval (openai/human-eval, MIT).
GSM8K = (
    "Janet’s ducks lay 16 eggs per day. She eats three for breakfast every morning and bakes muffins for her friends "
    "every day with four. She sells the remainder at the farmers' market daily for $2 per fresh duck egg. How much in "
    "dollars does she make every day at the farmers' market?"
)
MT_BENCH = (
    "Compose an engaging travel blog post about a recent trip to Hawaii, highlighting cultural experiences and must-see"
    " attractions."
)
HUMANEVAL = "Check if in given list of numbers, are any two numbers closer to each other than\n    given threshold."
CLEAN = [
    "A baker sells 16 rolls a day and eats three. How many rolls are left at the end of a week of seven days?",
    "Write a travel blog post about a mountain village in winter, and mention what one can eat there.",
    "Print the numbers 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24.",
    "from typing import List\n\n\ndef first(numbers: List[int]) -> int:\n",
    "",
]


def users(split, family, index):
    return [m["content"] for m in example(family, split, index).messages if m["role"] == "user"]


@pytest.fixture(scope="module")
def guard():
    return ContaminationFilter.load()


def test_public_sets_are_known(guard):
    assert guard.find_evalset([GSM8K]) == "gsm8k-test"
    assert guard.find_evalset([MT_BENCH]) == "mt-bench"
    assert guard.find_evalset([HUMANEVAL]) == "humaneval"
    assert guard.find_evalset(["Something else.", GSM8K]) == "gsm8k-test"
    assert guard.find_evalset(["Now, explain them again like I'm five."]) == "mt-bench"  # shorter than n: whole
    assert guard.find_evalset(["Please now explain them again like I'm five."]) is None


def test_quotes_and_other_spellings_are_found_and_good_prompts_stay(guard):
    part = " ".join(GSM8K.split()[3:20])
    assert guard.find_evalset([f"My homework says: {part.upper()} -- so what now?"]) == "gsm8k-test"
    assert guard.find_evalset([part.replace(" ", "\n\t")]) == "gsm8k-test"
    assert [text for text in CLEAN if guard.find_evalset([text])] == []


def test_ten_equal_words_are_too_few(guard):
    part = "I say: " + " ".join(GSM8K.split()[8:18]) + " and no more"
    assert guard.find_evalset([part]) is None


def test_our_own_evaluation_prompts_are_guarded(guard):
    for family in FAMILIES:
        assert guard.find_evalset(users("eval", family, 3)) == "eyas-eval"
        assert guard.find_evalset(users("eval", family, 249)) == "eyas-eval"
    # The other splits share phrases with it, and stay.
    others = [
        users(split, family, index) for split in ("train", "quickstart") for family in FAMILIES for index in range(40)
    ]
    assert [texts for texts in others if guard.find_evalset(texts)] == []


def test_names(guard):
    spec_bench = ContaminationFilter.load(["spec-bench"])
    assert [one.name for one in spec_bench.sets] == ["mt-bench", "gsm8k-test"]
    assert [one.name for one in guard.sets] == ["mt-bench", "humaneval", "gsm8k-test", "eyas-eval"]
    assert ContaminationFilter.load([]).find_evalset([GSM8K]) is None
    assert set(EVALSET_FILES) == set(ALL_EVALSETS)


def test_a_file_of_the_users(tmp_path):
    text = "Our own secret exam asks which of the four seasons the painter of the blue house likes least, and why."
    lines = tmp_path / "exam.jsonl"
    lines.write_text(json.dumps({"messages": [{"role": "user", "content": text}]}) + '\n\n{"prompt": "short one"}\n')
    plain = tmp_path / "exam.txt"
    plain.write_text(f"{text}\n\nshort one\n")
    packed = tmp_path / "exam.jsonl.gz"
    packed.write_bytes(gzip.compress(lines.read_bytes()))
    for path in (lines, plain, packed):
        guard = ContaminationFilter.load([], [str(path)])
        assert guard.find_evalset(["Well: " + text]) == path.name
        assert guard.find_evalset(["Short one!"]) == path.name
        assert guard.find_evalset(["a short one"]) is None
        ngrams_of_text = hash_ngrams(hash_words([text])[0], NGRAM_SIZE)
        assert len(guard.sets[0].hashes[NGRAM_SIZE]) == len(set(ngrams_of_text.tolist())) + 1
        assert text[:10].encode() not in pickle.dumps(guard)


@pytest.mark.parametrize("content", ["not json\n", '{"unknown": 1}\n', "[1]\n"])
def test_a_file_with_a_bad_line_is_refused_without_quoting_it(tmp_path, content):
    path = tmp_path / "exam.jsonl"
    path.write_text('{"prompt": "a"}\n' + content)
    with pytest.raises(InputError, match=r"exam\.jsonl:2 holds no prompt") as caught:
        ContaminationFilter.load([], [str(path)])
    assert content.strip() not in str(caught.value)


def test_a_file_that_is_missing_or_empty(tmp_path):
    with pytest.raises(InputError, match="No prompt file matches"):
        ContaminationFilter.load([], [str(tmp_path / "nothing.jsonl")])
    (tmp_path / "empty.txt").write_text("\n ?! \n")
    with pytest.raises(InputError, match="no evaluation prompt"):
        ContaminationFilter.load([], [str(tmp_path / "empty.txt")])


@pytest.mark.parametrize("name", ["exam.parquet", "exam.jsonl.GZ", "exam.pdf"])
def test_a_file_that_cannot_be_read_is_refused_for_it_would_guard_nothing(tmp_path, name):
    (tmp_path / name).write_bytes(b"PAR1 no words of a prompt")
    with pytest.raises(InputError, match=r"exam\."):
        ContaminationFilter.load([], [str(tmp_path / name)])


def test_ngrams_are_those_of_the_definition():
    text = "The quick brown Fox jumps over the lazy dog; the dog sleeps on and on."
    words = hash_words([text])[0]
    assert len(words) == 15
    same = {tuple(text.lower().replace(";", "").replace(".", "").split()[i : i + 8]) for i in range(8)}
    assert len(set(hash_ngrams(words, 8).tolist())) == len(same) == 8
    # A piece of eight words has the hash that it has in the text; another length, order or number of words has not.
    assert hash_ngrams(hash_words(["quick BROWN fox jumps over the lazy dog"])[0], 8)[0] == hash_ngrams(words, 8)[1]
    assert hash_ngrams(words[::-1], 8)[0] not in hash_ngrams(words, 8)
    assert hash_record([words[:5], words[5:]]) == hash_record([words])
    assert hash_record([words[:8]]) == hash_ngrams(words, 8)[0]
    # Numbers and single letters alone are no n-gram that counts; characters of Japanese are words.
    assert len(hash_ngrams(hash_words(["1 2 3 4 5 6 7 8 a b c d"])[0], 8)) == 0
    assert len(hash_words(["東京は今何時ですか"])[0]) == 9
    assert len(hash_words(["ｆｕｌｌ width １２"])[0]) == 3


def test_hashes_stay_what_they_are():
    # Another value would make every file of hashes useless.
    assert [hex(value) for value in hash_ngrams(hash_words(["Does it rain in May?"])[0], 4).tolist()] == [
        "0xfcecdcdce58ec8ec",
        "0x875236286b36335b",
    ]


def test_files_of_hashes(tmp_path):
    made = hash_records("mine", [["one two three four five six seven eight nine"], ["a"]])
    path = tmp_path / "mine.bin"
    path.write_bytes(to_bytes(made))
    again = ngrams.read_file(path)
    assert (again.name, again.unit, again.header["records"]) == ("mine", "ngram", 2)
    for n in NGRAM_SIZES:
        np.testing.assert_array_equal(again.hashes[n], made.hashes[n])
        assert (np.diff(again.hashes[n].astype(object)) > 0).all()
    for damage in (to_bytes(made)[:-3], to_bytes(made)[:-8], b"{}\n", b"\xff\n", b""):
        path.write_bytes(damage)
        with pytest.raises(InputError, match=r"mine\.bin"):
            ngrams.read_file(path)


def test_the_files_that_ship_are_whole_and_hold_no_text(guard):
    assert sum(path.stat().st_size for path in HASHES.glob("*.bin")) < 1.2e6
    for one in guard.sets:
        assert {"source", "license", "records"} <= set(one.header)
        assert set(one.hashes) == set(NGRAM_SIZES)
        assert b"Janet" not in (HASHES / f"{one.name}.bin").read_bytes()
    assert {one.name: one.header["records"] for one in guard.sets} == {
        "mt-bench": 80,
        "humaneval": 164,
        "gsm8k-test": 1319,
        "eyas-eval": 1750,
    }


def test_the_tool_makes_the_same_files(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    (data / "gsm8k-test.jsonl").write_text(json.dumps({"question": GSM8K, "answer": "18"}) + "\n")
    (data / "mt-bench.jsonl").write_text(json.dumps({"turns": [MT_BENCH, "And now?"]}) + "\n")
    (data / "humaneval.jsonl").write_text(json.dumps({"prompt": HUMANEVAL}) + "\n")
    out = tmp_path / "out"
    command = [sys.executable, str(TOOL), str(data), "--date", "2026-11-20", "--out", str(out)]
    subprocess.run(command, check=True, capture_output=True)
    assert (out / "eyas-eval.bin").read_bytes() == (HASHES / "eyas-eval.bin").read_bytes()
    for name in ("gsm8k-test", "mt-bench", "humaneval"):
        made, shipped = ngrams.read_file(out / f"{name}.bin"), ngrams.load_set(name)
        for n in NGRAM_SIZES:
            assert len(made.hashes[n])
            assert np.isin(made.hashes[n], shipped.hashes[n]).all() or name == "mt-bench"


def test_it_is_quick(guard):
    text = CLEAN[1] * 6
    guard.find_evalset([text])
    start = time.process_time()
    for _ in range(200):
        guard.find_evalset([text[:500]])
    assert (time.process_time() - start) / 200 < 0.5e-3  # 0.06 ms on an idle core


@pytest.mark.parametrize("text", ["a ", "日本", "\ufdfa", "!?.", "x1 ", "ab"])
def test_the_worst_input_is_quick(guard, text):
    guard.find_evalset([text])
    start = time.process_time()
    guard.find_evalset([(text * 50_000)[:50_000]])
    assert time.process_time() - start < 0.5
