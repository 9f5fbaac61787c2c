"""Family `extraction`: a short note in, a JSON object out; some fields are copied, some are judged in words."""

import random

from eyas.evalsets.template_grammar import TemplateGrammar
from eyas.evalsets.world_words import MONTHS, NAMES, TONES, TOPICS, TOWNS, WEEKDAYS

ASK = (
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

SUMMARY = (
    "<name> {asks|wants|needs} {someone|a <person>|us} to <verb> <number> {<quality> |}<thing>{ at <place>| by <month>|}",
    "{Request|Call|Message} from <name> about {<quality> |<number> |the }<thing>{ in <town>| at <place>|}",
    "the <thing> {were|are} <quality> and {<name>|the <person>} {has|have} to {wait|act|<verb> them}",
)
NEXT_STEP = (
    "{call|write to|visit} <name> {in <town>|on <weekday>|again} {and|to} <verb> the <thing>",
    "{ask|tell|send} {the|a} <person> to <verb> {them|the <thing>|all <number>} {before <month>|at <place>|soon}",
    "{wait|check|decide} {until|before} <weekday> {and then|, then} <verb> {half|most|all} of {them|the <thing>}",
)
REASON = (
    "{the <thing> are|they look|everything seems} {too |very |}<quality>{ for <place>| in <month>|}",
    "{nobody|no <person>|only <other>} {can|could|will} <verb> {them|the <thing>} {in time|alone|at <place>}",
)
TAGS = ("<topic>", "<quality>", "<month>", "<person>", "{urgent|open|routine}", "{phone|letter|visit}", "<town>")


def write(rng: random.Random) -> list[dict[str, str]]:
    """One note and one JSON object with five to eight keys in the order asked for."""
    topic, tone = rng.choice(TOPICS), rng.choice(TONES)
    name, other = rng.sample(NAMES, 2)
    words = {
        **topic.draw_words(rng),
        "tone": tone,
        "name": name,
        "other": other,
        "town": rng.choice(TOWNS),
        "month": rng.choice(MONTHS),
        "weekday": rng.choice(WEEKDAYS),
        "day": str(rng.randint(1, 28)),
        "number": str(rng.randint(2, 90)),
        "price": str(rng.randint(5, 900)),
    }
    speaker = TemplateGrammar(rng, tone, words)
    note = [speaker.expand(NOTE[0])] + [speaker.expand(line) for line in rng.sample(NOTE[1:], rng.choice((2, 3, 4)))]
    copied = rng.sample(("name", "town", "number", "weekday", "thing", "place", "month"), rng.choice((2, 3)))
    judged = ["summary", *rng.sample(("next_step", "reason", "priority", "tags", "mood"), rng.choice((3, 4)))]
    keys = copied + judged
    speaker.words |= {"keys": ", ".join(keys), "note": " ".join(note)}
    lines = ",\n".join(f'  "{key}": {_value(speaker, key)}' for key in keys)
    return [
        {"role": "user", "content": speaker.expand(rng.choice(ASK))},
        {"role": "assistant", "content": "{\n" + lines + "\n}"},
    ]


def _value(speaker: TemplateGrammar, key: str) -> str:
    rng = speaker.rng
    if key == "summary":
        return f'"{speaker.expand_some(SUMMARY, 1)[0]}"'
    if key == "next_step":
        return f'"{speaker.expand_some(NEXT_STEP, 1)[0]}"'
    if key == "reason":
        return f'"{speaker.expand_some(REASON, 1)[0]}"'
    if key == "priority":
        return speaker.expand('"{low|normal|high|urgent}"')
    if key == "mood":
        return speaker.expand('"{calm|worried|friendly|angry|hopeful} {and|but} {polite|brief|clear|impatient}"')
    if key == "tags":
        return "[" + ", ".join(f'"{tag}"' for tag in speaker.expand_some(TAGS, rng.choice((2, 3, 4)))) + "]"
    value = speaker.expand(f"<{key}>")
    return value if key == "number" else f'"{value}"'
