"""Driver of OpenVINO GenAI on a CPU with continuous batching: plain, or EAGLE-3 with a chain.

Keys and values have the precision of the arithmetic. Its "tree search" fails with eight requests, so this driver runs
chains.
"""
# pyright: reportMissingImports=false

from dataclasses import replace

from protocol import LoadResult, LoadTask, Options, ProtocolServer, run_closed_loop

server, options = ProtocolServer(), Options.read()

import numpy as np  # noqa: E402
import openvino as ov  # noqa: E402
import openvino_genai as genai  # noqa: E402

MEMORY_GB = 2


def main() -> None:
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = MEMORY_GB
    scheduler.max_num_seqs = options.streams
    scheduler.enable_prefix_caching = False
    precision = {"bfloat16": "bf16", "float32": "f32"}[options.dtype]
    properties = {
        "INFERENCE_PRECISION_HINT": precision,
        "KV_CACHE_PRECISION": precision,
        "INFERENCE_NUM_THREADS": options.threads,
        "ENABLE_CPU_PINNING": False,  # the other engines do not pin threads to cores either
    }
    speculation = {}
    if options.head is not None:
        speculation["draft_model"] = genai.draft_model(options.head, "CPU", **properties)
    pipeline = genai.ContinuousBatchingPipeline(options.target, scheduler, "CPU", properties | speculation)

    def run(work: LoadTask) -> LoadResult:
        under_way = {}
        answers: list[list[int]] = [[] for _ in work.prompts]
        accepted, rounds = 0, 0

        def send(index: int) -> None:
            wanted = genai.GenerationConfig()
            wanted.max_new_tokens = work.lengths[index]
            wanted.ignore_eos = True
            wanted.do_sample = False
            if options.head is not None:
                wanted.num_assistant_tokens = options.chain
            ids_1T = ov.Tensor(np.asarray([work.prompts[index]], dtype=np.int64))
            under_way[index] = pipeline.add_request(index, ids_1T, wanted)

        def step() -> dict[int, list[int]]:
            nonlocal accepted, rounds
            pipeline.step()
            ended = {}
            for index, handle in list(under_way.items()):
                fresh: list[int] = []
                while handle.can_read():
                    for output in handle.read().values():
                        fresh += output.generated_ids
                if fresh and answers[index]:  # the first token comes from the prefill
                    accepted, rounds = accepted + len(fresh) - 1, rounds + 1
                answers[index] += fresh
                if handle.get_status() != genai.GenerationStatus.RUNNING:
                    del under_way[index]
                    ended[index] = answers[index]
            return ended

        done = run_closed_loop(work, send, step)
        return done if options.head is None else replace(done, accepted=accepted, rounds=rounds)

    server.serve(f"openvino-genai {genai.__version__}", run)


if __name__ == "__main__":
    main()
