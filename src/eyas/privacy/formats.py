"""The formats of identifiers in Presidio's frame: its recognizers match them, its enhancer lifts weak ones by context.

Presidio and spaCy take a second to import: identifier.py imports this file when a text first holds a candidate.
"""

import contextlib
import logging
import re
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

from eyas.privacy.case_insensitive import lower_text
from eyas.privacy.checksum import stdnum_check


@contextlib.contextmanager
def _hidden(*names: str) -> Iterator[None]:
    """While Presidio is imported: it and spaCy try these, which take seconds more and serve nothing here."""
    fresh = [name for name in names if name not in sys.modules]
    hidden: dict[str, Any] = dict.fromkeys(fresh)  # None: importing it raises ImportError
    sys.modules.update(hidden)
    try:
        yield
    finally:
        for name in fresh:
            sys.modules.pop(name, None)


with _hidden("torch", "transformers", "tensorflow", "mxnet", "cupy"):
    from presidio_analyzer import (
        EntityRecognizer,
        Pattern,
        PatternRecognizer,
        RecognizerResult,
    )
    from presidio_analyzer.context_aware_enhancers import LemmaContextAwareEnhancer
    from presidio_analyzer.nlp_engine import NlpArtifacts
    from presidio_analyzer.nlp_engine.slim_spacy_nlp_engine import SlimSpacyNlpEngine
    from presidio_analyzer.predefined_recognizers import (
        CryptoRecognizer,
        UkDrivingLicenceRecognizer,
        UsMbiRecognizer,
    )
    from spacy.attrs import IS_PUNCT, IS_STOP

# At its debug level Presidio writes words around what it found.
logging.getLogger("presidio-analyzer").setLevel(logging.WARNING)

_WEAK, _SURE = 0.3, 0.85
THRESHOLD = 0.4
LANGUAGE = "en"  # one pipeline for all: it only splits words, and prompts mix languages

# name, pattern, module of python-stdnum that checks it (None: the form says enough), sure without context, context
_FORMATS: tuple[tuple[str, str, str | None, bool, str], ...] = (
    ("us-ssn", r"\b(?!000|666)\d{3}-(?!00)\d{2}-(?!0000)\d{4}\b", None, True, ""),
    ("us-ssn-spaced", r"\b(?!000|666|9)\d{3} (?!00)\d{2} (?!0000)\d{4}\b", None, False, "ssn social security tax"),
    ("us-ssn-bare", r"\b(?!000|666|9)\d{9}\b", "us.ssn", False, "ssn social security"),
    ("us-ein", r"\b\d{2}-\d{7}\b", "us.ein", False, "ein employer tax irs"),
    ("gb-nino", r"\b[A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z] ?\d{2} ?\d{2} ?\d{2} ?[A-D]\b", None, True, ""),
    ("gb-nhs", r"\b\d{3}[ -]?\d{3}[ -]?\d{4}\b", "gb.nhs", False, "nhs health patient hospital"),
    ("gb-utr", r"\b\d{10}\b", "gb.utr", False, "utr taxpayer tax"),
    ("ie-pps", r"\b\d{7}[A-W][A-I]?\b", "ie.pps", False, "pps ppsn social"),
    ("ca-sin", r"\b\d{3}[ -]\d{3}[ -]\d{3}\b|\b\d{9}\b", "ca.sin", False, "sin social insurance assurance nas"),
    ("au-tfn", r"\b\d{3} ?\d{3} ?\d{3}\b", "au.tfn", False, "tfn tax"),
    ("in-aadhaar", r"\b[2-9]\d{3} ?\d{4} ?\d{4}\b", "in_.aadhaar", False, "aadhaar aadhar uidai"),
    ("in-pan", r"\b[A-Z]{3}[ABCFGHLJPTK][A-Z]\d{4}[A-Z]\b", "in_.pan", True, ""),
    ("de-idnr", r"\b\d{2} ?\d{3} ?\d{3} ?\d{3}\b", "de.idnr", False,
     "steuer steuerid identifikationsnummer idnr id tin steuernummer"),
    ("de-rvnr", r"\b\d{2} ?(?:0[1-9]|[12]\d|3[01])(?:0[1-9]|1[0-2])\d{2} ?[A-Z] ?\d{3}\b", None, True, ""),
    ("de-card", r"\b[LMNPRTVWXY][CFGHJKLMNPRTVWXYZ0-9]{8}\d?[D]?\b", None, False,
     "personalausweis ausweis reisepass pass perso passport"),
    ("de-health", r"\b[A-Z]\d{9}\b", None, False,
     "versichertennummer krankenkasse krankenversicherung versicherung kvnr"),
    ("at-svnr", r"\b\d{4} ?\d{6}\b", "at.vnr", False, "sozialversicherung svnr versicherungsnummer sv"),
    ("ch-ahv", r"\b756[. ]?\d{4}[. ]?\d{4}[. ]?\d{2}\b", "ch.ssn", True, ""),
    ("fr-nir", r"\b[1-478] ?\d{2} ?(?:0[1-9]|1[0-2]|[2-9]\d) ?(?:\d{2}|2[AB]) ?\d{3} ?\d{3} ?\d{2}\b", "fr.nir",
     True, ""),
    ("fr-nif", r"\b[0-3]\d ?\d{2} ?\d{3} ?\d{3} ?\d{3}\b", "fr.nif", False, "fiscal fiscale impôts spi"),
    ("es-dni", r"\b\d{8}[- ]?[A-Z]\b|\b\d{2}\.\d{3}\.\d{3}[- ]?[A-Z]\b", "es.dni", True, ""),
    ("es-nie", r"\b[XYZ][- ]?\d{7}[- ]?[A-Z]\b", "es.nie", True, ""),
    ("es-naf", r"\b\d{2}[ /-]?\d{8}[ /-]?\d{2}\b", None, False, "seguridad social naf afiliación"),
    ("it-cf", r"\b[A-Z]{6}\d{2}[A-EHLMPR-T]\d{2}[A-Z]\d{3}[A-Z]\b", None, True, ""),
    ("it-cie", r"\b[A-Z]{2}\d{5}[A-Z]{2}\b|\b[A-Z]{2} ?\d{7}\b", None, False,
     "identità carta documento passaporto patente"),
    ("pt-nif", r"\b[1-9]\d{2} ?\d{3} ?\d{3}\b", "pt.nif", False, "nif contribuinte fiscal"),
    ("pt-cc", r"\b\d{8}[ -]?\d[ -]?[A-Z]{2}\d\b", "pt.cc", True, ""),
    ("br-cpf", r"\b\d{3}\.\d{3}\.\d{3}-\d{2}\b", None, True, ""),
    ("br-cpf-bare", r"\b\d{11}\b", "br.cpf", False, "cpf"),
    ("nl-bsn", r"\b\d{4}[. ]?\d{2}[. ]?\d{3}\b|\b\d{3} \d{3} \d{3}\b", "nl.bsn", False,
     "bsn burgerservicenummer sofinummer persoonsnummer"),
    ("be-nn", r"\b\d{2}\.\d{2}\.\d{2}-\d{3}\.\d{2}\b", None, True, ""),
    ("be-nn-bare", r"\b\d{11}\b", "be.nn", False, "rijksregisternummer registre national"),
    ("pl-pesel", r"\b\d{11}\b", "pl.pesel", False, "pesel"),
    ("pl-nip", r"\b\d{3}-?\d{3}-?\d{2}-?\d{2}\b", "pl.nip", False, "nip podatkowy"),
    ("pl-card", r"\b[A-Z]{3} ?\d{6}\b", None, False, "dowód dowodu dowodem osobisty osobistego paszport"),
    ("se-pnr", r"\b(?:19|20)?\d{2}(?:0\d|1[0-2])(?:[0-2]\d|3[01]|[6-9]\d)[-+]\d{4}\b", "se.personnummer", True, ""),
    ("se-pnr-bare", r"\b(?:19|20)?\d{10}\b", "se.personnummer", False, "personnummer personnr samordningsnummer"),
    ("dk-cpr", r"\b(?:[0-2]\d|3[01])(?:0\d|1[0-2])\d{2}-\d{4}\b", "dk.cpr", True, ""),
    ("no-fnr", r"\b\d{6} ?\d{5}\b", "no.fodselsnummer", False, "fødselsnummer personnummer fnr"),
    ("fi-hetu", r"\b\d{6}[-+A]\d{3}[0-9A-Y]\b", "fi.hetu", True, ""),
    ("cz-rc", r"\b\d{6}/\d{3,4}\b", "cz.rc", True, ""),
    ("ro-cnp", r"\b[1-8]\d{12}\b", "ro.cnp", False, "cnp personal"),
    ("za-id", r"\b\d{13}\b", "za.idnr", False, "identity rsa"),
    ("tr-tc", r"\b[1-9]\d{10}\b", "tr.tckimlik", False, "kimlik tc tckn"),
    ("mx-curp", r"\b[A-Z]{4}\d{6}[HM][A-Z]{5}[A-Z0-9]\d\b", None, True, ""),
    ("mx-rfc", r"\b[A-ZÑ]{4}\d{6}[A-Z0-9]{3}\b", "mx.rfc", True, ""),
    ("ar-cuit", r"\b(?:20|23|24|27|30|33|34)-\d{8}-\d\b", "ar.cuit", True, ""),
    ("ar-dni", r"\b\d{1,2}\.\d{3}\.\d{3}\b", None, False, "dni documento cédula cedula"),
    ("cl-rut", r"\b\d{1,2}\.\d{3}\.\d{3}-[\dKk]\b", None, True, ""),
    ("cl-rut-bare", r"\b\d{7,8}-[\dKk]\b", "cl.rut", False, "rut run"),
    ("cn-ric", r"\b[1-9]\d{5}(?:19|20)\d{9}[\dX]\b", "cn.ric", True, ""),
    ("kr-rrn", r"\b\d{2}(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])-[1-8]\d{6}\b", None, True, ""),
    ("sg-nric", r"\b[STFGM]\d{7}[A-Z]\b", None, True, ""),
    ("jp-my-number", r"\b\d{4} ?\d{4} ?\d{4}\b", "jp.in_", False, "マイナンバー mynumber"),
)  # fmt: skip


class WordsAsLemmas(SlimSpacyNlpEngine):
    """spaCy's blank pipeline, whose words in lower case stand in for lemmas (trap 2). It loads no model."""

    def __init__(self) -> None:
        super().__init__(auto_download=False)
        # Presidio takes "no models" for "the default model": said again after its constructor.
        self.models = []
        self._blank_languages = {LANGUAGE}

    def _doc_to_nlp_artifact(self, doc: Any, language: str) -> NlpArtifacts:
        # Lists, from one walk: Presidio walks over them for each match, and over a Doc slowly.
        pairs = [(token.text, token.idx) for token in doc]
        words: Any = [word for word, _ in pairs]
        return NlpArtifacts(
            entities=[],
            tokens=words,
            tokens_indices=[place for _, place in pairs],
            lemmas=[word.lower() for word in words],
            nlp_engine=self,
            language=language,
            scores=[],
        )

    def load(self) -> None:
        """Of a word Presidio asks but two things: what else spaCy notes of each new one takes most of its time."""
        super().load()
        assert self.nlp is not None, "loaded above"
        vocabulary = self.nlp[LANGUAGE].vocab
        vocabulary.lex_attr_getters = {flag: vocabulary.lex_attr_getters[flag] for flag in (IS_STOP, IS_PUNCT)}


class Checked(PatternRecognizer):
    """A format with its checksum: a wrong one refutes it, a right one proves only a strong form (trap 3)."""

    def __init__(self, name: str, pattern: str, module: str | None, sure: bool, context: str) -> None:
        super().__init__(
            supported_entity="GOVERNMENT_ID",
            name=name,
            patterns=[Pattern(name, pattern, _SURE if sure else _WEAK)],
            context=context.split(),
            supported_language=LANGUAGE,
            global_regex_flags=re.MULTILINE,  # trap 4: case counts
        )
        self.check = stdnum_check(module) if module else None
        self.sure = sure
        self.form = re.compile(pattern)  # faster than Presidio's engine

    def analyze(
        self, text: str, entities: list[str], nlp_artifacts: Any = None, regex_flags: int | None = None
    ) -> list:
        if not self.may_match(text, text.lower()):
            return []
        return super().analyze(text, entities, nlp_artifacts, regex_flags)

    def may_match(self, text: str, lower: str, begin: int = 0) -> bool:
        """A weak format is looked for only where a word of its context stands: nothing else would lift it."""
        return (self.sure or any(word in lower for word in self.context)) and any(
            self.check is None or self.check(match[0]) for match in self.form.finditer(text, begin)
        )

    def validate_result(self, pattern_text: str) -> bool | None:
        if self.check is not None and not self.check(pattern_text):
            return False
        return True if self.sure else None


_LONG = re.compile(r"[0-9a-z-]{11}")  # the shortest of Presidio's own formats is as long


@cache
def _recognizers() -> tuple[tuple[Checked, ...], tuple[Checked, ...], tuple[PatternRecognizer, ...]]:
    """The sure formats, the weak ones, Presidio's own."""
    formats = [Checked(*row) for row in _FORMATS]
    kinds = (UkDrivingLicenceRecognizer, UsMbiRecognizer)
    others = [kind(supported_language=LANGUAGE, supported_entity="GOVERNMENT_ID") for kind in kinds]
    return (
        tuple(recognizer for recognizer in formats if recognizer.sure),
        tuple(recognizer for recognizer in formats if not recognizer.sure),
        (CryptoRecognizer(supported_entity="ACCOUNT"), *others),
    )


@cache
def _tests() -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
    """One pattern of all sure formats, one of the weak ones, one of Presidio's own, which ignore case."""
    sure, weak, others = _recognizers()
    any_sure = "|".join(recognizer.form.pattern for recognizer in sure)
    any_weak = "|".join(recognizer.form.pattern for recognizer in weak)
    any_other = "|".join(pattern.regex for recognizer in others for pattern in recognizer.patterns)
    return (
        # In every sure format a digit stands behind six letters at most.
        re.compile(rf"\b(?=[A-ZÑ]{{0,6}}[ -]?\d)(?:{any_sure})"),
        re.compile(rf"\b(?=[A-Z\d])(?:{any_weak})"),
        re.compile(any_other, re.IGNORECASE),
    )


def graded(window: str) -> list[RecognizerResult]:
    """Every match with its score, as Presidio's analyzer grades it.

    That one asks every recognizer and splits every window into words. Here it is those that may match, and the words
    count where they may lift a match: a sure format has no context.
    """
    sure, weak, others = _recognizers()
    any_sure, any_weak, any_other = _tests()
    asked: list[PatternRecognizer] = []
    first = any_weak.search(window)
    if first:
        lower = window.lower()
        asked += [recognizer for recognizer in weak if recognizer.may_match(window, lower, first.start())]
    if _LONG.search(lower_text(window)) and any_other.search(window):
        asked += others
    in_context = [result for recognizer in asked for result in recognizer.analyze(window, [])]
    if in_context:
        words = _engine().process_text(window, LANGUAGE)
        in_context = _ENHANCER.enhance_using_context(window, in_context, words, [*asked])
    first = any_sure.search(window)
    alone = [recognizer for recognizer in sure if first and recognizer.form.search(window, first.start())]
    return [*in_context, *(result for recognizer in alone for result in recognizer.analyze(window, []))]


def matches(window: str) -> list[RecognizerResult]:
    """What is found: no match twice, and none that is too weak."""
    return EntityRecognizer.remove_duplicates([result for result in graded(window) if result.score >= THRESHOLD])


_ENHANCER = LemmaContextAwareEnhancer(context_prefix_count=8, context_suffix_count=4)


@cache
def _engine() -> WordsAsLemmas:
    engine = WordsAsLemmas()
    engine.load()
    return engine
