"""docs/licenses.md says what the code does: its example is a policy that does what the page says."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from tests.data.ledgers import REVISION

from eyas.base.errors import InputError
from eyas.data.licenses.license_gate import LicenseGate
from eyas.data.licenses.license_metadata import SourceClaim

DOCS = Path(__file__).parents[3] / "docs" / "licenses.md"


def example() -> str:
    found = re.findall(r"```toml\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert len(found) == 1
    return found[0]


def test_the_example_is_a_policy_and_does_what_is_said_of_it(tmp_path):
    path = tmp_path / "acme.toml"
    path.write_text(example())
    gate = LicenseGate.load(path)
    assert gate.policy.name == "ACME, 2026-11-20"
    public = SourceClaim("x", "acme/x", card={"language_creators": "crowdsourced"})
    assert gate.decide(replace(public, license="LicenseRef-ACME-Support-Contract")).verdict == "allowed"
    with pytest.raises(InputError, match=r"CC-BY-SA-4\.0 is denied"):
        gate.decide(replace(public, license="cc-by-sa-4.0"))
    with pytest.raises(InputError, match="needs an acknowledgement"):
        gate.decide(SourceClaim("x", "openbmb/UltraChat", "MIT", revision=REVISION))
    with pytest.raises(InputError, match="not stated"):
        gate.decide(SourceClaim("x", license="MIT"))
    with pytest.raises(InputError, match="Gemma"):
        gate.decide(SourceClaim("x", license="gemma"))
    assert gate.policy.verdicts["licenses"]["Apache-2.0"] == "allow"  # the rest stays


def test_every_table_and_verdict_is_explained():
    text = DOCS.read_text(encoding="utf-8")
    for word in ("[licenses]", "[generators]", "[datasets]", "[targets]", "acknowledgements.jsonl", "not legal advice"):
        assert word in text
