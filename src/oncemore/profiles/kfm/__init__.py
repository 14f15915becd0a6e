"""The retry loop of the KFM document (`loop.py`), on durable steps; may import `steps` and `policy`."""
