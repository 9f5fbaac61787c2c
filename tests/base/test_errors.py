import pickle

import pytest

from eyas.base.errors import EyasError, InputError, PlaceError, StageError, UsageError


@pytest.mark.parametrize(
    ("family", "code"), [(EyasError, 1), (UsageError, 2), (InputError, 2), (StageError, 1), (PlaceError, 2)]
)
def test_families_carry_their_exit_code(family, code):
    error = family("3 layers", "2 layers", "pass another head")
    assert str(error) == "found 3 layers; expected 2 layers; do pass another head"
    assert error.exit_code == code
    assert isinstance(error, EyasError)


def test_an_error_survives_the_way_between_processes():
    error = pickle.loads(pickle.dumps(InputError("a", "b", "c")))
    assert type(error) is InputError
    assert (error.found, error.expected, error.do) == ("a", "b", "c")
