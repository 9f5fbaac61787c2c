"""The target answers through eyas's own engine and through eyas's own server: the same files, byte by byte."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.data.answers.prompts_dir import write_prompts
from tests.server.server import MODEL, serving, start_engine
from tests.tiny import tiny_target

from eyas import engine_responder
from eyas.chat.conversation import read_conversation_dir
from eyas.data.answers import respond
from eyas.data.answers.respond_config import RespondConfig, TaskDecoding
from eyas.features.capture import CaptureConfig
from eyas.kernels.aot_compile import CompileError
from eyas.model.target import Target
from eyas.recipe import Recipe, Run, TargetConfig

CONFIG = RespondConfig(max_tokens=20, part_size=4, batch_size=3, concurrency=5)
LAYERS = CaptureConfig(aux_layer_ids=(1, 2, 3))  # three are too few for the default


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> Path:
    return tiny_target(tmp_path_factory.mktemp("target"), layers=3)


@pytest.fixture(scope="module")
def url(target):
    service = start_engine(Target.load(target, torch.float32, layers=(1, 2, 3)), drafts=True)
    with serving(service) as server:
        yield f"{server.url}/v1"
    service.drain(1)


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    text = "a question that gets longer and longer, until its prompt does not fit into the first engine any more"
    words = text.split()
    turns = [[" ".join([*words[: i + 1], str(i), str(k)]) for k in range(i % 3 + 1)] for i in range(len(words))]
    return write_prompts(tmp_path_factory.mktemp("prompts") / "prompts", turns)


def answers(config: RespondConfig, target: Path, prompts: Path, out: Path) -> dict[str, bytes]:
    work = Run(Recipe(target=TargetConfig(str(target), "float32"), capture=LAYERS, respond=config), out)
    respond.run(config, prompts, out, work.build_responder(), progress=False)
    assert not list(out.glob("*.journal")) + list(out.glob("*.tally"))
    return {path.name: path.read_bytes() for path in out.iterdir() if path.name.startswith(("part-", "ledger"))}


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_server_and_the_engine_answer_alike(target, prompts, url, tmp_path, temperature):
    tasks = {"q": TaskDecoding(temperature=temperature, top_k=40, top_p=0.95)}
    local = answers(replace(CONFIG, tasks=tasks), target, prompts, tmp_path / "local")
    remote = answers(replace(CONFIG, tasks=tasks, url=url, model=MODEL), target, prompts, tmp_path / "remote")
    assert local == remote
    conversations = list(read_conversation_dir(tmp_path / "remote"))
    assert len(conversations) > 12
    turns = [turn for each in conversations for turn in each.turns]
    assert len({turn.token_ids for turn in turns}) > len(turns) // 2
    assert {turn.ids_source for turn in turns} == {"generated"}


def test_long_work_is_compiled_once_on_a_cpu(target, prompts, tmp_path, monkeypatch):
    calls: list[bool] = []

    def compile_pair(found: Target, head: None, *, stored_only: bool) -> bool:
        calls.append(stored_only)
        return not stored_only

    monkeypatch.setattr(engine_responder, "compile_pair", compile_pair)
    short = answers(CONFIG, target, prompts, tmp_path / "short")
    assert calls == [True]
    monkeypatch.setattr(engine_responder, "COMPILE_AFTER_S", 0.0)
    assert answers(CONFIG, target, prompts, tmp_path / "long") == short
    assert calls == [True, True, False]


def test_answers_without_a_compiler(target, prompts, tmp_path, monkeypatch, capsys):
    def refuse(*_: object, **__: object) -> bool:
        raise CompileError("There is no g++ on the PATH", "Install g++")

    monkeypatch.setattr(engine_responder, "compile_pair", refuse)
    monkeypatch.setattr(engine_responder, "COMPILE_AFTER_S", 0.0)
    assert answers(CONFIG, target, prompts, tmp_path / "out")
    assert capsys.readouterr().err.count("Forwards run uncompiled: There is no g++ on the PATH.") == 1
