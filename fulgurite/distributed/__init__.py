"""Many processes: meshes of ranks, tensors in shards, collectives, plans for modules.

`fg.Mesh`, `fg.shard`, `fg.shard_map` and the collectives are the public names; the rest of this
package is what they and `nn.Module.shard` are made of. Nothing here imports an MPI library: that is
`runtime/distributed`, and only in a process that was launched as one of several.
"""

from __future__ import annotations

from .mesh import Mesh, job, join_job, shard

__all__ = ["Mesh", "job", "join_job", "shard"]
