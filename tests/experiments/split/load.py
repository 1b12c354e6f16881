"""Asks a web server, first one request after the other, then several at the same time: load.py ADDRESS"""

import http.client
import sys
import threading

address = sys.argv[1]


def ask(name, how, n_requests):
    connection = http.client.HTTPConnection(address, timeout=30)
    for n in range(n_requests):
        connection.request("GET", f"/page?id={name}{n}&queries={n % 4}&how={how}")
        response = connection.getresponse()
        response.read()
        assert response.status == 200, response.status
    connection.close()


ask("simple", "simple", 200)
ask("prepared", "prepared", 40)
# At the same time: most queries may be of several requests, those in transactions less often.
for how in ["simple", "transaction"]:
    threads = [threading.Thread(target=ask, args=(f"{how}-{n}-", how, 20)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
