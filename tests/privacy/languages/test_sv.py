"""Swedish: names of private persons are found by their context, names of public knowledge stay."""

import pytest
from tests.privacy.detection import detect_values, find_private_names

PAIRS = [
    (
        "Gun-Britt Hedlund",
        "{} på bottenvåningen ställer alltid sin cykel i trapphuset, vad kan föreningen göra?",
        "Vem var {}, skulptören?",
    ),
    (
        "Carl Larsson",
        "Vår vikarie {} har sjukanmält sig varje måndag. Skriv en erinran.",
        "Vad föreställer den mest kända målningen av {}?",
    ),
    (
        "Zorvek Tallis",
        "hej, jag heter {} och mitt paket har fastnat hos postnord",
        "I vilken film spelade {} huvudrollen?",
    ),
    (
        "Nasrin Karimi",
        "Min kusin {} gifter sig i juni och jag ska hålla tal.",
        "Skriv en saga om {}, en häxa utan kvast.",
    ),
    (
        "Tove Jansson",
        "Remiss: {} har haft ont i vänster knä i sex veckor, önskar magnetkamera.",
        "Vilket pris fick {} för sina böcker?",
    ),
    (
        "Melker Strand",
        "På rasten knuffade {} vår son, hur tar vi upp det med hans föräldrar?",
        "{} har 14 kulor och ger bort 6. Hur många har han kvar?",
    ),
    (
        "Zlatan Ibrahimovic",
        "Jag ligger i skilsmässa och {} vill ha barnen varje helg. Vad säger familjerätten?",
        "Hur många mål gjorde {} i landslaget?",
    ),
    (
        "Marianne Öberg",
        "Skicka en påminnelse till {}, fakturan från maj är obetald.",
        "Vilket pris vann {} för sin diktsamling?",
    ),
    (
        "Tage Erlander",
        "Vår granne {} har gått bort. Hjälp mig med ett kort till hans fru.",
        "Vilken roll hade {} i svensk politik efter kriget?",
    ),
    (
        "Sandra Ekdahl",
        "min kille messar med {} i smyg, ska jag skriva till henne själv?",
        "Vilken upptäckt publicerade {} inom fysiken?",
    ),
    (
        "Isak Brodin",
        "{} sökte jobb hos oss som kock men vi anställer en annan. Skriv avslaget.",
        "Sammanfatta romanen av {} i tio meningar.",
    ),
    (
        "Marie Curie",
        "Brukaren {} går med rullator och har hemtjänst tre gånger i veckan.",
        "För vilken forskning fick {} sitt andra Nobelpris?",
    ),
    (
        "Joel Wikman",
        "Krock på parkeringen: {} backade in i min bil, vilken försäkring betalar?",
        "Jämför symfonierna av {} med Mahlers.",
    ),
    (
        "Ulla Sjödin",
        "Morfar har skrivit in {} i testamentet och släkten är arg.",
        "Skriv en dialog mellan {} och en drake.",
    ),
    (
        "Per Albin Hansson",
        "Sätt upp {} och hans sambo på gästlistan till vårt bröllop.",
        "Vilket parti ledde {} före andra världskriget?",
    ),
]
PHRASES = [
    ("Hej, mitt namn är Ylva Tarnbek och jag söker en lägenhet.", "Ylva Tarnbek"),
    ("hej, jag heter zorvek och jag kan inte logga in på mitt konto", "zorvek"),
    ("Kära Ylva Tarnbek,\ntack för inbjudan till dopet!\nMarlene", "Ylva Tarnbek"),
    ("Härmed säger jag upp mitt hyreskontrakt.\nMed vänlig hälsning\nYlva Tarnbek", "Ylva Tarnbek"),
    ("Patient: Ylva Tarnbek\nDiagnos: bruten handled", "Ylva Tarnbek"),
    ("Ring Ylva Tarnbek om läkartiden på torsdag.", "Ylva Tarnbek"),
]
ORDINARY = [
    "Vem målade Mona Lisa, och var bodde Leonardo da Vinci?",
    "Förklara Pythagoras sats för en elev i åttan.",
    "Jämför utrikespolitiken under Olof Palme och Carl Bildt.",
    "Skriv en dialog mellan Sokrates och en bilförsäljare.",
    "Vilka filmer av Ingmar Bergman är värda att se?",
    "Lotta köper 3 häften för 4 kronor styck. Hur mycket betalar hon totalt?",
    "Skriv om meningen ”Paul äter ett äpple” i preteritum.",
    "Varför lämnar Nora sin familj i Ibsens drama?",
    "Skriv en Python-funktion som sorterar listan ['Anna', 'Bob', 'Sofie'].",
    "Jag ska till Mårbacka i sommar. Vad skrev Verner von Heidenstam för böcker?",
]


@pytest.mark.parametrize(("name", "private", "public"), PAIRS)
def test_the_context_decides(name, private, public):
    assert name in find_private_names(private.format(name), "sv")
    assert not find_private_names(public.format(name), "sv")


@pytest.mark.parametrize(("text", "name"), PHRASES)
def test_phrases_announce_names(text, name):
    assert name in find_private_names(text, "sv")


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_prompts_stay(text):
    assert not find_private_names(text, "sv")


def test_a_preposition_ends_a_name():
    assert detect_values("PERSON", "Jag bad Ylva i receptionen om en nyckel.", "sv") == ["Ylva"]
