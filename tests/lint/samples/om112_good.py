import backoff
import oncemore


@oncemore.retry(on=OSError, attempts=5)
def fetch(url): ...


def load(urls):
    return [fetch(url) for url in urls]


@oncemore.retry(on=ConflictError, attempts=3)
def other_error(url):
    return fetch(url)


@oncemore.step(effect="pure", attempts=3)
def inner(url): ...


@oncemore.step(effect="pure", attempts=3)
def outer(url):
    return inner(url)


@backoff.on_exception(backoff.expo, OSError, max_tries=3)
@backoff.on_exception(backoff.expo, ConflictError, max_tries=3)
def stacked(): ...
