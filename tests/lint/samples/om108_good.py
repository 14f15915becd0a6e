import ftplib
import smtplib
import socket
from urllib.request import urlopen

import httpx
import requests


def plain(url, options):
    requests.get(url, timeout=5)
    requests.get(url, **options)
    requests.get(url, timeout=(5, None))
    urlopen(url, None, 5)
    socket.create_connection(("shop.example", 80), 5)
    smtplib.SMTP()
    ftplib.FTP(timeout=5)
    httpx.get(url)


def injected(requests):
    requests.get("https://shop.example")


def other(cache):
    return cache.get("key")
