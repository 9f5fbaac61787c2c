"""Spellings, expressions, cards, and that the shipped tables fit together."""

import datetime
import string
import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.base.errors import EyasError, InputError
from eyas.base.provenance import digest_bytes, digest_file
from eyas.base.storage import StoragePath
from eyas.data.licenses.license_metadata import digest_license_text, find_card_license, parse_expression, read_card
from eyas.data.licenses.license_policy import POLICIES, VERDICTS, LicensePolicy, Verdict, normalize_name
from eyas.data.prompts import read_claim
from eyas.data.sources.source import SourceConfig, open_source

POLICY = LicensePolicy.load()
TABLES = POLICY.tables
MIT = (
    "MIT License\n\nCopyright (c) 2026 A. Person\n\nPermission is hereby granted, free of charge, to any person\n"
    "... The above copyright notice and this permission notice shall be included in all copies\n"
)


def parse(text):
    return parse_expression(text, "x", POLICY)


@pytest.mark.parametrize(
    ("spelling", "spdx"),
    [
        ("Apache-2.0", "Apache-2.0"),
        ("apache 2.0", "Apache-2.0"),
        ("Apache License, Version 2.0", "Apache-2.0"),
        ("The Apache Software License 2.0", "Apache-2.0"),
        ("apache2.0", "Apache-2.0"),
        ("APACHE-2", "Apache-2.0"),
        ("mit", "MIT"),
        ("MIT License", "MIT"),
        ("The MIT licence.", "MIT"),
        ("cc-by-4.0", "CC-BY-4.0"),
        ("CC BY 4.0", "CC-BY-4.0"),
        ("Creative Commons Attribution 4.0 International", "CC-BY-4.0"),
        ("Creative Commons Attribution-ShareAlike 3.0 Unported License", "CC-BY-SA-3.0"),
        ("cc-by-nc-4.0", "CC-BY-NC-4.0"),
        ("cc0-1.0", "CC0-1.0"),
        ("odc-by", "ODC-By-1.0"),
        ("bsd-3-clause", "BSD-3-Clause"),
        ("gpl-3.0", "GPL-3.0-only"),
        ("GPLv3", "GPL-3.0-only"),
        ("gpl-3.0+", "GPL-3.0-or-later"),
        ("llama3.1", "LicenseRef-Llama-3.1"),
        ("Llama 3.1 Community License Agreement", "LicenseRef-Llama-3.1"),
        ("llama3", "LicenseRef-Llama-3"),
        ("gemma", "LicenseRef-Gemma"),
        ("qwen-research", "LicenseRef-Qwen-Research"),
        ("licenseref-own", "LicenseRef-Own"),
    ],
)
def test_spellings(spelling, spdx):
    assert str(parse(spelling)) == spdx


@pytest.mark.parametrize(
    "text", ["cc", "cc-by", "cc-by-sa", "bsd", "MIT-0", "gpl", "other", "unknown", "llama", "?", "2.0"]
)
def test_what_may_mean_several_or_nothing_is_not_known(text):
    with pytest.raises(InputError, match="unknown licenses are rejected"):
        parse(text)


def test_near_ones_are_named():
    with pytest.raises(InputError, match=r"Write CC-BY-SA-4.0 or CC-BY-SA-3.0"):
        parse("cc-by-sa")
    with pytest.raises(InputError, match=r"Apache-2.0"):
        parse("Apachee 2.0")


@pytest.mark.parametrize(
    ("text", "written", "counts"),
    [
        ("MIT OR CC-BY-NC-4.0", "MIT OR CC-BY-NC-4.0", ["MIT"]),
        ("CC-BY-NC-4.0 OR MIT", "CC-BY-NC-4.0 OR MIT", ["MIT"]),
        ("MIT OR Apache-2.0", "MIT OR Apache-2.0", ["MIT"]),
        ("MIT AND Apache License 2.0", "MIT AND Apache-2.0", ["MIT", "Apache-2.0"]),
        ("mit AND (cc-by-nc-4.0 OR gemma)", "MIT AND (CC-BY-NC-4.0 OR LicenseRef-Gemma)", ["MIT", "LicenseRef-Gemma"]),
        # OR binds weaker than AND.
        ("CC-BY-NC-4.0 AND MIT OR ISC", "CC-BY-NC-4.0 AND MIT OR ISC", ["ISC"]),
        ("((MIT))", "MIT", ["MIT"]),
        ("MIT AND MIT", "MIT AND MIT", ["MIT"]),
    ],
)
def test_expressions(text, written, counts):
    verdicts: dict[str, Verdict] = {"CC-BY-NC-4.0": "deny", "LicenseRef-Gemma": "acknowledge"}
    expression = parse(text)
    assert str(expression) == written
    assert [*expression.select_ids(lambda name: verdicts.get(name, "allow"))] == counts
    assert parse(written) == expression


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("MIT AND", "is not a valid expression"),
        ("OR MIT", "is not a valid expression"),
        ("(MIT", "is not a valid expression"),
        ("MIT)", "is not a valid expression"),
        ("", "is not a valid expression"),
        ("MIT AND nobody's", '"nobody\'s" in the license of x is not a known license'),
        ("GPL-2.0-only WITH Classpath-exception-2.0", "has an exception"),
        ("MIT or Apache-2.0", "is not a known license"),  # OR is written in capitals
        ("(" * 100_000, "has 100000 characters"),
    ],
)
def test_expressions_that_are_none(text, match):
    with pytest.raises(InputError, match=match) as caught:
        parse(text)
    assert len(str(caught.value)) < 2000


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.sampled_from(["MIT", "AND", "OR", "WITH", "(", ")", "gemma", "Apache 2.0", "x", "\n", "é"]), max_size=12
    )
)
def test_no_expression_does_anything_else(words):
    try:
        expression = parse(" ".join(words))
    except EyasError:
        return
    assert parse(str(expression)) == expression


@settings(max_examples=200, deadline=None)
@given(st.text(string.printable, max_size=40))
def test_any_text_has_a_key(text):
    assert normalize_name(text) == normalize_name(text.upper())


def test_no_spelling_means_two_licences():
    seen = {}
    for entry in TABLES.license:
        for text in (entry.id, entry.name, *entry.aliases):
            assert seen.setdefault(normalize_name(text), entry.id) == entry.id, text


def test_the_tables_fit_together():
    ids = [entry.id for entry in TABLES.license]
    families = {family.id for family in TABLES.generator}
    assert len(set(ids)) == len(ids)
    assert set(POLICY.verdicts["generators"]) == families  # each has a verdict, and no other
    assert set(ids) == set(POLICY.verdicts["licenses"]) | set(POLICY.verdicts["targets"])
    for entry in TABLES.license:
        assert entry.generator is None or entry.generator in families
        assert all(mark == mark.lower() for mark in entry.marks)
    for known in TABLES.dataset:
        assert set(known.authors) <= families
        assert {name for name in (known.license, *known.former) if name} <= set(ids)
        for pattern in known.ids:
            assert pattern == pattern.lower()
            assert TABLES.find_dataset(pattern.upper().replace("*", "x")) is known, f"{pattern} is hidden by one before"
    for family in TABLES.target:
        assert family.license in POLICY.verdicts["targets"]
        for pattern in family.names:
            assert TABLES.find_target(pattern.replace("*", "x")) is family, f"{pattern} is hidden by one before"


def test_every_fact_has_a_source_and_a_day():
    entries = (*TABLES.license, *TABLES.generator, *TABLES.dataset, *TABLES.target)
    facts = [entry.fact for entry in entries if entry.fact is not None]
    assert len(facts) > 50
    for fact in facts:
        assert datetime.date.fromisoformat(fact.looked_up) >= datetime.date(2026, 11, 20)
        assert fact.text
        assert fact.source
        # What nobody looked up says so, in both ways.
        assert fact.verified is not fact.source.startswith("background knowledge")
    # A licence, or a model's terms, on which more than "yes" depends has one.
    for entry in TABLES.license:
        own = entry.id.startswith("LicenseRef-") and entry.id != "LicenseRef-Own"
        assert (entry.fact is not None) is own, entry.id


def test_the_files_hold_nothing_unknown():
    for path in POLICIES.glob("*.toml"):
        assert tomllib.loads(path.read_text(encoding="utf-8"))
        assert max(map(len, path.read_text(encoding="utf-8").splitlines())) <= 120, path
    assert {path.stem for path in POLICIES.glob("*.toml")} == {
        "default",
        "licenses",
        "generators",
        "datasets",
        "targets",
    }
    assert VERDICTS == ("allow", "acknowledge", "deny")


# --- cards and texts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "license"),
    [
        ("---\nlicense: mit\n---\n# x\n", "mit"),
        ("\ufeff---\r\nlicense: mit\r\ntags: [a]\r\n---\r\n# x\r\n", "mit"),
        ("---\nlicense:\n- mit\n- apache-2.0\n---\n", "mit AND apache-2.0"),
        ("---\nlicense: other\nlicense_name: llama3.1\nlicense_link: LICENSE\n---\n", "llama3.1"),
        ("---\nlicense: other\n---\n", "other"),
        ("---\nlanguage: en\n---\n", None),
        ("---\n---\n", None),
        ("# no head\n---\nlicense: mit\n---\n", None),
        ("", None),
    ],
)
def test_cards(tmp_path, text, license):
    (tmp_path / "README.md").write_bytes(text.encode())
    assert find_card_license(read_card(tmp_path)) == license


@pytest.mark.parametrize(
    "text",
    ["---\n- a\n---\n", "---\na: [\n---\n", "---\n!!python/object:os.system {}\n---\n", "---\njust words\n---\n"],
)
def test_cards_that_are_none(tmp_path, text):
    (tmp_path / "README.md").write_text(text)
    with pytest.raises(InputError, match="is not a YAML mapping"):
        read_card(tmp_path)


def test_a_card_that_is_not_there_or_no_text(tmp_path):
    assert read_card(tmp_path) == {}
    (tmp_path / "README.md").write_bytes(b"---\nlicense: \xff\n---\n")
    with pytest.raises(InputError, match="cannot be read"):
        read_card(tmp_path)


def test_the_license_file_of_a_source(tmp_path):
    path, prompts = tmp_path / "LICENSE", tmp_path / "q.txt"
    path.write_bytes(MIT.encode() + b"\xff")
    prompts.write_text("Why?")
    StoragePath("memory://licenses/LICENSE").write_bytes(path.read_bytes())
    for name in (str(path), "memory://licenses/LICENSE"):
        text = read_claim(open_source(SourceConfig(str(prompts), license_file=name), 0)).license_text
        assert text is not None
        assert text == path.read_bytes()
        # The ledger holds the sha256sum of the file, whatever its encoding is.
        assert digest_license_text({"LICENSE": text}) == digest_file(path)
    assert digest_license_text({}) is None
    assert digest_license_text({"a": b"1", "b": b"2"}) not in (None, digest_bytes(b"1"))
    for missing in (tmp_path / "none", "MIT", tmp_path, "a\0b"):
        source = open_source(SourceConfig(str(prompts), license_file=str(missing)), 0)
        with pytest.raises(InputError):
            read_claim(source)


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        (MIT, ("MIT",)),
        ("                     Apache License\n               Version 2.0, January 2004\n", ("Apache-2.0",)),
        ("LLAMA 3.1 COMMUNITY LICENSE AGREEMENT\nLlama 3.1 Version Release", ("LicenseRef-Llama-3.1",)),
        ("META LLAMA 3 COMMUNITY LICENSE AGREEMENT\n\nMeta Llama 3 Version", ("LicenseRef-Llama-3",)),
        ("Gemma Terms of Use\n\nLast modified: April 1, 2024\n", ("LicenseRef-Gemma",)),
        ("Qwen RESEARCH LICENSE AGREEMENT\n", ("LicenseRef-Qwen-Research",)),
        ("Qwen LICENSE AGREEMENT\n", ("LicenseRef-Qwen",)),
        ("# Mistral AI Research License\n", ("LicenseRef-MRL",)),
        ("Creative Commons Attribution-NonCommercial 4.0 International Public License\n", ("CC-BY-NC-4.0",)),
        ("Creative Commons Attribution 4.0 International Public License\n", ("CC-BY-4.0",)),
        ("All rights reserved.\n", ()),
        ("x" * 5000 + MIT, ()),
    ],
)
def test_a_licence_is_known_by_its_own_words(text, ids):
    assert TABLES.recognize(text.encode()) == ids
