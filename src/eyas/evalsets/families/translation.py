"""Family `translation`: four to seven simple English sentences to translate into German or Spanish."""

import random
from pathlib import Path

from eyas.base.config import load_toml
from eyas.evalsets.template_grammar import NAMES, TONES, TOWNS, WORDS, Messages, TemplateGrammar

TEMPLATES = load_toml(Path(__file__).with_suffix(".toml"))
NOUNS, VERBS, TIMES, REASONS = (
    [row.split("; ") for row in WORDS["translation"][name]] for name in ("nouns", "verbs", "times", "reasons")
)
"""Rows of English, German and Spanish; a noun has German twice, as subject and as object."""
NOUN_COLUMNS = {"German": (1, 2), "Spanish": (3, 3)}
"""Columns of NOUNS: as subject, as object."""

OTHER_ORDER, OTHER_ORDER_PROBABILITY = "{time} {verb} {who} {what}.", 0.4  # of the first shape, in both languages


def write_translation(rng: random.Random) -> Messages:
    """Returns one short text and its translation, sometimes followed by a remark in English."""
    tone, language = rng.choice(TONES), rng.choice(("German", "Spanish"))
    name, town = rng.choice(NAMES), rng.choice(TOWNS)
    grammar = TemplateGrammar(rng, tone, {"tone": tone, "language": language})
    pairs = [_write_sentence(grammar, language, name, town) for _ in range(rng.choice((4, 5, 6, 7)))]
    grammar.words["text"] = " ".join(english for english, _ in pairs)
    answer = " ".join(translated for _, translated in pairs)
    if rng.random() < 0.6:
        answer += grammar.expand(rng.choice(TEMPLATES["remark"]))
    return grammar.ask_and_answer(TEMPLATES["ask"], answer)


def _write_sentence(grammar: TemplateGrammar, language: str, name: str, town: str) -> tuple[str, str]:
    rng, column = grammar.rng, 1 if language == "German" else 2
    as_subject, as_object = NOUN_COLUMNS[language]
    subject, thing = rng.sample(NOUNS, 2)
    verb, time, reason = rng.choice(VERBS), rng.choice(TIMES), rng.choice(REASONS)
    who = rng.choice(((name, name), (subject[0], grammar.expand(subject[as_subject]))))
    english = {"who": who[0], "verb": verb[0], "what": thing[0], "time": time[0], "reason": reason[0], "town": town}
    translated = {"who": who[1], "what": grammar.expand(thing[as_object]), "town": town}
    translated |= {"verb": grammar.expand(verb[column]), "time": grammar.expand(time[column])}
    shape = rng.choice(TEMPLATES["shapes"])
    has_other_order = shape is TEMPLATES["shapes"][0] and rng.random() < OTHER_ORDER_PROBABILITY
    order = OTHER_ORDER if has_other_order else shape[column]
    if "{reason}" in order:
        translated["reason"] = grammar.expand(reason[column])
    first, second = shape[0].format(**english), order.format(**translated)
    return first[0].upper() + first[1:], second[0].upper() + second[1:]
