"""ViT and CLIP: images in squares, each a vector, read by an encoder like text.

In: images (batch, channels, height, width), scaled as the model wants them. Out: of ViT a vector
for each square, and scores of classes; of CLIP vectors of images and texts that can be compared.
"""

from __future__ import annotations

from collections.abc import Callable

import fulgurite as fg

from ..io.files import Path, Refusal, reading
from .blocks import CLIP, VIT, Scope, Sizes, layer, opened, patches
from .fields import Fields


class ViT:
    """A vision transformer: `hidden` vectors of squares, `logits` of classes if it has them."""

    def __init__(self, w: Scope, f: Fields) -> None:
        self.w, self.sizes = w, Sizes.of(f)
        self.inner = w.within("vit." if "vit.embeddings.cls_token" in w else "")

    def hidden(self, images: fg.Tensor) -> fg.Tensor:
        """A vector for each square, the first for all of them."""
        w, e = self.inner, self.inner.within("embeddings.")
        name = "patch_embeddings.projection."
        x = patches(images, e[name + "weight"], e[name + "bias"])
        first = fg.broadcast_to(e["cls_token"], (x.shape[0], 1, x.shape[2]))
        x = fg.concat([first, x], axis=1) + e["position_embeddings"]
        for n in range(self.sizes.layers):
            x = layer(w.within(f"encoder.layer.{n}."), VIT, self.sizes, x)
        return w.norm("layernorm", x, self.sizes.eps)

    def logits(self, images: fg.Tensor) -> fg.Tensor:
        """Scores of classes, (batch, classes)."""
        return self.w.linear("classifier", self.hidden(images)[:, 0])


class Clip:
    """CLIP: `images` and `texts` are vectors of length 1, whose products say what fits."""

    def __init__(self, w: Scope, f: Fields) -> None:
        self.w = w
        given = {"hidden_act": "quick_gelu"}  # which its files may leave out
        text, vision = (
            Fields({**given, **f.part(name).data}, f"{name}.")
            for name in ("text_config", "vision_config")
        )
        self.text, self.vision = Sizes.of(text), Sizes.of(vision)
        self.end = text.whole("eos_token_id", 49407, least=0)

    def images(self, images: fg.Tensor) -> fg.Tensor:
        """A vector for each image."""
        w = self.w.within("vision_model.")
        e, sizes = w.within("embeddings."), self.vision
        x = patches(images, e["patch_embedding.weight"], None)
        first = fg.broadcast_to(e["class_embedding"], (x.shape[0], 1, x.shape[2]))
        x = fg.concat([first, x], axis=1) + e["position_embedding.weight"]
        x = w.norm("pre_layrnorm", x, sizes.eps)
        for n in range(sizes.layers):
            x = layer(w.within(f"encoder.layers.{n}."), CLIP, sizes, x)
        x = w.norm("post_layernorm", x[:, 0], sizes.eps)
        return _unit(self.w.linear("visual_projection", x))

    def texts(self, ids: fg.Tensor) -> fg.Tensor:
        """A vector for each text, (batch, length) tokens that end with the end of text."""
        w = self.w.within("text_model.")
        e, sizes, length = w.within("embeddings."), self.text, ids.shape[1]
        x = e["token_embedding.weight"][ids] + e["position_embedding.weight"][:length]
        places = fg.arange(length)
        for n in range(sizes.layers):
            mask = places <= places[:, None]
            x = layer(w.within(f"encoder.layers.{n}."), CLIP, sizes, x, mask)
        x = w.norm("final_layer_norm", x, sizes.eps)
        is_end = ids == self.end if self.end != 2 else ids == ids.max(axis=1, keepdims=True)
        last = is_end.astype(fg.int32).argmax(axis=1)
        return _unit(self.w.linear("text_projection", x[fg.arange(ids.shape[0]), last]))

    def logits(self, images: fg.Tensor, ids: fg.Tensor) -> fg.Tensor:
        """How well each image fits each text, (images, texts)."""
        return self.images(images) @ self.texts(ids).mT * fg.exp(self.w["logit_scale"])


def _unit(x: fg.Tensor) -> fg.Tensor:
    return x / fg.sqrt((x * x).sum(axis=-1, keepdims=True))


def load_vision(path: Path) -> ViT | Clip:
    """A ViT or a CLIP model from a Hugging Face folder."""
    fields, tensors = opened(path)
    makers: dict[str, Callable[[Scope, Fields], ViT | Clip]] = {"vit": ViT, "clip": Clip}

    def read(_: str) -> ViT | Clip:
        kind = fields.text("model_type")
        if kind not in makers:
            raise Refusal(f"its architecture {kind[:50]!r} is no vision model known here")
        return makers[kind](Scope(tensors), fields)

    return reading(path, "a folder with a model", read)
