"""Family `translation`: four to seven simple English sentences to translate into German or Spanish."""

import random

from eyas.evalsets.template_grammar import NAMES, TONES, TOWNS, WORDS, Messages, TemplateGrammar

NOUNS, VERBS, TIMES, REASONS = (
    [row.split("; ") for row in WORDS["translation"][name]] for name in ("nouns", "verbs", "times", "reasons")
)
"""Rows of English, German and Spanish; a noun has German twice, as subject and as object."""
NOUN_COLUMNS = {"German": (1, 2), "Spanish": (3, 3)}
"""Columns of NOUNS: as subject, as object."""

ASK = (
    "Translate into <language>. Keep it <tone>.\n\n<text>",
    "<text>\n\nHow do I say this in <language>? Use a <tone> style.",
    "Please give me a <tone> <language> version of this:\n\n<text>",
)
REMARK = (
    "\n\n({A|One|This is a} <tone> {version|translation}; {other words|a different order|small changes} {are|would be} {possible|fine|correct} {too|as well}.)",
    "\n\n({Note|Remember}: {the verb|the article|the order} {comes|stands|matters} {early|second|most} in <language>.)",
)


# By shape: English, German, Spanish. Shape 0 has a second word order, which is right as well.
SHAPES = (
    ("{who} {verb} {what} {time}.", "{who} {verb} {time} {what}.", "{who} {verb} {what} {time}."),
    ("{who} {verb} {what}, {reason}.", "{who} {verb} {what}, {reason}.", "{who} {verb} {what}, {reason}."),
    ("In {town} {who} {verb} {what}.", "In {town} {verb} {who} {what}.", "En {town} {who} {verb} {what}."),
    (
        "{time} {who} {verb} {what}, {reason}.",
        "{time} {verb} {who} {what}, {reason}.",
        "{time} {who} {verb} {what}, {reason}.",
    ),
)
OTHER_ORDER, OTHER_ORDER_PROBABILITY = "{time} {verb} {who} {what}.", 0.4


def write_translation(rng: random.Random) -> Messages:
    """Returns one short text and its translation, sometimes followed by a remark in English."""
    tone, language = rng.choice(TONES), rng.choice(("German", "Spanish"))
    name, town = rng.choice(NAMES), rng.choice(TOWNS)
    grammar = TemplateGrammar(rng, tone, {"tone": tone, "language": language})
    pairs = [_write_sentence(grammar, language, name, town) for _ in range(rng.choice((4, 5, 6, 7)))]
    grammar.words["text"] = " ".join(english for english, _ in pairs)
    answer = " ".join(translated for _, translated in pairs)
    if rng.random() < 0.6:
        answer += grammar.expand(rng.choice(REMARK))
    return grammar.ask_and_answer(ASK, answer)


def _write_sentence(grammar: TemplateGrammar, language: str, name: str, town: str) -> tuple[str, str]:
    rng, column = grammar.rng, 1 if language == "German" else 2
    as_subject, as_object = NOUN_COLUMNS[language]
    subject, thing = rng.sample(NOUNS, 2)
    verb, time, reason = rng.choice(VERBS), rng.choice(TIMES), rng.choice(REASONS)
    who = rng.choice(((name, name), (subject[0], grammar.expand(subject[as_subject]))))
    english = {"who": who[0], "verb": verb[0], "what": thing[0], "time": time[0], "reason": reason[0], "town": town}
    translated = {"who": who[1], "what": grammar.expand(thing[as_object]), "town": town}
    translated |= {"verb": grammar.expand(verb[column]), "time": grammar.expand(time[column])}
    shape = rng.choice(SHAPES)
    order = OTHER_ORDER if shape is SHAPES[0] and rng.random() < OTHER_ORDER_PROBABILITY else shape[column]
    if "{reason}" in order:
        translated["reason"] = grammar.expand(reason[column])
    first, second = shape[0].format(**english), order.format(**translated)
    return first[0].upper() + first[1:], second[0].upper() + second[1:]
