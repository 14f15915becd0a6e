"""The interfaces that the source documents prescribe, one folder each: `kfm`, `lit`, `nova_cat`, `exoarmur`.

They are thin layers over steps and retries, and may import everything except the command line. Import each by
its own name (`from oncemore.profiles.kfm.loop import retry_loop`). The packaged policies that they use are in
`policy/`; `oncemore.policy.files` loads them.
"""
