"""Families that start from a text: JSON from a note (`extraction`), a `summary`, a question about `passages`."""

import random
from pathlib import Path

from eyas.base.config import load_toml
from eyas.evalsets import template_grammar as lexicon
from eyas.evalsets.template_grammar import Messages, TemplateGrammar, draw_topic, draw_words

TEMPLATES = load_toml(Path(__file__).with_suffix(".toml"))
EXTRACTION, SUMMARY, PASSAGES = (TEMPLATES[family] for family in ("extraction", "summary", "passages"))

# --- extraction: a short note in, a JSON object out; some fields are copied, others are judged in words ---------------


def write_extraction(rng: random.Random) -> Messages:
    """Returns one note and one JSON object with five to eight keys, in the order asked for."""
    topic, tone = rng.choice(lexicon.TOPICS), rng.choice(lexicon.TONES)
    name, other = rng.sample(lexicon.NAMES, 2)
    words = {**draw_topic(rng, topic), "tone": tone, "name": name, "other": other}
    numbers = {"day": range(1, 29), "number": range(2, 91), "price": range(5, 901)}
    words |= draw_words(rng, town=lexicon.TOWNS, month=lexicon.MONTHS, weekday=lexicon.WEEKDAYS, **numbers)
    grammar = TemplateGrammar(rng, tone, words)
    note = [grammar.expand(EXTRACTION["first_line"])]
    note += [grammar.expand(line) for line in rng.sample(EXTRACTION["note"], rng.choice((2, 3, 4)))]
    copied = rng.sample(("name", "town", "number", "weekday", "thing", "place", "month"), rng.choice((2, 3)))
    keys = [*copied, "summary", *rng.sample(("next_step", "reason", "priority", "tags", "mood"), rng.choice((3, 4)))]
    grammar.words |= {"keys": ", ".join(keys), "note": " ".join(note)}
    lines = ",\n".join(f'  "{key}": {_write_value(grammar, key)}' for key in keys)
    return grammar.ask_and_answer(EXTRACTION["ask"], "{\n" + lines + "\n}")


def _write_value(grammar: TemplateGrammar, key: str) -> str:
    if key == "tags":
        tags = grammar.expand_some(EXTRACTION["tags"], grammar.rng.choice((2, 3, 4)))
        return "[" + ", ".join(f'"{tag}"' for tag in tags) + "]"
    if key in EXTRACTION["sentences"]:
        value = grammar.expand_some(EXTRACTION["sentences"][key], 1)[0]
    else:
        value = grammar.expand(EXTRACTION["words"].get(key, f"<{key}>"))
    return value if key == "number" else f'"{value}"'


# --- summary: a report of six to nine sentences, retold in four to six that use other words ---------------------------


def write_summary(rng: random.Random) -> Messages:
    """Returns a conversation: the user sends a report to summarize, and the assistant answers with the summary."""
    topic, tone = rng.choice(lexicon.TOPICS), rng.choice(lexicon.TONES)
    name, other = rng.sample(lexicon.NAMES, 2)
    month, following = rng.sample(lexicon.MONTHS, 2)
    words = {**draw_topic(rng, topic), "tone": tone, "name": name, "other": other, "month": month, "next": following}
    words |= draw_words(rng, town=lexicon.TOWNS, weekday=lexicon.WEEKDAYS, number=range(2, 91), price=range(20, 901))
    grammar = TemplateGrammar(rng, tone, words)
    report = [grammar.expand(rng.choice(SUMMARY["report_opening"]))]
    report += [grammar.expand(line) for line in rng.sample(SUMMARY["report"], rng.choice((5, 6, 7, 8)))]
    summary = grammar.expand_some(SUMMARY["lead"], 1)
    summary += grammar.expand_some(SUMMARY["middle"], rng.choice((2, 3, 4)))
    summary += grammar.expand_some(SUMMARY["end"], 1)
    grammar.words["report"] = " ".join(report)
    return grammar.ask_and_answer(SUMMARY["ask"], " ".join(summary))


# --- passages: a chronicle of 1,500 to 3,500 tokens, one entry for each person; a question about one of them ----------

LONG_SIZE = (15, 32)  # people in a chronicle: the fewest and the most; about 105 tokens for each
SHORT_SIZE = (2, 7)
_LONG_SHARE = 0.06


def draw_size(rng: random.Random) -> tuple[int, int]:
    """Returns a size for training text. Long ones are rare, because one costs as much as twenty others."""
    return LONG_SIZE if rng.random() < _LONG_SHARE else SHORT_SIZE


def write_passages(rng: random.Random, size: tuple[int, int] = LONG_SIZE) -> Messages:
    """Returns one chronicle with a question, and an answer of three to five sentences."""
    tone = rng.choice(lexicon.TONES)
    people = rng.sample(lexicon.NAMES, rng.randint(*size))
    subject = people[rng.randrange(len(people))]
    shared = {"weekday": lexicon.WEEKDAYS, "month": lexicon.MONTHS, "number": range(2, 91), "price": range(20, 901)}
    paragraphs, subject_words = [], {}
    for name in people:
        topic = rng.choice(lexicon.TOPICS)
        facts = {"name": name, "friend": rng.choice([other for other in lexicon.NAMES if other not in people])}
        facts |= draw_words(rng, town=lexicon.TOWNS, **{word: topic[word] for word in ("person", "thing", "place")})
        facts |= draw_words(rng, **shared, verb=topic["verb"], quality=topic["quality"])
        entry = rng.sample(PASSAGES["entry"], rng.choice((5, 6, 7)))
        lines = [TemplateGrammar(rng, tone, facts).expand(line) for line in entry]
        paragraph = " ".join([PASSAGES["first_line"].replace("<name>", name), *lines])
        paragraphs.append(paragraph.replace("<town>", facts["town"]).replace("<person>", facts["person"]))
        subject_words = facts if name == subject else subject_words
    grammar = TemplateGrammar(rng, tone, {**subject_words, "tone": tone, "text": "\n\n".join(paragraphs)})
    answer = [grammar.expand(PASSAGES["first_sentence"])]
    answer += grammar.expand_some(PASSAGES["answer"], rng.choice((2, 3, 4)))
    return grammar.ask_and_answer(PASSAGES["ask"], " ".join(answer))
