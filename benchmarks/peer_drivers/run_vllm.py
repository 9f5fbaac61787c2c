"""Driver of vLLM on a CPU, in this process: plain, or EAGLE-3 or DFlash with a chain. vLLM supports only chains.

benchmarks/compare_peers.py preloads Intel's OpenMP; without it vLLM warns that speculation is slower. It also disables
vLLM's engine process, so that a step sends no message to another process.
"""
# pyright: reportMissingImports=false

from dataclasses import replace

from protocol import LoadResult, LoadTask, Options, ProtocolServer, run_closed_loop

server, options = ProtocolServer(), Options.read()

from vllm import EngineArgs, LLMEngine, SamplingParams, __version__  # noqa: E402

MEMORY_BYTES = 2 << 30


def counted(engine: LLMEngine, name: str) -> int:
    """Returns the value of a speculation counter of vLLM; 0 without speculation."""
    return sum(metric.value for metric in engine.get_metrics() if metric.name == f"vllm:spec_decode_{name}")


def main() -> None:
    speculation = None
    if options.head is not None:
        speculation = {"method": options.method, "model": options.head, "num_speculative_tokens": options.chain}
    # vLLM needs both for DFlash on a CPU (vllm #44029).
    settings = {"enforce_eager": True, "enable_prefix_caching": False} if options.method == "dflash" else {}
    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=options.target,
            dtype=options.dtype,
            max_model_len=options.context,
            max_num_seqs=options.streams,
            kv_cache_memory_bytes=MEMORY_BYTES,
            speculative_config=speculation,
            skip_tokenizer_init=True,
            generation_config="vllm",
            **settings,
        )
    )

    def run(work: LoadTask) -> LoadResult:
        engine.reset_prefix_cache()
        accepted, rounds = counted(engine, "num_accepted_tokens"), counted(engine, "num_drafts")

        def send(index: int) -> None:
            length = work.lengths[index]
            wanted = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True, detokenize=False)
            engine.add_request(str(index), {"prompt_token_ids": work.prompts[index]}, wanted)

        def step() -> dict[int, list[int]]:
            ended = (output for output in engine.step() if output.finished)
            return {int(output.request_id): list(output.outputs[0].token_ids) for output in ended}

        done = run_closed_loop(work, send, step)
        if options.head is None:
            return done
        accepted = counted(engine, "num_accepted_tokens") - accepted
        return replace(done, accepted=accepted, rounds=counted(engine, "num_drafts") - rounds)

    server.serve(f"vllm {__version__}", run)


if __name__ == "__main__":
    main()
