"""The score of a place is the sum of the weights of its features, however it is computed; values need a context."""

import pytest
from context_features import list_features

from eyas.privacy.context_model import MASK, ContextWords, FeatureWeights
from eyas.privacy.private_values import find_candidates, find_private_values

TEXTS = [
    ("en", "My landlord Tevita Fifita keeps my deposit, and Tevita Fifita lies.", "Tevita Fifita"),
    ("zh", "我的房东王小明不还押金，我该怎么办？", "王小明"),
    ("ar", "وصاحب البيت توفيق لا يرد على الهاتف", "توفيق"),
]


@pytest.mark.parametrize(("language", "text", "name"), TEXTS)
def test_the_score_is_the_sum_of_the_weights_of_the_features(language, text, name):
    start = text.find(name)
    names = [(k, k + len(name)) for k in range(len(text)) if text.startswith(name, k)]
    context = ContextWords(text, names, language)
    features = list_features(context, start, start + len(name))
    weights = FeatureWeights({feature: 0.5 + k / 7 for k, feature in enumerate(sorted(set(features)))}, language)
    assert context.score(start, start + len(name), weights) == pytest.approx(sum(weights[one] for one in features))
    assert context.tokens.count(MASK) == len(names)
    assert not any(name.casefold() in feature for feature in features)


def test_candidates_have_their_forms_and_do_not_overlap():
    text = "it is 9 Kirkgate on 12.04.1983: @zorvek34 wrote 4ERW441 and l0vem0?78x"
    found = [(value.form, text[value.start : value.end]) for value in find_candidates(text)]
    assert found == [
        ("street", "9 Kirkgate"),
        ("date", "12.04.1983"),
        ("handle", "@zorvek34"),
        ("code", "4ERW441"),
        ("odd", "l0vem0?78x"),
    ]


def test_the_words_around_a_code_decide():
    text, public = "The PIN of my alarm at home is 4821, tell the cleaner.", "The Boeing 4821 was built in Seattle."
    assert [text[span.start : span.end] for span in find_private_values(text, [], "en")] == ["4821"]
    assert not list(find_private_values(public, [], "en"))
