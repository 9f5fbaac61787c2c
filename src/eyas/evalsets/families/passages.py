"""Family `passages`: a chronicle of 1,500 to 3,500 tokens with one entry a person; questions about one or two of them."""

import random

from eyas.evalsets.template_grammar import TemplateGrammar
from eyas.evalsets.world_words import MONTHS, NAMES, TONES, TOPICS, TOWNS, WEEKDAYS

ENTRY = (
    "<name> lives in <town> and works as a <person>.",
    "Every <weekday> <name> goes to <place> to <verb> <thing>.",
    "In <month> the <thing> there were <quality> and <number> of them had to be given away.",
    "<name> shares a house with <friend>, who prefers <quality> <thing>.",
    "The neighbours say that the <person> once tried to <verb> <number> <thing> in a single day.",
    "For the coming year <name> plans to <verb> the <quality> ones only.",
    "The best day was a <weekday> in <month>, when <friend> came to <place>.",
    "It cost <price> euros.",
)

ASK = (
    "Here is a chronicle of our region.\n\n<text>\n\nWhat do we know about <name>? Be <tone>.",
    "Read the following notes.\n\n<text>\n\nTell me in a <tone> voice about <name> from <town>.",
    "<text>\n\nQuestion: who is <name>, and what happened at <place>? Answer in a <tone> way.",
)

ANSWER = (
    "{According to|As told in|In} the {chronicle|notes|text}, <name> {is|works as|earns a living as} a <person> {in|from|near} <town>.",
    "{On|Every|Each} <weekday>, {one can meet|you will find|there is} <name> {at|near} <place>{, busy with| with|, looking after} {the|some|<quality>} <thing>.",
    "{The|Those} <thing> {were|became|had been} {rather |very |}<quality> in <month>{, so|, and|; therefore} {about |}<number> {of them|<thing>} {were given away|had to go|went to others}.",
    "{<friend>|A friend, <friend>,} {lives|shares the house|stays} {there too|with <name>|in <town> as well}{.| and {likes|prefers|wants} {<quality>|other} ones.}",
    "{For the future|Next year|From now on}, <name> {wants|hopes|plans} to <verb> {only|mostly} {the <quality> ones|<quality> <thing>}.",
    "{All of this|The plan|It} {cost|took|was worth} <price> euros{.|, {which|and that} {seems|is|was} {a lot|fair|not too much}.}",
)

LONG_SIZE = (15, 32)  # people a chronicle has; about 105 tokens each
SHORT_SIZE = (2, 7)
_LONG_SHARE = 0.06


def draw_size(rng: random.Random) -> tuple[int, int]:
    """A size for training text: the long ones are rare, for they cost as much as twenty others."""
    return LONG_SIZE if rng.random() < _LONG_SHARE else SHORT_SIZE


def write(rng: random.Random, entries: tuple[int, int] = LONG_SIZE) -> list[dict[str, str]]:
    """One chronicle with a question, and an answer of two to four sentences."""
    tone = rng.choice(TONES)
    people = rng.sample(NAMES, rng.randint(*entries))
    asked = rng.randrange(len(people))
    paragraphs, words = [], {}
    for index, name in enumerate(people):
        topic = rng.choice(TOPICS)
        facts = {
            "name": name,
            "friend": rng.choice([other for other in NAMES if other not in people]),
            "town": rng.choice(TOWNS),
            "person": rng.choice(topic.people),
            "thing": rng.choice(topic.things),
            "place": rng.choice(topic.places),
            "weekday": rng.choice(WEEKDAYS),
            "month": rng.choice(MONTHS),
            "number": str(rng.randint(2, 90)),
            "price": str(rng.randint(20, 900)),
            "verb": rng.choice(topic.verbs),
            "quality": rng.choice(topic.qualities),
        }
        lines = [
            TemplateGrammar(rng, tone, facts).expand(line) for line in rng.sample(ENTRY[1:], rng.choice((5, 6, 7)))
        ]
        paragraphs.append(" ".join([ENTRY[0].replace("<name>", name), *lines]).replace("<town>", facts["town"]))
        paragraphs[-1] = paragraphs[-1].replace("<person>", facts["person"])
        words = facts if index == asked else words
    speaker = TemplateGrammar(rng, tone, {**words, "tone": tone, "text": "\n\n".join(paragraphs)})
    answer = [speaker.expand(ANSWER[0]), *speaker.expand_some(ANSWER[1:], rng.choice((2, 3, 4)))]
    return [
        {"role": "user", "content": speaker.expand(rng.choice(ASK))},
        {"role": "assistant", "content": " ".join(answer)},
    ]
