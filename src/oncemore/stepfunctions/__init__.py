"""Policies in Amazon States Language, checks of definitions, and tasks for AWS Step Functions.

It may import the policy, classifier and query folders.
"""
