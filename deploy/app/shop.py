"""The example that the containers run: one step. Put your own package here, or copy it into an image."""

import oncemore


@oncemore.step(effect="idempotent", on="transient", attempts=5)
def charge(order: str, cents: int) -> str:
    """Charge an order; a payment provider would deduplicate by the key."""
    return f"{order}: {cents} cents charged under key {oncemore.current().key[:8]}"
