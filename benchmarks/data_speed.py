"""Part `speed` of `make prove-data`: measures the CPU time of the privacy filter and the memory of `eyas prompts`."""

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pii_set
from data_options import Options
from result_rows import Row
from text_sets import LANGUAGES, NEW_LANGUAGES, load_texts

CHARS = 500
PROMPTS = 3000
MIN_PROMPTS_PER_S = 400
WORST_CHARS = 50_000
MAX_S = 0.5
WORST_LANGUAGES = ("en", "de", "pl", *NEW_LANGUAGES)
MAX_FIRST_S = 2.0
SIZES = (100, 10_000, 100_000)
MAX_GROWTH = 1.1
POLL_S = 0.1
KEY = b"a key for measuring only, no secret"
# Each unit is repeated to WORST_CHARS characters and stresses one kind of pattern: addresses, numbers, names, keys.
UNITS = (
    *("a.", "a@", "a@a.", "a-", "a_", "x=", "1", "1 ", "1-", "1.", "1.1.1.", "1:", "0x", "+49 ", "(", "((1", "[", "\n"),
    *(" ", "\t", "A", "Aa ", "Aa", "aA1", "é", "ß-", "Anna ", "Anna-", "Mr. ", "Dr. Anna ", "de la ", "van der "),
    *("DE89", "DE89 ", "4111 ", "4111-", "AKIA", "ghp_a", "sk-", "eyJa.", "password=", "password: ", "key = '", "'"),
    *(
        '"',
        "-----BEGIN ",
        "http://a/",
        "www.a.",
        "Street 1, ",
        "12 Oak ",
        "Straße ",
        "rue ",
        "12345 Aa ",
        "\ud55c",
        "{",
    ),
    *("Name: ", "Dear Aa, ", "a.b@c.d ", "\u200b", "\u0301a", "ab12" * 5 + " "),
    *("王", "王小明，", "さん", "山田さん", "김", "김민수 씨 ", "محمد ", "أ", "Иван ", "ул. ", "श्री ", "क"),
)
FIRST_PROMPT = """
import sys, time
began_s = time.process_time()
from eyas.privacy.config import PrivacyConfig
from eyas.privacy.filter import PrivacyFilter
privacy = PrivacyFilter(PrivacyConfig(), key=sys.argv[3].encode())
privacy.clean([((sys.argv[2],), sys.argv[1])])
print(time.process_time() - began_s)
"""


@dataclass(frozen=True)
class Usage:
    """Memory and CPU time of a process and its children."""

    anon_bytes: int  # the largest sum of their resident anonymous memory
    cpu_s: float


def speed(options: Options) -> Iterator[Row]:
    """Yields the rows of throughput, worst inputs and memory."""
    from eyas.privacy.config import PrivacyConfig
    from eyas.privacy.filter import PrivacyFilter

    privacy = PrivacyFilter(PrivacyConfig(), key=KEY)
    for which, texts in (("nine languages", _labeled_texts(options.seed)), ("six new languages", _own_texts())):
        prompts = _of_chars(texts, options.seed)
        privacy.clean(prompts[:100])
        began_s = time.process_time()
        for start in range(0, len(prompts), 1000):
            privacy.clean(prompts[start : start + 1000])
        per_s = len(prompts) / (time.process_time() - began_s)
        name = f"prompts of {CHARS} characters a second of one core, privacy filter, {which}"
        yield Row(name, round(per_s), f"at least {MIN_PROMPTS_PER_S}", per_s >= MIN_PROMPTS_PER_S)
    yield from first_prompts()
    times = {}
    for language in WORST_LANGUAGES:
        for unit in UNITS:
            text = (unit * WORST_CHARS)[:WORST_CHARS]
            began_s = time.process_time()
            privacy.clean([((text,), language)])
            times[repr(unit), language] = time.process_time() - began_s
    slowest = sorted(times, key=times.__getitem__, reverse=True)
    print("slowest inputs:", {name: round(times[name], 3) for name in slowest[:8]}, file=sys.stderr, flush=True)
    worst_s = times[slowest[0]]
    name = f"seconds for {WORST_CHARS} characters of the worst of {len(times)} inputs"
    yield Row(name, round(worst_s, 3), f"at most {MAX_S}", worst_s <= MAX_S)
    yield from memory(options)


def first_prompts() -> Iterator[Row]:
    """Yields the CPU time of the first prompt of each language in a new process, imports and word lists included."""
    for language in LANGUAGES:
        texts = load_texts(language, "develop")
        prompt = texts.private[0].text.format(name=texts.names[0]) if texts else "-"
        command = [sys.executable, "-c", FIRST_PROMPT, language, prompt, KEY.decode()]
        took_s = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        yield Row(f"seconds to the first prompt in {language}", round(took_s, 3), f"at most {MAX_FIRST_S:g}",
                  took_s <= MAX_FIRST_S)  # fmt: skip


def _labeled_texts(seed: int) -> dict[str, list[str]]:
    by_language: dict[str, list[str]] = {}
    for labelled in pii_set.build_set(seed):
        by_language.setdefault(labelled.language, []).append(labelled.text)
    return by_language


def _own_texts() -> dict[str, list[str]]:
    """Returns texts of the new languages, private and public ones."""
    sets = [texts for language in NEW_LANGUAGES if (texts := load_texts(language, "develop"))]
    return {
        texts.language: [one.text for one in texts.ordinary]
        + [one.text.format(name=name) for name, one in zip(texts.names, texts.private + texts.public, strict=False)]
        for texts in sets
    }


def _of_chars(texts: dict[str, list[str]], seed: int) -> list[tuple[tuple[str, ...], str]]:
    """Makes prompts of CHARS characters from texts, each in one language."""
    rng = random.Random(seed)
    languages = list(texts)
    prompts = []
    for number in range(PROMPTS):
        language = languages[number % len(languages)]
        text = ""
        while len(text) < CHARS:
            text += rng.choice(texts[language]) + "\n\n"
        prompts.append(((text[:CHARS],), language))
    return prompts


def memory(options: Options) -> Iterator[Row]:
    """Yields the rows of `eyas prompts` over few and many prompts, each in a separate process."""
    found = {}
    with tempfile.TemporaryDirectory() as directory:
        for size in SIZES:
            found[size] = _eyas_prompts(Path(directory) / str(size), size, options.seed)
    few, some, many = (found[size] for size in SIZES)
    for size, usage in found.items():
        print(f"eyas prompts, {size} prompts: {usage.anon_bytes / 2**20:.0f} MiB anonymous, {usage.cpu_s:.0f} s of CPU",
              file=sys.stderr)  # fmt: skip
    name = f"anonymous memory of eyas prompts over {SIZES[2]} prompts, over that of"
    grown = many.anon_bytes / some.anon_bytes
    yield Row(f"{name} {SIZES[1]}", round(grown, 3), f"at most {MAX_GROWTH}", grown <= MAX_GROWTH)
    # A run of few records does not fill the buffers and caches, which have fixed sizes.
    yield Row(f"{name} {SIZES[0]}", round(many.anon_bytes / few.anon_bytes, 3), "told", True)
    per_s = (SIZES[2] - SIZES[1]) / (many.cpu_s - some.cpu_s)
    name = f"prompts of {CHARS} characters a second of one core, all of eyas prompts"
    yield Row(name, round(per_s), f"at least {MIN_PROMPTS_PER_S}", per_s >= MIN_PROMPTS_PER_S)


def _eyas_prompts(directory: Path, size: int, seed: int) -> Usage:
    directory.mkdir()
    source, recipe = directory / "source.jsonl", directory / "recipe.toml"
    write_prompts(source, size, seed)
    recipe.write_text(f'[prompts]\nsource = "{source}"\nlicense = "CC0-1.0"\n')
    code = "import sys; from eyas.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "prompts", str(recipe), "--out", str(directory / "run")]
    log = directory / "log"
    with log.open("wb") as file:
        child = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        peak = 0
        while os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            peak = max(peak, anonymous_bytes(child.pid))
            time.sleep(POLL_S)
        _, status, usage = os.wait4(child.pid, 0)  # includes the children that the process waited for
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(
            f"eyas prompts over {size} prompts failed with exit code {child.returncode}:\n{log.read_text()[-2000:]}"
        )
    kept = sum(1 for _ in (directory / "run" / "prompts" / "prompts.jsonl").open("rb"))
    print(f"eyas prompts, {size} prompts: {kept} kept", file=sys.stderr, flush=True)
    return Usage(peak, usage.ru_utime + usage.ru_stime)


def write_prompts(path: Path, size: int, seed: int) -> None:
    """Writes `size` different English prompts of CHARS characters. One in ten has a name and an e-mail address."""
    rng = random.Random(seed)
    texts = [labelled for labelled in pii_set.build_set(seed) if labelled.language == "en"]
    vocabulary = sorted({word for labelled in texts if not labelled.planted for word in labelled.text.split()
                         if word.isalpha() and word.islower()})  # fmt: skip
    mails = [labelled.text for labelled in texts if labelled.kinds == {"PERSON", "EMAIL"}]
    assert mails, "the set has texts with a name and an address"
    with path.open("w", encoding="utf-8") as file:
        for number in range(size):
            text = f"Write a text about the {rng.choice(vocabulary)} that has these words in it: "
            text += (rng.choice(mails) + " ") if number % 10 == 0 else ""
            while len(text) < CHARS:
                text += rng.choice(vocabulary) + rng.choice((" ", " ", " ", ", ", ". "))
            file.write(json.dumps({"prompt": text[:CHARS]}) + "\n")


def anonymous_bytes(pid: int) -> int:
    """Returns the resident anonymous memory of a process and all its descendants."""
    children: dict[int, list[int]] = {}
    held_kb: dict[int, int] = {}
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        except OSError:
            continue  # the process has ended
        process = int(status.parent.name)
        children.setdefault(int(lines["PPid"]), []).append(process)
        held_kb[process] = int(lines.get("RssAnon", "0 kB").split()[0])  # a process that has ended has no such line
    total_kb, waiting = 0, [pid]
    while waiting:
        process = waiting.pop()
        total_kb += held_kb.get(process, 0)
        waiting += children.get(process, [])
    return total_kb * 1024
