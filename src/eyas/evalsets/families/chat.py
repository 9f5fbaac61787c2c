"""Family `chat`: a system message that sets the tone, then two or three turns of advice about one topic."""

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
    draw_words,
)

SYSTEM = (
    "You are a <tone> assistant for <topic>.",
    "Answer in a <tone> voice. The user asks about <topic>.",
    "Be <tone> and keep to <topic>.",
)

OPENING = (
    "I want to <verb> some <thing> near <place> in <month>. Where should I begin?",
    "My friend <name> asked me to <verb> the <thing> for <weekday>. What do I need?",
    "Can you help me to <verb> <number> <thing> in <town>?",
    "I have <number> <quality> <thing> and a <person> who can help. What would you do?",
    "How do I <verb> <thing> that are too <quality>?",
    "<name> says that <quality> <thing> are the best ones. Is that true for <place>?",
    "What is the best way to <verb> <thing> before <weekday>?",
)

FOLLOW_UP = (
    "And what if the <thing> are <quality>?",
    "How long will that take <name>?",
    "What should I avoid?",
    "Is there a cheaper way in <town>?",
    "Could the <person> do it on <weekday> instead?",
    "Thank you. What comes after that?",
    "Why is that better than to <verb> them first?",
)

GREETING = (
    "{Happy to help with|Good question about|Let us look at|Thanks for asking about} {the|your} <thing>{.|, and with <topic> in general.| in <month>.}",
    "{Yes|Certainly|Of course}, {this is quite easy|that can be done|we can plan this} {together|step by step|without much effort}.",
    "{In short|Briefly|First of all}, {you will need|you should get|it takes} {some|a few|enough} <thing> and {one|a good|a patient} <person>.",
    "{With|For|Given} <quality> <thing>, {the order of the steps|a little patience|the right moment} {matters most|decides everything|is what counts}.",
)

ADVICE = (
    "{Start|Begin|Try} {at|in|near} <place>{, where|, because} the <thing> {stay|are|tend to be} <quality> {all day|for a while|until evening}.",
    "{You could|You should|It helps to|I would} <verb> the <thing> {first|before anything else|on <weekday>}, {then|and then|and after that} <verb> {the rest|what is left|all the others}.",
    "{Ask|Call|Find} {a|the|your} <person> {in <town>|near you|whom <name> knows} {to|who can|so that they can} <verb> {the <thing>|them|every one of them}.",
    "{If|When|As soon as} the <thing> {look|seem|become} <quality>, {wait|pause|give it} {a day|an hour|until <weekday>} {and|and only then} <verb> them {again|once more|gently}.",
    "{Most|Many|Some} {people|beginners|visitors} {forget|fail|never learn} to <verb> {the|their} <thing>{, which|, and that} {costs|wastes|takes} {time|money|a lot of work}.",
    "{Keep|Leave|Store} {the|your} <thing> {away from|close to|next to} {anything <quality>|the <quality> ones|<place>}{.| and mark them.| for {two|three|five} days.}",
    "{A|One|Every} <person> {I know|in <town>|I trust} {would|likes to|prefers to} <verb> <quality> <thing> {rather than|instead of|and not} <quality> ones.",
    "{Write down|Note|Count} {what|how many <thing>|which ones} you <verb>{, so|, because then|; that way} <name> {can|will be able to|may} {check|follow|repeat} it {later|on <weekday>|in <month>}.",
    "{About|Roughly|At least} <number> <thing> {are|will be|should be} {enough|plenty|what you need} for {one|a|the} <person> {in a week|at <place>|during <month>}.",
    "{Avoid|Do not choose|Stay away from} {<quality> <thing>|anything too <quality>} {at <place>|in <month>|on <weekday>}{.|, even if they look <quality>.|, unless <name> agrees.}",
)

ANSWER_TO_FOLLOW_UP = (
    "{Then|In that case|If so}, {it is better to|you should|I would} <verb> {them|the <thing>} {slowly|twice|only once}{.| and tell <name> about it.}",
    "{That takes|Allow|Plan} {about|roughly|no more than} {two|three|four|five} {hours|days|weeks}{, because|; after all,} the <thing> {have to|must|need to} {become|stay|be} <quality>.",
    "{The|A} <person> {in <town>|at <place>} {can|will|could} <verb> {half|all|most} of the <thing> {on <weekday>|in <month>|for you}.",
    "{No|Not really|Hardly}, {since|because|as} <quality> <thing> {rarely|never|seldom} {help|last|work} {at <place>|for long|in <month>}.",
    "{After that|Next|Finally}, <verb> {what is left|the last <thing>|everything} {and|, then} {rest|ask the <person>|enjoy <place>}.",
    "{It is better|It is safer|It is cheaper} {because|since} {you can|a <person> can|<name> can} <verb> {them|the <thing>} {without|with less} {trouble|waste|help} {later|afterwards|in <town>}.",
)

CLOSING = (
    "{Good luck|Have fun|Enjoy it}{!| with the <thing>!| in <town>!}",
    "{Let me know|Tell me|Write again} {how it goes|if anything is unclear|when the <thing> are ready}.",
    "{Does that|Would that|Could this} {help|work} {you|for <name>|at <place>}?",
)


def write_chat(rng: random.Random) -> Messages:
    """Returns one conversation in the OpenAI form: a system message, then two or three turns."""
    topic, tone = rng.choice(TOPICS), rng.choice(TONES)
    facts = draw_words(rng, name=NAMES, town=TOWNS, month=MONTHS, weekday=WEEKDAYS, number=range(3, 61))
    grammar = TemplateGrammar(rng, tone, {**topic, **facts, "tone": tone})
    messages = [{"role": "system", "content": grammar.expand(rng.choice(SYSTEM))}]
    for turn in range(rng.choice((2, 2, 3))):
        question = grammar.expand(rng.choice(FOLLOW_UP if turn else OPENING))
        messages.append({"role": "user", "content": question})
        messages.append({"role": "assistant", "content": " ".join(_write_reply(grammar, first=turn == 0))})
    return messages


def _write_reply(grammar: TemplateGrammar, first: bool) -> list[str]:
    rng = grammar.rng
    if first:
        sentences = grammar.expand_some(GREETING, 1) + grammar.expand_some(ADVICE, rng.choice((3, 4, 5)))
    else:
        sentences = grammar.expand_some(ANSWER_TO_FOLLOW_UP, rng.choice((1, 2))) + grammar.expand_some(ADVICE, 3)
    return sentences + (grammar.expand_some(CLOSING, 1) if rng.random() < 0.5 else [])
