"""Breakers, retry budgets, rates, concurrency and cooldowns."""
