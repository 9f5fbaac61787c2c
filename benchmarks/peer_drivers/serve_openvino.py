"""Serves a target with OpenVINO GenAI over HTTP: chat completions as a stream, greedy, with OpenVINO's own defaults.

    python serve_openvino.py EXPORTED TARGET [--head EXPORTED] [--chain N] [--slots N] --port N

EXPORTED directories come from optimum-cli; TARGET has the tokenizer and the chat template. OpenVINO GenAI has no HTTP
server. This one has only the routes that `eyas bench --url` calls. One thread runs the pipeline. Each connection has a
thread, which sends the new tokens.
"""
# pyright: reportMissingImports=false

import argparse
import json
import queue
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai
from transformers import AutoTokenizer

MEMORY_GB = 2
BFLOAT16 = {"INFERENCE_PRECISION_HINT": "bf16", "KV_CACHE_PRECISION": "bf16"}


class Pipeline:
    """The pipeline and the thread that steps it."""

    def __init__(self, parsed: argparse.Namespace) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(parsed.target)
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size, scheduler.max_num_seqs = MEMORY_GB, parsed.slots
        properties: dict[str, Any] = dict(BFLOAT16)
        if parsed.head is not None:
            properties["draft_model"] = genai.draft_model(parsed.head, "CPU", **BFLOAT16)
        self._chain = None if parsed.head is None else parsed.chain
        self._pipeline = genai.ContinuousBatchingPipeline(parsed.exported, scheduler, "CPU", properties)
        self._waiting: queue.Queue[tuple[list[int], int, queue.Queue[list[int] | str]]] = queue.Queue()
        threading.Thread(target=self._work, daemon=True).start()

    def send(self, ids: list[int], max_tokens: int) -> "queue.Queue[list[int] | str]":
        """Queues a request. Returns a queue of its new tokens, and of its finish reason at the end."""
        tokens: queue.Queue[list[int] | str] = queue.Queue()
        self._waiting.put((ids, max_tokens, tokens))
        return tokens

    def _work(self) -> None:
        running: dict[int, tuple[Any, int, queue.Queue[list[int] | str]]] = {}
        number = 0
        while True:
            while not running or not self._waiting.empty():
                ids, max_tokens, tokens = self._waiting.get()
                wanted = genai.GenerationConfig()
                wanted.max_new_tokens, wanted.do_sample = max_tokens, False
                wanted.eos_token_id = self.tokenizer.eos_token_id
                if self._chain is not None:
                    wanted.num_assistant_tokens = self._chain
                ids_1T = ov.Tensor(np.asarray([ids], dtype=np.int64))
                running[number] = (self._pipeline.add_request(number, ids_1T, wanted), max_tokens, tokens)
                number += 1
            self._pipeline.step()
            for key, (handle, room, tokens) in list(running.items()):
                fresh: list[int] = []
                while handle.can_read():
                    for output in handle.read().values():
                        fresh += output.generated_ids
                if fresh:
                    tokens.put(fresh)
                running[key] = (handle, room - len(fresh), tokens)
                if handle.get_status() != genai.GenerationStatus.RUNNING:
                    del running[key]
                    tokens.put("length" if room <= len(fresh) else "stop")


class Handler(BaseHTTPRequestHandler):
    """Answers /health, /v1/models and streamed /v1/chat/completions."""

    protocol_version = "HTTP/1.1"
    pipeline: Pipeline

    def do_GET(self) -> None:
        """Returns the list of models, also to say that the server is ready."""
        body = json.dumps({"object": "list", "data": [{"id": "target", "object": "model"}]}).encode()
        is_known = self.path in ("/health", "/v1/models")
        self.send_response(200 if is_known else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        """Streams a chat completion."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        tokenizer = self.pipeline.tokenizer
        text = tokenizer.apply_chat_template(asked["messages"], tokenize=False, add_generation_prompt=True)
        prompt = tokenizer(text, add_special_tokens=False)["input_ids"]
        tokens = self.pipeline.send(prompt, asked["max_tokens"])
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        ids: list[int] = []
        sent = ""
        while not isinstance(fresh := tokens.get(), str):
            ids += fresh
            whole = tokenizer.decode(ids, skip_special_tokens=True)
            if not whole.endswith("\N{REPLACEMENT CHARACTER}"):
                self._send_event({"content": whole[len(sent) :]}, None)
                sent = whole
        self._send_event({}, fresh, {"prompt_tokens": len(prompt), "completion_tokens": len(ids)})
        self._send_chunk(b"data: [DONE]\n\n")
        self._send_chunk(b"")

    def _send_event(self, delta: dict[str, str], finish: str | None, usage: dict[str, int] | None = None) -> None:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        event = {"object": "chat.completion.chunk", "choices": [choice], "usage": usage}
        self._send_chunk(f"data: {json.dumps(event)}\n\n".encode())

    def _send_chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def log_message(self, *_: Any) -> None:
        """Logs nothing."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("exported")
    parser.add_argument("target")
    parser.add_argument("--head")
    parser.add_argument("--chain", type=int, default=3)
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--port", type=int, required=True)
    parsed = parser.parse_args()
    Handler.pipeline = Pipeline(parsed)
    ThreadingHTTPServer(("127.0.0.1", parsed.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
