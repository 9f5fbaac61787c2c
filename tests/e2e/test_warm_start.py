"""`train.init` in a recipe: a second run that goes on from the head of the first."""

import json

from tests.e2e.small import STAGES

from eyas.base.provenance import read_provenance
from eyas.cli import main
from eyas.doctor import examine
from eyas.formats.head_dir import digest_head
from eyas.recipe import Run, load_recipe


def test_a_run_goes_on_from_the_head_of_another(recipe, run, finished, tmp_path, capsys):
    """The same features, another head; the later stages follow it."""
    first = finished / "head"
    warm = [f"train.init={first}", "train.loss=lk_log", "train.draft_vocab_size=180"]
    for stage in STAGES[STAGES.index("train") :]:
        assert main([stage, str(recipe), "--out", str(run), *warm]) == 0
    assert read_provenance(run / "head").parents["init"] == digest_head(first)
    assert "| loss | lk_log |" in (run / "head" / "README.md").read_text()
    assert [str(finding) for finding in examine(str(run), None) if finding.weight == "misfit"] == []
    story = Run(load_recipe(run / "recipe.toml", {}), run).summarize_stages()
    assert story["head_start"] == f"another head's ({digest_head(first)})"
    acceptance = json.loads((run / "eval" / "acceptance.json").read_bytes())
    assert acceptance
    # A second command finds all of it done; a start that is gone is named.
    before = (run / "head" / "provenance.json").stat().st_mtime_ns
    assert main(["train", str(recipe), "--out", str(run), *warm]) == 0
    assert (run / "head" / "provenance.json").stat().st_mtime_ns == before
    assert main(["train", str(recipe), "--out", str(run), f"train.init={tmp_path / 'gone'}"]) == 2
    assert f"No head directory {tmp_path / 'gone'}." in capsys.readouterr().err
