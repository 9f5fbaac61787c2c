"""A model finds what it labels. The model of these tests is small, and the tests train it on sentences of their own."""

import itertools
import json
import random
import re
import sys
import types

import pytest
import torch
from tests.privacy.detection import KEY
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import ModernBertConfig, ModernBertForTokenClassification, PreTrainedTokenizerFast

from eyas.base.errors import InputError
from eyas.privacy import model_detectors as ner
from eyas.privacy.config import PrivacyConfig
from eyas.privacy.filter import CleanedRecord, DroppedRecord, PrivacyFilter
from eyas.privacy.model_detectors import kind_of_label, load_model_detector
from eyas.privacy.span import Span, merge_spans

LABELS = ["O", "B-PER", "I-PER", "B-LOC", "B-PASSWORD", "B-MISC"]
# Finnish, a language of no built-in detector. A word in braces is one that the tokenizer does not know, so the model
# must read its label from the words around it.
SENTENCES = [
    "minun nimeni on {B-PER} {I-PER} .",
    "terveisin {B-PER} {I-PER} .",
    "soita henkilölle {B-PER} {I-PER} huomenna .",
    "{B-PER} {I-PER} kirjoitti viestin .",
    "hän asuu kaupungissa {B-LOC} .",
    "kaupungista {B-LOC} lähtee juna .",
    "salasana on {B-PASSWORD} .",
    "sana {O} on vaikea .",
    "mitä tarkoittaa {O} ?",
    "asenna kirjasto {O} huomenna .",
    "lue kirja {O} .",
    "kirja {O} on hyvä ja {O} on vaikea .",
    "juna on vaikea sana ja viesti on hyvä .",
]
UNKNOWN = "[UNK]"
MAX_TOKENS = 64  # the model cannot read a window of 1,000 characters at once
FILLER = "Juna on vaikea sana ja viesti on hyvä. "


def training_example(rng):
    """Returns tokens and labels of a few sentences in random order. A window may begin and end inside a sentence."""
    tokens, labels = [], []
    for _ in range(rng.choice((1, 2, 3, 9))):
        for word in rng.choice(SENTENCES).split():
            tokens.append(UNKNOWN if word[0] == "{" else word)
            labels.append(LABELS.index(word.strip("{}")) if word[0] == "{" else 0)
    return tokens[:MAX_TOKENS], labels[:MAX_TOKENS]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    rng = random.Random(0)
    words = sorted({word for sentence in SENTENCES for word in sentence.split() if word[0] != "{"})
    vocabulary = {word: index for index, word in enumerate(["[PAD]", UNKNOWN, *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    # Without model_max_length, as many models are saved.
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token=UNKNOWN, pad_token="[PAD]").save_pretrained(path)
    config = ModernBertConfig(
        vocab_size=len(vocabulary),
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=96,
        max_position_embeddings=MAX_TOKENS,
        local_attention=8,  # tokens around a word, of which half stand before it
        global_attn_every_n_layers=100,
        id2label=dict(enumerate(LABELS)),
        label2id={label: index for index, label in enumerate(LABELS)},
        **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 0),
    )
    model = ModernBertForTokenClassification(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(200):
        ids_BT = torch.zeros(16, MAX_TOKENS, dtype=torch.long)
        labels_BT = torch.full((16, MAX_TOKENS), -100)
        for row in range(16):
            tokens, labels = training_example(rng)
            ids_BT[row, : len(tokens)] = torch.tensor([vocabulary[token] for token in tokens])
            labels_BT[row, : len(labels)] = torch.tensor(labels)
        loss = model(input_ids=ids_BT, attention_mask=(ids_BT > 0).long(), labels=labels_BT).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.save_pretrained(path)
    (path / ner.LANGUAGES_FILE).write_text("fi et\n")
    return path


def kinds_and_values(detector, text):
    return {(span.kind, text[span.start : span.end]) for span in merge_spans(detector.find([text], ["fi"])[0])}


def test_spans_and_kinds(directory):
    detector = load_model_detector(str(directory))
    text = "Lue kirja Kalevala. Terveisin Aapeli Mononen. Kaupungista Oulu lähtee juna."
    assert kinds_and_values(detector, text) == {("PERSON", "Aapeli Mononen"), ("LOCATION", "Oulu")}
    assert detector.find(["", "Mitä tarkoittaa kvantti?"], ["fi", "fi"]) == [[], []]
    assert detector.name_languages == {"fi", "et"}
    assert detector.name == load_model_detector(str(directory)).name


@pytest.mark.parametrize("shift", [0, 7, 190, 195, 201])
def test_long_texts_lose_nothing(directory, shift):
    # Windows begin at 0, 800, 1,600 ...; the names stand across the ends of windows and of what the model reads.
    text = (FILLER * 40)[:780].rstrip() + " " * shift + " Minun nimeni on Aapeli Mononen. " + FILLER * 20
    text += "Hän asuu kaupungissa Oulu. " + FILLER * 30 + "Terveisin Taavi Kuosmanen."
    found = kinds_and_values(load_model_detector(str(directory)), text)
    assert {value for _, value in found} == {"Aapeli Mononen", "Oulu", "Taavi Kuosmanen"}


def test_the_filter_with_the_model(directory):
    # Names and texts that the model never read, in a language of no other detector.
    privacy = PrivacyFilter(PrivacyConfig(detectors=("builtin", f"model:{directory}")), KEY)
    assert privacy.name_languages >= {"fi", "et", "en"}
    long = f"{FILLER * 25}Soita henkilölle Ilmari Kettunen huomenna. {FILLER * 25}Kettunen kirjoitti viestin."
    texts = [
        "Sana kvantti on vaikea. Terveisin Taavi Kuosmanen. Mitä tarkoittaa entropia?",
        long,
        "Salasana on kissakala77.",
        "Asenna kirjasto numeeri huomenna.",
        "Kirjoita viesti: aapeli@web.de",
    ]
    mixed, changed, dropped, same, mail = privacy.clean([((text,), "fi") for text in texts])
    assert isinstance(mixed, CleanedRecord)
    assert mixed.changed == {"PERSON": 1}
    assert re.fullmatch(r"(Sana kvantti .* Terveisin )\w+ \w+(\. Mitä tarkoittaa entropia\?)", mixed.texts[0])
    assert not re.search("Taavi|Kuosmanen", mixed.texts[0])
    assert isinstance(changed, CleanedRecord)
    assert not re.search("Ilmari|Kettunen", changed.texts[0])
    assert changed.texts[0].count(FILLER.strip()) == 50
    assert dropped == DroppedRecord("secret", {"SECRET": 1})
    assert same == CleanedRecord((texts[3],), {})
    assert isinstance(mail, CleanedRecord)
    assert mail.changed["EMAIL"] == 1  # the built-in detector finds what needs no language
    without = PrivacyFilter(PrivacyConfig(), KEY)
    assert without.clean([((texts[0],), "fi")]) == [DroppedRecord("unsupported_language", {})]
    assert without.digest != privacy.digest


def test_kinds_of_labels():
    labels = ("B-PER", "I-LOC", "phone number", "GIVENNAME", "private_person", "O", "MISC", "B-ORG")
    kinds = ["PERSON", "LOCATION", "PHONE", "PERSON", "PERSON", None, None, None]
    assert [kind_of_label(label) for label in labels] == kinds
    assert all(kind_of_label(label) for label in ner.GLINER_LABELS)


def test_languages_of_the_card(directory, tmp_path):
    for name, text, expected in (
        ("list", "---\nlanguage: [fi, sv]\n---\nA model.", {"fi", "sv"}),
        ("one", "---\nlanguage: fi\n---\n", {"fi"}),
        ("none", "A model.", set()),
    ):
        path = tmp_path / name
        path.mkdir()
        for file in directory.iterdir():
            if file.name != ner.LANGUAGES_FILE:
                (path / file.name).symlink_to(file)
        (path / "README.md").write_text(text)
        assert load_model_detector(str(path)).name_languages == expected, name


def test_a_model_of_the_hub(directory, tmp_path, monkeypatch):
    # As it lies in the hub's cache; nothing is downloaded.
    commit = "0123456789abcdef0123456789abcdef01234567"
    snapshots = tmp_path / "models--acme--names" / "snapshots"
    snapshots.mkdir(parents=True)
    (snapshots / commit).symlink_to(directory)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    detector = load_model_detector(f"acme/names@{commit}")
    assert kinds_and_values(detector, "Terveisin Aapeli Mononen.") == {("PERSON", "Aapeli Mononen")}
    assert detector.name == load_model_detector(str(directory)).name
    with pytest.raises(InputError, match="The hub does not provide the model acme/other@"):
        load_model_detector(f"acme/other@{commit}")
    for wrong in ("acme/names", "acme/names@main", f"acme/names@{commit[:12]}", f"names@{commit}"):
        with pytest.raises(InputError, match="no model of the hub at a commit"):
            load_model_detector(wrong)


def test_a_directory_without_a_usable_model(directory, tmp_path):
    with pytest.raises(InputError, match="does not load"):
        load_model_detector(str(tmp_path))
    for file in directory.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    config["id2label"] = {str(index): f"T{index}" for index in range(len(LABELS))}
    config["label2id"] = {f"T{index}": index for index in range(len(LABELS))}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="no label of personal data"):
        load_model_detector(str(tmp_path))


@pytest.fixture
def gliner_package(monkeypatch):
    """Installs a stand-in with the interface of the package gliner. It reads the first 384 words, as GLiNER does."""

    class Model:
        @classmethod
        def from_pretrained(cls, path, local_files_only):
            assert local_files_only
            if "broken" in path:
                raise OSError("no backbone")
            return cls()

        def predict_entities(self, text, labels, threshold):
            words = itertools.islice(re.finditer(r"\w+|[^\w\s]", text), 384)
            entity = {"label": "person", "score": 0.9}
            return [entity | {"start": word.start(), "end": word.end()} for word in words if word[0] == "Matti"]

    monkeypatch.setitem(sys.modules, "gliner", types.SimpleNamespace(GLiNER=Model))


@pytest.mark.usefixtures("gliner_package")
def test_gliner_spans(tmp_path):
    (tmp_path / ner.GLINER_CONFIG).write_text("{}")
    detector = load_model_detector(str(tmp_path))
    assert detector.find(["Olen Matti.", "x"], ["fi", "fi"]) == [[Span(5, 10, "PERSON", 0.9, "model.person")], []]
    text = "1, " * 600 + "Matti" + ", 2" * 600
    assert {(span.start, span.end) for span in detector.find([text], ["fi"])[0]} == {(1800, 1805)}
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / ner.GLINER_CONFIG).write_text("{}")
    with pytest.raises(InputError, match=r"gliner does not load a model from .*broken"):
        load_model_detector(str(broken))
