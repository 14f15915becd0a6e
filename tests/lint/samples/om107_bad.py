import contextlib
import urllib.request

import boto3
import requests

s3 = boto3.client("s3")


def bare(url):
    try:
        requests.get(url, timeout=5)
    except:  # finds OM107
        pass


def broad(bucket):
    try:
        s3.put_object(Bucket=bucket)
    except Exception:  # finds OM107
        ...


def own_error(url):
    try:
        requests.get(url, timeout=5)
    except requests.RequestException:  # finds OM107
        """It does not matter."""


def suppressed(url):
    with contextlib.suppress(Exception):  # finds OM107
        urllib.request.urlopen(url, timeout=5)
