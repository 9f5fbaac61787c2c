"""Driver of llama.cpp's server: plain, or EAGLE-3 with a chain of three. One client and connection for each stream."""

import json
import os
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from typing import Any

from protocol import LoadResult, LoadTask, Options, ProtocolServer, free_port

CHAIN = 3
LOAD_S = 120


def command(options: Options, port: int) -> list[str]:
    """Returns the command of the server, without a prompt cache."""
    words = [os.environ["LLAMA_SERVER"], "-m", options.target, "--host", "127.0.0.1", "--port", str(port), "--no-ui"]
    words += ["-t", str(options.threads), "-np", str(options.streams), "-c", str(options.streams * options.context)]
    words += ["--cache-ram", "0", "--spec-draft-threads", str(options.threads)]
    if options.head is not None:
        words += ["-md", options.head, "--spec-type", "draft-eagle3", "--spec-draft-n-max", str(CHAIN)]
    return words


def ask(connection: HTTPConnection, prompt: list[int], length: int) -> dict[str, Any]:
    """Requests one answer of exactly this length."""
    wanted = {"prompt": prompt, "n_predict": length, "ignore_eos": True, "temperature": 0}
    wanted |= {"cache_prompt": False, "return_tokens": True}
    connection.request("POST", "/completion", json.dumps(wanted), {"Content-Type": "application/json"})
    return json.loads(connection.getresponse().read())


def wait_until_loaded(port: int, server: subprocess.Popen[bytes]) -> None:
    """Waits until the server accepts requests. Raises AssertionError after LOAD_S seconds."""
    until_s = time.monotonic() + LOAD_S
    while time.monotonic() < until_s and server.poll() is None:
        connection = HTTPConnection("127.0.0.1", port)
        try:
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        finally:
            connection.close()
        time.sleep(0.2)
    raise AssertionError("llama-server does not answer")


def main() -> None:
    messages, options, port = ProtocolServer(), Options.read(), free_port()
    server = subprocess.Popen(command(options, port), stdin=subprocess.DEVNULL)
    wait_until_loaded(port, server)

    def run(work: LoadTask) -> LoadResult:
        waiting = iter(range(len(work.prompts)))  # next() is atomic, so threads can share it

        def stream(connection: HTTPConnection) -> dict[int, dict[str, Any]]:
            return {index: ask(connection, work.prompts[index], work.lengths[index]) for index in waiting}

        connections = [HTTPConnection("127.0.0.1", port) for _ in range(work.streams)]
        began_s = time.perf_counter()
        with ThreadPoolExecutor(work.streams) as pool:
            found = {index: answer for some in pool.map(stream, connections) for index, answer in some.items()}
        seconds = time.perf_counter() - began_s
        for connection in connections:
            connection.close()
        answers = [found[index]["tokens"] for index in range(len(found))]
        if options.head is None:
            return LoadResult(answers, seconds)
        accepted = sum(answer["timings"].get("draft_n_accepted", 0) for answer in found.values())
        # A round yields its accepted tokens and one token of the target; the prefill yields the first of an answer.
        return LoadResult(answers, seconds, accepted, sum(len(answer) - 1 for answer in answers) - accepted)

    try:
        messages.serve("llama.cpp", run)
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()


if __name__ == "__main__":
    main()
