"""The gate on the command line: refused, acknowledged by name, and what of it stands in the run."""

import json

import pytest
from tests.e2e.small import write_recipe

from eyas.cli import main


@pytest.fixture
def copied(recipe, target, tmp_path):
    """A recipe over a local copy of a set whose terms somebody has to accept."""
    source = tmp_path / "chats.jsonl"
    source.write_text("".join(json.dumps({"prompt": f"what is {i} plus {7 * i}?"}) + "\n" for i in range(5)))
    path = write_recipe(tmp_path / "copied.toml", target, source)
    path.write_text(path.read_text().replace('license = "MIT"', 'license = "own"'))
    return path


def test_terms_that_somebody_has_to_accept(copied, tmp_path, capsys):
    out = tmp_path / "run"
    assert main(["prompts", str(copied), "--out", str(out)]) == 2
    err = capsys.readouterr().err
    assert "--acknowledge" in err
    assert not out.exists()
    assert main(["prompts", str(copied), "--out", str(out), "--acknowledge", "A. Person, data protection"]) == 0
    (line,) = (out / "acknowledgements.jsonl").read_text().splitlines()
    assert json.loads(line)["who"] == "A. Person, data protection"
    ledger = json.loads((out / "prompts" / "ledger.json").read_bytes())
    licence = ledger["sources"][0]["licence"]
    assert licence["verdict"] == "acknowledged"
    assert licence["acknowledgement"]["who"] == "A. Person, data protection"
    assert "A. Person, data protection" in (out / "prompts" / "card.md").read_text()
    # It holds for later commands, and is asked for once.
    assert main(["prompts", str(copied), "--out", str(out), "prompts.seed=1", "--acknowledge", "B. Person"]) == 0
    assert len((out / "acknowledgements.jsonl").read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("prompts.license=CC-BY-NC-4.0", "CC-BY-NC-4.0"),
        ("prompts.license=nobody-knows-it", "nobody-knows-it"),
        ("target.license=CC-BY-NC-4.0", "CC-BY-NC-4.0"),
        ("prompts.policy=nowhere.toml", "nowhere.toml"),
    ],
)
def test_refused(recipe, tmp_path, capsys, override, named):
    """Also for somebody who would accept it."""
    out = tmp_path / "run"
    for arguments in ([], ["--acknowledge", "A. Person"]):
        assert main(["prompts", str(recipe), "--out", str(out), override, *arguments]) == 2
        assert named in capsys.readouterr().err
        assert not (out / "prompts").exists()


def test_a_target_without_a_licence(recipe, tmp_path, capsys):
    text = recipe.read_text().replace('license = "Apache-2.0"', "")
    bare = tmp_path / "bare.toml"
    bare.write_text(text)
    assert main(["prompts", str(bare), "--out", str(tmp_path / "run")]) == 2
    assert "target" in capsys.readouterr().err


def test_it_stands_on_the_heads_card(finished):
    card = (finished / "head" / "README.md").read_text()
    assert "## Data and licenses" in card
    assert "MIT" in card
    assert "no legal advice" in card
