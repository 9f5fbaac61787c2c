"""The grammar writes the same text every time, another one in each split, and no choice in it is certain."""

import json
import random
from collections import Counter

import pytest

from eyas.base.provenance import digest_json
from eyas.evalsets import FAMILIES, example
from eyas.evalsets.template_grammar import TemplateGrammar, zipf_choice

FROZEN = {
    "chat": "sha256:ae8d7c66e154",
    "code": "sha256:80fc626a752f",
    "arithmetic": "sha256:ea92f1f8a838",
    "extraction": "sha256:b0d60c02305f",
    "summary": "sha256:d18844d3508b",
    "passages": "sha256:4bec4cae3f56",
    "translation": "sha256:e12520270287",
}
SPLITS = ("train", "eval", "quickstart")
FROZEN_TEXTS = "sha256:cf96ac1d358d"


def test_an_example_never_changes():
    # The embedded target was trained on this text, and shipped hashes and references are of it.
    found = {family: digest_json(example(family, "eval", 3).messages)[:19] for family in FAMILIES}
    assert found == FROZEN


def test_no_text_of_any_split_changes():
    texts = [example(family, split, i).messages for split in SPLITS for family in sorted(FAMILIES) for i in range(40)]
    assert digest_json(texts)[:19] == FROZEN_TEXTS


@pytest.mark.parametrize("family", FAMILIES)
def test_splits_and_indices_differ(family):
    texts = {example(family, split, index).messages[-1]["content"] for split in SPLITS for index in range(40)}
    assert len(texts) == 120


@pytest.mark.parametrize("family", FAMILIES)
def test_conversations_alternate_and_end_with_an_answer(family):
    for index in range(20):
        roles = [message["role"] for message in example(family, "train", index).messages]
        if roles[0] == "system":
            roles = roles[1:]
        assert roles == ["user", "assistant"] * (len(roles) // 2)
        assert roles


@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_is_left_unexpanded(family):
    if family in ("code", "extraction"):
        return  # their texts hold braces
    for index in range(30):
        for message in example(family, "train", index).messages:
            assert not set("{}<>|") & set(message["content"])


def test_code_answers_are_python():
    for index in range(60):
        answer = example("code", "train", index).messages[-1]["content"]
        compile(answer.split("```python\n")[1].split("```")[0], "answer", "exec")


def test_extraction_answers_are_json_with_the_keys_asked_for():
    for index in range(60):
        one = example("extraction", "train", index)
        keys = list(json.loads(one.messages[-1]["content"]))
        assert ", ".join(keys) in one.prompt[0]["content"]


def test_arithmetic_steps_are_right():
    for index in range(60):
        answer = example("arithmetic", "train", index).messages[-1]["content"]
        for piece in answer.split(" = ")[:-1]:
            left = piece.split()[-3:]
            right = answer.split(piece + " = ")[1].split()[0].rstrip(".;,")
            assert eval(" ".join(left)) == int(right), answer  # three words of the grammar


def test_passages_are_long():
    lengths = [len(example("passages", "eval", index).prompt[0]["content"].split()) for index in range(30)]
    assert min(lengths) > 900


def test_choices_are_skewed_and_the_tone_decides_which_is_likely():
    counts = {}
    for tone in ("plain", "warm", "brisk", "formal"):
        speaker = TemplateGrammar(random.Random(0), tone, {})
        counts[tone] = Counter(speaker.expand("{one|two|three|four}") for _ in range(2000))
    likely = {count.most_common(1)[0][0] for count in counts.values()}
    assert len(likely) > 1
    for count in counts.values():
        # Zipf with exponent 1.5 over four: 0.60, 0.21, 0.12, 0.07. A binomial of 2000 strays 0.05 with odds below 1e-5.
        shares = sorted((value / 2000 for value in count.values()), reverse=True)
        assert all(abs(share - wanted) < 0.05 for share, wanted in zip(shares, (0.60, 0.21, 0.12, 0.07), strict=True))


def test_zipf_choice_reaches_every_option():
    rng = random.Random(1)
    assert {zipf_choice(rng, ["a", "b", "c"]) for _ in range(300)} == {"a", "b", "c"}
