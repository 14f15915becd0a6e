"""Lineage and telemetry of runs as documents for other systems: PROV, OpenLineage, STAC, DCAT, CloudEvents.

The exporters compute documents from `RunHistory` values (`oncemore.queries.run_histories` reads them from a
store) and need no library; `send_events` and `write_file` are the only modules with side effects.
"""
