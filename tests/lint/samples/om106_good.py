import asyncio
import time
from concurrent.futures import ThreadPoolExecutor


def same_pool(fetch, urls):
    for attempt in range(1, 4):
        try:
            with ThreadPoolExecutor(max_workers=4) as pool:
                return list(pool.map(fetch, urls))
        except ConnectionError:
            time.sleep(2**attempt)


async def counted(job, left):
    try:
        return await job.run()
    except ConnectionError:
        if left:
            asyncio.create_task(counted(job, left - 1))
