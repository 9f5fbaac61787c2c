"""What streams tell of their rounds, where they are asked."""

import json
from typing import Any

import pytest
from tests.server.server import CHAT, MODEL, ROSES, Server


def stream(server: Server, path: str, rounds: bool | None, **body: Any) -> list[dict[str, Any]]:
    """The chunks of a call, without the last one's [DONE]."""
    options = {"include_usage": True} | ({} if rounds is None else {"include_rounds": rounds})
    shared = {"model": MODEL, "max_tokens": 24, "return_token_ids": True, "stream": True, "stream_options": options}
    with server.client() as client:
        reply = client.post(path, json={**shared, **body})
    assert reply.status_code == 200, reply.text
    *chunks, done = [line.removeprefix("data: ") for line in reply.text.split("\n\n") if line]
    assert done == "[DONE]"
    return [json.loads(chunk) for chunk in chunks]


def check_round(choice: dict[str, Any], text: str, before: int | None) -> None:
    """One chunk's round against its text and its token ids; before: the token that stands before them."""
    told, ids = choice["round"], choice["token_ids"]
    assert "".join(told["texts"]) == text
    assert len(told["texts"]) == len(told["drafted"]) == len(ids)
    accepted = sum(told["drafted"])
    assert told["drafted"] == [True] * accepted + [False] * (len(ids) - accepted)
    assert len(ids) - accepted <= 1
    tree = told["tree"]
    if tree is None:
        assert accepted == 0
        return
    assert [tree["token_ids"][node] for node in tree["path"]] == ids[:accepted]
    assert [tree["parents"][node] for node in tree["path"]] == [0, *tree["path"]][:-1]
    assert tree["token_ids"][0] == before
    assert len(tree["token_ids"]) == len(tree["texts"]) == len(tree["parents"]) <= 16


CALLS = {
    "greedy": {"messages": [{"role": "user", "content": ROSES}], "temperature": 0},
    "sampled": {"messages": [{"role": "user", "content": ROSES}], "temperature": 1.0, "seed": 4},
    "two choices": {"messages": [{"role": "user", "content": ROSES}], "n": 2, "seed": 4},
    "held back": {"messages": [{"role": "user", "content": ROSES}], "temperature": 0, "stop": ["roses look", "zzz"]},
    "characters of several tokens": {"messages": [{"role": "user", "content": "Hi"}], "guided_regex": "(é😀){5}"},
    "no tree": {"messages": [{"role": "user", "content": ROSES}], "speculation": "off"},
    "completions": {"prompt": "The roses", "temperature": 0},
}


@pytest.mark.parametrize("name", CALLS)
def test_rounds_are_the_answer_token_by_token(pair: Server, name: str) -> None:
    body = CALLS[name]
    chunks = stream(pair, "/v1/completions" if "prompt" in body else CHAT, True, **body)
    *pieces, last = chunks
    ids: dict[int, list[int]] = {}
    drafted = trees = 0
    for choice in (choice for chunk in pieces for choice in chunk["choices"]):
        said = ids.setdefault(choice["index"], [])
        check_round(
            choice, choice["text"] if "text" in choice else choice["delta"]["content"], said[-1] if said else None
        )
        assert (len(choice["token_ids"]) == 1 and choice["round"]["tree"] is None) or said, "the first is no round's"
        said += choice["token_ids"]
        drafted += sum(choice["round"]["drafted"])
        trees += choice["round"]["tree"] is not None
    assert sum(map(len, ids.values())) == last["usage"]["completion_tokens"]
    assert (trees > 0) == (name != "no tree")
    assert (drafted > 0) == (name not in ("no tree", "characters of several tokens"))
    if last["metrics"] is not None:
        figures = last["metrics"]["speculative_decoding"]
        # vLLM's count knows of no end inside an accepted run: there a drafted token counts as the bonus.
        ended_inside = pieces[-1]["choices"][0]["round"]["drafted"][-1]
        assert figures["num_accepted_draft_tokens"] == drafted - ended_inside
        assert figures["num_spec_steps"] == trees


def test_nothing_is_told_where_nobody_asks_and_the_words_are_the_same(pair: Server) -> None:
    plain, refused, told = (stream(pair, CHAT, asked, **CALLS["greedy"]) for asked in (None, False, True))
    assert '"round"' in json.dumps(told)
    assert '"round"' not in json.dumps([plain, refused])
    ids = [
        [token for chunk in some for one in chunk["choices"] for token in one["token_ids"]] for some in (plain, told)
    ]
    assert ids[0] == ids[1]
    keys = {"index", "delta", "logprobs", "finish_reason", "token_ids"}
    assert all(set(choice) == keys for chunk in plain for choice in chunk["choices"])


def test_rounds_belong_to_streams(pair: Server) -> None:
    """Without a stream, its options have no effect."""
    body = {"model": MODEL, **CALLS["greedy"]}
    options = {"include_rounds": True, "include_usage": True}
    with pair.client() as client:
        plain, with_options = (client.post(CHAT, json=one).json() for one in (body, body | {"stream_options": options}))
    assert set(with_options) == set(plain)
    assert with_options["choices"] == plain["choices"]
