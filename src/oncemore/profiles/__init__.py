"""The built-in policies (the YAML files here), and the facades that the source documents name.

`oncemore.policy.files` loads the files: `govern.profile("kfm-loop")`; `digests.txt` says which bytes were
released, `policy.schema.json` what a policy file may hold. `exoarmur`, `kfm_loop` and `lit` are the
facades: each is imported by its own name (`from oncemore.profiles.kfm.loop import retry_loop`).
"""
