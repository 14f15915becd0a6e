import time

import jsonschema
import oncemore
import pydantic


def loop(read):
    for attempt in range(3):
        try:
            return read()
        except pydantic.ValidationError:
            raise
        except ConnectionError:
            time.sleep(2**attempt)


@oncemore.retry(on=OSError, attempts=3)
def with_oncemore(document, schema):
    jsonschema.validate(document, schema)
