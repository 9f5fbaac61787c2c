"""The scoring and the measuring of `make prove-data`, on toy filters: each figure follows what the toy does."""

import subprocess
import sys
from pathlib import Path

import data_detection
import data_speed
import data_traffic
import pii_set
import prove_data
import pytest
from data_detection import KINDS, SOFT
from data_options import Options
from data_traffic import MIX, Prompt
from pii_score import Outcome, score_text
from pii_set import LabeledText
from result_rows import Row


@pytest.fixture(scope="module")
def made() -> list[LabeledText]:
    return pii_set.build_set(0)[::7]


def perfect(labeled: LabeledText) -> str:
    text = labeled.text
    for value in sorted(labeled.planted, key=lambda value: -len(value.value)):
        text = text.replace(value.value, "\N{WHITE SQUARE}")
    return text


def dropping(labeled: LabeledText) -> str | None:
    return None if labeled.kinds - SOFT else perfect(labeled)


def rows_of(outcomes: list[Outcome]) -> dict[str, Row]:
    rows = list(data_detection.recall_rows(outcomes))
    names = ("caught", "SECRET", "CARD", "ACCOUNT", "GOVERNMENT_ID", "clean", "kept")
    return dict(zip(names, rows, strict=True))


def test_a_filter_that_drops_and_replaces_passes_every_row(made: list[LabeledText]) -> None:
    rows = rows_of([score_text(labeled, dropping(labeled)) for labeled in made])
    assert all(row.ok for row in rows.values())
    assert rows["caught"].figure == 1
    assert rows["clean"].figure == 0


def test_dropping_everything_fails_the_rows_that_ask_for_what_is_kept(made: list[LabeledText]) -> None:
    rows = rows_of([score_text(labeled, None) for labeled in made])
    assert [name for name, row in rows.items() if not row.ok] == ["clean", "kept"]


def test_doing_nothing_fails_what_must_be_caught(made: list[LabeledText]) -> None:
    rows = rows_of([score_text(labeled, labeled.text) for labeled in made])
    assert [name for name, row in rows.items() if row.ok] == ["clean"]


@pytest.mark.parametrize("kind", ["SECRET", "CARD", "ACCOUNT", "GOVERNMENT_ID"])
def test_one_secret_that_survives_fails_its_row_alone(made: list[LabeledText], kind: str) -> None:
    outcomes = [score_text(labeled, dropping(labeled)) for labeled in made]
    place = next(i for i, labeled in enumerate(made) if kind in labeled.kinds)
    left = next(value.value for value in made[place].planted if value.kind == kind)
    outcomes[place] = score_text(made[place], perfect(made[place]) + left)
    rows = rows_of(outcomes)
    assert [name for name, row in rows.items() if not row.ok] == [kind]
    assert 0 < (rows[kind].figure or 0) < 1


def test_tables_name_kinds_and_languages_and_no_value(made: list[LabeledText]) -> None:
    outcomes = [score_text(labeled, labeled.text) for labeled in made]
    text = "\n".join([*data_detection.markdown_tables(outcomes), data_detection.describe_misses(outcomes)])
    for name in (*KINDS, *pii_set.LANGUAGES):
        assert f"| {name} |" in text
    long_values = [value.value for labeled in made for value in labeled.planted if len(value.value) > 8]
    assert not any(value in text for value in long_values)


def test_real_prompts_that_are_not_there_are_rows_that_miss(tmp_path: Path) -> None:
    rows = list(data_detection.real(Options(data=tmp_path)))
    assert len(rows) == 6
    assert all(row.figure is None and not row.ok for row in rows)


def test_other_peoples_prompts_stay_outside_the_repository(tmp_path: Path) -> None:
    assert data_detection.is_outside_repository(tmp_path / "shown.txt")
    assert not data_detection.is_outside_repository(Path(prove_data.__file__).parent / "shown.txt")
    command = [sys.executable, prove_data.__file__, "--only", "real", "--show", "1", prove_data.__file__ + ".txt"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "outside the repository" in done.stderr


def test_distances_of_mixtures() -> None:
    maths, code = Prompt("ab", "maths"), Prompt("abcd", "code")
    assert data_traffic.task_distance([maths, maths], [maths, code]) == 0.5
    assert data_traffic.length_distance([maths, maths], [maths, code]) == 0.5
    assert data_traffic.task_distance([maths, code], [code, maths]) == 0
    assert data_traffic.length_distance([maths], [code]) == 1


def test_the_pool_has_more_tasks_than_production() -> None:
    pool, production = data_traffic.make_mixture("test")
    assert len(pool) >= 1000
    assert len(production) == 160
    assert {prompt.task for prompt in production} == set(MIX)
    assert {prompt.task for prompt in pool} > set(MIX)
    assert data_traffic.task_distance(pool, production) > 0.3
    assert data_traffic.make_mixture("test") == (pool, production)
    # So that a choice by words alone must look at what is asked.
    assert all(any("crates" in prompt.text for prompt in pool if prompt.task == task) for task in MIX)


def test_prompts_for_the_memory_row_are_all_different(tmp_path: Path) -> None:
    data_speed.write_prompts(tmp_path / "source.jsonl", 500, 0)
    lines = (tmp_path / "source.jsonl").read_text("utf-8").splitlines()
    assert len(set(lines)) == len(lines) == 500
    assert sum("@" in line for line in lines) == 50


def test_memory_of_children_counts() -> None:
    """A shell whose child holds 60 MB that it has written to."""
    hold = "held = bytearray(60_000_000); print('held', flush=True); input()"
    script = f'"{sys.executable}" -c "{hold}"; true'
    with subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as shell:
        assert shell.stdout is not None
        assert shell.stdin is not None
        assert shell.stdout.readline() == "held\n"
        assert data_speed.anonymous_bytes(shell.pid) > 60_000_000
        shell.stdin.write("\n")
    assert shell.returncode == 0
