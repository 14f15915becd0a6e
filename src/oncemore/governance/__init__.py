"""Proof and permission: keys, signatures, trusted policies; may import `steps` and below."""
