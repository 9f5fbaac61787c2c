"""What the gate lets through, what it refuses, and that its advice works. No network, no real licence text needed."""

import datetime
import json
import re

import pytest
from tests.data.ledgers import LLAMA, NOW, REVISION, llama_target

from eyas.base.errors import InputError, UsageError
from eyas.base.provenance import digest_bytes
from eyas.data.licenses.acknowledgements import (
    Acknowledgement,
    append_acknowledgements,
    find_acknowledgement,
    read_acknowledgements,
)
from eyas.data.licenses.license_gate import LicenseGate
from eyas.data.licenses.license_metadata import EMBEDDED_TARGET, SourceClaim, TargetClaim, read_target_claim

GATE = LicenseGate.load()
TEXT = b"Terms\nof use\n"


def hub(dataset, license=None, **keys):
    """A public set at a pinned revision; the licence stands on its card."""
    card = {"license": license} if license else {}
    return SourceClaim(dataset.split("/")[-1], dataset, revision=REVISION, card=card | keys)


def refused(claim, match, acknowledgements=(), gate=GATE):
    with pytest.raises(InputError, match=match) as caught:
        gate.decide(claim, acknowledgements)
    return caught.value


def written(tmp_path, text):
    path = tmp_path / "policy.toml"
    path.write_text(text)
    return path


# --- sources ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dataset", "license", "outcome"),
    [
        ("eyas/grammar", "Apache-2.0", "allowed"),
        ("openai/gsm8k", "mit", "allowed"),
        ("OpenAssistant/oasst1", "apache-2.0", "allowed"),
        ("OpenAssistant/oasst2", "apache-2.0", "allowed"),
        ("databricks/databricks-dolly-15k", "cc-by-sa-3.0", "allowed"),
        ("CohereLabs/aya_dataset", "apache-2.0", "allowed"),
        ("google-research-datasets/mbpp", "cc-by-4.0", "allowed"),
        ("allenai/WildChat-1M", "odc-by", "allowed"),
        ("allenai/WildChat-1M-Full", "odc-by", "needs an acknowledgement"),
        ("lmsys/lmsys-chat-1m", "lmsys-chat-1m", "needs an acknowledgement"),
        ("Magpie-Align/Magpie-Llama-3.1-Pro-500K-Filtered", "llama3.1", "acknowledgement .*naming duty"),
        ("Magpie-Align/Magpie-Pro-300K-Filtered", "llama3", "may improve no other model"),
        ("openbmb/UltraChat", "mit", "OpenAI's terms"),
        ("HuggingFaceH4/ultrachat_200k", "mit", "OpenAI's terms"),
        ("tatsu-lab/alpaca", "cc-by-nc-4.0", "text-davinci-003"),
        ("Aeala/ShareGPT_Vicuna_unfiltered", "apache-2.0", "without clear consent"),
        ("mlabonne/open-perfectblend", "apache-2.0", "one by one"),
        ("HuggingFaceH4/no_robots", "cc-by-nc-4.0", "not for commercial use"),
    ],
)
def test_known_sets(dataset, license, outcome):
    claim = hub(dataset, license)
    if outcome != "allowed":
        refused(claim, outcome)
        return
    decision = GATE.decide(claim)
    assert (decision.verdict, decision.dataset, decision.revision) == ("allowed", dataset, REVISION)
    assert decision.facts
    assert decision.acknowledgement is None
    assert json.loads(json.dumps(decision.to_json()))["facts"][0]["looked_up"] == "2026-11-20"


def test_a_local_file_needs_a_licence_and_no_more():
    decision = GATE.decide(SourceClaim("q", license="MIT License"))
    assert (decision.verdict, decision.spdx, decision.license_text) == ("allowed", "MIT", None)
    assert decision.duties == ("Pass on the copyright notice and the licence.",)
    refused(SourceClaim("q"), "no license on record for q.*unknown licenses are rejected.*prompts.license=MIT")
    refused(SourceClaim("q", license="  "), "no license on record for q")
    refused(SourceClaim("q", license="NOBODYS-1.0"), "'NOBODYS-1.0' in the license of q is not a known license")
    refused(SourceClaim("q", license="LicenseRef-Unheard-Of"), "is not a known license")
    refused(SourceClaim("q", license="cc-by-nc-4.0"), "CC-BY-NC-4.0 is denied")
    refused(SourceClaim("q", license="MIT AND CC-BY-NC-4.0"), "CC-BY-NC-4.0 is denied")
    assert GATE.decide(SourceClaim("q", license="CC-BY-NC-4.0 OR MIT")).duties == decision.duties


def test_prompts_of_a_model_stand_under_its_terms():
    # By the licence alone: nobody has to know the set.
    refused(SourceClaim("q", license="llama3"), "author of the prompts: Meta Llama 3")
    refused(SourceClaim("q", license="llama3.2"), "acknowledgement .*: .*author of the prompts: Meta Llama 3.2")
    refused(SourceClaim("q", license="qwen-research"), "denied")


def test_a_public_set_that_nobody_knows():
    refused(hub("acme/prompts", "mit"), "acknowledgement .*author of the prompts: not known")
    refused(hub("acme/prompts", "mit", language_creators=["machine-generated"]), "needs an acknowledgement")
    refused(hub("acme/prompts", "mit", language_creators=["crowdsourced", "found"]), "needs an acknowledgement")
    by_people = hub("acme/prompts", "mit", language_creators=["crowdsourced", "expert-generated"])
    assert GATE.decide(by_people).verdict == "allowed"
    refused(hub("acme/prompts"), "no license on record for acme/prompts")
    refused(hub("acme/prompts", "unknown"), "not a known license")
    # What is known of a set is told, and not taken for its licence at this revision.
    refused(hub("openai/gsm8k"), r"On 2026-11-20 it was MIT: check that for your revision")


@pytest.mark.parametrize(
    ("parts", "outcome"),
    [
        (["original"], "allowed"),
        (["extended|openai/gsm8k"], "allowed"),
        ("original", "allowed"),
        (["extended|tatsu-lab/alpaca"], "it was made from Stanford Alpaca"),
        (["original", "HuggingFaceH4/ultrachat_200k"], "it was made from UltraChat"),
        (["extended|other-somewhere"], "acknowledgement .*it was made from somewhere: nothing is known"),
        ([3], "needs an acknowledgement"),
    ],
)
def test_what_a_set_was_made_from_counts(parts, outcome):
    claim = hub("acme/prompts", "mit", language_creators="crowdsourced", source_datasets=parts)
    if outcome == "allowed":
        assert GATE.decide(claim).verdict == "allowed"
    else:
        refused(claim, outcome)


@pytest.mark.parametrize("card", [{"extra_gated_prompt": "agree"}, {"gated": "auto"}, {"gated": True}])
def test_gated_sets_need_somebody(card):
    refused(hub("openai/gsm8k", "mit", **card), "acknowledgement .*the dataset is gated")


def test_a_card_says_that_a_set_is_not_gated():
    assert GATE.decide(SourceClaim("x", "openai/gsm8k", "MIT", card={"gated": False})).verdict == "allowed"


def test_statements_that_differ_need_somebody():
    card = {"license": "apache-2.0"}
    refused(SourceClaim("x", license="MIT", card=card), "the recipe says MIT, but the card says apache-2.0")
    refused(
        SourceClaim("x", license="MIT", card={"license": "other"}),
        "acknowledgement .*: the recipe says MIT, but the card",
    )
    # A mild name does not hide a strict licence.
    refused(SourceClaim("x", license="MIT", card={"license": "cc-by-nc-4.0"}), "CC-BY-NC-4.0 is denied")
    mark = b"Attribution-NonCommercial 4.0 International\n\ntext\n"
    refused(SourceClaim("x", license="MIT", license_text=mark), "CC-BY-NC-4.0 is denied")
    refused(SourceClaim("x", card={"license": "mit"}, license_text=mark), "CC-BY-NC-4.0 is denied")
    # Not what is known of the set: a copy under another name, or an older state.
    refused(hub("openai/gsm8k", "apache-2.0"), "stated as Apache-2.0, but was known as MIT")
    refused(
        hub("allenai/WildChat-1M", "ai2-impact-lr"),
        r"\(its license before\), but was known as ODC-By-1.0 since 2024-06",
    )
    # One choice of several is no difference.
    both = SourceClaim("x", license="MIT OR Apache-2.0", card={"license": "apache-2.0"})
    assert GATE.decide(both).verdict == "allowed"


def test_the_licence_may_be_known_by_its_text_alone():
    text = b"Apache License\nVersion 2.0, January 2004\n"
    decision = GATE.decide(SourceClaim("x", license_text=text))
    assert decision.spdx == "Apache-2.0"
    assert decision.license_text == digest_bytes(text)
    refused(SourceClaim("x", license_text=b"All rights reserved.\n\n\nYes.\n"), "no license on record for x")


# --- acknowledgements ------------------------------------------------------------------------------------------------

ASKED = SourceClaim("chats", "lmsys/lmsys-chat-1m", "lmsys-chat-1m", TEXT, REVISION)


def test_an_acknowledgement_holds_for_exactly_one_claim(tmp_path):
    path = tmp_path / "acknowledgements.jsonl"
    error = refused(ASKED, "needs an acknowledgement")
    assert "--acknowledge" in error.fix
    pending = GATE.find_pending([ASKED, SourceClaim("q", license="MIT")])
    assert [(each.name, each.license_text) for each in pending] == [("chats", digest_bytes(TEXT))]
    assert pending[0].digest in error.fix
    made = append_acknowledgements(path, " A. Person ", pending, NOW)
    decision = GATE.decide(ASKED, read_acknowledgements(path))
    assert decision.verdict == "acknowledged"
    assert decision.acknowledgement == made[0]
    assert decision.acknowledgement == Acknowledgement(
        "A. Person", "2026-11-20T12:30:00+00:00", pending[0].digest, digest_bytes(TEXT)
    )
    assert "Do not pass prompts on." in decision.duties
    assert GATE.find_pending([ASKED], made) == []
    # Called otherwise it is the same set; with anything else changed it is not.
    again = SourceClaim("other name", ASKED.dataset, "LMSYS-Chat-1M", TEXT, REVISION)
    assert GATE.decide(again, made).verdict == "acknowledged"
    other = "f" * 40
    for changed in (
        SourceClaim("chats", ASKED.dataset, "lmsys-chat-1m", TEXT, other),
        SourceClaim("chats", ASKED.dataset, "lmsys-chat-1m", TEXT + b"!", REVISION),
        SourceClaim("chats", ASKED.dataset, "lmsys-chat-1m", None, REVISION),
        SourceClaim("chats", ASKED.dataset, "lmsys-chat-1m AND MIT", TEXT, REVISION),
        SourceClaim("chats", "allenai/WildChat-1M-Full", "lmsys-chat-1m", TEXT, REVISION),
    ):
        refused(changed, "needs an acknowledgement", made)


def test_a_file_of_ones_own_goes_by_its_name(tmp_path):
    mine = SourceClaim("logs", license="own")
    made = append_acknowledgements(tmp_path / "a.jsonl", "A. Person", GATE.find_pending([mine]), NOW)
    assert GATE.decide(mine, made).spdx == "LicenseRef-Own"
    refused(SourceClaim("other logs", license="own"), "needs an acknowledgement", made)
    refused(TargetClaim("logs", license="llama3.1"), "needs an acknowledgement", made)
    # What was answered for is the difference that was there.
    differs = SourceClaim("x", license="MIT", card={"license": "apache-2.0"})
    made = append_acknowledgements(tmp_path / "a.jsonl", "A. Person", GATE.find_pending([differs]), NOW)
    assert GATE.decide(differs, made).duties[1].startswith("Pass on the licence and the NOTICE")
    refused(SourceClaim("x", license="MIT", card={"license": "cc-by-sa-4.0"}), "needs an acknowledgement", made)
    tuned = TargetClaim("x", license="MIT", names=("meta-llama/Llama-3.1-8B",))
    made = append_acknowledgements(tmp_path / "a.jsonl", "A. Person", GATE.find_pending([tuned]), NOW)
    assert GATE.decide(tuned, made).name_prefix == "Llama"
    refused(TargetClaim("x", license="MIT", names=("meta-llama/Llama-3.2-1B",)), "needs an acknowledgement", made)


def test_nobody_can_acknowledge_what_is_denied(tmp_path):
    denied = hub("tatsu-lab/alpaca", "cc-by-nc-4.0")
    with pytest.raises(InputError, match="Stanford Alpaca"):
        GATE.find_pending([ASKED, denied])
    forged = Acknowledgement("A. Person", "2026-11-20T12:30:00+00:00", "sha256:00", None)
    refused(denied, "Stanford Alpaca", [forged])
    assert find_acknowledgement(GATE.find_pending([ASKED])[0], [forged]) is None


def test_the_file_grows_line_by_line_and_keeps_what_is_there(tmp_path):
    path = tmp_path / "deep" / "acknowledgements.jsonl"
    assert read_acknowledgements(path) == []
    assert append_acknowledgements(path, "A", [], NOW) == []
    assert not path.exists()
    first = append_acknowledgements(path, "A", GATE.find_pending([ASKED]), NOW)
    path.write_bytes(path.read_bytes().rstrip(b"\n"))  # an editor took the last line end
    later = datetime.datetime(2026, 11, 21, 1, 0, tzinfo=datetime.timezone(datetime.timedelta(hours=2)))
    second = append_acknowledgements(path, "B", GATE.find_pending([SourceClaim("logs", license="own")]), later)
    assert read_acknowledgements(path) == first + second
    assert second[0].when == "2026-11-20T23:00:00+00:00"
    record = json.loads(path.read_text().splitlines()[0])
    assert (record["dataset"], record["license"]) == ("lmsys/lmsys-chat-1m", "LicenseRef-LMSYS-Chat-1M")
    assert record["reasons"]
    # Who acknowledged first stays.
    third = append_acknowledgements(path, "C", GATE.find_pending([ASKED]), NOW)
    kept = GATE.decide(ASKED, read_acknowledgements(path)).acknowledgement
    assert kept is not None
    assert (kept.who, third[0].who) == ("A", "C")


@pytest.mark.parametrize("who", ["", "  ", "a\nb", "x" * 201, "\x1b[31m"])
def test_nobody_is_nobody(tmp_path, who):
    with pytest.raises(UsageError, match="--acknowledge"):
        append_acknowledgements(tmp_path / "a.jsonl", who, GATE.find_pending([ASKED]), NOW)
    assert not (tmp_path / "a.jsonl").exists()


@pytest.mark.parametrize(
    "line", ["", "{", "[]", "3", '{"who": "A"}', '{"who": 1, "when": "", "claim": "", "license_text": null}']
)
def test_a_damaged_line_is_named(tmp_path, line):
    path = tmp_path / "a.jsonl"
    append_acknowledgements(path, "A", GATE.find_pending([ASKED]), NOW)
    before = path.read_bytes()
    path.write_bytes(before + line.encode() + b"\n")
    with pytest.raises(InputError, match=r"a\.jsonl:2 is not an acknowledgement"):
        read_acknowledgements(path)
    with pytest.raises(InputError, match=r"a\.jsonl:2"):
        append_acknowledgements(path, "A", GATE.find_pending([ASKED]), NOW)
    assert path.read_bytes() == before + line.encode() + b"\n"


# --- policies of one's own -------------------------------------------------------------------------------------------


def test_a_policy_lies_over_the_default(tmp_path):
    text = """
name = "ACME"
[licenses]
allow = ["LicenseRef-ACME-Contract-7"]
acknowledge = ["cc-by-nc 4.0"]
deny = ["MIT"]
[generators]
deny = ["unstated"]
"""
    gate = LicenseGate.load(written(tmp_path, text))
    assert gate.policy.name == "ACME"
    assert gate.policy.digest != GATE.policy.digest
    assert gate.policy.digest == LicenseGate.load(written(tmp_path, text)).policy.digest
    refused(SourceClaim("x", license="Apache-2.0"), "not stated", gate=gate)
    assert gate.decide(hub("OpenAssistant/oasst1", "apache-2.0")).verdict == "allowed"
    refused(hub("openai/gsm8k", "mit"), "MIT is denied", gate=gate)
    refused(hub("acme/x", "CC-BY-NC-4.0", language_creators="crowdsourced"), "needs an acknowledgement", gate=gate)
    own = hub("acme/x", "licenseref-acme-contract-7", language_creators="crowdsourced")
    assert gate.decide(own).spdx == "LicenseRef-ACME-Contract-7"


def test_a_set_that_the_policy_names_is_decided_by_it(tmp_path):
    gate = LicenseGate.load(written(tmp_path, '[datasets]\nallow = ["tatsu-lab/Alpaca"]\ndeny = ["openai/gsm8k"]\n'))
    assert gate.policy.name == "policy"
    decision = gate.decide(hub("tatsu-lab/alpaca", "cc-by-nc-4.0"))
    assert decision.verdict == "allowed"
    assert "under [datasets] as allow" in decision.reason
    assert any("research use only" in fact.text for fact in decision.facts)  # what is known is recorded all the same
    refused(hub("openai/gsm8k", "mit"), "under .datasets. as deny", gate=gate)
    refused(
        hub("acme/x", "mit", language_creators="crowdsourced", source_datasets=["openai/gsm8k"]),
        "the policy lists it",
        gate=gate,
    )
    refused(hub("tatsu-lab/alpaca"), "no license on record", gate=gate)


@pytest.mark.parametrize(
    "claim",
    [
        hub("tatsu-lab/alpaca", "cc-by-nc-4.0"),
        hub("mlabonne/open-perfectblend", "apache-2.0"),
        SourceClaim("x", license="llama3"),
        SourceClaim("x", license="CC-BY-NC-4.0 AND CC-BY-ND-4.0"),
        SourceClaim("x", license="mit", card={"source_datasets": ["tatsu-lab/alpaca"]}),
        TargetClaim("x", license="mrl"),
        TargetClaim("x", license="odc-by"),
        TargetClaim("x", license="MIT", names=("mistralai/Mistral-Large-Instruct-2411",)),
    ],
    ids=lambda claim: f"{claim.name} {claim.license}",
)
def test_the_advice_works(tmp_path, claim):
    """Who does as the refusal says, and answers for it, gets through."""
    error = refused(claim, "list .* as acknowledge in the file of prompts.policy")
    tables = {}
    for name, table in re.findall(r"(\S+) under \[(\w+)\]", error.fix):
        tables.setdefault(table, []).append(name)
    text = "".join(f"[{table}]\nacknowledge = {json.dumps(names)}\n" for table, names in tables.items())
    gate = LicenseGate.load(written(tmp_path, text))
    refused(claim, "needs an acknowledgement", gate=gate)
    made = append_acknowledgements(tmp_path / "a.jsonl", "A. Person", gate.find_pending([claim]), NOW)
    assert gate.decide(claim, made).verdict == "acknowledged"


@pytest.mark.parametrize(
    ("text", "error", "match"),
    [
        ("licenses = 3", UsageError, "licenses = 3"),
        ("[license]\nallow = []", UsageError, "Unknown key license. Use licenses"),
        ("[licenses]\nalow = []", UsageError, "Unknown key licenses.alow. Use licenses.allow"),
        ("[licenses]\nallow = ['Apache-2.1']", InputError, "Apache-2.1 .* no known license.*Write Apache-2.0"),
        ("[licenses]\nallow = ['Zzzz']", InputError, "Write it as LicenseRef-<name>"),
        ("[licenses]\nallow = ['MIT']\ndeny = ['mit license']", InputError, "mit license twice"),
        ("[targets]\nallow = ['MIT', 'MIT']", InputError, "MIT twice"),
        ("[generators]\ndeny = ['opneai']", InputError, "opneai in .generators., which is no known author. Use openai"),
        ("[licenses]\nallow = [3]", UsageError, "licenses.allow"),
        ("[licenses", InputError, "is not valid TOML"),
        ("\xff", InputError, "is not valid TOML"),
    ],
)
def test_policies_that_are_wrong(tmp_path, text, error, match):
    path = tmp_path / "policy.toml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(error, match=match):
        LicenseGate.load(path)


def test_a_policy_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        LicenseGate.load(tmp_path / "none.toml")


# --- targets ---------------------------------------------------------------------------------------------------------


def target_dir(tmp_path, card=None, texts=(), **config):
    (tmp_path / "config.json").write_text(json.dumps(config))
    if card is not None:
        (tmp_path / "README.md").write_text(f"---\n{card}\n---\n# A model\n")
    for name, text in dict(texts).items():
        (tmp_path / name).write_bytes(text)
    return tmp_path


def test_the_embedded_target_passes_and_a_copy_needs_a_word(tmp_path):
    decision = GATE.decide(read_target_claim(EMBEDDED_TARGET, "embedded"))
    assert (decision.verdict, decision.spdx, decision.name_prefix) == ("allowed", "Apache-2.0", None)
    copy = target_dir(tmp_path, model_type="llama")
    refused(read_target_claim(copy, str(copy)), "no license on record for target .*target.license=")
    assert GATE.decide(read_target_claim(copy, str(copy), "apache 2.0")).spdx == "Apache-2.0"


def test_a_llama_asks_for_an_answer_and_for_its_name(tmp_path):
    directory = target_dir(
        tmp_path,
        "license: llama3.1",
        {"LICENSE": LLAMA, "USE_POLICY.md": b"be good\n", "x.txt": b"no"},
        model_type="llama",
    )
    claim = read_target_claim(directory, str(directory))
    refused(claim, "acknowledgement .*: LicenseRef-Llama-3.1")
    made = append_acknowledgements(tmp_path / "a.jsonl", "A. Person", GATE.find_pending([claim]), NOW)
    decision = GATE.decide(claim, made)
    assert decision.name_prefix == "Llama"
    assert decision.license_files == {"LICENSE": digest_bytes(LLAMA), "USE_POLICY.md": digest_bytes(b"be good\n")}
    assert any("Built with Llama" in duty for duty in decision.duties)
    (directory / "LICENSE").write_bytes(LLAMA + b"changed\n")
    refused(read_target_claim(directory, str(directory)), "needs an acknowledgement", made)


def test_llama_3_keeps_its_outputs_to_itself(tmp_path):
    claim = TargetClaim("x", card={"license": "llama3"})
    made = append_acknowledgements(tmp_path / "a.jsonl", "A. Person", GATE.find_pending([claim]), NOW)
    decision = GATE.decide(claim, made)
    assert decision.name_prefix == "Llama 3"
    assert any("not Llama 3 or made from it" in duty for duty in decision.duties)
    refused(SourceClaim("x", license="llama3"), "denied")  # as prompts it is refused


@pytest.mark.parametrize(
    ("card", "texts", "outcome"),
    [
        ("license: mit", {}, "allowed"),
        ("license: apache-2.0", {"LICENSE.txt": b"Apache License\nVersion 2.0, January 2004\n"}, "allowed"),
        (None, {"LICENSE": b"Apache License\nVersion 2.0, January 2004\n"}, "allowed"),
        ("license: gemma", {}, "needs an acknowledgement"),
        ("license: other\nlicense_name: qwen", {}, "needs an acknowledgement"),
        ("license: other\nlicense_name: qwen-research", {}, "LicenseRef-Qwen-Research is denied"),
        ("license: other\nlicense_name: mrl", {}, "LicenseRef-MRL is denied"),
        ("license: cc-by-nc-4.0", {}, "CC-BY-NC-4.0 is denied"),
        ("license: other", {}, "'other' in the license of target .* is not a known license"),
        ("license: odc-by", {}, "ODC-By-1.0 is not named by .targets."),
        ("tags: [a]", {}, "no license on record for target"),
        (None, {"NOTICE": b"Apache License\nVersion 2.0, January 2004\n"}, "no license on record for target"),
        # The mildest word does not win.
        ("license: mit", {"LICENSE": LLAMA}, "acknowledgement .*the card says MIT, but the license's text"),
        ("license: apache-2.0", {"COPYING": b"# Mistral AI Research License\n"}, "LicenseRef-MRL is denied"),
        # A fine-tune under a milder name than what it was made from.
        ("license: apache-2.0\nbase_model: meta-llama/Llama-3.1-8B", {}, "acknowledgement .*: LicenseRef-Llama-3.1"),
        ("license: mit\nbase_model:\n- x/y\n- mistralai/Mistral-Large-Instruct-2407", {}, "LicenseRef-MRL is denied"),
        ("license: apache-2.0\nbase_model: google/gemma-2-9b", {}, "acknowledgement .*: LicenseRef-Gemma"),
        ("license: apache-2.0\nbase_model: google/gemma-4-12b", {}, "allowed"),
        ("license: apache-2.0\nbase_model: Qwen/Qwen2.5-3B", {}, "Qwen-Research is denied"),
    ],
)
def test_targets(tmp_path, card, texts, outcome):
    claim = read_target_claim(target_dir(tmp_path, card, texts, model_type="llama"), "some/where")
    if outcome == "allowed":
        assert GATE.decide(claim).verdict == "allowed"
    else:
        refused(claim, outcome)


def test_what_a_target_may_be_called(tmp_path):
    made = "license: mit"
    assert (
        read_target_claim(target_dir(tmp_path, made), "deepseek-ai/DeepSeek-R1-Distill-Llama-8B")
        .names[0]
        .startswith("deepseek")
    )
    refused(
        read_target_claim(target_dir(tmp_path, made), "/models/deepseek-ai/DeepSeek-R1-Distill-Llama-8B"), "Llama-3.1"
    )
    refused(
        read_target_claim(target_dir(tmp_path, made, _name_or_path="meta-llama/Llama-3.3-70B-Instruct"), "x"),
        "Llama-3.3",
    )
    cached = tmp_path / "models--meta-llama--Llama-3.2-1B" / "snapshots" / REVISION
    cached.mkdir(parents=True)
    claim = read_target_claim(target_dir(cached, made), "mine")
    assert claim.revision == REVISION
    refused(claim, "Llama-3.2")
    assert GATE.decide(read_target_claim(target_dir(tmp_path, made), "mine")).verdict == "allowed"


def test_a_family_is_no_licence_but_tells_where_to_look(tmp_path):
    by_name = refused(read_target_claim(target_dir(tmp_path), "Qwen/Qwen3-8B"), "no license on record for target")
    assert "other sizes had Apache-2.0 on 2026-11-20: check yours" in by_name.fix
    by_type = refused(
        read_target_claim(target_dir(tmp_path, model_type="gemma2"), "x"), "no license on record for target"
    )
    assert "LicenseRef-Gemma" in by_type.fix
    assert GATE.decide(read_target_claim(tmp_path, "Qwen/Qwen3-8B", "Apache-2.0")).verdict == "allowed"


def test_a_directory_that_is_odd(tmp_path):
    (tmp_path / "config.json").write_text("[")
    (tmp_path / "LICENSE").mkdir()
    (tmp_path / "README.md").write_text("---\n- x\n---\n")
    with pytest.raises(InputError, match="not a YAML mapping"):
        read_target_claim(tmp_path, "x")
    (tmp_path / "README.md").write_text("---\nlicense: mit\nbase_model: 3\n---\n")
    claim = read_target_claim(tmp_path, "x")
    assert claim.texts == {}
    assert GATE.decide(claim).verdict == "allowed"


def test_a_decision_survives_json(tmp_path):
    claim = llama_target()
    made = append_acknowledgements(tmp_path / "a.jsonl", "A. Person", GATE.find_pending([claim]), NOW)
    record = GATE.decide(claim, made).to_json()
    assert json.loads(json.dumps(record)) == record
    assert record["acknowledgement"]["who"] == "A. Person"
    assert record["license_link"] == "LICENSE"
    assert GATE.decide(SourceClaim("x", card={"license": "mit", "license_link": ["x"]})).license_link is None
