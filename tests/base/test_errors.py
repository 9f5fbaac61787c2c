import pickle

import pytest

from eyas.base.errors import EyasError, InputError, StageError, StorageError, UsageError


@pytest.mark.parametrize(
    ("family", "code"), [(EyasError, 1), (UsageError, 2), (InputError, 2), (StageError, 1), (StorageError, 2)]
)
def test_families_carry_their_exit_code(family, code):
    error = family("The head has 3 layers and the target 2", "Pass another head")
    assert str(error) == "The head has 3 layers and the target 2. Pass another head."
    assert str(family("The source has no records")) == "The source has no records."
    assert error.exit_code == code
    assert isinstance(error, EyasError)


def test_an_error_survives_the_way_between_processes():
    error = pickle.loads(pickle.dumps(InputError("a", "b")))
    assert type(error) is InputError
    assert (error.problem, error.fix) == ("a", "b")
