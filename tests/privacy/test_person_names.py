"""Names on Faker's lists and on none. Those here are made up of usual parts; none means a person."""

import pytest
from tests.privacy.detection import detect, detect_values

from eyas.privacy.name_tagger import Tagger
from eyas.privacy.word_lists import load_lexicon
from eyas.privacy.words import split_words

UNLISTED = ("tevita", "fifita", "vandenquist", "ngata", "okwuosa")


def test_the_unlisted_names_are_on_no_list():
    lists = load_lexicon()
    assert not set(UNLISTED) & (lists.first_names | lists.last_names | lists.common)


@pytest.mark.parametrize(
    ("text", "language", "names"),
    [
        ("Natalia sold clips to 48 friends.", "en", ["Natalia"]),
        ("my name is tevita fifita and i need help", "en", ["tevita fifita"]),
        ("hey its tevita, can u help", "en", ["tevita"]),
        ("yo tell anna i said hi", "en", ["anna"]),
        ("Patient: Fifita, Tevita\nborn 1970", "en", ["Fifita, Tevita"]),
        ("I asked Tevita Fifita about it.", "en", ["Tevita Fifita"]),
        ("BILL TO\nTevita Ngata\nTotal 12", "en", ["Tevita Ngata"]),
        ("From: Tevita Okwuosa <x>", "en", ["Tevita Okwuosa"]),
        ("# Author: Tevita Fifita\nx = 1", "en", ["Tevita Fifita"]),
        ("INFO user=tevita.fifita logged in", "en", ["tevita.fifita"]),
        ('{"first_name": "Tevita", "last_name": "Fifita"}', "en", ["Tevita", "Fifita"]),
        ("My boss Tevita told me to go.", "en", ["Tevita"]),
        ("See Dr. Vandenquist or Mrs O'Brien-Smith.", "en", ["Vandenquist", "O'Brien-Smith"]),
        ("Thanks!\n\nBest regards,\nTevita van der Berg\n", "en", ["Tevita van der Berg"]),
        ("ok\nthx,\ntev", "en", ["tev"]),
        ("Anna's dog and Thomas' cat", "en", ["Anna", "Thomas"]),
        ("ANNA SCHMIDT IS HERE", "en", ["ANNA SCHMIDT"]),
        ("He met Ana María de la Cruz y López there.", "en", ["Ana María de la Cruz y López"]),
        ("Mark has five apples and Rose wanted three.", "en", ["Mark", "Rose"]),
        ("I met Will Smith.", "en", ["Will Smith"]),
        ("Sehr geehrte Frau Dr. Müller-Lüdenscheidt, danke.", "de", ["Müller-Lüdenscheidt"]),
        ("Gestern rief Herr de la Vega an.", "de", ["de la Vega"]),
        ("Ich heiße Tevita Fifita und wohne hier.", "de", ["Tevita Fifita"]),
        ("mein name ist tevita ngata, wie geht das?", "de", ["tevita ngata"]),
        ("Je m'appelle Tevita Ngata et j'habite ici.", "fr", ["Tevita Ngata"]),
        ("l'ami d'Anna Schmidt", "fr", ["Anna Schmidt"]),
        ("Me llamo Tevita Fifita y busco trabajo.", "es", ["Tevita Fifita"]),
        ("ciao sono tevita, mi aiuti?", "it", ["tevita"]),
        ("Meu nome é Tevita Fifita.", "pt", ["Tevita Fifita"]),
        ("Met vriendelijke groet,\nTevita Fifita", "nl", ["Tevita Fifita"]),
        ("Nazywam się Tevita Fifita.", "pl", ["Tevita Fifita"]),
        ("Jag heter Tevita Fifita.", "sv", ["Tevita Fifita"]),
    ],
)
def test_found(text, language, names):
    assert detect_values("PERSON", text, language) == names


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("May I ask how compound interest works?", "en"),
        ("Will you explain the Krebs cycle?", "en"),
        ("Mark the following statements as true or false.", "en"),
        ("Bill the client after each milestone is complete.", "en"),
        ("Grace periods apply. Rose bushes need sun. Hope is not a strategy.", "en"),
        ("April showers bring May flowers; in May it rains, on May 5 too.", "en"),
        ("Paris Agreement targets, and Paris is the capital of France.", "en"),
        ("Victoria Falls and the Golden Gate Bridge", "en"),
        ("Jordan borders Israel. What is its capital?", "en"),
        ("def mark(self, x): return self.rose + x.grace", "en"),
        ("class Bill(Base): pass", "en"),
        ("Compare Merge Sort with Quick Sort in Visual Studio Code.", "en"),
        ("Name: Widget Pro\nPrice: 20 dollars", "en"),
        ("Subject: Quarterly Report\nTo: All Staff", "en"),
        ("Dear Sir or Madam, hi there, thanks in advance!", "en"),
        ("i'm tired and cant focus", "en"),
        ("Hello World in Rust, please.", "en"),
        ("Who won the World Cup in 2014?", "en"),
        ("Sehr geehrte Damen und Herren, hiermit kündige ich den Vertrag.", "de"),
        ("Die Rechnung mit dem Betrag und der Adresse der Firma", "de"),
        ("Hallo zusammen, wie geht das?", "de"),
        ("Madame, Monsieur, je vous écris pour résilier mon contrat.", "fr"),
        ("Hola, ¿me ayudas con los deberes?", "es"),
        ("Gentili signori, allego la relazione.", "it"),
        ("Oi, pode me ajudar com a lição?", "pt"),
        ("Hoi, kun je me helpen met mijn huiswerk?", "nl"),
        ("Cześć, pomożesz mi w zadaniu?", "pl"),
        ("Hej, kan du hjälpa mig med läxan?", "sv"),
    ],
)
def test_clean(text, language):
    assert detect(text, language) == []


def test_words_have_their_places():
    words = split_words("d'Anna's O'Brien you'll x_y")
    assert words.written == ("Anna", "O'Brien", "you'll", "x", "y")
    assert [words.text[begin:end] for begin, end in zip(words.starts, words.ends, strict=True)] == list(words.written)


def test_towns_count_where_they_say_something_about_a_person():
    assert detect_values("LOCATION", "I live in Osnabrück now.") == ["Osnabrück"]
    assert detect_values("LOCATION", "Natalia drove to Boston.") == ["Boston"]
    assert detect_values("LOCATION", "Boston is a large town.") == []


def test_names_are_found_by_the_function_alone():
    spans = list(Tagger(split_words("Anna and Bert"), "en").run())
    assert [(span.start, span.end) for span in spans] == [(0, 4), (9, 13)]


@pytest.mark.parametrize(
    ("text", "language", "names"),
    [
        ("Ayer volcó la furgoneta. Conducía Tomás Egurrola.", "es", ["Tomás Egurrola"]),
        ("Vive cerca de Ávila y Tomás Egurrola la visita.", "es", ["Tomás Egurrola"]),
        ("Empieza la Diálisis Peritoneal mañana.", "es", []),
        ("Dossier reçu : Zéphirine Kwassou, sans permis.", "fr", ["Zéphirine Kwassou"]),
        ("Dossier reçu : Zorvek de La Rochebrune, sans permis.", "fr", ["Zorvek de La Rochebrune"]),
        ("J'ai écrit qu'Antoine viendra.", "fr", ["Antoine"]),
        ("Daj to Markowi Wiśniewskiemu.", "pl", ["Markowi Wiśniewskiemu"]),
    ],
)
def test_a_dictionary_tells_titles_of_words_from_unlisted_names(text, language, names):
    assert detect_values("PERSON", text, language) == names


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("Spotkałem się z Anną i Markiem.", ["Anną", "Markiem"]),
        ("Powiedz Kasi, że nie przyjdę.", ["Kasi"]),
        ("Zadzwoń do Agnieszki Zorveckiej.", ["Agnieszki Zorveckiej"]),
        ("Pracuję w Danii, w Zarządzie Dróg.", []),
    ],
)
def test_cases_of_names_in_polish(text, names):
    assert detect_values("PERSON", text, "pl") == names


@pytest.mark.parametrize(
    ("text", "language", "names"),
    [
        ("Anna i Stockholm är min syster.", "sv", ["Anna"]),
        ("Ik heb Anna op Schiphol gezien.", "nl", ["Anna"]),
        ("Cornelis op den Akker belde.", "nl", ["Cornelis op den Akker"]),
        ("Bel Anna Zorvek terug.", "nl", ["Anna Zorvek"]),
        ("Zorvek Tallis vergat zijn sleutel.", "nl", ["Zorvek Tallis"]),
        ("Ik werk bij de Algemene Rekenkamer.", "nl", []),
    ],
)
def test_where_a_name_begins_and_ends(text, language, names):
    assert detect_values("PERSON", text, language) == names


@pytest.mark.parametrize(
    ("text", "language", "town"),
    [
        ("Zu verkaufen, IBAN DE89370400440532013011, Abholung in Memmingen.", "de", "Memmingen"),
        ("Te koop, mail naar tevita@web.de, te bezichtigen in IJmuiden.", "nl", "IJmuiden"),
        ("Te koop, mail naar tevita@web.de, te bezichtigen in 's-Hertogenbosch.", "nl", "'s-Hertogenbosch"),
        ("Mail till tevita@web.de, Simrishamn", "sv", "Simrishamn"),
    ],
)
def test_towns_beside_personal_data(text, language, town):
    assert detect_values("LOCATION", text, language) == [town]


def test_a_town_that_is_a_word_needs_a_preposition():
    assert detect_values("LOCATION", "Plate and keeper, mail tevita@web.de.") == []  # Plate is a town in Germany


def test_a_column_of_names_in_lower_case():
    text = "förnamn,efternamn,ort\nzorvek,quillim,simrishamn\n"
    assert [value for _, value in detect(text, "sv")] == ["zorvek", "quillim", "simrishamn"]


@pytest.mark.parametrize(
    "text", ["I like veggies and flowers, mail tevita@web.de.", "My Harley-Davidson Sportster won't start."]
)
def test_things_are_no_names(text):
    assert detect_values("PERSON", text) == []
