"""The mask, drawn: under the text of a row a caret stands below every supervised character."""

from dataclasses import replace

import pytest
from tests.chat.templates import CHATML, DEFAULT_SYSTEM, LLAMA2, LLAMA3, QWEN3, QWEN3_FIELDS, R1
from tests.tiny import EMBEDDED_TEMPLATE, tiny_tokenizer

from eyas.base.errors import InputError
from eyas.chat.conversation import Conversation, Message, ToolCall, Turn
from eyas.chat.render import render, render_answer, render_prompt

ONE = [("user", "hi"), ("assistant", "yo")]
TWO = [("system", "S"), ("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")]
TEMPLATES = {
    "embedded": (EMBEDDED_TEMPLATE, "<|begin|>", "<|end|>"),
    "chatml": (CHATML, "<|begin|>", "<|im_end|>"),
    "default system": (DEFAULT_SYSTEM, "<|begin|>", "<|im_end|>"),
    "llama3": (LLAMA3, "<|begin_of_text|>", "<|eot_id|>"),
    "qwen3": (QWEN3, "<|begin|>", "<|im_end|>"),
    "llama2": (LLAMA2, "<|begin|>", "<|end|>"),
}


def conversation(pairs, turns=()):
    return Conversation("c:0", "c", tuple(Message(role, text) for role, text in pairs), {}, {}, tuple(turns))


def draw(row, tokenizer):
    """Two lines: every token's text (line breaks as /), and carets under the supervised ones."""
    texts = [tokenizer.decode([token]).replace("\n", "/") for token in row.ids]
    carets = [("^" if flag else " ") * len(text) for text, flag in zip(texts, row.loss_mask, strict=True)]
    return ["".join(texts), "".join(carets).rstrip()]


def drawn(name, pairs):
    tokenizer = tiny_tokenizer(*TEMPLATES[name])
    return [draw(row, tokenizer) for row in render(conversation(pairs), tokenizer)]


def test_embedded():
    assert drawn("embedded", TWO) == [
        [
            "<|begin|><|system|>S<|end|><|user|>a<|end|><|assistant|>b<|end|><|user|>c<|end|><|assistant|>d<|end|>",
            "                                                        ^^^^^^^^                             ^^^^^^^^",
        ]
    ]


def test_chatml_leaves_the_line_break_behind_the_end_alone():
    assert drawn("chatml", ONE) == [
        [
            "<|im_start|>user/hi<|im_end|>/<|im_start|>assistant/yo<|im_end|>/",
            "                                                    ^^^^^^^^^^^^",
        ]
    ]


def test_default_system_prompt_is_not_supervised():
    assert drawn("default system", ONE) == [
        [
            "<|im_start|>system/Be kind.<|im_end|>/<|im_start|>user/hi<|im_end|>/<|im_start|>assistant/yo<|im_end|>/",
            "                                                                                          ^^^^^^^^^^^^",
        ]
    ]


def test_llama3_has_one_begin_of_text_and_unsupervised_headers():
    assert drawn("llama3", ONE) == [
        [
            "<|begin_of_text|><|start_header_id|>user<|end_header_id|>//hi<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>//yo<|eot_id|>",
            " " * 71 + "                                               ^^^^^^^^^^^^",
        ]
    ]


def test_llama2_without_generation_prompt():
    assert drawn("llama2", [*ONE, *ONE]) == [
        [
            "<|begin|>[INST] hi [/INST] yo <|end|>/<|begin|>[INST] hi [/INST] yo <|end|>/",
            "                          ^^^^^^^^^^^                           ^^^^^^^^^^^",
        ]
    ]


def test_a_template_that_strips_earlier_reasoning_gets_one_row_per_turn():
    pairs = [("user", "a"), ("assistant", "<think>\nt\n</think>\nb"), ("user", "c"), ("assistant", "d")]
    tokenizer = tiny_tokenizer(*TEMPLATES["qwen3"])
    rows = render(conversation(pairs), tokenizer)
    assert [row.turn for row in rows] == [0, 1]
    assert [draw(row, tokenizer) for row in rows] == [
        [
            "<|im_start|>user/a<|im_end|>/<|im_start|>assistant/<think>/t/</think>/b<|im_end|>/",
            "                                                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^",
        ],
        [
            "<|im_start|>user/a<|im_end|>/<|im_start|>assistant/b<|im_end|>/"
            "<|im_start|>user/c<|im_end|>/<|im_start|>assistant/<think>//</think>/d<|im_end|>/",
            " " * 63 + "                                                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^",
        ],
    ]


def test_a_template_that_keeps_turns_gets_one_row():
    tokenizer = tiny_tokenizer(*TEMPLATES["chatml"])
    rows = render(conversation(TWO), tokenizer)
    assert [row.turn for row in rows] == [None]
    assert tokenizer.decode([i for i, m in zip(rows[0].ids, rows[0].loss_mask, strict=True) if m]) == (
        "b<|im_end|>d<|im_end|>"
    )


def test_special_tokens_spelt_in_the_answer_do_not_end_it():
    assert drawn("chatml", [("user", "hi"), ("assistant", "x<|im_end|>y")]) == [
        [
            "<|im_start|>user/hi<|im_end|>/<|im_start|>assistant/x<|im_end|>y<|im_end|>/",
            "                                                    ^^^^^^^^^^^^^^^^^^^^^^",
        ]
    ]


def test_an_answer_that_would_merge_with_the_prompt_stands_behind_the_served_ids():
    # "assistant\n" + "\nyo": tokenised in one go, the two line breaks are one token that serving never feeds.
    tokenizer = tiny_tokenizer(*TEMPLATES["chatml"])
    pairs = [("user", "hi"), ("assistant", "\nyo")]
    row = render(conversation(pairs), tokenizer)[0]
    served = render_prompt([Message("user", "hi")], tokenizer)
    assert row.ids[: len(served)] == served
    assert draw(row, tokenizer) == [
        "<|im_start|>user/hi<|im_end|>/<|im_start|>assistant//yo<|im_end|>/",
        "                                                    ^^^^^^^^^^^^^",
    ]


def test_without_end_token_everything_behind_the_prompt_is_supervised():
    tokenizer = tiny_tokenizer("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}")
    assert draw(render(conversation(ONE), tokenizer)[0], tokenizer) == [
        "[user]hi[assistant]yo",
        "        ^^^^^^^^^^^^^",
    ]


@pytest.mark.parametrize("name", TEMPLATES)
def test_served_prompt_ids_are_a_prefix_of_the_training_ids(name):
    tokenizer = tiny_tokenizer(*TEMPLATES[name])
    pairs = [("user", "a"), ("assistant", "<think>t</think>b"), ("user", "ü\n\nc"), ("assistant", "\n\nd")]
    rows = render(conversation(pairs), tokenizer)
    for turn, place in enumerate((1, 3)):
        served = render_prompt(conversation(pairs[:place]).messages, tokenizer)
        row = rows[0] if rows[0].turn is None else rows[turn]
        assert row.ids[: len(served)] == served
        assert row.loss_mask[len(served)]
        assert not row.loss_mask[len(served) - 1]
        # Independent of our text-then-encode path: what transformers itself feeds to generate().
        fed = tokenizer.apply_chat_template(
            [{"role": role, "content": text} for role, text in pairs[:place]], add_generation_prompt=True
        )
        assert served == fed["input_ids"]  # pyright: ignore[reportCallIssue, reportArgumentType]


def test_generated_ids_are_used_as_they_are():
    tokenizer = tiny_tokenizer()
    newline = tokenizer.encode("\n", add_special_tokens=False)[0]
    end = tokenizer.convert_tokens_to_ids("<|end|>")
    assert isinstance(end, int)
    answer = (newline, newline, end)  # as text, two line breaks are one token
    turn = Turn(answer, (True, True, True), "stop")
    served = render_prompt([Message("user", "hi")], tokenizer)
    one = conversation([("user", "hi"), ("assistant", "\n\n")], [turn])
    assert render(one, tokenizer)[0].ids == [*served, *answer]
    assert render(replace(one, turns=()), tokenizer)[0].ids != [*served, *answer]

    # In a second turn serving feeds the text tokenised anew, so the turns need a row each.
    pairs = [("user", "hi"), ("assistant", "\n\n"), ("user", "c"), ("assistant", "\n\n")]
    rows = render(conversation(pairs, [turn, turn]), tokenizer)
    assert [row.turn for row in rows] == [0, 1]
    assert rows[1].ids == render_prompt(conversation(pairs[:3]).messages, tokenizer) + list(answer)
    assert [sum(row.loss_mask) for row in rows] == [3, 3]


def test_a_cut_answer_teaches_no_end():
    tokenizer = tiny_tokenizer()
    ids = tuple(tokenizer.encode("b", add_special_tokens=False))
    end = tuple(tokenizer.encode("d<|end|>", add_special_tokens=False))
    turns = [Turn(ids, (True,), "length"), Turn(end, (True, True), "stop")]
    rows = render(conversation(TWO, turns), tokenizer)
    assert [draw(row, tokenizer) for row in rows] == [
        [
            "<|begin|><|system|>S<|end|><|user|>a<|end|><|assistant|>b<|end|><|user|>c<|end|><|assistant|>d<|end|>",
            "                                                        ^                                    ^^^^^^^^",
        ]
    ]


@pytest.mark.parametrize(
    ("template", "match"),
    [
        ("{% for m in messages %}{% if m.role == 'assistant' %}{{ m.content }}{% endif %}{% endfor %}", "all true"),
        ("{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}", "all false"),
        (
            "{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}",
            "does not put the answer of conversation c:0 after its generation prompt",
        ),
        ("{{ raise_exception('no system here') }}", "no system here"),
        (None, "has no chat template"),
        ("  ", "has no chat template"),
    ],
)
def test_templates_that_cannot_be_trained_on_are_refused(template, match):
    with pytest.raises(InputError, match=match):
        render(conversation(ONE), tiny_tokenizer(template))


def test_a_conversation_without_answer_is_refused():
    with pytest.raises(InputError, match="c:0 has no answer"):
        render(conversation(ONE[:1]), tiny_tokenizer())


# --- answers of which only the text is known -------------------------------------------------------------------------

ASKED = (Message("user", "hi"),)
CALLS = (ToolCall("c1", "add", '{"b": 2, "a": 1}'), ToolCall("c2", "cut", "{"))


def text_of_answer(template, message, ended=True):
    tokenizer = tiny_tokenizer(template, "<|begin|>", "<|im_end|>" if "im_end" in template else "<|end|>")
    ids = render_answer(ASKED, message, tokenizer, ended)
    return None if ids is None else tokenizer.decode(ids)


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_ids_of_a_text_are_those_that_a_rendered_row_supervises(name):
    tokenizer = tiny_tokenizer(*TEMPLATES[name])
    row = render(conversation(ONE), tokenizer)[0]
    ids = render_answer(ASKED, Message("assistant", "yo"), tokenizer, has_end_of_turn=True)
    assert ids == [token for token, flag in zip(row.ids, row.loss_mask, strict=True) if flag]
    cut = render_answer(ASKED, Message("assistant", "yo"), tokenizer, has_end_of_turn=False)
    assert cut is not None
    end = tokenizer.eos_token
    assert tokenizer.decode(cut) == f"{tokenizer.decode(ids or [])}".replace(f" {end}", "").replace(f"{end}", "")


def test_reasoning_and_calls_are_rendered_as_the_template_writes_them():
    message = Message("assistant", "yo", reasoning="hm", tool_calls=CALLS)
    expected = '<think>\nhm\n</think>\nyo<call>add {"b": 2, "a": 1}<call>cut "{"'
    assert text_of_answer(QWEN3_FIELDS, message) == f"{expected}<|im_end|>"
    assert text_of_answer(QWEN3_FIELDS, message, ended=False) == expected


def test_an_answer_that_was_cut_while_it_reasoned_ends_there():
    assert text_of_answer(QWEN3_FIELDS, Message("assistant", "", reasoning="hm hm"), ended=False) == "<think>\nhm hm"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (CHATML, Message("assistant", "yo", reasoning="hm")),
        (CHATML, Message("assistant", "yo", tool_calls=CALLS)),
        (R1, Message("assistant", "yo", reasoning="hm")),
        (R1, Message("assistant", "yo")),
    ],
)
def test_what_the_template_does_not_write_cannot_be_rendered(template, message):
    assert text_of_answer(template, message) is None
    assert text_of_answer(template, message, ended=False) is None


def test_a_template_that_drops_earlier_reasoning_gets_one_row_per_turn_from_generated_ids():
    """What was generated with its reasoning is supervised; the next turn is behind the prompt that was served."""
    tokenizer = tiny_tokenizer(QWEN3_FIELDS, "<|begin|>", "<|im_end|>")
    asked, reasoned = Message("user", "hi"), Message("assistant", "yo", reasoning="hm")
    ids = render_answer([asked], reasoned, tokenizer, has_end_of_turn=True)
    assert ids is not None
    turns = tuple(Turn(tuple(ids), (True,) * len(ids), "stop") for _ in range(2))
    rows = render(Conversation("c:0", "c", (asked, reasoned, asked, reasoned), {}, {}, turns), tokenizer)
    assert [row.turn for row in rows] == [0, 1]
    first = "<|im_start|>user/hi<|im_end|>/<|im_start|>assistant/"
    answered = "<think>/hm/</think>/yo<|im_end|>"
    drawn = [draw(row, tokenizer) for row in rows]
    assert drawn[0] == [first + answered, " " * len(first) + "^" * len(answered)]
    before = first + "yo<|im_end|>/" + first
    assert drawn[1] == [before + answered, " " * len(before) + "^" * len(answered)]
