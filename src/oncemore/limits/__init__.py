"""Circuit breakers, retry budgets, rate limits, concurrency limits and cooldowns.

Modules ending in `_rules` are pure; the rest may import the log, the policy and the steps.
"""
