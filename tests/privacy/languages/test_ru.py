"""Russian: names of private persons are found by their context, names of public knowledge stay."""

import pytest
from tests.privacy.detection import detect, find_private_names, make_filter

from eyas.privacy.filter import CleanedRecord
from eyas.privacy.surrogates import Surrogates

PAIRS = [
    ("Лидия Мерзлякова", "Моя соседка {} снизу жалуется на шум, что ответить?", "Кто такая {}, скульптор?"),
    ("Ярополк Стременной", "Меня зовут {}, посылка третью неделю лежит на сортировке.", "В каком фильме играл {}?"),
    ("Тимур Галиуллин", "Наш сын и {} подрались на перемене, нас вызывают в школу.", "Какой закон открыл {}?"),
    (
        "Жанна Ковригина",
        "Уволила мастера, а {} требует зарплату за август. Как быть?",
        "Назови картины, которые написала {}.",
    ),
    ("Осип Вяземцев", "Пациент {}, жалобы на боли в спине, выписка из стационара.", "О чем роман, автор которого {}?"),
]


def clean(text):
    """What the mode "private" writes."""
    (record,) = make_filter(names="private").clean([((text,), "ru")])
    assert isinstance(record, CleanedRecord)
    return record.texts[0]


@pytest.mark.parametrize(("name", "private", "public"), PAIRS)
def test_context_decides(name, private, public):
    assert " ".join(find_private_names(private.format(name), "ru")) == name
    assert find_private_names(public.format(name), "ru") == []


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("Передай Семёну Бурлакову, что я опоздаю.", ["Семёну Бурлакову"]),
        ("Мой сосед Толик опять занял парковку.", ["Толик"]),
        ("ФИО: Зульфия Ахметова\nТелефон: 8 912 555-01-12", ["Зульфия Ахметова"]),
        ("Уважаемая Раиса Тимофеевна!\nПодтвердите, пожалуйста, запись.", ["Раиса Тимофеевна"]),
    ],
)
def test_forms_of_names(text, names):
    assert find_private_names(text, "ru") == names


@pytest.mark.parametrize(
    "text",
    [
        "Сравни образы Онегина и Печорина в русском романе.",
        "Какие элементы предсказал Менделеев?",
        "У Маши было 5 яблок, она отдала Коле 2. Сколько яблок осталось?",
        "Почему Наполеон проиграл битву под Лейпцигом?",
    ],
)
def test_public_names_stay(text):
    assert clean(text) == text


def test_a_surrogate_is_russian():
    text = clean("Моя подруга Алевтина Прохорова выходит замуж, нужен тост.")
    assert "Алевтина" not in text
    assert "Прохоров" not in text
    assert text.isascii() is False


def test_surrogates_fit_the_sentence():
    surrogates = Surrogates(b"0" * 16)
    for form, ending in (("Саманты", "ы"), ("Серафимой", "ой"), ("Рэймонда", "а"), ("Дроздову", "у")):
        role = "last" if form == "Дроздову" else "first"
        known = ("саманта", "серафима", "рэймонд", "дроздов")
        assert surrogates.replace_name_part(form, role, "ru", known=known).endswith(ending)
    patronymics = ("ович", "евич", "ьич", "овна", "евна", "ична")
    names = (f"{chr(code)}{rest}" for code in range(ord("А"), ord("Я")) for rest in ("ирль", "обей", "оць"))
    assert not any(surrogates.replace_name_part(name, "last", "ru").endswith(patronymics) for name in names)


def test_addresses_in_a_text_of_another_script_get_latin_names():
    surrogates = Surrogates(b"0" * 16)
    for language in ("ru", "ar", "hi", "zh", "ja", "ko"):
        assert surrogates.replace_value("EMAIL", "lena@web.de", language)[0].isalpha()
        assert surrogates.replace_value("HANDLE", "@lena_k", language)[1].isalpha()


def test_towns_plates_and_births():
    text = "Справка о рождении: Айгуль Глебко, 17.07.1985, ныне город Кедропольск, машина у147ор 116, o@web.de"
    found = {value for _, value in detect(text, "ru")}
    assert {"17.07.1985", "Кедропольск", "у147ор 116"} <= found
