"""Policy files: the schema, the packaged profiles, and loading both.

    from oncemore.policy import files
    files.profile("kfm-loop")             a profile by name
    files.policy("nova-cat/acquisition")  a policy by its address: profile[/policy][@provider]
    files.load("policies/mine.yaml")      a file
    files.inspect_file("mine.yaml")       a file to be looked at, also if it may not be used
    files.listing(), files.names()        the known profiles
    files.schema()                        the JSON Schema of policy files

`PolicyFileError` lists all faults of a file at once, with file, line, column and field. The folder imports
`policy`, `config` and the limits that a file can declare; the YAML reader is loaded at first use.
"""

from __future__ import annotations

from oncemore.policy.files.faults import FileFault, FilePosition, PolicyFileError
from oncemore.policy.files.json_schema import schema
from oncemore.policy.files.loaded import UNSIGNED, VERIFIED, Cooldown, Profile
from oncemore.policy.files.loader import (
    PolicyListing,
    forget,
    inspect_file,
    listing,
    load,
    names,
    policy,
    profile,
)
from oncemore.policy.files.writer import as_file

__all__ = [
    "UNSIGNED",
    "VERIFIED",
    "Cooldown",
    "FileFault",
    "FilePosition",
    "PolicyFileError",
    "PolicyListing",
    "Profile",
    "as_file",
    "forget",
    "inspect_file",
    "listing",
    "load",
    "names",
    "policy",
    "profile",
    "schema",
]
