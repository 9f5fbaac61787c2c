"""The halves of the texts, the shares with intervals, and what counts as surviving."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import prove_data
import pytest
from data_pairs import PAIRS, judge, make_pairs, pair_rows
from data_split import HALVES, balanced_half, half
from planted.survival import PlantedValue, name_survives, survives
from public_prompts import ordinary_prompts, school_problems
from shares import share_row, wilson_interval
from text_sets import LANGUAGES, NumberedText, load_texts, sets_of


def test_a_group_is_in_one_half_and_both_halves_are_about_equal() -> None:
    halves = Counter(half(f"mgsm {number}") for number in range(1000))
    assert set(halves) == set(HALVES)
    assert 400 < halves["develop"] < 600


def test_short_lists_are_split_in_two_halves_that_do_not_overlap() -> None:
    groups = [f"de planted {number}" for number in range(71)]
    develop, report = (balanced_half(groups, part) for part in HALVES)
    assert not develop & report
    assert (len(develop), len(report)) == (35, 36)
    assert balanced_half(reversed(groups), "develop") == develop


@pytest.mark.parametrize(
    ("right", "total", "low", "high"),  # from Wilson (1927), computed by hand for z = 1.96
    [(81, 263, 0.2553, 0.3662), (0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0)],
)
def test_wilson_intervals(right: int, total: int, low: float, high: float) -> None:
    assert wilson_interval(right, total) == pytest.approx((low, high), abs=1e-4)


def test_a_share_row_rounds_down_and_compares_the_exact_share() -> None:
    row = share_row("right", 99_999, 100_000, 1.0)
    assert (row.figure, row.ok, row.name) == (0.9999, False, "right, of 100000")
    assert not share_row("nothing", 0, 0, 0.5).ok
    assert share_row("told", 1, 2).ok


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_texts_of_a_language_are_complete(language: str) -> None:
    develop, report = (load_texts(language, part) for part in HALVES)
    if develop is None or report is None:
        pytest.skip("no texts in this language yet")
    for use, total in (("ordinary", 44), ("planted", 70), ("private", 50), ("public", 50)):
        both: list[NumberedText] = [*getattr(develop, use), *getattr(report, use)]
        assert sum("training" not in one.group for one in both) == total
        assert not any("training" in one.group for one in getattr(report, use))
        assert len({one.text for one in both}) == len(both)
    assert len(report.private) == len(report.public) == 25
    for texts in (develop, report):
        assert all(text.text.count("{name}") >= 1 for text in texts.private + texts.public)


@pytest.mark.parametrize("part", HALVES)
def test_pairs_use_each_name_equally_often_and_never_twice_in_a_text(part: str) -> None:
    for texts in sets_of(LANGUAGES, "develop" if part == "develop" else "report"):
        made = make_pairs(texts)
        assert len(made) == PAIRS
        uses = Counter(pair.name for pair in made).values()
        assert max(uses) - min(uses) <= (PAIRS % len(texts.names) > 0)
        assert len({(pair.name, pair.private.group) for pair in made}) == PAIRS
        assert len({(pair.name, pair.public.group) for pair in made}) == PAIRS
        frequent = Counter(pair.private.group for pair in made)
        assert len(frequent) == min(PAIRS, len(texts.private))
        assert max(frequent.values()) <= 3 * min(frequent.values())


def test_a_pair_is_right_if_the_name_is_gone_and_the_public_text_is_unchanged() -> None:
    texts = sets_of(("en",), "develop")[0]
    pair = make_pairs(texts)[0]
    private, public = pair.fill(pair.private), pair.fill(pair.public)
    cleaned = private.replace(pair.name, "Ulla Brandvold")
    assert judge(pair, (cleaned,), (public,)).is_right
    assert judge(pair, None, (public,)).is_right
    assert not judge(pair, (private,), (public,)).is_gone
    assert not judge(pair, (cleaned,), None).is_unchanged
    assert not judge(pair, (cleaned,), (public + " ",)).is_unchanged
    rows = {row.name: row for row in pair_rows([judge(pair, (private,), (public,))], "mode", 0.95)}
    assert rows["mode: both sides right in en, of 1"].figure == 0
    assert not rows["mode: both sides right in en, of 1"].ok
    assert rows["mode: public text unchanged in the nine languages, of 1"].figure == 1


@pytest.mark.parametrize(
    ("name", "written", "is_there"),
    [
        ("Anna Krabbenhöft", "Dear ANNA, hello", True),
        ("Anna Krabbenhöft", "Krabbenhofts Auto", True),
        ("Anna Krabbenhöft", "Annabel and the crab", False),
        ("Jan de Vries", "Piet de Boer", False),
        ("Siân O'Brien", "Tom Obriens dog", False),
        ("王小明", "李小明", True),
        ("王小明", "王大伟", False),
        ("山田太郎", "山田花子", True),
        ("サントス・ユリ", "サンドラ・ユミ", False),
        ("サントス・ユリ", "サントスさん", True),
        ("김민수", "김영희", False),
        ("김민수", "박민수", True),
        ("सीता वर्मा", "गीता वर्मा", True),
        ("सीता वर्मा", "गीता शर्मा", False),
        ("ليلى منصور", "كتبت لليلى", True),
        ("Зоя Космодемьянская", "письмо Зои Космодемьянской", False),
        ("Зоя Иванова", "Зоя Петрова", True),
    ],
)
def test_names_survive_by_their_words(name: str, written: str, is_there: bool) -> None:
    assert name_survives(name, written, "") is is_there


@pytest.mark.parametrize(
    ("slot", "value", "written", "is_there"),
    [
        ("card", "4539 1488 0343 6467", "card 4539148803436467", True),
        ("card", "4539 1488 0343 6467", "the last digits are 0343 6467", True),
        ("card", "4539 1488 0343 6467", "the last digits are 6467", False),
        ("card", "4539 1488 0343 6467", "４５３９１４８８０３４３６４６７", True),
        ("phone", "+49 30 1234567", "+49 30 23125001", False),
        ("phone", "+49 30 1234567", "030-12 34 567", True),
        ("email", "anna.k@web.de", "mail anna.k@web.de", True),
        ("email", "anna.k@web.de", "mail jo.b@web.de", False),
        ("obfuscated_email", "jutta (at) web (dot) de", "jutta at home", True),
        ("ip", "81.2.69.142", "81.2.69.142:80", False),
        ("ip", "81.2.69.142", "host 81.2.69.142.", True),
        ("gps", "52.51630, 13.37770", "near 52.51630", True),
        ("gps", "52.51630, 13.37770", "near 48.1, 11.5", False),
        ("pin", "4711", "my pin 4711", True),
        ("pin", "4711", "order 847110", False),
        ("pin", "4711", "暗証は4711やで", True),
        ("ip", "81.2.69.142", "服务器81.2.69.142被人", True),
        ("email", "anna.k@web.de", "登录名anna.k@web.de，", True),
        ("birth_date", "12.03.1981", "born in 1981", False),
        ("birth_date", "12.03.1981", "12-03-1981", True),
        ("mac", "00:1B:44:11:3A:B7", "00-1b-44-11-3a-b7", True),
        ("mac", "00:1B:44:11:3A:B7", "00:1B:44:00:00:01", False),
        ("street", "14 Marlpit Lane", "9 marlpit lane", True),
        ("street", "14 Marlpit Lane", "9 Oak Lane", False),
        ("city", "Hebden Bridge", "in HEBDEN  BRIDGE", True),
        ("password", "Sommer2024!", "Sommer****", True),
        ("plate", "B-XK 4711", "M-AB 12", False),
    ],
)
def test_values_survive_whole_or_as_a_part_that_tells_them(slot: str, value: str, written: str, is_there: bool) -> None:
    assert survives(PlantedValue(slot, value), written, "") is is_there


def test_words_of_the_template_do_not_count() -> None:
    assert not survives(PlantedValue("city", "Bath"), "a bath in Bath", "a bath in ")
    assert not name_survives("Rose Miller", "a rose", "a rose for ")


def test_problems_of_mgsm_are_in_one_half_only(tmp_path: Path) -> None:
    lines = [f'{{"id": {number}, "question": "Problem {number}?", "answer": "1"}}' for number in range(20)]
    for name in ("mgsm-en", "mgsm-de", "gsm8k-test"):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines), "utf-8")
    (tmp_path / "gsm8k-train.jsonl").write_text('{"question": "Other"}\n', "utf-8")
    develop, report = (list(school_problems(tmp_path, part, ("en", "de"))) for part in HALVES)
    assert {prompt.id for prompt in develop}.isdisjoint(prompt.id for prompt in report)
    assert {prompt.texts for prompt in develop}.isdisjoint(prompt.texts for prompt in report)
    assert sum(prompt.set_name == "mgsm" for prompt in develop + report) == 40


def test_sets_that_are_not_there_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "ifeval.jsonl").write_text('{"key": 1, "prompt": "Hi"}\n', "utf-8")
    found = [prompt for part in HALVES for prompt in ordinary_prompts(tmp_path, part, LANGUAGES)]
    assert [prompt.texts for prompt in found] == [("Hi",)]


def test_single_texts_of_the_half_for_reporting_are_not_shown(tmp_path: Path) -> None:
    command = [sys.executable, prove_data.__file__, "--only", "pairs", "--languages", "en", "--show"]
    done = subprocess.run([*command, str(tmp_path / "shown")], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "--half develop" in done.stderr
    assert not (tmp_path / "shown").exists()
