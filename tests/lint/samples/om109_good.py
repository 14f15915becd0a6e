import oncemore
import requests

shop = oncemore.Breaker("shop")


@oncemore.retry(on=OSError, attempts=3, breaker=shop)
def fetch(url):
    return requests.get(url, timeout=5)
