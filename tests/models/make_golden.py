"""Makes `golden.json` and `golden.npz` anew: `python -m tests.models.make_golden`.

Needs torch and transformers; what it writes is what the tests of decoders compare with.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file

from tests.models.samples import HERE, weight
from tests.torch.test_models_decoders import CASES, SMALL

IDS = np.array([[5, 17, 3, 88, 41, 9, 60, 12, 77, 30, 2, 55]])


def model_of(name: str) -> Any:
    kind, settings = CASES[name]
    config_kind = "Gemma3TextConfig" if kind == "Gemma3" else f"{kind}Config"
    head = {"GPT2": "GPT2LMHeadModel"}.get(kind, f"{kind}ForCausalLM")
    base = {k: v for k, v in SMALL.items() if kind != "GPT2" or k.endswith(("vocab_size", "id"))}
    config = getattr(transformers, config_kind)(**(base | settings))
    config._attn_implementation = "eager"
    return getattr(transformers, head)(config).eval().float()


def main() -> None:
    cases: dict[str, Any] = {}
    logits = {}
    for name in CASES:
        model = model_of(name)
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            file = Path(folder) / "model.safetensors"
            shapes = {k: list(v.shape) for k, v in load_file(file).items()}
            tensors = {k: torch.from_numpy(weight(k, tuple(s))) for k, s in shapes.items()}
            from safetensors.torch import save_file

            save_file(tensors, file, {"format": "pt"})
            model = type(model).from_pretrained(folder, attn_implementation="eager")
            config = json.loads((Path(folder) / "config.json").read_text())
        with torch.no_grad():
            logits[name.replace(" ", "_")] = model.float()(torch.from_numpy(IDS)).logits[0].numpy()
        cases[name] = {"config": config, "shapes": shapes}
    (HERE / "golden.json").write_text(json.dumps(cases, indent=None, separators=(",", ":")) + "\n")
    np.savez_compressed(HERE / "golden.npz", **{k: v[-3:] for k, v in logits.items()})


if __name__ == "__main__":
    main()
