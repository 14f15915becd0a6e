"""Decisions of operators: quarantine, approvals, switches, notifications; may import `steps` and below."""
