"""Driver of Presidio without a model for names: pattern recognizers of all countries, for texts of any language.

    stdin   {"id": "en-1", "text": "SSN 536-22-1234", "language": "en"}
    stdout  {"id": "en-1", "spans": [[4, 15, "GOVERNMENT_ID"]]}

Kinds are those of eyas. Positions are indices of characters. With --model, a model finds persons and places, too.

The driver repairs what fails without a message:
  * The first e-mail address starts a download of the list of public suffixes. The driver uses the list in the package.
  * A blank spaCy pipeline has no lemmas, so words such as "passport" raise no score. The driver sets lower-case words.
  * A correct check digit gives the score 1.0, so a tenth of all long numbers are identifiers. The driver keeps the
    score of the pattern for identifiers that consist of digits only. --stock leaves the scores as they are.
  * Long texts take quadratic time, most of all for URLs. The driver leaves URLs out and cuts texts into windows.
"""
# pyright: reportMissingImports=false

import argparse
import inspect
import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

from protocol import ProtocolServer

server = ProtocolServer()

import spacy  # noqa: E402
import tldextract.tldextract  # noqa: E402
from presidio_analyzer import AnalyzerEngine, PatternRecognizer, RecognizerRegistry, predefined_recognizers  # noqa: E402
from presidio_analyzer.nlp_engine import NlpArtifacts, NlpEngine, SlimSpacyNlpEngine, SpacyNlpEngine  # noqa: E402

WINDOW = 8_000
OVERLAP = 500
# Below it are patterns such as "nine digits" without a word that says what they are.
THRESHOLD = 0.35
# Countries of the languages, beside those that Presidio reads phone numbers of.
REGIONS = {
    "de": ("AT", "CH"), "en": ("AU", "NZ", "IE", "ZA"), "es": ("ES", "MX", "AR", "CO"), "fr": ("BE", "CH"),
    "it": ("IT",), "nl": ("NL", "BE"), "pl": ("PL",), "pt": ("PT",), "sv": ("SE",), "zh": ("CN", "TW"), "ja": ("JP",),
    "ko": ("KR",), "ar": ("EG", "SA", "AE"), "ru": ("RU",),
}  # fmt: skip
KINDS = {
    "PERSON": "PERSON", "PER": "PERSON", "LOCATION": "LOCATION", "LOC": "LOCATION", "GPE": "LOCATION",
    "EMAIL_ADDRESS": "EMAIL", "PHONE_NUMBER": "PHONE", "ZA_MOBILE_NUMBER": "PHONE", "ZA_TELEPHONE_NUMBER": "PHONE",
    "CREDIT_CARD": "CARD", "IBAN_CODE": "ACCOUNT", "CRYPTO": "ACCOUNT", "US_BANK_NUMBER": "ACCOUNT",
    "ABA_ROUTING_NUMBER": "ACCOUNT", "IP_ADDRESS": "IP_ADDRESS", "MAC_ADDRESS": "DEVICE_ID", "DE_KFZ": "VEHICLE",
    "CA_POSTAL_CODE": "ADDRESS", "DE_PLZ": "ADDRESS", "UK_POSTCODE": "ADDRESS", "MEDICAL_LICENSE": "GOVERNMENT_ID",
    "US_HEALTH_INSURANCE_MEMBER_ID": "CUSTOMER_ID", "US_CLAIM_NUMBER": "CUSTOMER_ID",
    "US_PRESCRIPTION_NUMBER": "CUSTOMER_ID", "US_PRIOR_AUTHORIZATION_NUMBER": "CUSTOMER_ID",
    "US_REFERRAL_NUMBER": "CUSTOMER_ID",
}  # fmt: skip
# Kinds that eyas does not have: dates, and numbers of companies.
NO_KIND = {
    "DATE_TIME", "UUID", "URL", "NRP", "ORGANIZATION", "AU_ABN", "AU_ACN", "DE_BSNR", "DE_HANDELSREGISTER", "DE_VAT_ID",
    "IN_GSTIN", "IT_VAT_CODE", "KR_BRN", "SE_ORGANISATIONSNUMMER", "SG_UEN", "ZA_COMPANY_REGISTRATION", "ZA_VAT_NUMBER",
}  # fmt: skip


def kind_of(entity: str) -> str | None:
    """Returns the kind of a Presidio entity. Identifiers of a country are named XX_..., with its code."""
    if entity in NO_KIND:
        return None
    if "VEHICLE_REGISTRATION" in entity or "LICENSE_PLATE" in entity:
        return "VEHICLE"
    return KINDS.get(entity) or ("GOVERNMENT_ID" if entity[2:3] == "_" else None)


class BlankNlpEngine(SlimSpacyNlpEngine):
    """A tokenizer without a model. Its lemmas are the lower-case words."""

    def __init__(self, language: str) -> None:
        super().__init__(auto_download=False)
        self.models = []  # the default is a model from the internet
        self._blank_languages = {language}

    def _doc_to_nlp_artifact(self, doc: Any, language: str) -> NlpArtifacts:
        for token in doc:
            token.lemma_ = token.lower_
        return super()._doc_to_nlp_artifact(doc, language)


@cache
def load_spacy(directory: str) -> Any:
    return spacy.load(directory)


def build_nlp_engine(model: str | None, language: str) -> NlpEngine:
    """Returns the tokenizer of a language. A spaCy model is also the recognizer of names in all languages."""
    if model is None or not (Path(model) / "config.cfg").is_file():
        engine = BlankNlpEngine(language)
        engine.load()
        return engine
    engine = SpacyNlpEngine(models=[{"lang_code": language, "model_name": model}])
    engine.nlp = {language: load_spacy(model)}
    return engine


def keep_pattern_score(recognizer: Any) -> None:
    """Makes a correct check digit count only if the value holds a letter. A wrong one still rejects the value."""
    validate = recognizer.validate_result

    def validate_result(value: str) -> bool | None:
        result = validate(value)
        return None if result and not any(char.isalpha() for char in value) else result

    recognizer.validate_result = validate_result


@cache
def build_analyzer(language: str, model: str | None, stock: bool) -> AnalyzerEngine:
    """Builds the analyzer of a language, with the recognizers of all countries."""
    recognizers = []
    classes: list[tuple[str, Any]] = inspect.getmembers(predefined_recognizers, inspect.isclass)
    for name, made in classes:
        parts = made.__module__.split(".")
        if "country_specific" in parts or ("generic" in parts and name not in ("PhoneRecognizer", "UrlRecognizer")):
            recognizer = made(supported_language=language)
            if "country_specific" in parts and isinstance(recognizer, PatternRecognizer) and not stock:
                keep_pattern_score(recognizer)
            recognizers.append(recognizer)
    phone = predefined_recognizers.PhoneRecognizer
    regions = (*phone.DEFAULT_SUPPORTED_REGIONS, *REGIONS.get(language, ()))
    recognizers.append(phone(supported_language=language, supported_regions=regions))
    engine = build_nlp_engine(model, language)
    registry = RecognizerRegistry(recognizers, supported_languages=[language])
    if model is not None and isinstance(engine, SpacyNlpEngine):
        registry.add_nlp_recognizer(engine)
    elif model is not None:  # a model of transformers, which the environment then must hold
        recognizer = predefined_recognizers.HuggingFaceNerRecognizer(model_name=model, supported_language=language)
        recognizer.load()
        registry.add_recognizer(recognizer)
    return AnalyzerEngine(registry=registry, nlp_engine=engine, supported_languages=[language])


def find_spans(analyzer: AnalyzerEngine, text: str, language: str, threshold: float) -> list[tuple[int, int, str]]:
    """Returns the spans of a text, sorted, each once."""
    spans = set()
    for start in range(0, max(1, len(text) - OVERLAP), WINDOW - OVERLAP):
        window = text[start : start + WINDOW]
        for result in analyzer.analyze(window, language=language, score_threshold=threshold):
            kind = kind_of(result.entity_type)
            if kind:
                spans.add((start + result.start, start + result.end, kind))
    return sorted(spans)


def main() -> None:
    parser = argparse.ArgumentParser(description="Finds private data with Presidio.")
    parser.add_argument("--model", help="the directory of a spaCy or transformers model that finds persons")
    parser.add_argument("--threshold", type=float, default=THRESHOLD, help="the lowest score (default: %(default)s)")
    parser.add_argument("--stock", action="store_true", help="keep the scores that Presidio gives to check digits")
    options = parser.parse_args()
    suffixes = tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None)
    tldextract.tldextract.TLD_EXTRACTOR = suffixes
    for line in sys.stdin:
        record = json.loads(line)
        analyzer = build_analyzer(record["language"], options.model, options.stock)
        spans = find_spans(analyzer, record["text"], record["language"], options.threshold)
        server.send({"id": record["id"], "spans": spans})


if __name__ == "__main__":
    main()
