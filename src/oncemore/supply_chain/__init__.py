"""`oncemore check supply-chain`: container images, actions, dependencies, SBOMs and advisories.

Reads files only: nothing is downloaded, no image is pulled, no code is executed.

    images.py        image references in Dockerfiles, compose files, Kubernetes manifests and workflows
    dependencies.py  requirements files, and the components of CycloneDX and SPDX documents
    advisories.py    advisories in the formats of OSV and pip-audit
    check.py         the files below the given paths, and the report
"""
