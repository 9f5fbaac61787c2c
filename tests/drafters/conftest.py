from tests.drafters.blocks import learned
from tests.engine.pairs import learnt, llama

__all__ = ["learned", "learnt", "llama"]
