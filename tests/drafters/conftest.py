from tests.engine.pairs import learnt, llama

__all__ = ["learnt", "llama"]
