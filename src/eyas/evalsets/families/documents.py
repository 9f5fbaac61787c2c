"""Families that start from a text: `extraction` of JSON from a note, `summary` of a report, `passages` with a question."""

import random

from eyas.evalsets.template_grammar import (
    MONTHS,
    NAMES,
    TONES,
    TOPICS,
    TOWNS,
    WEEKDAYS,
    Messages,
    TemplateGrammar,
    draw_topic,
    draw_words,
)

# --- extraction: a short note in, a JSON object out; some fields are copied, others are judged in words ---------------

EXTRACTION_ASK = (
    "Extract a JSON object with the keys <keys>. Keep the wording <tone>.\n\n<note>",
    "Read this note and answer with JSON only (<keys>), in <tone> words:\n\n<note>",
    "<note>\n\nTurn the note into JSON with these keys: <keys>. Use a <tone> style.",
)
NOTE = (
    "<name> from <town> called on <weekday> about <number> <thing>.",
    "The <thing> at <place> were <quality>, so the <person> could not <verb> them.",
    "Please <verb> them before <day> <month>.",
    "A <person> named <other> promised to <verb> the rest in <month>.",
    "<name> will pay <price> euros if the <thing> are <quality>.",
    "Everybody at <place> agreed that this was <quality>.",
    "The <person> has seen <quality> <thing> like these in <town>.",
)
JUDGED_SENTENCES = {
    "summary": (
        "<name> {asks|wants|needs} {someone|a <person>|us} to <verb> <number> {<quality> |}<thing>{ at <place>| by <month>|}",
        "{Request|Call|Message} from <name> about {<quality> |<number> |the }<thing>{ in <town>| at <place>|}",
        "the <thing> {were|are} <quality> and {<name>|the <person>} {has|have} to {wait|act|<verb> them}",
    ),
    "next_step": (
        "{call|write to|visit} <name> {in <town>|on <weekday>|again} {and|to} <verb> the <thing>",
        "{ask|tell|send} {the|a} <person> to <verb> {them|the <thing>|all <number>} {before <month>|at <place>|soon}",
        "{wait|check|decide} {until|before} <weekday> {and then|, then} <verb> {half|most|all} of {them|the <thing>}",
    ),
    "reason": (
        "{the <thing> are|they look|everything seems} {too |very |}<quality>{ for <place>| in <month>|}",
        "{nobody|no <person>|only <other>} {can|could|will} <verb> {them|the <thing>} {in time|alone|at <place>}",
    ),
}
JUDGED_WORDS = {
    "priority": "{low|normal|high|urgent}",
    "mood": "{calm|worried|friendly|angry|hopeful} {and|but} {polite|brief|clear|impatient}",
}
TAGS = ("<topic>", "<quality>", "<month>", "<person>", "{urgent|open|routine}", "{phone|letter|visit}", "<town>")


def write_extraction(rng: random.Random) -> Messages:
    """Returns one note and one JSON object with five to eight keys, in the order asked for."""
    topic, tone = rng.choice(TOPICS), rng.choice(TONES)
    name, other = rng.sample(NAMES, 2)
    words = {**draw_topic(rng, topic), "tone": tone, "name": name, "other": other}
    numbers = {"day": range(1, 29), "number": range(2, 91), "price": range(5, 901)}
    words |= draw_words(rng, town=TOWNS, month=MONTHS, weekday=WEEKDAYS, **numbers)
    grammar = TemplateGrammar(rng, tone, words)
    note = [grammar.expand(NOTE[0])] + [grammar.expand(line) for line in rng.sample(NOTE[1:], rng.choice((2, 3, 4)))]
    copied = rng.sample(("name", "town", "number", "weekday", "thing", "place", "month"), rng.choice((2, 3)))
    judged = ["summary", *rng.sample(("next_step", "reason", "priority", "tags", "mood"), rng.choice((3, 4)))]
    keys = copied + judged
    grammar.words |= {"keys": ", ".join(keys), "note": " ".join(note)}
    lines = ",\n".join(f'  "{key}": {_write_value(grammar, key)}' for key in keys)
    return grammar.ask_and_answer(EXTRACTION_ASK, "{\n" + lines + "\n}")


def _write_value(grammar: TemplateGrammar, key: str) -> str:
    if key == "tags":
        tags = grammar.expand_some(TAGS, grammar.rng.choice((2, 3, 4)))
        return "[" + ", ".join(f'"{tag}"' for tag in tags) + "]"
    if key in JUDGED_SENTENCES:
        value = grammar.expand_some(JUDGED_SENTENCES[key], 1)[0]
    else:
        value = grammar.expand(JUDGED_WORDS.get(key, f"<{key}>"))
    return value if key == "number" else f'"{value}"'


# --- summary: a report of six to nine sentences, retold in four to six that use other words ---------------------------

SUMMARY_ASK = (
    "Summarise this report in a <tone> voice:\n\n<report>",
    "<report>\n\nGive a <tone> summary.",
    "What happened? Be <tone> and short.\n\n<report>",
)
REPORT_OPENING = (
    "In <month> the people of <town> heard that <number> <thing> had arrived at <place>.",
    "Last <weekday> <name>, a <person> from <town>, found <number> <quality> <thing> at <place>.",
    "The <topic> club of <town> met on <weekday> to talk about its <thing>.",
)
REPORT = (
    "At first nobody knew how to <verb> them.",
    "The <thing> were <quality>, which surprised everyone.",
    "A <person> called <other> offered to <verb> half of them.",
    "By noon the <quality> <thing> had been moved to <place>.",
    "Some visitors complained that it was too <quality>.",
    "The mayor of <town> paid <price> euros for the work.",
    "<name> said that one should always <verb> the <thing> first.",
    "Two days later the <person> came back and began to <verb> the rest.",
    "A second group of <thing> is expected in <next>.",
    "Until then <place> stays closed.",
    "The local paper called the day <quality> and long.",
    "Nobody was hurt, but several <thing> were lost.",
)
LEAD = (
    "{In <town>|At <place>|During <month>}, <name> {and|together with} {a|one} <person> {had to|tried to|managed to} <verb> {<number>|many|some} {<quality> |}<thing>.",
    "{The report|This text|The story} {is about|describes|tells of} {<number>|the|some} <thing> {in <town>|at <place>} {that|which} {were|seemed|looked} <quality>.",
    "{People|Visitors|The club} {in|from} <town> {worried|talked|learned} about {<quality>|<number>|the} <thing>{.| in <month>.| on <weekday>.}",
)
MIDDLE = (
    "{A <person>|<other>|Someone} {helped|offered|was asked} to <verb> {them|most of them|the <thing>}{, although|, while|, but} {it was|they were|the place was} {too |quite |}<quality>.",
    "{The work|All this|It} {cost|took|needed} {<price> euros|two days|a lot of patience}{, and|; in return} {the mayor|the town|<name>} {was pleased|paid for it|said little}.",
    "{Some|A few|Several} {<thing>|of them|people} {were lost|were moved|had doubts}{.|, yet nobody {was hurt|gave up|complained}.}",
    "{According to|As said by|For} <name>, {one should|it is wise to|people must} <verb> the <thing> {first|early|with care}.",
)
END = (
    "{More|New|Other} <thing> {will come|are expected|should arrive} in <next>{.|, so <place> {stays closed|must wait|is kept free}.}",
    "{So far|For now|Until then} {everything|the result|<place>} {is|remains|stays} <quality>.",
    "{The next step is|What remains is|They now plan} to <verb> {the rest|what is left|all the others} {in <next>|at <place>|with <other>}.",
)


def write_summary(rng: random.Random) -> Messages:
    """Returns a conversation: the user sends a report to summarize, and the assistant answers with the summary."""
    topic, tone = rng.choice(TOPICS), rng.choice(TONES)
    name, other = rng.sample(NAMES, 2)
    month, following = rng.sample(MONTHS, 2)
    words = {**draw_topic(rng, topic), "tone": tone, "name": name, "other": other, "month": month, "next": following}
    words |= draw_words(rng, town=TOWNS, weekday=WEEKDAYS, number=range(2, 91), price=range(20, 901))
    grammar = TemplateGrammar(rng, tone, words)
    report = [grammar.expand(rng.choice(REPORT_OPENING))]
    report += [grammar.expand(line) for line in rng.sample(REPORT, rng.choice((5, 6, 7, 8)))]
    summary = (
        grammar.expand_some(LEAD, 1) + grammar.expand_some(MIDDLE, rng.choice((2, 3, 4))) + grammar.expand_some(END, 1)
    )
    grammar.words["report"] = " ".join(report)
    return grammar.ask_and_answer(SUMMARY_ASK, " ".join(summary))


# --- passages: a chronicle of 1,500 to 3,500 tokens, one entry for each person; a question about one of them ----------

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
PASSAGES_ASK = (
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

LONG_SIZE = (15, 32)  # people in a chronicle: the fewest and the most; about 105 tokens for each
SHORT_SIZE = (2, 7)
_LONG_SHARE = 0.06


def draw_size(rng: random.Random) -> tuple[int, int]:
    """Returns a size for training text. Long ones are rare, because one costs as much as twenty others."""
    return LONG_SIZE if rng.random() < _LONG_SHARE else SHORT_SIZE


def write_passages(rng: random.Random, size: tuple[int, int] = LONG_SIZE) -> Messages:
    """Returns one chronicle with a question, and an answer of three to five sentences."""
    tone = rng.choice(TONES)
    people = rng.sample(NAMES, rng.randint(*size))
    subject = people[rng.randrange(len(people))]
    paragraphs, subject_words = [], {}
    for name in people:
        topic = rng.choice(TOPICS)
        facts = {"name": name, "friend": rng.choice([other for other in NAMES if other not in people])}
        facts |= draw_words(rng, town=TOWNS, **{word: topic[word] for word in ("person", "thing", "place")})
        facts |= draw_words(rng, weekday=WEEKDAYS, month=MONTHS, number=range(2, 91), price=range(20, 901))
        facts |= draw_words(rng, verb=topic["verb"], quality=topic["quality"])
        entry = rng.sample(ENTRY[1:], rng.choice((5, 6, 7)))
        lines = [TemplateGrammar(rng, tone, facts).expand(line) for line in entry]
        paragraphs.append(" ".join([ENTRY[0].replace("<name>", name), *lines]).replace("<town>", facts["town"]))
        paragraphs[-1] = paragraphs[-1].replace("<person>", facts["person"])
        subject_words = facts if name == subject else subject_words
    grammar = TemplateGrammar(rng, tone, {**subject_words, "tone": tone, "text": "\n\n".join(paragraphs)})
    answer = [grammar.expand(ANSWER[0]), *grammar.expand_some(ANSWER[1:], rng.choice((2, 3, 4)))]
    return grammar.ask_and_answer(PASSAGES_ASK, " ".join(answer))
