"""The command line. Each verb imports what it needs when it runs, so that --help starts at once, without torch."""

import argparse
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import NoReturn

from eyas import __version__
from eyas.base.errors import EyasError, UsageError

INTERRUPTED = "eyas: stopped; run the same command again: a run directory continues where it stopped"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; the exit code: 0 done, 1 failed, 2 wrong usage or input."""
    try:
        with _no_lost_interrupts():
            parsed = _parse(arguments)
            return parsed.run(parsed)
    except EyasError as error:
        print(f"eyas: error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(INTERRUPTED, file=sys.stderr)
        return 1
    except BrokenPipeError:  # `eyas ... | head`
        sys.stderr.close()
        return 1


@contextlib.contextmanager
def _no_lost_interrupts() -> Iterator[None]:
    """A Ctrl-C that arrives while an object is being finalised is swallowed by Python: have it delivered again."""
    before = sys.unraisablehook

    def hook(unraisable: "sys.UnraisableHookArgs") -> None:
        if isinstance(unraisable.exc_value, KeyboardInterrupt):
            # From a timer, not from here: here it would be swallowed again.
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        else:
            before(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before


class _Parser(argparse.ArgumentParser):
    """argparse, with its complaints in the words of every other error."""

    def error(self, message: str) -> NoReturn:
        usage = " ".join(self.format_usage().removeprefix("usage: ").split())
        raise UsageError(message, usage, f"read `{self.prog} --help`")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """argparse takes no key=value behind an option (`eyas run RECIPE --out RUN train.steps=3`), so they are added."""
    parser = _parser()
    parsed, rest = parser.parse_known_args(arguments)
    if rest and ("overrides" not in parsed or any(word.startswith("-") for word in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        parsed.overrides = [*parsed.overrides, *rest]
    return parsed


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="eyas",
        description="Train an EAGLE-3 draft head on lawful prompts, prove the speed-up, serve the same words faster.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"eyas {__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    _quickstart(verbs.add_parser("quickstart", help="the whole story on the embedded target", allow_abbrev=False))
    _recipe_verbs(verbs)
    _generate(verbs.add_parser("generate", help="answer a prompt, accepted draft tokens coloured", allow_abbrev=False))
    _serve(verbs.add_parser("serve", help="an OpenAI-compatible server", allow_abbrev=False))
    _show(verbs.add_parser("show", help="a rendered conversation, what is supervised in colour", allow_abbrev=False))
    _plan(verbs.add_parser("plan", help="what would run, bytes, hours, money; changes nothing", allow_abbrev=False))
    _drift(
        verbs.add_parser("drift", help="acceptance now against the report, and whether to train", allow_abbrev=False)
    )
    _deploy(verbs.add_parser("deploy", help="what Vertex AI or Kubernetes is asked for", allow_abbrev=False))
    _doctor(verbs.add_parser("doctor", help="check a run, a head, a target and a head", allow_abbrev=False))
    return parser


def _quickstart(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", default="runs/quickstart", metavar="RUN", help="run directory (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print results.json on stdout and nothing else")
    parser.set_defaults(run=_run_quickstart)


def _run_quickstart(parsed: argparse.Namespace) -> int:
    from eyas.cli import recipes

    return recipes.quickstart(parsed.out, parsed.json)


def _recipe_verbs(verbs: "argparse._SubParsersAction[_Parser]") -> None:
    texts = {
        "run": "every stage, skipping what is finished",
        "prompts": "choose and screen prompts",
        "respond": "let the target answer them",
        "capture": "capture the target's features",
        "train": "train the head",
        "eval": "measure acceptance on held-out answers",
        "export": "the head as SGLang and vLLM load it, checked by a second reader",
        "bench": "measure baseline and speculation, write the report",
        "tune": "the best tree for each number of streams, and the flags for SGLang and vLLM",
    }
    for verb, text in texts.items():
        parser = verbs.add_parser(verb, help=text, description=f"{text[0].upper()}{text[1:]}.", allow_abbrev=False)
        _recipe_arguments(parser, needs_recipe=verb != "bench")
        if verb in ("run", "eval", "export", "bench", "tune"):
            parser.add_argument("--json", action="store_true", help="print the written object on stdout, nothing else")
        if verb not in ("prompts", "train"):
            _device_argument(parser, "auto (spread over all), " if verb in ("capture", "eval") else "")
        if verb in ("run", "prompts"):
            parser.add_argument(
                "--acknowledge",
                metavar="NAME",
                help="NAME has read and accepts the terms that the licence gate asks about",
            )
        if verb == "prompts":
            parser.add_argument("--explain", metavar="ID", help="why one record was kept, changed or dropped")
            parser.add_argument("--forget", metavar="ID", help="remove one record from all that was made from it")
        parser.set_defaults(run=_run_recipe, json=False, device=None, acknowledge=None, explain=None, forget=None)
        if verb == "bench":
            parser.add_argument("--url", metavar="URL", help="measure a server that runs, instead of a recipe's head")
            parser.add_argument("--baseline", metavar="URL", help="the same target served without a head")
            text = "figures of aiperf, guidellm, vllm bench or sglang's benchmark as ARM; may be repeated"
            parser.add_argument("--import", action="append", dest="imported", metavar="ARM=FILE", help=text)
            parser.set_defaults(run=_run_bench)


def _recipe_arguments(parser: argparse.ArgumentParser, needs_recipe: bool = True) -> None:
    nargs = None if needs_recipe else "?"
    parser.add_argument("recipe", metavar="RECIPE", nargs=nargs, help="a TOML file, for example recipes/tiny.toml")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="for example prompts.limit=300")
    parser.add_argument("--out", metavar="RUN", help="run directory (runs/<recipe name>)")


def _run_recipe(parsed: argparse.Namespace) -> int:
    from eyas.cli import recipes

    if parsed.explain is not None or parsed.forget is not None:
        return recipes.trace_record(parsed.recipe, parsed.overrides, parsed.out, parsed.explain, parsed.forget)
    work = recipes.open_run(parsed.recipe, parsed.overrides, parsed.out, parsed.device)
    return recipes.run(parsed.verb, work, parsed.json, parsed.acknowledge)


def _run_bench(parsed: argparse.Namespace) -> int:
    from eyas.cli import bench

    if parsed.url is None and parsed.imported is None and parsed.baseline is None:
        if parsed.recipe is None:
            raise UsageError("bench of nothing", "RECIPE, --url URL or --import ARM=FILE", "read `eyas bench --help`")
        return _run_recipe(parsed)
    return bench.run(parsed)


def _device_argument(parser: argparse.ArgumentParser, first: str = "") -> None:
    text = f"where the target lives: {first}cpu, cuda or cuda:N (cuda where there is one)"
    parser.add_argument("--device", metavar="D", help=text)


def _pair_arguments(parser: argparse.ArgumentParser) -> None:
    """A target and what to draft with."""
    parser.add_argument("--target", default="embedded", metavar="T", help="directory, hub id or %(default)s")
    parser.add_argument("--head", metavar="H", help="head directory (the embedded target has its own)")
    parser.add_argument("--no-head", action="store_true", help="the baseline: no speculation")
    _device_argument(parser)


def _generate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", nargs="?", help="the user's words; without them, --input")
    _pair_arguments(parser)
    parser.add_argument("--input", metavar="FILE.jsonl", help="answer many prompts, batched")
    parser.add_argument("--max-tokens", type=int, default=256, metavar="N", help="per answer (%(default)s)")
    parser.add_argument("--temperature", type=float, default=0.0, metavar="X", help="0 is greedy (%(default)s)")
    parser.add_argument("--top-k", type=int, metavar="N")
    parser.add_argument("--top-p", type=float, metavar="X")
    parser.add_argument("--min-p", type=float, metavar="X")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="(%(default)s)")
    parser.add_argument("--tree", default="6,4,16", metavar="DEPTH,TOP_K,NODES", help="draft tree (%(default)s)")
    parser.add_argument("--json", action="store_true", help="one JSON object an answer on stdout, nothing else")
    parser.set_defaults(run=_run_generate)


def _serve(parser: argparse.ArgumentParser) -> None:
    _pair_arguments(parser)
    parser.add_argument("--host", metavar="H", help="address to listen on (127.0.0.1; with AIP_HTTP_PORT 0.0.0.0)")
    parser.add_argument("--port", type=int, metavar="N", help="0 takes a free one (AIP_HTTP_PORT or 8000)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16", help="(%(default)s)")
    parser.add_argument("--slots", type=int, default=16, metavar="N", help="requests that run at once (%(default)s)")
    parser.add_argument("--context", type=int, metavar="N", help="most tokens of prompt and answer (the target's own)")
    parser.add_argument("--memory-tokens", type=int, metavar="N", help="of key-value memory (what the machine has)")
    parser.add_argument("--max-waiting", type=int, default=256, metavar="N", help="requests in the queue (%(default)s)")
    parser.add_argument("--speculation", default="auto", metavar="ARM", help="auto, off, or one arm for all rounds")
    parser.add_argument("--threads", type=int, metavar="N", help="that compute, on a CPU (all cores but one)")
    parser.add_argument("--no-compile", action="store_true", help="leave forwards as they are; else compiled on a CPU")
    parser.add_argument("--served-name", metavar="NAME", help="the model's name in the API (the target's own)")
    parser.add_argument("--api-key", action="append", metavar="KEY", help="may be repeated; or EYAS_API_KEY")
    parser.add_argument("--canary-head", metavar="H2", help="another head, tried on a share of the requests")
    text = "of the requests, until one of both heads is known to be the better one (%(default)s)"
    parser.add_argument("--canary-share", type=float, default=0.1, metavar="X", help=text)
    text = "keep prompts on which the head did badly, without personal data, and acceptance by slice (`eyas drift`)"
    parser.add_argument("--sample-low-acceptance", metavar="DIR", help=text)
    text = "badly: below this share of what the same arms accept on average (%(default)s)"
    parser.add_argument("--sample-below", type=float, default=0.75, metavar="X", help=text)
    parser.add_argument("--sample-limit", type=int, default=10_000, metavar="N", help="prompts kept (%(default)s)")
    parser.add_argument("--no-ui", action="store_true", help="no chat page at /ui")
    parser.add_argument("--drain-s", type=float, default=30.0, metavar="S", help="after SIGTERM, for what runs")
    parser.set_defaults(run=_run_serve, tree="6,4,16")


def _run_serve(parsed: argparse.Namespace) -> int:
    from eyas.cli import serve

    return serve.run(parsed)


def _run_generate(parsed: argparse.Namespace) -> int:
    from eyas.cli import generate

    return generate.run(parsed)


def _show(parser: argparse.ArgumentParser) -> None:
    _recipe_arguments(parser)
    parser.add_argument("--index", type=int, default=0, metavar="N", help="which conversation (%(default)s)")
    parser.set_defaults(run=_run_show)


def _run_show(parsed: argparse.Namespace) -> int:
    from eyas.cli import recipes

    return recipes.show_conversation(parsed.recipe, parsed.overrides, parsed.out, parsed.index)


def _plan(parser: argparse.ArgumentParser) -> None:
    _recipe_arguments(parser)
    parser.add_argument("--price", type=float, metavar="X", help="money an hour of the machine costs")
    parser.add_argument("--json", action="store_true", help="print the plan as one object on stdout, nothing else")
    parser.set_defaults(run=_run_plan)


def _run_plan(parsed: argparse.Namespace) -> int:
    from eyas.cli import recipes

    return recipes.plan(recipes.open_run(parsed.recipe, parsed.overrides, parsed.out), parsed.price, parsed.json)


def _deploy(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("platform", choices=("vertex", "kubernetes"), help="writes RUN/deploy/vertex or kubernetes")
    _recipe_arguments(parser)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--upload", action="store_true", help="put head, and a target that is here, into deploy.storage")
    what.add_argument("--apply", action="store_true", help="that, and carry it out; again: go on with what is there")
    what.add_argument("--status", action="store_true", help="what is there now")
    what.add_argument("--delete", action="store_true", help="remove what eyas made, and nothing else")
    parser.add_argument("--json", action="store_true", help="print what is there as one object on stdout")
    parser.set_defaults(run=_run_deploy)


def _run_deploy(parsed: argparse.Namespace) -> int:
    from eyas.cli import deploy

    return deploy.run(parsed)


def _drift(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_directory", metavar="RUN", help="the run whose head is served")
    parser.add_argument("log", metavar="DIR", help="the directory of `eyas serve --sample-low-acceptance DIR`")
    parser.add_argument("--days", type=float, metavar="X", help="answers of the last X days (all that are kept)")
    parser.add_argument(
        "--recipe", metavar="OUT.toml", help="write a recipe that trains on from the head on its prompts"
    )
    parser.add_argument("--json", action="store_true", help="print the comparison as one object on stdout")
    parser.set_defaults(run=_run_drift)


def _run_drift(parsed: argparse.Namespace) -> int:
    from eyas.cli import drift

    return drift.run(parsed)


def _doctor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", help="a run directory or a head directory")
    parser.add_argument("--target", metavar="T", help="check the head against this target")
    parser.set_defaults(run=_run_doctor)


def _run_doctor(parsed: argparse.Namespace) -> int:
    from eyas.cli.setup import silence_transformers
    from eyas.doctor import examine, examine_machine

    silence_transformers()
    findings = [*examine(parsed.path, parsed.target), examine_machine()]
    misfits = [finding for finding in findings if finding.weight == "misfit"]
    for finding in findings:
        if finding not in misfits:
            print(finding)
    for finding in misfits:
        print(f"eyas: {finding}", file=sys.stderr)
    return 2 if misfits else 0
