"""Every command of README and docs runs, page by page and in order, or says what it needs that is not here.

    eyas run recipes/tiny.toml        runs, with a recipe of that name whose stages take a second
    ...   # needs: gcp                parses, for what it needs is not here: docker, gcp, gpu, a registry, the internet
    ...   # takes: minutes            parses: it would run, but longer than a test may

A page's commands share a directory, so a later one finds what an earlier one made.
"""

import contextlib
import json
import re
import shlex
import shutil
import subprocess
import textwrap
import tomllib
from pathlib import Path

import pytest
from tests.e2e.small import write_prompts
from tests.tiny import tiny_target

from eyas import cli
from eyas.base.config import to_toml
from eyas.recipe import load_recipe

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = {"README.md": ROOT / "README.md"} | {str(path.relative_to(DOCS)): path for path in sorted(DOCS.rglob("*.md"))}
MARK = re.compile(r"# (needs: (a registry|the internet|docker|gcp|gpu)(, (docker|gcp|gpu))*|takes: \w+)(;|$)")
PROGRAMS = ("eyas", "make", "python", "pip", "pip-audit", "curl", "docker", "gcloud", "kubectl", "torchrun", "pytest")
SERVED = re.compile(r"(127\.0\.0\.1|localhost):\d+")
FENCE = re.compile(r" *```(\w*)")
SHELLS = ("", "sh", "bash", "console")
VARIABLE = re.compile(r"[A-Z_]+=")
# The recipe of the pages with less of everything, and a client that asks once.
QUICK = {
    "prompts": {"source": "FILE.jsonl", "license": "MIT"},
    "respond": {"max_tokens": 24},
    "train": {"epochs": 1, "draft_vocab_size": 256, "head": {"intermediate_size": 64}},
    "bench": {
        "prompts_per_task": 1,
        "max_tokens": 8,
        "repeats": 1,
        "concurrency": [1],
        "requests_per_stream": 1,
        "lossless_prompts": 1,
        "lossless_tokens": 4,
    },
    "tune": {"streams": [1, 2], "depth": 3, "top_k": [1, 2], "nodes": [4], "answers": 2, "allowance_s": 1.0},
}
QUICK_CLIENT = (
    "client.limit=1",
    "client.repeats=1",
    "client.concurrency=[1]",
    "client.max_tokens=8",
    "client.warm_up=1",
)
MEASURED = {
    "max_concurrency": 4,
    "output_throughput": 700.0,
    **{f"{point}_ttft_ms": 20.0 for point in ("median", "p90", "p99")},
    **{f"{point}_tpot_ms": 9.0 for point in ("p90", "p99")},
    "median_itl_ms": 10.0,
    "median_e2el_ms": 100.0,
}


def commands(page: str) -> list[str]:
    """Those of a page."""
    return commands_in(PAGES[page].read_text(encoding="utf-8"))


def commands_in(text: str) -> list[str]:
    """The lines of blocks, indented or between fences, that begin with a program: of a drawing none does.

    A fence with the name of a language that is not a shell's holds no commands.
    """
    lines, language = [], None
    for line in text.splitlines():
        if fence := FENCE.fullmatch(line):
            language = fence[1] if language is None else None
        elif language in SHELLS or (language is None and line.startswith("    ")):
            lines.append(line.strip())
    return [line for line in lines if words_of(line)[:1] and words_of(line)[0] in PROGRAMS]


def block_of(page: str, language: str) -> str:
    """Returns the first block of a page in that language, without its indentation."""
    found = re.search(rf"^( *)```{language}\n(.*?)^ *```$", PAGES[page].read_text(encoding="utf-8"), re.M | re.S)
    assert found is not None, f"{page} has no block of {language}"
    return textwrap.dedent(found[2])


def words_of(line: str) -> list[str]:
    """Without the remark, and without the variables that are set for it."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:  # an apostrophe: a sentence
        return []
    return [word for number, word in enumerate(words) if number > 2 or not VARIABLE.match(word)]


ALL = [(page, line) for page in PAGES for line in commands(page)]


def test_a_command_is_one_wherever_a_block_begins():
    page = """Text with `eyas run`,
eyas too.

    eyas indented --flag   # a remark
    VARIABLE=1 eyas second

```
eyas fenced --flag
 prompts ─> eyas ─> head
```

1. A list:

   ```sh
   make listed
   ```

```toml
python = "a key"
eyas = 1
```

    make last
"""
    found = [
        "eyas indented --flag   # a remark",
        "VARIABLE=1 eyas second",
        "eyas fenced --flag",
        "make listed",
        "make last",
    ]
    assert commands_in(page) == found


def test_there_are_commands():
    assert len(ALL) > 60
    assert {page for page, _ in ALL} >= {"README.md", "index.md", "guide-data.md", "guide-serving.md", "deploy.md"}


@pytest.mark.parametrize(("page", "line"), ALL)
def test_each_parses(page, line):
    words = words_of(line)
    marked = MARK.search(line) is not None
    match words[0]:
        case "eyas":
            assert cli._parse(words[1:]).verb == words[1]
            assert marked or not {"--apply", "--upload"} & set(words)
        case "make":
            rule = rf"^[a-z- ]*\b{words[1]}\b.*:"
            assert re.search(rule, (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        case "python":
            script = (ROOT / words[1]).read_text(encoding="utf-8")
            assert marked
            assert all(f'"{word}"' in script for word in words[2:] if word.startswith("--"))
        case "pip":
            extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
            for named in re.findall(r"\[([a-z,]+)\]", line):
                assert set(named.split(",")) <= set(extras)
        case "torchrun":
            assert cli._parse(words[words.index("eyas") + 1 :]).verb in ("train", "capture")
            assert marked
        case "curl":
            assert SERVED.search(line) or marked
        case _:
            assert marked, line


RUNS = [page for page in PAGES if any(words_of(line)[0] == "eyas" for line in commands(page)) and page != "privacy.md"]


@pytest.mark.parametrize("page", RUNS)  # privacy.md: by test_private_run
def test_a_page_runs_from_its_top_to_its_end(page, scene, ran, start, monkeypatch, capfd):
    monkeypatch.chdir(scene)
    here = ""
    for line in (line for line in commands(page) if not MARK.search(line)):
        program, *words = words_of(line)
        serves = program == "eyas" and words[0] == "serve"
        if not serves and (program, *words) in ran:
            continue
        ran.add((program, *words))
        words = [SERVED.sub(here, word) for word in words]
        if serves:
            told = dict(word.split("=", 1) for word in shlex.split(line) if VARIABLE.match(word))
            here = start(*words[1:], **told).wait_ready().removeprefix("http://")
            if "--api-key" in words:
                monkeypatch.setenv("EYAS_API_KEY", words[words.index("--api-key") + 1])
        elif program == "eyas":
            code = cli.main([*words, *(QUICK_CLIENT if "--url" in words else ())])
            assert code == 0, f"{line}\n{capfd.readouterr().err}"
        elif program == "curl" and shutil.which("curl"):
            command = ["curl", "--fail", "--silent", "--show-error", *words]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert (done.returncode, done.stderr) == (0, ""), line
            assert done.stdout


@pytest.fixture(scope="module")
def ran() -> set[tuple[str, ...]]:
    """What has run; a command that several pages have runs once. A server runs for its page."""
    return set()


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the pages take for granted: recipes, prompts, figures of other tools, and `eyas run recipes/tiny.toml`."""
    place = tmp_path_factory.mktemp("scene")
    shutil.copytree(ROOT / "recipes", place / "recipes")
    tiny = place / "recipes" / "tiny.toml"
    tiny.write_text(to_toml(load_recipe(tiny, QUICK)), encoding="utf-8")
    write_prompts(place / "FILE.jsonl")
    prepare_first_hour(place)
    for name, tpot_ms in (("a", 8.0), ("b", 4.0)):
        (place / f"{name}.json").write_text(json.dumps({**MEASURED, "median_tpot_ms": tpot_ms}))
    with contextlib.chdir(place):
        assert cli.main(["run", "recipes/tiny.toml"]) == 0
    shutil.copytree(place / "runs" / "tiny", place / "runs" / "llama3-8b")
    return place


def prepare_first_hour(place: Path) -> None:
    """Writes what README asks its reader to write: prompts, a model, a recipe. QUICK shortens the recipe's run."""
    examples = block_of("README.md", "json").splitlines()
    assert all(isinstance(json.loads(line)["prompt"], str) for line in examples)
    prompts = write_prompts(place / "my-prompts.jsonl")
    prompts.write_text("\n".join([*examples, prompts.read_text()]))
    tiny_target(place / "my-model")  # in the place of the model that README downloads
    recipe = place / "my.toml"
    recipe.write_text(block_of("README.md", "toml"), encoding="utf-8")
    assert load_recipe(recipe, {}).prompts.license == "MIT"
    own = QUICK | {"prompts": {}, "train": {"epochs": 1}}
    recipe.write_text(to_toml(load_recipe(recipe, own)), encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    text = PAGES[page].read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        assert link.startswith("https://") or (PAGES[page].parent / link).exists(), link
    for anchor in re.findall(r"\]\(#([^)]+)\)", text):
        heads = [
            re.sub(r"[^a-z0-9 -]", "", head.lower()).replace(" ", "-") for head in re.findall(r"^#+ (.+)$", text, re.M)
        ]
        assert anchor in heads


def test_the_tour_names_every_page():
    tour = PAGES["index.md"].read_text(encoding="utf-8")
    linked = set(re.findall(r"\(([\w/-]+\.md)\)", tour))
    assert linked >= {page for page in PAGES if "/" not in page} - {"README.md", "index.md"}
