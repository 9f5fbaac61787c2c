"""Dutch: names of private persons are found by their context, names of public knowledge stay."""

import pytest
from tests.privacy.detection import detect_values, find_private_names

PAIRS = [
    (
        "Ria Hoogland",
        "{} van de derde verdieping zet haar fiets steeds in ons portiek, wat kan de vve doen?",
        "Wie was {}, de beeldhouwster?",
    ),
    (
        "Jan Steen",
        "Onze stagiair {} meldt zich elke maandag ziek. Schrijf een officiële waarschuwing.",
        "Wat zie je op het bekendste schilderij van {}?",
    ),
    (
        "Zorvek Tallis",
        "hoi, ik ben {} en mijn pakketje is nooit bezorgd",
        "In welke film speelde {} de hoofdrol?",
    ),
    (
        "Naima el Idrissi",
        "Mijn nichtje {} trouwt in juni en ik moet een toespraak houden.",
        "Schrijf een sprookje over {}, een heks zonder bezem.",
    ),
    (
        "Annie Schmidt",
        "Verwijsbrief: {} heeft al weken last van de linkerknie, graag een MRI.",
        "Waarom kreeg {} de Gouden Griffel?",
    ),
    (
        "Daan Verbeek",
        "Op het schoolplein heeft {} mijn zoon geduwd, hoe spreek ik zijn ouders aan?",
        "{} heeft 14 knikkers en geeft er 6 weg. Hoeveel houdt hij over?",
    ),
    (
        "Marco van Basten",
        "Ik lig in scheiding en {} wil de kinderen het hele weekend. Wat zegt de omgangsregeling?",
        "Hoeveel doelpunten maakte {} voor Oranje?",
    ),
    (
        "Trudy Wessels",
        "Stuur {} een aanmaning, de factuur van mei staat nog open.",
        "Welke prijs won {} met haar dichtbundel?",
    ),
    (
        "Willem Drees",
        "Onze buurman {} is overleden. Help me met een kaart voor zijn vrouw.",
        "Welke rol had {} in de politiek na de oorlog?",
    ),
    (
        "Sanne Kolkman",
        "mijn vriend appt stiekem met {}, moet ik haar zelf een bericht sturen?",
        "Welke ontdekking publiceerde {} in de natuurkunde?",
    ),
    (
        "Bram Huisman",
        "{} solliciteerde bij ons als kok, maar we nemen iemand anders. Schrijf de afwijzing.",
        "Vat de roman van {} samen in tien zinnen.",
    ),
    (
        "Marie Curie",
        "Cliënte {} gebruikt een rollator en krijgt drie keer per week thuiszorg.",
        "Voor welk onderzoek kreeg {} haar tweede Nobelprijs?",
    ),
    (
        "Joost Lammers",
        "Aanrijding op de parkeerplaats: {} reed achteruit tegen mijn auto, welke verzekering betaalt?",
        "Vergelijk de symfonieën van {} met die van Mahler.",
    ),
    (
        "Wilma Postma",
        "Opa heeft {} in zijn testament gezet en de familie is boos.",
        "Schrijf een dialoog tussen {} en een draak.",
    ),
    (
        "Anton Mussert",
        "Zet {} en zijn vriendin op de gastenlijst voor onze bruiloft.",
        "Welke partij richtte {} voor de Tweede Wereldoorlog op?",
    ),
]
PHRASES = [
    ("Goedemiddag, mijn naam is Ymke Tarnbek en ik zoek een kamer.", "Ymke Tarnbek"),
    ("hallo, ik heet zorvek en ik kan niet inloggen op mijn account", "zorvek"),
    ("Lieve Ymke Tarnbek,\nbedankt voor de uitnodiging voor de doop!\nMarleen", "Ymke Tarnbek"),
    ("Hierbij zeg ik de huur van mijn kamer op.\nMet vriendelijke groet,\nYmke Tarnbek", "Ymke Tarnbek"),
    ("Patiënt: Ymke Tarnbek\nDiagnose: gebroken pols", "Ymke Tarnbek"),
    ("Rouwkaart: Marlies te Tarnbek was veertig jaar penningmeester van onze club.", "Marlies te Tarnbek"),
]
ORDINARY = [
    "Wie schilderde de Mona Lisa, en waar woonde Leonardo da Vinci?",
    "Leg de stelling van Pythagoras uit aan een brugklasser.",
    "Vergelijk het buitenlands beleid van Joseph Luns en Max van der Stoel.",
    "Schrijf een dialoog tussen Socrates en een autoverkoper.",
    "Welke films van Paul Verhoeven zijn de moeite waard?",
    "Lotte koopt 3 schriften van 4 euro. Hoeveel betaalt ze in totaal?",
    "Zet de zin 'Paul eet een appel' in de verleden tijd.",
    "Waarom gaat Max Havelaar in tegen het bestuur op Java?",
    "Schrijf een Python-functie die de lijst ['Anna', 'Bob', 'Sofie'] sorteert.",
    "Ik ga van de zomer naar Delft. Wat heeft Johannes Vermeer daar geschilderd?",
]


@pytest.mark.parametrize(("name", "private", "public"), PAIRS)
def test_the_context_decides(name, private, public):
    assert name in find_private_names(private.format(name), "nl")
    assert not find_private_names(public.format(name), "nl")


@pytest.mark.parametrize(("text", "name"), PHRASES)
def test_phrases_announce_names(text, name):
    assert name in find_private_names(text, "nl")


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_prompts_stay(text):
    assert not find_private_names(text, "nl")


def test_a_family_has_a_title():
    assert detect_values("PERSON", "Groeten van fam. De Tarnbek", "nl") == ["De Tarnbek"]
