"""From a policy file to a moving robot: numpy and onnxruntime, no learning framework."""

from deploy.policy_file import PolicyFile, PolicyFileError

__all__ = ["PolicyFile", "PolicyFileError"]
