import time

import backoff
import jsonschema
import oncemore
import pydantic
import tenacity


def loop(read):
    for attempt in range(3):
        try:
            return read()
        except (ConnectionError, pydantic.ValidationError):  # finds OM105
            time.sleep(2**attempt)


@backoff.on_exception(backoff.expo, (OSError, jsonschema.SchemaError), max_tries=3)  # finds OM105
def with_backoff(): ...


@oncemore.retry(on=(OSError, GovernanceViolation), attempts=3)  # finds OM105
def with_oncemore(): ...


@tenacity.retry(stop=tenacity.stop_after_attempt(3), wait=tenacity.wait_random_exponential())
def everything(document, schema):
    jsonschema.validate(document, schema)  # finds OM105
