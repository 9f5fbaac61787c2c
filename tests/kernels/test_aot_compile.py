"""Compiled forwards: the same words, made once, and nothing but a reason where there can be none."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.engine.small import CONTEXT, Spoken, drive, random_draft, replay_engine, speak, tokens
from tests.model.families import family_target

from eyas.drafters.eagle3 import Eagle3Spec
from eyas.engine.engine import Engine
from eyas.kernels import aot_compile as compiled
from eyas.kernels.aot_compile import CompileError, compile_pair
from eyas.kernels.compiled_package import attend_to_text
from eyas.kernels.cpu_linear import pack_linears
from eyas.model.head import Head
from eyas.tree.shape import TreeShape

TREE = TreeShape(4, 3, 12)

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache of this module's own, so that what is compiled is what was written just now."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        # The C++ that calls the kernels; the kernels themselves keep -O3. Compiling is most of this module's time.
        patch.setenv("AOT_INDUCTOR_COMPILE_WRAPPER_OPT_LEVEL", "O0")
        yield compiled.cache_directory()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return family_target(tmp_path_factory.mktemp("target"), "mistral", layers=5)


@pytest.fixture
def spoken(path: Path) -> Spoken:
    return speak(path)


@pytest.fixture
def draft(spoken: Spoken) -> Eagle3Spec:
    return random_draft(spoken.target, TREE)


@pytest.fixture(scope="module")
def stored(cache: Path, path: Path) -> list[Path]:
    """The packages of the pair, compiled."""
    one = speak(path)
    assert not compile_pair(one.target, random_draft(one.target, TREE).head, stored_only=True)
    assert one.target.compiled_forward is None
    assert compile_pair(one.target, random_draft(one.target, TREE).head)
    return sorted(cache.glob("forward-*.pt2"))


def refuse(*_: object) -> None:
    raise AssertionError("nothing is to be compiled here")


def test_the_same_words(stored: list[Path], spoken: Spoken, draft: Eagle3Spec, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loaded, not compiled again: prompts of one token to hundreds, without a head and with trees."""
    assert len(stored) == 2
    monkeypatch.setattr(compiled, "_compile_in_subprocess", refuse)
    assert compile_pair(spoken.target, draft.head, stored_only=True)
    monkeypatch.setattr(type(spoken.target.decoder), "forward", refuse)
    assert tokens(drive(Engine(spoken.target, (), 3, CONTEXT), spoken.requests)) == spoken.answers
    assert tokens(drive(Engine(spoken.target, [draft], 3, CONTEXT), spoken.requests)) == spoken.answers
    assert tokens(drive(replay_engine(spoken, TREE, 3), spoken.requests)) == spoken.answers


def test_inputs_may_lie_anyhow(stored: list[Path], spoken: Spoken, draft: Eagle3Spec) -> None:
    """Rows that share their memory, as those of a tree's first level do."""
    assert stored
    head, rows = draft.head, compiled.PackedAttention(attend_to_text)
    embeds_1TD, hidden_1TD, positions_1T = compiled.head_inputs(head, 4)
    shared_1TD = hidden_1TD[:, :1].expand(-1, 4, -1)
    turned_1TD = embeds_1TD.transpose(1, 2).contiguous().transpose(1, 2)
    with torch.inference_mode():
        wanted = head.step_with_logits(embeds_1TD, shared_1TD, positions_1T, rows)
        assert compile_pair(spoken.target, head, stored_only=True)
        found = head.step_with_logits(turned_1TD, shared_1TD, positions_1T, rows)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_heads_of_one_form_share_a_package(stored: list[Path], spoken: Spoken, draft: Eagle3Spec) -> None:
    """The package has no weights. Each head computes with its own."""
    assert stored
    other = Head.init(draft.head.config, seed=5)
    pack_linears(other)
    attend = compiled.PackedAttention(attend_to_text)
    embeds_1TD, hidden_1TD, positions_1T = compiled.head_inputs(other, 4)
    with torch.inference_mode():
        wanted = other.step_with_logits(embeds_1TD, hidden_1TD, positions_1T, attend)
        for head in (draft.head, other):
            assert compile_pair(spoken.target, head, stored_only=True)
        found = other.step_with_logits(embeds_1TD, hidden_1TD, positions_1T, attend)
        foreign = draft.head.step_with_logits(embeds_1TD, hidden_1TD, positions_1T, attend)
    for one, another, wrong in zip(found, wanted, foreign, strict=True):
        torch.testing.assert_close(one, another, atol=1e-4, rtol=1e-4)
        assert not torch.allclose(one, wrong, atol=1e-2)


def test_weights_are_not_copied(stored: list[Path], spoken: Spoken) -> None:
    """The package uses the memory of the target."""
    assert stored
    assert compile_pair(spoken.target, None, stored_only=True)
    attend = compiled.PackedAttention(attend_to_text)
    ids_1T, positions_1T = compiled.target_inputs(spoken.target, 3)
    with torch.inference_mode():
        before = spoken.target.forward(ids_1T, positions_1T, attend).hidden_BTD
        spoken.target.embedding.weight[:] = 0
        after = spoken.target.forward(ids_1T, positions_1T, attend).hidden_BTD
    assert not torch.equal(before, after)


def test_a_compiled_head_cannot_be_cast(stored: list[Path], spoken: Spoken, draft: Eagle3Spec) -> None:
    assert stored
    assert compile_pair(spoken.target, draft.head, stored_only=True)
    with pytest.raises(TypeError, match="cast or moved"):
        draft.head.to(torch.float64)


def test_a_damaged_package_is_made_again(
    stored: list[Path], spoken: Spoken, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (target,) = [path for path in stored if "target" in path.name]
    whole = target.read_bytes()
    target.write_bytes(whole[: len(whole) // 2])
    made = []

    def again(job: compiled._CompileJob, place: Path) -> None:
        made.append(job)
        Path(job.package).write_bytes(whole)

    monkeypatch.setattr(compiled, "_compile_in_subprocess", again)
    assert compile_pair(spoken.target, None)
    assert len(made) == 1
    assert target.read_bytes() == whole


def test_a_package_that_computes_something_else_is_not_used(
    stored: list[Path], spoken: Spoken, draft: Eagle3Spec, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stored
    for norm in spoken.target.decoder.modules():
        if hasattr(norm, "variance_epsilon"):
            monkeypatch.setattr(norm, "variance_epsilon", 1.0)  # what the digest of the files does not see
    with pytest.raises(CompileError, match="differs from the uncompiled one"):
        compile_pair(spoken.target, draft.head, stored_only=True)
    assert spoken.target.compiled_forward is None


def test_where_nothing_can_be_compiled(spoken: Spoken, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("CXX", "no-such-compiler")
        with pytest.raises(CompileError, match="no no-such-compiler on the PATH"):
            compile_pair(spoken.target, None)


def test_other_dtypes_are_not_compiled(spoken: Spoken) -> None:
    spoken.target.model.double()
    with pytest.raises(CompileError, match="float64"):
        compile_pair(spoken.target, None)


def test_a_forward_that_does_not_export(tmp_path: Path, cache: Path) -> None:
    """Llama 4 asks its positions on the host: the reason is told, and nothing is left behind."""
    target = compiled.Target.load(family_target(tmp_path, "llama4", layers=4), torch.float32, (1, 2, 3))
    before = set(cache.rglob("*"))
    with pytest.raises(CompileError, match="does not compile"):
        compile_pair(target, None)
    assert target.compiled_forward is None
    assert set(cache.rglob("*")) == before
