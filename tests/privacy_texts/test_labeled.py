"""Scores on marked texts, Presidio's driver, and the file for a human judge."""

import json
import os
import subprocess
import sys
from pathlib import Path

import data_replaced
import presidio_peer
import prove_data
import pytest
from data_labeled import BASELINE
from data_options import Options
from data_read import TEXTS, ReadText, draw_texts, read
from data_replaced import Judgment, judged_rows
from data_split import HALVES, half
from judged_files import read_table, write_table
from marked_texts import OWN_NEWS, Mark, MarkedText, medical_notes, news_sentences, research_sentences
from presidio_peer import blank, run_presidio
from span_scores import HALF, WHOLE, count_found, count_right, covered_share

COLUMNS = ("is_person", "is_grammatical")
TEXT = MarkedText("1", "en", "Ann Lee, 4 Oak St", (Mark(0, 7, "PERSON"), Mark(9, 17, "ADDRESS")))


@pytest.mark.parametrize(
    ("found", "share"),
    [([], 0.0), ([Mark(0, 3, "PERSON")], 0.5), ([Mark(0, 3, "PERSON"), Mark(3, 9, "PHONE")], 1.0)],
)
def test_the_covered_share_counts_letters_and_digits(found: list[Mark], share: float) -> None:
    assert covered_share(TEXT.text, TEXT.marks[0], found) == share


def test_recall_takes_spans_of_any_kind_and_precision_those_of_the_kind() -> None:
    found = [[Mark(0, 7, "PHONE"), Mark(9, 14, "ADDRESS"), Mark(15, 17, "PERSON")]]
    assert count_found([TEXT], found, ("PERSON",), WHOLE) == (1, 1)
    assert count_found([TEXT], found, ("ADDRESS",), WHOLE) == (1, 1)
    assert count_found([TEXT], [found[0][1:2]], ("ADDRESS",), WHOLE) == (0, 1)
    assert count_found([TEXT], [found[0][1:2]], ("ADDRESS",), HALF) == (1, 1)
    assert count_right([TEXT], found, ("PERSON",)) == (0, 1)
    assert count_right([TEXT], found, ("ADDRESS",)) == (1, 1)


def test_sentences_of_a_template_and_translations_are_in_one_half(tmp_path: Path) -> None:
    records = [{"id": n, "full_text": "Ann", "template_id": n // 5, "spans": []} for n in range(100)]
    (tmp_path / "presidio-research-synth.jsonl").write_text("\n".join(map(json.dumps, records)), "utf-8")
    sizes = [len(research_sentences(tmp_path, part)) for part in HALVES]
    assert sum(sizes) == 100
    assert all(size % 5 == 0 for size in sizes)
    news = [{"id": f"n{n}", "text": "Ann", "entities": [[0, 3, "PER"]]} for n in range(50)]
    for name in ("ner-de-pud", "ner-ru-pud", "ner-zh-pud"):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, news)), "utf-8")
    german, russian = ({one.id for one in news_sentences(tmp_path, "report", f"ner-{x}-pud")} for x in ("de", "ru"))
    assert german == russian == {f"n{n}" for n in range(50) if half(f"pud n{n}") == "report"}
    assert news_sentences(tmp_path, "report", "ner-de-pud")[0].marks == (Mark(0, 3, "PERSON"),)


def test_medical_notes_keep_their_kinds(tmp_path: Path) -> None:
    line = {"id": "a", "text": "Ana, C. Mayor 1", "entities": [[0, 3, "NOMBRE_SUJETO_ASISTENCIA"], [5, 15, "CALLE"]]}
    (tmp_path / "meddocan-es.jsonl").write_text(json.dumps(line), "utf-8")
    notes = [note for part in HALVES for note in medical_notes(tmp_path, part)]
    assert [mark.kind for mark in notes[0].marks] == ["PERSON", "PLACE"]


@pytest.mark.parametrize("name", OWN_NEWS)
def test_own_news_mark_persons(name: str) -> None:
    texts = [one for part in HALVES for one in news_sentences(Path("nowhere"), part, name)]
    assert len(texts) == 40
    assert not any("[[" in one.text or "]]" in one.text for one in texts)
    marked = [one.text[mark.start : mark.end] for one in texts for mark in one.marks]
    assert len(marked) >= 30
    assert all(value.strip() == value and value for value in marked)


def test_the_baseline_names_its_commit_and_holds_both_halves() -> None:
    stored = json.loads(BASELINE.read_text("utf-8"))
    assert stored["commit"]
    assert set(stored["persons"]) == set(HALVES)
    for figures in stored["persons"].values():
        assert all(0 < figure["found"] <= figure["marked"] for figure in figures.values())


def test_presidio_answers_over_json_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = Options(env_dir=tmp_path, model=tmp_path)
    assert run_presidio([("Ann Lee", "en")], options) is None
    (tmp_path / "presidio" / "bin").mkdir(parents=True)
    (tmp_path / "presidio" / "bin" / "python").symlink_to(sys.executable)
    driver = tmp_path / "driver.py"
    driver.write_text(
        "import json, sys\n"
        "assert sys.argv[1] == '--model'\n"
        "for line in map(json.loads, sys.stdin):\n"
        "    assert line['language'] == 'en'\n"
        "    print(json.dumps({'id': line['id'], 'spans': [[0, len(line['text']), 'PHONE']]}))\n"
    )
    monkeypatch.setattr(presidio_peer, "DRIVER", driver)
    assert run_presidio([("Ann Lee", "en"), ("", "en")], options) == [[Mark(0, 7, "PHONE")], [Mark(0, 0, "PHONE")]]
    driver.write_text("raise SystemExit('no model')\n")
    assert run_presidio([("Ann Lee", "en")], options) is None


def test_a_blanked_value_leaves_one_square() -> None:
    assert (
        blank("call 0171 or Ann", [Mark(5, 9, "PHONE"), Mark(13, 16, "PERSON")])
        == "call \N{WHITE SQUARE} or \N{WHITE SQUARE}"
    )
    assert blank("none", []) == "none"


def judgment(names: str, is_person: str, is_grammatical: str) -> Judgment:
    return Judgment(names, "news", "de", "Ann", 'Says\t"[[Ann]]"\nto us', 'Says\t"Eva"', is_person, is_grammatical)


def test_a_judged_file_becomes_rows(tmp_path: Path) -> None:
    path = tmp_path / "judged.tsv"
    judged = [judgment("private", "yes", "yes"), judgment("private", "yes", "no"), judgment("all", "no", "yes")]
    write_table(path, judged)
    assert read_table(path, Judgment, COLUMNS) == judged
    rows = {row.name: (row.figure, row.ok) for row in judged_rows(read_table(path, Judgment, COLUMNS))}
    assert rows == {
        "replaced, names=private: spans that are a person, of 2": (1.0, True),
        "replaced, names=private: texts that stay grammatical, of 2": (0.5, False),
        "replaced, names=all: spans that are a person, of 1": (0.0, True),
        "replaced, names=all: texts that stay grammatical, of 1": (1.0, True),
    }


def test_an_answer_that_is_missing_is_named(tmp_path: Path) -> None:
    path = tmp_path / "judged.tsv"
    write_table(path, [judgment("private", "yes", "yes"), judgment("private", "yes", "")])
    with pytest.raises(SystemExit, match="line 2 has '' in the column is_grammatical"):
        read_table(path, Judgment, COLUMNS)


def test_a_sample_shows_spans_before_and_after(tmp_path: Path) -> None:
    options = Options(data=tmp_path, half="develop", languages=("it", "es"))
    sample = data_replaced.draw_sample(options)
    assert sample == data_replaced.draw_sample(options)
    assert {one.language for one in sample} == {"it", "es"}
    assert len({(one.before, one.span) for one in sample}) == len(sample)
    for one in sample:
        assert f"[[{one.span}]]" in one.before
        assert one.before.replace("[[", "").replace("]]", "") != one.after


def test_the_file_for_the_judge_stays_outside_the_repository() -> None:
    path = Path(prove_data.__file__).parent / "judged.tsv"
    command = [sys.executable, prove_data.__file__, "--only", "replaced", "--judge", os.fspath(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "outside the repository" in done.stderr


def test_texts_for_a_reader_come_back_as_rows(tmp_path: Path) -> None:
    path = tmp_path / "read.tsv"
    options = Options(half="develop", languages=("sv",), read_file=path)
    assert [row.figure for row in read(options)] == [2 * TEXTS]  # ordinary and filled ones
    lines = draw_texts(options)
    assert all(line.before and line.after and line.after != line.before for line in lines)
    with pytest.raises(SystemExit, match="line 1 has '' in the column is_right"):
        list(read(options))
    judged = [ReadText("ordinary", "a", "sv", "x", "y", "yes"), ReadText("planted", "b", "sv", "x", "y", "no", "late")]
    write_table(path, judged)
    assert [row.figure for row in read(options)] == [1.0, 0.0]
