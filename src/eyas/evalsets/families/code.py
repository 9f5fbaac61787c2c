"""Family `code`: a Python function over records, described in words; code, then a sentence of explanation."""

import random

from eyas.evalsets.template_grammar import TemplateGrammar
from eyas.evalsets.world_words import TONES

RECORDS: dict[str, tuple[str, ...]] = {
    "order": ("price", "quantity", "weight", "discount"),
    "student": ("score", "age", "absences", "credits"),
    "flight": ("delay", "distance", "seats", "fare"),
    "house": ("rooms", "rent", "area", "floor"),
    "match": ("goals", "fouls", "minutes", "visitors"),
    "sensor": ("temperature", "pressure", "humidity", "voltage"),
    "song": ("length", "rating", "plays", "tempo"),
    "truck": ("load", "mileage", "fuel", "stops"),
    "recipe": ("calories", "servings", "duration", "cost"),
    "server": ("memory", "requests", "errors", "latency"),
    "tree": ("height", "age", "fruit", "branches"),
    "book": ("pages", "copies", "loans", "price"),
    "player": ("level", "lives", "coins", "wins"),
    "ship": ("crew", "speed", "cargo", "length"),
}
LABELS = ("name", "city", "owner", "kind", "code", "colour")

ASK = (
    "Write a Python function `<func>` that {takes|gets} a list of <plural> and returns <what>. Use a <tone> style.",
    "I need a <tone> Python function called `<func>`: given <plural>, return <what>.",
    "Please implement `<func>(<plural>)` in Python ({keep it|make it} <tone>). It should return <what>.",
)

DOC = (
    '    """{Return|Compute|Give|Find} <what>{.|, or <empty> if there are no <plural>.|, ignoring empty input.}"""',
    '    """{Go|Look|Search} through {all|the given} <plural> {for|and return|to find} <what>."""',
    '    """{Say|Tell|Work out} <what>{.|; {nothing is changed|the input stays as it is|the order does not matter}.}"""',
)

COMMENT = (
    "    # {only|keep only|look at} the <plural> that {matter|count|we need}",
    "    # {guard against|handle|treat} {empty input|an empty list|no <plural>}",
    "    # {walk|go|loop} {through|over} {every <record>|all <plural>|the list} {once|in order}",
)

EXPLAIN = (
    "{The function|This|It} {walks|goes|loops} {over|through} {the|all} <plural> {once|in order} and {collects|keeps|gathers} {the|each} <field>{.| of every <record>.| that we need.}",
    "{It|This version|The code} {ignores|skips|drops} {a|any|each} <record> whose `<field>` {is too small|is missing|does not count}{.|, so the result stays correct.}",
    "{For|With|Given} an empty list {it|the function|`<func>`} {returns|gives} <empty>{.|, which is {safe|usual|expected}.}",
    "{You can|Feel free to|It is easy to} {rename|change|replace} `<field>` {if|when} your <plural> {use|have} {another|a different} {key|name}.",
    "{A|One|Each} <record> {without|that lacks} a `<field>` {would|will|could} {raise|cause} {a KeyError|an error}{.|, so {check|clean|validate} the data {first|before}.}",
    "{I chose|I preferred|I used} {a {loop|comprehension}|plain Python|simple names} {because|since} {it is|that stays|this remains} {easy|quick} to {read|test|change}.",
    "{Both|Each|Every} {step|line} {is|stays} {simple|short|linear} in the number of <plural>{.|, even for long lists.}",
)


def write(rng: random.Random) -> list[dict[str, str]]:
    """One request and one answer with a fenced function."""
    record = rng.choice(tuple(RECORDS))
    field, other = rng.sample(RECORDS[record], 2)
    plural = record + ("es" if record.endswith("ch") else "s")
    tone, limit, label = rng.choice(TONES), rng.randint(2, 90), rng.choice(LABELS)
    task = rng.choice((_total, _average, _best, _count, _group, _top, _names, _any))
    words = {"record": record, "plural": plural, "field": field, "tone": tone}
    speaker = TemplateGrammar(rng, tone, words)
    item = speaker.expand(f"{{<record>|item|entry|row|{record[0]}}}")
    func, what, empty, body = task(speaker, item, plural, field, other, limit, label)
    speaker.words |= {"func": func, "what": what, "empty": empty}
    lines = [f"def {func}({plural}):"]
    lines.append(speaker.expand(rng.choice(DOC)))
    if rng.random() < 0.6:
        lines.append(speaker.expand(rng.choice(COMMENT)))
    code = "\n".join([*lines, *(f"    {line}" for line in body)])
    explanation = " ".join(speaker.expand_some(EXPLAIN, rng.choice((2, 3, 4))))
    intro = speaker.expand("{Here is|This is|Below is} {the|a <tone>|one possible} {function|version|solution}:")
    return [
        {"role": "user", "content": speaker.expand(rng.choice(ASK))},
        {"role": "assistant", "content": f"{intro}\n\n```python\n{code}\n```\n\n{explanation}"},
    ]


# Each task returns (function name, what it returns in words, value for empty input, body lines).
_Task = tuple[str, str, str, list[str]]


def _total(s: TemplateGrammar, item: str, plural: str, field: str, other: str, limit: int, label: str) -> _Task:
    what = f"the total {field} of all {plural} whose {other} is above {limit}"
    func = s.expand(f"{{total_{field}|sum_{field}|{field}_total}}_above_{limit}")
    if s.rng.random() < 0.5:
        body = [f'return sum({item}["{field}"] for {item} in {plural} if {item}["{other}"] > {limit})']
    else:
        name = s.expand("{total|result|amount}")
        body = [
            f"{name} = 0",
            f"for {item} in {plural}:",
            f'    if {item}["{other}"] > {limit}:',
            f'        {name} += {item}["{field}"]',
            f"return {name}",
        ]
    return func, what, "0", body


def _average(s: TemplateGrammar, item: str, plural: str, field: str, other: str, limit: int, label: str) -> _Task:
    what = f"the average {field} of the {plural} with {other} below {limit}"
    name = s.expand("{values|numbers|kept}")
    body = [
        f'{name} = [{item}["{field}"] for {item} in {plural} if {item}["{other}"] < {limit}]',
        f"if not {name}:",
        "    return None",
        f"return sum({name}) / len({name})",
    ]
    return s.expand(f"{{average_{field}|mean_{field}|{field}_average}}"), what, "None", body


def _best(s: TemplateGrammar, item: str, plural: str, field: str, other: str, limit: int, label: str) -> _Task:
    what = f"the {label} of the {s.words['record']} with the highest {field}"
    name = s.expand("{best|winner|top}")
    body = [f"if not {plural}:", "    return None"]
    if s.rng.random() < 0.5:
        body.append(f'{name} = max({plural}, key=lambda {item}: {item}["{field}"])')
    else:
        body += [f"{name} = {plural}[0]", f"for {item} in {plural}[1:]:"]
        body += [f'    if {item}["{field}"] > {name}["{field}"]:', f"        {name} = {item}"]
    body.append(f'return {name}["{label}"]')
    return s.expand(f"{{best|highest|top}}_{field}_{label}"), what, "None", body


def _count(s: TemplateGrammar, item: str, plural: str, field: str, other: str, limit: int, label: str) -> _Task:
    what = f"how many {plural} have a {field} of at least {limit}"
    name = s.expand("{count|matches|number}")
    body = [
        f"{name} = 0",
        f"for {item} in {plural}:",
        f'    if {item}["{field}"] >= {limit}:',
        f"        {name} += 1",
        f"return {name}",
    ]
    if s.rng.random() < 0.4:
        body = [f'return len([{item} for {item} in {plural} if {item}["{field}"] >= {limit}])']
    return s.expand(f"{{count_{plural}|number_of_{plural}|{plural}_with}}_{field}_{limit}"), what, "0", body


def _group(s: TemplateGrammar, item: str, plural: str, field: str, other: str, limit: int, label: str) -> _Task:
    what = f"a dictionary from {label} to the sum of {field}"
    name = s.expand("{groups|totals|result|table}")
    if s.rng.random() < 0.5:
        inner = [f'    {name}[{item}["{label}"]] = {name}.get({item}["{label}"], 0) + {item}["{field}"]']
    else:
        inner = [
            f'    {label} = {item}["{label}"]',
            f"    if {label} not in {name}:",
            f"        {name}[{label}] = 0",
            f'    {name}[{label}] += {item}["{field}"]',
        ]
    body = [f"{name} = {{}}", f"for {item} in {plural}:", *inner, f"return {name}"]
    return s.expand(f"{{{field}_by_{label}|group_{field}_by_{label}|sum_{field}_per_{label}}}"), what, "{}", body


def _top(s: TemplateGrammar, item: str, plural: str, field: str, other: str, limit: int, label: str) -> _Task:
    count = limit % 9 + 2
    what = f"the {count} {plural} with the lowest {field}, sorted by {field}"
    name = s.expand("{ordered|ranked|sorted_" + plural + "}")
    body = [f'{name} = sorted({plural}, key=lambda {item}: {item}["{field}"])', f"return {name}[:{count}]"]
    return s.expand(f"{{lowest_{field}|smallest_{field}|first_{count}_by_{field}}}"), what, "[]", body


def _names(s: TemplateGrammar, item: str, plural: str, field: str, other: str, limit: int, label: str) -> _Task:
    what = f"the sorted {label}s of the {plural} with {field} equal to {limit}"
    name = s.expand("{found|names|labels}")
    body = [
        f"{name} = set()",
        f"for {item} in {plural}:",
        f'    if {item}["{field}"] == {limit}:',
        f'        {name}.add({item}["{label}"])',
        f"return sorted({name})",
    ]
    return s.expand(f"{{{label}s_with_{field}|find_{label}s|{label}s_where_{field}}}"), what, "[]", body


def _any(s: TemplateGrammar, item: str, plural: str, field: str, other: str, limit: int, label: str) -> _Task:
    what = f"whether every {s.words['record']} has more {field} than {other}"
    body = [f'return all({item}["{field}"] > {item}["{other}"] for {item} in {plural})']
    if s.rng.random() < 0.5:
        body = [f"for {item} in {plural}:"]
        body += [f'    if {item}["{field}"] <= {item}["{other}"]:', "        return False", "return True"]
    return (
        s.expand(f"{{all_{plural}|every_{s.words['record']}|check_{plural}}}_{{have|has}}_{field}"),
        what,
        "True",
        body,
    )
