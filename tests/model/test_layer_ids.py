import pytest

from eyas.base.errors import InputError
from eyas.formats.aux_layers import to_sglang_ids
from eyas.model.layer_ids import check_aux_layers, choose_aux_layers, default_aux_layers


def test_the_defaults_of_known_models():
    assert default_aux_layers(32) == (2, 16, 29)
    assert default_aux_layers(36) == (2, 18, 33)
    assert default_aux_layers(7) == (2, 3, 4)


def test_too_few_layers_for_a_default():
    with pytest.raises(InputError, match="A target of 6 layers"):
        default_aux_layers(6)


@pytest.mark.parametrize("num_layers", [3, 4, 5, 6, 7, 32])
def test_three_layers_are_chosen_that_the_target_has(num_layers):
    ids = choose_aux_layers(num_layers)
    assert len(check_aux_layers(ids, num_layers)) == 3
    assert ids[-1] < num_layers
    assert to_sglang_ids(ids) is not None
    assert num_layers < 7 or ids == default_aux_layers(num_layers)


def test_two_layers_are_too_few():
    with pytest.raises(InputError, match="A target of 2 layers"):
        choose_aux_layers(2)


@pytest.mark.parametrize("ids", [(), (1, 1, 2), (3, 2, 5), (-1, 2, 3), (1, 2, 9), (1, 2.5, 3), (True, 2, 3)])
def test_wrong_ids(ids):
    with pytest.raises(InputError):
        check_aux_layers(ids, 8)


def test_both_ends_are_allowed():
    assert check_aux_layers((0, 4, 8), 8) == (0, 4, 8)
