"""German: names of private persons are found by their context, names of public knowledge stay."""

import pytest
from tests.privacy.detection import detect_values, find_private_names

PAIRS = [
    (
        "Katrin Hollmann",
        "{} aus dem dritten Stock hat sich bei der Hausverwaltung über unseren Hund beschwert.",
        "Wer war {}, die Komponistin?",
    ),
    (
        "Max Weber",
        "Unser Azubi {} ist schon wieder zu spät gekommen, schreib eine Abmahnung.",
        "Erkläre den Begriff der Herrschaft bei {}.",
    ),
    (
        "Aydan Tosun",
        "ich hab {} 200 euro geliehen und jetzt meldet er sich nicht mehr",
        "Welche Filme hat {} gedreht?",
    ),
    (
        "Jonas Brückner",
        "Die Fäden von {} müssen nächste Woche beim Hausarzt gezogen werden.",
        "Schreib eine Geschichte über {}, einen Ritter ohne Pferd.",
    ),
    (
        "Heinrich Böll",
        "Bitte sag dem Kindergarten Bescheid, dass {} heute die Zwillinge abholt.",
        "Fasse die Handlung des bekanntesten Romans von {} zusammen.",
    ),
    (
        "Wiebke Thormählen",
        "Meine Schwester {} heiratet im Mai, ich brauche eine Rede.",
        "In welchem Museum hängen die Gemälde von {}?",
    ),
    (
        "Otto Hahn",
        "Kündigung wegen Eigenbedarfs: Mieter ist {}, wohnhaft im Erdgeschoss.",
        "Wofür bekam {} den Nobelpreis?",
    ),
    (
        "Dilara Kaymaz",
        "Die Krankenkasse will von {} noch die Bescheinigung für das Krankengeld.",
        "{} kauft 5 Hefte zu je 2 Euro. Wie viel bezahlt sie insgesamt?",
    ),
    (
        "Anselm Rieger",
        "{} hat sich auf unsere Stelle als Elektriker beworben, formulier eine Absage.",
        "Welche Schlacht verlor {} im Dreißigjährigen Krieg?",
    ),
    (
        "Clara Schumann",
        "Mein Mann schreibt heimlich mit {}, ich hab sein Handy gesehen.",
        "Nenne drei Werke von {} für Klavier.",
    ),
    (
        "Ruth Oberländer",
        "Das Amtsgericht hat {} als Betreuerin meiner Oma bestellt.",
        "Vergleiche die Gedichte von {} und Rilke.",
    ),
    (
        "Toni Kroos",
        "Beim Ausparken bin ich gegen das Auto von {} gefahren, wie melde ich das der Versicherung?",
        "Wie viele Tore schoss {} in der Nationalmannschaft?",
    ),
    (
        "Malte Sievers",
        "Rückruf bitte: {} will seine Bestellung stornieren, das Paket kam nie an.",
        "Welche Erfindung machte {} berühmt?",
    ),
    (
        "Bettina Aufderheide",
        "Am Freitag verabschieden wir {} nach vierzig Jahren im Büro, was schreiben wir auf die Karte?",
        "Schreib einen Dialog zwischen {} und einem Drachen.",
    ),
    (
        "Hannah Arendt",
        "Für die Steuererklärung: {} putzt bei uns im Minijob.",
        "Was meinte {} mit der Banalität des Bösen?",
    ),
]
PHRASES = [
    ("Guten Tag, mein Name ist Ysolde Tarnbeck und ich suche eine Wohnung.", "Ysolde Tarnbeck"),
    ("hallo, ich heiße zorvek und komme nicht in mein konto", "zorvek"),
    ("Liebe Ysolde Tarnbeck,\ndanke für die Einladung zur Taufe eurer Tochter!\nMarlene", "Ysolde Tarnbeck"),
    ("Hiermit kündige ich meinen Mietvertrag.\nMit freundlichen Grüßen\nYsolde Tarnbeck", "Ysolde Tarnbeck"),
    ("Patientin: Ysolde Tarnbeck\nBefund: Bruch des Handgelenks", "Ysolde Tarnbeck"),
    ("Meine Tagesmutter heißt Wolf Tarnbeck und bekommt im Monat 400 Euro.", "Wolf Tarnbeck"),
]
ORDINARY = [
    "Wer malte die Mona Lisa, und wo hat Leonardo da Vinci gelebt?",
    "Erkläre den Satz des Pythagoras für die achte Klasse.",
    "Vergleiche die Außenpolitik von Konrad Adenauer mit der von Helmut Schmidt.",
    "Schreib einen Dialog zwischen Sokrates und einem Autoverkäufer.",
    "Welche Filme mit Heinz Rühmann sollte man kennen?",
    "Lena hat 12 Murmeln und verschenkt 5. Wie viele bleiben ihr?",
    "Setze den Satz „Paul isst einen Apfel“ ins Präteritum.",
    "Warum scheitert Effi Briest an der Gesellschaft ihrer Zeit?",
    "Schreibe eine Python-Funktion, die die Liste ['Anna', 'Bob', 'Chloé'] sortiert.",
    "Ich fahre im Sommer nach Weimar. Was hat Goethe dort gemacht?",
]


@pytest.mark.parametrize(("name", "private", "public"), PAIRS)
def test_the_context_decides(name, private, public):
    assert name in find_private_names(private.format(name), "de")
    assert not find_private_names(public.format(name), "de")


@pytest.mark.parametrize(("text", "name"), PHRASES)
def test_phrases_announce_names(text, name):
    assert name in find_private_names(text, "de")


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_prompts_stay(text):
    assert not find_private_names(text, "de")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("Ich war mit Anna zum Essen verabredet.", ["Anna"]),
        ("Schreib Anna Meier zur Sicherheit eine Mail.", ["Anna Meier"]),
        ("Die Rechnung an Abdulrahman al-Zorveki ist offen.", ["Abdulrahman al-Zorveki"]),
        ("Gestern hat Mirko Zorveker Nüsse gegessen.", ["Mirko Zorveker"]),
        ("Das Abkommen von Paris wurde unterschrieben.", []),
        ("Er sucht einen Job als Art Director.", []),
    ],
)
def test_where_a_name_begins_and_ends(text, names):
    assert detect_values("PERSON", text, "de") == names
