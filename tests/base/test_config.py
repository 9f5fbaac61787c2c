import dataclasses
import math
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from typing import Literal, NewType

import pytest

from eyas.base.config import NonNegativeFloat, build, load_toml, merge_tables, parse_overrides, require_range, to_toml
from eyas.base.errors import InputError, UsageError

LayerId = NewType("LayerId", int)


@dataclasses.dataclass(frozen=True)
class Prompts:
    source: str
    license: str | None = None
    limit: int | None = None


@dataclasses.dataclass(frozen=True)
class Tree:
    depth: int = 5
    top_k: int = 4


@dataclasses.dataclass(frozen=True)
class Train:
    steps: int = 7
    learning_rate: float = 1e-4
    dtype: Literal["float32", "bfloat16"] = "float32"
    layers: tuple[LayerId, ...] = ()
    betas: tuple[float, float] = (0.9, 0.95)
    shuffle: bool = True
    decay: NonNegativeFloat = 0.5
    tree: Tree = Tree()

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise UsageError(f"train.steps = {self.steps} is less than 1", "Raise train.steps")


@dataclasses.dataclass(frozen=True)
class Recipe:
    prompts: Prompts
    name: str = "tiny"
    train: Train = Train()
    trees: tuple[Tree, ...] = ()
    tasks: Mapping[str, Tree] = dataclasses.field(default_factory=dict)


def minimal(**train):
    return {"prompts": {"source": "a.jsonl"}, "train": train}


def test_overrides_are_toml_values_or_strings():
    assert parse_overrides(
        [
            "train.steps=7",
            "train.learning_rate=1e-3",
            "train.shuffle=false",
            "train.layers=[2, 8]",
            "prompts.source=../shared/data/a=b.jsonl",
            'prompts.license="0BSD"',
            "name=2024-01-01",
            "train.tree.depth=3",
        ]
    ) == {
        "train": {"steps": 7, "learning_rate": 1e-3, "shuffle": False, "layers": [2, 8], "tree": {"depth": 3}},
        "prompts": {"source": "../shared/data/a=b.jsonl", "license": "0BSD"},
        "name": "2024-01-01",
    }


def test_an_override_cannot_bring_a_second_key():
    assert parse_overrides(["train.steps=7\nshuffle = false"]) == {"train": {"steps": "7\nshuffle = false"}}


@pytest.mark.parametrize("item", ["train.steps", "=7", "train.=7", ".steps=7"])
def test_an_override_needs_a_key_and_a_value(item):
    with pytest.raises(UsageError, match=r"is not of the form stage\.key=value"):
        parse_overrides([item])


@pytest.mark.parametrize("items", [["train=7", "train.steps=7"], ["train.steps=7", "train=7"]])
def test_a_key_is_a_table_or_a_value(items):
    with pytest.raises(UsageError, match="both as a table and as a value"):
        parse_overrides(items)


def test_merge_goes_table_by_table_and_leaves_its_arguments():
    below = {"train": {"steps": 7, "shuffle": True}, "name": "a"}
    above = {"train": {"steps": 3}}
    assert merge_tables(below, above) == {"train": {"steps": 3, "shuffle": True}, "name": "a"}
    assert below["train"]["steps"] == 7


def test_build_fills_defaults_and_types():
    recipe = build(Recipe, minimal(learning_rate=1, layers=[2, 8], betas=[0.8, 1], tree={"depth": 3}))
    assert recipe.train == Train(learning_rate=1.0, layers=(LayerId(2), LayerId(8)), betas=(0.8, 1.0), tree=Tree(3, 4))
    assert type(recipe.train.learning_rate) is float
    assert recipe.name == "tiny"


def test_tables_whose_names_are_free():
    recipe = build(Recipe, {**minimal(), "tasks": {"math": {"depth": 3}, "chat": {}}})
    assert recipe.tasks == {"math": Tree(3), "chat": Tree()}
    with pytest.raises(UsageError, match=r"Unknown key tasks\.math\.dept\."):
        build(Recipe, {**minimal(), "tasks": {"math": {"dept": 3}}})
    with pytest.raises(UsageError, match=r"tasks = 3 is not a table\."):
        build(Recipe, {**minimal(), "tasks": 3})


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ({"stesp": 3}, r"Unknown key train\.stesp\. Use train\.steps, the nearest known key\."),
        ({"limit": 3}, r"Unknown key train\.limit\. Use prompts\.limit, the nearest known key\."),
        ({"tree": {"dept": 3}}, r"Unknown key train\.tree\.dept\. Use train\.tree\.depth, the nearest known key\."),
        ({"qqqqq": 3}, r"Unknown key train\.qqqqq\. Remove it\."),
        ({"steps": "7"}, r"^train\.steps = '7' is not a whole number\.$"),
        ({"steps": 7.0}, r"train\.steps = 7\.0 is not a whole number"),
        ({"steps": True}, r"train\.steps = True is not a whole number"),
        ({"learning_rate": "1"}, r"train\.learning_rate = '1' is not a number"),
        ({"shuffle": 1}, r"train\.shuffle = 1 is not true or false"),
        ({"dtype": "bfloat"}, r"'bfloat' is not one of 'float32' or 'bfloat16'\. Use bfloat16, the nearest choice\."),
        ({"layers": [2, "x"]}, r"train\.layers\[1\] = 'x' is not a whole number"),
        ({"layers": 2}, r"train\.layers = 2 is not a list\."),
        ({"betas": [0.9]}, r"train\.betas\[1\] is required and has no default\. Add it to the list\."),
        ({"betas": [0.9, 1, 2]}, r"train\.betas = \[0\.9, 1, 2\] is not a list with at most 2 items"),
        ({"decay": -1}, r"train\.decay = -1 is out of range\. Set train\.decay to a number at least 0\."),
        ({"decay": math.nan}, r"train\.decay = nan is"),
        ({"decay": math.inf}, r"train\.decay = inf is not a finite number"),
        ({"tree": 3}, r"train\.tree = 3 is not a table\. Write \[train\.tree\]"),
        ({"steps": 0}, r"train\.steps = 0 is less than 1"),
    ],
)
def test_what_does_not_fit_is_refused(train, message):
    with pytest.raises(UsageError, match=message):
        build(Recipe, minimal(**train))


def test_a_key_without_default_must_be_given():
    with pytest.raises(UsageError, match=r"prompts\.source is required and .*pass prompts\.source=VALUE"):
        build(Recipe, {"prompts": {}})


def test_the_advice_for_a_string_that_looks_like_a_number_works():
    with pytest.raises(UsageError) as caught:
        build(Recipe, parse_overrides(["prompts.source=7"]))
    assert "prompts.source='\"7\"' on the command line" in caught.value.fix
    assert build(Recipe, parse_overrides(['prompts.source="7"'])).prompts.source == "7"


NASTY = 'a "quoted" \\ back\nslash\ttab \x00 \x1f \x7f \u2028 é 鷹 # = [x]'


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(Prompts("a.jsonl")),
        Recipe(
            Prompts(NASTY, license="MIT", limit=300),
            name="",
            train=Train(3, 1e-05, "bfloat16", (LayerId(2), LayerId(8)), (1e22, math.inf), False, 1.0, Tree(3, 1)),
            trees=(Tree(1, 2), Tree(3, 4)),
            tasks={"math-1": Tree(1, 2), NASTY: Tree()},
        ),
    ],
)
def test_a_resolved_recipe_reads_back_as_itself(recipe):
    text = to_toml(recipe)
    assert build(Recipe, tomllib.loads(text)) == recipe
    assert to_toml(build(Recipe, tomllib.loads(text))) == text


def test_scalars_stand_before_tables():
    lines = to_toml(Recipe(Prompts("a"), train=Train(tree=Tree(3)))).splitlines()
    assert (
        lines.index('name = "tiny"') < lines.index("[prompts]") < lines.index("[train]") < lines.index("[train.tree]")
    )


def test_a_recipe_that_is_missing_or_no_toml_is_named(tmp_path):
    with pytest.raises(InputError, match=r"none\.toml cannot be read \(No such file"):
        load_toml(tmp_path / "none.toml")
    bad = tmp_path / "bad.toml"
    bad.write_text("[train]\nsteps = = 7\n")
    with pytest.raises(InputError, match=r"bad\.toml is not valid TOML \(line 2, column 9\)"):
        load_toml(bad)
    bad.write_text("[train]\nsteps = 7\n")
    assert load_toml(bad) == {"train": {"steps": 7}}


def test_the_ground_floor_imports_no_torch():
    code = (
        "import sys, eyas.base.config, eyas.base.errors, eyas.base.progress, eyas.base.provenance, eyas.base.storage\n"
        "print([name for name in ('torch', 'transformers', 'numpy') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize(("value", "exclude_low"), [(-0.1, False), (1.5, False), (0, True)])
def test_a_number_out_of_range_is_rejected_with_its_limits(value: float, exclude_low: bool) -> None:
    with pytest.raises(UsageError, match=rf"train\.decay = {value} is out of range\. Set train\.decay to a number"):
        require_range("train.decay", value, 0, 1, exclude_low=exclude_low)


def test_numbers_within_the_range_and_none_pass() -> None:
    for value in (None, 0, 0.5, 1):
        require_range("train.decay", value, 0, 1)
    require_range("train.steps", 10**9, 1)
