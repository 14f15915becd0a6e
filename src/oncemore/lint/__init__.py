"""The linter: finds retries that hurt in any Python source, without importing or executing it.

It uses the standard library only and imports nothing else of this package, so that it also works where only
this folder can be imported. `check.check_source` checks one text, `project.check_paths` a whole project;
`oncemore lint` is the command. Each rule is a module in `rules/`.
"""
