"""The acceptance that evaluation reads off stored features is the one that serving measures, round by round."""

from pathlib import Path

import pytest
import torch
from tests.features.small import LAYERS, write_conversations
from tests.tiny import tiny_target

from eyas.chat.conversation import read_conversation_dir
from eyas.chat.render import render_prompt
from eyas.drafters.eagle3 import Eagle3Spec
from eyas.engine.engine import Engine
from eyas.engine.loops import RequestList, plain_loop
from eyas.engine.request import Request
from eyas.evaluation.head_drafter import HeadDrafter
from eyas.evaluation.replay import find_answers, replay_answers
from eyas.features import capture
from eyas.features.reader import Features
from eyas.formats.head_dir import read_head
from eyas.model.head import Head
from eyas.model.target import Target
from eyas.train import train as loop
from eyas.train.config import HeadOptions
from eyas.tree.shape import TreeShape


@pytest.mark.parametrize("options", [HeadOptions(), HeadOptions(fc_norm=True, norm_output=True)], ids=["3", "3.1"])
@torch.inference_mode()
def test_evaluation_counts_the_rounds_of_serving(options: HeadOptions, tmp_path: Path) -> None:
    target = Target.load(tiny_target(tmp_path / "target"), torch.float32, layers=LAYERS)
    write_conversations(tmp_path / "conversations", target, 12, 30)
    config = capture.CaptureConfig(dtype="float32")
    capture.run(config, tmp_path / "conversations", target, tmp_path / "features", progress=False)
    training = loop.TrainConfig(
        steps=4, updates=80, batch_tokens=150, draft_vocab_size=200, learning_rate=1e-2, head=options
    )
    with torch.inference_mode(False):
        loop.run(training, tmp_path / "features", target, tmp_path / "head", progress=False)
    stored, shape = read_head(tmp_path / "head", torch.float32), TreeShape(depth=4, top_k=3, nodes=11)
    assert isinstance(stored.head, Head)

    features = Features(tmp_path / "features")
    rows = [next(features.rows([index])) for index in range(12)]
    drafter = HeadDrafter(stored.head, stored.vocab, target.embed, shape, rows)
    answers = [find_answers(text, row.ids_T, row.loss_mask_T)[0] for text, row in enumerate(rows)]
    simulated = dict(zip([row.id for row in rows], replay_answers(answers, drafter), strict=True))

    engine = Engine(target, [Eagle3Spec(stored.head, stored.vocab, shape)], max_running=4, max_context=256)
    requests = []
    for conversation in read_conversation_dir(tmp_path / "conversations"):
        ids = render_prompt(conversation.messages[:-1], target.tokenizer)
        requests.append(Request(conversation.id, tuple(ids), len(conversation.turns[0].token_ids)))
    served = {answer.request.id: answer.rounds for answer in plain_loop(engine, RequestList(requests))}
    assert served == simulated
    assert sum(max(rounds.accepted) > 2 for rounds in served.values()) > 6, "hardly anything was accepted"
