"""docs/deploy.md, images.md and deploy-jobs.md name only what exists. tests/e2e/test_docs.py runs its commands."""

import re
from pathlib import Path

from eyas.base.config import build
from eyas.deploy.config import DeployConfig
from eyas.privacy.surrogates import KEY_VARIABLE

ROOT = Path(__file__).parents[2]
PAGE = "".join((ROOT / "docs" / name).read_text() for name in ("deploy.md", "images.md", "deploy-jobs.md"))


def test_its_recipe_is_valid():
    import tomllib

    serving, jobs = (
        build(DeployConfig, tomllib.loads(text)["deploy"]) for text in re.findall(r"```toml\n(.+?)```", PAGE, re.DOTALL)
    )
    assert serving.vertex.replicas == (1, 4)
    assert jobs.vertex.jobs.train_machines == 2


def test_it_names_only_what_exists():
    variables = set(re.findall(r"`((?:AIP|EYAS)_[A-Z_]+[A-Z])`", PAGE))
    read = "".join((ROOT / "deploy" / name).read_text() for name in ("entrypoint.sh", "gate.py")) + KEY_VARIABLE
    assert {name for name in variables if name not in read} == set()
    assert set(re.findall(r"\b(?:AIP|EYAS)_[A-Z_]+[A-Z]\b", read)) - variables <= {"EYAS_LIB", "EYAS_INNER_PORT"}
    for path in re.findall(r"`(deploy/[a-z/.A-Z]+)`", PAGE):
        assert (ROOT / path).exists(), path
