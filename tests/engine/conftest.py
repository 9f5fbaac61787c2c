from tests.engine.pairs import learnt, llama, shallow, shallow_target, spoken

__all__ = ["learnt", "llama", "shallow", "shallow_target", "spoken"]
