"""Policies as Amazon States Language, and tasks for Step Functions."""
