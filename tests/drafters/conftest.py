from tests.drafters.blocks import learned, learned_dflash
from tests.engine.pairs import learnt, llama

__all__ = ["learned", "learned_dflash", "learnt", "llama"]
