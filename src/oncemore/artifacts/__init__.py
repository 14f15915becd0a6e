"""Files that steps produce, stored by the digest of their bytes.

May import the log, the policy and the steps; `artifact` itself is a plain value.
"""
