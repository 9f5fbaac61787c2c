from tests.train.features import features, target

__all__ = ["features", "target"]
