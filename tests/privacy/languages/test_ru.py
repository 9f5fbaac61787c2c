"""Russian: names of private persons are found by their context, names of public knowledge stay."""

import pytest
from tests.privacy.detection import find_private_names, make_filter

from eyas.privacy.filter import CleanedRecord

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
