"""The features of a text, quantized and copied on a CUDA device, against those of the CPU."""

import pytest
import torch

from eyas.features.quantize import StoredDtype

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", ["fp8", "int8", "bfloat16"])
def test_copied_features_equal_those_of_the_cpu(dtype: StoredDtype):
    from eyas.features.extract import ExtractedFeatures, launch_quantization

    aux_TL, hidden_UD = torch.randn(40, 3 * 64).bfloat16(), torch.randn(30, 64).bfloat16()
    wanted = launch_quantization(ExtractedFeatures(0, 0, aux_TL, hidden_UD), dtype, 5)("row")
    reads = [launch_quantization(ExtractedFeatures(0, n, aux_TL.cuda(), hidden_UD.cuda()), dtype, 5) for n in range(9)]
    for read in reads:
        for found, expected in zip(read("row"), wanted, strict=True):
            for part, other in zip(found, expected, strict=True):
                assert part.device.type == "cpu"
                assert not part.is_pinned()
                assert torch.equal(part.view(torch.uint8), other.view(torch.uint8))


def test_a_feature_that_is_not_finite_names_its_row():
    from eyas.base.errors import StageError
    from eyas.features.extract import ExtractedFeatures, launch_quantization

    aux_TL, hidden_UD = torch.randn(4, 3 * 64).cuda(), torch.full((2, 64), float("nan")).cuda()
    read = launch_quantization(ExtractedFeatures(0, 0, aux_TL, hidden_UD), "fp8")
    with pytest.raises(StageError, match="conversation a7"):
        read("a7")
