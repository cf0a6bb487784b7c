"""Makes the remote device known to a run that asks for it: FULGURITE_DEVICE=remote."""

import os

if os.environ.get("FULGURITE_DEVICE", "").partition(":")[0] == "remote":
    from tests.backends import remote as remote
