"""A model of transformers finds what it labels; the model here is a tiny one with weights that label by token."""

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertForTokenClassification, PreTrainedTokenizerFast

from eyas.base.errors import InputError
from eyas.privacy import model_detectors as ner
from eyas.privacy.model_detectors import TransformersDetector, kind_of_label
from eyas.privacy.span import Span

WORDS = ["[PAD]", "[UNK]", "matti", "virtanen", "oulu", "asuu"]
LABELS = ["O", "B-PER", "I-PER", "B-LOC", "B-MISC"]
LABEL_OF = {"matti": "B-PER", "virtanen": "I-PER", "oulu": "B-LOC", "asuu": "B-MISC"}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]").save_pretrained(path)
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=8,
        num_hidden_layers=0,
        num_attention_heads=1,
        intermediate_size=8,
        id2label=dict(enumerate(LABELS)),
        label2id={label: index for index, label in enumerate(LABELS)},
    )
    model = BertForTokenClassification(config)
    with torch.no_grad():
        # A word's embedding says which label it has, and the classifier reads it off.
        for table in (model.bert.embeddings.position_embeddings, model.bert.embeddings.token_type_embeddings):
            table.weight.zero_()
        embeddings = torch.zeros(len(WORDS), 8)
        for index, word in enumerate(WORDS):
            embeddings[index, LABELS.index(LABEL_OF.get(word, "O"))] = 1.0
        model.bert.embeddings.word_embeddings.weight.copy_(embeddings)
        model.classifier.weight.copy_(10 * torch.eye(len(LABELS), 8))
        model.classifier.bias.zero_()
    model.save_pretrained(path)
    (path / ner.LANGUAGES_FILE).write_text("fi et\n")
    return path


def test_spans_and_kinds(directory):
    detector = TransformersDetector(str(directory))
    texts = ["x matti virtanen asuu oulu .", "", "x x x"]
    spans = detector.find(texts, ["fi"] * 3)
    assert [(span.start, span.end, span.kind) for span in spans[0]] == [(2, 16, "PERSON"), (22, 26, "LOCATION")]
    assert spans[1:] == [[], []]
    assert detector.name_languages == {"fi", "et"}
    assert detector.name == TransformersDetector(str(directory)).name


def test_long_texts_lose_nothing(directory):
    detector = TransformersDetector(str(directory))
    for shift in (0, 7, 190, 195, 201):
        text = "x " * 395 + "y" * shift + " matti virtanen " + "x " * 600
        begin = text.index("matti")
        found = detector.find([text], ["fi"])[0]
        assert any(span.start <= begin and span.end >= begin + 14 for span in found), shift


def test_kinds_of_labels():
    assert [
        kind_of_label(label) for label in ("B-PER", "I-LOC", "phone number", "GIVENNAME", "O", "MISC", "B-ORG")
    ] == [
        "PERSON",
        "LOCATION",
        "PHONE",
        "PERSON",
        None,
        None,
        None,
    ]
    assert all(kind_of_label(label) for label in ner.GLINER_LABELS)


def test_a_directory_without_a_model(tmp_path):
    with pytest.raises(InputError, match="does not load"):
        TransformersDetector(str(tmp_path))


def test_gliner_spans(monkeypatch, tmp_path):
    # The package is not installed: a stand-in with its interface shows that places and labels are read right.
    class Model:
        @classmethod
        def from_pretrained(cls, path, local_files_only):
            assert local_files_only
            return cls()

        def predict_entities(self, text, labels, threshold):
            begin = text.find("Matti")
            return [{"start": begin, "end": begin + 5, "label": "person", "score": 0.9}] if begin >= 0 else []

    import sys
    import types

    monkeypatch.setitem(sys.modules, "gliner", types.SimpleNamespace(GLiNER=Model))
    found = ner.GlinerDetector(str(tmp_path)).find(["Olen Matti.", "x"], ["fi", "fi"])
    assert found == [[Span(5, 10, "PERSON", 0.9)], []]
