"""The log: records, their encoding, the store protocol and its stores.

It may import values of the other features (policy, limits, control, artifacts), never their engines.
"""
