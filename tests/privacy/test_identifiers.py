"""Identifiers of many countries are found by form, checksum and context. All numbers are made up."""

import logging
import subprocess
import sys

import pytest
from stdnum import luhn
from stdnum.gb import nhs
from tests.privacy.detection import KEY, detect, detect_values

from eyas.privacy.surrogates import FIRST, Surrogates

POSITIVE = [
    ("SSN 536-22-1234", "en"),
    ("ssn: 536221234", "en"),
    ("my social security number as on the old form 536 22 1234", "en"),
    ("NI number JK482913C", "en"),
    ("NHS number 798 486 3156", "en"),
    ("passport no. C4RT7L3H2", "en"),
    ("driver license number is S530-4200-5678", "en"),
    ("SIN 046 454 286", "en"),
    ("Aadhaar 2345 6789 0124", "en"),
    ("Steuer-ID: 65 929 970 489", "de"),
    ("Sozialversicherungsnummer 15 070649 C 103", "de"),
    ("bitte 15 070649 C 103 eintragen", "de"),
    ("Reisepassnummer: C4VK7L3H2", "de"),
    ("756.4817.2635.06", "de"),
    ("NIR 1 85 05 78 006 084 91", "fr"),
    ("voici 1850578006084 91", "fr"),
    ("DNI 41108633C", "es"),
    ("Y7997082L es mi NIE", "es"),
    ("ZRMDDT50T22B601H", "it"),
    ("la mia carta d'identità è CA12345AB", "it"),
    ("NIF: 210692014", "pt"),
    ("CPF 528.642.317-51", "pt"),
    ("cartão de cidadão 12345678 9 ZZ4", "pt"),
    ("BSN 123456782", "nl"),
    ("PESEL 69032264363", "pl"),
    ("dowód osobisty ABC123456", "pl"),
    ("personnummer 19811228-9874", "sv"),
    ("811228-9874", "sv"),
]


@pytest.mark.parametrize(("text", "language"), POSITIVE)
def test_found(text, language):
    assert detect_values("GOVERNMENT_ID", text, language)


def test_nothing_opens_a_socket():
    # In a process of its own, so that nothing is loaded or cached before the sockets are taken away.
    code = """
import socket
def refused(*args, **kwargs):
    raise AssertionError("a socket was opened")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refused
from eyas.privacy.builtin_detector import BuiltinDetector
text = "Mail jane@web.de, http://a.example.co.uk, SSN 536-22-1234, 81.2.69.142, key AKIAQYLPMN5HFIRT4WZB"
kinds = {span.kind for span in BuiltinDetector().find([text], ["en"])[0]}
assert kinds == {"EMAIL", "GOVERNMENT_ID", "IP_ADDRESS", "SECRET"}, kinds
from eyas.privacy.surrogates import FIRST, Surrogates
print(Surrogates(bytes(range(32))).replace_name_part("Anna", FIRST, "de"))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # Another process, with another salt of hash(), chooses the same surrogate.
    assert done.stdout.strip() == Surrogates(KEY).replace_name_part("Anna", FIRST, "de")


def test_context_lifts_a_weak_form():
    assert detect_values("GOVERNMENT_ID", "my kimlik says 17291716060") == ["17291716060"]
    assert detect_values("GOVERNMENT_ID", "my own record says 17291716060") == []
    # A wrong checksum refutes a form whatever stands beside it.
    assert detect_values("GOVERNMENT_ID", "my kimlik says 17291716061") == []


def test_context_reaches_eight_words():
    words = " ".join(f"word{k}" for k in range(7))
    assert detect_values("GOVERNMENT_ID", f"kimlik {words} 17291716060") == ["17291716060"]
    assert detect_values("GOVERNMENT_ID", f"kimlik {words} apple 17291716060") == []
    assert detect_values("GOVERNMENT_ID", f"kimlik of the {words} 17291716060") == ["17291716060"]  # function words
    assert detect_values("GOVERNMENT_ID", "17291716060 is what the kimlik said") == ["17291716060"]


def test_a_checksum_alone_does_not_make_an_identifier():
    passes = [
        number for number in range(1732098000, 1732099000) if nhs.is_valid(str(number)) or luhn.is_valid(str(number))
    ]
    assert len(passes) > 100  # the checksums do hold for many Unix times
    for number in passes[:200]:
        assert detect(f"the job started at {number} and ran") == []
    for number in range(4532015112830300, 4532015112830400):
        assert detect(f"order id {number} is delayed") == []


def test_case_counts():
    assert detect("apple1234z and bkmpd4821f are words here") == []
    assert detect_values("GOVERNMENT_ID", "BKMPD4821F") == ["BKMPD4821F"]


@pytest.mark.parametrize(
    "text",
    [
        "Order 12345678 was shipped on 2023-01-15",
        "passport expires 2029-05-01",
        "serial 69032264363 of the unit",
        "commit 9fceb02d0ae598e95dc970b74767f19372d61af8",
        "UUID 550e8400-e29b-41d4-a716-446655440000 is duplicated.",
        "MAC address 00:1A:2B:3C:4D:5E is not reachable.",
        "id 123456789 created",
        "SHA256 and UTF8 and ISO8601",
        "The SSN field must have nine digits.",
    ],
)
def test_clean(text):
    assert detect(text) == []


def test_long_texts_lose_nothing():
    for shift in range(0, 400, 7):
        text = "x " * 400 + "y" * shift + " ZRMDDT50T22B601H " + "z " * 1000
        assert detect_values("GOVERNMENT_ID", text) == ["ZRMDDT50T22B601H"], shift


def test_forms_with_letters():
    # Made up after the forms that the CMS and the DVLA publish.
    assert detect_values("GOVERNMENT_ID", "on file: 2FH5-UF6-NK84") == ["2FH5-UF6-NK84"]
    assert detect_values("GOVERNMENT_ID", "licence MORGA657054SM9IJ") == ["MORGA657054SM9IJ"]


def test_no_value_is_logged(caplog):
    caplog.set_level(logging.DEBUG)
    detect("my nhs record says 7984863156 and SSN 536-22-1234")
    assert "7984863156" not in caplog.text
    assert "536-22-1234" not in caplog.text
