"""Reads head directories of other projects, writes them for SGLang and vLLM, and checks heads against targets."""
