"""A step of installing and of making a wheel: build the C extension, where that can be.

An editable install has it in the source tree, a wheel carries it. Without a C compiler there is
none, the wheel is one for every platform, and fulgurite runs without.
"""

import runpy
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ExtensionHook(BuildHookInterface):  # type: ignore[misc, type-arg]
    """Builds `fulgurite/core/_fast.c`."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile it, and say that the wheel is for this interpreter."""
        script = runpy.run_path(str(Path(self.root, "fulgurite", "core", "_build.py")))
        problem = script["build"]()
        if problem is not None:
            self.app.display_warning(f"fulgurite runs without its C extension: {problem}")
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["artifacts"].append(f"fulgurite/core/{script['target']().name}")
