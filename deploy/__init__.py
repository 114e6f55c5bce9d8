"""From a policy file to a moving robot: numpy and onnxruntime, no learning framework."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deploy.policy_file import PolicyFile, PolicyFileError

__all__ = ["PolicyFile", "PolicyFileError"]


def __getattr__(name: str) -> Any:
    """Imported when asked for: numpy takes longer than a command that only prints its help."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from deploy import policy_file

    return getattr(policy_file, name)
