"""Writes and reads tool calls with openai-harmony. Runs in the environment of the clients; `tool_texts.py` calls it.

python harmony.py < cases > texts              # JSON lines: {"tools", "calls"} -> text
python harmony.py --parse < texts > calls      # JSON lines: {"text"} -> [[name, arguments], ...]
"""

import json
import sys
from typing import Any

from openai_harmony import (  # pyright: ignore[reportMissingImports]
    Conversation,
    HarmonyEncodingName,
    Message,
    Role,
    load_harmony_encoding,
)

FUNCTIONS = "functions."
START = "<|start|>assistant"


def render(encoding: Any, calls: list[Any]) -> str:
    """Returns what the model writes behind the beginning of an answer, which the prompt has."""
    messages = []
    for name, arguments in calls:
        message = Message.from_role_and_content(Role.ASSISTANT, json.dumps(arguments))
        call = message.with_channel("commentary").with_recipient(FUNCTIONS + name)
        messages.append(call.with_content_type("<|constrain|>json"))
    conversation = Conversation.from_messages(messages)
    return encoding.decode(encoding.render_conversation_for_training(conversation)).removeprefix(START)


def parse(encoding: Any, text: str) -> list[tuple[str, str]]:
    """Returns the calls of an answer."""
    ids = encoding.encode(text, allowed_special="all")
    messages = encoding.parse_messages_from_completion_tokens(ids, Role.ASSISTANT)
    calls = [message for message in messages if (message.recipient or "").startswith(FUNCTIONS)]
    return [(call.recipient.removeprefix(FUNCTIONS), call.content[0].text) for call in calls]


def main() -> None:
    encoding = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
    for line in sys.stdin:
        record = json.loads(line)
        result = parse(encoding, record["text"]) if "--parse" in sys.argv else render(encoding, record["calls"])
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
