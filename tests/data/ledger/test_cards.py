import copy
import json
import random

import pytest
import yaml
from tests.data.ledgers import REVISION, a_ledger, answered, llama_target

from eyas.data.ledger.cards import DISCLAIMER, MAX_ROWS, render_card, render_data_section
from eyas.data.licenses.license_gate import LicenseGate
from eyas.data.licenses.license_metadata import EMBEDDED_TARGET, SourceClaim, read_target_claim
from eyas.data.licenses.license_policy import LicensePolicy


def sections(text):
    """Returns {title: the lines of the section}."""
    body = text.split("\n---\n", 1)[-1]
    return {part.split("\n", 1)[0]: part.split("\n", 1)[1] for part in body.split("\n## ")[1:]}


def rows(text):
    """Returns the cells of every table line."""
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line[:1] == "|"]


def test_the_head_is_what_the_hub_reads():
    text = render_card(a_ledger())
    head = yaml.safe_load(text.split("---")[1])
    assert head["license"] == "other"
    assert head["license_name"] == "MIT AND ODC-By-1.0"
    assert head["language"] == ["de", "en"]
    assert head["source_datasets"] == ["original", "allenai/WildChat-1M"]
    ledger = a_ledger()
    ledger["sources"] = ledger["sources"][:1]
    assert yaml.safe_load(render_card(ledger).split("---")[1])["license"] == "mit"


def test_what_a_reviewer_looks_for():
    ledger = a_ledger()
    found = sections(render_card(ledger))
    assert [*found] == [
        "Licenses",
        "Sources",
        "Personal data and secrets",
        "Content",
        "Duplicates",
        "Evaluation sets",
        "Distance from production traffic",
        "Settings and digests",
        "Limits",
    ]
    summary = rows(render_card(ledger).split("## Licenses")[0])
    assert ["**prompts kept**", "100"] in summary
    assert ["dropped", "23"] in summary
    assert ["good, but over the limit of 100", "7"] in summary
    table = rows(found["Licenses"])
    assert table[2][:5] == ["mine", "", "", "MIT", "allowed"]
    assert table[3][:5] == ["logs", "allenai/WildChat-1M", REVISION, "ODC-By-1.0", "allowed"]
    assert ledger["sources"][1]["licence"]["license_text"] in found["Licenses"]
    assert "2026-11-20" in found["Licenses"]
    assert ["mine", "jsonl", "messages 60, prompt 20", "80", "60", "13", "7"] in rows(found["Sources"])
    assert ["`near_duplicate`", "9", "7"] in rows(found["Sources"])
    assert ["`contaminated`", "0", "3"] in rows(found["Sources"])
    assert ["PERSON", "6", "1"] in rows(found["Personal data and secrets"])
    assert "pattern, gazetteer" in found["Personal data and secrets"]
    assert "16 were dropped (12.3% of the records):\n0 equal, 16 nearly equal" in found["Duplicates"]
    assert ["gsm8k-test", "3"] in rows(found["Evaluation sets"])
    traffic = found["Distance from production traffic"]
    assert ["all, before the selection", "0.375", "0.215"] in rows(traffic)
    assert ["**all, as kept**", "0.072", "0.046"] in rows(traffic)
    assert ["topic 3, 200-400 characters", "10", "4"] in rows(traffic)
    assert "6 prompts that the traffic asks for were missing" in traffic
    assert ["policy digest", f"`{LicensePolicy.load().digest}`"] in rows(found["Settings and digests"])
    assert ["quality.min_characters", "`3`"] in rows(found["Settings and digests"])
    assert DISCLAIMER in found["Limits"]


def test_bars_are_as_long_as_what_they_stand_for():
    contents = sections(render_card(a_ledger()))["Content"]
    bars = {row[0]: row[3].count("█") for row in rows(contents) if len(row) == 4 and row[1].isdigit()}
    assert bars["en"] == 30
    assert bars["de"] == 8  # 20 of 80, rounded up
    assert (bars["0 to 49"], bars["100 to 199"], bars["3200 and more"]) == (1, 30, 0)
    lines = [row[0] for row in rows(contents)]
    assert lines.index("0 to 49") < lines.index("50 to 99") < lines.index("3200 and more")  # by length, not by count


def test_nothing_to_say_is_said():
    ledger = a_ledger()
    ledger |= {"traffic": None, "entities": {}, "contamination": {}, "languages": {}, "tasks": {}, "dropped": {}}
    ledger["kept"], ledger["came"], ledger["limit"] = 0, 0, None
    ledger["lengths"]["counts"] = [0] * 8
    for source in ledger["sources"]:
        source["dropped"] = {}
    found = sections(render_card(ledger))
    assert "No production log was named" in found["Distance from production traffic"]
    assert "not compared with production traffic" in found["Limits"]
    assert "None was found" in found["Personal data and secrets"]
    assert "No record shared text" in found["Evaluation sets"]
    assert "Nothing." in found["Sources"]


def test_lengths_without_an_open_end():
    ledger = a_ledger()
    ledger["lengths"] = {"edges": [0, 10, 20], "counts": [3, 4]}
    contents = sections(render_card(ledger))["Content"]
    assert ["0 to 9", "3"] in [row[:2] for row in rows(contents)]
    assert "and more" not in contents


def test_names_of_others_cannot_change_the_card():
    ledger = a_ledger()
    bad = "x | y\n## Licenses <b> ` [a](javascript:1)"
    ledger["sources"][0]["name"] = bad
    ledger["sources"][0]["files"] = {bad: "sha256:00"}
    ledger["sources"][0]["licence"]["name"] = bad
    ledger["tasks"] = {bad: 3}
    ledger["settings"] = {"key": "a`b|c\nd"}
    text = render_card(ledger)
    assert [line for line in text.splitlines() if line.startswith("## ")] == [
        line for line in render_card(a_ledger()).splitlines() if line.startswith("## ")
    ]
    assert "<b>" not in text
    assert "](javascript" not in text
    widths = {}
    for line in text.splitlines():
        if line.startswith("| "):
            widths.setdefault(line.replace("\\|", "").count("|"), []).append(line)
    plain = {line.count("|") for line in render_card(a_ledger()).splitlines() if line.startswith("| ")}
    assert set(widths) <= plain
    assert "`a'b\\|c d`" in text


def test_long_tables_end():
    ledger = a_ledger()
    ledger["sources"][0]["files"] = {f"{index}.jsonl": "sha256:00" for index in range(400)}
    text = render_card(ledger)
    assert f"{400 + 1 - MAX_ROWS} more are in ledger.json." in text
    assert len(text.splitlines()) < 250


def test_equal_ledgers_give_equal_bytes():
    ledger = a_ledger()
    mixed = copy.deepcopy(ledger)
    for key in ("languages", "tasks", "entities", "contamination", "dropped", "settings"):
        items = [*mixed[key].items()]
        random.Random(1).shuffle(items)
        mixed[key] = dict(items[::-1])
    assert render_card(json.loads(json.dumps(mixed))) == render_card(ledger)


def test_acknowledgements_stand_on_the_card(tmp_path):
    decision = answered(tmp_path, SourceClaim("ours", license="own", license_text=b"Consent\nform 3\n"))
    licences = sections(render_card(a_ledger(decision)))["Licenses"]
    assert ["ours", "A. Person, counsel", "2026-11-20T12:30:00+00:00", f"`{decision.claim}`"] in rows(licences)
    assert "Keep what shows that the people whose data it is agreed" in licences
    assert "Nothing needed" not in licences


def test_the_part_of_a_heads_card(tmp_path):
    target = answered(tmp_path, llama_target())
    text = render_data_section(a_ledger(), target.to_json())
    assert "The name of this head must begin with **Llama**." in text
    assert "LicenseRef-Llama-3.1" in text
    assert target.license_files["LICENSE"] in text
    assert "Show 'Built with Llama'" in text
    assert "outputs may train other models, named Llama" in text
    assert "linked at `LICENSE`" in text
    assert "A. Person, counsel" in text
    assert ["logs", "allenai/WildChat-1M", REVISION, "ODC-By-1.0", "40"] in rows(text)
    assert DISCLAIMER in text


def test_a_free_target_asks_for_no_name(tmp_path):
    target = LicenseGate.load().decide(read_target_claim(EMBEDDED_TARGET, "embedded"))
    text = render_data_section(a_ledger(), target.to_json())
    assert "must begin" not in text
    assert "| embedded |" in text
    assert "Apache-2.0" in text


@pytest.mark.parametrize("verified", [True, False])
def test_old_knowledge_is_marked(verified):
    ledger = a_ledger()
    decision = ledger["sources"][0]["licence"]
    decision["facts"] = [{"text": "t", "source": "s", "looked_up": "2026-11-20", "verified": verified}]
    text = render_card(ledger)
    assert ("not looked up again" in text) is not verified
    assert ("background knowledge" in text) is not verified


def test_languages_whose_names_are_missed():
    """Asserts that the card names kept prompts in languages without found names."""
    ledger = a_ledger()
    assert "often missed" not in render_card(ledger)
    ledger["detectors"] |= {"name_languages": ["de", "en"]}
    ledger["languages"] = {"en": 80, "ja": 12, "fi": 3, "unknown": 5}
    found = sections(render_card(ledger))["Personal data and secrets"]
    assert [row for row in rows(found) if row[0] in ("en", "fi", "ja", "unknown")] == [["fi", "3"], ["ja", "12"]]


def test_a_ledger_of_an_older_run_has_no_gates():
    assert "None is recorded." in sections(render_card(a_ledger()))["Sources"]
