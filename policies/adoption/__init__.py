"""What is needed to make a policy file of a policy that somebody else trained: `policies.adopt`."""
