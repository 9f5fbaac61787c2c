import pytest
from tests.privacy.detection import detect, detect_values

ADDRESSES = [
    ("I live at 12 Elm Street, Apt 4, Springfield, IL 62704 and like it.", "en"),
    ("come to 221b baker street at nine", "en"),
    ("Flat 9, 10 Downing St, London SW1A 2AA", "en"),
    ("PO Box 123", "en"),
    ("he lives on Maple Street.", "en"),
    ("Ship to: 08298 Christopher Freeway Apt. 302", "en"),
    ("Address: The Old Mill, unit 5", "en"),
    ("Ich wohne in der Lindenstraße 12a, 10115 Berlin.", "de"),
    ("Goethestr. 4", "de"),
    ("Am Alten Markt 3\n50667 Köln", "de"),
    ("Waldweg 7, 80331 München", "de"),
    ("Postfach 12 34", "de"),
    ("J'habite au 12 bis, rue de la Paix, 75002 Paris.", "fr"),
    ("5 place de la République", "fr"),
    ("Vivo en Calle Mayor 12, 3º B, 28013 Madrid.", "es"),
    ("C/ Gran Vía, 5", "es"),
    ("Abito in Via Roma 12, 20121 Milano", "it"),
    ("via Garibaldi, 3", "it"),
    ("Moro na Rua das Flores, 123, 1200-192 Lisboa.", "pt"),
    ("Moro na Travessa do Carmo, S/N.", "pt"),
    ("Ik woon op Keizersgracht 123, 1015 CJ Amsterdam.", "nl"),
    ("Mieszkam przy ul. Długa 15/3, 00-238 Warszawa.", "pl"),
    ("Jag bor på Drottninggatan 12, 111 51 Stockholm.", "sv"),
]


@pytest.mark.parametrize(("text", "language"), ADDRESSES)
def test_found(text, language):
    assert detect_values("ADDRESS", text, language)


def test_flat_postcode_and_town_belong_to_it():
    (value,) = detect_values("ADDRESS", "Ich wohne in der Lindenstraße 12a, 10115 Berlin. Gut.", "de")
    assert value.endswith("Lindenstraße 12a, 10115 Berlin")
    (value,) = detect_values("ADDRESS", "I live at 12 Elm Street, Apt 4, Springfield, IL 62704 and like it.")
    assert value == "12 Elm Street, Apt 4, Springfield, IL 62704"


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Chapter 5 Light Drive systems", "en"),
        ("A 2 way street, 5 minutes down the road", "en"),
        ("Sent via Bluetooth 5 and Via Python 3.", "en"),
        ("Smith et al. Nature 2019", "en"),
        ("IP address: 10.0.0.1; address: 0x12ff3; email address 2 is wrong", "en"),
        ("a room of 600 square feet and 4 square ones", "en"),
        ("Im Jahr 2020 stieg der Umsatz, Kapitel 5 zeigt es.", "de"),
        ("Der Platz 3 ist frei, der Weg 5 gesperrt.", "de"),
        ("Le train part à 8 h 15, place libre 5", "fr"),
        ("Calle cortada por obras: ¿qué significa?", "es"),
        ("Via libera al decreto: cosa significa?", "it"),
    ],
)
def test_clean(text, language):
    assert detect_values("ADDRESS", text, language) == [], detect(text, language)
