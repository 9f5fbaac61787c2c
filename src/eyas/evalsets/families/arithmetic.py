"""Family `arithmetic`: word problems of two to four steps; the answer solves them step by step."""

import random

from eyas.evalsets.template_grammar import NAMES, TONES, TOPICS, WEEKDAYS, Messages, TemplateGrammar, draw_words

FIRST_SENTENCE = (
    "<a> has <start> <thing> at <place>.",
    "There are <start> <thing> at <place>, and all of them belong to <a>.",
    "On <weekday> <a> starts with <start> <thing>.",
)

ASK = (
    "How many <thing> does <a> have now? Explain in a <tone> way.",
    "How many <thing> are left for <a>? Be <tone>.",
    "In the end, how many <thing> does <a> own? Answer in a <tone> voice.",
)

EVENT = {
    "+": ("<b> gives <a> <n> more.", "Then <a> buys <n> <quality> <thing>.", "On <day> <b> brings <n> more <thing>."),
    "-": ("<a> loses <n> of them.", "Then <a> gives <n> <thing> to <b>.", "On <day> <b> takes <n> of them away."),
    "*": ("Then the number grows <n> times as large.", "<a> then trades each one for <n> <quality> ones."),
}

OPEN = (
    "{We begin|Let us begin|I begin} with {the|those|all} <start> <thing> {at <place>|of <a>|on <weekday>}.",
    "{At first|In the beginning|To start with}, <a> {has|owns|holds} <start> <thing>.",
    "{Let us|We can|I will} {go through|follow|work out} {the story|what happens|this} {step by step|in order|slowly}.",
)

STEP = {
    "+": (
        "{<b> adds|We add|That adds} <n>{, so|, and so|, which means} {there are|we have|<a> has} <x> + <n> = <y> <thing>.",
        "{After|With} {the|these|another} <n> {more|new ones|from <b>}, {the number|the total|it} {rises|grows|goes up} to <x> + <n> = <y>.",
    ),
    "-": (
        "{Taking away|Without|Minus} {the|those} <n>{ <thing>| of them|}, {there are|we have|<a> keeps} <x> - <n> = <y>{ left| <thing>|}.",
        "{<b> gets|<a> loses|We subtract} <n>{, so|, which leaves|; that leaves} <x> - <n> = <y> {<thing>|for <a>|at <place>}.",
    ),
    "*": (
        "{Then|Next|Now} {we multiply|each one counts|everything is taken} {by <n>|<n> times}: <x> * <n> = <y>{.| <thing>.}",
        "{Since|As|Because} {each|every} {one|of them} {becomes|turns into|is worth} <n>, {the result is|we get|that makes} <x> * <n> = <y>.",
    ),
}

CLOSE = (
    "{So|Therefore|In the end}{, | then, |, finally, }<a> {has|owns|holds} <y> <thing>{.| at <place>.} The answer is <y>.",
    "{That is|This is|These are} {all|everything|what is left}. {The answer is|So we answer|The result is} <y>.",
)


def write_arithmetic(rng: random.Random) -> Messages:
    """Returns one problem and its worked solution. All intermediate results are between 1 and 400."""
    topic, tone = rng.choice(TOPICS), rng.choice(TONES)
    first, second = rng.sample(NAMES, 2)
    value = rng.randint(4, 60)
    words = draw_words(rng, thing=topic["thing"], place=topic["place"], weekday=WEEKDAYS, day=WEEKDAYS)
    words |= {"a": first, "b": second, "start": str(value), "tone": tone}
    grammar = TemplateGrammar(rng, tone, {**words, "quality": topic["quality"]})
    story = [grammar.expand(rng.choice(FIRST_SENTENCE))]
    steps = grammar.expand_some(OPEN, rng.choice((1, 1, 2)))
    for _ in range(rng.choice((2, 3, 3, 4))):
        operator = rng.choice("++--*" if value < 80 else "+--")
        if operator == "-" and value < 3:
            operator = "+"
        n = rng.randint(1, value - 1) if operator == "-" else rng.randint(2, 40 if operator == "+" else 5)
        result = value + n if operator == "+" else value - n if operator == "-" else value * n
        grammar.words |= {"n": str(n), "x": str(value), "y": str(result)}
        story.append(grammar.expand(rng.choice(EVENT[operator])))
        steps.extend(grammar.expand_some(STEP[operator], 1))
        value = result
    story.append(grammar.expand(rng.choice(ASK)))
    steps.extend(grammar.expand_some(CLOSE, 1))
    return [{"role": "user", "content": " ".join(story)}, {"role": "assistant", "content": " ".join(steps)}]
