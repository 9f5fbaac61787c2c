"""Family `code`: a Python function over records, described in words; the answer is code and an explanation."""

import random
from dataclasses import dataclass
from string import Template
from textwrap import indent

from eyas.evalsets.template_grammar import TONES, WORDS, Messages, TemplateGrammar

RECORDS = {record: fields.split() for record, fields in WORDS["records"].items()}
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


@dataclass(frozen=True)
class Task:
    """Templates for one sort of function. $name is a word of the request; braces are choices (`template_grammar`).

    Attributes:
        func: the name of the function.
        what: what the function returns, in words.
        empty: what it returns for an empty list.
        variable: the name of a local variable, $var in the bodies; None if there is none.
        body, other_body: one or two ways to write its lines; `probability` is that of the first one.
        draws_func_first: the order of the random draws, which differs for one task; the shipped texts depend on it.
    """

    func: str
    what: str
    empty: str
    variable: str | None
    body: str
    other_body: str | None = None
    probability: float = 0.5
    draws_func_first: bool = False

    def write(self, grammar: TemplateGrammar, words: dict[str, str]) -> tuple[str, str, str]:
        """Returns the name of the function, what it returns in words, and its body."""

        def expand(template: str | None) -> str:
            return grammar.expand(Template(template or "").substitute(words))

        func = expand(self.func) if self.draws_func_first else None
        variable = None if self.draws_func_first else expand(self.variable)
        body = self.body
        if self.other_body is not None and grammar.rng.random() >= self.probability:
            body = self.other_body
        if variable is None and "$var" in body:
            variable = expand(self.variable)
        body = Template(body).substitute(words, var=variable)
        return func or expand(self.func), Template(self.what).substitute(words), body


TASKS = (
    Task(
        "{total_$field|sum_$field|${field}_total}_above_$limit",
        "the total $field of all $plural whose $other is above $limit",
        "0",
        "{total|result|amount}",
        'return sum($item["$field"] for $item in $plural if $item["$other"] > $limit)',
        '$var = 0\nfor $item in $plural:\n    if $item["$other"] > $limit:\n        $var += $item["$field"]\nreturn $var',
        draws_func_first=True,
    ),
    Task(
        "{average_$field|mean_$field|${field}_average}",
        "the average $field of the $plural with $other below $limit",
        "None",
        "{values|numbers|kept}",
        '$var = [$item["$field"] for $item in $plural if $item["$other"] < $limit]\nif not $var:\n    return None\nreturn sum($var) / len($var)',
    ),
    Task(
        "{best|highest|top}_${field}_$label",
        "the $label of the $record with the highest $field",
        "None",
        "{best|winner|top}",
        'if not $plural:\n    return None\n$var = max($plural, key=lambda $item: $item["$field"])\nreturn $var["$label"]',
        'if not $plural:\n    return None\n$var = $plural[0]\nfor $item in $plural[1:]:\n    if $item["$field"] > $var["$field"]:\n        $var = $item\nreturn $var["$label"]',
    ),
    Task(
        "{count_$plural|number_of_$plural|${plural}_with}_${field}_$limit",
        "how many $plural have a $field of at least $limit",
        "0",
        "{count|matches|number}",
        'return len([$item for $item in $plural if $item["$field"] >= $limit])',
        '$var = 0\nfor $item in $plural:\n    if $item["$field"] >= $limit:\n        $var += 1\nreturn $var',
        probability=0.4,
    ),
    Task(
        "{${field}_by_$label|group_${field}_by_$label|sum_${field}_per_$label}",
        "a dictionary from $label to the sum of $field",
        "{}",
        "{groups|totals|result|table}",
        '$var = {}\nfor $item in $plural:\n    $var[$item["$label"]] = $var.get($item["$label"], 0) + $item["$field"]\nreturn $var',
        '$var = {}\nfor $item in $plural:\n    $label = $item["$label"]\n    if $label not in $var:\n        $var[$label] = 0\n    $var[$label] += $item["$field"]\nreturn $var',
    ),
    Task(
        "{lowest_$field|smallest_$field|first_${count}_by_$field}",
        "the $count $plural with the lowest $field, sorted by $field",
        "[]",
        "{ordered|ranked|sorted_$plural}",
        '$var = sorted($plural, key=lambda $item: $item["$field"])\nreturn $var[:$count]',
    ),
    Task(
        "{${label}s_with_$field|find_${label}s|${label}s_where_$field}",
        "the sorted ${label}s of the $plural with $field equal to $limit",
        "[]",
        "{found|names|labels}",
        '$var = set()\nfor $item in $plural:\n    if $item["$field"] == $limit:\n        $var.add($item["$label"])\nreturn sorted($var)',
    ),
    Task(
        "{all_$plural|every_$record|check_$plural}_{have|has}_$field",
        "whether every $record has more $field than $other",
        "True",
        None,
        'for $item in $plural:\n    if $item["$field"] <= $item["$other"]:\n        return False\nreturn True',
        'return all($item["$field"] > $item["$other"] for $item in $plural)',
    ),
)


def write_code(rng: random.Random) -> Messages:
    """Returns one request and one answer with a fenced function."""
    record = rng.choice(list(RECORDS))
    field, other = rng.sample(RECORDS[record], 2)
    plural = record + ("es" if record.endswith("ch") else "s")
    tone, limit, label = rng.choice(TONES), rng.randint(2, 90), rng.choice(LABELS)
    task = rng.choice(TASKS)
    words = {"record": record, "plural": plural, "field": field}
    grammar = TemplateGrammar(rng, tone, words | {"tone": tone})
    item = grammar.expand(f"{{<record>|item|entry|row|{record[0]}}}")
    words |= {"item": item, "other": other, "limit": str(limit), "label": label, "count": str(limit % 9 + 2)}
    func, what, body = task.write(grammar, words)
    grammar.words |= {"func": func, "what": what, "empty": task.empty}
    lines = [f"def {func}({plural}):", grammar.expand(rng.choice(DOC))]
    if rng.random() < 0.6:
        lines.append(grammar.expand(rng.choice(COMMENT)))
    code = "\n".join([*lines, indent(body, "    ")])
    explanation = " ".join(grammar.expand_some(EXPLAIN, rng.choice((2, 3, 4))))
    intro = grammar.expand("{Here is|This is|Below is} {the|a <tone>|one possible} {function|version|solution}:")
    return grammar.ask_and_answer(ASK, f"{intro}\n\n```python\n{code}\n```\n\n{explanation}")
