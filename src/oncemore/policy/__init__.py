"""What to do after a failure: policies, backoff, decisions and their proofs. Pure."""
