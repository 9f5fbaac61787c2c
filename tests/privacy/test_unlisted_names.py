"""Names that no list and no dictionary holds, in texts about people, and unknown words that are no names."""

import pytest
from tests.privacy.detection import detect, detect_values


@pytest.mark.parametrize(
    ("text", "language", "names"),
    [
        ("tell zofreka im running late, she waits at the station", "en", ["zofreka"]),
        ("im meeting zofreka and quindar tonight, what do i wear", "en", ["zofreka", "quindar"]),
        ("ich treffe zofreka und quindar heute abend, meine schwester auch", "de", ["zofreka", "quindar"]),
        ("je suis invité chez quelvanne pour son anniversaire", "fr", ["quelvanne"]),
        ("dile a brelindo que llego tarde a la boda", "es", ["brelindo"]),
        ("auguri di compleanno a torvella da parte mia", "it", ["torvella"]),
        ("fala pra jurandeva que vou atrasar pro aniversário", "pt", ["jurandeva"]),
        ("een bericht aan wiebrandus over zijn verjaardag", "nl", ["wiebrandus"]),
        ("powiedz zdzimirce że się spóźnię na urodziny", "pl", ["zdzimirce"]),
        ("ska träffa bröndulf imorgon, vad säger jag", "sv", ["bröndulf"]),
    ],
)
def test_names_in_lower_case_chat(text, language, names):
    assert detect_values("PERSON", text, language) == names


@pytest.mark.parametrize(
    ("text", "language", "name"),
    [
        ("What did Zorvek say? Mail office@zorvek.io", "en", "Zorvek"),
        ("Gestern war Zorvek da. Schreib an buero@zorvek.io", "de", "Zorvek"),
        ("Hier Quelvanne est venue. Écris à bureau@zorvek.io", "fr", "Quelvanne"),
        ("Ayer vino Brelindo. Escribe a oficina@zorvek.io", "es", "Brelindo"),
        ("Ieri è venuta Torvella. Scrivi a ufficio@zorvek.io", "it", "Torvella"),
        ("Ontem veio Jurandeva. Escreve para geral@zorvek.io", "pt", "Jurandeva"),
        ("Gisteren kwam Wiebrandus langs. Mail naar kantoor@zorvek.io", "nl", "Wiebrandus"),
        ("Wczoraj przyszła Zdzimirka. Pisz na biuro@zorvek.io", "pl", "Zdzimirka"),
        ("Igår kom Bröndulf hit. Skriv till kontor@zorvek.io", "sv", "Bröndulf"),
    ],
)
def test_a_capital_in_a_text_with_an_address(text, language, name):
    assert detect_values("PERSON", text, language) == [name]


@pytest.mark.parametrize(
    "text",
    [
        "Schreib an buero@zorvek.io wegen der Terminverschiebung und der Heizkostenabrechnung.",
        "Die Wohnungsübergabe, der Mietvertrag und die Kautionsrückzahlung: buero@zorvek.io",
        "Bitte Lohnsteuerbescheinigung und Urlaubsantrag an buero@zorvek.io senden.",
    ],
)
def test_german_nouns_and_compounds_stay(text):
    assert detect(text, "de") == [("EMAIL", "buero@zorvek.io")]


@pytest.mark.parametrize(
    "text",
    [
        "I bought an iPhone and a Samsung Galaxy, ask office@zorvek.io about Netflix, Spotify and WhatsApp.",
        "Ship it with Kubernetes, Terraform and GitHub; mail office@zorvek.io",
        "I recieve mails at office@zorvek.io and definitly answer tommorow",
    ],
)
def test_brands_terms_and_slips_beside_an_address_stay(text):
    assert detect(text) == [("EMAIL", "office@zorvek.io")]


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("write a recipe with gochujang and tofu", "en"),
        ("how do i run kubernetes with istio and envoy on my laptop", "en"),
        ("help me learn pytorch with lightning", "en"),
        ("best strategy for civilization with babylon", "en"),
        ("rezept mit gochujang und tofu", "de"),
        ("kubernetes mit istio auf dem laptop einrichten", "de"),
        ("recette avec du gochujang et du tofu", "fr"),
        ("receta con gochujang y tofu", "es"),
        ("ricetta con gochujang e tofu", "it"),
        ("receita com gochujang e tofu", "pt"),
        ("recept met gochujang en tofu", "nl"),
        ("przepis z gochujang i tofu", "pl"),
        ("recept med gochujang och tofu", "sv"),
    ],
)
def test_chats_without_people_stay(text, language):
    assert detect(text, language) == []


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("tell my boss that kubernetes is down", "en"),
        ("can you explain webpack to my sister", "en"),
        ("my brother plays minecraft with mods", "en"),
        ("my girlfriend loves spotify and tiktok", "en"),
        ("my sister definitly wants to acommodate the portugese guests", "en"),
        ("meine schwester nutzt whatsapp und instagram", "de"),
        ("meine schwester möchte warscheinlich eine andere lösung", "de"),
        ("ma soeur regarde netflix et tiktok", "fr"),
        ("mi hermana usa whatsapp y instagram", "es"),
    ],
)
def test_brands_terms_and_slips_in_chats_about_people_stay(text, language):
    assert detect(text, language) == []
