"""Family `code`: a Python function over records, described in words; the answer is code and an explanation."""

import random
from dataclasses import dataclass
from pathlib import Path
from string import Template
from textwrap import indent

from eyas.base.config import load_toml
from eyas.evalsets.template_grammar import TONES, WORDS, Messages, TemplateGrammar

TEMPLATES = load_toml(Path(__file__).with_suffix(".toml"))
RECORDS = {record: fields.split() for record, fields in WORDS["records"].items()}


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
    body: str
    variable: str | None = None
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


TASKS = tuple(Task(**table) for table in TEMPLATES["tasks"])


def write_code(rng: random.Random) -> Messages:
    """Returns one request and one answer with a fenced function."""
    record = rng.choice(list(RECORDS))
    field, other = rng.sample(RECORDS[record], 2)
    plural = record + ("es" if record.endswith("ch") else "s")
    tone, limit, label = rng.choice(TONES), rng.randint(2, 90), rng.choice(TEMPLATES["labels"])
    task = rng.choice(TASKS)
    words = {"record": record, "plural": plural, "field": field}
    grammar = TemplateGrammar(rng, tone, words | {"tone": tone})
    item = grammar.expand(f"{{<record>|item|entry|row|{record[0]}}}")
    words |= {"item": item, "other": other, "limit": str(limit), "label": label, "count": str(limit % 9 + 2)}
    func, what, body = task.write(grammar, words)
    grammar.words |= {"func": func, "what": what, "empty": task.empty}
    lines = [f"def {func}({plural}):", grammar.expand(rng.choice(TEMPLATES["doc"]))]
    if rng.random() < 0.6:
        lines.append(grammar.expand(rng.choice(TEMPLATES["comment"])))
    code = "\n".join([*lines, indent(body, "    ")])
    explanation = " ".join(grammar.expand_some(TEMPLATES["explain"], rng.choice((2, 3, 4))))
    intro = grammar.expand("{Here is|This is|Below is} {the|a <tone>|one possible} {function|version|solution}:")
    return grammar.ask_and_answer(TEMPLATES["ask"], f"{intro}\n\n```python\n{code}\n```\n\n{explanation}")
