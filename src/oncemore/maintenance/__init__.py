"""Operations on a whole log: backup, copy, prune, erase, rebuild, replay, verify and import.

The folder may import `log`, `policy`, `artifacts`, `control` and `steps`.
"""
