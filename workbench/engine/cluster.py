"""Connection to a Ray cluster.

Ray is an optional extra: `pip install 'speculative-decoding-workbench[ray]'`. Every machine of a cluster needs the
workbench installed.
"""

from __future__ import annotations

from typing import Any

from workbench.core.errors import WorkbenchError


def connect_ray(address: str | None, without: str) -> Any:
    """Return the module `ray`, connected to a cluster.

    Args:
        address: address of the cluster, such as "ray://head:10001"; "auto": the cluster that runs on this machine;
            "local": start a cluster on this machine.
        without: alternative that the error message suggests if Ray is not installed, such as "use --workers".

    Raises:
        WorkbenchError: Ray is not installed, or there is no cluster at the address.
    """
    try:
        import ray
    except ModuleNotFoundError:
        raise WorkbenchError(
            "Ray is not installed.",
            f"Install Ray with pip install 'speculative-decoding-workbench[ray]', or {without}.",
        ) from None
    if not ray.is_initialized():
        try:
            ray.init(None if address == "local" else address, log_to_driver=False, include_dashboard=False)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise WorkbenchError(
                f"There is no Ray cluster at {address}: {' '.join(str(error).split())[:160]}",
                "Start a cluster with `ray start --head`, or give the address local.",
            ) from None
    return ray
