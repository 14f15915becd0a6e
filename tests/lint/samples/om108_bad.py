import ftplib
import http.client as client
import smtplib
import socket
import urllib.request
from urllib.request import urlopen as fetch

import aiohttp
import httpx
import requests as http
from requests import Session, post


class Api:
    def __init__(self):
        self.session = Session()

    def get(self, url):
        return self.session.get(url)  # finds OM108


def plain(url):
    http.get(url)  # finds OM108
    post(url, json={})  # finds OM108
    http.request("GET", url, timeout=None)  # finds OM108
    fetch(url)  # finds OM108
    urllib.request.urlopen(url, None)  # finds OM108
    client.HTTPSConnection("shop.example")  # finds OM108
    socket.create_connection(("shop.example", 80))  # finds OM108
    smtplib.SMTP("mail.example")  # finds OM108
    ftplib.FTP("files.example")  # finds OM108
    httpx.get(url, timeout=None)  # finds OM108
    with http.Session() as session:
        session.put(url)  # finds OM108
    return aiohttp.ClientSession(timeout=None)  # finds OM108
