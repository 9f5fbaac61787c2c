"""Columns of people in tables of any form, and tables of things. All names are made up and on no list."""

import gc
import time

import pytest
from tests.privacy.detection import detect, detect_values, make_filter

from eyas.privacy.filter import CleanedRecord
from eyas.privacy.structured_text import find_structured

PEOPLE = ["Tevita Ngata", "Wiebra Okwuosa"]


@pytest.mark.parametrize(
    "text",
    [
        "| Full name | Age |\n|---|---|\n| Tevita Ngata | 31 |\n| Wiebra Okwuosa | 40 |",
        "Full name | Age\n--- | ---\n**Tevita Ngata** | 31\nWiebra Okwuosa | 40",
        "+--------------+-----+\n| Full name    | Age |\n+--------------+-----+\n| Tevita Ngata | 31  |\n"
        "| Wiebra Okwuosa | 40 |\n+--------------+-----+",
        "full_name,age\nTevita Ngata,31\nWiebra Okwuosa,40",
        "full_name;age\nTevita Ngata;31\nWiebra Okwuosa;40",
        "Full name\tAge\nTevita Ngata\t31\nWiebra Okwuosa\t40",
        "Full name         Age\n----------------  ---\nTevita Ngata      31\nWiebra Okwuosa    40",
        "Full name         Age\r\nTevita Ngata      31\r\nWiebra Okwuosa    40\r\n",
    ],
)
def test_every_form_of_table(text):
    assert detect(text) == [("PERSON", name) for name in PEOPLE]


@pytest.mark.parametrize(
    ("header", "language"),
    [
        ("first name,last name,age", "en"),
        ("Vorname,Nachname,Alter", "de"),
        ("Prénom,Nom,Âge", "fr"),
        ("Nombre,Apellidos,Edad", "es"),
        ("Nome,Cognome,Età", "it"),
        ("Nome,Sobrenome,Idade", "pt"),
        ("Voornaam,Achternaam,Leeftijd", "nl"),
        ("Imię,Nazwisko,Wiek", "pl"),
        ("Förnamn,Efternamn,Ålder", "sv"),
    ],
)
def test_headers_of_nine_languages(header, language):
    text = f"{header}\nTevita,Ngata,31\nWiebra,Okwuosa,40"
    assert detect_values("PERSON", text, language) == ["Tevita", "Ngata", "Wiebra", "Okwuosa"]


def test_every_personal_column_goes():
    text = "Surname;Phone;E-mail;City;Amount\nNgata;0171 5550199;t@zorvek.io;Orsmala;31\n"
    assert {value for _, value in detect(text)} == {"Ngata", "0171 5550199", "t@zorvek.io", "Orsmala"}


@pytest.mark.parametrize(
    ("rows", "names"),
    [
        ('"Ngata, Tevita",31,late\n"Okwuosa, Wiebra",40,', ["Ngata, Tevita", "Okwuosa, Wiebra"]),
        ('Ngata,31,"late, sick"\nOkwuosa,40,"""no"""', ["Ngata", "Okwuosa"]),
        (",31,late\nOkwuosa,,\nNgata,22,", ["Okwuosa", "Ngata"]),
        ('"Ngata,31,late\nOkwuosa,40,\nFifita,22,', ["Ngata", "Okwuosa", "Fifita"]),
        ("Ngata,31\nOkwuosa,40,late,sick\nFifita,22,late", ["Ngata", "Okwuosa", "Fifita"]),
        ("Ngata,31,late\nOkwuosa,40\n", ["Ngata", "Okwuosa"]),
    ],
    ids=["a comma in quotes", "quotes behind", "empty cells", "a broken quote", "uneven rows", "an uneven last row"],
)
def test_rows_as_people_write_them(rows, names):
    assert detect_values("PERSON", f"surname,age,note\n{rows}") == names


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("Name,Age\nTevita,31\nWiebra,40", ["Tevita", "Wiebra"]),
        ("name,phone\nTevita,0171 5550199\nWiebra,0171 5550188", ["Tevita", "Wiebra"]),
        ("Name,Points\nTevita Ngata,31\nWiebra Okwuosa,40", PEOPLE),
        ("| Feature | Owner |\n|---|---|\n| Login | Tevita Ngata |\n| Search | Wiebra Okwuosa |", PEOPLE),
        ("student,maths,physics\nTevita,1,2\nWiebra,3,1", ["Tevita", "Wiebra"]),
        ("id,name,type\n1,Zorvek,table\n2,Quindar,table", []),
        ("Name,Value\nZorvek,1\nQuindar,2", []),
        ("Name,Price\nZorvek Pro,20\nQuindar Max,30", []),
        ("| Task | Owner |\n|---|---|\n| Login | Backend Team |\n| Search | Frontend |", []),
    ],
)
def test_a_name_is_a_persons_where_something_else_says_so(text, names):
    assert detect_values("PERSON", text) == names


@pytest.mark.parametrize(
    "text",
    [
        "| Name | Price | Stock |\n|---|---|---|\n| Zorvek Pro | 20 | 3 |\n| Quelva Mini | 30 | 4 |",
        "| Name | Description |\n|---|---|\n| Zorvek Pro | a pump |\n| Quelva Mini | a valve |",
        "Country,Population\nGermany,84000000\nFrance,68000000",
        "City,Population\nOrsmala,3000\nQuendelheim,4000",
        "| Name | Size | Modified |\n|---|---|---|\n| report.pdf | 20 | 2024 |\n| Makefile | 30 | 2024 |",
        "Name,Symbol,Atomic mass\nHydrogen,H,1.008\nHelium,He,4.003",
        "Name,Diameter,Moons\nMercury,4879,0\nVenus,12104,0\nJupiter,142984,95",
        "Name,Language,License\nDjango,Python,BSD\nRails,Ruby,MIT",
        "| Column | Type | Description |\n|---|---|---|\n| name | TEXT | The name |\n| email | TEXT | The mail |",
        "id | name | type\n1 | Orders | table\n2 | Customers | table",
        "Team,Points\nArsenal,10\nChelsea,8",
    ],
)
def test_a_table_of_things_stays(text):
    assert detect(text) == []


@pytest.mark.parametrize("mark", [";", ",", "\t", " | ", "     "])
def test_a_form_set_as_a_table_has_no_header(mark):
    text = "\n".join(mark.join(row) for row in (("Surname", "Ngata"), ("Age", "31"), ("Phone", "0171 5550199")))
    text = f"| {text} |".replace("\n", " |\n| ") if "|" in mark else text
    assert detect(text) == [("PERSON", "Ngata"), ("PHONE", "0171 5550199")]


def test_a_table_right_behind_another():
    text = "surname,age\nNgata,31\nid,surname,first name,phone\n1,Okwuosa,Wiebra,0171 5550188"
    assert detect_values("PERSON", text) == ["Ngata", "Okwuosa", "Wiebra"]


def test_a_line_of_blanks_ends_a_table():
    text = "Surname  Age\nNgata    31\n      \nZorvek  7"
    spans = find_structured(text, "en")
    assert [text[span.start : span.end] for span in spans] == ["Ngata"]


def test_what_stands_around_a_table_stays():
    before, after = (
        "Which rows are right, and which are not?\n\n",
        "\nPlease sort, count and sum the rows.\nThanks, all",
    )
    cleaned = make_filter().clean([((f"{before}surname,age\nNgata,31\nOkwuosa,40{after}",), "en")])[0]
    assert isinstance(cleaned, CleanedRecord)
    text = cleaned.texts[0]
    assert text.startswith(f"{before}surname,age\n")
    assert text.endswith(f",40{after}")
    assert "Ngata" not in text


def test_long_tables_are_read_to_the_end_in_linear_time():
    def seconds(rows: int) -> float:
        text = "surname,age\n" + "".join(f"Ngata,{k}\n" for k in range(rows)) + "Okwuosa,7"
        gc.collect()
        gc.disable()  # what other tests left behind is no time of ours
        start = time.process_time()
        spans = list(find_structured(text, "en"))
        took = time.process_time() - start
        gc.enable()
        assert len(spans) == rows + 1
        return took

    seconds(10)
    # 1,500 rows against four times as many: quadratic growth makes a ratio of 16.
    small, large = (min(seconds(rows) for _ in range(2)) for rows in (1_500, 6_000))
    assert large < 9 * small + 0.1
