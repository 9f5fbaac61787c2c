"""Names and places in running prose that stand in no list, and words that look like them. All names are made up."""

import pytest
from tests.privacy.detection import detect, detect_values, make_filter

from eyas.privacy.filter import CleanedRecord


@pytest.mark.parametrize(
    ("text", "language", "name"),
    [
        ("can u write a text to my sister zofreka about dinner", "en", "zofreka"),
        ("A birthday message for Mirelux please", "en", "Mirelux"),
        ("The report by R. Garenstead was late.", "en", "R. Garenstead"),
        ("Our landlord Garenstead raised the rent.", "en", "Garenstead"),
        ("Zorvek has 12 apples. She gives 3 away.", "en", "Zorvek"),
        ("Drusgarth reported that it rains", "en", "Drusgarth"),
        ("Nguyễn Thị Hường asked for help", "en", "Nguyễn Thị Hường"),
        ("Email from Şehriban Sarıçiçekli arrived.", "en", "Şehriban Sarıçiçekli"),
        ("Schreib eine Nachricht an Zorvek, dass ich krank bin.", "de", "Zorvek"),
        ("Mein Nachbar Quendlein hat mich verklagt.", "de", "Quendlein"),
        ("Écris un sms pour Quelvanne qui est malade", "fr", "Quelvanne"),
        ("un mensaje para Brelindo, mi jefe", "es", "Brelindo"),
        ("scrivi un messaggino per Torvella", "it", "Torvella"),
        ("escreve uma msg pra Jurandeva", "pt", "Jurandeva"),
        ("een berichtje aan Wiebrandus over het feest", "nl", "Wiebrandus"),
        ("Mevrouw De Panzavecchia belde.", "nl", "De Panzavecchia"),
        ("Napisz wiadomość do Zdzimirka o urlopie", "pl", "Zdzimirka"),
        ("Skriv ett meddelande till Bröndulf om mötet", "sv", "Bröndulf"),
    ],
)
def test_names_by_what_stands_beside_them(text, language, name):
    assert detect_values("PERSON", text, language) == [name]


@pytest.mark.parametrize(
    ("text", "language", "place"),
    [
        ("Zorvek (34) lives in Port Kathleenfurt.", "en", "Port Kathleenfurt"),
        ("Wir sind mit Anna in Quendelheim angekommen", "de", "Quendelheim"),
        ("Brelindo vive en Caldas da Rainha.", "es", "Caldas da Rainha"),
        ("Torvella abita a Sant'Arsenio.", "it", "Sant'Arsenio"),
        ("Mieszka w Krówkowie.", "pl", "Krówkowie"),
        ("Bröndulfa bor i Sundvalla.", "sv", "Sundvalla"),
    ],
)
def test_places_behind_what_people_do(text, language, place):
    assert detect_values("LOCATION", text, language) == [place]


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("[ 1817.793100] usb 1-85: new high-speed USB device", "en"),
        ("9283.530700 elapsed", "en"),
        ("Berechne Mittelwert und Median dieser Zahlen", "de"),
        ("Erstelle Tabelle mit drei Spalten", "de"),
        ("Commit 69032264363 jest zły", "pl"),
        ('In welchem Satz ist "Rose", "Mark" oder "Ernst" kein Name?', "de"),
        ("Which of these is a verb: 'mark', 'bill'?", "en"),
        ("Explique le triangle de Pascal", "fr"),
        ("Explain Bayes' theorem and the Fourier transform with Gauss and Euler.", "en"),
        ("What is a Turing machine? Compare Dijkstra with Bellman-Ford.", "en"),
        ("Photosynthesis works by light. Explain.", "en"),
        ("Write a letter to convince my boss that we need a raise.", "en"),
        ("Rédige un email pour annuler mon abonnement", "fr"),
        ("Our patient portal works slowly", "en"),
        ("Teacher Appreciation Week ideas", "en"),
        ("mia sorella vuole viaggiare", "it"),
    ],
)
def test_what_is_no_name_stays(text, language):
    assert detect(text, language) == []


def test_a_number_with_a_word_beside_it_is_an_identifier():
    assert detect_values("GOVERNMENT_ID", "Urodzona w maju, 69032264363", "pl") == ["69032264363"]


def clean(text, language):
    result = make_filter().clean([((text,), language)])[0]
    assert isinstance(result, CleanedRecord)
    return result.texts[0]


def test_a_name_with_an_ending_goes_too():
    assert "Zorvek" not in clean("Nachricht an Zorvek, bitte. Zorveks Hund bellt.", "de")
    cleaned = clean("Wiadomość do Zdzimirek. Pytaj Zdzimirekowi.", "pl")
    assert "Zdzimirek" not in cleaned
    assert cleaned.endswith("owi.")


def test_no_word_of_the_record_comes_back():
    words = " ".join(["Anna", "Maria", "Julia", "Laura", "Lena", "Sarah", "Lea", "Paul", "Peter"] * 3)
    cleaned = clean(f"Sprich mit Zorvek Kelthrup, ob {words} kommen.", "de")
    assert not {"Anna", "Maria", "Zorvek", "Kelthrup"} & set(cleaned.split())


def test_a_conjunction_between_names_stays():
    assert " y " in clean("Ana María de la Cruz y López vive aquí.", "es")
