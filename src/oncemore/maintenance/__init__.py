"""Care of a log: prune, erase, back up, copy, rebuild, replay, import."""
