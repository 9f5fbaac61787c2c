"""Family `summary`: a report of six to ten sentences, retold in two to four that use other words."""

import random

from eyas.evalsets.template_grammar import TemplateGrammar
from eyas.evalsets.world_words import MONTHS, NAMES, TONES, TOPICS, TOWNS, WEEKDAYS

ASK = (
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


def write(rng: random.Random) -> list[dict[str, str]]:
    """One report and one summary."""
    topic, tone = rng.choice(TOPICS), rng.choice(TONES)
    name, other = rng.sample(NAMES, 2)
    month, following = rng.sample(MONTHS, 2)
    words = {
        **topic.draw_words(rng),
        "tone": tone,
        "name": name,
        "other": other,
        "town": rng.choice(TOWNS),
        "month": month,
        "next": following,
        "weekday": rng.choice(WEEKDAYS),
        "number": str(rng.randint(2, 90)),
        "price": str(rng.randint(20, 900)),
    }
    speaker = TemplateGrammar(rng, tone, words)
    report = [speaker.expand(rng.choice(REPORT_OPENING))]
    report += [speaker.expand(line) for line in rng.sample(REPORT, rng.choice((5, 6, 7, 8)))]
    summary = (
        speaker.expand_some(LEAD, 1) + speaker.expand_some(MIDDLE, rng.choice((2, 3, 4))) + speaker.expand_some(END, 1)
    )
    speaker.words["report"] = " ".join(report)
    return [
        {"role": "user", "content": speaker.expand(rng.choice(ASK))},
        {"role": "assistant", "content": " ".join(summary)},
    ]
