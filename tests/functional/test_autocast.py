"""Mixed precision by kind of op: dtypes inside a block, gradients, and captures."""

import numpy as np
import pytest

import fulgurite as fg
from fulgurite.errors import ArgumentError


def rounded(x: fg.Tensor) -> np.ndarray:
    return np.asarray(x.astype("bfloat16").astype("float32").numpy())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_products_and_convolutions_are_of_the_low_dtype_and_norms_and_losses_are_not(
    dtype: str,
) -> None:
    x, w = fg.randn(4, 8), fg.randn(8, 6)
    image, kernel = fg.randn(2, 3, 5, 5), fg.randn(4, 3, 3, 3)
    with fg.autocast(dtype):
        found = {
            "matmul": x @ w, "einsum": fg.einsum("ij,jk->ik", x, w), "dot": fg.tensordot(x, w, 1),
            "linear": fg.nn.Linear(8, 3)(x), "conv": fg.conv2d(image, kernel, fg.randn(4)),
            "transposed": fg.conv_transpose2d(image, fg.randn(3, 2, 2, 2)),
            "batch": fg.batch_norm(fg.conv2d(image, kernel), weight=fg.ones(4),
                                   training=True).output,
            "attention": fg.scaled_dot_product_attention(image, image, image),
        }  # fmt: skip
        wide = {
            "softmax": fg.softmax(x @ w), "logs": fg.log_softmax(x @ w),
            "layer": fg.layer_norm(x @ w, 6), "rms": fg.rms_norm(x @ w, 6),
            "loss": fg.cross_entropy(x @ w, fg.zeros(4, dtype="int32")),
            "mse": fg.mse_loss(x @ w, x @ w),
        }  # fmt: skip
        kept = x.astype("float64") @ w.astype("float64")
    assert {str(y.dtype) for y in found.values()} == {dtype}
    assert {str(y.dtype) for y in wide.values()} == {"float32"}
    assert str(kept.dtype) == "float64"
    assert str((x @ w).dtype) == "float32"


def test_operands_are_rounded_once_and_sums_are_not() -> None:
    x, w = fg.randn(5, 300), fg.randn(300, 4)
    with fg.autocast("bfloat16"):
        y = x @ w
    exact = rounded(x).astype(np.float64) @ rounded(w).astype(np.float64)
    np.testing.assert_allclose(y.astype("float32").numpy(), exact, rtol=2**-8, atol=1e-3)


def test_scores_of_attention_are_not_rounded() -> None:
    q = fg.randn(1, 2, 6, 4) * 8
    with fg.autocast("bfloat16"):
        y = fg.scaled_dot_product_attention(q, q, q)
    a = rounded(q).astype(np.float64)
    scores = a @ a.swapaxes(-1, -2) / 2
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    want = weights / weights.sum(-1, keepdims=True) @ a
    np.testing.assert_allclose(y.astype("float32").numpy(), want, rtol=2e-2, atol=2e-2)


def test_gradients_of_master_weights_are_float32_and_close_to_exact_ones() -> None:
    fg.random.seed(0)  # rounding to bfloat16 may turn a rectifier off
    model = fg.nn.Sequential(fg.nn.Linear(6, 16), fg.nn.ReLU(), fg.nn.Linear(16, 3))
    x, y = fg.randn(32, 6), fg.zeros(32, dtype="int32")
    found = []
    for dtype in ("off", "bfloat16"):
        with fg.autocast("bfloat16", enabled=dtype != "off"):
            loss = fg.cross_entropy(model(x), y)
        assert str(loss.dtype) == "float32"
        loss.backward()
        grads = [p.grad for p in model.parameters()]
        assert all(g is not None and str(g.dtype) == "float32" for g in grads)
        found.append([np.asarray(g.numpy()) for g in grads if g is not None])
        model.zero_grad()
    for exact, low in zip(*found, strict=True):
        assert np.abs(exact - low).max() <= 0.02 * np.abs(exact).max() + 1e-4


def test_a_jitted_function_has_a_capture_for_each_dtype() -> None:
    @fg.jit
    def product(a: fg.Tensor, b: fg.Tensor) -> fg.Tensor:
        return a @ b

    @fg.jit
    @fg.autocast("bfloat16")
    def inside(a: fg.Tensor, b: fg.Tensor) -> fg.Tensor:
        return a @ b

    a, b = fg.randn(3, 4), fg.randn(4, 2)
    for _ in range(3):
        assert str(product(a, b).dtype) == "float32"
        with fg.autocast("bfloat16"):
            assert str(product(a, b).dtype) == "bfloat16"
            with fg.autocast("bfloat16", enabled=False):
                assert str(product(a, b).dtype) == "float32"
        with fg.autocast("float16"):
            assert str(product(a, b).dtype) == "float16"
        assert str(inside(a, b).dtype) == "bfloat16"


def test_a_training_step_under_autocast_learns_with_its_capture_as_without() -> None:
    x, y = fg.randn(32, 4), fg.randint(0, 2, (32,))

    def losses(jitted: bool) -> list[float]:
        fg.random.seed(0)
        model = fg.nn.Sequential(fg.nn.Linear(4, 8), fg.nn.GELU(), fg.nn.Linear(8, 2))
        optimizer = fg.optim.AdamW(model.parameters(), lr=1e-2)

        def step(x: fg.Tensor, y: fg.Tensor) -> fg.Tensor:
            with fg.autocast("bfloat16"):
                loss = fg.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        run = fg.jit(step) if jitted else step
        return [float(run(x, y).numpy()) for _ in range(6)]

    plain, captured = losses(False), losses(True)
    assert plain[-1] < plain[0]
    np.testing.assert_allclose(plain, captured, rtol=1e-3)


@pytest.mark.parametrize("wrong", ["cuda", "float32", "int8", fg.float64])
def test_other_dtypes_are_refused(wrong: object) -> None:
    with pytest.raises(ArgumentError, match="no dtype to compute products in"):
        fg.autocast(wrong)
