import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor


def larger_pool(fetch, urls):
    for attempt in range(1, 4):
        try:
            with ThreadPoolExecutor(max_workers=4 * attempt) as pool:  # finds OM106
                return list(pool.map(fetch, urls))
        except ConnectionError:
            time.sleep(2**attempt)


def more_workers(run):
    workers = 4
    for attempt in range(4):
        try:
            return run(attempt)
        except ConnectionError:
            workers *= 2  # finds OM106
            time.sleep(2**attempt)
    return workers


async def again(job):
    try:
        return await job.run()
    except ConnectionError:
        asyncio.create_task(again(job))  # finds OM106


def thread(job):
    try:
        return job.run()
    except ConnectionError:
        threading.Thread(target=thread, args=(job,)).start()  # finds OM106


def submitted(pool, job):
    try:
        return job.run()
    except ConnectionError:
        pool.submit(submitted, pool, job)  # finds OM106
