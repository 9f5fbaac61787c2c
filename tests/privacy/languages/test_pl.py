"""Polish: names of private persons are found by their context, names of public knowledge stay."""

import pytest
from tests.privacy.detection import find_private_names

PAIRS = [
    (
        "Halina Mroczek",
        "Od trzech miesięcy {} z parteru nie płaci za ogrzewanie, co może zrobić wspólnota?",
        "Kim była {}, rzeźbiarka?",
    ),
    (
        "Jan Matejko",
        "W piątek {} nie przyszedł na dyżur i nie odbiera telefonu. Zredaguj upomnienie.",
        "Co przedstawia najsłynniejszy obraz, który namalował {}?",
    ),
    (
        "Zorvek Tallis",
        "hej, nazywam się {} i moja paczka utknęła w sortowni",
        "W jakim filmie zagrał {}?",
    ),
    (
        "Oksana Horbenko",
        "Moja opiekunka {} wyjeżdża na tydzień i szukam kogoś do taty.",
        "Napisz bajkę, w której {} jest czarodziejką.",
    ),
    (
        "Wisława Szymborska",
        "Skierowanie na rehabilitację kolana: {}, PESEL w załączniku.",
        "Omów motyw przemijania, o którym pisała {}.",
    ),
    (
        "Tymon Wroński",
        "Nasz syn i {} pobili się na przerwie, wychowawczyni wzywa nas na rozmowę.",
        "{} ma 15 kulek i oddaje 6. Ile kulek mu zostało?",
    ),
    (
        "Robert Lewandowski",
        "Rozwodzę się, a {} chce opieki nad dziećmi. Jak odpowiedzieć na pozew?",
        "Ile goli strzelił {} w ekstraklasie?",
    ),
    (
        "Bożena Ćwik",
        "Faktura za korepetycje: płaci {}, termin 14 dni.",
        "Jaką nagrodę dostała {} za tom wierszy?",
    ),
    (
        "Kazimierz Deyna",
        "Zmarł nasz wieloletni sąsiad, {}. Ułóż kondolencje dla wdowy.",
        "W którym klubie grał napastnik {}?",
    ),
    (
        "Dorota Pasik",
        "{} zdradziła mnie z moim bratem, jak mam z nią rozmawiać?",
        "Jakie odkrycie opublikowała {}?",
    ),
    (
        "Igor Strzałka",
        "Kandydat {} nie przeszedł rozmowy kwalifikacyjnej, napisz uprzejmą odmowę.",
        "Streść powieść, której autorem jest {}.",
    ),
    (
        "Maria Curie",
        "Pacjentka {} przyjmuje leki na nadciśnienie i prosi o receptę.",
        "Za co {} dostała drugą Nagrodę Nobla?",
    ),
    (
        "Sebastian Kłos",
        "Stłuczka na parkingu: sprawcą był {}, polisa w innym zakładzie.",
        "Porównaj symfonie, które skomponował {}, z utworami Szymanowskiego.",
    ),
    (
        "Urszula Brzoza",
        "Babcia zapisała działkę wujkowi, a {} żąda zachowku.",
        "Napisz dialog, w którym {} spotyka smoka.",
    ),
    (
        "Adam Mickiewicz",
        "Na wesele przyjedzie {} z żoną, dopisz do listy gości.",
        "W jakiej epoce tworzył {}?",
    ),
]
PHRASES = [
    ("Dzień dobry, nazywam się Jowita Tarnbek i szukam mieszkania.", "Jowita Tarnbek"),
    ("cześć, mam na imię zorwek i nie mogę się zalogować na konto", "zorwek"),
    ("Droga Jowito Tarnbek,\ndziękuję za zaproszenie na chrzciny!\nMarysia", "Jowito Tarnbek"),
    ("Wypowiadam umowę najmu mieszkania.\nZ poważaniem\nJowita Tarnbek", "Jowita Tarnbek"),
    ("Pacjentka: Jowita Tarnbek\nRozpoznanie: złamanie nadgarstka", "Jowita Tarnbek"),
    ("Napisz do Agnieszki Tarnbek w sprawie zaległego czynszu.", "Agnieszki Tarnbek"),
]
ORDINARY = [
    "Kto namalował Mona Lisę i gdzie mieszkał Leonardo da Vinci?",
    "Wyjaśnij twierdzenie Pitagorasa uczniowi siódmej klasy.",
    "Porównaj politykę zagraniczną Józefa Becka i Józefa Piłsudskiego.",
    "Napisz dialog między Sokratesem a sprzedawcą samochodów.",
    "Które filmy Andrzeja Wajdy warto obejrzeć?",
    "Kasia kupiła 3 zeszyty po 4 złote. Ile zapłaciła?",
    "Zamień zdanie „Paweł je jabłko” na czas przeszły.",
    "Dlaczego Izabela Łęcka odrzuca Wokulskiego?",
    "Napisz funkcję w Pythonie, która sortuje listę ['Anna', 'Bob', 'Zofia'].",
    "Jadę latem do Żelazowej Woli. Co tam skomponował Karol Szymanowski?",
]


@pytest.mark.parametrize(("name", "private", "public"), PAIRS)
def test_the_context_decides(name, private, public):
    assert name in find_private_names(private.format(name), "pl")
    assert not find_private_names(public.format(name), "pl")


@pytest.mark.parametrize(("text", "name"), PHRASES)
def test_phrases_announce_names(text, name):
    assert name in find_private_names(text, "pl")


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_prompts_stay(text):
    assert not find_private_names(text, "pl")
