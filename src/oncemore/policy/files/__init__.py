"""Policies on disk: files with a schema, profiles that ship with the package, and the way to both.

    from oncemore.policy import files as govern
    govern.profile("kfm-loop")            a profile by name
    govern.policy("nova-cat/acquisition") a policy by its address: profile[/policy][@provider]
    govern.load("policies/mine.yaml")     a file
    govern.listing(), govern.names()      what there is
    govern.schema()                       the JSON Schema of policy files

Every fault of a file is told at once, with file, line, column and field (`PolicyFileError`).
"""

from __future__ import annotations

from oncemore.policy.files.faults import Fault, Mark, PolicyFileError
from oncemore.policy.files.json_schema import schema
from oncemore.policy.files.loaded import UNSIGNED, VERIFIED, Cooldown, Profile
from oncemore.policy.files.loader import Listed, forget, listing, load, names, policy, profile
from oncemore.policy.files.writer import as_file

__all__ = [
    "UNSIGNED",
    "VERIFIED",
    "Cooldown",
    "Fault",
    "Listed",
    "Mark",
    "PolicyFileError",
    "Profile",
    "as_file",
    "forget",
    "listing",
    "load",
    "names",
    "policy",
    "profile",
    "schema",
]
