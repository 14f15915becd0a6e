"""Decisions of operators: quarantine, approvals, switches, notifications."""
