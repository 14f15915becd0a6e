import contextlib
import logging

import requests


def logged(url):
    try:
        requests.get(url, timeout=5)
    except requests.RequestException as error:
        logging.warning("not sent: %s", error)


def narrow(url):
    try:
        requests.get(url, timeout=5)
    except requests.TooManyRedirects:
        pass


def local(path):
    try:
        path.unlink()
    except Exception:
        pass


def close(session):
    with contextlib.suppress(Exception):
        requests.get("https://shop.example/logout", timeout=5)
