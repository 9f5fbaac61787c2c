"""Part `ordinary` of `make prove-data`: measures how many prompts without private data the filter leaves unchanged.

The prompts are the project's own and those of public sets. Each is cleaned on its own, with its known language, in
both modes of prompts.privacy.names.
"""

from collections import Counter
from collections.abc import Iterator

from changes import ChangeLog
from data_detection import run_filter
from data_options import Options
from presidio_peer import run_presidio
from public_prompts import Prompt, ordinary_prompts, school_problems
from result_rows import Row
from shares import share_row
from text_sets import sets_of

MIN_UNCHANGED = 0.99
MIN_SCHOOL = 0.98
SCHOOL = "school"


def ordinary(options: Options) -> Iterator[Row]:
    """Yields the share of unchanged prompts: of each set and language, of school problems and of all others."""
    school, others = collect(options)
    log = ChangeLog(options.show_file, options.half == "develop")
    for names in ("private", "all"):
        is_default = names == "private"
        mode = f"ordinary, names={names}"
        unchanged = {True: Counter[str](), False: Counter[str]()}
        total = {True: Counter[str](), False: Counter[str]()}
        for is_school, prompts in ((False, others), (True, school)):
            written = run_filter([(prompt.texts, prompt.language) for prompt in prompts], names)
            for prompt, after in zip(prompts, written, strict=True):
                name = f"{prompt.set_name} {prompt.language}"
                total[is_school][name] += 1
                unchanged[is_school][name] += after == prompt.texts
                if is_default and after != prompt.texts:
                    log.add(f"{prompt.set_name} {prompt.language} {prompt.id}", prompt.texts, after)
            for name, number in total[is_school].items():
                yield share_row(f"{mode}: unchanged in {name}", unchanged[is_school][name], number)
        for is_school, what, bound in ((False, "all but school problems", MIN_UNCHANGED), (True, SCHOOL, MIN_SCHOOL)):
            right, number = unchanged[is_school].total(), total[is_school].total()
            yield share_row(f"{mode}: unchanged in {what}", right, number, bound if is_default else None)
    texts = [(text, prompt.language) for prompt in others for text in prompt.texts]
    if found := run_presidio(texts, options):
        name = "ordinary, Presidio: texts without a finding in all but school problems"
        yield share_row(name, sum(not spans for spans in found), len(texts))


def collect(options: Options) -> tuple[list[Prompt], list[Prompt]]:
    """Returns the school problems and all other prompts."""
    school, others = list[Prompt](), list[Prompt]()
    for texts in sets_of(options.languages, options.half):
        for one in texts.ordinary:
            is_school = one.kind == SCHOOL
            name = "own school problems" if is_school else "own"
            prompt = Prompt(name, f"{one.group} {one.kind}", texts.language, (one.text,))
            (school if is_school else others).append(prompt)
    if options.data:
        others += ordinary_prompts(options.data, options.half, options.languages)
        school += school_problems(options.data, options.half, options.languages)
    return school, others
