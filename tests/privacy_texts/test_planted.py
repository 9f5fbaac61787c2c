"""The generators of private values follow the public rules, and the planted texts are what they say."""

import re
from collections.abc import Callable
from random import Random

import pytest
from data_options import Options
from data_planted import FILLINGS, SOFT, STRICT, judge, kind_table, make_texts, planted, recall_rows
from data_split import HALVES
from planted import documents, ids_europe, ids_world, objects, payment
from planted.checks import icao_digit, mod_97, verhoeff_digit
from planted.fill import FilledText, fill, slots_of
from result_rows import Row
from stdnum import imei, luhn, verhoeff
from stdnum.be import nn
from stdnum.br import cpf
from stdnum.cn import ric
from stdnum.de import idnr
from stdnum.es import ccc, nie, nif
from stdnum.fr import nir
from stdnum.gb import nhs
from stdnum.in_ import aadhaar, pan
from stdnum.it import codicefiscale
from stdnum.jp import in_ as my_number
from stdnum.kr import rrn
from stdnum.nl import bsn
from stdnum.pl import nip, pesel
from stdnum.pt import cc
from stdnum.pt import nif as portuguese_nif
from stdnum.ru import inn
from stdnum.se import personnummer
from stdnum.us import ssn
from text_sets import LANGUAGES, sets_of

CHECKS: dict[str, tuple[Callable[[Random], str], Callable[[str], object]]] = {
    "card": (lambda rng: payment.card(rng, False), lambda text: luhn.validate(re.sub("[ -]", "", text))),
    "iban": (lambda rng: payment.iban(rng, "DE", False), lambda text: _is_iban(re.sub("[ -]", "", text.upper()))),
    "ccc": (lambda rng: payment.account(rng, "es", ""), ccc.validate),
    "nhs": (ids_europe.nhs, nhs.validate),
    "steuer_id": (ids_europe.steuer_id, idnr.validate),
    "nir": (ids_europe.nir, nir.validate),
    "dni": (ids_europe.dni, lambda text: (nie if text[0] in "XYZ" else nif).validate(re.sub(r"\W", "", text))),
    "codice_fiscale": (ids_europe.codice_fiscale, codicefiscale.validate),
    "portuguese_nif": (ids_europe.portuguese_nif, portuguese_nif.validate),
    "cartao_cidadao": (ids_europe.cartao_cidadao, cc.validate),
    "bsn": (ids_europe.bsn, bsn.validate),
    "rijksregister": (ids_europe.rijksregister, nn.validate),
    "pesel": (ids_europe.pesel, pesel.validate),
    "nip": (ids_europe.nip, nip.validate),
    "personnummer": (ids_europe.personnummer, personnummer.validate),
    "inn": (ids_europe.inn, inn.validate),
    "ssn": (ids_world.ssn, lambda text: ssn.validate(text.replace(" ", "-"))),
    "cpf": (ids_world.cpf, cpf.validate),
    "resident_id": (ids_world.resident_id, lambda text: ric.calc_check_digit(text) == text[-1]),
    "my_number": (ids_world.my_number, my_number.validate),
    "resident_registration": (ids_world.resident_registration, rrn.validate),
    "aadhaar": (ids_world.aadhaar, lambda text: aadhaar.validate(text.replace("-", " "))),
    "pan": (ids_world.pan, pan.validate),
    "saudi_id": (ids_world.saudi_id, luhn.validate),
    "imei": (objects.imei, imei.validate),
}


def _is_iban(text: str) -> bool:
    assert mod_97(text[4:] + text[:4]) == 1
    return True


@pytest.mark.parametrize("name", CHECKS)
def test_numbers_follow_the_rules_of_their_registries(name: str) -> None:
    rng = Random(3)
    draw, validate = CHECKS[name]
    for _ in range(300):
        assert validate(draw(rng))


def test_published_examples_of_check_digits() -> None:
    assert icao_digit("L898902C3") == "6"  # ICAO Doc 9303 part 4, the passport of Utopia
    assert verhoeff_digit("236") == verhoeff.calc_check_digit("236") == "3"
    assert mod_97("NWBK60161331926819" + "GB82".replace("82", "") + "29") == 1  # the example of the IBAN registry


def test_cards_and_accounts_that_the_text_names_may_break_the_rules() -> None:
    rng = Random(4)
    bare = [re.sub(r"\D", "", payment.card(rng, True)) for _ in range(400)]
    assert 0.05 < sum(not luhn.is_valid(number) for number in bare) / 400 < 0.2
    assert 0.08 < sum(number.startswith(payment.UNASSIGNED) for number in bare) / 400 < 0.25
    ibans = [re.sub("[ -]", "", payment.iban(rng, "FR", True)).upper() for _ in range(400)]
    wrong = sum(mod_97(text[4:] + text[:4]) != 1 for text in ibans)
    assert 0.03 < wrong / 400 < 0.16
    assert len({text[:2] for text in ibans}) >= 20


def test_vins_have_no_letters_that_look_like_digits() -> None:
    rng = Random(5)
    for _ in range(200):
        assert re.fullmatch("[A-HJ-NPR-Z0-9]{17}", objects.vin(rng).replace(" ", "").upper())


def test_secrets_look_like_secrets() -> None:
    rng = Random(6)
    keys = [documents.api_key(rng) for _ in range(300)]
    assert len({re.split("[-_.]", key)[0][:4] for key in keys if not re.fullmatch("[0-9a-f]{32}", key)}) >= 8
    assert all(re.fullmatch(r"\d{4}|\d{6}", documents.pin(rng)) for _ in range(100))


@pytest.fixture(scope="module")
def made() -> list[FilledText]:
    return [one for part in HALVES for texts in sets_of(LANGUAGES, part) for one in make_texts(texts, 0)]


def test_texts_hold_their_values(made: list[FilledText]) -> None:
    assert len(made) % FILLINGS == 0
    for one in made:
        assert one.planted
        for value in one.planted:
            assert value.value in one.text
        assert "{" not in one.fixed or "{{" not in one.text


def test_the_same_seed_gives_the_same_texts_and_another_one_others(made: list[FilledText]) -> None:
    texts = sets_of(("en",), "develop")[0]
    assert make_texts(texts, 0) == [one for one in made if one.template in {text.group for text in texts.planted}]
    first, second = ({one.text for one in make_texts(texts, seed)} for seed in (0, 1))
    assert len(first & second) < 0.05 * len(first)  # a template with one short slot can come again


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_kind_is_planted_in_every_language(made: list[FilledText], language: str) -> None:
    slots = {slot for one in made if one.language == language for slot in one.slots}
    if not slots:
        pytest.skip("no texts in this language yet")
    assert slots >= {slot for slots in STRICT.values() for slot in slots} | {"person", "phone", "email", "street"}
    assert len(slots) >= 28


def test_values_survive_in_a_text_that_nobody_touched(made: list[FilledText]) -> None:
    left = [judge(one, (one.text,)) for one in made]
    assert sum(len(outcome.survivors) for outcome in left) >= 0.99 * sum(len(one.planted) for one in made)


def test_nothing_survives_where_values_are_blanked(made: list[FilledText]) -> None:
    for one in made:
        text = one.text
        for value in sorted(one.planted, key=lambda value: -len(value.value)):
            text = text.replace(value.value, "\N{WHITE SQUARE}")
        assert not judge(one, (text,)).survivors, (one.template, text)


def rows_of(made: list[FilledText], leak: str = "", drops_all: bool = False) -> dict[str, Row]:
    outcomes = []
    for one in made:
        values = " ".join(value.value for value in one.planted if value.slot == leak)
        outcomes.append(judge(one, None if drops_all or not one.slots <= SOFT else (values or "clean",)))
    return {row.name.split(", of")[0]: row for row in recall_rows(outcomes)}


def test_a_filter_that_replaces_and_drops_meets_every_target(made: list[FilledText]) -> None:
    assert all(row.ok and row.figure == 1 for row in rows_of(made).values())


def test_dropping_every_record_is_not_keeping(made: list[FilledText]) -> None:
    rows = rows_of(made, drops_all=True)
    missed = [name for name, row in rows.items() if not row.ok]
    assert missed == ["planted: texts with only names, phones and mail kept with surrogates"]


def test_a_phone_that_survives_lowers_recall(made: list[FilledText]) -> None:
    rows = rows_of(made, leak="phone")
    assert rows["planted: values of phone that are gone"].figure != 1
    assert rows["planted: values of card that are gone"].figure == 1
    assert not rows["planted: texts of which nothing survives in the nine languages"].ok


def test_the_table_names_kinds_and_no_value(made: list[FilledText]) -> None:
    text = kind_table([judge(one, (one.text,)) for one in made])
    assert "| card |" in text
    assert not any(value.value in text for one in made for value in one.planted if len(value.value) > 8)


def test_slots_that_come_twice_have_one_value() -> None:
    texts = sets_of(("en",), "develop")[0]
    filled = fill("en test 0", "Call {first}. {first} is at {phone}, {{literally}}.", texts, Random(1))
    assert slots_of("Call {first}. {first} is at {phone}, {{literally}}.") == ["first", "first", "phone"]
    assert filled.text.count(next(value.value for value in filled.planted if value.slot == "first")) >= 2
    assert "{literally}" in filled.text


def test_a_closed_seed_is_not_for_development() -> None:
    with pytest.raises(SystemExit, match="open seeds 0 to 9"):
        next(planted(Options(seed=10, half="develop")))
